"""Runs exported GGUF files in llama.cpp itself: the same prompt tokens and the same greedy tokens as `generate` in fp32, for the base, the
merged model, and the base with the adapter as GGUF LoRA. Random models of every family; and examples/tiny-math, trained and asked through
the chat template in the file, also in F16, BF16 and Q8_0, whose rounding may change an answer; and published tokenizers on text in many languages.

    python -m venv /tmp/llama && /tmp/llama/bin/pip install --no-binary llama-cpp-python llama-cpp-python==0.3.36    # compiles llama.cpp
    LORA_TRAIN_BIN=build/release/bin LLAMA_PYTHON=/tmp/llama/bin/python .deps/venv/bin/python tests/parity/try_llama_cpp.py [CASES]

Prints a line per case; exit 1 if a token differs that is not a tie. tests/batteries/results/llama_cpp.txt has what it printed.
"""

import json
import os
import subprocess
import sys
import tempfile
import unicodedata
from pathlib import Path

import torch
from transformers.utils import logging

import engine
import gguf_case
import oracle

PROMPTS = ["The quick brown fox", "Where the river ends, there", "It's 12345 o'clock\n\n and  they'll sing!", "ünïcödé 東京 🚀",
           "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"]
NEW_TOKENS = 24
TIE = 1e-4  # of the largest logit: two tokens closer than this in fp64 are a tie; these models have weights that amplify rounding

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
    read = llm.tokenize(prompt["text"].encode(), add_bos=True, special=True)
    llm.reset()
    new = []
    if not prompt["ids"]:
        answers.append({"read": read})
        continue
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


def gap(case, adapter, prompt, one, other):
    """Where the answers part: how far apart the two tokens are in fp64, as a share of the largest logit."""
    at = next(i for i, (a, b) in enumerate(zip(one, other)) if a != b)
    model = oracle.load_peft(case.model_dir, case.adapter_dir, torch.float64) if adapter else oracle.load_base(case.model_dir, torch.float64)
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([prompt + one[:at]]), use_cache=False).logits[0, -1]
    return float((logits[one[at]] - logits[other[at]]).abs() / logits.abs().max())


def compare(case, adapter, prompts, ours, theirs):
    """(answers that are equal, answers that part where two tokens are as likely as fp32 can tell)."""
    num_ties = 0
    for prompt, one, other in zip(prompts, ours, theirs, strict=True):
        num_ties += one != other and gap(case, adapter, prompt["ids"], one, other) < TIE
    return same(ours, theirs), num_ties


def try_case(case, folder):
    """The words of a line of the table, and whether all is equal."""
    prompts_file = folder / "prompts.jsonl"
    prompts_file.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in PROMPTS))
    ids = [lora_train("tokenize", "--json", "--model", case.model_dir, "--text", text)[0]["input_ids"] for text in PROMPTS]
    if case.pre == "default":  # `generate` puts BOS in front, as Hugging Face does; `tokenize` does not
        ids = [[1, *tokens] for tokens in ids]
    prompts = [{"text": text, "ids": tokens} for text, tokens in zip(PROMPTS, ids, strict=True)]
    files = {"base": ("--type", "f32"), "merged": ("--adapter", case.adapter_dir, "--merge", "--type", "f32"),
             "lora": ("--adapter", case.adapter_dir)}
    for name, flags in files.items():
        engine.run("lora-train", "export", "--gguf", folder / f"{name}.gguf", "--model", case.model_dir, *flags)
    base, adapted = (by_lora_train(case, prompts_file, adapter) for adapter in (False, True))
    said = {name: by_llama(folder / ("merged.gguf" if name == "merged" else "base.gguf"), folder / "lora.gguf" if name == "lora" else "",
                           prompts) for name in files}
    counts, num_ties = {}, 0
    for name in files:
        theirs = [answer["new"] for answer in said[name]["answers"]]
        counts[name], ties = compare(case, name != "base", prompts, base if name == "base" else adapted, theirs)
        num_ties += ties
    counts["prompts"] = same([answer["read"] for answer in said["base"]["answers"]], ids)
    num_tokens = sum(map(len, base + adapted))
    words = " ".join(f"{name} {count}/{len(PROMPTS)}" for name, count in counts.items())
    ties = f", {num_ties} ties" if num_ties else ""
    return (f"{words} ({num_tokens} tokens, the adapter changes {len(PROMPTS) - same(base, adapted)}{ties})",
            sum(counts.values()) + num_ties == len(PROMPTS) * len(counts))


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


def try_tokenizers(folder):
    """Published tokenizers: (a line for each, whether all ids are equal but for texts that are not NFC, to which llama.cpp does not normalise)."""
    texts = [line for line in (gguf_case.DATA / "text/multilingual.txt").read_text().splitlines() if line][:400]
    (folder / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    lines, all_equal = [], True
    for name, rows, file in [("qwen2.5", 151936, "tokenizer.json"), ("qwen3", 151936, "tokenizer.json"), ("mistral/v1", 32000, "tokenizer.json"),
                             ("mistral/v1", 32000, "tokenizer.model"), ("mistral/v3", 32768, "tokenizer.json"), ("mistral/v3", 32768, "tokenizer.model")]:
        model = gguf_case.untrained(folder / f"tokenizer-{len(lines)}", gguf_case.DATA / name, file, rows)
        engine.run("lora-train", "export", "--gguf", folder / "tokens.gguf", "--model", model, "--type", "q8_0", "--overwrite")
        ours = [line["input_ids"] for line in lora_train("tokenize", "--json", "--model", model, "--jsonl", folder / "texts.jsonl")]
        theirs = [answer["read"] for answer in by_llama(folder / "tokens.gguf", "", [{"text": text, "ids": []} for text in texts])["answers"]]
        bos = [1] if "mistral" in name else []
        differing = [text for text, one, other in zip(texts, ours, theirs, strict=True) if bos + one != other]
        num_not_nfc = sum(unicodedata.normalize("NFC", text) != text for text in differing)
        all_equal = all_equal and num_not_nfc == len(differing)
        lines.append(f"tokenizer {name}/{file}: {len(texts) - len(differing)} of {len(texts)} texts have the same ids"
                     + (f"; {num_not_nfc} of the others are not NFC" if differing else ""))
    return lines, all_equal


def main():
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        words, is_equal = try_trained(Path(folder))
    failed += not is_equal
    print(f"   {'ok    ' if is_equal else 'DIFFER'} {words} | examples/tiny-math through its chat template", flush=True)
    for number in range(int(sys.argv[1]) if len(sys.argv) > 1 else 12):
        with tempfile.TemporaryDirectory() as folder:
            case = gguf_case.make_case(number, Path(folder) / "case", file_dtype="F32", gain=2, tied=number % 4 == 0)
            words, is_equal = try_case(case, Path(folder))
        failed += not is_equal
        print(f"{number:2} {'ok    ' if is_equal else 'DIFFER'} {words} | {case.description}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        lines, is_equal = try_tokenizers(Path(folder))
    failed += not is_equal
    print(*lines, sep="\n")
    print(f"{failed} cases with differences")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
