"""The parts of gpu_check over results that were made up, and the goals at its end. No GPU; LibTorch only counts."""

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from command import ROOT, lora_train

sys.path.insert(0, str(ROOT / "tests/gpu"))
import device  # noqa: E402
import goals  # noqa: E402
import kernel_names  # noqa: E402
import measure  # noqa: E402
import program  # noqa: E402
import sanitizer  # noqa: E402
import steps  # noqa: E402
from program import DoesNotFit, Failure, Skipped, json_line  # noqa: E402


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


@pytest.mark.parametrize("output", ["========= Device not supported. Please refer to the documentation", "Error: error 999 at cudaMalloc"])
def test_a_checker_that_cannot_open_the_gpu_is_skipped(output, monkeypatch):
    monkeypatch.setattr(sanitizer, "run", lambda *_: (1, output))
    monkeypatch.setattr(sanitizer, "checker", lambda: "compute-sanitizer")
    with pytest.raises(Skipped, match="memcheck cannot open this GPU"):
        sanitizer.check("memcheck", 60)


def test_a_machine_without_the_checkers_is_skipped(monkeypatch):
    monkeypatch.setattr(sanitizer.shutil, "which", lambda *_, **__: None)
    with pytest.raises(Skipped, match="not installed"):
        sanitizer.check("memcheck", 60)


def test_kernels_of_a_step_that_was_stopped_are_shown(tmp_path, monkeypatch, capsys):
    args = SimpleNamespace(out=tmp_path, device="cuda", deadline=time.monotonic() + 60)
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/librecord_cuda_kernels.so").touch()
    monkeypatch.setattr(kernel_names, "BIN", tmp_path)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(get_device_capability=lambda: (9, 0))))

    def stopped(*arguments, environment, **_):
        assert "--only-steps" in arguments
        Path(environment["RECORD_CUDA_KERNELS"]).write_text(json.dumps({"kernels": GOOD, "dropped": 0}))
        raise subprocess.TimeoutExpired(["lora-train"], 40)

    monkeypatch.setattr(kernel_names, "bench", stopped)
    monkeypatch.setattr(kernel_names, "library_path", lambda: "")
    with pytest.raises(subprocess.TimeoutExpired):
        kernel_names.kernel_names(args)
    assert "until it stopped: 4 kernels; products 82%" in capsys.readouterr().out


def test_a_doctor_that_is_stopped_has_said_what_it_found(tmp_path, monkeypatch):
    program_file = tmp_path / "lora-train"
    program_file.write_text("#!/bin/sh\nline='N=37: error 0.5, at most 1e-05; 1.4 us, reference 20.8 us'\n"
                            "echo \"rms_norm  $line   ok\" >&2\necho \"rope  $line   FAILED: wrong result\" >&2\nexec tail -f /dev/null\n")
    program_file.chmod(0o755)
    monkeypatch.setattr(device, "BIN", tmp_path)
    with pytest.raises(Failure, match="stopped after 2 kernels, 1 of them wrong"):
        device.doctor(SimpleNamespace(out=tmp_path, device="cuda", deadline=time.monotonic() + 1))


def test_what_a_stopped_command_said_is_printed(capsys):
    with pytest.raises(subprocess.TimeoutExpired) as stopped:
        program.run_shown(["sh", "-c", "echo begun; exec tail -f /dev/null"], 1)
    assert capsys.readouterr().out == stopped.value.output == "begun\n"


# ---- quantised ------------------------------------------------------------------------------------------------------------

