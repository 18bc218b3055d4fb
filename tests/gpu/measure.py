#!/usr/bin/env python3
"""Runs bench/gpu_measure.py and bench/compare_hf_gpu.py as parts of gpu_check, and looks at whether they measured anything.

  pitch, gate_up    matrix products at real and rounded pitches; the two forms of gate|up's backward
  gated_delta       the gated delta rule alone, forward and backward
  copies            copies on the device, to it and from it
  measure           everything else that bench/gpu_measure.py knows
  compare_equality  gradients and curves against transformers + PEFT
  compare_8         speed of 8 rows a step beside transformers + PEFT, as it comes and compiled
  rivals            the same with Liger's kernels too, then of the SFT mix, where transformers pads

Usage: tests/gpu/measure.py CHECK --device cuda|cpu --work DIR [--out DIR] [--limit-s S]. The last line is `figure: ...`; exit
code 1 = failed, 77 = transformers or peft is missing.
"""

import json
import re
import sys
import time

from program import ROOT, Skipped, checked, expect, measured, run_check, run_shown

MEASURE = ("attention", "hf", "linears", "gemm")
RULE = re.compile(r"gated_delta (\S+): forward +([\d.]+) ms, backward +([\d.]+) ms; finite")
# What a GPU has time for: every variant is tried for 4 steps after 4 to warm up, the fastest runs once for 12, as does lora-train.
FEW_STEPS = ("--rounds", "1", "--warm-up", "4", "--steps", "12")


def run_script(args, name, *arguments):
    """(exit code, output, the JSON that it wrote)."""
    file = args.work / "result.json"
    file.unlink(missing_ok=True)
    left_s = args.deadline - time.monotonic()
    code, output = run_shown([sys.executable, ROOT / "bench" / name, "--device", args.device, "--limit-s", max(1, int(left_s)),
                              "--json", file, *arguments], left_s)
    return code, output, json.loads(file.read_text()) if file.exists() else {}


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
    for line in found.get("copy", []):
        measured("rate/copy_" + "_".join(line["name"].replace(",", "").split()) + "_gb_s", line["value"])
    for line in found.get("gated_delta", []):
        times = RULE.fullmatch(line["name"])
        expect(times, line["name"])
        measured(f"gated_delta_ms/forward/{times[1]}", float(times[2]))
        measured(f"gated_delta_ms/backward/{times[1]}", float(times[3]))
    for text in re.findall(r"^verdict (.*)$", output, re.M):
        print(f"choice: {text}")
    checked(sum(map(len, found.values())), len(result["results"]), "measurements")
    return figure_of(output)


def pitch(args):
    return run_measurements(args, ("pitch",))


def gate_up(args):
    return run_measurements(args, ("gate_up",))


def gated_delta(args):
    return run_measurements(args, ("gated_delta",))


def copies(args):
    return run_measurements(args, ("copy",))


def measure(args):
    return run_measurements(args, MEASURE)


def run_comparison(args, part, *arguments):
    tiny = () if args.device == "cuda" else ("--tiny", "--rounds", "1")
    code, output, result = run_script(args, "compare_hf_gpu.py", "--parts", part, "--work", args.work, *arguments, *tiny)
    if code == 77:
        raise Skipped(figure_of(output))
    with open(args.out / "compare.jsonl", "a") as file:
        file.write(json.dumps(result) + "\n")
    expect(code == 0, figure_of(output))
    expect(result and part in result["results"], f"there is no result of {part}")
    return result["results"][part], figure_of(output)


def compare_equality(args):
    found, figure = run_comparison(args, "equality")
    measured("gradient_share", found["gradient_share"])
    measured("curve_distance", found["curve_distance"])
    checked(found["num_tensors"] + found["num_steps"], found["num_tensors"] + found["num_steps"], "gradients and steps")
    return figure


def compare_speed(args, part, variants):
    """(how many variants were tried, how many there are, the figure)"""
    found, figure = run_comparison(args, part, "--variants", variants, *FEW_STEPS)
    measured(f"start_s/{part}", found["lora-train"]["start_s"])
    for name in variants.split(","):
        if found[f"ratio_{name}"] is not None:
            measured(f"ratio_{name}/{part}", found[f"ratio_{name}"])
    measured(f"ratio_fastest/{part}", found["ratio"])
    return found["num_tried"], found["num_variants"], figure


def compare_8(args):
    num_tried, num_variants, figure = compare_speed(args, "8", "usual,compiled")
    checked(num_tried, num_variants, "variants of transformers + PEFT")
    return figure


def rivals(args):
    done = [compare_speed(args, "8", "usual,compiled,liger"), compare_speed(args, "mix", "usual,liger")]
    # A rival whose faster variants were not tried says nothing about the fastest.
    checked(sum(tried for tried, *_ in done), sum(count for _, count, _ in done), "variants of transformers + PEFT")
    return "; ".join(figure for *_, figure in done)


if __name__ == "__main__":
    run_check([pitch, gate_up, gated_delta, copies, measure, compare_equality, compare_8, rivals], __doc__)
