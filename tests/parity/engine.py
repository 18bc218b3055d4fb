"""Drives lora-train and the test-only lora-train-probe, and reads what they write."""

import json
import os
from pathlib import Path

import fork_server
from safetensors.torch import load_file

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(os.environ.get("LORA_TRAIN_BIN", ROOT / "build/dev/bin"))  # folder of lora-train and lora-train-probe
TIMEOUT_S = 600  # seconds of work, minutes on a machine that is busy with something else


def profile_for(case, output_dir, **changes):
    """The profile of a parity run as a dict: one step over all rows of the case, fp32, in file order."""
    profile = {
        "model": str(case.model_dir), "datasets": [{"path": str(case.data_file), "type": "pretokenized"}],
        "device": "cpu", "precision": "fp32", "base_precision": "fp32", "init_adapter": str(case.adapter_dir),
        "packing": False, "shuffle": False, "overlength": "error", "max_seq_len": case.max_seq_len,
        "micro_batch_size": len(case.rows), "global_batch_size": len(case.rows), "max_steps": 1, "num_epochs": 1000,
        "learning_rate": 1e-3, "lr_scheduler_type": "constant", "warmup_steps": 0, "weight_decay": 0.0,
        "max_grad_norm": 1.0, "gradient_checkpointing": "off", "logging_steps": 1, "report_to": "none",
        "save_steps": 1000000, "save_interval": None, "output_dir": str(output_dir)}
    profile.update(changes)
    return {key: value for key, value in profile.items() if value != "unset"}


def write_profile(profile, folder):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"profile-{len(list(folder.glob('profile-*.json')))}.json"
    path.write_text(json.dumps(profile, indent=1))
    return path


def environment(threads):
    return dict(os.environ, OMP_NUM_THREADS=str(threads), MKL_NUM_THREADS=str(threads), NO_COLOR="1")


def start(program, *arguments, threads=1, data=b""):
    """Runs a program of ours to its end, whatever it is, with `data` as its stdin."""
    return fork_server.run(BIN / program, *arguments, timeout=TIMEOUT_S, environment=environment(threads), data=data)


def run(program, *arguments, threads=1):
    """As start(); a failure carries the command and what it wrote to stderr."""
    done = start(program, *arguments, threads=threads)
    assert done.returncode == 0, f"{' '.join(done.args)}\nexit code {done.returncode}\n{done.stderr[-4000:]}"
    return done.stdout


def probe(profile, folder, threads=1, kernels=()):
    """(facts, gradients) of global step 1: {"loss", "supervised_tokens", "grad_norm"} and {name: fp32 tensor}."""
    path = write_profile(profile, folder)
    gradients_file = path.with_suffix(".safetensors")
    out = run("lora-train-probe", "--profile", path, *kernels, "--gradients", gradients_file, threads=threads)
    facts = json.loads(out.strip().splitlines()[-1])
    return facts, load_file(gradients_file)


CUDA_ON_CPU = ("--kernels", "cuda-on-cpu")  # our CUDA kernels, compiled for the CPU
OWN_GRADIENTS = ("--attention-gradients", "own")  # attention hands its gradients over as the backends of a GPU do


def probe_steps(profile, folder, num_steps, kernels=()):
    """{"losses", "grad_norms", "allocations", "launches"} of the first steps with their updates."""
    out = run("lora-train-probe", "--profile", write_profile(profile, folder), *kernels, "--steps", num_steps)
    return json.loads(out.strip().splitlines()[-1])


def train(profile, folder, threads=1):
    """Runs `train`; returns the train lines of metrics.jsonl."""
    run("lora-train", "train", "--profile", write_profile(profile, folder), threads=threads)
    return events(Path(profile["output_dir"]), "train")


def evaluate(profile, folder, adapter=None):
    """Runs `eval --json`; returns its objects."""
    more = ["--adapter", adapter] if adapter else []
    out = run("lora-train", "eval", "--profile", write_profile(profile, folder), *more, "--json")
    return [json.loads(line) for line in out.strip().splitlines()]


def events(output_dir, kind):
    lines = [json.loads(line) for line in (output_dir / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["event"] == kind]
