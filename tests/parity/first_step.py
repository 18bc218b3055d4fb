"""Loss and gradients of step 1 beside those of transformers + PEFT, and how near they must be."""

import pytest
import torch

import oracle

LOSS_TOLERANCE = 1e-6
GRADIENT_TOLERANCE = 1e-5


def check(case, facts, gradients, loss, reference):
    """case: whatever has `supervised_tokens` and a `description`."""
    assert facts["supervised_tokens"] == case.supervised_tokens
    assert facts["loss"] == pytest.approx(loss, rel=LOSS_TOLERANCE), case.description
    errors = oracle.gradient_errors(gradients, reference)
    assert max(errors.values()) <= GRADIENT_TOLERANCE, f"{oracle.worst(errors)}: {case.description}"
    norm = torch.sqrt(sum(g.double().square().sum() for g in reference.values()))
    assert facts["grad_norm"] == pytest.approx(float(norm), rel=GRADIENT_TOLERANCE)


def assert_same(got, expected):
    """Two results of engine.probe(), bit for bit."""
    assert got[0]["loss"] == expected[0]["loss"]
    assert got[1].keys() == expected[1].keys()
    for name, gradient in expected[1].items():
        assert torch.equal(got[1][name], gradient), name
