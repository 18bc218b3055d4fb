#!/usr/bin/env python3
"""Compares lora-train with transformers + PEFT on one CPU: the same random model (Qwen2.5 or Qwen3.5), rows, steps and threads.

Both sides run as child processes in turn (A/B/A/B), each with the machine to itself; figures are medians over rounds and
steps, the first two steps of each process left out. LoRA r 16 on all linear layers, AdamW, no gradient checkpointing,
one document of --tokens tokens per step ("short": two of 512). transformers runs sdpa attention; in bf16 its base is bf16
and the adapters are fp32 under autocast, as its Trainer does with bf16=True.

  tok/s      tokens / median step time
  share      FLOPs that the step needs / step time / GEMM rate. Needed: forward and input gradient of every linear, the
             LoRA products (6 per weight and token), attention over the causal half (backward twice the forward), the gated
             delta rule by chunks of 64 (backward three times the forward), the head on supervised rows only. GEMM rate:
             the best that LibTorch gives for the model's own products, weighted by FLOPs: for each the best of 9 of
             torch.mm into a buffer and of oneDNN with packed weights, measured before and after every round; the
             highest of the run. A share above 100% is a fault of this program and ends it.
  extra MiB  peak resident memory less the bytes of the weights file; for transformers the peak from the first step on
             (its loading is not held against it), for lora-train the peak of the whole process.
  start-up   from starting the process to the start of step 1

Beside it stands what the CPU's multipliers can do (bench/cpu_peak.cpp).

Usage: bench/compare_hf_cpu.py [--shapes 0.1b,0.5b,short] [--precisions fp32,bf16] [--supervised 1.0,0.5] [--rounds 2]
       [--steps 4] [--binary build/release/bin/lora-train] [--only hf|lora-train]
       [--before ANOTHER-BINARY]
Writes bench/results/<date>-cpu-<cpu>.txt (--log names another file). Model and rows go to build/bench.
"""

import argparse
import datetime
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHON = ROOT / ".deps/venv/bin/python"
SHAPES = {  # hidden, layers, heads, kv heads, ffn; the vocabulary of Qwen2.5, tied. Those of Qwen3.5 have its 0.8B's proportions
    "0.5b": dict(hidden_size=896, num_hidden_layers=24, num_attention_heads=14, num_key_value_heads=2,
                 intermediate_size=4864),
    "0.1b": dict(hidden_size=512, num_hidden_layers=12, num_attention_heads=8, num_key_value_heads=2,
                 intermediate_size=2816),
    "qwen3.5-0.1b": dict(hidden_size=512, num_hidden_layers=12, num_attention_heads=4, num_key_value_heads=1, head_dim=256,
                         intermediate_size=1792, linear_num_key_heads=8, linear_num_value_heads=8),
    "short": dict(hidden_size=896, num_hidden_layers=6, num_attention_heads=14, num_key_value_heads=2,
                  intermediate_size=4864, vocab_size=16384),
}
VOCAB = 151936
DOCUMENTS = {"short": (2, 512)}  # of a step, and their tokens; otherwise one of --tokens
HEAD_ROWS = 512  # of the head's product in the yardstick
RANK = 16
WARM_UP_STEPS = 2
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
DELTA_TARGETS = ["in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj"]
CHUNK, DELTA_SIZE = 64, 128


def vocabulary(shape):
    return shape.get("vocab_size", VOCAB)


def is_hybrid(shape):
    return "linear_num_key_heads" in shape


def targets(shape):
    return TARGETS + DELTA_TARGETS * is_hybrid(shape)


def attention_layers(shape):
    return shape["num_hidden_layers"] // (4 if is_hybrid(shape) else 1)


