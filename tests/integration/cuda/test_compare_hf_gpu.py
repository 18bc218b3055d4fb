"""bench/compare_hf_gpu.py without a GPU: what its parent does, and what the fast variant computes."""

import json
import os
import subprocess
import sys


from command import ROOT


def python(program, *arguments, **environment):
    paths = os.pathsep.join([str(ROOT / "bench"), os.environ.get("PYTHONPATH", "")])
    return subprocess.run([sys.executable, "-W", "ignore", "-c", program, *map(str, arguments)], capture_output=True, text=True,
                          timeout=600, env=dict(os.environ, PYTHONPATH=paths, OMP_NUM_THREADS="1", **environment))


PARENT = """
import sys, torch
import compare_hf_gpu as compare

def refuse(*_, **__):
    raise SystemExit("CUDA starts in the parent")

torch.cuda.init = torch.cuda._lazy_init = refuse
torch.cuda.is_available = lambda: True
starts = {"hf": [20, 12], "lora-train": [9, 3]}
rates = dict(usual=100, compiled=200)

def run(side, rate, num_steps):
    return dict(step_ms=[1e3] * num_steps, tokens=[rate] * num_steps, losses=[5.0], peak_gib=1.0, start_s=starts[side].pop(0))

def run_hf(args, sizes, folder, workload, variant, warm_up, steps):
    if variant == "liger":
        return run("hf", 400, warm_up + steps) | dict(losses=[6.0])
    return run("hf", rates[variant], warm_up + steps)

starts["hf"] = [1, 1, 1] + starts["hf"]
compare.run_hf = run_hf
compare.run_lora_train = lambda args, sizes, *_: run("lora-train", 500, sizes.warm_up + sizes.steps)
compare.in_child = lambda function, *_: ({}, "equal") if function is compare.equality else None
(compare.Path(sys.argv[1]) / "speed").mkdir()
sys.argv[1:] = ["--tiny", "--parts", "equality,8", "--variants", "usual,compiled,liger", "--work", sys.argv[1], "--json", sys.argv[2]]
compare.main()
"""


def test_parent_starts_no_cuda_and_compares_with_each_variant(tmp_path):
    done = python(PARENT, tmp_path, tmp_path / "result.json")
    assert done.returncode == 0, done
    found = json.loads((tmp_path / "result.json").read_text())["results"]["8"]
    assert (found["best"], found["ratio"], found["ratio_usual"], found["ratio_compiled"]) == ("compiled", 2.5, 5, 2.5)
    assert found["ratio_liger"] is None and found["ratio_kept"] is None, "another loss, and not asked for"
    assert (found["num_tried"], found["num_variants"]) == (2, 3)
    assert "8 hf liger: another loss of step 1: 6.0" in done.stdout, done
    assert (found["lora-train"]["start_cold_s"], found["lora-train"]["start_s"]) == (9, 3)


def test_unknown_variant_is_refused():
    done = python("import compare_hf_gpu; compare_hf_gpu.main()", "--variants", "usual,fast")
    assert done.returncode == 2 and "no fast; there are usual, compiled, liger" in done.stderr, done


LIGER = """
import itertools, sys
from pathlib import Path
import numpy as np, torch, triton.language as tl
from triton.runtime import interpreter
import compare_hf_gpu, hf_steps

# Triton's interpreter has no scalars of floating point, no function of libdevice and no arithmetic in bf16.
convert = interpreter._implicit_cvt
interpreter._implicit_cvt = lambda x: convert(x) if not isinstance(x, float) else \\
    tl.tensor(interpreter.TensorHandle(np.array([x], np.float32), tl.float32), tl.float32)
import liger_kernel.ops.rms_norm
liger_kernel.ops.rms_norm.rsqrt = lambda x: tl.math.rsqrt(x)
hf_steps.BASE_DTYPE = torch.float32

def varlen_attn(query, key, value, begins, _, longest, __, scale, window_size):
    assert window_size == (-1, 0) and longest == max(begins.diff())
    parts = [torch.nn.functional.scaled_dot_product_attention(*(x[a:b].transpose(0, 1) for x in (query, key, value)), scale=scale,
             is_causal=True, enable_gqa=True).transpose(0, 1) for a, b in itertools.pairwise(begins.tolist())]
    return torch.cat(parts)

import torch.nn.attention.varlen
torch.nn.attention.varlen.varlen_attn = varlen_attn

folder = Path(sys.argv[1])
shape = dict(hidden_size=32, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2, intermediate_size=48, vocab_size=64)
compare_hf_gpu.make_model(shape, folder, "cpu")
rows = [dict(input_ids=list(range(a, b)), labels=[-100] * k + list(range(a + k, b))) for a, b, k in ((3, 10, 0), (20, 31, 4), (40, 44, 0))]

def gradients(variant, batch, is_packed):
    model, run = hf_steps.load_hf(folder, hf_steps.VARIANTS[variant], is_packed, "cpu")
    supervised = int((batch["labels"][:, 1:] != -100).sum())
    loss = hf_steps.backward(run, batch, supervised, "cpu")
    return supervised, loss, {name: p.grad for name, p in model.named_parameters() if p.grad is not None}

padded, num_padded = next(hf_steps.padded_batches(rows, 3, "cpu"))
packed, num_packed = next(hf_steps.packed_batches(rows, 25, "cpu"))
assert num_padded == num_packed == packed["input_ids"].numel() == 22
expected = gradients("usual", padded, False)
for name, batch, is_packed in (("compiled", padded, False), ("liger_kept", padded, False), ("liger", packed, True)):
    found = gradients(name, batch, is_packed)
    assert found[0] == expected[0] and len(found[2]) == len(expected[2]) == 14
    worst = max((found[2][key] - value).norm() / value.norm() for key, value in expected[2].items())
    print(name, float(abs(found[1] / expected[1] - 1)), float(worst))
"""


def test_fast_variants_compute_what_the_usual_one_does(tmp_path):
    """Liger's kernels in Triton's interpreter, fp32; FlashAttention of LibTorch is replaced."""
    done = python(LIGER, tmp_path, TRITON_INTERPRET="1")
    assert done.returncode == 0, done
    errors = {line.split()[0]: tuple(map(float, line.split()[1:])) for line in done.stdout.splitlines() if line.count(" ") == 2}
    assert set(errors) == {"compiled", "liger_kept", "liger"}, done
    assert all(max(pair) < 1e-5 for pair in errors.values()), errors
