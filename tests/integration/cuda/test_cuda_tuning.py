"""Autotuning on the stand-in for the CUDA runtime: what is measured, kept, and used again. Numbers are not tested."""

import json
import re

import pytest

from stand_in_gpu import NEEDS_STAND_IN, on_stand_in

pytestmark = NEEDS_STAND_IN


def tuning(run):
    """Numbers of the log's line: choices in total, from the checkpoint, from the cache, measured, left to heuristics."""
    found = re.findall(r"tuning: (\d+) choices, (\d+) from the checkpoint, (\d+) from the cache, (\d+) measured in [\d.]+ s, "
                       r"(\d+) left to heuristics", run.stderr)
    assert len(found) == 1, run
    return [int(number) for number in found[0]]


def choices(folder):
    """What a checkpoint or a cache file says was chosen."""
    file = folder / "trainer_state.json" if folder.is_dir() else folder
    text = json.loads(file.read_text())
    return {key: entry["choice"] for key, entry in text.get("lora_train", dict(tuning=text))["tuning"]["choices"].items()}


def test_choices_are_measured_once_and_kept(setup, tmp_path):
    """In the cache for other runs, and in the checkpoint for the one that goes on. Times of the stand-in are random."""
    setup.profile.update(precision="bf16", base_precision="bf16")
    cache = dict(XDG_CACHE_HOME=str(tmp_path / "cache"))
    first, calls = on_stand_in(setup, dict(cache, STAND_IN_TIMES="1"), max_steps=2, save_steps=2)
    assert first.code == 0, first
    total, of_checkpoint, of_cache, measured, left = tuning(first)
    assert total == measured + left and measured >= 10 and of_checkpoint == of_cache == 0, first
    assert calls["cudaEventElapsedTime"] >= 2 * measured
    chosen = choices(setup.output_dir / "checkpoint-2")
    assert len(chosen) == measured and any(key.startswith("gemm bf16") for key in chosen), chosen
    assert len({choice for key, choice in chosen.items() if key.startswith("gemm")}) > 1, "not only the first algorithm"
    [file] = (tmp_path / "cache/lora-train").glob("tuning-Stand-in-GPU-*.json")
    assert choices(file) == chosen

    second, calls = on_stand_in(setup, dict(cache, STAND_IN_TIMES="2"), max_steps=2, save_steps=2, output_dir=str(tmp_path / "second"))
    assert tuning(second)[3] == 0 and tuning(second)[2] > 10, second  # GEMMs of the other row pitch are not asked for
    again = choices(tmp_path / "second/checkpoint-2")
    assert again == {key: chosen[key] for key in again} and any(key.startswith("row_pitch bf16") for key in again), again

    resumed, calls = on_stand_in(setup, dict(STAND_IN_TIMES="3"), max_steps=4, save_steps=2)
    assert resumed.code == 0 and "resumed from" in resumed.stderr, resumed
    assert tuning(resumed)[1:4] == [len(again), 0, 0], resumed
    assert choices(setup.output_dir / "checkpoint-4") == chosen

    other, _ = on_stand_in(setup, dict(STAND_IN_TIMES="4"), max_steps=2, save_steps=2, output_dir=str(tmp_path / "other"))
    assert tuning(other)[3] == measured and choices(tmp_path / "other/checkpoint-2") != chosen, "times are random"


def test_a_cache_that_is_not_of_here_is_ignored(setup, tmp_path):
    """The run after it has written the cache anew."""
    cache = dict(XDG_CACHE_HOME=str(tmp_path / "cache"))
    measured = tuning(on_stand_in(setup, cache, max_steps=2)[0])[3]
    [file] = (tmp_path / "cache/lora-train").glob("tuning-*.json")
    for damage in (lambda text: text[:len(text) // 2], lambda text: re.sub(r"cublasLt \d+", "cublasLt 1", text),
                   lambda text: text.replace('"num_candidates":5', '"num_candidates":6', 1)):
        file.write_text(damage(file.read_text()))
        run, _ = on_stand_in(setup, cache, "train --overwrite".split(), max_steps=2)
        assert run.code == 0 and tuning(run)[2:4] == [0, measured], run
        assert run.stderr.count(f"tuning: ignoring {file}") == 2, run  # read, added to
    last, _ = on_stand_in(setup, cache, "train --overwrite".split(), max_steps=2)
    assert tuning(last)[2] > 0 and tuning(last)[3] == 0, last


@pytest.mark.parametrize("changes", [dict(deterministic=True), dict(tuning="off")])
def test_where_nothing_is_to_be_measured_nothing_is(setup, tmp_path, changes):
    cache = dict(XDG_CACHE_HOME=str(tmp_path / "cache"))
    run, calls = on_stand_in(setup, cache, max_steps=2, save_steps=2, **changes)
    assert run.code == 0 and "tuning:" not in run.stderr, run
    assert calls["cudaEventElapsedTime"] == 0 and not list((tmp_path / "cache").glob("lora-train/tuning-*")), calls
    assert "tuning" not in json.loads((setup.output_dir / "checkpoint-2/trainer_state.json").read_text())["lora_train"]
    if "tuning" in changes:  # a checkpoint without choices is gone on from
        run, _ = on_stand_in(setup, max_steps=4, save_steps=2)
        assert run.code == 0 and tuning(run)[3] > 0 and choices(setup.output_dir / "checkpoint-4"), run


def test_the_loss_head_is_chosen_for_the_run_and_attention_where_there_is_a_choice(setup):
    rows = [{"input_ids": [2 + (i + j) % 60 for j in range(120)]} for i in range(16)]
    setup.write_rows([dict(row, labels=row["input_ids"]) for row in rows])
    changes = dict(precision="bf16", base_precision="bf16", max_seq_len=128, micro_batch_size=8, global_batch_size=8, max_steps=2,
                   save_steps=2)
    run, _ = on_stand_in(setup, **changes)
    assert run.code == 0, run
    chosen = choices(setup.output_dir / "checkpoint-2")
    [head] = [choice for key, choice in chosen.items() if key == "loss_head bf16 vocabulary64 hidden32 rows960"]
    assert head in ("952", "1024"), chosen  # all of a micro-batch's 8 x 119 supervised tokens, or more
    assert not [key for key in chosen if key.startswith("attention ")], "only FlashAttention 2 supports 8.0"

    run, _ = on_stand_in(setup, dict(STAND_IN_MAJOR="9"), output_dir=str(setup.output_dir.parent / "hopper"), **changes)
    key = "attention bf16 heads4 kv2 size8 window0 longest120 documents8 tokens960"
    assert f"tuning: {key}: dropped cudnn: src/kernels/cuda/attention_cudnn.cpp" in run.stderr, run  # it does not start
                                                                                                     # on the stand-in
