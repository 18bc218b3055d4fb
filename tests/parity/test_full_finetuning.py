"""`adapter: none` against transformers: every gradient, a 50-step curve with the Trainer's decay groups, the folder."""

import pytest
import torch
from transformers import AutoModelForCausalLM

import engine
import oracle
from first_step import assert_same, check
from loss_curves import BATCH, NUM_STEPS, assert_falls, assert_same_curve
from quantised_folders import load_weights
from random_case import num_cases

FULL = dict(adapter="none", init_adapter="unset")


@pytest.mark.parametrize("number", [*range(num_cases(8)), 100, 101, 102, 103])
def test_step_1(cases, tmp_path, number):
    """Norms, biases, embedding and head included; a tied head is summed into the embedding, as Hugging Face does."""
    case = cases(number)
    loss, reference = oracle.gradients(oracle.load_base(case.model_dir).requires_grad_(True), case.rows)
    # The bias of k_proj shifts all scores of a query alike, but for RoPE: its gradient is a difference of large numbers.
    check(case, *engine.probe(engine.profile_for(case, tmp_path / "run", micro_batch_size=3, **FULL), tmp_path), loss, reference)


def test_checkpointing_gives_the_same_numbers(cases, tmp_path):
    off, *others = (engine.probe(engine.profile_for(cases(7), tmp_path / "run", gradient_checkpointing=mode, micro_batch_size=2, **FULL),
                                 tmp_path) for mode in ("off", "cheap", "gate_up", "full"))
    for other in others:
        assert_same(other, off)


@pytest.mark.parametrize("number", [8, 7, 100])
def test_curve_and_final_model(cases, tmp_path, number):
    """The decay is so large that it shows which tensors have it. The result has the tensors of the folder it came from."""
    case = cases(number)
    model = oracle.load_base(case.model_dir).requires_grad_(True)
    history = oracle.train(model, oracle.batches_in_order(case.rows, BATCH, NUM_STEPS), learning_rate=1e-3,
                           scheduler="cosine", warmup_steps=5, weight_decay=0.3)
    assert_falls(history)
    output_dir = tmp_path / "run"
    lines = engine.train(engine.profile_for(
        case, output_dir, global_batch_size=BATCH, micro_batch_size=2, max_steps=NUM_STEPS, learning_rate=1e-3,
        lr_scheduler_type="cosine", warmup_steps=5, weight_decay=0.3, **FULL), tmp_path)
    assert_same_curve(lines, history, 1e-4)

    loaded, info = AutoModelForCausalLM.from_pretrained(output_dir / "model", dtype=torch.float32,
                                                        output_loading_info=True, attn_implementation="eager")
    assert not any(info.values()), info
    assert load_weights(output_dir / "model").keys() == load_weights(case.model_dir).keys()
    written = engine.probe(dict(engine.profile_for(case, tmp_path / "run", **FULL), model=str(output_dir / "model")),
                           tmp_path)[0]["loss"]
    assert oracle.loss(loaded.eval(), case.rows) == pytest.approx(written, rel=1e-6)


def test_biases_and_norms_are_not_decayed(cases, tmp_path):
    """One step with a tiny gradient effect and a large decay: decayed tensors shrink by lr * decay, others do not."""
    case = cases(7)  # Llama with MLP biases, a linear RoPE and a tied head, F32 file
    before = oracle.load_base(case.model_dir)
    engine.train(engine.profile_for(case, tmp_path / "run", learning_rate=1e-5, weight_decay=1e4, max_steps=1, **FULL),
                 tmp_path)
    after = AutoModelForCausalLM.from_pretrained(tmp_path / "run/model", dtype=torch.float32).state_dict()
    for name, was in before.named_parameters():
        ratio = float((after[name] * was).sum() / was.square().sum())
        wanted = 1.0 if name.endswith("bias") or "norm" in name else 0.9
        assert ratio == pytest.approx(wanted, abs=2e-3), name