def attention_width(shape):
    return shape.get("head_dim", shape["hidden_size"] // shape["num_attention_heads"]) * shape["num_attention_heads"]


def linear_shapes(shape):
    """(in, out) of the linears of all layers."""
    hidden, ffn, q = shape["hidden_size"], shape["intermediate_size"], attention_width(shape)
    kv = q // shape["num_attention_heads"] * shape["num_key_value_heads"]
    attention = [(hidden, q * (2 if is_hybrid(shape) else 1)), (hidden, kv), (hidden, kv), (q, hidden)]
    shapes = attention * attention_layers(shape) + [(hidden, ffn), (hidden, ffn), (ffn, hidden)] * shape["num_hidden_layers"]
    if is_hybrid(shape):
        heads = shape["linear_num_value_heads"]
        keys, values = DELTA_SIZE * shape["linear_num_key_heads"], DELTA_SIZE * heads
        shapes += [(hidden, 2 * keys + values), (hidden, values), (hidden, heads), (hidden, heads), (values, hidden)] * (
            shape["num_hidden_layers"] - attention_layers(shape))
    return shapes


def needed_flops(shape, documents, tokens, supervised_tokens):
    """Of a step of `documents` documents."""
    linears = sum(i * o for i, o in linear_shapes(shape))
    lora = sum(RANK * (i + o) for i, o in linear_shapes(shape))
    attention = 2 * tokens * tokens * attention_width(shape) * attention_layers(shape)
    heads = shape.get("linear_num_value_heads", 0) * (shape["num_hidden_layers"] - attention_layers(shape))
    rule = heads * tokens * (2 * (CHUNK + 1) * 2 * DELTA_SIZE + 6 * DELTA_SIZE ** 2)
    return (documents * (4 * linears * tokens + 6 * lora * tokens + 3 * attention + 4 * rule) +
            4 * shape["hidden_size"] * vocabulary(shape) * supervised_tokens)


# ---- children: each prints one JSON line -------------------------------------------------------------------------

def child_make(args):
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen3_5ForCausalLM, Qwen3_5TextConfig
    torch.manual_seed(1)
    shape = SHAPES[args.shape]
    config_class, model_class = (Qwen3_5TextConfig, Qwen3_5ForCausalLM) if is_hybrid(shape) else (Qwen2Config, Qwen2ForCausalLM)
    rope = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}} if is_hybrid(shape) else {"rope_theta": 1e6}
    config = config_class(max_position_embeddings=32768, rms_norm_eps=1e-6, tie_word_embeddings=True, **rope,
                          **{"vocab_size": VOCAB, **shape})
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[args.precision]
    model_class(config).to(dtype).save_pretrained(args.model)
    return {}


def peak_kib():
    return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text()).group(1))


