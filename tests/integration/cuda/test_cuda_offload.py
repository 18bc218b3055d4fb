"""Layer inputs in page-locked host memory (activation_offload) and MLPs in tiles (mlp_tile_tokens), on the stand-in for the CUDA runtime."""

import json
import re

import pytest

from stand_in_gpu import NEEDS_STAND_IN, TAKES_MEMORY_OR_WAITS, expect_device_error, in_20_steps, on_stand_in

pytestmark = NEEDS_STAND_IN
FULL = dict(precision="bf16", base_precision="bf16", gradient_checkpointing="full")
INPUT_BYTES = 256 * 32 * 2  # of a layer: tokens, hidden size, bf16


def write_equal_rows(setup, length):
    ids = [2 + i % 60 for i in range(length)]
    setup.write_rows([{"input_ids": ids, "labels": ids}] * 16)


@pytest.mark.parametrize("cuda_graphs", ["auto", "off"])
def test_offloaded_layer_inputs_wait_for_nothing(setup, cuda_graphs):
    """The inputs of 5 of 8 layers go to page-locked memory and back: 4 in one allocation of 64 KiB, 1 in one of 16 KiB. Each copy
    waits for the compute stream, and the compute stream for each copy: a missing wait would be a race on a GPU. In a capture, the
    stand-in refuses a stream that was not forked or not joined."""
    setup.use_layers(8)
    write_equal_rows(setup, 128)
    changes = dict(FULL, max_seq_len=128, micro_batch_size=2, global_batch_size=2, cuda_graphs=cuda_graphs, save_steps=1000)

    def train(offload, steps):
        folder = setup.output_dir.parent / f"run-{offload}-{steps}"
        run, calls = on_stand_in(setup, max_steps=steps, output_dir=str(folder), activation_offload=offload, **changes)
        assert run.code == 0, run
        is_on = offload == "on"
        assert ("; page-locked host memory: 80.0 KiB" in run.stderr) == is_on, run.stderr
        assert ("activation_offload: the inputs of 5 of 8 layers are kept in 80.0 KiB of host memory" in run.stderr) == is_on, run.stderr
        assert ("cuda_graphs: captured the steps" in run.stderr) == (cuda_graphs == "auto"), run.stderr
        return calls

    few, many = train("on", 10), train("on", 30)
    assert all(many[name] == few[name] for name in TAKES_MEMORY_OR_WAITS), (few, many)
    if cuda_graphs == "auto":
        assert many["cudaMemcpyAsync"] - few["cudaMemcpyAsync"] < 20 * 5, (few, many)  # copies of layer inputs are in the graphs
        return
    few_kept, many_kept = train("auto", 10), train("auto", 30)
    assert few["bytesPageLocked"] - few_kept["bytesPageLocked"] == 5 * INPUT_BYTES, (few, few_kept)
    per_step = {name: (many[name] - few[name] - many_kept[name] + few_kept[name]) / 20 for name in few}
    assert per_step["bytesToHost"] == per_step["bytesFromPageLocked"] == 5 * INPUT_BYTES, per_step
    assert per_step["cudaMemcpyAsync"] == 2 * 5 and per_step["cudaStreamWaitEvent"] == 2 * 2 * 5, per_step


@pytest.mark.parametrize("changes", [dict(lora_dropout=0.1, cuda_graphs="off"), dict(kind="nf4", decoded_layers=0, base_precision="auto")])
def test_tiles_take_no_memory_and_wait_for_nothing(setup, changes):
    write_equal_rows(setup, 128)
    in_20_steps(setup, "mlp_tile_tokens: MLPs run on 100 tokens at a time", mlp_tile_tokens=100, max_seq_len=128, **{**FULL, **changes})


def test_peak_memory_is_less_by_what_is_planned(setup):
    """Inputs of 16 MiB have segments of their own in LibTorch's allocator."""
    setup.use_layers(8)
    write_equal_rows(setup, 16384)
    peaks, logs = {}, {}
    for name, changes in dict(kept={}, offloaded=dict(activation_offload="on"), tiled=dict(mlp_tile_tokens=4096)).items():
        folder = setup.output_dir.parent / name
        run, _ = on_stand_in(setup, max_steps=1, output_dir=str(folder), cuda_graphs="off", max_seq_len=16384,
                             micro_batch_size=16, global_batch_size=16, **FULL, **changes)
        assert run.code == 0, run
        peaks[name] = json.loads((folder / "summary.json").read_text())["peak_memory_gib"] * 1024
        logs[name] = run.stderr
    assert peaks["kept"] - peaks["offloaded"] == pytest.approx(5 * 16), peaks
    tiled, whole = map(float, re.search(r"; activations take ([0-9.]+) MiB instead of ([0-9.]+) MiB", logs["tiled"]).groups())
    assert whole - tiled > 90, logs["tiled"]
    assert peaks["kept"] - peaks["tiled"] == pytest.approx(whole - tiled, abs=6), (peaks, whole, tiled)


def test_the_end_waits_for_copies_of_replays(setup):
    """They are nodes of a graph in the compute stream: page-locked memory is given back when the device is done."""
    setup.use_layers(8)
    counts = []
    for offload in ("auto", "on"):
        run, calls = on_stand_in(setup, max_steps=2, output_dir=str(setup.output_dir.parent / offload), activation_offload=offload, tuning="off", **FULL)
        assert run.code == 0 and ("activation_offload: the inputs of 5" in run.stderr) == (offload == "on"), run
        counts.append(calls)
    more = [counts[1][name] - counts[0][name] for name in ("cudaDeviceSynchronize", "cudaStreamSynchronize")]
    assert more == [1, 0], counts


def test_a_device_that_fails_ends_the_run(setup):
    """Page-locked memory that the device may still read is not given back, which would end in an exception."""
    setup.use_layers(8)
    run, _ = on_stand_in(setup, dict(STAND_IN_FAIL_AT="9"), max_steps=20, tuning="off", activation_offload="on", **FULL)
    expect_device_error(run)
