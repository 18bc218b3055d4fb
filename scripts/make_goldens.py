#!/usr/bin/env python3
"""Writes tests/goldens/*: values produced by PyTorch and transformers, which the parity tests compare with.

Needs torch and transformers; run it again only when a golden must change: .deps/venv/bin/python scripts/make_goldens.py
"""
import pathlib

import torch
from transformers import get_scheduler

GOLDENS = pathlib.Path(__file__).resolve().parent.parent / "tests" / "goldens"


def adamw_case(blocks, weight_decay, beta2, epsilon, learning_rate, grad_scale, num_steps=5, num_elements=7):
    """blocks: (count, lr_factor, decays) of each parameter group, side by side in the flat buffers."""
    generator = torch.Generator().manual_seed(17)
    counts = [count for count, _, _ in blocks]
    parameters = [torch.nn.Parameter(torch.randn(count, generator=generator)) for count in counts]
    groups = [{"params": [parameter], "lr": learning_rate * lr_factor, "weight_decay": weight_decay if decays else 0.0}
              for parameter, (_, lr_factor, decays) in zip(parameters, blocks)]
    optimizer = torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, beta2), eps=epsilon, foreach=False, fused=False)
    start = torch.cat(parameters).tolist()
    grads, params = [], []
    for step in range(num_steps):
        grad = torch.randn(num_elements, generator=generator) * 10.0 ** (-step)
        if step == 2:
            grad[1] = 0.0
        grads.append(grad.tolist())
        for parameter, part in zip(parameters, grad.split(counts)):
            parameter.grad = part * grad_scale
        optimizer.step()
        params.append(torch.cat(parameters).tolist())
    state = [optimizer.state[parameter] for parameter in parameters]
    begins = [sum(counts[:i]) for i in range(len(counts))]
    return {
        "weight_decay": weight_decay, "beta2": beta2, "epsilon": epsilon, "learning_rate": learning_rate,
        "grad_scale": grad_scale,
        "blocks": [{"begin": begin, "count": count, "lr_factor": lr_factor, "decays": decays}
                   for begin, (count, lr_factor, decays) in zip(begins, blocks)],
        "start": start, "grads": grads, "params": params,
        "exp_avg": torch.cat([s["exp_avg"] for s in state]).tolist(),
        "exp_avg_sq": torch.cat([s["exp_avg_sq"] for s in state]).tolist(),
    }


def schedule_case(name, warmup, total, min_lr_ratio):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=3e-4)
    extra = {"min_lr_rate": min_lr_ratio} if name == "cosine_with_min_lr" else None
    scheduler = get_scheduler(name, optimizer, warmup, total, scheduler_specific_kwargs=extra)
    rates = []
    for _ in range(total + 2):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return {"type": name, "warmup_steps": warmup, "total_steps": total, "min_lr_ratio": min_lr_ratio, "rates": rates}


def clip_case(values, max_norm):
    parameter = torch.nn.Parameter(torch.zeros(len(values)))
    parameter.grad = torch.tensor(values)
    norm = torch.nn.utils.clip_grad_norm_([parameter], max_norm)
    return {"grads": values, "max_norm": max_norm, "norm": norm.item(), "clipped": parameter.grad.tolist()}


def cpp(value):
    """A C++ initializer of a Python value; dictionaries in the order of their keys."""
    if isinstance(value, dict):
        return "{" + ", ".join(f".{key} = {cpp(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "{" + ", ".join(cpp(item) for item in value) + "}"
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else repr(value)


def write_optim():
    plain, lora_plus = [(4, 1.0, True), (3, 1.0, False)], [(3, 1.0, True), (3, 16.0, True), (1, 16.0, False)]
    adamw = [adamw_case(plain, 0.1, 0.999, 1e-8, 1e-3, 1.0), adamw_case(plain, 0.0, 0.95, 1e-6, 2e-4, 0.37),
             adamw_case(lora_plus, 0.1, 0.999, 1e-8, 1e-3, 0.37)]
    schedules = [schedule_case(name, warmup, 12, 0.1 if name == "cosine_with_min_lr" else 0.0)
                 for name in ("linear", "cosine", "constant", "constant_with_warmup", "cosine_with_min_lr")
                 for warmup in (0, 3)]
    clips = [clip_case([3.0, -4.0, 12.0], 1.0), clip_case([3.0, -4.0, 12.0], 13.5)]
    lines = [f"// Written by scripts/make_goldens.py with torch {torch.__version__.split('+')[0]}; do not edit.", "// clang-format off"]
    for kind, name, cases in (("AdamWGolden", "kAdamWGoldens", adamw), ("ScheduleGolden", "kScheduleGoldens", schedules),
                              ("ClipGolden", "kClipGoldens", clips)):
        lines.append(f"inline const std::vector<{kind}> {name} = {{")
        lines += [f"  {cpp(case)}," for case in cases]
        lines.append("};")
    GOLDENS.mkdir(parents=True, exist_ok=True)
    (GOLDENS / "optim.inc").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    write_optim()
