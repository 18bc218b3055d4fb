#!/usr/bin/env python3
"""The goals of docs/gpu_owed.md (goals.json), and which of them the measured figures reach.

Usage: tests/gpu/goals.py [MEASURED_JSON]: the table of a call; without a file, the table for docs/gpu_owed.md.
"""

import json
import sys
import time
from pathlib import Path

FILE = Path(__file__).with_name("goals.json")


def load():
    return json.loads(FILE.read_text())


def target_of(goal, gemm_tflops, assumed_tflops):
    """The goal at the GEMM rate measured here, where it scales."""
    value = goal.get("at_least", goal.get("at_most"))
    return value * gemm_tflops / assumed_tflops if goal.get("scales") else value


def verdict(goal, target, value):
    if value is None:
        return "not measured"
    miss = target / value - 1 if "at_least" in goal else value / target - 1
    return "holds" if miss <= 0 else f"MISSED by {miss:.1%}"


def number(value, unit):
    return f"{value:.0f} {unit}" if value >= 1000 else f"{value:.3g} {unit}".rstrip()


class Measured:
    """measured.json: {"device", "commit", "figures": {name: {"value", "part", "date"}}}. Calls that write to the same folder
    add to it; figures of another program or device are dropped."""

    def __init__(self, file, device, commit):
        self.file, self.device = file, device
        self.data = {"device": device, "commit": commit, "figures": {}}
        if file.exists():
            found = json.loads(file.read_text())
            if (found["device"], found["commit"]) == (device, commit):
                self.data = found

    def add(self, part, pairs):
        date = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        for name, value in pairs:
            self.data["figures"][name] = {"value": float(value), "part": part, "date": date}
        self.file.write_text(json.dumps(self.data, indent=1) + "\n")

    def value(self, name):
        """None where nothing was measured; a CPU measures no figure of a GPU."""
        found = self.data["figures"].get(name)
        return found["value"] if found and self.device == "cuda" else None

    def of_kind(self, prefix):
        return {name[len(prefix):]: entry["value"] for name, entry in self.data["figures"].items() if name.startswith(prefix)}

    def gemm_tflops(self):
        """Of the part pitch, which takes seconds for it, else of bench; None where neither was measured."""
        return self.value("gemm_tflops") or self.value("bench_gemm_tflops")

    def judged(self):
        """[(goal, target, value or None, verdict)]"""
        known = load()
        rate = self.gemm_tflops() or known["gemm_tflops"]
        return [(goal, target, self.value(goal["measured"]), verdict(goal, target, self.value(goal["measured"])))
                for goal in known["goals"] for target in [target_of(goal, rate, known["gemm_tflops"])]]

    def table(self):
        rows = self.judged()
        width = max(len(goal["figure"]) for goal, *_ in rows)
        lines = [f"{'goal':{width}s} {'target':>16s} {'measured':>15s}  verdict"]
        for goal, target, value, words in rows:
            shown = "-" if value is None else number(value, goal["unit"])
            star = "*" if goal.get("scales") else " "
            lines.append(f"{goal['figure']:{width}s} {number(target, goal['unit']) + star:>16s} {shown:>15s}  {words}")
        rate, assumed = self.gemm_tflops(), load()["gemm_tflops"]
        lines.append(f"* for GEMMs at {rate:.0f} TFLOP/s, measured here; the goals are set for {assumed}" if rate else
                     f"* for GEMMs at {assumed} TFLOP/s, assumed: the rate was not measured")
        return "\n".join(lines + ["", *self.blame()])

    def blame(self):
        """The classes of a 7B step, most over its bound first."""
        step = self.value("step_ms")
        if step is None:
            return ["a step by class of kernel: not measured"]
        ms, bounds = self.of_kind("class_ms/"), self.of_kind("class_bound_ms/")
        order = sorted(ms, key=lambda name: bounds[name] - ms[name])
        lines = [f"{'a step of 7B, ms':18s} {'measured':>9s} {'bound':>9s} {'over':>9s}"]
        for i, name in enumerate(order):
            lines.append(f"{name:18s} {ms[name]:9.2f} {bounds[name]:9.2f} {ms[name] - bounds[name]:+9.2f}" +
                         ("  <- to blame first" if i == 0 and ms[name] > bounds[name] else ""))
        rest = step - sum(ms.values())
        total = sum(bounds.values())
        return lines + [f"{'between them':18s} {rest:9.2f}", f"{'step':18s} {step:9.2f} {total:9.2f} {step - total:+9.2f}"]


WRONG = ("machine", "doctor", "attention", "recorded", "parity", "compare_equality", "resume", "sanitizer", "tests")


def next_call(call, results, has_findings, measured):
    """What to run next, and why."""
    bad = [name for name in WRONG if results.get(name, "passed") != "passed"]
    missed = [goal["figure"] for goal, _, _, words in measured.judged() if words.startswith("MISSED") and goal.get("scales")]
    slow = [name for name, result in results.items() if result != "passed" and name not in WRONG]
    if bad and call != "wrong":
        return f"next: gpu_check.sh --call wrong, for {', '.join(bad)} did not pass"
    if bad:
        return f"next: repair {', '.join(bad)}, then gpu_check.sh again"
    if (missed or has_findings or slow) and call == "first":
        why = missed[:1] or ["there are findings"] * has_findings or slow
        return f"next: gpu_check.sh --call slow ({why[0]})"
    return "next: gpu_check.sh --call figures, then --call quantised, compare_8, compare_2x4 and compare_mix"


def markdown():
    rows = [f"| {goal['figure']} | {goal['goal']} | `{goal['command']}` |" for goal in load()["goals"]]
    return "\n".join(["| Figure | Goal | Command |", "|---|---|---|", *rows])


if __name__ == "__main__":
    if len(sys.argv) == 1:
        print(markdown())
    else:
        found = json.loads(Path(sys.argv[1]).read_text())
        print(Measured(Path(sys.argv[1]), found["device"], found["commit"]).table())
