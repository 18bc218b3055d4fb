"""gpu_check (tests/gpu/gpu_check.py) cannot pass without having looked: its parts over programs that do nothing, and the clock
of its calls. No GPU, no LibTorch."""

import json
import os
import select
import shutil
import subprocess
import sys
import tarfile
from types import SimpleNamespace

import pytest

from command import ROOT

GPU = ROOT / "tests/gpu"
sys.path.insert(0, str(GPU))
import gpu_check  # noqa: E402
import parts  # noqa: E402
from parts import BUDGET_S, CALLS, FIRST_LIGHT, PARTS, SPARE, UNITS  # noqa: E402
from program import Failure, checked  # noqa: E402

PROGRAMS = ["lora-train", "lora-train-probe", "kernels_test", "optim_test", "model_test", "run_test", "lora_test", "cuda_test",
            "native_kernels_test", "cuda_kernels_test", "gpu_bench", "sanitizer_control", "compute-sanitizer", "nvidia-smi",
            "lib/libcount_cuda_calls.so", "lib/librecord_cuda_kernels.so"]
SCRIPTS = ["bench/gpu_measure.py", "bench/compare_hf_gpu.py", "tests/gpu/parity_gpu.py"]


@pytest.fixture
def silent(tmp_path):
    """A bundle whose programs and scripts print nothing and exit with 0. run(*arguments) runs gpu_check of it."""
    root = tmp_path / "bundle"
    shutil.copytree(GPU, root / "tests/gpu", ignore=shutil.ignore_patterns("__pycache__"))
    for name in PROGRAMS:
        file = root / "bin" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("#!/bin/sh\nexit 0\n")
        file.chmod(0o755)
    for name in SCRIPTS:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("")
    (root / "examples/tiny-math").mkdir(parents=True)

    def run(*arguments):
        environment = dict(os.environ, LORA_TRAIN_BIN=str(root / "bin"),
                           PATH=f"{root / 'bin'}:{os.environ['PATH']}")
        return subprocess.run([sys.executable, root / "tests/gpu/gpu_check.py", "--out", tmp_path / "out", *arguments],
                              capture_output=True, text=True, env=environment, timeout=300)

    run.root = root
    return run


def rows_of(done):
    """{part: line} of the table of parts."""
    table = done.stdout.split("figure\n", 1)[1].split("\n\n", 1)[0]
    return {line.split()[0]: line for line in table.splitlines()}


# A part that imports torch before it looks at anything has its own tests: parity in test_bundle.py.
EVERY_PART = sorted(set(PARTS) - {"rivals", "parity_attention", "parity_plain"})


def test_no_part_passes_over_programs_that_do_nothing(silent):
    done = silent("--device", "cuda", "--only", ",".join(EVERY_PART))
    assert done.returncode == 1, done
    rows = rows_of(done)
    assert set(rows) == set(EVERY_PART)
    assert not [line for line in rows.values() if " FAILED " not in line], done.stdout
    assert "MISSED" not in done.stdout and "holds" not in done.stdout and "not measured" in done.stdout


def test_a_part_that_needs_a_gpu_is_skipped_on_a_cpu_and_not_passed(silent):
    done = silent("--device", "cpu", "--only", "sanitizer,steady")
    assert done.returncode == 1, done
    assert all(" skipped " in line for line in rows_of(done).values()), done


def test_a_call_ends_where_nothing_runs_on_the_gpu(silent):
    done = silent("--device", "cuda", "--call", "correct")
    assert done.returncode == 1, done
    rows = rows_of(done)
    assert [rows[name].split()[1] for name in CALLS["correct"]] == ["FAILED"] * 4 + ["left"] * (len(rows) - 4), done.stdout
    assert "nothing runs on this GPU: load, cuda_kernels, doctor failed" in rows["parity"]


@pytest.mark.parametrize("results, device, is_dark", [
    (["FAILED"] * 3, "cuda", True), (["FAILED", "FAILED", "passed"], "cuda", False), (["FAILED", "passed", "FAILED"], "cuda", False),
    (["FAILED"] * 2, "cuda", False), (["FAILED"] * 3, "cpu", False)])
def test_one_part_that_runs_keeps_the_call_going(results, device, is_dark):
    rows = [gpu_check.Row(name, result, "") for name, result in zip(FIRST_LIGHT, results)]
    assert gpu_check.Check.is_dark(SimpleNamespace(rows=rows, args=SimpleNamespace(device=device, only=""))) == is_dark


