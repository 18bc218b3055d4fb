"""scripts/sweep.sh: a grid of runs, interrupted and gone on with."""

import contextlib
import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from command import BINARY, ENVIRONMENT, ROOT, TIMEOUT_S, wait_for

SWEEP = ROOT / "scripts/sweep.sh"
SLOW_DISK = {"LD_PRELOAD": str(BINARY.parent / "lib/libslow_sync.so"), "SLOW_SYNC_MS": "150"}
GRID = ("learning_rate=1e-2,1e-3", "lora_r=4,8")


class Sweep:
    def __init__(self, setup):
        self.setup, self.runs = setup, setup.folder / "runs"

    def command(self, *arguments, **changes):
        settings = dict(dict(output_dir=str(self.runs / "lr{learning_rate}-r{lora_r}")), **changes)
        return [str(SWEEP), "--program", str(BINARY), "--profile", str(self.setup.write_profile(**settings)), *arguments]

    def __call__(self, *arguments, environment=(), **changes):
        return subprocess.run(self.command(*arguments, **changes), capture_output=True, text=True, timeout=TIMEOUT_S,
                              env=dict(ENVIRONMENT, **dict(environment)))

    def start(self, *arguments, environment=(), **changes):
        return subprocess.Popen(self.command(*arguments, **changes), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                text=True, env=dict(ENVIRONMENT, **dict(environment)), start_new_session=True,
                                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))  # it may be ignored here

    def file_times(self):
        return {path: path.stat().st_mtime_ns for path in self.runs.rglob("*") if path.is_file()}

    def statuses(self):
        return {path.parent.name: json.loads(path.read_text())["status"] for path in self.runs.glob("*/summary.json")}


@pytest.fixture
def sweep(setup):
    return Sweep(setup)


NAMES = {f"lr{rate}-r{rank}" for rate in ("0.01", "0.001") for rank in (4, 8)}


def test_one_folder_for_each_combination_and_a_comparison(sweep):
    done = sweep(*GRID)
    assert done.returncode == 0, done.stderr
    assert sweep.statuses() == dict.fromkeys(NAMES, "done")
    assert done.stdout.splitlines()[0].split()[:3] == ["run", "lora_r", "learning_rate"], done.stdout
    assert len(done.stdout.splitlines()) == 5
    before = sweep.file_times()
    again = sweep(*GRID)
    assert again.returncode == 0 and again.stderr.count("already complete") == 4, again.stderr
    assert again.stdout == done.stdout and sweep.file_times() == before


def test_dry_run_prints_the_commands(sweep):
    """Keys are flags as in train; what has no single value names a folder as it was given."""
    done = sweep("--dry-run", *GRID, "lora_target_modules=[q_proj,v_proj]", "--", "--quiet")
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and len(lines) == 5 and not sweep.runs.exists(), done.stdout + done.stderr
    assert all(" train --profile " in line and "--quiet" in line and "q_proj" in line for line in lines[:4]), lines
    assert " compare " in lines[4] and all(f"/{name}" in lines[4] for name in NAMES)
    given = sweep("--dry-run", "--learning-rate", "1e-2,1e-3", "--lora_r=4,8", "--seed", "7").stdout
    assert given == sweep("--dry-run", "learning_rate=1e-2,1e-3", "lora_r=4,8", "seed=7").stdout and given.count("seed=7") == 4, given
    done = sweep("--dry-run", "lora_r=4,8", "lora_target_modules=[q_proj,v_proj],all-linear", f"datasets[0].path={sweep.setup.rows_file},/x/more.jsonl",
                 output_dir=str(sweep.runs / "r{lora_r}"))
    compare = done.stdout.splitlines()[-1]
    assert done.returncode == 0 and len(done.stdout.splitlines()) == 9, done.stderr
    assert f"{sweep.runs}/r4/lora_target_modules-q_proj_v_proj-datasets_0.path-rows.jsonl " in compare, compare
    assert f"{sweep.runs}/r8/lora_target_modules-all-linear-datasets_0.path-more.jsonl" in compare, compare


