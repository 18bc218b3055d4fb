#!/usr/bin/env python3
"""The budget of a training step, class by class, as a table for docs/performance.md: bytes and bound as `lora-train bench --count`
counts them, and the time that each class may take. Nothing in it is measured, unless --rates names measured rates.

Usage: bench/step_budget.py [--shape NAME] [--goal TOKENS_PER_S] [--rates FILE] [key=value ...]
The range is the bound times the factors below, what we expect of kernels at these rates; the budget is the middle of the range.
Exit code 1 if the budget is over the goal.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(os.environ.get("LORA_TRAIN_BIN", ROOT / "build/dev/bin"))
# Time / bound, least and most. GEMMs: the rate is theirs, adapter columns may cost up to 3%. Attention: the rate is that of long
# rows. Streaming kernels reach 80 to 95% of the copy rate; kernels that also reduce or gather, less; small ones are mostly
# latency. So is the gated delta rule: between FlashQLA's times and FLA's (docs/gpu_owed.md). Its convolution and
# norm are streaming kernels.
FACTORS = {"gemm": (1.00, 1.03), "attention": (1.00, 1.08), "norm": (1.05, 1.25), "rope": (1.05, 1.25),
           "swiglu": (1.05, 1.25), "lora": (1.05, 1.35), "loss": (1.10, 1.40), "embedding": (1.00, 2.00),
           "optimizer": (1.00, 2.00), "decode": (1.05, 1.25), "copy": (1.00, 2.00), "gated_delta": (2.3, 3.8)}
GAP_US = (0.3, 1.0)  # between two kernels of a CUDA graph


def rows_of(found):
    """(class, MB per token, GFLOP per token, bound ms, least ms, most ms)"""
    tokens = found["tokens"]
    for work in found["classes"]:
        least, most = FACTORS[work["name"]]
        bound = work["bound_ms"]
        yield (work["name"], (work["bytes_read"] + work["bytes_written"]) / tokens / 1e6, work["flops"] / tokens / 1e9, bound,
               least * bound, most * bound)
    least, most = (found["launches"] * gap / 1e3 for gap in GAP_US)
    yield ("between kernels", 0.0, 0.0, 0.0, least, most)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="qwen2.5-7b")
    parser.add_argument("--goal", type=float, default=21000)
    parser.add_argument("--rates")
    parser.add_argument("keys", nargs="*")
    args = parser.parse_args()
    rates = ["--rates", args.rates] if args.rates else []
    command = [str(BIN / "lora-train"), "bench", "--shape", args.shape, "--count", "--json", *rates, *args.keys]
    found = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout)
    goal_ms = 1e3 * found["tokens"] / args.goal
    rows = list(rows_of(found))
    total = ["all", *(sum(row[i] for row in rows) for i in range(1, 6))]
    print(f"| Class, {args.shape}, {found['tokens']} tokens, rates {found['rates']['source']} | MB/token | GFLOP/token | bound, ms "
          "| expected, ms | budget, ms |")
    print("|---|---|---|---|---|---|")
    for name, mega, giga, bound, least, most in [*rows, total]:
        print(f"| {name} | {mega:.2f} | {giga:.2f} | {bound:.1f} | {least:.1f} to {most:.1f} | {(least + most) / 2:.1f} |")
    budget = (total[4] + total[5]) / 2
    print(f"\nGoal: {args.goal:.0f} tokens/s, {goal_ms:.1f} ms; the budget is {'below' if budget <= goal_ms else 'OVER'} it.")
    sys.exit(budget > goal_ms)


if __name__ == "__main__":
    main()
