#!/usr/bin/env python3
"""Runs the parts of scripts/gpu_check.sh (parts.py), each in a process of its own with a time limit, and judges them.

A part passes when it exits with 0, has said with `checked: N of N` that it looked at all there is (program.py), and was not
stopped. A part that is skipped, or for which no time was left, was not looked at: on a GPU the exit status says so. Where nothing
runs on the GPU (parts.FIRST_LIGHT), the call ends.

Usage: gpu_check.py [--call NAME] [--only PART,...] [--out DIR] [--archive FILE] [--budget S] [--device cuda|cpu] [--list]
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
import tarfile
import tempfile
import time
from pathlib import Path

import goals
from parts import BUDGET_S, CALLS, FIRST_LIGHT, PARTS
from program import BIN

MOST_OF_A_PART, MOST_OF_THE_LOG = 1_500_000, 8_000_000  # characters of log.txt
LEAST_S = 10  # a part with less time than this is not started


class Row:
    """A line of the table: what came of a part."""

    def __init__(self, name, result, figure, seconds=None):
        self.name, self.result, self.figure, self.seconds = name, result, figure, seconds

    def __str__(self):
        seconds = "-" if self.seconds is None else f"{self.seconds:.0f}"
        need = PARTS[self.name].need_s() if self.name in PARTS else 0
        return f"{self.name:18s} {self.result:8s} {seconds:>5s} {need:7.0f}  {self.figure[:190]}".rstrip()


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


def cut(text, most):
    """The text without its middle where it is longer than `most`."""
    return text if len(text) <= most else f"{text[:most // 2]}\n[... cut ...]\n{text[-most // 2:]}"


class Check:
    """One call: the parts that run, the rows of the table, the findings and the figures measured."""

    def __init__(self, args, work):
        self.args, self.work = args, work
        self.out = args.out.resolve()
        self.deadline = time.monotonic() + args.budget
        self.rows, self.findings, self.choices, self.process = [], [], [], None
        self.log = self.out / "log.txt"
        self.measured = goals.Measured(self.out / "measured.json", args.device, args.gpu, args.commit)

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

    def is_dark(self):
        """Whether nothing runs on this GPU, so that the parts left would only take its time."""
        results = {row.name: row.result for row in self.rows}
        is_call = self.args.device == "cuda" and not self.args.only
        return is_call and all(results.get(name) == "FAILED" for name in FIRST_LIGHT)

    def run_all(self):
        names = self.names()
        for i, name in enumerate(names):
            part = PARTS[name]
            limit = self.time_for(name, names[i + 1:])
            if self.args.device == "cpu" and part.needs_gpu:
                self.rows.append(Row(name, "skipped", "needs a GPU"))
            elif self.is_dark():
                self.rows.append(Row(name, "left out", f"nothing runs on this GPU: {', '.join(FIRST_LIGHT)} failed"))
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
        self.measured.add_part(name, result, seconds, part.need_s(), figure)
        self.keep_log(f"\n==== {name}: {result}, exit status {status}, {seconds:.0f} s\n{cut(log, MOST_OF_A_PART)}")
        if result != "passed":
            print("\n".join(log.splitlines()[-25:]), file=sys.stderr, flush=True)

    def keep_log(self, text):
        """Adds to the log of all calls, whose oldest text makes room."""
        before = self.log.read_text(errors="replace") if self.log.exists() else ""
        self.log.write_text((before + text)[-MOST_OF_THE_LOG:])

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


def output_of(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def header(args):
    try:
        system, torch = platform.freedesktop_os_release()["PRETTY_NAME"], importlib.metadata.version("torch")
    except (OSError, LookupError, importlib.metadata.PackageNotFoundError) as error:
        system, torch = platform.platform(), f"unknown ({error})"
    facts = output_of("nvidia-smi", "--query-gpu=name,driver_version,memory.total,clocks.max.sm,power.limit", "--format=csv,noheader")
    return (f"gpu_check of {args.commit}\n"
            f"date {time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())}, command {args.command_line}\n"
            f"{system}, {os.cpu_count()} cores, Python {platform.python_version()}, torch {torch}\n"
            f"{facts or f'no GPU: {args.device}'}\n")


def summary(check, args, seconds):
    """The table that a person reads: parts, findings, goals, the time of a step by class, and the next call."""
    text = [args.header, f"{'part':18s} {'result':8s} {'s':>5s} {'counted':>7s}  figure", *map(str, check.rows)]
    for title, lines in (("findings", check.findings), ("what was faster", check.choices)):
        if lines:
            text += ["", title, *[f"  {line[:190]}" for line in lines]]
    text += ["", check.measured.table()]
    if not args.only:
        text += ["", goals.next_call(args.call, {row.name: row.result for row in check.rows}, bool(check.findings),
                                     check.measured)]
    text += ["", f"{seconds:.0f} s in all; log.txt has everything that was written"]
    return "\n".join(text) + "\n"


def write_archive(folder, file):
    """All files of the folder as one .tar.gz, which appears whole."""
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_name(file.name + ".part")
    with tarfile.open(unfinished, "w:gz") as archive:
        archive.add(folder, arcname=folder.name, filter=lambda entry: None if unfinished.name in entry.name else entry)
    unfinished.replace(file)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--call", default="correct", choices=list(CALLS))
    parser.add_argument("--only", default="")
    parser.add_argument("--out", type=Path, default=Path("gpu_check_out"))
    parser.add_argument("--archive", type=Path)
    parser.add_argument("--budget", type=float, default=BUDGET_S)
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
            part = PARTS[name]
            print(f"{name:18s} {part.limit_s:4d} s, needs {part.need_s():3.0f} s by count  {part.help}")
        return 0
    started = time.monotonic()
    args.commit = (output_of(str(BIN / "lora-train"), "--version").splitlines() or ["a lora-train that does not say its version"])[0]
    args.gpu = output_of("nvidia-smi", "--query-gpu=name", "--format=csv,noheader").partition("\n")[0]
    args.out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    work = Path(tempfile.mkdtemp(prefix="gpu-check-"))
    check = Check(args, work)
    args.header = header(args)
    try:
        check.keep_log(args.header)
        check.run_all()
    except KeyboardInterrupt:
        check.rows.append(Row("(interrupted)", "FAILED", "the parts after this did not run"))
    finally:
        check.stop_part()
        shutil.rmtree(work, ignore_errors=True)
        text = summary(check, args, time.monotonic() - started)
        (check.out / f"table-{args.call if not args.only else 'only'}.txt").write_text(text)
        if args.archive:
            write_archive(check.out, args.archive)
        print(text, end="")
    return check.status()


if __name__ == "__main__":
    sys.exit(main())