def test_keys_that_output_dir_leaves_out_name_a_folder_in_it(sweep):
    """A failing run is noted and the sweep goes on: with a rate without end, the second step is not finite."""
    one = sweep.runs / "one"
    done = sweep("learning_rate=1e-2,1e30", GRID[1], output_dir=str(one))
    names = [f"learning_rate-{rate}-lora_r-{rank}" for rate in ("0.01", "1.0e+30") for rank in (4, 8)]
    assert done.returncode == 7 and f"each run has its own folder in {one}, named after learning_rate lora_r" in done.stderr, done.stderr
    assert "run 3 of 4: failed with exit status 7" in done.stderr and "2 of 4 runs failed" in done.stderr, done.stderr
    assert {path.parent.name: json.loads(path.read_text())["status"] for path in one.glob("*/summary.json")} == dict(
        zip(names, ["done", "done", "failed", "failed"]))
    assert [line.split()[0] for line in done.stdout.splitlines()[1:5]] == names and ": failed: " in done.stdout, done.stdout
    # A profile is a word, and the comparison may be JSON.
    command = sweep.command("learning_rate=0.01", "lora_r=4,8", "--json", "--quiet", output_dir=str(one / "learning_rate-{learning_rate}-lora_r-{lora_r}"))
    command.remove("--profile")
    again = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, env=ENVIRONMENT)
    assert again.returncode == 0 and "sweep:" not in again.stderr, again.stderr
    assert [json.loads(line)["status"] for line in again.stdout.splitlines()] == ["done", "done"], again.stdout


@pytest.mark.parametrize("arguments, what", [
    (("learning_rate=1e-2,0.01", "lora_r=4"), "two runs would go to"),
    (("learnin_rate=1,2",), 'Did you mean "learning_rate"'),
    (("learning_rate=1e-2,fast",), "the profile is refused with: learning_rate=fast"),
    (("learning_rate=1e-2,",), "empty value"),
    (("learning_rate=1e-2", "learning_rate=1e-3"), "given twice"),
    (("--jobs", "0", *GRID), "--jobs"), (("--whatever", "1", *GRID), "whatever=1: unknown key"), ((), "nothing to vary; expected KEY=V1,V2, such as: lora-train sweep "),
    (("--nproc", "2", *GRID), "--nproc is not a flag of sweep"), (("--packing", "--json", *GRID), "--packing needs a value"),
    ((*GRID, "--", "--output-dir", "runs/x"), "output_dir=DIR before --"), ((*GRID, "--", "--output_dir", "runs/x"), "output_dir=DIR before --"),
    ((*GRID, "--", "--seed", "x"), "the profile is refused"), ((*GRID, "--", "no-such.yaml"), "the profile is refused"),
])
def test_mistakes_are_found_before_the_first_run(sweep, arguments, what):
    done = sweep(*arguments)
    assert done.returncode == 2 and what in done.stderr and not sweep.runs.exists(), done.stderr


def descendants(pid):
    found = [pid]
    for parent in found:
        for children in Path(f"/proc/{parent}/task").glob("*/children"):
            found += map(int, children.read_text().split())
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_request_reaches_the_run_once(sweep, number):
    """After a checkpoint, and with it the sweep ends: a second request would have ended the run without one. SIGINT comes as Ctrl-C sends it,
    to all of the terminal's processes; SIGTERM as scancel --full does, to the sweep and, past it, to the run."""
    first = sweep.runs / "lr0.01-r4"
    process = sweep.start(*GRID, environment=SLOW_DISK, max_steps=1000000)  # so that a second request comes before its end
    wait_for(lambda: len(sweep.setup.events("train", first)) >= 20, "step 20", process)
    if number == signal.SIGINT:
        os.killpg(process.pid, number)
    else:
        everyone = descendants(process.pid)
        assert int((first / ".lora-train.lock").read_text().split()[1]) in everyone and len(everyone) >= 4
        for pid in everyone:
            with contextlib.suppress(ProcessLookupError):  # a sleep that is over
                os.kill(pid, number)
    _, stderr = process.communicate(timeout=300)
    assert process.returncode == 75 and "run the same command to resume" in stderr, stderr
    assert sweep.statuses() == {"lr0.01-r4": "stopped"}, stderr
    step = json.loads((first / "summary.json").read_text())["step"]
    assert step >= 20 and (first / f"checkpoint-{step}").exists()


