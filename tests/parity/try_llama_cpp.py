"""Runs exported GGUF files in llama.cpp itself: the same prompt tokens and the same greedy tokens as `generate` in fp32, for the base, the
merged model, and the base with the adapter as GGUF LoRA. Random models of every family; and examples/tiny-math, trained and asked through
the chat template in the file, also in F16, BF16 and Q8_0, whose rounding may change an answer.

    python -m venv /tmp/llama && /tmp/llama/bin/pip install --no-binary llama-cpp-python llama-cpp-python==0.3.36    # compiles llama.cpp
    LORA_TRAIN_BIN=build/release/bin LLAMA_PYTHON=/tmp/llama/bin/python .deps/venv/bin/python tests/parity/try_llama_cpp.py [CASES]

Prints a line per case; exit 1 if a token differs. llama_cpp_results.txt has what it printed.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

import engine
import gguf_case

PROMPTS = ["The quick brown fox", "Where the river ends, there", "It's 12345 o'clock\n\n and  they'll sing!", "ünïcödé 東京 🚀",
           "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"]
NEW_TOKENS = 24

# Runs under LLAMA_PYTHON: a model, an adapter or "", and prompts as token ids; prints what llama.cpp makes of each.
LLAMA = r"""
import json, sys
import llama_cpp
request = json.load(sys.stdin)
defaults = llama_cpp.llama_cpp.llama_model_default_params
def without_repacking():  # for AMX, which crashes on Q8_0 in some virtual machines, whoever wrote the file
    parameters = defaults()
    parameters.use_extra_bufts = False
    return parameters
llama_cpp.llama_cpp.llama_model_default_params = without_repacking
llm = llama_cpp.Llama(request["model"], lora_path=request["lora"] or None, n_ctx=0, n_threads=1, n_threads_batch=1, logits_all=False,
                      verbose=False, seed=1)
answers = []
for prompt in request["prompts"]:
    read = llm.tokenize(prompt["text"].encode(), add_bos=False, special=True)
    llm.reset()
    new = []
    for token in llm.generate(prompt["ids"], temp=0.0, top_k=1, repeat_penalty=1.0):
        new.append(token)
        if len(new) == request["new_tokens"] or llama_cpp.llama_vocab_is_eog(llama_cpp.llama_model_get_vocab(llm.model), token):
            break
    answers.append({"read": read, "new": new})
chats = [llm.create_chat_completion([{"role": "user", "content": text}], temperature=0.0, repeat_penalty=1.0, max_tokens=request["new_tokens"])
         for text in request["chats"]]
