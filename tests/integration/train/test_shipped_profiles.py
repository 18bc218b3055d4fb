"""Every shipped profile trains as given on a CPU, with a small model and data in place of its own, and says in one line what is different there."""

import json
from pathlib import Path

import pytest
import yaml

from command import ROOT, lora_train

EXAMPLE = ROOT / "examples/tiny-math"
NAMES = sorted(path.stem for path in (ROOT / "configs").glob("*.yaml"))
CONFIDENCE = ROOT / "examples/confidence"
FOR_GPUS = ["tf32", "cuda_graphs", "tuning", "attn_implementation", "dataloader_pin_memory"]  # in the order of the note

pytestmark = pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="the profiles run on the GPU here")


def given(name):
    return yaml.safe_load((ROOT / f"configs/{name}.yaml").read_text())


def train(name, tmp_path, *more):
    rows = [{"messages": [{"role": "user", "content": f"{i} + 2?"}, {"role": "assistant", "content": f"{i + 2}"}]} for i in range(300)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return lora_train("train", "--profile", name, "--model", EXAMPLE / "model", "--train-data", tmp_path / "rows.jsonl",
                      "--output-dir", tmp_path / "run", "max_steps=1", *more, cwd=ROOT,
                      environment={"CONFIDENCE_DATA": CONFIDENCE / "heldout.jsonl"})


def test_all_shipped_profiles_are_here():
    assert len(NAMES) >= 8, NAMES


@pytest.mark.parametrize("name, num_ranks", [(name, 1) for name in NAMES] + [("4xh200-ddp", 2), ("8xh100", 2)])
def test_trains_without_a_gpu(name, num_ranks, tmp_path):
    run = train(name, tmp_path, *(["--nproc", num_ranks] if num_ranks > 1 else []))
    assert run.code == 0 and (tmp_path / "run/adapter/adapter_model.safetensors").exists(), run
    notes = [line for line in run.stderr.splitlines() if "CPU" in line or "GPU" in line and "learning_rate" not in line]
    keys = [key for key in FOR_GPUS if key in given(name)] or ["cuda_graphs", "tf32"]
    expected = [f"device: CPU, because this machine has no NVIDIA device; GPU settings ({', '.join(keys)}) have no effect"]
    assert notes == ([] if name == "tiny_cpu" else expected), run


def test_a_cpu_by_name_says_it_too(tmp_path):
    run = train("h100", tmp_path, "device=cpu", "attn_implementation=fa2")
    notes = [line for line in run.stderr.splitlines() if line.startswith("device: CPU")]
    assert run.code == 0 and notes == ["device: CPU; GPU settings (tf32, attn_implementation, dataloader_pin_memory) have no effect"], run
