"""gpu_check (tests/gpu/gpu_check.py) cannot pass without having looked: its parts over programs that do nothing, over results that
were made up, and the goals at its end. No GPU, no LibTorch."""

import json
import os
import re
import select
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest

from conftest import ROOT

GPU = ROOT / "tests/gpu"
sys.path.insert(0, str(GPU))
import goals  # noqa: E402
import gpu_check  # noqa: E402
import kernel_names  # noqa: E402
import sanitizer  # noqa: E402
import steps  # noqa: E402
from parts import CALLS, PARTS  # noqa: E402
from program import Failure, checked, json_line  # noqa: E402

PROGRAMS = ["lora-train", "lora-train-probe", "kernels_test", "optim_test", "model_test", "train_test", "lora_test", "cuda_test",
            "native_kernels_test", "cuda_kernels_test", "gpu_bench", "sanitizer_control", "compute-sanitizer", "nvidia-smi",
            "lib/libcount_cuda_calls.so", "lib/librecord_cuda_kernels.so"]
SCRIPTS = ["bench/gpu_measure.py", "bench/compare_hf_gpu.py", "scripts/check_goldens.py", "tests/gpu/parity_gpu.py"]


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
EVERY_PART = sorted(set(PARTS) - {"compare_2x4", "compare_8", "compare_mix", "parity_reference", "parity_attention", "parity_plain"})


def test_no_part_passes_over_programs_that_do_nothing(silent):
    done = silent("--device", "cuda", "--only", ",".join(EVERY_PART))
    assert done.returncode == 1, done
    rows = rows_of(done)
    assert set(rows) == set(EVERY_PART)
    assert not [line for line in rows.values() if " FAILED " not in line], done.stdout
    assert "MISSED" not in done.stdout and "holds" not in done.stdout and "not measured" in done.stdout


@pytest.mark.parametrize("name", ["compare_2x4", "parity_reference"])
def test_no_comparison_passes_over_scripts_that_do_nothing(silent, name):
    assert " FAILED " in rows_of(silent("--device", "cuda", "--only", name))[name]


def test_a_part_that_needs_a_gpu_is_skipped_on_a_cpu_and_not_passed(silent):
    done = silent("--device", "cpu", "--only", "sanitizer,steady")
    assert done.returncode == 1, done
    assert all(" skipped " in line for line in rows_of(done).values()), done


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
    part = SimpleNamespace(at_least=PART.at_least, needs_gpu=False,
                           command=lambda *_: ["sh", "-c", f"tail -f /dev/null & echo $! > {pid}; echo figure: half; wait"])
    args = SimpleNamespace(out=tmp_path, budget=60, device="cuda", commit="a commit")
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
    part = SimpleNamespace(at_least=PART.at_least, needs_gpu=False,
                           command=lambda device, work, out, limit: folders.append(work) or ["mkdir", work])
    check = gpu_check.Check(SimpleNamespace(out=tmp_path, budget=60, device="cuda", commit="a commit"), tmp_path)
    for name in ("one", "two", "one"):
        check.run(name, part, 60)
    assert folders[0] != folders[1] and folders[0] == folders[2]
    assert ["does not say" in row.figure for row in check.rows] == [True] * 3, list(map(str, check.rows))


def test_later_parts_keep_their_time():
    args = SimpleNamespace(only="", call="first", out=gpu_check.Path("."), budget=570, device="cuda", commit="")
    check = SimpleNamespace(args=args, deadline=gpu_check.time.monotonic() + 570, names=lambda: CALLS["first"])
    for i, name in enumerate(CALLS["first"]):
        limit = gpu_check.Check.time_for(check, name, CALLS["first"][i + 1:])
        assert PARTS[name].limit_s - 1 <= limit
        assert limit + sum(PARTS[later].limit_s for later in CALLS["first"][i + 1:]) <= 571


def test_every_call_fits_into_ten_minutes_and_is_documented():
    text = (ROOT / "docs/gpu.md").read_text()
    for name, names in CALLS.items():
        assert sum(PARTS[part].limit_s for part in names) <= 570, name
        assert f"`{name}`" in text, name
        assert len(set(names)) == len(names)
    assert {part for names in CALLS.values() for part in names} == set(PARTS)
    for name, part in PARTS.items():
        assert f"| {name} | {part.limit_s} s |" in text, f"docs/gpu.md has no row \"| {name} | {part.limit_s} s |\""
    order = ["doctor", "attention", "recorded", "parity", "kernel_names", "pitch", "gate_up", "classes", "compare_equality",
             "resume", "sanitizer"]
    assert [name for name in CALLS["first"] if name in order] == order


