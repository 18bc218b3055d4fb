"""Steps on our CUDA kernels, compiled for the CPU: replayed, or enqueued anew."""

import pytest

import engine

NUM_STEPS = 3
GRAPHS = {mode: (*engine.CUDA_ON_CPU, "--graphs", mode) for mode in ("on", "off")}


def curve(case, tmp_path, num_steps, code=(), **changes):
    settings = dict(max_steps=num_steps, micro_batch_size=2, learning_rate=5e-3) | changes
    return engine.probe_steps(engine.profile_for(case, tmp_path / "run", **settings), tmp_path, num_steps, code)


def assert_same(one, other):
    """Bit for bit."""
    assert one["losses"] == other["losses"] and one["grad_norms"] == other["grad_norms"]


def assert_near(one, other):
    assert one["losses"] == pytest.approx(other["losses"], rel=2e-6)
    assert one["grad_norms"] == pytest.approx(other["grad_norms"], rel=2e-5)


def check_replayed(case, tmp_path, code=(), **changes):
    """The replayed steps are the steps; returns (the replayed ones, those that were asked for)."""
    replayed, asked = (curve(case, tmp_path, NUM_STEPS, GRAPHS[mode] + code, **changes) for mode in ("on", "off"))
    assert replayed["replays"] >= 4 * NUM_STEPS and asked["replays"] == 0
    assert_same(replayed, asked)
    assert len(set(replayed["losses"])) > 1
    return replayed, asked
