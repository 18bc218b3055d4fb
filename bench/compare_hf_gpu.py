#!/usr/bin/env python3
"""lora-train against transformers + PEFT on one GPU: the same random weights, adapters (B not zero) and learnable tokens.

  equality  bf16 on both sides, held against transformers + PEFT in fp32 on a base whose attention matters: the error of
            each tensor's gradient is at most 1.5 times that of PEFT in bf16; the curves of 50 steps agree within 1% and
            fall by at least 30%
  2x4       rows of 2048 tokens, micro-batches of 2, 4 of them a step
  8         the same, one micro-batch of 8 rows a step
  mix       documents of log-normal lengths, 500 tokens on average, the second half of each trained: lora-train packs them
            into 8 rows of 2048; transformers takes 4 times 8 documents a step, padded to the longest of the 8; with Liger
            they stand in one row of 8 x 2048 tokens without padding

Variants of transformers, all under bf16 autocast, base in bf16, adapters in fp32, fused AdamW:
  usual, kept                    sdpa attention, activations recomputed or kept
  compiled, kept_compiled        the same with torch.compile, and without the mask that would keep sdpa from FlashAttention
  liger, liger_kept              Liger's Triton kernels (RMSNorm, RoPE, SwiGLU, linear + cross-entropy in one)
Each is tried for a few steps; the best is the fastest that fits. Then best and lora-train in turn (A/B/A/B), each process
with the GPU to itself, 10 steps to warm up and 30 measured. Figures: median, p10 and p90 over the steps of all rounds of
tokens/s without padding; peak memory; seconds from the start of the process to the end of step 1, in the first round
(start_cold_s) and in the last (start_s), before which lora-train has tuned.
QLoRA is not compared: bitsandbytes is too large to travel with the bundle.

Usage: bench/compare_hf_gpu.py [--device cuda|cpu] [--tiny] [--parts equality,2x4,8,mix] [--variants usual,compiled,...]
       [--shape 7B] [--work DIR] [--rounds 2] [--warm-up 10] [--steps 30] [--limit-s S] [--json FILE]
--variants: these, in this order (default all). A part's result has ratio (to the fastest) and ratio_NAME, null where not tried.
--tiny: a small shape and few, short steps, to try this script where no GPU is. Model and rows go to --work (15 GB for 7B).
The last line is `figure: ...`; exit code 1 = something failed, 77 = transformers or peft is missing.
"""

import argparse
import json
import math
import multiprocessing
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import SimpleNamespace

os.environ.update(TQDM_DISABLE="1", HF_HUB_DISABLE_PROGRESS_BARS="1", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false",
                  PYTORCH_NVML_BASED_CUDA_CHECK="1")
ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / name) for name in ("bench", "tests/gpu", "tests/parity", "tests/support")]
try:
    import torch
    import oracle
    import random_case
    import engine
except ImportError as error:
    print(f"figure: not compared: {error}")
    sys.exit(77)
from gpu_measure import SHAPES, TARGETS
from hf_steps import VARIANTS, WORKLOADS
from program import Failure, events, expect, train

os.environ.setdefault("LORA_TRAIN_TORCH", str(Path(torch.__file__).parent))
os.environ["LD_LIBRARY_PATH"] = ":".join(filter(None, [os.environ.get("LD_LIBRARY_PATH"),
                                                       os.environ["LORA_TRAIN_TORCH"] + "/lib"]))
TINY_SHAPE = dict(hidden_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                  intermediate_size=192, vocab_size=512, tie_word_embeddings=True)
RANK, ALPHA, LEAST_SHARE_OF_ERROR = 16, 32, 0.05
MOST_SHARE_OF_ERROR, CURVE_TOLERANCE, LEAST_FALL, CURVE_STEPS, CURVE_BATCH = 1.5, 1e-2, 0.3, 50, 4
DOES_NOT_FIT, NEEDS_A_GPU = "does not fit", "needs a GPU"