# ---- the parts that read what others wrote ---------------------------------------------------------------------------------

def kernel(name, ms, calls=10, local_bytes=0):
    return dict(name=name, ms=ms, calls=calls, registers=64, local_bytes=local_bytes)


FA2 = "_ZN13pytorch_flash16flash_fwd_kernelI23Flash_fwd_kernel_traitsILi128EN7cutlass10bfloat16_tEEE"
GOOD = [kernel("nvjet_tst_256x128_64x4_2x1_v_bz_coopA_NNT", 600), kernel("cutlass3x_sm90_bf16_s64x128x16gemm", 40),
        kernel(FA2, 80), kernel("_ZN10lora_train13rms_norm_cudaEv", 60)]


@pytest.mark.parametrize("kernels, is_new, findings", [
    (GOOD, True, []),
    (GOOD + [kernel("cutlass_80_tensorop_bf16_s16816gemm_bf16_128x128_64x3_nn_align8", 30)], True, ["cutlass_80_tensorop"]),
    (GOOD + [kernel("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_tn", 30)], True, ["ampere_bf16"]),
    (GOOD + [kernel("cutlass3x_simt_f32_gemm_128x64_8x5_nn_align1", 30)], True, ["simt"]),
    (GOOD + [kernel("cudnn_generated_fort_native_sdpa_sm80_flash_bprop", 30)], True, ["sdpa_sm80"]),
    (GOOD + [kernel("cutlass_80_tensorop_bf16_s16816gemm_bf16_64x64_align8", 0.6)], True, []),  # a small one
    (GOOD + [kernel("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_tn", 30)], False, []),
    (GOOD + [kernel("_ZN10lora_train9rope_cudaEv", 1, local_bytes=48)], True, ["local memory"])])
def test_older_kernels_of_large_products_are_findings(kernels, is_new, findings, capsys):
    kernel_names.describe({"kernels": kernels, "dropped": 0}, is_new)
    found = [line for line in capsys.readouterr().out.splitlines() if line.startswith("finding: ")]
    assert len(found) == len(findings) and all(word in line for word, line in zip(findings, found)), found


@pytest.mark.parametrize("recorded, words", [
    ({"kernels": [], "dropped": 0}, "no kernel was recorded"), ({"kernels": GOOD, "dropped": 3}, "dropped 3"),
    ({"kernels": GOOD[2:], "dropped": 0}, "names are not known"), ({"kernels": GOOD[:2], "dropped": 0}, "no native kernel")])
def test_a_recording_without_a_step_fails(recorded, words):
    with pytest.raises(Failure, match=words):
        kernel_names.describe(recorded, True)


FINISHED = "[       OK ] A.B (1 ms)\n[  PASSED  ] 1 test.\n========= ERROR SUMMARY: 0 errors\n"


@pytest.mark.parametrize("control, tests, words", [
    ((99, ""), (0, FINISHED), None), ((0, ""), (0, FINISHED), "did not find the mistake"),
    ((6, ""), (0, FINISHED), "did not find the mistake"), ((None, ""), (0, FINISHED), "did not find the mistake"),
    ((99, ""), (None, "[       OK ] A.B (1 ms)\n"), "was stopped .* 1 tests were finished"), ((99, ""), (99, FINISHED), "exit code 99"),
    ((99, ""), (0, ""), "finished no test"), ((99, ""), (0, "[  PASSED  ] 0 tests.\n"), "finished no test"),
    ((99, ""), (0, FINISHED.split("=")[0]), "printed no summary")])
def test_a_checker_that_finished_no_test_fails(control, tests, words, monkeypatch):
    results = iter([control, tests])
    monkeypatch.setattr(sanitizer, "run", lambda *_: next(results))
    monkeypatch.setattr(sanitizer, "checker", lambda: "compute-sanitizer")
    if words is None:
        assert sanitizer.check("memcheck", 60) == 1
    else:
        with pytest.raises(Failure, match=words):
            sanitizer.check("memcheck", 60)


@pytest.mark.parametrize("out", ["", "steps: 3\n", '{"status": "done"}\nwarning: late\n'])
def test_a_program_that_prints_no_json_is_named(out):
    assert json_line('warning: early\n{"status": "done"}\n', "train") == {"status": "done"}
    with pytest.raises(Failure, match="lora-train train printed no JSON"):
        json_line(out, "train")


