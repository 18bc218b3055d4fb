"""Curves of 50 steps: the reference's, and that a run has the same."""

import pytest

import oracle

CURVE_TOLERANCE = 1e-4
NUM_STEPS = 50
BATCH = 4  # of six rows: steps of four and two rows in turn


def reference_curve(model, case, learning_rate, options, **more):
    return oracle.train(model, oracle.batches_in_order(case.rows, BATCH, NUM_STEPS), learning_rate=learning_rate,
                        scheduler=options.get("lr_scheduler_type", "constant"),
                        warmup_steps=options.get("warmup_steps", 0), weight_decay=options.get("weight_decay", 0.0),
                        max_grad_norm=options.get("max_grad_norm", 1.0), loraplus_lr_ratio=options.get("loraplus_lr_ratio"), **more)


def assert_falls(history):
    """By at least 30%, over the two batches of an epoch."""
    first, last = (history[at]["loss"] + history[at + 1]["loss"] for at in (0, len(history) - 2))
    assert last < 0.7 * first, f"the reference loss goes from {first / 2} to {last / 2} only"


def assert_same_losses(lines, history, tolerance):
    for line, expected in zip(lines, history, strict=True):
        assert line["loss"] == pytest.approx(expected["loss"], rel=tolerance), f"step {line['step']}"


def assert_same_curve(lines, history, tolerance):
    assert [line["step"] for line in lines] == list(range(1, len(history) + 1))
    assert_same_losses(lines, history, tolerance)
    for line, expected in zip(lines, history):
        where = f"step {line['step']}"
        assert line["grad_norm"] == pytest.approx(expected["grad_norm"], rel=30 * tolerance), where
        assert line["learning_rate"] == pytest.approx(expected["learning_rate"], rel=1e-7, abs=1e-15), where
