"""The named cases of the goldens. A case is a function of a Workplace that returns {value: result}; a result is a number, a
list of numbers, a text, or a list of lists of ids. Nothing that depends on a path or on the time is returned."""

import hashlib
import json
import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable

import inputs

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples/tiny-math"
TIMEOUT_S = 600
NUM_STEPS = 20
FAMILIES = ("qwen2", "qwen3", "mistral", "llama")
RECOMPUTE = ("off", "cheap", "gate_up", "full")
FULL = dict(adapter="none", lora_r=None, lora_alpha=None, learning_rate=1e-3)
CUDA_ON_CPU = ("--kernels", "cuda-on-cpu")


class ProgramFailed(Exception):
    pass


@dataclass
class Workplace:
    """Where a case runs: the programs, the inputs that all cases share, and a folder of its own."""
    bin: Path
    inputs: Path
    folder: Path
    threads: int
    seed: int = 42

    def run(self, program, *arguments):
        command = [str(self.bin / program), *map(str, arguments)]
        environment = dict(os.environ, OMP_NUM_THREADS=str(self.threads), MKL_NUM_THREADS=str(self.threads), NO_COLOR="1",
                           MKL_DYNAMIC="FALSE", HF_HUB_OFFLINE="1", XDG_CACHE_HOME=str(self.folder / "cache"))
        environment.setdefault("OMP_WAIT_POLICY", "passive")  # cases run side by side; no number depends on it
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, env=environment, cwd=ROOT)
        if done.returncode != 0:
            raise ProgramFailed(f"{' '.join(command)}\nexit code {done.returncode}\n{done.stderr[-3000:]}")
        return done.stdout

    def write(self, name, value):
        path = self.folder / name
        path.write_text(json.dumps(value, indent=1))
        return path


@dataclass
class Case:
    name: str
    precision: str  # fp32 or bf16: the tolerance on another CPU
    programs: tuple  # that it runs
    is_quick: bool
    compute: Callable = field(repr=False)


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def tensors_sha256(path):
    """Of names, types, shapes and values, in the order of names: the order of a file and its metadata are no numbers."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    digest = hashlib.sha256()
    header = json.loads(data[8:start])
    header.pop("__metadata__", None)
    for name in sorted(header):
        entry = header[name]
        begin, end = entry["data_offsets"]
        digest.update(f"{name} {entry['dtype']} {entry['shape']}\n".encode() + data[start + begin:start + end])
    return digest.hexdigest()


# ---- training ------------------------------------------------------------------------------------------------------


def profile_for(place, model, precision, changes):
    """Gradient accumulation (two micro-batches of two rows), decay, clipping and a schedule are on everywhere."""
    profile = {
        "model": str(place.inputs / "models" / f"{model}-{'BF16' if precision == 'bf16' else 'F32'}"), "device": "cpu",
        "datasets": [{"path": str(place.inputs / "rows.jsonl"), "type": "pretokenized"}], "precision": precision,
        "base_precision": precision, "lora_r": 4, "lora_alpha": 8, "packing": True, "max_seq_len": 48, "micro_batch_size": 2,
        "global_batch_size": 4, "num_epochs": 1000, "max_steps": NUM_STEPS, "learning_rate": 5e-3,
        "lr_scheduler_type": "cosine", "warmup_steps": 3, "weight_decay": 0.1, "max_grad_norm": 1.0,
        "gradient_checkpointing": "off", "logging_steps": 1, "report_to": "none", "save_steps": 1000000,
        "save_interval": None, "output_dir": str(place.folder / "run"), "dataset_prepared_path": str(place.folder / "tokens"),
        "seed": place.seed}
    for key, value in changes.items():
        if key == "init_adapter":
            value = str(place.inputs / "adapters" / value)
        if key in ("datasets", "eval_datasets"):
            value = [{"path": str(place.inputs / value), "type": "pretokenized"}]
        profile[key] = value
    return {key: value for key, value in profile.items() if value is not None or key == "save_interval"}


def values_of_run(folder):
    """Every figure of metrics.jsonl that is no time, and the bytes of what was written."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    train = [line for line in lines if line["event"] == "train"]
    values = {"losses": [line["loss"] for line in train], "grad_norms": [line["grad_norm"] for line in train],
              "learning_rates": [line["learning_rate"] for line in train]}
    evaluations = [line for line in lines if line["event"] == "eval"]
    if evaluations:
        values["eval_losses"] = [value for line in evaluations for key, value in sorted(line.items()) if key.endswith("loss")]
        assert len(values["eval_losses"]) >= 2, evaluations
    if (folder / "adapter/adapter_model.safetensors").exists():
        values["adapter_sha256"] = sha256(folder / "adapter/adapter_model.safetensors")
    else:
        values["model_sha256"] = tensors_sha256(folder / "model/model.safetensors")
    return values