def fake_bench(monkeypatch, refused=(), broken=(), rates="assumed"):
    """Steps of 100 ms in bf16 and 104 in nf4, whose decoding has a bound of 3.4 ms."""
    ran = []

    def bench_step(args, shape, *words):
        text = " ".join((shape, *words))
        if any(word in text for word in refused):
            raise DoesNotFit("lora-train bench: exit code 6\nout of GPU memory before step 1")
        if any(word in text for word in broken):
            raise Failure("lora-train bench: exit code 1")
        ran.append(text)
        rows = int(re.search(r"micro_batch_size=(\d)", text)[1])
        return dict(tokens=rows * 2048, shape=shape, cuda_graphs={"recorded": True, "reason": None}, rates={"source": rates},
                    classes=[{"name": "decode", "bound_ms": 3.4}],
                    speed={"step_ms": 104 if "nf4" in text else 100, "tokens_per_s": 1, "peak_memory_gib": 7})

    monkeypatch.setattr(steps, "bench_step", bench_step)
    return ran


def test_rows_that_do_not_fit_this_card_are_left_out(monkeypatch, capsys):
    ran = fake_bench(monkeypatch, refused=["micro_batch_size=8 gradient_checkpointing=off base_precision=bf16"], rates="a file")
    figure = steps.quantised(SimpleNamespace(device="cuda"))
    out = capsys.readouterr().out
    assert len(ran) == 10 and "checked: 10 of 10 workloads" in out and "bf16 does not fit with 8 rows" in figure
    assert "measured: nf4_share/8k 0.961538" in out and "nf4_share/16k" not in out
    assert "measured: target/nf4_share/4k 0.961538" in out  # 100 / (100 + 3.4 / 0.85)


def test_a_workload_that_fails_stops_no_other(monkeypatch, capsys):
    ran = fake_bench(monkeypatch, broken=["micro_batch_size=4 gradient_checkpointing=off base_precision=nf4 decoded_layers=0"])
    with pytest.raises(Failure, match="micro_batch_size=4 .*decoded_layers=0.*exit code 1"):
        steps.quantised(SimpleNamespace(device="cuda"))
    out = capsys.readouterr().out
    assert len(ran) == 12 and "measured: nf4_decoded_share/8k" in out and "measured: peak_gib/qwen3-8b/nf4/1xfull" in out
    assert "target/" not in out  # with assumed rates


# ---- hybrid ---------------------------------------------------------------------------------------------------------------

RULE_LINE = "gated_delta {}: forward    0.600 ms, backward    1.900 ms; {}"


@pytest.mark.parametrize("last, words", [("finite", None), ("NOT FINITE", "16x512.*NOT FINITE")])
def test_times_of_the_gated_delta_rule_are_those_of_finite_results(last, words, monkeypatch, tmp_path, capsys):
    lines = [RULE_LINE.format(name, end) for name, end in (("1x8192", "finite"), ("8x1024", "finite"), ("16x512", last))]
    result = dict(failed=[], left_out=[], results=[dict(kind="gated_delta", name=line) for line in lines])
    monkeypatch.setattr(measure, "run_script", lambda *_: (0, "figure: 3 measured\n", result))
    args = SimpleNamespace(check="gated_delta", device="cuda", out=tmp_path)
    if words:
        with pytest.raises(Failure, match=words):
            measure.gated_delta(args)
        return
    measure.gated_delta(args)
    out = capsys.readouterr().out
    assert "measured: gated_delta_ms/forward/8x1024 0.6\nmeasured: gated_delta_ms/backward/8x1024 1.9\n" in out
    assert "checked: 3 of 3 measurements" in out
    known = set(re.findall(r"^measured: (\S+)", out, re.M))
    assert {goal["measured"] for goal in goals.load()["goals"] if goal["measured"].startswith("gated_delta_ms")} <= known


@pytest.mark.parametrize("backward_ms, gemm_ms, recorded, words", [
    (40, 340, True, None), (None, 340, True, "times of the rule"), (40, 200, True, "the classes add up to 65% of the step"),
    (40, 340, False, "was not captured")])
