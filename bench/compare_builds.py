#!/usr/bin/env python3
"""Two builds of lora-train in turn: a training step and a decoded token, so that a change of speed shows on any machine.

Each round runs every case with both builds, the order of the two alternating. A figure is the median of a run; a case's result
is the median, over the rounds, of new / old (below 1: the new build is faster), with the smallest and the largest.

Usage: bench/compare_builds.py --old DIR/bin/lora-train --new build/release/bin/lora-train [--rounds 5] [--steps 4] [--only bf16]
Writes bench/results/<date>-builds-<cpu>.txt (--log names another file). The model goes to build/bench.
"""

import argparse
import datetime
import json
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONFIG = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "vocab_size": 151936, "hidden_size": 896,
          "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2, "intermediate_size": 4864,
          "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "hidden_act": "silu",
          "tie_word_embeddings": True}
MODEL = ROOT / "build/bench/builds-0.5b"
# shape, precision, max_seq_len, micro_batch_size
STEPS = [("qwen2.5-0.5b", "fp32", 512, 1), ("qwen2.5-0.5b", "bf16", 512, 1), ("tiny-qwen2", "fp32", 512, 4),
         ("tiny-qwen2", "bf16", 512, 4)]
PRECISIONS = ["fp32", "bf16"]


def run(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}: exit {done.returncode}\n{done.stderr}")
    return done


def step_ms(binary, num_steps, shape, precision, length, rows):
    out = run(binary, "bench", "--shape", shape, "--steps", num_steps, "--warm-up", 2, "--json", "--quiet", "device=cpu",
              f"precision={precision}", f"max_seq_len={length}", f"micro_batch_size={rows}").stdout
    return json.loads(out.splitlines()[-1])["speed"]["step_ms"]


def token_ms(binary, precision):
    log = run(binary, "generate", "--set", f"model={MODEL}", "--set", "device=cpu", "--set", f"precision={precision}",
              "--raw", "--prompt", "What is 1 plus 2?", "--max-new-tokens", 64).stderr
    tokens, seconds = re.search(r"without the first of each answer:? (\d+) in ([\d.]+) s", log).groups()
    return 1000 * float(seconds) / int(tokens)


def make_model(binary):
    if (MODEL / "config.json").exists():
        return
    config = MODEL.parent / "builds-0.5b-config"
    config.mkdir(parents=True, exist_ok=True)
    (config / "config.json").write_text(json.dumps(CONFIG))
    run(binary, "init-model", "--config", config, "--tokenizer", ROOT / "examples/tiny-math/model", "--output-dir", MODEL)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", type=Path, required=True)
    parser.add_argument("--new", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--only", default="", help="cases whose name holds this text")
    parser.add_argument("--log", type=Path)
    args = parser.parse_args()
    make_model(args.new)
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())[1].strip()
    slug = re.sub(r"[^a-z0-9]+", "-", cpu.lower()).strip("-")
    log = args.log or ROOT / f"bench/results/{datetime.date.today()}-builds-{slug}.txt"

    def say(line):
        print(line, flush=True)
        with log.open("a") as file:
            file.write(line + "\n")

    versions = {name: run(binary, "--version").stdout.splitlines()[0] for name, binary in (("old", args.old), ("new", args.new))}
    say(f"{datetime.datetime.now():%Y-%m-%d %H:%M} {cpu}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}: "
        f"bench/compare_builds.py {' '.join(sys.argv[1:])}\nold: {versions['old']}\nnew: {versions['new']}")
    cases = {f"step {' '.join(map(str, case))}": (lambda binary, case=case: step_ms(binary, args.steps, *case)) for case in STEPS}
    cases |= {f"token 0.5b {p}": (lambda binary, p=p: token_ms(binary, p)) for p in PRECISIONS}
    cases = {name: measure for name, measure in cases.items() if args.only in name}
    ratios = {name: [] for name in cases}
    for turn in range(args.rounds):
        for name, measure in cases.items():
            order = [("old", args.old), ("new", args.new)][:: 1 if turn % 2 == 0 else -1]
            found = {which: measure(binary) for which, binary in order}
            ratios[name].append(found["new"] / found["old"])
            say(f"round {turn + 1} {name}: old {found['old']:.2f} ms, new {found['new']:.2f} ms, new / old {ratios[name][-1]:.3f}")
    for name, values in ratios.items():
        say(f"{name}: new / old {statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})")
    say(f"load {os.getloadavg()[0]:.1f} at the end")


main()
