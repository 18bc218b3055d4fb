"""The CUDA path with the real LibTorch on a stand-in for the CUDA runtime (tests/programs/stand_in_gpu): device memory is host memory,
kernels and matrix products do nothing. What is tested is the host: the start, buffers, streams and events, what a step
allocates and waits for, and how a run ends when the device fails. Numbers are not."""

import json
import os
import re
import subprocess

import pytest

from command import BINARY, ROOT, events_of, lora_train, model_tensors
from stand_in_gpu import DEVICE, NEEDS_STAND_IN, STAND_IN, environment, expect_device_error, in_20_steps, on_stand_in, run_on_stand_in

pytestmark = NEEDS_STAND_IN


def steps_of(setup):
    return [event["step"] for event in setup.events("train")]


@pytest.mark.parametrize("changes", [
    dict(precision="fp32", base_precision="fp32", attn_implementation="reference"), dict(kernels="reference"), dict(deterministic=True),
    dict(adapter="none"), dict(eval_steps=2, val_set_size=2), dict(kind="int8")])
def test_a_run_comes_to_its_end(setup, changes):
    run, calls = on_stand_in(setup, max_steps=4, save_steps=2, **changes)
    assert run.code == 0 and calls["cudaLaunchKernel"] > 100, run
    assert setup.events("start")[0]["device"] == "Stand-in GPU" and steps_of(setup) == [1, 2, 3, 4]
    assert all(line["memory_gib"] > 0 for line in setup.events("train"))
    summary = setup.summary()
    assert summary["gpu"] == "Stand-in GPU" and summary["num_gpus"] == 1 and summary["peak_memory_gib"] > 0
    assert "before step 1: the largest micro-batch" in run.stderr and "0 segments allocated after step 1" in run.stderr, run


def test_a_run_goes_on_from_its_checkpoint(setup):
    """Another GPU than the profile is meant for is warned of."""
    run, _ = on_stand_in(setup, max_steps=2, save_steps=2, target_gpu="h200")
    assert run.code == 0 and "target_gpu: the profile is meant for H200, but this run is on Stand-in GPU" in run.stderr, run
    run, _ = on_stand_in(setup, max_steps=4, save_steps=2, target_gpu="h200")
    assert run.code == 0 and "resumed from" in run.stderr, run


def test_weights_go_through_page_locked_buffers_without_a_wait_per_tensor(setup):
    """30 layers in place of 2 are 336 tensors more: they make no more waits, and nothing of them comes from pageable memory."""
    counts = []
    for layers in (2, 30):
        setup.use_layers(layers)
        run, calls = on_stand_in(setup, command=("eval", "--json"), val_set_size=2)
        assert run.code == 0, run
        counts.append(calls)
    more = {name: counts[1][name] - counts[0][name] for name in counts[0]}
    assert more["cudaStreamSynchronize"] + more["cudaEventSynchronize"] + more["cudaDeviceSynchronize"] + more["cudaMemcpy"] <= 2, more
    assert more["bytesFromPageable"] == 0, counts
    assert more["bytesFromPageLocked"] >= 28 * sum(tensor.nbytes for name, tensor in model_tensors().items() if ".layers.0." in name), more


@pytest.mark.parametrize("changes", [dict(), dict(lora_dropout=0.1), dict(gradient_checkpointing="full", packing=True),
                                     dict(precision="fp32", base_precision="fp32", packing=True), dict(kind="nf4", decoded_layers=0),
                                     dict(kind="fp8", decoded_layers=1)])
def test_a_step_is_copies_and_replays(setup, changes):
    """20 steps more launch one kernel each, which clears the gradients: a step is what it is fed, and a few replays. They make no
    allocation and no wait more, but for the events of steps that are two behind."""
    more, calls = in_20_steps(setup, "cuda_graphs: captured the steps for micro-batches of", **dict(dict(precision="bf16", micro_batch_size=2), **changes))
    assert calls["recorded"] > 100 and calls["recordedCold"] == 0, calls  # every kernel has run before
    assert json.loads((setup.folder / "run-30/summary.json").read_text())["cuda_graphs"]["recorded"]
    more = {name: count / 20 for name, count in more.items()}
    micro_batches = more["cudaGraphLaunch"] // 3  # forward, a chunk of losses (or two: it holds the mean), backward; and the update
    assert micro_batches >= 1 and 3 * micro_batches + 1 <= more["cudaGraphLaunch"] < 4 * micro_batches + 1, more
    assert more["cudaLaunchKernel"] == 1 and more["cublasLtMatmul"] == 0, more
    assert more["cudaMemcpyAsync"] <= 2 * micro_batches + 3 and more["cudaMemsetAsync"] <= 1, more