def test_after_a_kill_the_same_command_goes_on(sweep):
    settings = dict(max_steps=200, save_steps=50)
    process = sweep.start("learning_rate=1e-2,1e-3", "lora_r=4", **settings)
    second = sweep.runs / "lr0.001-r4"
    wait_for(lambda: sweep.setup.events("checkpoint", second), "a checkpoint of the second run", process)
    os.kill(int((second / ".lora-train.lock").read_text().split()[1]), signal.SIGKILL)
    stdout, stderr = process.communicate(timeout=300)
    assert process.returncode == 137 and "run 2 of 2: failed with exit status 137" in stderr, stderr
    assert "lr0.001-r4: unfinished: " in stdout, stdout

    done = sweep("learning_rate=1e-2,1e-3", "lora_r=4", **settings)
    assert done.returncode == 0 and set(sweep.statuses().values()) == {"done"}, done.stderr
    assert "already complete" in done.stderr and f"resumed from {second}/checkpoint-" in done.stderr, done.stderr
    assert [line["step"] for line in sweep.setup.events("train", second)] == list(range(1, 201))


def test_several_runs_at_a_time_have_a_gpu_each(sweep):
    program = sweep.setup.folder / "program"
    program.write_text(f'#!/bin/sh\n[ "$1" = train ] && echo "$CUDA_VISIBLE_DEVICES" >>{sweep.setup.folder}/devices\nexec {BINARY} "$@"\n')
    program.chmod(0o755)
    gpus = dict(CUDA_VISIBLE_DEVICES="3,5")
    done = sweep("--jobs", "2", "--program", str(program), *GRID, environment=gpus)
    assert done.returncode == 0 and sweep.statuses() == dict.fromkeys(NAMES, "done"), done.stderr
    devices = (sweep.setup.folder / "devices").read_text().split()
    assert len(devices) == 4 and set(devices) == {"3", "5"}, devices
    done = sweep("--jobs", "3", *GRID, environment=gpus)
    assert done.returncode == 2 and "--jobs 3, but there are 2 GPUs" in done.stderr, done.stderr
    done = sweep("--jobs", "2", "learning_rate=1e30,1e-2", "lora_r=16")
    assert done.returncode == 7 and "run 1 of 2: failed" in done.stderr and "not finite" in done.stderr, done.stderr


@pytest.mark.parametrize("kill", [os.kill, os.killpg])
def test_a_sweep_that_is_killed_trains_nothing_on(sweep, kill):
    process = sweep.start("lora_r=4,8", max_steps=100000, num_epochs=None, save_steps=100000, learning_rate=1e-3,
                          output_dir=str(sweep.runs / "r{lora_r}"), environment={"TMPDIR": str(sweep.setup.folder)})
    try:
        wait_for(lambda: sweep.setup.events("train", sweep.runs / "r4"), "step 1", process)
    finally:
        kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)  # ends when the last process has closed its stdout
    assert list(sweep.statuses().values()) == ["stopped"], sweep.statuses()
    assert kill == os.killpg or not list(sweep.setup.folder.glob("tmp.*"))


def test_a_run_out_of_time_ends_the_sweep(sweep):
    done = sweep(*GRID, "--", "--max-time", "1s", max_steps=1000000)
    assert done.returncode == 75 and sweep.statuses() == {"lr0.01-r4": "stopped"}, done.stderr