def test_calls_share_a_folder_and_leave_one_archive(silent, tmp_path):
    archive = tmp_path / "back" / "all.tgz"
    silent("--device", "cuda", "--only", "doctor", "--archive", archive)
    silent("--device", "cuda", "--call", "gate_up", "--archive", archive)
    with tarfile.open(archive) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
        log = packed.extractfile("out/log.txt").read().decode()
    assert {"table-only.txt", "table-gate_up.txt", "measured.json", "log.txt"} <= names
    assert "==== doctor" in log and "==== gate_up" in log
    assert set(json.loads((tmp_path / "out/measured.json").read_text())["parts"]) == {"doctor", "gate_up"}


def test_a_call_that_is_stopped_leaves_its_archive(silent, tmp_path):
    waits = silent.root / "bin/lora-train"
    waits.write_text('#!/bin/sh\ncase "$1" in --version) echo "lora-train 0" ;; *) echo begun >&2; exec tail -f /dev/null ;; esac\n')
    process = subprocess.Popen([sys.executable, silent.root / "tests/gpu/gpu_check.py", "--out", tmp_path / "out", "--only", "doctor",
                                "--archive", tmp_path / "all.tgz"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                               env=dict(os.environ, LORA_TRAIN_BIN=str(silent.root / "bin")))
    assert process.stderr.readline() == "== doctor\n"
    process.terminate()
    process.communicate(timeout=60)
    with tarfile.open(tmp_path / "all.tgz") as packed:
        assert "out/table-only.txt" in packed.getnames()


def test_the_log_of_all_calls_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_check, "MOST_OF_THE_LOG", 50)
    check = SimpleNamespace(log=tmp_path / "log.txt")
    for text in ("first" * 5, "middle" * 5, "last" * 5):
        gpu_check.Check.keep_log(check, text)
    kept = check.log.read_text()
    assert len(kept) == 50 and kept.endswith("last" * 5) and "first" not in kept


PART = PARTS["doctor"]
SAW_ALL = "checked: 66 of 66 kernel checks\nfigure: fine\n"


@pytest.mark.parametrize("status, log, result, words", [
    (0, SAW_ALL, "passed", "fine"),
    (0, "", "FAILED", "does not say what it looked at"),
    (0, "figure: fine\n", "FAILED", "does not say what it looked at"),
    (0, "checked: 0 of 0 kernel checks\nfigure: fine\n", "FAILED", "looked at 0 kernel checks, expected 60"),
    (0, "checked: 59 of 59 kernel checks\nfigure: fine\n", "FAILED", "looked at 59 kernel checks, expected 60"),
    (0, "checked: 65 of 66 kernel checks\nfigure: fine\n", "FAILED", "looked at 65 kernel checks, expected 66"),
    (1, SAW_ALL, "FAILED", "fine"), (124, SAW_ALL, "FAILED", "fine"), (137, SAW_ALL, "FAILED", "fine"),
    (-9, SAW_ALL, "FAILED", "fine"), (None, SAW_ALL, "FAILED", "stopped at its time limit"),
    (77, "figure: no peft\n", "skipped", "no peft")])
def test_a_part_has_to_say_what_it_looked_at(status, log, result, words):
    assert gpu_check.judge(PART, "cuda", status, log)[0] == result
    assert words in gpu_check.judge(PART, "cuda", status, log)[1]


def test_looking_at_nothing_or_at_less_is_a_failure():
    checked(3, 3, "things")
    for number, expected in ((0, 0), (2, 3), (0, 3)):
        with pytest.raises(Failure, match=f"{number} of {expected} things"):
            checked(number, expected, "things")


def test_a_program_without_tests_fails_beside_one_that_passes(tmp_path):
    passing = "[ RUN      ] Suite.A\\n[       OK ] Suite.A (0 ms)\\n"
    for name, text in (("optim_test", f'case "$*" in *list*) printf "Suite.\\n  A\\n" ;; *) printf "{passing}" ;; esac'),
                       ("lora_test", "exit 0")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)

    def run_tests(programs):
        return subprocess.run([sys.executable, GPU / "unit_tests.py", "--device", "cpu", "--only", programs],
                              capture_output=True, text=True, env=dict(os.environ, LORA_TRAIN_BIN=str(tmp_path)))

    alone, both = run_tests("optim_test"), run_tests("optim_test,lora_test")
    assert alone.returncode == 0 and "checked: 1 of 1 unit tests" in alone.stdout, alone
    assert both.returncode == 1 and "lora_test: lists no tests" in both.stdout, both


