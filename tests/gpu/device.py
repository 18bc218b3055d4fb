#!/usr/bin/env python3
"""What the machine is, and whether its GPU computes what it should.

  machine    GPU, driver, processor and packages
  doctor     lora-train doctor: every native kernel against its reference, on the GPU
  attention  the tests of kernels_test for attention: every backend against the reference, with empty documents and odd lengths;
             on a GPU also gpu_bench's FlashAttention 2 beside cuDNN
  goldens    losses, adapters and generated ids of the CPU path against tests/goldens

Usage: tests/gpu/device.py CHECK --device cuda|cpu --work DIR [--out DIR] [--limit-s S]. The last line is `figure: ...`; exit
code 1 = failed.
"""

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import time

import unit_tests
from program import BIN, ROOT, checked, expect, library_path, run_check, run_program

PACKAGES = ("torch", "transformers", "peft", "accelerate", "numpy", "safetensors", "nvidia-cublas", "nvidia-cudnn-cu13",
            "nvidia-nccl-cu13")


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


def doctor(args):
    done = subprocess.run([str(BIN / "lora-train"), "doctor", "--json"], capture_output=True, text=True, cwd=args.work,
                          timeout=args.limit_s)
    (args.out / "doctor.json").write_text(done.stdout)
    expect(done.stdout.strip(), f"doctor printed nothing: exit code {done.returncode}, {done.stderr[-500:]}")
    found = json.loads(done.stdout)
    for check in found["checks"]:
        print(f"{check['status']:7s} {check['name']:28s} {check['value']}  {check['advice'] or ''}")
    failed = [check["name"] for check in found["checks"] if check["status"] == "failed"]
    expect(done.returncode == 0 and not failed, f"exit code {done.returncode}, {len(failed)} failed: {', '.join(failed)[:120]}")
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


def goldens(args):
    done = subprocess.run([sys.executable, str(ROOT / "scripts/check_goldens.py"), "--bin", str(BIN), "--quick"],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=args.limit_s,
                          env=dict(os.environ, LD_LIBRARY_PATH=library_path()))
    print(done.stdout)
    same = re.findall(r"(\d+) of (\d+) cases", done.stdout)
    expect(done.returncode == 0 and same, f"check_goldens.py: exit code {done.returncode}: {done.stdout[-200:]}")
    checked(int(same[-1][0]), int(same[-1][1]), "golden cases")
    return done.stdout.strip().splitlines()[-1]


if __name__ == "__main__":
    run_check([machine, doctor, attention, goldens], __doc__)