def sizes_of(args):
    """What --tiny makes smaller."""
    if args.tiny:
        return SimpleNamespace(shape=TINY_SHAPE, equality_shape=TINY_SHAPE, length=64, mean_length=24, equality_length=96,
                               learning_rate=6e-3, trial=(1, 2), warm_up=2, steps=3)
    return SimpleNamespace(shape=SHAPES[args.shape], equality_shape=SHAPES["0.5B"], length=2048, mean_length=500,
                           equality_length=512, learning_rate=1e-3, trial=(4, 4), warm_up=args.warm_up, steps=args.steps)


def in_child(function, *arguments):
    """In a process of its own, so that this one holds no CUDA context beside what is measured."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


# ---- the same files for both sides -----------------------------------------------------------------------------------

def make_model(shape, folder, device):
    """A base whose attention matters, in bf16, and an adapter whose B is not zero (tests/parity/random_case.py)."""
    config_class, model_class = random_case.FAMILIES["qwen2"]
    config = config_class(max_position_embeddings=32768, rms_norm_eps=1e-6, **shape)
    generator = torch.Generator(device).manual_seed(7)
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device):
            model = model_class(config)
            random_case.randomise_weights(model, generator)
    finally:
        torch.set_default_dtype(torch.float32)
    model.save_pretrained(folder / "model")
    with torch.device(device):
        random_case.save_adapter(model, dict(r=RANK, lora_alpha=ALPHA, target_modules=TARGETS, task_type="CAUSAL_LM"),
                                 generator, folder / "adapter")


def is_made(folder):
    return (folder / "adapter/adapter_model.safetensors").exists()


def learnable_ids(rng, length, vocab_size):
    """Each token follows from the one before, among few of the vocabulary, so that steps have something to learn."""
    few = min(256, vocab_size)
    ids = [rng.randrange(few)]
    while len(ids) < length:
        ids.append((31 * ids[-1] + 7) % few if rng.random() < 0.9 else rng.randrange(few))
    return ids


def rows_of(workload, sizes, num_steps):
    """Rows of a workload, enough for so many steps of transformers."""
    rng, vocab_size = random.Random(11), sizes.shape["vocab_size"]
    shape = WORKLOADS[workload]
    count = num_steps * shape["rows"] * shape["accumulation"]
    if workload != "mix":
        rows = [learnable_ids(rng, sizes.length, vocab_size) for _ in range(min(count, 64))]
        return [{"input_ids": ids, "labels": ids} for ids in rows]
    rows = []
    for _ in range(min(count, 4096)):
        length = int(sizes.mean_length * math.exp(rng.gauss(0, 0.8) - 0.32))
        ids = learnable_ids(rng, min(max(length, 8), sizes.length), vocab_size)
        rows.append({"input_ids": ids, "labels": [-100] * (len(ids) // 2) + ids[len(ids) // 2:]})
    return rows


# ---- equality --------------------------------------------------------------------------------------------------------

def case_of(folder, name, rows, sizes):
    """What the parity suite's engine and oracle take."""
    data_file = folder / f"{name}.jsonl"
    random_case.write_rows(data_file, rows)
    return SimpleNamespace(folder=folder, model_dir=folder / "model", adapter_dir=folder / "adapter", data_file=data_file,
                           rows=rows, max_seq_len=sizes.equality_length)


def gradient_shares(case, args):
    """{tensor: error of lora-train in bf16 / error of PEFT in bf16}, both against PEFT in fp32."""
    _, exact = oracle.gradients(load(case, args.device, torch.float32), case.rows)
    _, rounded = oracle.gradients(load(case, args.device, torch.bfloat16), case.rows, is_bf16=True)
    _, ours = engine.probe(engine.profile_for(case, case.folder / "probe", device=args.device, precision="bf16",
                                              base_precision="bf16"), case.folder / "probe")
    expect(set(ours) == set(exact), f"tensors differ: {sorted(set(ours) ^ set(exact))[:4]}")
    return {name: oracle.relative_error(ours[name], exact[name]) / oracle.relative_error(rounded[name], exact[name])
            for name in exact}