@pytest.mark.parametrize("changes, reason", [
    (dict(cuda_graphs="off"), "cuda_graphs is off"), (dict(loss_type="dft"), "loss_type dft cannot be captured"),
    (dict(attn_implementation="reference", precision="bf16", base_precision="bf16"),
     "attention: the reference implementation reads document lengths on the host")])
def test_steps_that_are_not_recorded_say_why(setup, changes, reason):
    run, calls = on_stand_in(setup, max_steps=4, **changes)
    assert run.code == 0 and ("warning: cuda_graphs: steps run without graphs" in run.stderr) == ("attn_implementation" in changes), run
    assert calls["cudaGraphLaunch"] == 0 and ("cuda_graphs" not in changes or calls["recorded"] == 0), calls
    assert setup.summary()["cuda_graphs"] == {"recorded": False, "reason": reason}


@pytest.mark.parametrize("change, line", [("precision=bf16", "CUDA graphs  replayed"), ("cuda_graphs=off", "CUDA graphs  none: cuda_graphs is off")])
def test_bench_says_whether_steps_are_recorded(change, line):
    run = lora_train("bench", "--shape", "tiny-qwen3", "device=cuda", "max_seq_len=64", "micro_batch_size=2", "--steps", "3", "--warm-up", "1", change,
                     environment=environment())
    assert line in run.stdout.splitlines(), run


@pytest.mark.parametrize("at, what", [(1, "begin"), (2, "work"), (2, "instantiate"), (4, "end")])
def test_steps_that_cannot_be_recorded_are_computed_as_they_come(setup, at, what):
    run, calls = on_stand_in(setup, dict(STAND_IN_REFUSE_CAPTURE_AT=str(at), STAND_IN_REFUSE_CAPTURE=what), max_steps=4,
                             precision="bf16", base_precision="bf16")
    assert run.code == 0 and "warning: cuda_graphs: steps run without graphs" in run.stderr, run
    assert calls["cudaGraphLaunch"] == 0 and calls["cudaLaunchKernel"] > 400, calls
    recorded = setup.summary()["cuda_graphs"]
    assert not recorded["recorded"] and re.search("could not be captured|cublasLtMatmul.* failed|not enough memory to capture", recorded["reason"]), recorded
    assert steps_of(setup) == [1, 2, 3, 4]


def test_a_capture_that_breaks_leaves_nothing_behind():
    """Memory, LibTorch's generator and the flag that work is being recorded: unit tests that need a device or this one."""
    tests = subprocess.run([str(BINARY.parent / "cuda_test"), "--gtest_filter=CudaGraph.*"], capture_output=True, text=True,
                           timeout=600, env=dict(os.environ, LD_LIBRARY_PATH=str(STAND_IN),
                                                 LD_PRELOAD=str(STAND_IN / "libstand_in_runtime.so")))
    assert tests.returncode == 0 and "PASSED  ] 3 tests" in tests.stdout, tests.stdout[-3000:] + tests.stderr[-1000:]


@pytest.mark.parametrize("at, what", [(1, "fail"), (2, "fail-end"), (3, "fail"), (4, "fail-end")])
def test_a_device_that_fails_while_steps_are_recorded_ends_the_run(setup, at, what):
    """The graphs are forward, a chunk of losses, backward and the update. No step is tried without them."""
    run, calls = on_stand_in(setup, dict(STAND_IN_REFUSE_CAPTURE_AT=str(at), STAND_IN_REFUSE_CAPTURE=what), max_steps=4,
                             precision="bf16", base_precision="bf16")
    expect_device_error(run)
    assert "steps run without graphs" not in run.stderr and calls["cudaGraphLaunch"] == 0, run
    summary = setup.summary()
    assert summary["status"] == "failed" and summary["exit_code"] == DEVICE and summary["step"] == 0
    assert not summary["cuda_graphs"]["recorded"] and "could not be captured" in summary["cuda_graphs"]["reason"], summary


