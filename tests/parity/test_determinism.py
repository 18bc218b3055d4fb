"""On a CPU the same binary, CPU and thread count give the same bits."""

import pytest

import engine
from random_case import WIDE


def fingerprint(output_dir):
    losses = [(line["loss"], line["grad_norm"]) for line in engine.events(output_dir, "train")]
    return losses, (output_dir / "adapter/adapter_model.safetensors").read_bytes()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("precision, shuffle, dropout", [("fp32", True, 0.2), ("bf16", False, 0.0)])
def test_two_runs_give_the_same_bits(cases, tmp_path, precision, shuffle, dropout, threads):
    wide = {} if threads == 1 else dict(shape=WIDE, num_rows=8, max_len=120)
    case = cases(6, file_dtype="BF16", **wide)
    runs = []
    for index in range(2):
        output_dir = tmp_path / f"run{index}"
        engine.train(engine.profile_for(
            case, output_dir, precision=precision, base_precision=precision, shuffle=shuffle, lora_dropout=dropout,
            init_adapter="unset", lora_r=8, lora_alpha=16, global_batch_size=4, micro_batch_size=2, packing=True,
            max_steps=12, learning_rate=3e-3), tmp_path, threads=threads)
        runs.append(fingerprint(output_dir))
    assert runs[0] == runs[1]
    assert runs[0][0][0] != runs[0][0][-1]
