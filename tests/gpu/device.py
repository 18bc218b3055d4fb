#!/usr/bin/env python3
"""What the machine is, and whether its GPU computes what it should.

  machine    GPU, driver, processor and packages
  load       every library of torch and CUDA is read into the page cache; then they load, and a tiny model makes a step
  doctor     lora-train doctor: every native kernel against its reference, on the GPU
  attention  the tests of kernels_test for attention: every backend against the reference, with empty documents and odd lengths;
             on a GPU also gpu_bench's FlashAttention 2 beside cuDNN

Usage: tests/gpu/device.py CHECK --device cuda|cpu --work DIR [--out DIR] [--limit-s S]. The last line is `figure: ...`; exit
code 1 = failed.
"""

import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import unit_tests
from program import BIN, ROOT, Failure, bench, checked, expect, run_check, run_program, run_shown

PACKAGES = ("torch", "transformers", "peft", "accelerate", "numpy", "safetensors", "nvidia-cublas", "nvidia-cudnn-cu13",
            "nvidia-nccl-cu13")
VERDICT = r": error \S+, at most .*  (ok|note: |FAILED: )"  # of a kernel that doctor has finished


def backends_of(architecture):
    """The attention backends that sm_90 and the like have to run in bf16 (kernels/attention/attention_choice.cpp)."""
    return ("fa2", "cudnn") if architecture.startswith(("sm_90", "sm_10")) else ("fa2",)


def output_of(*command):
    if shutil.which(command[0]) is None:
        return ""
    return subprocess.run(command, capture_output=True, text=True, timeout=60).stdout.strip()


def machine(args):
    print(output_of("nvidia-smi"))
    print("\n".join(output_of("lscpu").splitlines()[:25]))
    for name in PACKAGES:
        try:
            print(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            print(f"{name}: not installed")
    if (ROOT / "BUNDLE").exists():
        print((ROOT / "BUNDLE").read_text())
    gpus = output_of("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader").splitlines()
    if args.device == "cuda" and not gpus:
        import torch
        gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    if args.device == "cpu":
        checked(1, 1, f"machine of {os.cpu_count()} cores")
        return "no GPU" if not gpus else gpus[0]
    expect(gpus, "neither nvidia-smi nor torch finds a GPU")
    checked(len(gpus), len(gpus), "GPUs")
    return gpus[0]


def read_libraries():
    """(number, bytes) of the libraries that a process on CUDA loads, read 8 at a time: from a cold disk each start waits for them."""
    site = Path(importlib.util.find_spec("torch").origin).parents[1]
    files = [*site.glob("torch/lib/*.so*"), *site.glob("nvidia/*/lib/*.so*"), *BIN.glob("lib/*.so*")]

    def read(path):
        with open(path, "rb", buffering=0) as file:
            return sum(iter(lambda: len(file.read(1 << 24)), 0))

    with ThreadPoolExecutor(8) as pool:
        return len(files), sum(pool.map(read, files))


def load(args):
    started = time.monotonic()
    num_files, num_bytes = read_libraries()
    seconds = time.monotonic() - started
    print(f"{num_files} libraries, {num_bytes / 1e9:.1f} GB read in {seconds:.1f} s", flush=True)
    expect(num_files > 0, "this Python brings no libraries of torch")
    started = time.monotonic()
    found = bench("tiny-qwen2", args.device, "--only-steps", "--steps", "2", "--warm-up", "1", "precision=bf16",
                  timeout_s=args.deadline - time.monotonic())
    checked(3, 3, "steps")
    return (f"{num_bytes / 1e9:.1f} GB of libraries read in {seconds:.1f} s; {time.monotonic() - started:.1f} s from the start to the "
            f"end of 3 steps of {found['shape']} on {found['device']}")


def doctor(args):
    """Its verdicts come on stderr, kernel by kernel."""
    file = args.out / "doctor.json"
    with open(file, "w") as stdout:
        try:
            code, text = run_shown([BIN / "lora-train", "doctor", "--json"], args.deadline - time.monotonic(), stdout=stdout)
        except subprocess.TimeoutExpired as stopped:
            verdicts = re.findall(VERDICT, stopped.output, re.M)
            raise Failure(f"stopped after {len(verdicts)} kernels, {verdicts.count('FAILED: ')} of them wrong") from stopped
    expect(file.stat().st_size > 0, f"doctor printed nothing: exit code {code}, {text[-500:]}")
    found = json.loads(file.read_text())
    for check in found["checks"]:
        print(f"{check['status']:7s} {check['name']:28s} {check['value']}  {check['advice'] or ''}")
    failed = [check["name"] for check in found["checks"] if check["status"] == "failed"]
    expect(code == 0 and not failed, f"exit code {code}, {len(failed)} failed: {', '.join(failed)[:120]}")
    if args.device == "cuda":
        expect(found["gpus"], "doctor found no GPU")
        places = [check["value"] for check in found["checks"] if check["name"] == "kernels"]
        expect(places and not places[0].endswith("on CPU"), f"the kernels ran on the CPU: {places}")
        attention = [json.dumps(kernel) for kernel in found["kernels"] if "attention" in kernel["name"]]
        for backend in backends_of(found["gpus"][0]["architecture"]):
            expect(any(backend in kernel for kernel in attention), f"doctor did not run the backend {backend}")
    passed = [kernel for kernel in found["kernels"] if kernel["passed"]]
    checked(len(passed), len(found["kernels"]), "kernel checks")
    worst = max(passed, key=lambda kernel: kernel["max_error"] / kernel["tolerance"])
    return (f"{len(passed)} kernel checks; nearest to its tolerance: {worst['name']}, "
            f"{worst['max_error'] / worst['tolerance']:.2f} of it")


def attention(args):
    """Backends among themselves: each is held against the same reference on the same inputs."""
    env = unit_tests.environment()
    names = unit_tests.list_tests("kernels_test", env)
    expect(names, "kernels_test lists no tests")
    place = unit_tests.ON_CUDA.search if args.device == "cuda" else re.compile("/cpu_").search
    chosen = [name for name in names if re.search(r"(^|/)Attention\w*\.", name) and place(name)]
    results = unit_tests.run_all("kernels_test", chosen, env, min(args.deadline, time.monotonic() + args.limit_s * 0.6))
    bad = [f"{name}: {results.get(name, 'not run')}" for name in chosen if results.get(name) != "OK"]
    may_skip = [line for line in bad if "SKIPPED" in line and unit_tests.MAY_SKIP.search(line)]
    expect(len(bad) == len(may_skip), f"{len(bad) - len(may_skip)} tests of attention did not pass: {bad[:3]}")
    num_lines = 0
    if args.device == "cuda":
        code, output = run_program("gpu_bench", "attention", timeout_s=args.deadline - time.monotonic())
        print(output, flush=True)
        lines = [line for line in output.splitlines() if " forward " in line]
        expect(code == 0 and lines, f"gpu_bench attention: exit code {code}, {len(lines)} lines")
        expect(not [line for line in lines if "NOT FINITE" in line], "attention is not finite")
        import torch
        for backend in backends_of("sm_{}{}".format(*torch.cuda.get_device_capability())):
            expect(any(f" {backend} " in line for line in lines), f"gpu_bench did not run {backend}")
        num_lines = len(lines)
    checked(len(chosen) - len(bad), len(chosen) - len(may_skip), "tests of attention")
    return f"{len(chosen) - len(bad)} tests passed" + (f", {num_lines} layouts measured" if num_lines else "")


if __name__ == "__main__":
    run_check([machine, load, doctor, attention], __doc__)
