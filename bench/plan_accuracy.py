#!/usr/bin/env python3
"""Compares what `plan --gpu cpu` says with what runs on this CPU need and take: peak memory of 12 profiles, time of 6.

Memory: each profile trains three steps; the largest resident set is summary.json's peak_host_memory_gib. Limit: 3%.
Time: `bench --measure-rates` measures the rates of this CPU once for each precision (kept in the user's cache; --measure measures them
again). Each of six profiles trains in --rounds rounds, all profiles one after the other in each round; the time of a step is the median
over the steps after the first two, then over rounds. A profile's time is planned with `--calibrate` on the runs of the five others.
Limit: 15%. Other work on the machine falls on measured times: the load average at the start and the end is written down. With --cpu-time
the runs have one thread, and the time of a step is the CPU time of a run with more steps less that of one with fewer; calibration
is then done here, as `plan` does it: by the median of measured / planned of the others.

Usage: bench/plan_accuracy.py [--bin build/ci/bin] [--only memory|time] [--rounds 3] [--steps 8] [--cpu-time] [--measure]
Writes bench/results/<date>-plan-accuracy-<cpu>.txt. Models and runs go to build/bench/plan_accuracy.
"""

import argparse
import datetime
import json
import os
import random
import re
import resource
import shutil
import statistics
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build/bench/plan_accuracy"
SKIPPED_STEPS = 2
# Hidden, MLP, layers, heads, kv heads, vocabulary.
SHAPES = {"10m": (256, 1024, 6, 4, 2, 8192), "30m": (448, 1792, 8, 7, 7, 12288), "60m": (640, 2048, 10, 10, 2, 24576),
          "110m": (768, 2304, 12, 12, 4, 32768), "150m": (896, 3584, 12, 14, 2, 32768)}
FULL = {"adapter": "none", "learning_rate": 1e-5}
# Name: shape, precision, tokens of a row, other keys.
MEMORY = {
    "10m fp32": ("10m", "fp32", 384, {}),
    "30m fp32, packed": ("30m", "fp32", 90, {"packing": True, "max_seq_len": 768}),
    "60m fp32": ("60m", "fp32", 512, {}),
    "110m fp32, rank 64": ("110m", "fp32", 256, {"lora_r": 64}),
    "150m bf16": ("150m", "bf16", 512, {}),
    "150m bf16, full recomputation": ("150m", "bf16", 1024, {"gradient_checkpointing": "full"}),
    "110m nf4": ("110m", "bf16", 512, {"base_precision": "nf4"}),
    "60m int8, decoded when used": ("60m", "bf16", 768, {"base_precision": "int8", "decoded_layers": 0}),
    "30m fp32, full fine-tuning": ("30m", "fp32", 256, FULL),
    "60m bf16, full fine-tuning, adamw_8bit": ("60m", "bf16", 512, FULL | {"optim": "adamw_8bit"}),
    "10m fp32, rows of 2048": ("10m", "fp32", 2048, {}),
    "60m bf16, 4 rows, adamw_8bit": ("60m", "bf16", 512, {"micro_batch_size": 4, "global_batch_size": 4, "optim": "adamw_8bit"}),
}
TIME = ["10m fp32", "60m fp32", "110m fp32, rank 64", "10m fp32, rows of 2048", "30m fp32, full fine-tuning", "30m fp32, packed"]


def run(program, *arguments):
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{program} {' '.join(map(str, arguments))}: {done.stderr[-2000:]}")
    return done.stdout


def make_model(program, shape, dtype):
    folder = FOLDER / f"model-{shape}-{dtype}"
    if not (folder / "model.safetensors").exists():
        hidden, mlp, layers, heads, kv_heads, vocabulary = SHAPES[shape]
        config = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": hidden, "intermediate_size": mlp,
                  "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
                  "vocab_size": vocabulary, "max_position_embeddings": 32768, "rope_theta": 1e6, "rms_norm_eps": 1e-6,
                  "hidden_act": "silu", "tie_word_embeddings": True}
        file = FOLDER / f"config-{shape}.json"
        file.write_text(json.dumps(config))
        run(program, "init-model", "--config", file, "--output-dir", folder, "--dtype", dtype, "--overwrite")
    return folder


