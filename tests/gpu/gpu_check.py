#!/usr/bin/env python3
"""Runs the parts of scripts/gpu_check.sh (parts.py), each in a process of its own with a time limit, and judges them.

A part passes when it exits with 0, has said with `checked: N of N` that it looked at all there is (program.py), and was not
stopped. A part that is skipped, or for which no time was left, was not looked at: on a GPU the exit status says so.

Usage: gpu_check.py [--call NAME] [--only PART,...] [--out DIR] [--budget S] [--device cuda|cpu] [--list]
Exit status: 0 all passed, 1 a part failed, 2 wrong arguments, 3 none failed, but one was not looked at.
"""

import argparse
import importlib.metadata
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import goals
from parts import CALLS, PARTS
from program import BIN, ROOT

MOST_OF_A_LOG = 1_500_000
LEAST_S = 10  # a part with less time than this is not started


class Row:
    """A line of the table: what came of a part."""

    def __init__(self, name, result, figure, seconds=None):
        self.name, self.result, self.figure, self.seconds = name, result, figure, seconds

    def __str__(self):
        seconds = "-" if self.seconds is None else f"{self.seconds:.0f}"
        return f"{self.name:18s} {self.result:8s} {seconds:>5s}  {self.figure[:190]}".rstrip()


def last(pattern, log):
    found = re.findall(pattern, log, re.M)
    return found[-1] if found else None


def judge(part, device, status, log):
    """(passed, FAILED or skipped; what to say)."""
    figure = last(r"^figure: *(.*)$", log) or ""
    if status is None:
        return "FAILED", f"stopped at its time limit; {figure}".rstrip("; ")
    if status == 77:
        return "skipped", figure or "no reason given"
    if status != 0:
        return "FAILED", figure or f"exit status {status}"
    looked_at = last(r"^checked: (\d+) of (\d+) (.*)$", log)
    if looked_at is None:
        return "FAILED", f"it does not say what it looked at; {figure}".rstrip("; ")
    number, expected, what = int(looked_at[0]), int(looked_at[1]), looked_at[2]
    least = part.at_least[device]
    if number != expected or number < least:
        return "FAILED", f"it looked at {number} {what}, expected {max(expected, least)}; {figure}".rstrip("; ")
    return "passed", figure


class Check:
    """One call: the parts that run, the rows of the table, the findings and the figures measured."""

    def __init__(self, args, work):
        self.args, self.work = args, work
        self.out = args.out.resolve()
        self.deadline = time.monotonic() + args.budget
        self.rows, self.findings, self.choices, self.process = [], [], [], None
        self.log, self.measured_file = self.out / "log.txt", self.out / "measured.json"
        self.measured = goals.Measured(self.measured_file, args.device, args.commit)

    def names(self):
        return self.args.only.split(",") if self.args.only else CALLS[self.args.call]

    def time_for(self, name, later):
        """Its own time and what the parts before it have left over, but never that of the parts after it. The limits are those
        of a GPU."""
        left = self.deadline - time.monotonic()
        if len(self.names()) == 1 or self.args.device == "cpu":
            return left
        if self.args.only:
            return min(PARTS[name].limit_s, left)
        return min(left, max(PARTS[name].limit_s, left - sum(PARTS[other].limit_s for other in later)))

    def run_all(self):
        names = self.names()
        for i, name in enumerate(names):
            part = PARTS[name]
            limit = self.time_for(name, names[i + 1:])
            if self.args.device == "cpu" and part.needs_gpu:
                self.rows.append(Row(name, "skipped", "needs a GPU"))
            elif limit < LEAST_S:
                self.rows.append(Row(name, "left out", f"no time was left: gpu_check.sh --only {name}"))
            else:
                print(f"== {name}", file=sys.stderr, flush=True)
                self.run(name, part, limit)

    def run(self, name, part, limit):
        started, file = time.monotonic(), self.work / "part.log"
        command = part.command(self.args.device, self.work / name, self.out, limit)
        with open(file, "wb") as output:
            self.process = subprocess.Popen(list(map(str, command)), stdout=output, stderr=subprocess.STDOUT,
                                            stdin=subprocess.DEVNULL, start_new_session=True, cwd=self.work)
            try:
                status = self.process.wait(limit)
            except subprocess.TimeoutExpired:
                status = None
            self.stop_part()
        log = file.read_text(errors="replace")
        result, figure = judge(part, self.args.device, status, log)
        shutil.rmtree(self.work / name, ignore_errors=True)  # a model of 7B is 15 GB
        seconds = time.monotonic() - started
        self.rows.append(Row(name, result, figure, seconds))
        self.findings += [f"{name}: {text}" for text in re.findall(r"^finding: (.*)$", log, re.M)]
        self.choices += re.findall(r"^choice: (.*)$", log, re.M)
        self.measured.add(name, re.findall(r"^measured: (\S+) (\S+)$", log, re.M))
        with open(self.log, "a") as kept:
            kept.write(f"\n==== {name}: {result}, exit status {status}, {seconds:.0f} s\n")
            half = MOST_OF_A_LOG // 2
            kept.write(log if len(log) <= MOST_OF_A_LOG else f"{log[:half]}\n[... cut ...]\n{log[-half:]}")
        if result != "passed":
            print("\n".join(log.splitlines()[-25:]), file=sys.stderr, flush=True)

    def stop_part(self):
        """Ends what the part has started, too."""
        if self.process is None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self.process.pid, number)
            except ProcessLookupError:
                break
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                continue
        self.process.wait()
        self.process = None

    def status(self):
        results = {row.result for row in self.rows}
        if "FAILED" in results:
            return 1
        if self.args.device == "cuda" and results != {"passed"}:
            return 3
        return 0 if "passed" in results else 1


