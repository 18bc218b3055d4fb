"""Loads adapters of `export --mlx` with mlx-lm itself, on the CPU: logits against PEFT in fp64, and the same greedy tokens as `generate`
in fp32, for base and adapter. Random models of every family; examples/tiny-math, trained and asked through its chat template; and adapters
with other ranks and scales by linear, rsLoRA, and other linears in each layer.

    python -m venv /tmp/mlx && /tmp/mlx/bin/pip install 'mlx[cpu]' mlx-lm
    LORA_TRAIN_BIN=build/release/bin MLX_PYTHON=/tmp/mlx/bin/python .deps/venv/bin/python tests/parity/try_mlx.py [CASES]

Prints a line per case; exit 1 where a token differs that is not a tie, or the logits do. mlx_results.txt has what it printed.
"""

import json
import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
import torch
from transformers.utils import logging

import engine
import gguf_case
import oracle
from try_llama_cpp import NEW_TOKENS, PROMPTS, by_lora_train, compare, lora_train

TOLERANCE = 2e-5  # of the norm of the logits: fp32 against fp64
SPECIAL = [(76, {}),  # Gemma with hidden_size 36, whose root bf16 holds: mlx-lm rounds it
           (0, dict(target_modules=r"model\.layers\.(0\.mlp\.up|1\.self_attn\.q)_proj", rank_pattern={}, alpha_pattern={})),
           (3, dict(target_modules="all-linear", r=8, use_rslora=True, rank_pattern={"q_proj": 2, "layers.1.*up_proj": 5}, alpha_pattern={"v_proj": 5}))]

# Runs under MLX_PYTHON: a model, an adapter or "", and prompts as token ids; prints greedy tokens, and the logits of each whole prompt.
MLX = r"""
import json, sys
import mlx.core as mx
from mlx_lm import load
from mlx_lm.generate import generate_step
request = json.load(sys.stdin)
model, tokenizer, config = load(request["model"], adapter_path=request["adapter"] or None, return_config=True)
model.set_dtype(mx.float32)
answers = []
for prompt in request["prompts"]:
    new = []
    for token, _ in generate_step(mx.array(prompt), model, max_tokens=request["new_tokens"], sampler=lambda x: mx.argmax(x, axis=-1)):
        new.append(int(token))
        if new[-1] in request["stop"]:
            break
    answers.append({"new": new, "logits": model(mx.array([prompt]))[0].tolist()})
chats = [tokenizer.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True) for text in request["chats"]]
print(json.dumps({"answers": answers, "chats": chats}))
"""


def by_mlx(model, adapter, prompts, stop=(), chats=()):
    request = {"model": str(model), "adapter": str(adapter), "prompts": prompts, "new_tokens": NEW_TOKENS, "stop": list(stop), "chats": chats}
    done = subprocess.run([os.environ["MLX_PYTHON"], "-c", MLX], input=json.dumps(request), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def as_mlx_reads_it(model_dir):
    """mlx-lm takes rope_theta and rope_scaling from the top of config.json, where transformers 5 no longer has them."""
    path = model_dir / "config.json"
    config = json.loads(path.read_text())
    rope = config.get("rope_parameters") or {}
    if "full_attention" in rope:
        config["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        config["sliding_window_pattern"] = config["layer_types"].index("full_attention") + 1 if "full_attention" in config["layer_types"] else len(config["layer_types"]) + 1
        rope = rope["full_attention"]
    config.setdefault("rope_theta", rope.get("rope_theta", 10000.0))
    if rope.get("rope_type", "default") != "default":
        config.setdefault("rope_scaling", rope)
    path.write_text(json.dumps(config))


def expected_logits(case, adapter, prompt):
    model = oracle.load_peft(case.model_dir, case.adapter_dir, torch.float64) if adapter else oracle.load_base(case.model_dir, torch.float64)
    with torch.no_grad():
        return model(input_ids=torch.tensor([prompt]), use_cache=False).logits[0].numpy()


def difference(case, adapter, prompts, answers):
    """Of the logits, relative to their norm: the largest of all prompts."""
    return max(float(np.linalg.norm(np.array(answer["logits"]) - expected) / np.linalg.norm(expected))
               for prompt, answer in zip(prompts, answers, strict=True) for expected in [expected_logits(case, adapter, prompt)])


def try_case(case, folder):
    as_mlx_reads_it(case.model_dir)
    prompts_file = folder / "prompts.jsonl"
    prompts_file.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in PROMPTS))
    ids = [lora_train("tokenize", "--json", "--model", case.model_dir, "--text", text)[0]["input_ids"] for text in PROMPTS]
    if case.pre == "default":  # `generate` puts BOS in front, as Hugging Face does; `tokenize` does not
        ids = [[1, *tokens] for tokens in ids]
    engine.run("lora-train", "export", "--mlx", folder / "mlx", "--model", case.model_dir, "--adapter", case.adapter_dir)
    words, num_bad, answers = [], 0, {}
    for name, adapter in (("base", ""), ("adapter", folder / "mlx")):
        ours = answers[name] = by_lora_train(case, prompts_file, bool(adapter))
        stop = {line[-1] for line in ours if len(line) < NEW_TOKENS}
        said = by_mlx(case.model_dir, adapter, ids, stop)["answers"]
        gap = difference(case, bool(adapter), ids, said)
        if name == "base" and gap > TOLERANCE:
            return f"mlx-lm computes the base otherwise: logits differ by {gap:.1e}", None
        same, ties = compare(case, bool(adapter), [{"ids": tokens} for tokens in ids], ours, [answer["new"] for answer in said])
        num_bad += same + ties < len(ids) or gap > TOLERANCE
        words.append(f"{name} {same}/{len(ids)}" + (f" + {ties} ties" if ties else "") + f" logits {gap:.0e}")
    config = json.loads((folder / "mlx/adapter_config.json").read_text())
    keys = config["lora_parameters"]["keys"]
    changed = sum(one != other for one, other in zip(answers["base"], answers["adapter"], strict=True))
    return (f"{', '.join(words)} (the adapter changes {changed}; scale {config['lora_parameters']['scale']:.4g}, "
            f"{len(keys)} {'paths' if keys[0].startswith('model.') else 'keys'} in the last {config['num_layers']} layers)", num_bad == 0)


