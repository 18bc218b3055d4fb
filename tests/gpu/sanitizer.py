#!/usr/bin/env python3
"""NVIDIA's checkers over the tests of the native kernels (cuda_kernels_test, which starts no LibTorch).

Each of memcheck, racecheck and synccheck has to find the mistake that sanitizer_control makes on purpose, and then to finish every
test without an error. A checker that is stopped, finishes no test, or does not find the mistake fails. Where none is installed, or
none may open the GPU (under gVisor, for one), nothing was looked at: skipped.

Usage: tests/gpu/sanitizer.py sanitizer --device cuda --work DIR [--limit-s S]. The last line is `figure: ...`; exit code 1 = failed,
77 = skipped.
"""

import os
import re
import shutil
import subprocess
import time

from program import BIN, Failure, Skipped, checked, expect, library_path, run_check

TOOLS = ("memcheck", "racecheck", "synccheck")
REFUSED = re.compile(r"Device not supported|Unable to initialize|error 999|cudaErrorUnknown", re.I)
FOUND = 99  # exit code where a checker found something
PROGRAM, CONTROL = "cuda_kernels_test", "sanitizer_control"


def checker():
    found = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
    if found is None:
        raise Skipped("compute-sanitizer is not installed")
    return found


def run(command, limit_s):
    """(exit code or None where it was stopped, output)"""
    try:
        done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              errors="replace", timeout=max(1.0, limit_s), env=dict(os.environ, LD_LIBRARY_PATH=library_path()))
        return done.returncode, done.stdout
    except subprocess.TimeoutExpired as error:
        return None, (error.stdout or b"").decode(errors="replace")


def check(tool, limit_s):
    """How many tests it finished without an error."""
    deadline = time.monotonic() + limit_s
    command = [checker(), "--tool", tool, "--error-exitcode", FOUND]
    code, output = run([*command, BIN / CONTROL, tool], limit_s)
    if refused := REFUSED.search(output):
        raise Skipped(f"{tool} cannot open this GPU: {refused[0]}")
    expect(code == FOUND, f"{tool} did not find the mistake of {CONTROL}: exit code {code}: {output[-300:]}")
    # Without guard zones around the buffers a checker sees what is read or written past them.
    code, output = run([*command, BIN / PROGRAM, "--no-guards", "--gtest_color=no"], deadline - time.monotonic())
    print(output[-20000:], flush=True)
    finished = len(re.findall(r"^\[       OK \] ", output, re.M))
    expect(code is not None, f"{tool} was stopped after {limit_s:.0f} s: {finished} tests were finished")
    expect(code == 0, f"{tool} of {PROGRAM}: exit code {code}")
    passed = re.findall(r"^\[  PASSED  \] (\d+) tests?", output, re.M)
    expect(passed and int(passed[-1]) > 0 and finished == int(passed[-1]), f"{tool} finished no test of {PROGRAM}")
    expect("ERROR SUMMARY: 0 errors" in output or "RACECHECK SUMMARY: 0 hazards" in output, f"{tool} printed no summary")
    return finished


def sanitizer(args):
    for name in (PROGRAM, CONTROL):
        expect((BIN / name).exists(), f"{name} is not in {BIN}")
    counts, failures = {}, []
    for i, tool in enumerate(TOOLS):
        try:
            counts[tool] = check(tool, (args.deadline - time.monotonic()) / (len(TOOLS) - i))
        except Failure as failure:
            failures.append(str(failure))
            print(f"FAILED: {failure}", flush=True)
    expect(not failures, "; ".join(failure.splitlines()[0] for failure in failures))
    checked(sum(counts.values()), len(TOOLS) * max(counts.values()), f"tests under {', '.join(TOOLS)}")
    return ", ".join(f"{tool} {count} tests" for tool, count in counts.items()) + ": nothing found"


if __name__ == "__main__":
    run_check([sanitizer], __doc__)
