"""bf16 compute against PEFT under bf16 autocast with a bf16 base, judged by what that itself loses against fp32."""

import pytest
import torch

import engine
import oracle
from loss_curves import BATCH, NUM_STEPS, assert_falls, assert_same_losses, reference_curve

BF16 = dict(precision="bf16", base_precision="bf16")


# All families. Cases of rank 1 (0, 1, 5, 11) are left out: the error of such a tensor is all but one number, and the ratio
# of two such numbers reaches 2.8 while its mean over the tensors is 1 (seen: 0.5 to 0.9 on the cases here, so lora-train
# loses less than PEFT does).
@pytest.mark.parametrize("number", [2, 3, 4, 9, 100, 103])
def test_gradients(cases, tmp_path, number):
    """|g - g_HF,fp32| <= 1.5 |g_HF,bf16 - g_HF,fp32| for each tensor."""
    case = cases(number, file_dtype="BF16")
    loss, exact = oracle.gradients(oracle.load_peft(case.model_dir, case.adapter_dir), case.rows)
    rounded_loss, rounded = oracle.gradients(oracle.load_peft(case.model_dir, case.adapter_dir, torch.bfloat16), case.rows,
                                             is_bf16=True)
    facts, gradients = engine.probe(engine.profile_for(case, tmp_path / "run", micro_batch_size=2, **BF16), tmp_path)
    assert set(gradients) == set(exact)
    assert facts["loss"] == pytest.approx(loss, rel=0.01)
    shares = {name: float((gradients[name] - exact[name]).norm() / (rounded[name] - exact[name]).norm()) for name in exact}
    assert max(shares.values()) <= 1.5, f"{oracle.worst(shares)}: {case.description}"


@pytest.mark.parametrize("number, learning_rate", [(8, 3e-3), (17, 2e-3)])
def test_curve(cases, tmp_path, number, learning_rate):
    """Within 1% of PEFT in bf16. Seen: PEFT in bf16 is within 0.5% of PEFT in fp32 on these cases, 60% on others."""
    case = cases(number, file_dtype="BF16")
    options = dict(lr_scheduler_type="cosine", warmup_steps=5, weight_decay=0.1)
    model = oracle.load_peft(case.model_dir, case.adapter_dir, torch.bfloat16)
    history = reference_curve(model, case, learning_rate, options, is_bf16=True)
    assert_falls(history)
    lines = engine.train(engine.profile_for(case, tmp_path / "run", global_batch_size=BATCH, micro_batch_size=BATCH,
                                            max_steps=NUM_STEPS, learning_rate=learning_rate, **options, **BF16), tmp_path)
    assert_same_losses(lines, history, 0.01)
    oracle.adapter_keys_match(case.model_dir, tmp_path / "run/adapter")


def test_full_finetuning_keeps_fp32_masters(cases, tmp_path):
    """The fp32 weights under autocast are the reference: updates far below bf16's resolution add up."""
    case = cases(8, file_dtype="BF16")
    model = oracle.load_base(case.model_dir).requires_grad_(True)
    learning_rate = 2e-4
    history = oracle.train(model, oracle.batches_in_order(case.rows, BATCH, NUM_STEPS), learning_rate=learning_rate,
                           is_bf16=True)
    assert_falls(history)
    lines = engine.train(engine.profile_for(
        case, tmp_path / "run", adapter="none", init_adapter="unset", precision="bf16", base_precision="unset",
        global_batch_size=BATCH, micro_batch_size=BATCH, max_steps=NUM_STEPS, learning_rate=learning_rate), tmp_path)
    assert_same_losses(lines, history, 0.01)
