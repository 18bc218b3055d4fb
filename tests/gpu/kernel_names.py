#!/usr/bin/env python3
"""Which kernels a step of Qwen2.5-7B runs, and whether a large matrix product runs in one of an older generation.

lora-train bench runs with librecord_cuda_kernels.so, which records every kernel through CUPTI, also inside CUDA graphs. On sm_90
and newer, a product in a kernel for sm_80 or older, or without tensor cores, is a finding where it takes 1% of the time of all
products or more; so is cuDNN's attention in a kernel for sm_80. A finding does not fail the part: it is slow, not wrong.

Usage: tests/gpu/kernel_names.py kernel_names --device cuda --work DIR [--out DIR] [--limit-s S]. The kernels go to kernels.json in
--out; what a step that was stopped has recorded is shown, too. The last line is `figure: ...`; exit code 1 = failed: nothing, or too
little, was recorded, or the step was stopped.
"""

import json
import re
import subprocess
import time

from program import BIN, Failure, bench, checked, expect, library_path, run_check

SHAPE, STEPS = "qwen2.5-7b", ("--only-steps", "--steps", "2", "--warm-up", "1")
OURS = re.compile(r"lora_train")
ATTENTION = re.compile(r"flash|fmha|sdpa|attention", re.I)
PRODUCT = re.compile(r"gemm|gemv|nvjet|cutlass|xmma|splitk", re.I)
OLDER = re.compile(r"sm(?:50|60|70|75|80|86)|cutlass_(?:70|75|80)|ampere|turing|volta|simt|sgemm|ffma|gemv|gemmsn", re.I)
OLDER_ATTENTION = re.compile(r"cudnn.*sm80", re.I)
LARGE = 0.01  # of the time of all products
LEAST_SHARE = 0.3  # of the time of all kernels: products take more than half of a step of 7B


def kind_of(name):
    if OURS.search(name):
        return "native"
    if ATTENTION.search(name):
        return "attention"
    return "product" if PRODUCT.search(name) else "other"


def findings_of(kernels):
    """[(kernel, why)]: large products and attention in kernels of an older generation."""
    products = [kernel for kernel in kernels if kind_of(kernel["name"]) == "product"]
    total = sum(kernel["ms"] for kernel in products)
    found = [(kernel, f"{kernel['ms'] / total:.1%} of the products") for kernel in products
             if OLDER.search(kernel["name"]) and kernel["ms"] >= LARGE * total]
    return found + [(kernel, "attention") for kernel in kernels
                    if kind_of(kernel["name"]) == "attention" and OLDER_ATTENTION.search(kernel["name"])]


def describe(recorded, device_is_new):
    """Prints the kernels and findings of a recording; returns the figure. Throws Failure where it shows no step."""
    kernels = sorted(recorded["kernels"], key=lambda kernel: -kernel["ms"])
    total = sum(kernel["ms"] for kernel in kernels)
    num_calls = sum(kernel["calls"] for kernel in kernels)
    expect(kernels and total > 0, "no kernel was recorded")
    expect(recorded["dropped"] == 0, f"CUPTI dropped {recorded['dropped']} records")
    for kernel in kernels[:60]:
        print(f"{kernel['ms']:10.3f} ms {kernel['ms'] / total:6.1%} {kernel['calls']:6d} calls {kernel['registers']:4d} registers "
              f"{kernel['local_bytes']:5d} local bytes  {kind_of(kernel['name']):9s} {kernel['name'][:150]}")
    share = {kind: sum(kernel["ms"] for kernel in kernels if kind_of(kernel["name"]) == kind) / total
             for kind in ("product", "attention", "native", "other")}
    expect(share["product"] >= LEAST_SHARE, f"products are {share['product']:.0%} of the time: their names are not known here")
    expect(share["native"] > 0 and share["attention"] > 0, f"no native kernel or no attention was recorded: {share}")
    found = findings_of(kernels) if device_is_new else []
    for kernel, why in found:
        print(f"finding: {why} in {kernel['name'][:110]}")
    spilling = [kernel["name"] for kernel in kernels if kind_of(kernel["name"]) == "native" and kernel["local_bytes"]]
    if spilling:
        print(f"finding: {len(spilling)} native kernels use local memory, first {spilling[0][:90]}")
    checked(num_calls, num_calls, "launches")
    older = f"{len(found)} older kernels on large work" if device_is_new else "this GPU is older than sm_90"
    return (f"{len(kernels)} kernels; products {share['product']:.0%}, attention {share['attention']:.0%}, native "
            f"{share['native']:.0%} of the time; {older}")


def is_of_sm_90():
    import torch
    return torch.cuda.get_device_capability() >= (9, 0)


def kernel_names(args):
    file = args.out / "kernels.json"
    file.unlink(missing_ok=True)
    library = BIN / "lib/librecord_cuda_kernels.so"
    expect(library.exists(), f"no {library}")
    try:
        bench(SHAPE, args.device, *STEPS, timeout_s=args.deadline - time.monotonic(),
              environment={"CUDA_INJECTION64_PATH": str(library), "RECORD_CUDA_KERNELS": str(file),
                           "LD_LIBRARY_PATH": library_path()})
    except (Failure, subprocess.TimeoutExpired):
        if file.exists():
            print(f"until it stopped: {describe(json.loads(file.read_text()), is_of_sm_90())}")
        raise
    expect(file.exists(), "no kernels were recorded: the driver did not load librecord_cuda_kernels.so")
    return describe(json.loads(file.read_text()), is_of_sm_90())


if __name__ == "__main__":
    run_check([kernel_names], __doc__)
