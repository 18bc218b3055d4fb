"""LoRA+ against PEFT's create_loraplus_optimizer with torch.optim.AdamW: 10 steps in fp32, weight decay and clipping."""

import pytest
import torch
from safetensors.torch import load_file

import engine
import oracle

LOSS_TOLERANCE, VALUE_TOLERANCE = 1e-6, 1e-5
NUM_STEPS = 10
BATCH = 4
RATIO, WEIGHT_DECAY, MAX_GRAD_NORM = 16.0, 0.1, 0.5


@pytest.mark.parametrize("number, learning_rate, scheduler", [(8, 2e-4, "cosine"), (2, 1e-4, "constant_with_warmup")])
def test_ten_steps(cases, tmp_path, number, learning_rate, scheduler):
    case = cases(number)
    model = oracle.load_peft(case.model_dir, case.adapter_dir)
    first = {name: p.detach().clone() for name, p in oracle.trainable(model).items()}
    history = oracle.train(model, oracle.batches_in_order(case.rows, BATCH, NUM_STEPS), learning_rate=learning_rate,
                           scheduler=scheduler, warmup_steps=3, weight_decay=WEIGHT_DECAY, max_grad_norm=MAX_GRAD_NORM,
                           loraplus_lr_ratio=RATIO)
    assert max(step["grad_norm"] for step in history) > MAX_GRAD_NORM, "nothing is clipped: this case tests too little"

    lines = engine.train(engine.profile_for(
        case, tmp_path / "run", micro_batch_size=BATCH, global_batch_size=BATCH, max_steps=NUM_STEPS,
        learning_rate=learning_rate, lr_scheduler_type=scheduler, warmup_steps=3, weight_decay=WEIGHT_DECAY,
        max_grad_norm=MAX_GRAD_NORM, loraplus_lr_ratio=RATIO), tmp_path)
    for line, expected in zip(lines, history, strict=True):
        assert line["loss"] == pytest.approx(expected["loss"], rel=LOSS_TOLERANCE), f"step {line['step']}"
        assert line["learning_rate"] == pytest.approx(expected["learning_rate"], rel=1e-7, abs=1e-15), "A's rate"

    got = load_file(tmp_path / "run/adapter/adapter_model.safetensors")
    errors = oracle.gradient_errors(got, {name: p.detach() for name, p in oracle.trainable(model).items()})
    assert max(errors.values()) < VALUE_TOLERANCE, oracle.worst(errors)
    moved = {matrix: torch.cat([(got[name] - value).abs().flatten() for name, value in first.items()
                                if f".lora_{matrix}." in name]).mean() for matrix in "AB"}
    assert moved["B"] > 4 * moved["A"], f"B moves {moved['B']:.1e}, A {moved['A']:.1e}: the ratio shows nowhere"
