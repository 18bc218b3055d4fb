#!/usr/bin/env python3
"""What the CUDA side of lora-train is decided and judged by, measured on this machine through PyTorch, gpu_bench and
lora-train bench:

  gemm_rate  rates of GEMMs, attention and memory over a step of Qwen2.5-0.5B and 7B (bench --measure-rates); those of the
             7B stay in the user's cache folder, where later runs of bench find them
  pitch      linears of a layer with rows of adapter columns exact and padded, 16k tokens (gpu_bench); a verdict
  gate_up    gate|up with dS beside dx and beside dy (gpu_bench); a verdict
  gated_delta  forward and backward of the gated delta rule, 8,192 tokens in 1, 8 and 16 documents (gpu_bench)
  copy       bytes per second: on the device, to it and from it (pinned)
  attention  FA2 against cuDNN over packed documents, empty documents, repeated backwards (gpu_bench)
  linears    as pitch, at 4k, 8k and 16k tokens
  hf         milliseconds of a step of transformers + PEFT, shapes of Qwen2.5-0.5B and 7B with random weights
  gemm       TFLOP/s of PyTorch's products of both shapes at M = 4k, 8k, 16k tokens in bf16, and in FP8 where the device
             has it

Usage: bench/gpu_measure.py [--device cuda|cpu] [--only copy,gemm,...] [--limit-s S] [--json FILE] [--header TEXT]
       bench/gpu_measure.py --only pitch --whole-step
--whole-step also measures steps of the 7B with each row pitch (lora-train bench, minutes). Times of PyTorch are medians of
10 after 3 that are not counted. --device cpu runs tiny sizes, to test this script. A measurement that fails says so and the
others go on; the last line is `figure: ...`, the exit code 1 when any failed.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.update(TQDM_DISABLE="1", HF_HUB_DISABLE_PROGRESS_BARS="1", HF_HUB_OFFLINE="1")
ROOT = Path(__file__).resolve().parents[1]
BIN = Path(os.environ.get("LORA_TRAIN_BIN", ROOT / "build/dev/bin"))
SHAPES = {  # of Qwen2.5
    "0.5B": dict(hidden_size=896, num_hidden_layers=24, num_attention_heads=14, num_key_value_heads=2,
                 intermediate_size=4864, vocab_size=151936, tie_word_embeddings=True),
    "7B": dict(hidden_size=3584, num_hidden_layers=28, num_attention_heads=28, num_key_value_heads=4,
               intermediate_size=18944, vocab_size=152064, tie_word_embeddings=False)}
TINY = {"tiny": dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                     intermediate_size=128, vocab_size=256, tie_word_embeddings=True)}
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def products(shape):
    """{name: (N, K)} of the joined linears of a layer: y [M, N] = x [M, K] W^T."""
    hidden, ffn = shape["hidden_size"], shape["intermediate_size"]
    kv = hidden // shape["num_attention_heads"] * shape["num_key_value_heads"]
    return {"qkv": (hidden + 2 * kv, hidden), "o": (hidden, hidden), "gate|up": (2 * ffn, hidden), "down": (hidden, ffn)}


class Measure:
    """Prints and keeps what is measured."""

    def __init__(self, args):
        import torch
        self.torch, self.device, self.deadline = torch, args.device, time.monotonic() + args.limit_s
        self.is_cuda = args.device == "cuda"
        self.shapes = SHAPES if self.is_cuda else TINY
        if self.is_cuda:
            torch.backends.cuda.preferred_blas_library("cublaslt")
        self.results, self.failed, self.left_out, self.verdicts = [], [], [], []
        self.whole_step = args.whole_step

    def keep(self, kind, name, unit, value, **more):
        self.results.append(dict(kind=kind, name=name, unit=unit, value=value, **more))
        words = "  ".join(f"{key} {number:.4g}" for key, number in more.items())
        print(f"{kind:9s} {name:44s} {value:10.2f} {unit}  {words}", flush=True)

    def seconds(self, body, repeats=10):
        """Median seconds of body(); on CUDA by events."""
        torch = self.torch
        for _ in range(3):
            body()
        times = []
        for _ in range(repeats):
            if self.is_cuda:
                start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                start.record()
                body()
                end.record()
                end.synchronize()
                times.append(start.elapsed_time(end) / 1e3)
            else:
                begin = time.perf_counter()
                body()
                times.append(time.perf_counter() - begin)
        return statistics.median(times)

    def attempt(self, name, body, *arguments):
        if time.monotonic() > self.deadline:
            self.left_out.append(name)
            return
        try:
            body(*arguments)
        except Exception as error:  # noqa: BLE001: one measurement that fails is a result, too
            self.failed.append(name)
            print(f"{name}: FAILED: {type(error).__name__}: {str(error)[:600]}", flush=True)
        finally:
            if self.is_cuda:
                self.torch.cuda.empty_cache()


def copy(m):
    torch = m.torch
    num_bytes = 1 << 30 if m.is_cuda else 1 << 20
    source = torch.zeros(num_bytes, dtype=torch.uint8, device=m.device)
    target = torch.empty_like(source)
    m.keep("copy", "on the device, read + written", "GB/s", 2e-9 * num_bytes / m.seconds(lambda: target.copy_(source)))
    if m.is_cuda:
        host = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)
        m.keep("copy", "to the device, pinned", "GB/s",
               1e-9 * num_bytes / m.seconds(lambda: target.copy_(host, non_blocking=True)))
        m.keep("copy", "from the device, pinned", "GB/s",
               1e-9 * num_bytes / m.seconds(lambda: host.copy_(source, non_blocking=True)))


def gemm_bf16(m, shape_name, name, M, N, K):
    torch = m.torch
    x = torch.randn(M, K, device=m.device, dtype=torch.bfloat16)
    weight = torch.randn(N, K, device=m.device, dtype=torch.bfloat16)
    out = torch.empty(M, N, device=m.device, dtype=torch.bfloat16)
    seconds = m.seconds(lambda: torch.mm(x, weight.t(), out=out))
    m.keep("gemm", f"bf16 {shape_name} {name} M {M} N {N} K {K}", "TFLOP/s", 2e-12 * M * N * K / seconds,
           ms=1e3 * seconds)


def gemm_fp8(m, shape_name, name, M, N, K):
    torch = m.torch
    x = torch.randn(M, K, device=m.device).to(torch.float8_e4m3fn)
    weight = torch.randn(N, K, device=m.device).to(torch.float8_e4m3fn)
    one = torch.ones((), device=m.device)
    seconds = m.seconds(lambda: torch._scaled_mm(x, weight.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16,
                                                 use_fast_accum=True))
    m.keep("gemm", f"fp8 {shape_name} {name} M {M} N {N} K {K}", "TFLOP/s", 2e-12 * M * N * K / seconds,
           ms=1e3 * seconds)


def gemm(m):
    kinds = [("bf16", gemm_bf16)]
    if m.is_cuda and m.torch.cuda.get_device_capability() >= (8, 9):
        kinds.append(("fp8", gemm_fp8))
    else:
        print("gemm      fp8: not measured, this device has none")
    for M in (8192, 4096, 16384) if m.is_cuda else (32,):
        for kind, body in kinds:
            for shape_name, shape in m.shapes.items():
                for name, (N, K) in products(shape).items():
                    m.attempt(f"gemm {kind} {shape_name} {name} M {M}", body, m, shape_name, name, M, N, K)


def make_hf_model(m, shape):
    from peft import LoraConfig, get_peft_model
    from transformers import Qwen2Config, Qwen2ForCausalLM
    torch = m.torch
    config = Qwen2Config(max_position_embeddings=32768, rms_norm_eps=1e-6, attn_implementation="sdpa", **shape)
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(m.device):
            base = Qwen2ForCausalLM(config)
    finally:
        torch.set_default_dtype(torch.float32)
    return get_peft_model(base, LoraConfig(r=16, lora_alpha=32, target_modules=TARGETS, task_type="CAUSAL_LM")).train()


def hf_step(m, name, shape, tokens, is_recomputed):
    torch = m.torch
    model = make_hf_model(m, shape)
    if is_recomputed:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.enable_input_require_grads()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4, fused=m.is_cuda)
    ids = torch.randint(shape["vocab_size"], (1, tokens), device=m.device)

    def step():
        with torch.autocast(m.device, torch.bfloat16):
            loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    if m.is_cuda:
        torch.cuda.reset_peak_memory_stats()
    seconds = m.seconds(step, repeats=5)
    peak = torch.cuda.max_memory_allocated() / 2**30 if m.is_cuda else 0.0
    m.keep("hf", f"{name}, 1 x {tokens} tokens, {'recomputed' if is_recomputed else 'kept'}", "ms/step", 1e3 * seconds,
           tokens_per_s=tokens / seconds, peak_gib=peak)


def hf(m):
    tokens = 4096 if m.is_cuda else 16
    for name, shape in m.shapes.items():
        for is_recomputed in (False, True):
            m.attempt(f"hf {name} {'recomputed' if is_recomputed else 'kept'}", hf_step, m, name, shape, tokens,
                      is_recomputed)


def run_program(m, *command, stderr=subprocess.STDOUT):
    """The output of a program of lora-train, which may take what is left of the time."""
    torch = Path(m.torch.__file__).parent  # the programs take the LibTorch of this Python
    folders = [os.environ.get("LD_LIBRARY_PATH", ""), str(BIN / "lib"), str(torch / "lib")]
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=stderr, text=True,
                          env=dict(os.environ, LORA_TRAIN_TORCH=str(torch), LD_LIBRARY_PATH=":".join(filter(None, folders))),
                          timeout=max(10.0, m.deadline - time.monotonic()))
    if done.returncode != 0:
        print(done.stdout, end="", flush=True)
        raise RuntimeError(f"{command[0]}: exit code {done.returncode}")
    return done.stdout


def run_gpu_bench(m, what, *flags):
    output = run_program(m, BIN / "gpu_bench", what, *flags, *([] if m.is_cuda else ["--cpu"]))
    print(output, end="", flush=True)
    m.results += [dict(kind=what, name=line) for line in output.splitlines() if " forward " in line]
    found = [line.removeprefix("verdict ") for line in output.splitlines() if line.startswith("verdict ")]
    m.results += [dict(kind=what, name=line) for line in found]
    m.verdicts += found


def run_bench(m, shape, *words):
    """The object that lora-train bench prints."""
    sizes = [] if m.is_cuda else ["max_seq_len=64", "micro_batch_size=2", "--steps", "3", "--warm-up", "1"]
    output = run_program(m, BIN / "lora-train", "bench", "--shape", shape, f"device={m.device}", "precision=bf16", "--json",
                         *sizes, *words, stderr=None)
    return json.loads(output.splitlines()[-1])


def gemm_rate(m):
    with tempfile.TemporaryDirectory() as folder:
        for shape in ("qwen2.5-0.5b", "qwen2.5-7b") if m.is_cuda else ("tiny-qwen2",):
            is_kept = shape == "qwen2.5-7b"
            words = [] if is_kept else ["--rates", Path(folder) / "rates.json"]
            rates = run_bench(m, shape, "--measure-rates", *words)["rates"]
            m.keep("gemm_rate", f"{shape}, GEMMs of a step", "TFLOP/s", rates["gemm_flops_per_s"] / 1e12,
                   attention_forward=rates["attention_forward_flops_per_s"] / 1e12,
                   attention_backward=rates["attention_backward_flops_per_s"] / 1e12,
                   memory_TB_s=rates["copy_bytes_per_s"] / 1e12)
            m.verdicts.append(f"{shape}: GEMMs {rates['gemm_flops_per_s'] / 1e12:.4g} TFLOP/s")


def pitch(m):
    m.attempt("pitch", run_gpu_bench, m, "pitch")
    if m.whole_step:
        m.attempt("pitch of a whole step", whole_step_pitch, m)


def whole_step_pitch(m):
    shape = "qwen2.5-7b" if m.is_cuda else "tiny-qwen2"
    ms = {}
    for name in ("exact", "padded"):
        speed = run_bench(m, shape, "--row-pitch", name)["speed"]
        ms[name] = speed["step_ms"]
        m.keep("pitch", f"{shape}, whole step, {name}", "ms/step", ms[name], p10=speed["step_ms_p10"],
               p90=speed["step_ms_p90"])
    fast, slow = sorted(ms, key=ms.get)
    m.verdicts.append(f"whole step of {shape}: {fast} is faster: {ms[fast]:.2f} against {ms[slow]:.2f} ms, "
                      f"{1 - ms[fast] / ms[slow]:.2%}")
    print(f"verdict {m.verdicts[-1]}", flush=True)


def gate_up(m):
    m.attempt("gate_up", run_gpu_bench, m, "gate_up")


def gated_delta(m):
    m.attempt("gated_delta", run_gpu_bench, m, "gated_delta")


def attention(m):
    for flags in ([], ["--deterministic"]):
        m.attempt(f"attention {' '.join(flags)}", run_gpu_bench, m, "attention", *flags)


def linears(m):
    m.attempt("linears", run_gpu_bench, m, "linears")


def main():
    kinds = {kind.__name__: kind for kind in (gemm_rate, pitch, gate_up, gated_delta, copy, attention, hf, linears, gemm)}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--only", default=",".join(kinds))
    parser.add_argument("--limit-s", type=float, default=86400)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--header", default="")
    parser.add_argument("--whole-step", action="store_true")
    args = parser.parse_args()
    m = Measure(args)
    if m.is_cuda and not m.torch.cuda.is_available():
        print("figure: torch sees no GPU: nothing was measured")
        sys.exit(6)
    device = m.torch.cuda.get_device_name() if m.is_cuda else "cpu"
    print(f"{args.header}; {device}, torch {m.torch.__version__}, {time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())}")
    for kind in args.only.split(","):
        m.attempt(kind, kinds[kind], m)
    if args.json:
        args.json.write_text(json.dumps({"header": args.header, "device": device, "failed": m.failed,
                                         "left_out": m.left_out, "results": m.results}, indent=0))
    for name in m.left_out:
        print(f"left out for lack of time: {name}")
    verdicts = "".join(f"{verdict}; " for verdict in m.verdicts)
    print(f"figure: {verdicts}{len(m.results)} measured, {len(m.failed)} failed, {len(m.left_out)} left out for lack of time")
    sys.exit(1 if m.failed else 0)


if __name__ == "__main__":
    main()
