#!/usr/bin/env python3
"""Steps of one variant of transformers + PEFT (bench/compare_hf_gpu.py); prints one JSON line. --length: of a full row."""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import NamedTuple

import torch

sys.path.append(str(Path(__file__).resolve().parents[1] / "packages"))  # what a bundle carries
BASE_DTYPE = torch.bfloat16
WORKLOADS = {"2x4": dict(rows=2, accumulation=4), "8": dict(rows=8, accumulation=1), "mix": dict(rows=8, accumulation=4)}


class Variant(NamedTuple):
    is_recomputed: bool
    is_compiled: bool = False
    is_liger: bool = False


# What fits most often comes first.
VARIANTS = {"usual": Variant(True), "compiled": Variant(True, is_compiled=True), "liger": Variant(True, is_liger=True),
            "kept": Variant(False), "kept_compiled": Variant(False, is_compiled=True), "liger_kept": Variant(False, is_liger=True)}


def padded_batches(rows, size, device):
    """Endless micro-batches of so many documents: (tensors padded on the right, tokens without padding)."""
    at = 0
    while True:
        chosen = [rows[(at + k) % len(rows)] for k in range(size)]
        at += size
        width = max(len(row["input_ids"]) for row in chosen)

        def padded(key, fill):
            return torch.tensor([row[key] + [fill] * (width - len(row[key])) for row in chosen], device=device)

        ids = [row["input_ids"] for row in chosen]
        yield dict(input_ids=padded("input_ids", 0), labels=padded("labels", -100),
                   attention_mask=torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in ids], device=device)), \
            sum(map(len, ids))


def packed_batches(rows, most, device):
    """Endless micro-batches of one row: whole documents, one behind the other, of at most so many tokens together."""
    at = 0
    while True:
        ids, labels, positions, begins = [], [], [], [0]
        while len(ids) + len(rows[at % len(rows)]["input_ids"]) <= most:
            row, at = rows[at % len(rows)], at + 1
            ids += row["input_ids"]
            labels += [-100] + row["labels"][1:]  # the first token follows from no other document
            positions += range(len(row["input_ids"]))
            begins.append(len(ids))
        tensors = {name: torch.tensor([values], device=device)
                   for name, values in (("input_ids", ids), ("labels", labels), ("position_ids", positions))}
        yield dict(tensors, cu_seq_lens_q=torch.tensor(begins, dtype=torch.int32, device=device),
                   max_length_q=max(end - begin for begin, end in zip(begins, begins[1:]))), len(ids)


def packed_attention(module, query, key, value, attention_mask, scaling=None, cu_seq_lens_q=None, max_length_q=None, **_):
    """LibTorch's FlashAttention 2 inside the documents of a packed row. query [1, H, T, E]; returns [1, T, H, E]."""
    query, key, value = (x[0].transpose(0, 1) for x in (query, key, value))
    return torch.nn.attention.varlen.varlen_attn(query, key, value, cu_seq_lens_q, cu_seq_lens_q, max_length_q, max_length_q,
                                                 scale=scaling, window_size=(-1, 0))[None], None


def load_hf(model_dir, variant, is_packed, device):
    import torch.nn.attention.varlen  # noqa: F401
    from peft import PeftModel
    from transformers import AttentionInterface, AutoModelForCausalLM
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    # Padding on the right needs no mask. transformers leaves it out where every row is full, but never inside torch.compile.
    AttentionInterface.register("causal", sdpa_attention_forward)
    AttentionInterface.register("packed", packed_attention)
    attention = "packed" if is_packed else "causal" if variant.is_compiled or variant.is_liger else "sdpa"
    base = AutoModelForCausalLM.from_pretrained(model_dir / "model", dtype=BASE_DTYPE, attn_implementation=attention).to(device)
    if variant.is_liger:
        from liger_kernel.transformers import apply_liger_kernel_to_qwen2
        apply_liger_kernel_to_qwen2(model=base)
    model = PeftModel.from_pretrained(base, model_dir / "adapter", is_trainable=True).train()
    if variant.is_recomputed:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.enable_input_require_grads()
    # Without a GPU the compiler's own code generation is left out: what is tried there is this script.
    run = torch.compile(model, backend="inductor" if device == "cuda" else "eager") if variant.is_compiled else model
    return model, run


def backward(run, batch, supervised, device):
    """The loss of a micro-batch, whose gradients are added to those that are there."""
    with torch.autocast(device, torch.bfloat16, enabled=BASE_DTYPE == torch.bfloat16):
        loss = run(**batch, use_cache=False, num_items_in_batch=supervised).loss
    loss.backward()
    return loss.detach()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name, kind in (("device", str), ("model", Path), ("rows", Path), ("workload", str), ("variant", str), ("length", int),
                       ("warm-up", int), ("steps", int)):
        parser.add_argument(f"--{name}", type=kind, required=True)
    args = parser.parse_args()
    variant, workload = VARIANTS[args.variant], WORKLOADS[args.workload]
    is_packed = variant.is_liger and args.workload == "mix"
    model, run = load_hf(args.model, variant, is_packed, args.device)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4, weight_decay=0.0,
                                  fused=args.device == "cuda")
    rows = [json.loads(line) for line in args.rows.read_text().splitlines()]
    batches = packed_batches(rows, workload["rows"] * args.length, args.device) if is_packed else \
        padded_batches(rows, workload["rows"], args.device)
    wait = torch.cuda.synchronize if args.device == "cuda" else lambda: None
    step_ms, tokens, losses, end_of_step_1 = [], [], [], None
    for _ in range(args.warm_up + args.steps):
        wait()
        start = time.perf_counter()
        taken = [next(batches) for _ in range(1 if is_packed else workload["accumulation"])]
        supervised = sum(int((batch["labels"][:, 1:] != -100).sum()) for batch, _ in taken)
        total = sum(backward(run, batch, supervised, args.device) for batch, _ in taken)
        torch.nn.utils.clip_grad_norm_([p for p in model.parameters() if p.requires_grad], 1.0)
        optimizer.step()
        optimizer.zero_grad()
        wait()
        step_ms.append(1e3 * (time.perf_counter() - start))
        end_of_step_1 = end_of_step_1 or time.time()
        tokens.append(sum(count for _, count in taken))
        losses.append(float(total))
    peak = torch.cuda.max_memory_allocated() / 2**30 if args.device == "cuda" else 0.0
    print(json.dumps(dict(step_ms=step_ms, tokens=tokens, losses=losses, peak_gib=peak, end_of_step_1=end_of_step_1)))


if __name__ == "__main__":
    main()