def train(model, precision, **changes):
    def compute(place):
        path = place.write("profile.json", profile_for(place, model, precision, changes))
        place.run("lora-train", "train", "--profile", path)
        values = values_of_run(place.folder / "run")
        assert len(values["losses"]) == changes.get("max_steps", NUM_STEPS), "a step is missing in metrics.jsonl"
        return values
    return compute


def probe(model, precision, *flags, num_steps=NUM_STEPS, **changes):
    """The first of the same steps through the test-only probe; with CUDA_ON_CPU through our CUDA kernels."""
    def compute(place):
        path = place.write("profile.json", profile_for(place, model, precision, changes))
        out = place.run("lora-train-probe", "--profile", path, *flags, "--steps", num_steps)
        result = json.loads(out.strip().splitlines()[-1])
        assert (result["launches"] > 0) == (CUDA_ON_CPU[0] in flags)
        assert (result["replays"] > 0) == ("on" in flags)
        return {key: result[key] for key in ("losses", "grad_norms")}
    return compute


def train_chats(precision):
    """The shipped example: chat template, masks, evaluation; then eval, and generate by the program itself."""
    def compute(place):
        settings = dict(precision=precision, max_steps=NUM_STEPS, logging_steps=1, eval_steps=10, eval_max_samples=8,
                        output_dir=place.folder / "run", dataset_prepared_path=place.folder / "tokens", seed=place.seed)
        flags = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
        profile = ("--profile", EXAMPLE / "profile.yaml", *flags)
        place.run("lora-train", "train", *profile)
        values = values_of_run(place.folder / "run")
        adapter = place.folder / "run/adapter"
        for name, more in (("base", ()), ("adapter", ("--adapter", adapter))):
            result = json.loads(place.run("lora-train", "eval", *profile, *more, "--json"))
            for key in ("loss", "token_accuracy", "ece"):
                values[f"eval_{name}_{key}"] = result[key]
        prompts = place.folder / "prompts.jsonl"
        prompts.write_text("".join((EXAMPLE / "heldout.jsonl").read_text().splitlines(keepends=True)[:5]))
        out = place.run("lora-train", "generate", *profile, "--adapter", adapter, "--prompts", prompts, "--compare",
                        "--max-new-tokens", 24, "--json")
        answers = [json.loads(line) for line in out.splitlines()]
        assert len(answers) == 5
        values["completion_ids"] = [answer["completion_ids"] for answer in answers]
        values["base_completion_ids"] = [answer["base_completion_ids"] for answer in answers]
        return values
    return compute


# ---- generation, evaluation, merging -------------------------------------------------------------------------------


def generate(model, precision, with_adapter, kernels=None):
    """Greedy ids with their log-probabilities, sampled ids and scores, of prompts that are decoded together."""
    def compute(place):
        rows = [json.loads(line)["input_ids"] for line in (place.inputs / "eval_rows.jsonl").read_text().splitlines()]
        prompts = [ids for ids in rows[:6]] + [rows[0][:1]]
        request = {"model": str(place.inputs / "models" / f"{model}-{'BF16' if precision == 'bf16' else 'F32'}"),
                   "adapter": str(place.inputs / "adapters" / model) if with_adapter else "", "dtype": precision,
                   "prompts": [{"ids": ids, "max_new_tokens": 12} for ids in prompts], "log_probabilities": True,
                   "scores": [{"prompt": rows[7], "completions": [rows[1][:5], rows[2][:2], rows[3][:1]]}]}
        if kernels:
            request["kernels"] = kernels
        greedy = json.loads(place.run("lora-train-generate-probe", place.write("greedy.json", request)))
        sampled = json.loads(place.run("lora-train-generate-probe", place.write("sampled.json", dict(
            request, sampling={"temperature": 1.2, "top_k": 20, "top_p": 0.9, "min_p": 0.05, "seed": place.seed}, scores=[],
            limits={"max_sequences": 3, "max_pass_tokens": 5, "cache_bytes": 1}))))
        return {"greedy_ids": [completion["ids"] for completion in greedy["completions"]],
                "log_probabilities": [completion["log_probability"] for completion in greedy["completions"]],
                "scores": [score for scores in greedy["scores"] for score in scores],
                "sampled_ids": [completion["ids"] for completion in sampled["completions"]]}
    return compute


