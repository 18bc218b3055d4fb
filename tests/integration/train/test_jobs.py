"""scripts/run_jobs.sh: the five jobs run on a CPU, with the figures of their authors beside the measured ones."""

import json
import re
import subprocess
import time

import pytest
import yaml

from command import BINARY, ENVIRONMENT, ROOT, events_of, lora_train

JOBS = sorted(path.name for path in (ROOT / "configs/jobs").iterdir())
LIMIT_S = 90


def run_jobs(*arguments, cwd=ROOT):
    return subprocess.run([ROOT / "scripts/run_jobs.sh", *map(str, arguments)], capture_output=True, text=True, env=ENVIRONMENT, cwd=cwd)


@pytest.mark.long_run
def test_all_jobs_run_on_a_cpu_and_learn(tmp_path, record_property):
    start = time.monotonic()
    run = run_jobs("--program", BINARY, "--output", "jobs", cwd=tmp_path)
    elapsed = time.monotonic() - start
    assert run.returncode == 0, run.stdout + run.stderr
    record_property("shown", f"{run.stdout}five jobs in {elapsed:.0f} s")
    assert elapsed < LIMIT_S, f"{elapsed:.0f} s"
    assert [line.split(":")[0] for line in run.stdout.splitlines() if re.match(r"[a-d]-|distill:", line)] == JOBS and len(JOBS) == 5
    here = re.findall(r"here .* it/s .* tok/s, \d+ steps, loss ([\d.]+) before and ([\d.]+) after", run.stdout)
    assert len(here) == 6 and run.stdout.count("theirs ") == 6, run.stdout
    assert all(float(after) < 0.5 * float(before) for before, after in here), here
    assert re.search(r"theirs +47 h +\$117 to \$140 +1.25 it/s +found by them", run.stdout), run.stdout
    assert re.search(r"teacher +\d+s +no price +100 answers", run.stdout) and "on 20 held-out prompts: 0.00% before training" in run.stdout, run.stdout
    assert re.search(r"run +tf32 +packing", run.stdout), "the halves of d are compared"


def test_what_the_jobs_are_about_is_in_their_runs(tmp_path):
    run = run_jobs("--program", BINARY, "--output", tmp_path, "b", "distill")
    assert run.returncode == 0, run.stdout + run.stderr
    log, profile = (tmp_path / "b-confidence/train.log").read_text(), yaml.safe_load((tmp_path / "b-confidence/train/profile.yaml").read_text())
    assert profile["base_precision"] == "int8" and profile["eval_max_samples"] == profile["val_set_size"] == 200
    assert "28 linears in int8" in log and "learning_rate: 0.005 x sqrt(32 / 32)" in log
    [start], evals = (events_of(tmp_path / "b-confidence/train", kind) for kind in ("start", "eval"))
    assert start["world_size"] == 4, start
    assert [event["step"] for event in evals if "kind" not in event] == [0, 3, 6, 9]
    asked = [json.loads(line) for line in (tmp_path / "distill/student/teacher.answers.jsonl").read_text().splitlines()]
    rows = [json.loads(line)["messages"] for line in (tmp_path / "distill/student/teacher.jsonl").read_text().splitlines()]
    assert len(asked) == len(rows) == 80 and "You label sentences" not in json.dumps(rows), "only the teacher sees its prompt"
    assert "ending the teacher" in (tmp_path / "distill/student.log").read_text()
    ece = [event["ece"] for event in evals if event["name"] == "conf"]
    assert len(ece) == 4 and ece[-1] < ece[0] and evals[-1]["num_rows"] == 200, ece


def test_a_job_that_fails_is_named_and_the_others_run(tmp_path):
    program = tmp_path / "lora-train"
    program.write_text(f'#!/bin/sh\ncase "$*" in *c-tuned*) echo "no luck" >&2; exit 4 ;; esac\nexec {BINARY} "$@"\n')
    program.chmod(0o755)
    run = run_jobs("--program", program, "--output", tmp_path / "jobs", "c", "a")
    assert run.returncode == 4, run.stdout + run.stderr
    assert "train FAILED with exit code 4" in run.stdout and "no luck" in run.stdout and run.stdout.count("    here ") == 1, run.stdout


@pytest.mark.parametrize("arguments, said", [(["x"], 'no job "x"'), (["--gpu"], "--train-data FILE"), (["--nothing"], "unknown flag"),
                                             (["--output"], "needs a value")])
def test_wrong_arguments_are_refused(arguments, said):
    run = run_jobs(*arguments)
    assert run.returncode == 2 and said in run.stderr and not run.stdout, run


def test_profiles_of_both_sizes_load(tmp_path):
    profiles = sorted((ROOT / "configs/jobs").glob("*/*.yaml"))
    assert len(profiles) == 12
    named = {run[size] for job in JOBS for run in json.loads((ROOT / f"configs/jobs/{job}/job.json").read_text())["runs"]
             for size in ("cpu", "gpu")}
    assert named == {path.name for path in profiles}
    for path in profiles:
        run = lora_train("check", "--no-files", "--profile", path, *(["datasets=mine.jsonl"] if "gpu" in path.name else []), cwd=ROOT)
        assert run.code == 0 and "warning" not in run.stderr, run