def test_a_step_that_was_not_captured_fails():
    args = SimpleNamespace(device="cuda")
    steps.expect_recorded(args, "a shape", {"cuda_graphs": {"recorded": True, "reason": None}})
    with pytest.raises(Failure, match="fp32 attention reads lengths"):
        steps.expect_recorded(args, "a shape", {"cuda_graphs": {"recorded": False, "reason": "fp32 attention reads lengths"}})
    with pytest.raises(Failure, match="does not say"):
        steps.expect_recorded(args, "a shape", {})
    dry_run = SimpleNamespace(device="cpu")
    steps.expect_recorded(dry_run, "a shape", {"cuda_graphs": {"recorded": False, "reason": "the run is on a CPU"}})
    for silent in ({}, {"cuda_graphs": {"recorded": False, "reason": None}}):
        with pytest.raises(Failure, match="does not say"):
            steps.expect_recorded(dry_run, "a shape", silent)


# ---- goals -----------------------------------------------------------------------------------------------------------------

def measured(tmp_path, figures, device="cuda"):
    found = goals.Measured(tmp_path / "measured.json", device, "a commit")
    found.add("a part", figures.items())
    return goals.Measured(tmp_path / "measured.json", device, "a commit")  # as a later call reads it


def test_the_document_has_the_goals_of_the_table():
    assert goals.markdown() in (ROOT / "docs/gpu_owed.md").read_text(), "tests/gpu/goals.py prints the table of docs/gpu_owed.md"
    for goal in goals.load()["goals"]:
        value, thousands = re.search(r"([\d.]+)(k?)", goal["goal"]).groups()
        in_words = float(value) * (1000 if thousands else 0.01 if "%" in goal["goal"] and goal["unit"] == "" else 1)
        assert in_words == pytest.approx(goal.get("at_least", goal.get("at_most"))), goal


def test_the_table_says_which_goals_hold_and_which_class_is_to_blame(tmp_path):
    figures = {"gemm_tflops": 711, "tokens_per_s/qwen2.5-7b": 18000, "tokens_per_s/qwen3-8b": 17500, "gradient_share": 1.1,
               "peak_gib/qwen2.5-7b/full": 17, "step_ms": 900, "class_ms/gemm": 660, "class_bound_ms/gemm": 640,
               "class_ms/swiglu": 150, "class_bound_ms/swiglu": 60}
    table = measured(tmp_path, figures).table()
    lines = {line.split("  ")[0]: line for line in table.splitlines()}
    assert lines["Qwen2.5-7B bf16, rows of 2048"].endswith("MISSED by 5.0%"), table  # 18900 at 711 TFLOP/s
    assert lines["Qwen3-8B bf16"].endswith("holds") and "17280" in lines["Qwen3-8B bf16"], table
    assert lines["bf16 gradients: largest error, in PEFT's errors"].endswith("holds"), table
    assert lines["peak memory, 7B, 1 x 2048, full recomputation"].endswith("MISSED by 4.9%"), table
    assert lines["Qwen3-4B"].endswith("not measured") and "711 TFLOP/s, measured here" in table
    assert lines["swiglu"].endswith("+90.00  <- to blame first") and "to blame" not in lines["gemm"], table
    assert "+200.00" in lines["step"] and "90.00" in lines["between them"], table


def test_a_cpu_and_another_program_measure_no_goal(tmp_path):
    figures = {"tokens_per_s/qwen2.5-7b": 30000}
    assert "holds" not in measured(tmp_path, figures, device="cpu").table()
    assert "holds" in measured(tmp_path, figures).table()
    assert "holds" not in goals.Measured(tmp_path / "measured.json", "cuda", "another commit").table()


@pytest.mark.parametrize("results, findings, figures, words", [
    ({"parity": "FAILED"}, False, {}, "--call wrong, for parity"), ({"sanitizer": "left out"}, False, {}, "--call wrong"),
    ({"parity": "passed"}, False, {"tokens_per_s/qwen2.5-7b": 15000}, "--call slow (Qwen2.5-7B"),
    ({"parity": "passed"}, True, {"tokens_per_s/qwen2.5-7b": 25000}, "--call slow (there are findings)"),
    ({"parity": "passed"}, False, {"tokens_per_s/qwen2.5-7b": 25000}, "--call figures")])
def test_what_the_first_call_finds_decides_the_next(tmp_path, results, findings, figures, words):
    assert words in goals.next_call("first", results, findings, measured(tmp_path, figures))


def test_figures_of_parts_reach_the_file(tmp_path):
    found = measured(tmp_path, {"gemm_tflops": "712.5"})
    assert found.value("gemm_tflops") == 712.5
    assert json.loads((tmp_path / "measured.json").read_text())["figures"]["gemm_tflops"]["part"] == "a part"