@pytest.mark.parametrize("results, on_cuda, on_cpu", [
    (["passed", "passed"], 0, 0), (["passed", "skipped"], 3, 0), (["passed", "left out"], 3, 0),
    (["passed", "skipped", "FAILED"], 1, 1), (["skipped"], 3, 1), ([], 3, 1)])
def test_the_exit_status_says_what_was_not_looked_at(results, on_cuda, on_cpu):
    for device, expected in (("cuda", on_cuda), ("cpu", on_cpu)):
        check = SimpleNamespace(rows=[gpu_check.Row("part", result, "") for result in results],
                                args=SimpleNamespace(device=device))
        assert gpu_check.Check.status(check) == expected, (device, results)


def test_a_part_is_stopped_with_what_it_started(tmp_path):
    """A shell that waits for a child for ever."""
    pid = tmp_path / "pid"
    part = SimpleNamespace(at_least=PART.at_least, needs_gpu=False, need_s=lambda: 1,
                           command=lambda *_: ["sh", "-c", f"tail -f /dev/null & echo $! > {pid}; echo figure: half; wait"])
    args = SimpleNamespace(out=tmp_path, budget=60, device="cuda", gpu="a GPU", commit="a commit")
    check = gpu_check.Check(args, tmp_path)
    check.run("part", part, 1)
    assert [row.result for row in check.rows] == ["FAILED"] and "stopped at its time limit; half" in check.rows[0].figure
    try:
        ended = select.select([os.pidfd_open(int(pid.read_text()))], [], [], 60)[0]
    except ProcessLookupError:
        return
    assert ended, "the child lives on"


def test_parts_share_no_folder_for_work(tmp_path):
    folders = []
    part = SimpleNamespace(at_least=PART.at_least, needs_gpu=False, need_s=lambda: 1,
                           command=lambda device, work, out, limit: folders.append(work) or ["mkdir", work])
    check = gpu_check.Check(SimpleNamespace(out=tmp_path, budget=60, device="cuda", gpu="a GPU", commit="a commit"), tmp_path)
    for name in ("one", "two", "one"):
        check.run(name, part, 60)
    assert folders[0] != folders[1] and folders[0] == folders[2]
    assert ["does not say" in row.figure for row in check.rows] == [True] * 3, list(map(str, check.rows))


@pytest.mark.parametrize("call", CALLS)
def test_later_parts_keep_their_time(call):
    args = SimpleNamespace(only="", call=call, out=gpu_check.Path("."), budget=BUDGET_S, device="cuda", commit="")
    check = SimpleNamespace(args=args, deadline=gpu_check.time.monotonic() + BUDGET_S, names=lambda: CALLS[call])
    for i, name in enumerate(CALLS[call]):
        limit = gpu_check.Check.time_for(check, name, CALLS[call][i + 1:])
        assert PARTS[name].limit_s - 1 <= limit
        assert limit + sum(PARTS[later].limit_s for later in CALLS[call][i + 1:]) <= BUDGET_S + 1


@pytest.mark.parametrize("name", PARTS)
def test_a_part_fits_its_limit_by_count(name):
    part = PARTS[name]
    assert part.need_s() > 0 and set(part.need) <= set(UNITS)
    assert SPARE * part.need_s() <= part.limit_s, f"{name} needs {part.need_s():.0f} s of {part.limit_s} s"


def test_every_call_fits_into_ten_minutes_and_is_documented():
    for name, names in CALLS.items():
        assert sum(PARTS[part].limit_s for part in names) <= BUDGET_S, name
        assert len(set(names)) == len(names)
    assert {part for names in CALLS.values() for part in names} == set(PARTS)
    assert parts.markdown() in (ROOT / "docs/gpu.md").read_text(), "tests/gpu/parts.py prints the tables of docs/gpu.md"
    assert set(FIRST_LIGHT) <= set(CALLS["correct"][:4]) and list(CALLS)[:4] == ["correct", "speed", "rest", "rivals"]
