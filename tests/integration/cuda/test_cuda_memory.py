"""What a run and a bench take of the memory of a GPU, on the stand-in for the CUDA runtime."""

import json

import numpy as np
import pytest

from command import good_run, model_tensors
from stand_in_gpu import NEEDS_STAND_IN, environment, on_stand_in, run_on_stand_in

pytestmark = NEEDS_STAND_IN
BENCH = ["bench", "device=cuda", "precision=bf16", "--steps", "2", "--warm-up", "1", "--json"]


@pytest.mark.parametrize("total_gib, least_gib, words", [(80, 70, ["micro_batch_size=8"]), (24, 10, ["base_precision=nf4"])])
def test_a_bench_that_fills_a_gpu_ends_with_all_its_figures(total_gib, least_gib, words):
    """The weights and buffers of the steps leave less than the matrix products of the GEMM rate need."""
    run = good_run(*BENCH, "--shape", "qwen2.5-7b", *words, environment=environment(STAND_IN_TOTAL_GIB=str(total_gib)))
    [found] = run.json_lines()
    speed = found["speed"]
    assert least_gib < speed["peak_memory_gib"] < total_gib and speed["tokens_per_s"] > 0 and found["cuda_graphs"]["recorded"], speed
    assert speed["idle_share"] is not None and speed["gemm_flops_per_s"] > 0 and speed["linears_share"] > 0, speed


def test_a_bench_keeps_its_steps_where_memory_is_short_after_them(tmp_path):
    bench = [*BENCH, "--shape", "qwen2.5-0.5b", "max_seq_len=512", "micro_batch_size=1"]
    _, calls = run_on_stand_in(tmp_path, [*bench, "--only-steps"])
    for words in ([], ["--measure-rates"]):
        run, _ = run_on_stand_in(tmp_path, [*bench, *words], dict(STAND_IN_OOM_AT=str(calls["cudaMalloc"] + 1)))
        assert run.code == 0 and run.stderr.count("not enough memory to measure") == 2, run
        [found] = run.json_lines()
        assert found["speed"]["step_ms"] > 0 and found["speed"]["peak_memory_gib"] > 0 and found["rates"]["source"] == "assumed"
        assert [found["speed"][name] for name in ("idle_share", "gemm_flops_per_s", "gemm_share", "linears_share")] == [None] * 4
        assert all(work["ms"] is None for work in found["classes"])


WIDE = dict(precision="bf16", base_precision="bf16", max_seq_len=16384, micro_batch_size=1, global_batch_size=1)


def use_wide_mlps(setup, ffn=4096):
    tensors = model_tensors()
    for name in tensors:
        if ".mlp." in name:
            tensors[name] = np.zeros((32, ffn) if "down_proj" in name else (ffn, 32), np.float32)
    setup.write_config(intermediate_size=ffn)
    setup.write_model(tensors)
    ids = [2 + i % 60 for i in range(16384)]
    setup.write_rows([{"input_ids": ids, "labels": ids}] * 4)


def peaks(setup, name, settings=(), **changes):
    """(MiB in training, MiB before)."""
    folder = setup.output_dir.parent / name
    run, _ = on_stand_in(setup, settings, output_dir=str(folder), **changes)
    assert run.code == 0, run
    summary = json.loads((folder / "summary.json").read_text())
    return summary["peak_memory_gib"] * 1024, summary["startup_peak_memory_gib"] * 1024


def test_what_tuning_takes_is_not_in_the_peak_of_training(setup):
    """The row pitch is measured on whole linears, of which the run computes tiles."""
    use_wide_mlps(setup)
    changes = dict(WIDE, max_steps=1, gradient_checkpointing="full", mlp_tile_tokens=256)
    (tuned, tuning), (plain, start) = peaks(setup, "tuned", **changes), peaks(setup, "plain", tuning="off", **changes)
    assert tuning > start + 400 and tuned < tuning - 300, (tuned, tuning, plain, start)
    assert plain > start and abs(tuned - plain) < 50, (tuned, plain, start)


def test_the_peak_is_that_of_all_processes_of_a_run(setup):
    use_wide_mlps(setup)
    changes = dict(WIDE, save_steps=1, tuning="off")
    first, _ = peaks(setup, "run", max_steps=1, gradient_checkpointing="off", **changes)
    resumed, _ = peaks(setup, "run", max_steps=2, gradient_checkpointing="full", **changes)
    alone, _ = peaks(setup, "alone", max_steps=2, gradient_checkpointing="full", **changes)
    assert resumed == first > alone + 100, (first, resumed, alone)


def test_attention_backends_are_checked_in_little_memory(setup):
    """All scores of the document that they are timed on would be 256 MiB."""
    ids = [2 + i % 60 for i in range(2048)]
    setup.write_rows([{"input_ids": ids, "labels": ids}] * 4)
    changes = dict(WIDE, max_seq_len=2048, max_steps=1)
    peak, before = peaks(setup, "run", dict(STAND_IN_MAJOR="9"), **changes)
    assert before < 200 and peak < 200, (peak, before)
