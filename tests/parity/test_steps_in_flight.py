"""The training loop with steps in flight, as on a GPU, gives what it gives without."""

import json
import subprocess

import pytest

import engine
from safetensors.torch import load_file


def run_loop(case, folder, in_flight, **changes):
    """(exit code, stderr, event lines without times, {checkpoint: tensors})."""
    settings = dict(max_steps=11, micro_batch_size=2, global_batch_size=4, learning_rate=5e-3, save_steps=4, eval_steps=3,
                    eval_datasets=[{"path": str(case.data_file), "type": "pretokenized"}], eval_on_start=True,
                    save_total_limit=10)
    profile = engine.profile_for(case, folder / "run", **dict(settings, **changes))
    command = [engine.BIN / "lora-train-probe", "--profile", engine.write_profile(profile, folder), "--in-flight", str(in_flight)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=engine.TIMEOUT_S)
    lines = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
    times = {"time", "elapsed_s", "eta_s", "step_ms", "tokens_per_s", "data_wait_ms", "eval_s", "durable_s", "stall_ms",
             "stall_s", "save_s", "train_s", "cost_usd", "phases_s", "spans",
             "cpu_percent", "host_memory_gib", "cpu_s", "energy_wh", "gpu_watched_s", "gpu_busy_s"}
    lines = [{key: value for key, value in line.items() if key not in times} for line in lines if line["event"] != "checkpoint"]
    states = {}
    for path in sorted((folder / "run").glob("checkpoint-*")):
        states[path.name] = {name: tensor for file in sorted(path.glob("*.safetensors")) for name, tensor in load_file(file).items()}
    return done.returncode, done.stderr, lines, states


@pytest.mark.parametrize("in_flight", [1, 2])
def test_the_same_lines_and_checkpoints(cases, tmp_path, in_flight):
    code, error, lines, states = run_loop(cases(0), tmp_path / "none", 0)
    assert code == 0, error
    assert [line["step"] for line in lines if line["event"] == "eval"] == [0, 3, 6, 9, 11]
    got_code, error, got_lines, got_states = run_loop(cases(0), tmp_path / "some", in_flight)
    assert got_code == 0, error
    assert got_lines == lines
    assert got_states.keys() == states.keys() == {"checkpoint-4", "checkpoint-8", "checkpoint-11"}
    for name, tensors in states.items():
        assert all(tensors[key].equal(value) for key, value in got_states[name].items()), name


def test_a_loss_that_is_not_finite_names_its_step_and_nothing_after_it_counts(cases, tmp_path):
    """A learning rate that blows the weights up in step 1: step 2 is not finite, whatever was asked for after it."""
    changes = dict(learning_rate=1e38, max_grad_norm=0, eval_steps=1000, eval_on_start=False, save_steps=1000)
    code, error, lines, _ = run_loop(cases(0), tmp_path / "none", 0, **changes)
    got_code, got_error, got_lines, got_states = run_loop(cases(0), tmp_path / "some", 2, **changes)
    assert code == got_code == 7, error + got_error
    assert "step 2" in error and "step 2" in got_error
    assert error.splitlines()[-1] == got_error.splitlines()[-1]
    assert got_lines == lines and got_states == {}