def child_hf(args):
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[args.precision]
    base = AutoModelForCausalLM.from_pretrained(args.model, dtype=dtype, attn_implementation="sdpa")
    model = get_peft_model(base, LoraConfig(r=RANK, lora_alpha=32, target_modules=targets(SHAPES[args.shape]),
                                           task_type="CAUSAL_LM"))
    model.train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-4, weight_decay=0.0)
    rows = [json.loads(line) for line in Path(args.data).read_text().splitlines()]
    ready = time.time()
    Path("/proc/self/clear_refs").write_text("5")  # peak memory counts from here
    step_ms, losses = [], []
    for step in range(args.steps):
        first = step * args.documents
        start = time.perf_counter()
        ids, labels = (torch.tensor([row[key] for row in rows[first:first + args.documents]])
                       for key in ("input_ids", "labels"))
        with torch.autocast("cpu", torch.bfloat16, enabled=args.precision == "bf16"):
            loss = model(input_ids=ids, labels=labels, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
        step_ms.append((time.perf_counter() - start) * 1e3)
    return {"step_ms": step_ms, "losses": losses, "peak_kib": peak_kib(), "ready": ready}


def best_seconds(product):
    product()
    times = []
    for _ in range(9):
        start = time.perf_counter()
        product()
        times.append(time.perf_counter() - start)
    return min(times)


def child_gemm(args):
    """GFLOP/s of each product: the better of mm into a buffer and of oneDNN with packed weights."""
    import torch
    torch.set_num_threads(args.threads)
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[args.precision]
    shape, rows = SHAPES[args.shape], args.documents * args.tokens
    products = [(rows, *pair) for pair in linear_shapes(shape)]
    head = (min(rows, HEAD_ROWS), shape["hidden_size"], vocabulary(shape))
    parts, flops, seconds = {}, 0.0, 0.0
    for M, num_in, num_out in set(products) | {head}:
        x, weight, y = (torch.randn(size, dtype=dtype) for size in ((M, num_in), (num_out, num_in), (M, num_out)))
        took = 0.0
        for a, b in ((x, weight), (y, weight.t().contiguous())):  # forward, input gradient: a b^T
            out = torch.empty(M, b.shape[0], dtype=dtype)
            packed = torch.ops.mkldnn._reorder_linear_weight(b, M)
            took += min(best_seconds(lambda: torch.mm(a, b.t(), out=out)), best_seconds(
                lambda: torch.ops.mkldnn._linear_pointwise(a, packed, None, "none", [], "")))
        count = products.count((M, num_in, num_out)) if (M, num_in, num_out) != head else rows / M
        parts[f"{M}x{num_in}x{num_out}"] = round(4e-9 * M * num_in * num_out / took, 1)
        flops += 4 * M * num_in * num_out * count
        seconds += took * count
    return {"gflops": flops / seconds * 1e-9, "parts": parts}


# ---- the parent: no torch in it, so that a child's peak memory is its own -----------------------------------------

def run_child(mode, args, shape, precision, **more):
    documents, tokens = DOCUMENTS.get(shape, (1, args.tokens))
    command = [str(PYTHON), __file__, "--child", mode, "--shape", shape, "--precision", precision, "--threads",
               str(args.threads), "--documents", str(documents), "--tokens", str(tokens), "--steps", str(args.steps)]
    for key, value in more.items():
        command += [f"--{key}", str(value)]
    start = time.time()
    done = subprocess.run(command, capture_output=True, text=True, env=child_environment(args))
    if done.returncode != 0:
        sys.exit(f"{mode} child failed with {done.returncode}:\n{done.stderr[-3000:]}")
    result = json.loads(done.stdout.strip().splitlines()[-1])
    if "ready" in result:
        result["start_up_s"] = result["ready"] - start
    return result


def child_environment(args):
    return dict(os.environ, OMP_NUM_THREADS=str(args.threads), MKL_NUM_THREADS=str(args.threads), HF_HUB_OFFLINE="1",
                TRANSFORMERS_VERBOSITY="error")


def run_lora_train(args, binary, shape, model, data, precision, output):
    """One `train` run; rates from its metrics.jsonl, peak memory from wait4."""
    documents, tokens = DOCUMENTS.get(shape, (1, args.tokens))
    profile = {
        "model": str(model), "datasets": [{"path": str(data), "type": "pretokenized"}], "device": "cpu",
        "precision": precision, "base_precision": precision, "lora_r": RANK, "lora_alpha": 32,
        "lora_target_modules": targets(SHAPES[shape]), "packing": False, "shuffle": False, "micro_batch_size": documents,
        "global_batch_size": documents, "max_seq_len": tokens, "max_steps": args.steps, "num_epochs": 100,
        "learning_rate": 2e-4, "lr_scheduler_type": "constant", "warmup_steps": 0, "weight_decay": 0.0,
        "max_grad_norm": 1.0, "gradient_checkpointing": "off", "logging_steps": 1, "report_to": "none",
        "save_steps": 1000000, "save_interval": None, "output_dir": str(output)}
    profile_file = output.parent / "profile.json"
    profile_file.write_text(json.dumps(profile, indent=1))
    start = time.time()
    with open(output.parent / "lora-train.log", "wb") as log:
        process = subprocess.Popen([str(binary), "train", "--profile", str(profile_file), "--overwrite"],
                                   stdout=log, stderr=log, env=child_environment(args))
        _, status, usage = os.wait4(process.pid, 0)
    if os.waitstatus_to_exitcode(status) != 0:
        sys.exit(f"lora-train failed with {os.waitstatus_to_exitcode(status)}:\n"
                 f"{(output.parent / 'lora-train.log').read_text()[-3000:]}")
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line["event"] == "train"]
    assert len(steps) == args.steps and all(line["tokens"] == documents * tokens for line in steps), steps
    return {"step_ms": [line["step_ms"] for line in steps], "losses": [line["loss"] for line in steps],
            "peak_kib": usage.ru_maxrss, "start_up_s": steps[0]["time"] - steps[0]["step_ms"] / 1e3 - start}


def write_rows(path, vocab, tokens, share, num_rows):
    """Random ids. The supervised share is the tail of each document, as in a prompt and its answer."""
    import random
    rng = random.Random(7)
    with open(path, "w") as out:
        for _ in range(num_rows):
            ids = [rng.randrange(vocab) for _ in range(tokens)]
            prompt = round(tokens * (1 - share))
            out.write(json.dumps({"input_ids": ids, "labels": [-100] * prompt + ids[prompt:]}) + "\n")


def supervised_tokens(path):
    """Of one document."""
    return sum(label != -100 for label in json.loads(Path(path).read_text().splitlines()[0])["labels"][1:])


