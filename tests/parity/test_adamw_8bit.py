"""`optim: adamw_8bit` against bitsandbytes' CUDA rule in torch: full fine-tuning, fp32, weight decay and clipping."""

import functools

import pytest
import torch
from safetensors.torch import load_file

import engine
import oracle
from adamw_8bit_port import AdamW8bit
from loss_curves import BATCH, assert_falls, assert_same_curve
from random_case import WIDE

FULL = dict(adapter="none", init_adapter="unset", optim="adamw_8bit")


def reference(case, num_steps, **options):
    """(losses and norms, shares of zeroed second moments, model)"""
    model, zeroed = oracle.load_base(case.model_dir).requires_grad_(True), []
    optimizer = functools.partial(AdamW8bit, embeddings=[model.get_input_embeddings().weight], zeroed=zeroed)
    history = oracle.train(model, oracle.batches_in_order(case.rows, BATCH, num_steps), optimizer=optimizer, **options)
    return history, zeroed, model


def train(case, folder, num_steps, **options):
    return engine.train(engine.profile_for(case, folder / "run", global_batch_size=BATCH, micro_batch_size=2,
                                           max_steps=num_steps, save_steps=num_steps, **options, **FULL), folder)


def test_curve(cases, tmp_path):
    case = cases(8, shape=WIDE)
    history, zeroed, _ = reference(case, 20, learning_rate=3e-4, weight_decay=0.3)
    assert_falls(history)
    lines = train(case, tmp_path, 20, learning_rate=3e-4, weight_decay=0.3)
    assert_same_curve(lines, history, 1e-4)
    assert zeroed[0] > 1e-3
    assert [line["optim_zero_second_moments"] for line in lines] == pytest.approx(zeroed, abs=1e-4)


def test_three_steps(cases, tmp_path):
    """Large decay, so that its place in the update shows."""
    case = cases(8, shape=WIDE)
    before = dict(oracle.load_base(case.model_dir).named_parameters())
    _, _, model = reference(case, 3, learning_rate=1e-3, weight_decay=100.0)
    train(case, tmp_path, 3, learning_rate=1e-3, weight_decay=100.0)
    got = load_file(tmp_path / "run/model/model.safetensors")
    moves = {name: (got[name] - before[name].detach(), p.detach() - before[name].detach())
             for name, p in model.named_parameters()}
    errors = {name: oracle.relative_error(*move) for name, move in moves.items()}
    assert max(errors.values()) < 1e-3, oracle.worst(errors)

    state = load_file(tmp_path / "run/checkpoint-3/optimizer.safetensors")
    num_coded = sum(-(-p.numel() // 256) for name, p in model.named_parameters()
                    if p.numel() >= 4096 and "embed_tokens" not in name)
    assert num_coded > 100 and len(state["exp_avg_scales"]) == len(state["exp_avg_sq_scales"]) == num_coded
    assert state["exp_avg_codes"].dtype == torch.uint8 and len(state["exp_avg_codes"]) == 256 * num_coded
