"""`optim: adamw_8bit` against bitsandbytes' CUDA rule in torch: full fine-tuning, fp32, weight decay and clipping."""

import functools

import pytest

import engine
import oracle
from adamw_8bit_port import AdamW8bit
from loss_curves import BATCH, assert_falls, assert_same_curve
from random_case import WIDE


def test_curve(cases, tmp_path):
    """The update of each tensor, and which have coded moments: tests/unit/optim/adamw_8bit_test.cpp."""
    case, num_steps, settings = cases(8, shape=WIDE), 20, dict(learning_rate=3e-4, weight_decay=0.3)
    model, zeroed = oracle.load_base(case.model_dir).requires_grad_(True), []
    optimizer = functools.partial(AdamW8bit, embeddings=[model.get_input_embeddings().weight], zeroed=zeroed)
    history = oracle.train(model, oracle.batches_in_order(case.rows, BATCH, num_steps), optimizer=optimizer, **settings)
    assert_falls(history)
    lines = engine.train(engine.profile_for(case, tmp_path / "run", global_batch_size=BATCH, micro_batch_size=2, max_steps=num_steps,
                                            **settings, adapter="none", init_adapter="unset", optim="adamw_8bit"), tmp_path)
    assert_same_curve(lines, history, 1e-4)
    assert zeroed[0] > 1e-3
    assert [line["optim_zero_second_moments"] for line in lines] == pytest.approx(zeroed, abs=1e-4)