print(json.dumps({"answers": answers, "chats": [chat["choices"][0]["message"]["content"] for chat in chats], "eos": llm.token_eos(), "arch": llm.metadata["general.architecture"]}))
"""


def lora_train(*arguments):
    return [json.loads(line) for line in engine.run("lora-train", *arguments).splitlines()]


def by_llama(model, lora, prompts=(), chats=()):
    request = {"model": str(model), "lora": str(lora), "prompts": prompts, "chats": chats, "new_tokens": NEW_TOKENS}
    done = subprocess.run([os.environ["LLAMA_PYTHON"], "-c", LLAMA], input=json.dumps(request), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def by_lora_train(case, prompts_file, adapter):
    return [line["completion_ids"] for line in lora_train(
        "generate", "--json", "--raw", "--model", case.model_dir, *(("--adapter", case.adapter_dir) if adapter else ()),
        "--prompts", prompts_file, "--max-new-tokens", NEW_TOKENS, "--set", "precision=fp32", "--set", "base_precision=fp32",
        "--set", "device=cpu")]


def same(one, other):
    return sum(a == b for a, b in zip(one, other, strict=True))


def try_case(case, folder):
    """The words of a line of the table, and whether all is equal."""
    prompts_file = folder / "prompts.jsonl"
    prompts_file.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in PROMPTS))
    ids = [lora_train("tokenize", "--json", "--model", case.model_dir, "--text", text)[0]["input_ids"] for text in PROMPTS]
    prompts = [{"text": text, "ids": tokens} for text, tokens in zip(PROMPTS, ids, strict=True)]
    files = {"base": ("--type", "f32"), "merged": ("--adapter", case.adapter_dir, "--merge", "--type", "f32"),
             "lora": ("--adapter", case.adapter_dir)}
    for name, flags in files.items():
        engine.run("lora-train", "export", "--gguf", folder / f"{name}.gguf", "--model", case.model_dir, *flags)
    base, adapted = (by_lora_train(case, prompts_file, adapter) for adapter in (False, True))
    said = {name: by_llama(folder / ("merged.gguf" if name == "merged" else "base.gguf"), folder / "lora.gguf" if name == "lora" else "",
                           prompts) for name in files}
    counts = {name: same([answer["new"] for answer in said[name]["answers"]], base if name == "base" else adapted) for name in files}
    counts["prompts"] = same([answer["read"] for answer in said["base"]["answers"]], ids)
    num_tokens = sum(map(len, base + adapted))
    words = " ".join(f"{name} {count}/{len(PROMPTS)}" for name, count in counts.items())
    return f"{words} ({num_tokens} tokens, {same(base, adapted)} answers without effect of the adapter)", min(counts.values()) == len(PROMPTS)


def try_trained(folder):
    """Questions to tiny-math before and after 15 steps of training, as a server would ask them."""
    example = engine.ROOT / "examples/tiny-math"
    model, adapter = example / "model", folder / "run/adapter"
    engine.run("lora-train", "train", "--model", model, "--train-data", example / "train.jsonl", "--output-dir", folder / "run", "device=cpu",
               "precision=fp32", "max_steps=15", "global_batch_size=4", "micro_batch_size=1", "max_seq_len=256", "learning_rate=5e-3",
               "report_to=none")
    rows = [json.loads(line)["messages"] for line in (example / "heldout.jsonl").read_text().splitlines()[:12]]
    questions, file = [row[0]["content"] for row in rows], folder / "questions.jsonl"
    file.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in questions))
    with_adapter = ("--adapter", adapter)
    base, adapted = ([line["completion"] for line in lora_train(
        "generate", "--json", "--model", model, *more, "--prompts", file, "--max-new-tokens", NEW_TOKENS, "--set", "precision=fp32",
        "--set", "device=cpu")] for more in ((), with_adapter))
    engine.run("lora-train", "export", "--gguf", folder / "lora.gguf", *with_adapter)
    counts = {}
    for name, flags in {"base": ("--model", model), **{kind: (*with_adapter, "--merge") for kind in ("f32", "f16", "bf16", "q8_0")}}.items():
        engine.run("lora-train", "export", "--gguf", folder / f"{name}.gguf", *flags, "--type", "f32" if name == "base" else name)
        said = by_llama(folder / f"{name}.gguf", "", chats=questions)
        counts[name] = same(said["chats"], base if name == "base" else adapted)
    counts["lora"] = same(by_llama(folder / "base.gguf", folder / "lora.gguf", chats=questions)["chats"], adapted)
    words = " ".join(f"{'merged ' if name in ('f32', 'f16', 'bf16', 'q8_0') else ''}{name} {count}/{len(questions)}"
                     for name, count in counts.items())
    return f"{words} answers ({same(base, adapted)} without effect of the adapter)", min(
        counts[name] for name in ("base", "f32", "lora")) == len(questions)


def main():
    torch.set_num_threads(1)
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        words, is_equal = try_trained(Path(folder))
    failed += not is_equal
    print(f"   {'ok    ' if is_equal else 'DIFFER'} {words} | examples/tiny-math through its chat template", flush=True)
    for number in range(int(sys.argv[1]) if len(sys.argv) > 1 else 12):
        with tempfile.TemporaryDirectory() as folder:
            case = gguf_case.make_case(number, Path(folder) / "case", file_dtype="F32")
            words, is_equal = try_case(case, Path(folder))
        failed += not is_equal
        print(f"{number:2} {'ok    ' if is_equal else 'DIFFER'} {words} | {case.description}", flush=True)
    print(f"{failed} cases with differences")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