def try_trained(folder):
    """Questions to tiny-math before and after 15 steps of training."""
    example = engine.ROOT / "examples/tiny-math"
    model = example / "model"
    engine.run("lora-train", "train", "--model", model, "--train-data", example / "train.jsonl", "--output-dir", folder / "run", "device=cpu",
               "precision=fp32", "max_steps=15", "global_batch_size=4", "micro_batch_size=1", "max_seq_len=256", "learning_rate=5e-3",
               "use_rslora=true", "report_to=none")
    engine.run("lora-train", "export", "--mlx", folder / "mlx", "--adapter", folder / "run")
    rows = [json.loads(line)["messages"] for line in (example / "heldout.jsonl").read_text().splitlines()[:12]]
    questions, file = [row[0]["content"] for row in rows], folder / "questions.jsonl"
    file.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in questions))
    counts, answers = {}, {}
    chats = by_mlx(model, "", [], chats=questions)["chats"]
    for name, more, adapter in (("base", (), ""), ("adapter", ("--adapter", folder / "run"), folder / "mlx")):
        answers[name] = [line["completion_ids"] for line in lora_train(
            "generate", "--json", "--model", model, *more, "--prompts", file, "--max-new-tokens", NEW_TOKENS, "--set", "precision=fp32",
            "--set", "device=cpu")]
        stop = {line[-1] for line in answers[name] if len(line) < NEW_TOKENS}
        said = by_mlx(model, adapter, chats, stop)["answers"]
        counts[name] = sum(one == other["new"] for one, other in zip(answers[name], said, strict=True))
    changed = sum(one != other for one, other in zip(answers["base"], answers["adapter"], strict=True))
    return (f"base {counts['base']}/{len(questions)}, adapter {counts['adapter']}/{len(questions)} (the adapter changes {changed})",
            min(counts.values()) == len(questions))


def main():
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    warnings.simplefilter("ignore", RuntimeWarning)  # of PEFT: patterns that match nothing
    failed = 0
    print(subprocess.check_output([os.environ["MLX_PYTHON"], "-c", "from importlib.metadata import version\nprint('mlx-lm', version('mlx-lm'), 'mlx', "
                                   "version('mlx'), 'on the CPU')"], text=True), end="", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        words, is_equal = try_trained(Path(folder))
    failed += not is_equal
    print(f"   {'ok    ' if is_equal else 'DIFFER'} {words} | examples/tiny-math through its chat template, rsLoRA", flush=True)
    for number, lora in [(number, {}) for number in range(int(sys.argv[1]) if len(sys.argv) > 1 else 18)] + SPECIAL:
        with tempfile.TemporaryDirectory() as folder:
            case = gguf_case.make_case(number, Path(folder) / "case", file_dtype="F32", gain=2, tied=number % 4 == 0, **lora)
            words, is_equal = try_case(case, Path(folder))
        failed += is_equal is False
        print(f"{number:2} {'other ' if is_equal is None else 'ok    ' if is_equal else 'DIFFER'} {words} | {case.description}", flush=True)
    print(f"{failed} cases with differences")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
