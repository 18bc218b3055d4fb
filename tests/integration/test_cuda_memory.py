"""What a run takes of the memory of a GPU, on the stand-in for the CUDA runtime."""

import json

import numpy as np
from conftest import model_tensors
from test_cuda_host import on_stand_in, pytestmark  # noqa: F401

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
