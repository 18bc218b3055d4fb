#!/usr/bin/env python3
"""Measures training on one thread or several, alone and beside a busy core, with several ways in which OpenMP's threads can wait.

Trains examples/tiny-math's model and a random 0.1 B Qwen2 shape (rows of 128 tokens), one process after the other: every
round runs each way of waiting once for each company, in an order that is shuffled anew, so that what else the machine does
falls on all of them alike. tokens/s is the mean over the steps after the first two; the table has the median over rounds and,
in brackets, the least and the most.

  way      program: as lora-train sets it; libgomp: its own default (GOMP_SPINCOUNT=300000); passive: OMP_WAIT_POLICY;
           a number: GOMP_SPINCOUNT
  company  idle: nothing of ours; free: one `yes` that may run on either core; pinned: one `yes` on the first core

Usage: bench/busy_core.py [--bin build/release/bin] [--rounds 5] [--models tiny,0.1b] [--ways program,libgomp,passive,1000,...]
       [--companies idle,free,pinned] [--threads 1,2] [--log FILE]
Writes bench/results/<date>-busy-core-<cpu>.txt (--log names another file). Model and rows go to build/bench.
"""

import argparse
import datetime
import itertools
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SKIPPED_STEPS = 2
STEPS = {"tiny": 60, "0.1b": 6}
CONFIG = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "vocab_size": 151936, "hidden_size": 512,
          "num_hidden_layers": 12, "num_attention_heads": 8, "num_key_value_heads": 2, "intermediate_size": 2816,
          "max_position_embeddings": 32768, "rope_theta": 1e6, "rms_norm_eps": 1e-6, "hidden_act": "silu",
          "tie_word_embeddings": True, "torch_dtype": "float32"}


def make_profile(name, program):
    if name == "tiny":
        return ["--profile", ROOT / "examples/tiny-math/profile.yaml", "--set", "eval_steps=off", "--set", "eval_on_start=false",
                "--set", "eval_datasets=[]"]
    folder = ROOT / "build/bench/busy_core"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    if not (folder / "model/model.safetensors").exists():
        subprocess.run([program, "init-model", "--config", folder / "config.json", "--output-dir", folder / "model", "--dtype",
                        "fp32", "--overwrite"], check=True, capture_output=True)
    rng = random.Random(1)
    rows = [[rng.randrange(CONFIG["vocab_size"]) for _ in range(128)] for _ in range(8)]
    (folder / "rows.jsonl").write_text("".join(json.dumps({"input_ids": ids, "labels": ids}) + "\n" for ids in rows))
    (folder / "profile.json").write_text(json.dumps({
        "model": str(folder / "model"), "datasets": [{"path": str(folder / "rows.jsonl"), "type": "pretokenized"}], "device": "cpu",
        "precision": "fp32", "micro_batch_size": 1, "global_batch_size": 1, "packing": False, "max_seq_len": 128,
        "num_epochs": 1000, "report_to": "none"}))
    return ["--profile", folder / "profile.json"]


def environment_of(way, threads):
    plain = {key: value for key, value in os.environ.items() if key not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
    plain.update(OMP_NUM_THREADS=threads, MKL_NUM_THREADS=threads)
    if way == "passive":
        plain["OMP_WAIT_POLICY"] = "passive"
    elif way != "program":
        plain["GOMP_SPINCOUNT"] = "300000" if way == "libgomp" else way
    return plain


def start_company(company):
    if company == "idle":
        return None
    pin = ["taskset", "-c", "0"] if company == "pinned" else []
    return subprocess.Popen([*pin, "yes"], stdout=subprocess.DEVNULL)


def measure(program, profile, num_steps, way, company, threads):
    neighbour = start_company(company)
    try:
        with tempfile.TemporaryDirectory() as folder:
            settings = ["--set", f"max_steps={num_steps}", "--set", "logging_steps=1", "--set", f"output_dir={folder}/run"]
            subprocess.run([program, "train", *profile, *settings], check=True, capture_output=True, env=environment_of(way, threads))
            lines = [json.loads(line) for line in (Path(folder) / "run/metrics.jsonl").read_text().splitlines()]
    finally:
        if neighbour:
            neighbour.kill()
            neighbour.wait()
    steps = [line for line in lines if line["event"] == "train"][SKIPPED_STEPS:]
    return sum(line["tokens_per_s"] * line["step_ms"] for line in steps) / sum(line["step_ms"] for line in steps)


def machine():
    text = Path("/proc/cpuinfo").read_text()
    name, family, model = (re.search(rf"{key}\s*:\s*(.*)", text)[1] for key in ("model name", "cpu family", "model"))
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, cwd=ROOT).stdout.strip()
    slug = "-".join(re.findall(r"[a-z0-9]+", name.lower()))
    return slug, (f"date {datetime.datetime.now():%Y-%m-%d %H:%M}, commit {commit}, command: {' '.join(sys.argv)}\n"
                  f"cpu {name} (family {family}, model {model}), {os.cpu_count()} cores, Linux {os.uname().release}; load before "
                  f"{os.getloadavg()[0]:.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=Path, default=ROOT / "build/release/bin")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--models", default="tiny,0.1b")
    parser.add_argument("--ways", default="program,libgomp,passive,1000,10000,100000")
    parser.add_argument("--companies", default="idle,free,pinned")
    parser.add_argument("--threads", default="2")
    parser.add_argument("--log", type=Path)
    arguments = parser.parse_args()
    slug, head = machine()
    program = (arguments.bin / "lora-train").resolve()
    path = arguments.log or ROOT / f"bench/results/{datetime.date.today()}-busy-core-{slug}.txt"
    with path.open("w") as log:
        def say(text):
            print(text, flush=True)
            print(text, file=log, flush=True)
        say(head)
        for name in arguments.models.split(","):
            profile = make_profile(name, program)
            cases = list(itertools.product(*(text.split(",") for text in (arguments.ways, arguments.companies, arguments.threads))))
            rates = {case: [] for case in cases}
            for number in range(1, arguments.rounds + 1):
                for case in random.Random(number).sample(cases, len(cases)):
                    rates[case].append(measure(program, profile, STEPS[name], *case))
                    say(f"{name} round {number} load {os.getloadavg()[0]:.1f}: {' '.join(case)} {rates[case][-1]:.0f} tokens/s")
            say(f"\n{name}, tokens/s: median (least to most) of {arguments.rounds} rounds")
            for (way, company, threads), values in rates.items():
                say(f"  {way:8} {company:7} {threads:>2} threads {statistics.median(values):7.0f} ({min(values):.0f} to {max(values):.0f})")


if __name__ == "__main__":
    main()