@pytest.mark.parametrize("at, changes, pattern", [
    *((at, dict(save_steps=4, tuning="off"), "CUDA error.*lora-train doctor") for at in (1, 8, 20)),
    *((at, {}, "CUDA error|CUBLAS_STATUS") for at in (1, 40))])
def test_a_device_that_fails_ends_the_run_with_its_error(setup, at, changes, pattern):
    """While steps are computed, or choices are measured."""
    run, _ = on_stand_in(setup, dict(STAND_IN_FAIL_AT=str(at)), max_steps=20, **changes)
    expect_device_error(run, pattern)
    assert setup.summary()["status"] == "failed" and setup.summary()["exit_code"] == DEVICE


def test_a_dry_run_computes_the_largest_batch(setup):
    run, calls = on_stand_in(setup, command=("train", "--dry-run"))
    assert run.code == 0 and "ran; nothing was updated or written" in run.stderr, run
    assert calls["cublasLtMatmul"] > 0


def test_ablate_measures_the_settings_of_a_gpu(setup):
    run, _ = on_stand_in(setup, command=["ablate", "--steps", "3", "--json"])
    assert run.code == 0, run
    lines = {line["setting"]: line for line in run.json_lines()}
    failed = {name: line["reason"] for name, line in lines.items() if line["reason"]}
    assert set(failed) == {"int8 base"}, "kernels of the stand-in quantise to NaN; the other settings are measured"
    assert "NaN" in failed["int8 base"], failed
    assert list(lines)[:3] == ["your profile", "plain", "+ tf32"] and "+ CUDA graphs" in lines and "+ page-locked memory" in lines
    assert lines["plain"]["values"]["cuda_graphs"] == "off" and lines["nf4 base"]["values"]["cuda_graphs"] == "auto"


def evaluate_rows(setup, lengths):
    """Calls of an evaluation of rows of these lengths, one to a micro-batch, with one supervised token each."""
    file = setup.folder / "held-out.jsonl"
    file.write_text("".join(json.dumps(dict(input_ids=[2 + i % 60 for i in range(n)], labels=[-100] * (n - 1) + [5])) + "\n" for n in lengths))
    run, calls = on_stand_in(setup, command=("eval", "--json"), micro_batch_size=1, eval_datasets=[{"path": str(file), "type": "pretokenized"}])
    assert run.code == 0 and run.json_lines()[0]["num_tokens"] == len(lengths), run
    return calls


def test_an_evaluation_is_enqueued_a_micro_batch_ahead(setup):
    """20 micro-batches more wait once each for the values of the one before, and once for the copy of three before."""
    counts = [evaluate_rows(setup, [40] * rows) for rows in (10, 30)]
    more = {name: counts[1][name] - counts[0][name] for name in counts[0]}
    assert more["cudaStreamSynchronize"] == more["cudaDeviceSynchronize"] == more["cudaMemcpy"] == 0, more
    assert more["cudaEventSynchronize"] == 2 * 20 and more["cudaHostAlloc"] == 0 and more["cudaMalloc"] == 0, more


def test_an_evaluation_is_padded_to_batch_classes(setup):
    counts = [evaluate_rows(setup, [length] * 20) for length in (40, 64)]
    assert counts[0]["bytesFromPageLocked"] == counts[1]["bytesFromPageLocked"], counts


def test_tasks_are_asked_between_steps(tmp_path):
    run, calls = run_on_stand_in(tmp_path, ["train", "--profile", ROOT / "examples/confidence/profile.yaml", "--output-dir", tmp_path / "run", "device=cuda",
                                            "precision=bf16", "max_steps=4", "eval_steps=2", "early_stopping_patience=null"])
    assert run.code == 0 and ", eval_tasks " in run.stderr, run  # in the memory plan
    evals = events_of(tmp_path / "run", "eval")
    assert [(line["step"], line["num_rows"]) for line in evals if line.get("kind") == "confidence"] == [(0, 300), (2, 300), (4, 300)]
    assert [line["step"] for line in events_of(tmp_path / "run", "train")] == [4], "steps are replayed before and after a task as before"