def load(case, device, dtype):
    return oracle.load_peft(case.model_dir, case.adapter_dir, dtype).to(device)


def curves(case, args, sizes):
    """Losses of lora-train and of PEFT, both in bf16."""
    batch, schedule = CURVE_BATCH, dict(learning_rate=sizes.learning_rate, weight_decay=1.0)  # a decay that a curve shows
    lines = engine.train(engine.profile_for(
        case, case.folder / "run", device=args.device, precision="bf16", base_precision="bf16", micro_batch_size=batch // 2,
        global_batch_size=batch, max_steps=CURVE_STEPS, lr_scheduler_type="cosine", warmup_steps=5, **schedule),
        case.folder / "curve")
    history = oracle.train(load(case, args.device, torch.bfloat16), oracle.batches_in_order(case.rows, batch, CURVE_STEPS),
                           scheduler="cosine", warmup_steps=5, is_bf16=True, **schedule)
    return [line["loss"] for line in lines], [line["loss"] for line in history]


def equality(args, sizes):
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False  # the reference is exact
    folder = args.work / "equality"
    if not is_made(folder):
        make_model(sizes.equality_shape, folder, args.device)
    shutil.rmtree(folder / "run", ignore_errors=True)
    rng = random.Random(5)
    lengths = [sizes.equality_length * (8 - k % 8) // 8 for k in range(CURVE_STEPS * CURVE_BATCH)]
    rows = [{"input_ids": ids, "labels": ids} for ids in
            (learnable_ids(rng, length, sizes.equality_shape["vocab_size"]) for length in lengths)]
    shares = gradient_shares(case_of(folder, "gradients", rows[:8], sizes), args)
    print("share of PEFT's gradient error, largest:", oracle.worst(shares, 5), flush=True)
    worst = max(shares.values())
    ours, theirs = curves(case_of(folder, "curve", rows, sizes), args, sizes)
    distance = max(abs(a - b) / abs(b) for a, b in zip(ours, theirs))
    fall = 1 - sum(ours[-2:]) / sum(ours[:2])
    print(f"curve: {ours[0]:.4f} to {ours[-1]:.4f}, PEFT {theirs[0]:.4f} to {theirs[-1]:.4f}; distance {distance:.2e}")
    expect(len(ours) == len(theirs) == CURVE_STEPS, f"{len(ours)} and {len(theirs)} steps")
    expect(worst <= MOST_SHARE_OF_ERROR, f"the gradient error is {worst:.2f} times PEFT's, at most {MOST_SHARE_OF_ERROR}")
    expect(distance <= CURVE_TOLERANCE, f"the curves are {distance:.1%} apart, at most {CURVE_TOLERANCE:.0%}")
    expect(fall >= LEAST_FALL, f"the loss falls by {fall:.0%}, expected {LEAST_FALL:.0%}: nothing is learnt here")
    expect(worst >= LEAST_SHARE_OF_ERROR, f"the gradient error is {worst:.3f} times PEFT's: that is not bf16")
    return dict(gradient_share=worst, curve_distance=distance, fall=fall, num_tensors=len(shares), num_steps=len(ours)), \
        f"gradient error {worst:.2f}x PEFT's, curve {distance:.1e}, loss falls {fall:.0%}"


# ---- speed -----------------------------------------------------------------------------------------------------------

def run_hf(args, sizes, folder, workload, variant, warm_up, steps):
    """What the child has measured, or why there is nothing."""
    if args.device == "cpu" and VARIANTS[variant].is_liger:
        return dict(failure=NEEDS_A_GPU)
    command = [sys.executable, ROOT / "bench/hf_steps.py", "--device", args.device, "--model", folder, "--rows",
               folder / f"rows-{workload}.jsonl", "--workload", workload, "--variant", variant, "--length",
               sizes.length, "--warm-up", warm_up, "--steps", steps]
    started = time.time()
    try:
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=max(20, args.deadline - time.time()))
    except subprocess.TimeoutExpired:
        return dict(failure="no time was left")
    if done.returncode != 0:
        last = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
        return dict(failure=DOES_NOT_FIT if "OutOfMemoryError" in done.stderr else last[:200])
    result = json.loads(done.stdout.strip().splitlines()[-1])
    return dict(result, start_s=result["end_of_step_1"] - started)


