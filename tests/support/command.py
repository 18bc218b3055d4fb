"""What most tests share: the program and its environment, a small Qwen2 folder written without torch, examples and a profile."""

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import fork_server
import numpy as np
from safetensors.numpy import save_file

ROOT = Path(__file__).resolve().parents[2]
BINARY = Path(os.environ.get("LORA_TRAIN_BIN", ROOT / "build/dev/bin")) / "lora-train"
CACHE = tempfile.TemporaryDirectory(prefix="lora-train-cache-")  # not the cache of who runs the tests
ENVIRONMENT = dict(os.environ, XDG_CACHE_HOME=CACHE.name, OMP_NUM_THREADS="1", MKL_NUM_THREADS="1",
                   NO_COLOR="1", HF_HUB_OFFLINE="1")
ENVIRONMENT.pop("COLUMNS", None)  # of the terminal, or of whatever starts the tests
TIMEOUT_S = 600  # seconds of work, minutes on a machine that is busy with something else
CONFIG = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "vocab_size": 64, "hidden_size": 32,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48,
    "max_position_embeddings": 128, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu",
    "tie_word_embeddings": True, "torch_dtype": "float32", "use_sliding_window": False, "bos_token_id": 0,
    "eos_token_id": 1}


class Run:
    """A finished process: code, stdout, stderr."""

    def __init__(self, arguments, done):
        self.arguments, self.code, self.stdout, self.stderr = arguments, done.returncode, done.stdout, done.stderr

    def json_lines(self):
        return [json.loads(line) for line in self.stdout.strip().splitlines()]

    def __repr__(self):
        return f"lora-train {' '.join(map(str, self.arguments))}\nexit code {self.code}\n" \
               f"stdout: {self.stdout[-1500:]}\nstderr: {self.stderr[-3000:]}"


def lora_train(*arguments, cwd=None, environment=(), data=b"", cpu_seconds=0):
    """Runs lora-train to its end, with `data` as its stdin; forked, not started (fork_server)."""
    done = fork_server.run(BINARY, *arguments, environment=dict(ENVIRONMENT, **dict(environment)), cwd=cwd, data=data,
                           timeout=TIMEOUT_S, cpu_seconds=cpu_seconds)
    run = Run(arguments, done)
    assert done.returncode >= 0, f"died of signal {-done.returncode}: {run}"
    return run


def good_run(*arguments, **options):
    """As lora_train, of a run that succeeds."""
    run = lora_train(*arguments, **options)
    assert run.code == 0, run
    return run


def expect_end(run, code, *parts):
    """The exit code, and what is said on the way."""
    assert run.code == code, run
    for part in parts:
        assert str(part) in run.stderr, f"{part!r} is not in {run}"


def train_tiny_math(folder):
    """The folder of a run of 15 steps on the model of examples/tiny-math, whose adapter answers otherwise than its base."""
    example = ROOT / "examples/tiny-math"
    good_run("train", "--model", example / "model", "--train-data", example / "train.jsonl", "--output-dir", folder / "run",
             "device=cpu", "precision=fp32", "max_steps=15", "global_batch_size=4", "micro_batch_size=1", "max_seq_len=256",
             "learning_rate=5e-3", "report_to=none")
    return folder / "run"


def model_tensors(seed=0):
    rng = np.random.default_rng(seed)
    D, F, E, H, K = 32, 48, 8, 4, 2

    def normal(*shape):
        return (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)

    tensors = {"model.embed_tokens.weight": normal(CONFIG["vocab_size"], D), "model.norm.weight": np.ones(D, np.float32)}
    for layer in range(CONFIG["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        tensors.update({
            at + "input_layernorm.weight": np.ones(D, np.float32),
            at + "post_attention_layernorm.weight": np.ones(D, np.float32),
            at + "self_attn.q_proj.weight": normal(H * E, D), at + "self_attn.q_proj.bias": normal(H * E),
            at + "self_attn.k_proj.weight": normal(K * E, D), at + "self_attn.k_proj.bias": normal(K * E),
            at + "self_attn.v_proj.weight": normal(K * E, D), at + "self_attn.v_proj.bias": normal(K * E),
            at + "self_attn.o_proj.weight": normal(D, H * E), at + "mlp.gate_proj.weight": normal(F, D),
            at + "mlp.up_proj.weight": normal(F, D), at + "mlp.down_proj.weight": normal(D, F)})
    return tensors


def events_of(output_dir, kind):
    """The whole lines of metrics.jsonl that are of this kind."""
    try:
        text = (output_dir / "metrics.jsonl").read_text()
    except FileNotFoundError:  # not yet written, or being replaced
        return []
    lines = text[:text.rfind("\n") + 1].splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == kind]


