"""The CUDA path with the real LibTorch on a stand-in for the CUDA runtime (tests/stand_in_gpu): device memory is host memory,
kernels and matrix products do nothing. What is tested is the host: the start, buffers, streams and events, what a step
allocates and waits for, and how a run ends when the device fails. Numbers are not."""

import glob
import json

import pytest

from conftest import BINARY, lora_train

STAND_IN = BINARY.parent / "stand_in_gpu"
DEVICE = 6
pytestmark = [
    pytest.mark.skipif(not (STAND_IN / "libstand_in_runtime.so").exists(), reason="the CUDA library is not built here"),
    pytest.mark.skipif(bool(glob.glob("/dev/nvidia[0-9]*")), reason="this machine has an NVIDIA GPU")]


def on_stand_in(setup, settings=(), command="train", **changes):
    """(the run, {call of the CUDA runtime: how often})."""
    changes = {"device": "cuda", "learning_rate": 1e-3, "logging_steps": 1, **changes}
    calls = setup.output_dir.parent / "calls.txt"
    calls.unlink(missing_ok=True)
    run = lora_train(*([command] if isinstance(command, str) else command), "--profile", setup.write_profile(**changes),
                     environment=dict(settings, STAND_IN_CALLS=str(calls), LD_LIBRARY_PATH=str(STAND_IN),
                                      LD_PRELOAD=str(STAND_IN / "libstand_in_runtime.so")))
    counts = dict(line.split() for line in calls.read_text().splitlines()) if calls.exists() else {}
    return run, {name: int(count) for name, count in counts.items()}


@pytest.mark.parametrize("changes", [
    dict(precision="bf16", base_precision="bf16"), dict(precision="fp32", base_precision="fp32"),
    dict(precision="fp32", base_precision="fp32", attn_implementation="reference"), dict(kernels="reference"),
    dict(lora_dropout=0.1), dict(gradient_checkpointing="full"), dict(deterministic=True), dict(adapter="none"),
    dict(eval_steps=2, val_set_size=2)])
def test_a_run_comes_to_its_end(setup, changes):
    run, calls = on_stand_in(setup, max_steps=4, save_steps=2, **changes)
    assert run.code == 0, run
    assert calls["cudaLaunchKernel"] > 100, calls
    lines = [json.loads(line) for line in (setup.output_dir / "metrics.jsonl").read_text().splitlines()]
    assert lines[0]["device"] == "Stand-in GPU"
    assert [line["step"] for line in lines if line["event"] == "train"] == [1, 2, 3, 4]
    assert all(line["memory_gib"] > 0 for line in lines if line["event"] == "train")
    summary = json.loads((setup.output_dir / "summary.json").read_text())
    assert summary["gpu"] == "Stand-in GPU" and summary["num_gpus"] == 1 and summary["peak_memory_gib"] > 0
    assert (setup.output_dir / "checkpoint-4").is_dir()
    assert "before step 1: the largest micro-batch" in run.stderr and "0 segments taken after step 1" in run.stderr, run


def test_a_run_goes_on_from_its_checkpoint(setup):
    assert on_stand_in(setup, max_steps=2, save_steps=2)[0].code == 0
    run, _ = on_stand_in(setup, max_steps=4, save_steps=2)
    assert run.code == 0 and "resumed from" in run.stderr, run


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_a_step_takes_no_memory_and_waits_for_nothing(setup, precision):
    """20 steps more make no allocation and no wait more, but for the events of steps that are two behind."""
    changes = dict(precision=precision, base_precision=precision, save_steps=1000, eval_steps=1000)
    counts = []
    for steps in (10, 30):
        run, calls = on_stand_in(setup, max_steps=steps, output_dir=str(setup.output_dir.parent / f"run-{steps}"), **changes)
        assert run.code == 0, run
        counts.append(calls)
    for name in ("cudaMalloc", "cudaFree", "cudaHostAlloc", "cudaMemcpy", "cudaStreamSynchronize", "cudaDeviceSynchronize"):
        assert counts[1][name] == counts[0][name], (name, counts)
    assert counts[1]["cudaLaunchKernel"] > counts[0]["cudaLaunchKernel"]


@pytest.mark.parametrize("at", [1, 8, 12, 20])
def test_a_device_that_fails_ends_the_run_with_its_error(setup, at):
    run, _ = on_stand_in(setup, dict(STAND_IN_FAIL_AT=str(at)), max_steps=20, save_steps=4)
    assert run.code == DEVICE, run
    errors = [line for line in run.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and "CUDA error" in errors[0] and "lora-train doctor" in errors[0], run
    summary = json.loads((setup.output_dir / "summary.json").read_text())
    assert summary["status"] == "failed" and summary["exit_code"] == DEVICE


@pytest.mark.parametrize("at", [1, 2, 3])
def test_memory_that_is_refused_ends_the_run_with_advice(setup, at):
    run, _ = on_stand_in(setup, dict(STAND_IN_OOM_AT=str(at)), max_steps=4)
    assert run.code == DEVICE, run
    errors = [line for line in run.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and "out of" in errors[0].lower() and "memory" in errors[0], run


def test_memory_that_is_too_small_is_said_before_a_weight_is_read(setup):
    run, calls = on_stand_in(setup, dict(STAND_IN_FREE_GIB="1"), max_steps=4)
    assert run.code == DEVICE, run
    assert "out of GPU memory before step 1: a micro-batch of" in run.stderr and "are missing. Held by: " in run.stderr, run
    assert calls["cudaMemcpyAsync"] == 0, calls


def test_a_dry_run_computes_the_largest_batch(setup):
    run, calls = on_stand_in(setup, command=("train", "--dry-run"))
    assert run.code == 0 and "was computed, nothing was updated or written" in run.stderr, run
    assert calls["cublasLtMatmul"] > 0


def test_an_evaluation(setup):
    run, _ = on_stand_in(setup, command=("eval", "--json"), val_set_size=2)
    assert run.code == 0 and run.json_lines()[0]["num_tokens"] > 0, run