def evaluate(model, precision):
    def compute(place):
        profile = profile_for(place, model, precision, dict(eval_datasets="eval_rows.jsonl"))
        path = place.write("profile.json", profile)
        values = {}
        for name, more in (("base", ()), ("adapter", ("--adapter", place.inputs / "adapters" / model))):
            result = json.loads(place.run("lora-train", "eval", "--profile", path, *more, "--json"))
            values.update({f"{name}_{key}": result[key] for key in ("loss", "token_accuracy", "ece")})
        return values
    return compute


def merge(model, file_dtype, dtype):
    def compute(place):
        out = place.run("lora-train", "merge", "--model", place.inputs / "models" / f"{model}-{file_dtype}", "--adapter",
                        place.inputs / "adapters" / model, "--output-dir", place.folder / "merged", "--dtype", dtype,
                        "--rows", place.inputs / "eval_rows.jsonl", "--json")
        json.loads(out)
        return {"merged_sha256": tensors_sha256(place.folder / "merged/model.safetensors")}
    return compute


# ---- the list ------------------------------------------------------------------------------------------------------


def training_cases(add):
    for number, family in enumerate(FAMILIES):
        for precision in ("fp32", "bf16"):
            add(f"train/{family}/{precision}/packed", train(family, precision), quick=(precision == "bf16") == (number % 2 == 0))
            add(f"train/{family}/{precision}/all_weights", train(family, precision, packing=number % 2 == 0, **FULL),
                quick=(number, precision) in ((1, "fp32"), (2, "bf16")))
            add(f"train/{family}/{precision}/rows_dropout", train(family, precision, packing=False, lora_dropout=0.1),
                quick=(number, precision) == (0, "fp32"))
        for index, mode in enumerate(RECOMPUTE[1:]):
            precision = ("fp32", "bf16")[(number + index) % 2]
            add(f"train/{family}/{precision}/{mode}", train(family, precision, gradient_checkpointing=mode, lora_dropout=0.1),
                quick=number == 3 and mode == "full")
            add(f"train/{family}/{precision}/all_weights_{mode}", train(family, precision, gradient_checkpointing=mode, **FULL))
    patterns = dict(use_rslora=True, rank_pattern={"k_proj": 2, r"layers.0.*up_proj": 5}, alpha_pattern={"q_proj": 5},
                    lora_target_modules=["q_proj", "k_proj", "o_proj", "up_proj", "down_proj"])
    add("train/qwen3/fp32/rslora_patterns", train("qwen3", "fp32", **patterns), quick=True)
    add("train/mistral/bf16/rslora_patterns", train("mistral", "bf16", lora_dropout=0.2, **patterns))
    for precision in ("fp32", "bf16"):
        add(f"train/llama/{precision}/init_adapter",
            train("llama", precision, init_adapter="llama", lora_r=None, lora_alpha=None, eval_datasets="eval_rows.jsonl"))
        add(f"train/wide/{precision}/packed", train("wide", precision, datasets="long_rows.jsonl", max_seq_len=256,
                                                    lora_dropout=0.1), quick=precision == "bf16")
    add("train/wide/fp32/all_weights", train("wide", "fp32", datasets="long_rows.jsonl", max_seq_len=256, **FULL))
    add("train/qwen2/fp32/clipped_hard_linear", train("qwen2", "fp32", max_grad_norm=0.01, weight_decay=0.3,
                                                      lr_scheduler_type="linear", micro_batch_size=1, save_dtype="bf16"))
    add("train/mistral/fp32/one_micro_batch", train("mistral", "fp32", micro_batch_size=4, max_grad_norm=0, weight_decay=0.0,
                                                    shuffle=False))
    for precision in ("fp32", "bf16"):
        add(f"chats/qwen2/{precision}", train_chats(precision), quick=precision == "fp32")


