#!/usr/bin/env python3
"""What two CPU ranks cost: the part of a step in which the slowest rank does not compute (the sum of gradients, and waiting), and
the step beside that of one rank with half of the rows.

Usage, in the root of the repository: bench/ranks_overhead.py --bin build/ci/bin [--steps N]
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile
from pathlib import Path


def train(args, folder, name, num_ranks, rows):
    command = [args.bin / "lora-train", "train", "--model", "examples/tiny-math/model", "--train-data", "examples/tiny-math/train.jsonl",
               "--output-dir", folder / name, "--nproc", str(num_ranks), "device=cpu", "precision=fp32", "base_precision=fp32",
               "max_seq_len=256", "packing=true", "micro_batch_size=8", f"global_batch_size={rows}", "lora_r=16", "save_steps=off",
               "lr_scheduler_type=constant", f"max_steps={args.steps}"]
    subprocess.run(list(map(str, command)), check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=dict(os.environ, OMP_NUM_THREADS="1"))
    lines = [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["event"] == "train"][2:]  # after the first two


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        one, two = train(args, folder, "one", 1, 32), train(args, folder, "two", 2, 64)
    alone = statistics.median(step["step_ms"] for step in one)
    together = statistics.median(step["step_ms"] for step in two)
    rest = statistics.median(step["step_ms"] - max(step["rank_compute_ms"]) for step in two)
    print(f"one rank, 32 rows of 256 tokens a step: {alone:.0f} ms")
    print(f"two ranks, 64 rows: {together:.0f} ms ({together / alone - 1:+.1%})")
    print(f"of it, the slowest rank does not compute: {rest:.0f} ms ({rest / together:.1%})")


if __name__ == "__main__":
    main()