def test_the_rule_is_a_share_of_a_hybrid_step(backward_ms, gemm_ms, recorded, words, monkeypatch, tmp_path, capsys):
    found = dict(tokens=8192, cuda_graphs={"recorded": recorded, "reason": None}, rates={"source": "assumed"}, bound={},
                 speed={"step_ms": 400, "tokens_per_s": 20480, "gemm_flops_per_s": 7e14},
                 classes=[{"name": "gemm", "ms": gemm_ms, "bound_ms": 330}, {"name": "gated_delta", "ms": 60, "bound_ms": 15}],
                 kernels=[{"name": "gated_delta causal_conv_forward", "ms": 4}, {"name": "gated_delta gated_delta_forward", "ms": 12},
                          {"name": "gated_delta gated_delta_backward", "ms": backward_ms}])
    asked = []
    monkeypatch.setattr(steps, "bench_step", lambda args, *words: asked.append(words) or found)
    args = SimpleNamespace(device="cuda", work=tmp_path)
    if words:
        with pytest.raises(Failure, match=words):
            steps.hybrid(args)
        return
    assert "gated delta nets 60.0 ms (15.0%; bound 15.0, 4.3%), their rule 52.0" in steps.hybrid(args)
    out = capsys.readouterr().out
    assert "measured: hybrid_class_ms/gated_delta 60\n" in out and "measured: hybrid_rule_share 0.13\n" in out
    assert "checked: 2 of 2 classes" in out and asked[0][0] == "qwen3.5-9b" and str(tmp_path / "rates.json") in asked[0]


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

def measured(tmp_path, figures, device="cuda", gpu="H100", commit="a commit"):
    found = goals.Measured(tmp_path / "measured.json", device, gpu, commit)
    found.add("a part", figures.items())
    return goals.Measured(tmp_path / "measured.json", device, gpu, commit)  # as a later call reads it


def test_the_document_has_the_goals_of_the_table():
    assert goals.markdown() in (ROOT / "docs/gpu_owed.md").read_text(), "tests/gpu/goals.py prints the table of docs/gpu_owed.md"
    for goal in goals.load()["goals"]:
        value, thousands = re.search(r"([\d.]+)(k?)", goal["goal"]).groups()
        in_words = float(value) * (1000 if thousands else 0.01 if "%" in goal["goal"] and goal["unit"] == "" else 1)
        assert in_words == pytest.approx(goal.get("at_least", goal.get("at_most"))), goal


@pytest.mark.parametrize("goal", [goal for goal in goals.load()["goals"] if "over_bound" in goal], ids=lambda goal: goal["measured"])
def test_a_speed_of_the_document_is_the_bound_at_assumed_rates(goal):
    shape, *mix = goal["measured"].split("/")[1:]
    run = lora_train("bench", "--shape", shape, "--count", "--json", "precision=bf16", *["--mix"] * len(mix))
    found = json.loads(run.stdout)
    assert found["rates"]["source"] == "assumed"
    assert found["tokens"] / sum(found["bound"][f"{name}_s"] for name in ("gemm", "attention", "memory")) / goal["over_bound"] == \
        pytest.approx(goal["at_least"], rel=3e-3)


def test_the_table_says_which_goals_hold_and_which_class_is_to_blame(tmp_path):
    figures = {"rate/gemm_tflop_s": 711, "tokens_per_s/qwen2.5-7b": 18000, "target/tokens_per_s/qwen2.5-7b": 18900,
               "tokens_per_s/qwen3-8b": 17500, "target/tokens_per_s/qwen3-8b": 17280, "tokens_per_s/qwen3-0.6b": 1e6,
               "gradient_share": 1.1, "peak_gib/qwen2.5-7b/full": 17, "step_ms": 900, "class_ms/gemm": 660,
               "class_bound_ms/gemm": 640, "class_ms/swiglu": 150, "class_bound_ms/swiglu": 60}
    table = measured(tmp_path, figures).table()
    lines = {line.split("  ")[0]: line for line in table.splitlines()}
    assert lines["Qwen2.5-7B bf16, rows of 2048"].endswith("MISSED by 5.0%"), table
    assert lines["Qwen3-8B bf16"].endswith("holds") and "17280" in lines["Qwen3-8B bf16"], table
    assert "not judged: the rates of this machine are not known" in lines["Qwen3-0.6B"], table
    assert lines["bf16 gradients: largest error, in PEFT's errors"].endswith("holds"), table
    assert lines["peak memory, 7B, 1 x 2048, full recomputation"].endswith("MISSED by 4.9%"), table
    assert lines["Qwen3-4B"].endswith("not measured") and "Rates: gemm_tflop_s 711" in table
    assert lines["swiglu"].endswith("+90.00  <- to blame first") and "to blame" not in lines["gemm"], table
    assert "+200.00" in lines["step"] and "90.00" in lines["between them"], table


