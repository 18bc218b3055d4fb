"""Steps on our CUDA kernels, compiled for the CPU: replayed, or enqueued anew."""

import engine

GRAPHS = {mode: (*engine.CUDA_ON_CPU, "--graphs", mode) for mode in ("on", "off")}


def curve(case, tmp_path, num_steps, code=(), **changes):
    settings = dict(max_steps=num_steps, micro_batch_size=2, learning_rate=5e-3) | changes
    return engine.probe_steps(engine.profile_for(case, tmp_path / "run", **settings), tmp_path, num_steps, code)