def run_lora_train(args, sizes, folder, workload):
    shape = WORKLOADS[workload]
    is_mix, num_steps, output = workload == "mix", sizes.warm_up + sizes.steps, folder / f"run-{workload}"
    started = time.time()
    summary = train(None, output, "--overwrite", model=str(folder / "model"), init_adapter=str(folder / "adapter"),
                    device=args.device, precision="bf16", max_seq_len=sizes.length, packing=str(is_mix).lower(),
                    shuffle="false", micro_batch_size=shape["rows"],
                    global_batch_size=shape["rows"] * (1 if is_mix else shape["accumulation"]), max_steps=num_steps,
                    num_epochs=1000, learning_rate=1e-4, lr_scheduler_type="constant", warmup_steps=0, weight_decay=0.0,
                    max_grad_norm=1.0, report_to="none", save_steps="off", save_interval="off", eval_steps="off",
                    eval_on_start="false", logging_steps=1,
                    datasets=[{"path": str(folder / f"rows-{workload}.jsonl"), "type": "pretokenized"}])
    steps = events(output, "train")
    expect(len(steps) == num_steps, f"{len(steps)} steps in metrics.jsonl, expected {num_steps}")
    return dict(step_ms=[line["step_ms"] for line in steps], tokens=[line["tokens"] for line in steps],
                losses=[line["loss"] for line in steps], peak_gib=summary["peak_memory_gib"] or 0.0,
                start_s=steps[0]["time"] - started)


def figures(runs, warm_up):
    rates = [1e3 * tokens / ms for run in runs for tokens, ms in list(zip(run["tokens"], run["step_ms"]))[warm_up:]]
    tenths = statistics.quantiles(rates, n=10, method="inclusive")
    return dict(tokens_per_s=tenths[4], p10=tenths[0], p90=tenths[8],
                peak_gib=max(run["peak_gib"] for run in runs), start_s=runs[-1]["start_s"], start_cold_s=runs[0]["start_s"])


def same_loss(ours, theirs, workload):
    """Both have computed the same first step; in the mix, not all cut steps alike."""
    apart = abs(ours["losses"][0] - theirs["losses"][0]) / abs(theirs["losses"][0])
    return workload == "mix" or apart < CURVE_TOLERANCE


def try_variants(args, sizes, folder, workload):
    """{variant: figures of a few steps} of those that work, and how many were tried, with those that cannot run here."""
    found, num_tried, (warm_up, steps), first = {}, 0, sizes.trial, None
    for variant in args.variants.split(","):
        if time.time() > args.deadline - 30:
            print(f"{workload} hf {variant}: not tried, no time was left")
            continue
        run = run_hf(args, sizes, folder, workload, variant, warm_up, steps)
        if "failure" not in run:
            first = first or run
            if not same_loss(run, first, workload):
                run["failure"] = f"another loss of step 1: {run['losses'][0]}, of the first variant {first['losses'][0]}"
        if "failure" in run:
            print(f"{workload} hf {variant}: {run['failure']}", flush=True)
            num_tried += run["failure"] in (DOES_NOT_FIT, NEEDS_A_GPU)
            continue
        found[variant] = figures([run], warm_up)
        print(f"{workload} hf {variant}: tried, {found[variant]['tokens_per_s']:.0f} tokens/s, "
              f"{found[variant]['peak_gib']:.1f} GiB", flush=True)
    return found, num_tried + len(found)


def print_figures(name, f):
    print(f"{name:34s} {f['tokens_per_s']:9.0f} tokens/s (p10 {f['p10']:.0f}, p90 {f['p90']:.0f})  {f['peak_gib']:6.1f} GiB  "
          f"start to end of step 1 {f['start_s']:.1f} s", flush=True)