@pytest.mark.parametrize("source, own_rate, target", [
    ("a file", 700e12, 16384 / (0.8 + 0.1 + 0.1) / 1.047), ("a file", 800e12, 16384 / (0.7 + 0.1 + 0.1) / 1.047),
    ("assumed", 700e12, None), ("a file", None, None)])
def test_the_target_of_a_speed_is_the_bound_at_the_rates_of_this_machine(source, own_rate, target, capsys):
    found = dict(tokens=16384, speed={"tokens_per_s": 18000, "gemm_flops_per_s": own_rate},
                 rates={"source": source, "gemm_flops_per_s": 700e12}, bound={"gemm_s": 0.8, "attention_s": 0.1, "memory_s": 0.1})
    steps.keep_speed(found, "qwen2.5-7b")
    printed = dict(line.removeprefix("measured: ").split() for line in capsys.readouterr().out.splitlines())
    assert printed["tokens_per_s/qwen2.5-7b"] == "18000"
    assert (target and f"{target:.6g}") == printed.get("target/tokens_per_s/qwen2.5-7b")


def test_a_cpu_and_another_gpu_measure_no_goal_and_another_program_is_named(tmp_path):
    figures = {"gradient_share": 1.1}
    assert "holds" not in measured(tmp_path, figures, device="cpu").table()
    assert "holds" in measured(tmp_path, figures).table()
    assert "holds (a commit)" in goals.Measured(tmp_path / "measured.json", "cuda", "H100", "another commit").table()
    assert "holds" not in goals.Measured(tmp_path / "measured.json", "cuda", "H200", "a commit").table()


FAST, SLOW = {"tokens_per_s/qwen2.5-7b": 25000}, {"tokens_per_s/qwen2.5-7b": 15000}


@pytest.mark.parametrize("call, results, findings, figures, words", [
    ("correct", {"parity": "FAILED"}, False, {}, "--call speed; later --call wrong, for parity did not pass"),
    ("correct", {"parity": "passed"}, False, {}, "next: gpu_check.sh --call speed"), ("speed", {}, True, SLOW, "--call rest"),
    ("rest", {"sanitizer": "left out"}, False, FAST, "--call wrong, for sanitizer"), ("rest", {}, False, SLOW, "--call slow (Qwen2.5-7B"),
    ("rest", {}, True, FAST, "--call slow (there are findings)"), ("rest", {}, False, FAST, "--call rivals"),
    ("wrong", {"parity_plain": "passed", "sanitizer": "FAILED"}, False, FAST, "repair first: sanitizer")])
def test_what_a_call_finds_decides_the_next(tmp_path, call, results, findings, figures, words):
    figures = dict(figures, **{"target/tokens_per_s/qwen2.5-7b": 20000}) if figures else {}
    assert words in goals.next_call(call, results, findings, measured(tmp_path, figures))


def test_figures_of_parts_reach_the_file(tmp_path):
    found = measured(tmp_path, {"step_ms": "712.5"})
    assert found.value("step_ms") == 712.5
    assert json.loads((tmp_path / "measured.json").read_text())["figures"]["step_ms"]["part"] == "a part"
