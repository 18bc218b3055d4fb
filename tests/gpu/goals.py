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


def target_of(goal, measured):
    """What the figure has to reach. Where it depends on the card, a part computes it from the rates of this machine (steps.py):
    None where those were not measured."""
    return measured.value("target/" + goal["measured"]) if goal.get("scales") else goal.get("at_least", goal.get("at_most"))


def over_bound(figure):
    """What a speed may take beyond the bound of its step; None where it has no goal."""
    return next((goal["over_bound"] for goal in load()["goals"] if goal["measured"] == figure and "over_bound" in goal), None)


def verdict(goal, target, value):
    if value is None:
        return "not measured"
    if target is None:
        return "not judged: the rates of this machine are not known (classes)"
    miss = target / value - 1 if "at_least" in goal else value / target - 1
    return "holds" if miss <= 0 else f"MISSED by {miss:.1%}"


def number(value, unit):
    return f"{value:.0f} {unit}" if value >= 1000 else f"{value:.3g} {unit}".rstrip()


class Measured:
    """measured.json: {"device", "gpu", "figures": {name: {"value", "part", "commit", "date"}}, "parts": {name: {"result",
    "seconds", "counted_s", "figure", "commit", "date"}}}. Calls that write to the same folder add to it, those of other commits
    too; figures of another GPU or device are dropped."""

    def __init__(self, file, device, gpu, commit):
        self.file, self.device, self.commit = file, device, commit
        self.data = {"device": device, "gpu": gpu, "figures": {}, "parts": {}}
        if file.exists():
            found = json.loads(file.read_text())
            if (found["device"], found["gpu"]) == (device, gpu):
                self.data = found

    def keep(self, kind, name, **values):
        date = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self.data[kind][name] = dict(values, commit=self.commit, date=date)
        self.file.write_text(json.dumps(self.data, indent=1) + "\n")

    def add(self, part, pairs):
        for name, value in pairs:
            self.keep("figures", name, value=float(value), part=part)

    def add_part(self, name, result, seconds, counted_s, figure):
        self.keep("parts", name, result=result, seconds=round(seconds, 1), counted_s=round(counted_s, 1), figure=figure)

    def value(self, name):
        """None where nothing was measured; a CPU measures no figure of a GPU."""
        found = self.data["figures"].get(name)
        return found["value"] if found and self.device == "cuda" else None

    def of_kind(self, prefix):
        return {name[len(prefix):]: entry["value"] for name, entry in self.data["figures"].items() if name.startswith(prefix)}

    def judged(self):
        """[(goal, target, value or None, verdict)]"""
        return [(goal, target, self.value(goal["measured"]), verdict(goal, target, self.value(goal["measured"])))
                for goal in load()["goals"] for target in [target_of(goal, self)]]

    def others(self, goal):
        """" (of another program)" where the figure is of another commit."""
        found = self.data["figures"].get(goal["measured"])
        return f" ({found['commit']})" if found and found["commit"] != self.commit else ""

    def table(self):
        rows = self.judged()
        width = max(len(goal["figure"]) for goal, *_ in rows)
        lines = [f"{'goal':{width}s} {'target':>16s} {'measured':>15s}  verdict"]
        for goal, target, value, words in rows:
            wanted, shown = ("-" if n is None else number(n, goal["unit"]) for n in (target, value))
            star = "*" if goal.get("scales") else " "
            lines.append(f"{goal['figure']:{width}s} {wanted + star:>16s} {shown:>15s}  {words}{self.others(goal)}")
        rates = self.of_kind("rate/")
        shown = ", ".join(f"{name} {value:.4g}" for name, value in rates.items()) if self.device == "cuda" and rates else "not measured"
        lines.append(f"* from the bound of the step at the rates of this machine. Rates: {shown}")
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


WRONG = ("machine", "load", "cuda_kernels", "doctor", "attention", "tests", "parity", "parity_hybrid", "recorded",
         "compare_equality", "resume", "sanitizer", "steady")
VISIT = {"correct": "speed", "speed": "rest"}  # a GPU is rented for these three calls


def next_call(call, results, has_findings, measured):
    """What to run next, and why."""
    bad = [name for name in WRONG if results.get(name, "passed") != "passed"]
    missed = [goal["figure"] for goal, _, _, words in measured.judged() if words.startswith("MISSED") and goal.get("scales")]
    slow = missed[:1] or ["there are findings"] * has_findings
    why = f"; later --call wrong, for {', '.join(bad)} did not pass" if bad else ""
    if call in VISIT:
        return f"next: gpu_check.sh --call {VISIT[call]}{why}"
    if bad:
        return f"next: {'repair first:' if call == 'wrong' else 'gpu_check.sh --call wrong, for'} {', '.join(bad)} did not pass"
    if slow and call == "rest":
        return f"next: gpu_check.sh --call slow ({slow[0]}), then --call rivals, figures and hybrid"
    return "next: gpu_check.sh --call rivals, then --call figures, hybrid and slow"


def markdown():
    rows = [f"| {goal['figure']} | {goal['goal']} | `{goal['command']}` |" for goal in load()["goals"]]
    return "\n".join(["| Figure | Goal | Command |", "|---|---|---|", *rows])


if __name__ == "__main__":
    if len(sys.argv) == 1:
        print(markdown())
    else:
        found = json.loads(Path(sys.argv[1]).read_text())
        print(Measured(Path(sys.argv[1]), found["device"], found["gpu"], "").table())
