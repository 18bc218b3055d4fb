#!/usr/bin/env python3
"""What a decoded token costs: lora-train's generator beside transformers' generate and beside reading the weights once.

Random weights of Qwen2.5-0.5B's sizes, stored in bf16 as published models are, greedy. lora-train (bench/decode_bench) and transformers run as child processes in turn,
with as many sequences at a time; after every token of ours the same process reads all bytes that a token needs with the same
threads. Per child: medians over its tokens, the least of them, and processor time of all threads, which neighbours on a busy
machine stretch less than the clock. ratio = step / read. The last lines are medians over the rounds, and how many times the
step of ours that of transformers takes: the median of the rounds and their range.

Usage: bench/decode_bench.py [--binary build/dev/bin/decode_bench] [--precisions fp32,bf16] [--rounds 3] [--tokens 24]
       [--prompt 128] [--threads 2] [--adapter] [--sequences 1,8] [--also-fp32-weights]
Writes bench/results/<date>-decode-<cpu>.txt (--log names another file). The model goes to build/bench.
"""

import argparse
import datetime
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHON = ROOT / ".deps/venv/bin/python"
SIZES = dict(vocab_size=151936, hidden_size=896, num_hidden_layers=24, num_attention_heads=14, num_key_value_heads=2,
             intermediate_size=4864, max_position_embeddings=32768, tie_word_embeddings=True)


def child_make(args):
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import Qwen2Config, Qwen2ForCausalLM
    torch.manual_seed(1)
    model = Qwen2ForCausalLM(Qwen2Config(**SIZES)).to(torch.bfloat16)
    model.save_pretrained(args.model)
    peft = get_peft_model(model, LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"))
    peft.save_pretrained(args.model + "-adapter")
    return {}


def child_hf(args):
    import torch
    from transformers import AutoModelForCausalLM, StoppingCriteria, StoppingCriteriaList
    torch.set_num_threads(args.threads)
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[args.precisions]
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=dtype, attn_implementation="sdpa").eval()
    ids = torch.tensor([[(t * 7919 + i * 104729) % SIZES["vocab_size"] for t in range(args.prompt)]
                        for i in range(int(args.sequences))])
    clock = []

    class Watch(StoppingCriteria):
        def __call__(self, input_ids, scores, **kwargs):
            clock.append((time.perf_counter(), time.process_time()))
            return torch.zeros(input_ids.shape[0], dtype=torch.bool)

    with torch.no_grad():
        model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=args.tokens, do_sample=False,
                       eos_token_id=None, pad_token_id=0, stopping_criteria=StoppingCriteriaList([Watch()]))
    wall, cpu = ([1e3 * (b[i] - a[i]) for a, b in zip(clock[1:], clock[2:])] for i in (0, 1))
    return {"step_ms": statistics.median(wall), "least_step_ms": min(wall), "step_cpu_ms": statistics.median(cpu)}


def child(args, kind, precision, sequences=1):
    command = [str(PYTHON), __file__, "--child", kind, "--model", args.model, "--precisions", precision, "--tokens",
               str(args.tokens), "--prompt", str(args.prompt), "--threads", str(args.threads), "--sequences", str(sequences)]
    return run(args, command)


def ours(args, precision, sequences, keep="bf16"):
    adapter = ["--adapter", args.model + "-adapter"] if args.adapter else []
    return run(args, [args.binary, args.model, precision, "--tokens", str(args.tokens), "--prompt", str(args.prompt),
                      "--sequences", str(sequences), "--keep", keep, *adapter])


def run(args, command):
    environment = dict(os.environ, OMP_NUM_THREADS=str(args.threads), MKL_NUM_THREADS=str(args.threads),
                       OMP_WAIT_POLICY="passive", HF_HUB_OFFLINE="1")
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def cpu_name():
    match = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return match[1].strip() if match else platform.machine()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--binary", default=str(ROOT / "build/dev/bin/decode_bench"))
    parser.add_argument("--precisions", default="fp32,bf16")
    parser.add_argument("--sequences", default="1")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--adapter", action="store_true", help="LoRA of rank 16 on all linears, ours only")
    parser.add_argument("--also-fp32-weights", action="store_true", help="ours with the model's bf16 weights widened to fp32 too")
    parser.add_argument("--model", default=str(ROOT / "build/bench/decode-0.5b"))
    parser.add_argument("--log")
    parser.add_argument("--child", choices=["make", "hf"])
    args = parser.parse_args()
    if args.child:
        print(json.dumps({"make": child_make, "hf": child_hf}[args.child](args)))
        return
    if not Path(args.model, "config.json").exists():
        child(args, "make", "bf16")
    slug = re.sub(r"[^a-z0-9]+", "-", cpu_name().lower()).strip("-")
    log = Path(args.log or ROOT / f"bench/results/{datetime.date.today()}-decode-{slug}.txt")

    def say(line):
        print(line, flush=True)
        with log.open("a") as file:
            file.write(line + "\n")

    commit = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    say(f"{datetime.datetime.now():%Y-%m-%d %H:%M} commit {commit} {cpu_name()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}: "
        f"{' '.join(['bench/decode_bench.py', *sys.argv[1:]])}")
    found = {}
    programs = {"lora-train": lambda precision, sequences: ours(args, precision, sequences),
                "transformers": lambda precision, sequences: child(args, "hf", precision, sequences)}
    if args.also_fp32_weights:
        programs["lora-train with fp32 weights"] = lambda precision, sequences: ours(args, precision, sequences, "fp32")
    for turn in range(args.rounds):
        for precision in args.precisions.split(","):
            for sequences in args.sequences.split(","):
                for name, measure in programs.items():
                    result = measure(precision, sequences)
                    found.setdefault((precision, sequences, name), []).append(result)
                    say(f"round {turn + 1} {precision} {name} {sequences}: {json.dumps(result)}")
    for (precision, sequences, name), results in found.items():
        middle = {key: statistics.median(result[key] for result in results) for key in results[0]}
        shown = [key for key in ("step_ms", "step_cpu_ms", "least_step_ms", "read_ms", "read_cpu_ms", "least_read_ms", "ratio",
                                 "cpu_ratio", "least_ratio", "read_gb_s") if key in middle]
        say(f"{precision} {name}, {sequences} at a time: " + ", ".join(f"{key} {middle[key]:.2f}" for key in shown))
    for precision, sequences in dict.fromkeys((precision, sequences) for precision, sequences, _ in found):
        pair = [found[precision, sequences, name] for name in ("lora-train", "transformers")]
        times = {key: [theirs[key] / our[key] for our, theirs in zip(*pair)] for key in ("step_ms", "step_cpu_ms")}
        say(f"{precision}, {sequences} at a time, transformers' time / ours: " +
            ", ".join(f"{key} {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})" for key, ratios in times.items()))
    say(f"load {os.getloadavg()[0]:.1f} at the end")


if __name__ == "__main__":
    main()