def header(args):
    def output_of(*command):
        try:
            return subprocess.run(command, capture_output=True, text=True, timeout=60).stdout.strip()
        except (OSError, subprocess.TimeoutExpired):
            return ""

    try:
        system, torch = platform.freedesktop_os_release()["PRETTY_NAME"], importlib.metadata.version("torch")
    except (OSError, LookupError, importlib.metadata.PackageNotFoundError) as error:
        system, torch = platform.platform(), f"unknown ({error})"
    gpu = output_of("nvidia-smi", "--query-gpu=name,driver_version,memory.total,clocks.max.sm,power.limit",
                    "--format=csv,noheader") or f"no GPU: {args.device}"
    return (f"gpu_check of {args.commit}\n"
            f"date {time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())}, command {args.command_line}\n"
            f"{system}, {os.cpu_count()} cores, Python {platform.python_version()}, torch {torch}\n{gpu}\n")


def summary(check, args, seconds):
    """The table that a person reads: parts, findings, goals, the time of a step by class, and the next call."""
    text = [header(args), f"{'part':18s} {'result':8s} {'s':>5s}  figure", *map(str, check.rows)]
    for title, lines in (("findings", check.findings), ("what was faster", check.choices)):
        if lines:
            text += ["", title, *[f"  {line[:190]}" for line in lines]]
    text += ["", check.measured.table()]
    if not args.only:
        text += ["", goals.next_call(args.call, {row.name: row.result for row in check.rows}, bool(check.findings),
                                     check.measured)]
    text += ["", f"{seconds:.0f} s in all; everything that was written stands in log.txt"]
    return "\n".join(text) + "\n"


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--call", default="first", choices=list(CALLS))
    parser.add_argument("--only", default="")
    parser.add_argument("--out", type=Path, default=Path("gpu_check_out"))
    parser.add_argument("--budget", type=float, default=570)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--list", action="store_true", help="the parts of the call and their time limits")
    parser.add_argument("--command-line", default="gpu_check.py", help=argparse.SUPPRESS)
    args = parser.parse_args()
    for name in filter(None, args.only.split(",")):
        if name not in PARTS:
            parser.error(f'no part "{name}". There are: {" ".join(PARTS)}')
    return args


def main():
    args = parse_arguments()
    if args.list:
        for name in args.only.split(",") if args.only else CALLS[args.call]:
            print(f"{name:18s} {PARTS[name].limit_s:4d} s  {PARTS[name].help}")
        return 0
    started = time.monotonic()
    version = subprocess.run([str(BIN / "lora-train"), "--version"], capture_output=True, text=True).stdout.splitlines()
    args.commit = version[0] if version else "a lora-train that does not say its version"
    args.out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    work = Path(tempfile.mkdtemp(prefix="gpu-check-"))
    check = Check(args, work)
    try:
        check.log.write_text(header(args))
        check.run_all()
    except KeyboardInterrupt:
        check.rows.append(Row("(interrupted)", "FAILED", "the parts after this did not run"))
    finally:
        check.stop_part()
        shutil.rmtree(work, ignore_errors=True)
        text = summary(check, args, time.monotonic() - started)
        (check.out / "table.txt").write_text(text)
        print(text, end="")
    return check.status()


if __name__ == "__main__":
    sys.exit(main())