def kernel_cases(add):
    def add_probe(name, *arguments, quick=False, num_steps=None, **changes):
        num_steps = num_steps or (6 if "bf16" in name else NUM_STEPS)  # bf16 is computed in software there: 0.4 s a step
        add(name, probe(*arguments, num_steps=num_steps, **changes), quick=quick, programs=("lora-train-probe",))

    on, off = (*CUDA_ON_CPU, "--graphs", "on"), (*CUDA_ON_CPU, "--graphs", "off")
    for number, family in enumerate(FAMILIES):
        for precision in ("fp32", "bf16"):
            add_probe(f"cuda_on_cpu/{family}/{precision}/packed", family, precision, *CUDA_ON_CPU,
                      quick=(number, precision) in ((2, "bf16"), (3, "fp32")))
        other = ("bf16", "fp32")[number % 2]
        add_probe(f"cuda_on_cpu/{family}/{other}/all_weights", family, other, *CUDA_ON_CPU, quick=number == 1, **FULL)
        add_probe(f"cuda_on_cpu/{family}/{other}/rows_dropout_{RECOMPUTE[number]}", family, other, *CUDA_ON_CPU, packing=False,
                  lora_dropout=0.1, gradient_checkpointing=RECOMPUTE[number])
        add_probe(f"cuda_on_cpu/{family}/fp32/graphs", family, "fp32", *on, quick=number == 0)
        add_probe(f"cuda_on_cpu/{family}/{other}/graphs_dropout_full", family, other, *on, lora_dropout=0.1,
                  gradient_checkpointing="full", packing=False)
    add_probe("cuda_on_cpu/qwen2/fp32/no_graphs", "qwen2", "fp32", *off)
    add_probe("cuda_on_cpu/mistral/fp32/graphs_all_weights", "mistral", "fp32", *on, **FULL)
    add_probe("cuda_on_cpu/wide/bf16/packed", "wide", "bf16", *CUDA_ON_CPU, num_steps=2,
              datasets="long_rows.jsonl", max_seq_len=256)
    add_probe("cuda_on_cpu/qwen3/fp32/own_attention_gradients", "qwen3", "fp32", *CUDA_ON_CPU, "--attention-gradients", "own")


def generation_cases(add):
    def add_generate(name, *arguments, quick=False):
        add(name, generate(*arguments), quick=quick, programs=("lora-train-generate-probe",))

    for number, family in enumerate(FAMILIES):
        for precision in ("fp32", "bf16"):
            for what in ("base", "adapter"):
                add_generate(f"generate/{family}/{precision}/{what}", family, precision, what == "adapter",
                             quick=what == "adapter" and (number, precision) in ((0, "fp32"), (1, "bf16")))
        precision = ("fp32", "bf16")[number % 2]
        add_generate(f"generate/{family}/{precision}/cuda_on_cpu", family, precision, True, "cuda-on-cpu")
        add(f"eval/{family}/{precision}", evaluate(family, precision), quick=number == 3)
    for number, family in enumerate(FAMILIES):
        for file_dtype, dtype in (("F32", "fp32"), ("BF16", "bf16")):
            add(f"merge/{family}/{dtype}", merge(family, file_dtype, dtype), quick=number == 2)
    add("merge/wide/fp32_of_bf16", merge("wide", "BF16", "fp32"))
    add("merge/wide/bf16_of_fp32", merge("wide", "F32", "bf16"))


def all_cases():
    """In a fixed order; names are unique."""
    cases = {}

    def add(name, compute, quick=False, programs=("lora-train",)):
        assert name not in cases, name
        cases[name] = Case(name, "bf16" if "bf16" in name else "fp32", programs, quick, compute)

    training_cases(add)
    kernel_cases(add)
    generation_cases(add)
    return list(cases.values())