def cpu_peak(args):
    """GFLOP/s of the multipliers."""
    program = Path(args.work) / "cpu_peak"
    subprocess.run(["c++", "-O2", "-pthread", str(ROOT / "bench/cpu_peak.cpp"), "-o", str(program)], check=True)
    return json.loads(subprocess.run([str(program), str(args.threads)], capture_output=True, text=True, check=True).stdout)


def cpu_description():
    text = Path("/proc/cpuinfo").read_text()
    flags = set(re.search(r"^flags\s*:(.*)$", text, re.M).group(1).split())
    name = re.search(r"^model name\s*:\s*(.*)$", text, re.M).group(1)
    family, model = (re.search(rf"^{key}\s*:\s*(.*)$", text, re.M).group(1) for key in ("cpu family", "model"))
    have = {label: flag in flags for label, flag in
            (("AVX2", "avx2"), ("AVX512F", "avx512f"), ("AVX512-BF16", "avx512_bf16"), ("AMX-BF16", "amx_bf16"))}
    return name, f"{name} (family {family}, model {model}), {os.cpu_count()} cores; " + ", ".join(
        f"{label} {'yes' if there else 'no'}" for label, there in have.items())


def package_versions():
    code = ("import torch, transformers, peft; "
            "print('torch', torch.__version__, 'transformers', transformers.__version__, 'peft', peft.__version__)")
    return subprocess.run([str(PYTHON), "-c", code], capture_output=True, text=True, check=True).stdout.strip()


class Report:
    def __init__(self, path):
        self.file = open(path, "w") if path else None

    def line(self, text=""):
        print(text, flush=True)
        if self.file:
            self.file.write(text + "\n")
            self.file.flush()


def measure(args, shape, precision, share, report):
    work = Path(args.work)
    model = work / f"model-{shape}-{precision}"
    if not (model / "config.json").exists():
        run_child("make", args, shape, precision, model=model)
    documents, tokens = DOCUMENTS.get(shape, (1, args.tokens))
    data = work / f"rows-{shape}-{tokens}-{share}.jsonl"
    write_rows(data, vocabulary(SHAPES[shape]), tokens, share, documents * args.steps)
    binaries = {"lora-train": args.binary, "before": args.before}
    sides = [args.only] if args.only else ["hf", "lora-train"]
    sides += ["before"] * bool(args.before)
    runs, gemm = {side: [] for side in sides}, []

    def take_gemm_rate(moment):
        gemm.append(run_child("gemm", args, shape, precision))
        report.line(f"  {moment}: GEMM {gemm[-1]['gflops']:.1f} GFLOP/s {gemm[-1]['parts']}")

    for round_number in range(args.rounds):
        take_gemm_rate(f"before round {round_number + 1}")
        for side in sides:
            result = run_child("hf", args, shape, precision, model=model, data=data) if side == "hf" else \
                run_lora_train(args, binaries[side], shape, model, data, precision, work / "run")
            runs[side].append(result)
            report.line(f"  round {round_number + 1}: {side}: step_ms {[round(ms) for ms in result['step_ms']]} "
                        f"peak {result['peak_kib'] / 1024:.0f} MiB, start-up {result['start_up_s']:.1f} s, "
                        f"losses {[round(loss, 5) for loss in result['losses']]}")
    take_gemm_rate("after the last")
    weights_mib = sum(f.stat().st_size for f in model.glob("*.safetensors")) / 2**20
    flops = needed_flops(SHAPES[shape], documents, tokens, documents * supervised_tokens(data))
    rate = max(g["gflops"] for g in gemm)
    summary = {}
    for side in sides:
        step_s = statistics.median(ms for run in runs[side] for ms in run["step_ms"][WARM_UP_STEPS:]) / 1e3
        summary[side] = {
            "tok_s": documents * tokens / step_s, "share": flops / step_s * 1e-9 / rate,
            "extra_mib": statistics.median(run["peak_kib"] for run in runs[side]) / 1024 - weights_mib,
            "start_up_s": statistics.median(run["start_up_s"] for run in runs[side])}
        report.line(f"  {side:10s} {summary[side]['tok_s']:8.1f} tok/s  {summary[side]['share']:6.1%} of the GEMM rate"
                    f"  extra {summary[side]['extra_mib']:7.0f} MiB  start-up {summary[side]['start_up_s']:.1f} s")
        if summary[side]["share"] > 1:
            sys.exit(f"{side}: a share above 100% is a fault of this bench: the GEMM rate was measured too low")
    if {"hf", "lora-train"} <= set(sides):
        speed = summary["lora-train"]["tok_s"] / summary["hf"]["tok_s"]
        memory = summary["lora-train"]["extra_mib"] / summary["hf"]["extra_mib"]
        report.line(f"  lora-train / hf: {speed:.3f}x tok/s (goal 1.35), {memory:.2f}x extra memory (goal 0.50)")
    report.line()
    return dict(shape=shape, precision=precision, share=share, gemm=rate, **summary)