def speed(args, sizes, workload):
    folder = args.work / "speed"
    if not is_made(folder):
        in_child(make_model, sizes.shape, folder, args.device)
    random_case.write_rows(folder / f"rows-{workload}.jsonl", rows_of(workload, sizes, sizes.warm_up + sizes.steps))
    tried, num_tried = try_variants(args, sizes, folder, workload)
    expect(tried, "no variant of transformers + PEFT runs here")
    best = max(tried, key=lambda variant: tried[variant]["tokens_per_s"])
    runs = {"hf": [], "lora-train": []}
    for round_number in range(args.rounds):
        if round_number > 0 and time.time() > args.deadline - 60:
            print(f"{workload}: {round_number} rounds only, no time was left")
            break
        runs["hf"].append(run_hf(args, sizes, folder, workload, best, sizes.warm_up, sizes.steps))
        expect("failure" not in runs["hf"][-1], f"{best}: {runs['hf'][-1].get('failure')}")
        runs["lora-train"].append(run_lora_train(args, sizes, folder, workload))
    ours, theirs = runs["lora-train"][0], runs["hf"][0]
    expect(same_loss(ours, theirs, workload), f"the losses of step 1 differ: {ours['losses'][0]} and {theirs['losses'][0]}")
    result = {side: figures(of_side, sizes.warm_up) for side, of_side in runs.items()}
    print_figures(f"{workload} hf best: {best}", result["hf"])
    print_figures(f"{workload} lora-train", result["lora-train"])
    rate = result["lora-train"]["tokens_per_s"]
    rates = {name: found["tokens_per_s"] for name, found in tried.items()} | {best: result["hf"]["tokens_per_s"]}
    ratios = {f"ratio_{name}": rate / rates[name] if name in rates else None for name in VARIANTS}
    words = ", ".join(f"{rate / rates[name]:.2f}x {name}" for name in rates if name != best)
    return dict(best=best, tried=tried, ratio=rate / rates[best], **ratios, num_tried=num_tried,
                num_variants=len(args.variants.split(",")), **result), \
        f"{workload}: {rate:.0f} tokens/s, {rate / rates[best]:.2f}x the fastest variant ({best})" + \
        (f"; tried for {sizes.trial[1]} steps: {words}" if words else "")


def device_name(device):
    asked = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    if device == "cpu" or shutil.which(asked[0]) is None:
        return device
    return subprocess.run(asked, capture_output=True, text=True).stdout.partition("\n")[0] or device


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--parts", default="equality,2x4,8,mix")
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--shape", default="7B", choices=list(SHAPES))
    parser.add_argument("--work", type=Path, default=ROOT / "build/compare_hf_gpu")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--warm-up", type=int, default=10)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--limit-s", type=float, default=86400)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--header", default="")
    args = parser.parse_args()
    unknown = set(args.variants.split(",")) - set(VARIANTS)
    if unknown:
        parser.error(f"--variants: no {', '.join(sorted(unknown))}; there are {', '.join(VARIANTS)}")
    return args


def main():
    args = parse_arguments()
    if args.device == "cuda" and not torch.cuda.is_available():
        print("figure: torch sees no GPU")
        sys.exit(6)
    args.deadline = time.time() + args.limit_s
    args.work = args.work.resolve()
    args.work.mkdir(parents=True, exist_ok=True)
    sizes, results, words, failed = sizes_of(args), {}, [], []
    device = device_name(args.device)
    print(f"{args.header}; {device}, torch {torch.__version__}, {time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())}")
    for part in args.parts.split(","):
        try:
            results[part], figure = in_child(equality, args, sizes) if part == "equality" else speed(args, sizes, part)
            words.append(figure)
        except (Failure, AssertionError, subprocess.TimeoutExpired) as error:
            failed.append(part)
            words.append(f"{part} FAILED: {str(error).splitlines()[0][:120]}")
            print(f"{part} FAILED: {error}", flush=True)
    if args.json:
        args.json.write_text(json.dumps({"header": args.header, "device": device, "failed": failed, "results": results}) + "\n")
    print("figure: " + "; ".join(words))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
