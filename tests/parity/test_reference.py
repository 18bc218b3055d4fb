"""The reference itself: its cases are such that a wrong attention, a wrong mask or a leak cannot hide."""

import pytest
import torch

import oracle
from random_case import WINDOW, make_case, num_cases


def without_rope(model, x, position_ids, *args, **kwargs):
    cos, sin = model(x, position_ids, *args, **kwargs)
    return torch.ones_like(cos), torch.zeros_like(sin)


def relative_change(losses, true_losses):
    """Root mean square over the tokens: in their mean, changes of random tokens would cancel."""
    return float((losses - true_losses).norm() / true_losses.norm())


@pytest.mark.parametrize("number", range(num_cases(12)))
def test_attention_matters(cases, number, monkeypatch):
    case = cases(number)
    model = oracle.load_peft(case.model_dir, case.adapter_dir)
    row = case.rows[0]
    length = len(row["input_ids"])
    with torch.no_grad():
        assert model(input_ids=torch.tensor([row["input_ids"]])).logits.std() > 1
        true_losses = oracle.token_losses(model, row)
        unmasked = oracle.token_losses(model, row, attention_mask=torch.zeros(1, 1, length, length))
        rotary = model.get_base_model().model.rotary_emb
        original = rotary.forward
        monkeypatch.setattr(rotary, "forward", lambda *a, **k: without_rope(original, *a, **k))
        unrotated = oracle.token_losses(model, row)
    assert relative_change(unmasked, true_losses) > 0.03, f"without the causal mask: {case.description}"
    assert relative_change(unrotated, true_losses) > 0.03, f"without RoPE: {case.description}"


@pytest.mark.parametrize("number", range(4))
def test_a_leak_between_documents_changes_the_loss(cases, number):
    case = cases(number)
    model = oracle.load_peft(case.model_dir, case.adapter_dir)
    first, second = case.rows[0], case.rows[3]  # both wholly trained
    length = len(second["input_ids"])
    joined = {"input_ids": first["input_ids"] + second["input_ids"], "labels": [0] * len(first["labels"]) + second["labels"]}
    total = len(joined["input_ids"])
    positions = torch.tensor([list(range(total - length)) + list(range(length))])
    mask = torch.full((total, total), torch.finfo(torch.float32).min).triu(1)[None, None]
    with torch.no_grad():
        leaked = oracle.token_losses(model, joined, attention_mask=mask, position_ids=positions)[total - length:]
        assert relative_change(leaked, oracle.token_losses(model, second)) > 0.05


def test_the_cases_reach_every_variant(tmp_path):
    """The slice that CI tries holds each family and each thing a case can vary."""
    words = " \n".join(make_case(number, tmp_path / str(number)).description for number in range(12)) + " "
    for wanted in ("qwen2", "qwen3", "mistral", "llama", "rope=llama3", "rope=linear", "rope=yarn", f"window={WINDOW}",
                   "attention_bias=True", "mlp_bias=True", " tied", "untied", "sharded", "older config", "F32", "F16",
                   "BF16", "use_rslora=True", "'k_proj': 2", "all-linear", "max_window_layers=1", "=.*"):
        assert wanted in words, f"{wanted} is in none of the cases:\n{words}"