def print_table(results, report):
    report.line("shape precision supervised | GEMM GFLOP/s | hf tok/s share extra-MiB | lora-train tok/s share extra-MiB"
                " | before tok/s share extra-MiB | speed memory")
    for row in results:
        cells = [f"{row['shape']:5s} {row['precision']:9s} {row['share']:10.0%} | {row['gemm']:12.1f} |"]
        for side in ("hf", "lora-train", "before"):
            cells.append(f"{row[side]['tok_s']:8.1f} {row[side]['share']:5.1%} {row[side]['extra_mib']:9.0f} |"
                         if side in row else "       -     -         - |")
        if "hf" in row and "lora-train" in row:
            cells.append(f"{row['lora-train']['tok_s'] / row['hf']['tok_s']:5.2f} "
                         f"{row['lora-train']['extra_mib'] / row['hf']['extra_mib']:6.2f}")
        report.line(" ".join(cells))


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default="0.1b,0.5b")
    parser.add_argument("--precisions", default="fp32,bf16")
    parser.add_argument("--supervised", default="1.0,0.5", help="shares of each document that are trained")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--binary", default=ROOT / "build/release/bin/lora-train")
    parser.add_argument("--before", help="another lora-train to run beside it")
    parser.add_argument("--only", choices=["hf", "lora-train"])
    parser.add_argument("--log", help="file for the raw output; - for none")
    parser.add_argument("--work", default=ROOT / "build/bench")
    for hidden in ("child", "shape", "precision", "model", "data"):
        parser.add_argument(f"--{hidden}", help=argparse.SUPPRESS)
    parser.add_argument("--documents", type=int, default=1, help=argparse.SUPPRESS)
    return parser.parse_args()


def main():
    args = parse_arguments()
    if args.child:
        print(json.dumps({"make": child_make, "hf": child_hf, "gemm": child_gemm}[args.child](args)))
        return
    if args.steps <= WARM_UP_STEPS:
        sys.exit(f"--steps must be over {WARM_UP_STEPS}: the first {WARM_UP_STEPS} are left out")
    if args.only != "hf" and not os.access(args.binary, os.X_OK):
        sys.exit(f"{args.binary}: no such program; build it (scripts/quickstart.sh does) or name another with --binary")
    Path(args.work).mkdir(parents=True, exist_ok=True)
    name, cpu = cpu_description()
    log = args.log or ROOT / "bench/results" / \
        f"{datetime.date.today()}-cpu-{re.sub(r'[^a-z0-9]+', '-', name.lower()).strip('-')}.txt"
    report = Report(None if log == "-" else log)
    commit = subprocess.run(["git", "-C", str(ROOT), "describe", "--always", "--dirty"], capture_output=True,
                            text=True).stdout.strip()
    report.line(f"date {datetime.datetime.now():%Y-%m-%d %H:%M}, commit {commit}, command: {' '.join(sys.argv)}")
    report.line(f"cpu {cpu}; {platform.platform()}; load before {os.getloadavg()[0]:.2f}")
    report.line(f"{package_versions()}; python {platform.python_version()}; threads {args.threads}")
    report.line(f"documents of {args.tokens} tokens, one a step (short: two of 512); LoRA r {RANK} on all linears of the layers")
    report.line(f"peak of the multipliers, GFLOP/s: {cpu_peak(args)}\n")
    results = []
    for shape in args.shapes.split(","):
        for precision in args.precisions.split(","):
            for share in map(float, args.supervised.split(",")):
                report.line(f"{shape} {precision}, {share:.0%} supervised")
                results.append(measure(args, shape, precision, share, report))
    print_table(results, report)


if __name__ == "__main__":
    main()