class Setup:
    """A folder with model/, rows.jsonl and profile.json that trains; a test breaks one part of it."""

    def __init__(self, folder):
        self.folder, self.model, self.rows_file = folder, folder / "model", folder / "rows.jsonl"
        self.output_dir, self.profile_file = folder / "run", folder / "profile.json"
        self.model.mkdir()
        self.write_config()
        self.write_model(model_tensors())
        rng = np.random.default_rng(1)
        self.rows = [{"input_ids": ids, "labels": [-100, -100] + ids[2:]}
                     for ids in (rng.integers(2, 64, int(length)).tolist() for length in rng.integers(8, 30, 12))]
        self.write_rows(self.rows)
        self.profile = {
            "model": str(self.model), "datasets": [{"path": str(self.rows_file), "type": "pretokenized"}], "device": "cpu",
            "precision": "fp32", "lora_r": 4, "lora_alpha": 8, "max_seq_len": 64, "packing": False,
            "micro_batch_size": 2, "global_batch_size": 4, "max_steps": 3, "learning_rate": 1e-2,
            "lr_scheduler_type": "constant", "warmup_steps": 0, "logging_steps": 1, "report_to": "none",
            "output_dir": str(self.output_dir)}

    def write_config(self, without=(), **changes):
        config = {key: value for key, value in dict(CONFIG, **changes).items() if key not in without}
        (self.model / "config.json").write_text(json.dumps(config, indent=2))

    def use_layers(self, num_layers):
        """A model of so many layers, all like the first."""
        few = model_tensors()
        tensors = {name: tensor for name, tensor in few.items() if ".layers." not in name}
        for layer in range(num_layers):
            tensors.update({name.replace(".layers.0.", f".layers.{layer}."): tensor for name, tensor in few.items() if ".layers.0." in name})
        self.write_config(num_hidden_layers=num_layers)
        self.write_model(tensors)

    def write_model(self, tensors, name="model.safetensors"):
        save_file(tensors, self.model / name, metadata={"format": "pt"})

    def write_shards(self):
        """Two shards and their index, in place of the single file. Returns the index as a dict."""
        tensors = model_tensors()
        (self.model / "model.safetensors").unlink()
        halves = [{}, {}]
        for position, (name, tensor) in enumerate(sorted(tensors.items())):
            halves[position % 2][name] = tensor
        names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
        for half, name in zip(halves, names):
            self.write_model(half, name)
        index = {"metadata": {"total_size": 1}, "weight_map": {
            tensor: name for half, name in zip(halves, names) for tensor in half}}
        self.write_index(index)
        return index

    def write_index(self, index):
        (self.model / "model.safetensors.index.json").write_text(json.dumps(index))

    def write_rows(self, rows, more=""):
        self.rows_file.write_text("".join(json.dumps(row) + "\n" for row in rows) + more)

    def quantised(self, kind):
        """The model's folder with its linears quantised."""
        folder = self.folder / f"model-{kind}"
        if not folder.exists():
            good_run("quantize", "--model", self.model, "--output-dir", folder, "--base-precision", kind)
        return str(folder)

    def write_profile(self, **changes):
        profile = {key: value for key, value in dict(self.profile, **changes).items() if value != "unset"}
        self.profile_file.write_text(json.dumps(profile, indent=1))
        return self.profile_file

    def train(self, *arguments, **changes):
        return lora_train("train", "--profile", self.write_profile(**changes), *arguments)

    def good_run(self, *arguments, **changes):
        """As train, of a run that succeeds."""
        return good_run("train", "--profile", self.write_profile(**changes), *arguments)

    def start(self, *arguments, **changes):
        """Starts `train` without waiting."""
        command = [str(BINARY), "train", "--profile", str(self.write_profile(**changes)), *arguments]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)

    def events(self, kind, output_dir=None):
        return events_of(output_dir or self.output_dir, kind)

    def summary(self):
        return json.loads((self.output_dir / "summary.json").read_text())


def has_library(*names):
    """Whether the dynamic linker finds one of them."""
    for name in names:
        with contextlib.suppress(OSError):
            return bool(ctypes.CDLL(name))
    return False


def handles_signals(pid):
    """Before the program has asked for them, signals do what they always do. False of a process that has ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (signal.SIGTERM - 1) & 1)
    return False


def stop(process, number=signal.SIGTERM, code=75):
    """Asks the process to stop, and returns what it has said on stderr by its end."""
    process.send_signal(number)
    stderr = process.communicate(timeout=300)[1]
    assert process.returncode == code, f"exit code {process.returncode}: {stderr}"
    return stderr


def wait_for(condition, what, process, seconds=300):
    """Polls until condition() holds; fails when the process ends first or time is up."""
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, f"ended with {process.returncode} before {what}:\n{process.communicate()[1][-2000:]}"
        assert time.monotonic() < end, f"{what} did not happen in {seconds} s"
        time.sleep(0.005)