def make_rows(shape, length):
    file = FOLDER / f"rows-{shape}-{length}.jsonl"
    if not file.exists():
        rng = random.Random(1)
        rows = [[rng.randrange(SHAPES[shape][5]) for _ in range(length)] for _ in range(max(64, 32768 // length))]
        file.write_text("".join(json.dumps({"input_ids": ids, "labels": ids}) + "\n" for ids in rows))
    return file


def make_profile(program, name, steps):
    shape, precision, length, keys = MEMORY[name]
    slug = re.sub(r"[^a-z0-9]+", "-", name)
    profile = {"model": str(make_model(program, shape, precision)), "device": "cpu", "precision": precision,
               "datasets": [{"path": str(make_rows(shape, length)), "type": "pretokenized"}], "base_precision": precision,
               "max_seq_len": length, "packing": False, "micro_batch_size": 2, "global_batch_size": 2, "max_steps": steps,
               "report_to": "none", "output_dir": str(FOLDER / f"runs-{slug}" / "run")} | keys
    file = FOLDER / f"{slug}.json"
    file.write_text(json.dumps(profile))
    return file


def train(program, profile, output_dir):
    summary = json.loads(run(program, "train", "--profile", profile, "--json", "--quiet", "--overwrite", "--output-dir",
                             output_dir).splitlines()[-1])
    lines = [json.loads(line) for line in (output_dir / "metrics.jsonl").read_text().splitlines()]
    times = [line["step_ms"] / 1e3 for line in lines if line["event"] == "train"][SKIPPED_STEPS:]
    return summary["peak_host_memory_gib"], statistics.median(times)


def plan(program, profile, runs=()):
    calibration = [argument for folder in runs for argument in ("--calibrate", folder)]
    return json.loads(run(program, "plan", "--json", "--gpu", "cpu", "--profile", profile, *calibration).splitlines()[0])


def compare_memory(program, write):
    write(f"\nPeak memory (MiB), limit 3%\n{'profile':42} {'planned':>9} {'measured':>9} {'off by':>8}")
    worst = 0
    for name in MEMORY:
        profile = make_profile(program, name, steps=3)
        planned = plan(program, profile)["memory_gib"]["total"]
        measured, _ = train(program, profile, FOLDER / "runs-memory")
        error = planned / measured - 1
        worst = max(worst, abs(error))
        write(f"{name:42} {planned * 1024:9.1f} {measured * 1024:9.1f} {error:+8.1%}")
    write(f"largest difference: {worst:.1%}")


def measure_rates(program, names, is_wanted):
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lora-train"
    for precision in sorted({MEMORY[name][1] for name in names}):
        if is_wanted or not (cache / f"rates-cpu-{precision}.json").exists():
            run(program, "bench", "--measure-rates", "--shape", "qwen2.5-0.5b", "device=cpu", "max_seq_len=2048", "micro_batch_size=1",
                f"precision={precision}")


def compare_time(program, rounds, steps, write):
    times, folders = {name: [] for name in TIME}, {name: [] for name in TIME}
    for number in range(rounds):
        for name in TIME:
            profile = make_profile(program, name, steps)
            folder = Path(json.loads(profile.read_text())["output_dir"]).parent
            if number == 0:
                shutil.rmtree(folder, ignore_errors=True)
            folders[name].append(folder / f"run-{number}")
            times[name].append(train(program, profile, folders[name][-1])[1])
    write(f"\nTime of a step (ms), limit 15%; calibrated by the {rounds} runs of each of the other profiles\n"
          f"{'profile':42} {'from rates':>10} {'calibrated':>10} {'measured':>9} {'least':>8} {'most':>8} {'off by':>8}")
    worst = 0
    for name in TIME:
        profile = make_profile(program, name, steps)
        others = [folder for other in TIME if other != name for folder in folders[other]]
        rates, calibrated = plan(program, profile)["step_s"], plan(program, profile, others)["step_s"]
        measured = statistics.median(times[name])
        error = calibrated / measured - 1
        worst = max(worst, abs(error))
        write(f"{name:42} {rates * 1e3:10.0f} {calibrated * 1e3:10.0f} {measured * 1e3:9.0f} {min(times[name]) * 1e3:8.0f} "
              f"{max(times[name]) * 1e3:8.0f} {error:+8.1%}")
    write(f"largest difference: {worst:.1%}")


def cpu_seconds(program, profile, steps):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run(program, "train", "--profile", profile, "--json", "--quiet", "--overwrite", "--output-dir", FOLDER / "runs-cpu-time",
        f"max_steps={steps}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def compare_cpu_time(program, rounds, steps, write):
    measured = {}
    for name in TIME:
        profile = make_profile(program, name, steps)
        few = SKIPPED_STEPS
        measured[name] = [(cpu_seconds(program, profile, steps) - cpu_seconds(program, profile, few)) / (steps - few)
                          for _ in range(rounds)]
    planned = {name: plan(program, make_profile(program, name, steps))["step_s"] for name in TIME}
    write(f"\nCPU time of a step on one thread (ms), limit 15%; calibrated by the median of the other profiles\n"
          f"{'profile':42} {'from rates':>10} {'calibrated':>10} {'measured':>9} {'least':>8} {'most':>8} {'off by':>8}")
    worst = 0
    for name in TIME:
        times = measured[name]
        factor = statistics.median(statistics.median(measured[other]) / planned[other] for other in TIME if other != name)
        error = factor * planned[name] / statistics.median(times) - 1
        worst = max(worst, abs(error))
        write(f"{name:42} {planned[name] * 1e3:10.0f} {factor * planned[name] * 1e3:10.0f} {statistics.median(times) * 1e3:9.0f} "
              f"{min(times) * 1e3:8.0f} {max(times) * 1e3:8.0f} {error:+8.1%}")
    write(f"largest difference: {worst:.1%}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=Path, default=ROOT / "build/ci/bin")
    parser.add_argument("--only", choices=["memory", "time"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--measure", action="store_true")
    arguments = parser.parse_args()
    program = arguments.bin.resolve() / "lora-train"
    FOLDER.mkdir(parents=True, exist_ok=True)
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())[1]
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    lines = []

    def write(line):
        print(line, flush=True)
        lines.append(line)

    write(f"bench/plan_accuracy.py, commit {commit}, {datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC, {cpu}, {os.cpu_count()} cores")
    write(f"load average at the start: {os.getloadavg()[0]:.1f}")
    if arguments.cpu_time:
        os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", XDG_CACHE_HOME=str(FOLDER / "cache-of-one-thread"))
    measure_rates(program, TIME if arguments.only == "time" else MEMORY, arguments.measure)
    if arguments.only != "time":
        compare_memory(program, write)
    if arguments.only != "memory":
        (compare_cpu_time if arguments.cpu_time else compare_time)(program, arguments.rounds, arguments.steps, write)
    write(f"\nload average at the end: {os.getloadavg()[0]:.1f}")
    name = re.sub(r"[^a-z0-9]+", "-", cpu.lower()).strip("-")[:24].strip("-")
    part = f"-{arguments.only}" if arguments.only else ""
    part += "-cpu-time" if arguments.cpu_time else ""
    (ROOT / f"bench/results/{datetime.date.today()}-plan-accuracy{part}-{name}.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
