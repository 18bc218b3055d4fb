#!/usr/bin/env python3
"""Runs bench/gpu_measure.py and bench/compare_hf_gpu.py as parts of gpu_check, and looks at whether they measured anything.

  pitch, gate_up    matrix products at real and rounded pitches; the two forms of gate|up's backward
  measure           everything else that bench/gpu_measure.py knows
  compare_equality  gradients and curves against transformers + PEFT
  compare_8, compare_2x4, compare_mix   speed beside transformers + PEFT

Usage: tests/gpu/measure.py CHECK --device cuda|cpu --work DIR [--out DIR] [--limit-s S]. The last line is `figure: ...`; exit
code 1 = failed, 77 = transformers or peft is missing.
"""

import json
import re
import subprocess
import sys
import time

from program import ROOT, checked, expect, measured, run_check

MEASURE = ("copy", "attention", "hf", "linears", "gemm")


def run_script(args, name, *arguments):
    """(exit code, output, the JSON that it wrote)."""
    file = args.work / "result.json"
    file.unlink(missing_ok=True)
    command = [sys.executable, ROOT / "bench" / name, "--device", args.device, "--limit-s",
               max(1, int(args.deadline - time.monotonic())), "--json", file, *arguments]
    done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                          timeout=max(1.0, args.deadline - time.monotonic()))
    print(done.stdout, flush=True)
    return done.returncode, done.stdout, json.loads(file.read_text()) if file.exists() else {}


def figure_of(output):
    figures = [line[len("figure: "):] for line in output.splitlines() if line.startswith("figure: ")]
    expect(figures, "it printed no figure")
    return figures[-1]


def run_measurements(args, kinds):
    """Every kind has measured something, nothing failed, and nothing was left out."""
    code, output, result = run_script(args, "gpu_measure.py", "--only", ",".join(kinds))
    (args.out / f"measure-{args.check}.json").write_text(json.dumps(result))
    expect(code == 0, f"gpu_measure.py --only {','.join(kinds)}: exit code {code}: {output.strip()[-300:]}")
    expect(result, "gpu_measure.py wrote no results")
    expect(not result["failed"], f"failed: {result['failed'][:3]}")
    expect(not result["left_out"], f"no time was left for {result['left_out'][:3]}")
    found = {kind: [line for line in result["results"] if line["kind"] == kind] for kind in kinds}
    empty = [kind for kind, lines in found.items() if not lines]
    expect(not empty or args.device == "cpu", f"nothing was measured of {', '.join(empty)}")
    for line in found.get("gemm_rate", []):
        if line["name"].startswith("qwen2.5-7b"):
            measured("gemm_tflops", line["value"])
    for text in re.findall(r"^verdict (.*)$", output, re.M):
        print(f"choice: {text}")
    checked(sum(map(len, found.values())), len(result["results"]), "measurements")
    return figure_of(output)


def pitch(args):
    return run_measurements(args, ("gemm_rate", "pitch"))


def gate_up(args):
    return run_measurements(args, ("gate_up",))


def measure(args):
    return run_measurements(args, MEASURE)


def run_comparison(args, part):
    tiny = () if args.device == "cuda" else ("--tiny", "--rounds", "1")
    code, output, result = run_script(args, "compare_hf_gpu.py", "--parts", part, "--work", args.work, *tiny)
    if code == 77:
        print("figure: " + figure_of(output))
        sys.exit(77)
    with open(args.out / "compare.jsonl", "a") as file:
        file.write(json.dumps(result) + "\n")
    expect(code == 0, figure_of(output))
    expect(result and part in result["results"], f"there is no result of {part}")
    found = result["results"][part]
    if part == "equality":
        measured("gradient_share", found["gradient_share"])
        measured("curve_distance", found["curve_distance"])
        checked(found["num_tensors"] + found["num_steps"], found["num_tensors"] + found["num_steps"], "gradients and steps")
        return figure_of(output)
    measured(f"start_s/{part}", found["lora-train"]["start_s"])
    if found["ratio_usual"] is not None:
        measured(f"ratio_usual/{part}", found["ratio_usual"])
    # A baseline whose faster variants were not tried says nothing about the fastest.
    checked(found["num_tried"], found["num_variants"], "variants of transformers + PEFT")
    measured(f"ratio_fastest/{part}", found["ratio"])
    return figure_of(output)


def compare_equality(args):
    return run_comparison(args, "equality")


def compare_8(args):
    return run_comparison(args, "8")


def compare_2x4(args):
    return run_comparison(args, "2x4")


def compare_mix(args):
    return run_comparison(args, "mix")


if __name__ == "__main__":
    run_check([pitch, gate_up, measure, compare_equality, compare_8, compare_2x4, compare_mix], __doc__)
