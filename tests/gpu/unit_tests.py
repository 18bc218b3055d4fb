#!/usr/bin/env python3
"""Runs the unit tests of the bundle on this machine and counts them: with a GPU those on CUDA, without one the others.

On a machine with a GPU (--device cuda) a test on CUDA that is skipped has FAILED. A program that dies takes down the tests
after the one it died in; those, and all that failed after it, run again, since an error of the device stays with a process.

Usage: tests/gpu/unit_tests.py --device cuda|cpu [--limit-s S] [--only kernels_test,...] [--skip REGEX]. The last line is `figure: ...`;
exit code 1 = something failed, there was no time for it, a program has no tests, or none passed.
"""

import argparse
import os
import re
import subprocess
import sys
import time

from program import BIN, ROOT, library_path

PROGRAMS = ["kernels_test", "optim_test", "model_test", "run_test", "cuda_test", "lora_test", "native_kernels_test"]
ONLY_ON_CUDA = "cuda_kernels_test"  # does nothing without a GPU
ON_CUDA = re.compile(r"(?<![a-z])cuda_(?!on_cpu)")  # the place of a test with many
MAY_SKIP = re.compile(r"a matter of|only$|loaded by a test before")
ABOUT_CUDA = re.compile(ON_CUDA.pattern + "|Cuda|Cudnn")
NEEDS_THE_BUILD_MACHINE = ["CudnnPlans.*"]  # without a driver they take a stub of the build folder
RESULT = re.compile(r"^\[\s+(OK|FAILED|SKIPPED)\s+\] (\S+?)(?:,.*)? \(\d+ ms\)$")


def environment():
    return dict(os.environ, LD_LIBRARY_PATH=library_path(), OMP_NUM_THREADS="4", OMP_WAIT_POLICY="passive")


def list_tests(program, env):
    if not (BIN / program).exists():
        print(f"{program}: not there", flush=True)
        return None
    listed = subprocess.run([str(BIN / program), "--gtest_list_tests"], capture_output=True, text=True, env=env, cwd=ROOT,
                            timeout=120)
    if listed.returncode != 0:
        print(f"{program}: cannot be started: {listed.stderr[-1500:]}", flush=True)
        return None
    names, suite = [], ""
    for line in listed.stdout.splitlines():
        word = line.split("#")[0].rstrip()
        if line.startswith("  "):
            names.append(suite + word.strip())
        elif word.endswith("."):
            suite = word
    if not names:
        print(f"{program}: lists no tests", flush=True)
        return None
    return [name for name in names if ".DISABLED_" not in name and "/DISABLED_" not in name]


def run_some(program, names, env, limit_s):
    """One process: ({name: "OK", "FAILED" or "SKIPPED: why"}, its output). What is missing was not finished."""
    command = [str(BIN / program), "--gtest_color=no", "--gtest_filter=" + ":".join(names)]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                              env=env, cwd=ROOT, timeout=max(1.0, limit_s))
        output, ending = done.stdout, f"exit code {done.returncode}"
    except subprocess.TimeoutExpired as error:
        output, ending = (error.stdout or b"").decode(errors="replace"), "stopped: no time left"
    results, reason, lines = {}, "no reason given", output.splitlines()
    for before, line in zip([""] + lines, lines):
        if before.endswith(": Skipped"):
            reason = line
        if found := RESULT.match(line):
            results[found[2]] = f"SKIPPED: {reason}" if found[1] == "SKIPPED" else found[1]
    started = re.findall(r"^\[ RUN      \] (\S+)$", output, re.M)
    if started and started[-1] not in results and "no time left" not in ending:
        results[started[-1]] = "FAILED"
        output += f"\n{program} died in {started[-1]}: {ending}\n"
    return results, output


def run_all(program, names, env, deadline):
    """{name: result}. A failed test that came after another failed one is run by itself."""
    results, suspects = {}, []
    left = list(names)
    while left and time.monotonic() < deadline:
        found, output = run_some(program, left, env, deadline - time.monotonic())
        failed = [name for name in left if found.get(name) == "FAILED"]
        suspects += failed[1:]
        results.update(found)
        if failed or len(found) < len(left):
            print(output[-20000:], flush=True)
        else:
            print("\n".join(output.splitlines()[-3:]), flush=True)
        if not found:
            break
        left = [name for name in left if name not in found]
    for name in suspects[:40]:
        if time.monotonic() < deadline:
            results.update(run_some(program, [name], env, deadline - time.monotonic())[0])
    return results


def check(program, names, env, device, deadline, count):
    """Runs tests and adds to `count`."""
    results, reasons = run_all(program, names, env, deadline), {}
    for name in names:
        result, _, reason = results.get(name, "NOT RUN").partition(": ")
        if result == "SKIPPED":
            reasons[reason] = reasons.get(reason, 0) + 1
            if device == "cuda" and ABOUT_CUDA.search(name) and not MAY_SKIP.search(reason):
                result = f"FAILED, for it was skipped on a machine with a GPU: {reason}"
        if result.startswith(("FAILED", "NOT RUN")):
            print(f"{program} {name}: {result}", flush=True)
        count["on CUDA passed"] += result == "OK" and (program == ONLY_ON_CUDA or ON_CUDA.search(name) is not None)
        count[result.split(",")[0]] += 1
    for reason, number in reasons.items():
        print(f"{program}: {number} skipped: {reason}", flush=True)


def is_wanted(program, name, args):
    if args.skip and re.search(args.skip, name):
        return False
    if args.device == "cuda":
        return program == ONLY_ON_CUDA or ABOUT_CUDA.search(name) is not None
    return not any(name.startswith(left_out.rstrip("*")) for left_out in NEEDS_THE_BUILD_MACHINE)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--limit-s", type=float, default=600)
    parser.add_argument("--only", default=",".join(PROGRAMS))
    parser.add_argument("--skip", help="tests whose names match this expression, which another part runs")
    args = parser.parse_args()
    deadline, env = time.monotonic() + args.limit_s, environment()
    count = {"OK": 0, "FAILED": 0, "SKIPPED": 0, "NOT RUN": 0, "on CUDA passed": 0}
    tests = {program: list_tests(program, env) for program in args.only.split(",")
             if args.device == "cuda" or program != ONLY_ON_CUDA}
    for program, names in tests.items():
        if names is None:
            count["FAILED"] += 1
            continue
        some = [name for name in names if is_wanted(program, name, args)]
        if some:
            print(f"== {program}: {len(some)} tests", flush=True)
            check(program, some, env, args.device, deadline, count)
    no_cuda = args.device == "cuda" and count["on CUDA passed"] == 0
    num_run = count["OK"] + count["SKIPPED"] + count["FAILED"]
    print(f"checked: {num_run} of {num_run + count['NOT RUN']} unit tests")
    print(f"figure: {count['OK']} passed, {count['on CUDA passed']} of them on CUDA, {count['FAILED']} failed, "
          f"{count['SKIPPED']} skipped, {count['NOT RUN']} not run")
    sys.exit(1 if count["FAILED"] or count["NOT RUN"] or no_cuda or not count["OK"] else 0)


if __name__ == "__main__":
    main()
