#!/usr/bin/env python3
"""Writes tests/goldens/*: values produced by PyTorch and transformers, which the parity tests compare with.

Needs torch and transformers; run it again only when a golden must change: .deps/venv/bin/python scripts/make_goldens.py
"""
import pathlib
import sys

import bitsandbytes
import torch
from bitsandbytes.functional import create_dynamic_map
from transformers import get_scheduler

TESTS = pathlib.Path(__file__).resolve().parent.parent / "tests"
GOLDENS = TESTS / "goldens"
sys.path[:0] = [str(TESTS / "parity"), str(TESTS / "support")]
import quantisation_rules as rules  # noqa: E402
from adamw_8bit_port import AdamW8bitPort  # noqa: E402: found through the paths above


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


def hashed(count, seed):
    """Numbers in [-1, 1) that tests compute too: (i 2654435761 + seed 40503) mod 2^32, of which the upper 24 bits count."""
    bits = (torch.arange(count, dtype=torch.int64) * 2654435761 + seed * 40503) % 2**32
    return (bits // 256).float() / 2**23 - 1


def adamw_8bit_case():
    """Three tensors side by side: coded and with a short last block, coded at another rate without decay, and fp32."""
    parts = [(4357, 1.0, 10.0), (4096, 16.0, 0.0), (4095, 16.0, 0.0)]
    counts = [count for count, _, _ in parts]
    lr, betas, eps, num_steps, total = 1e-3, (0.9, 0.999), 1e-8, 20, sum(counts)
    ports = [AdamW8bitPort(values, lr * factor, betas, eps, decay)
             for values, (_, factor, decay) in zip(hashed(total, 0).split(counts), parts)]
    spread = 2.0 ** -(4 * (torch.arange(total) % 6))  # small second moments are coded as 0
    for step in range(1, num_steps + 1):
        for port, grads in zip(ports, (hashed(total, step) * spread).split(counts)):
            port.step(grads)
    coded = [port for port in ports if port.is_coded]
    codes, scales = zip(*([torch.cat([getattr(port, name)[i] for port in coded]) for i in (0, 1)]
                          for name in ("m_state", "v_state")))
    return {"params": torch.cat([port.p for port in ports])[::29].tolist(),
            "exp_avg_codes": bytes(codes[0].tolist()).hex(), "exp_avg_scales": scales[0].tolist(),
            "exp_avg_sq_codes": bytes(codes[1].tolist()).hex(), "exp_avg_sq_scales": scales[1].tolist(),
            "exp_avg": ports[2].m.tolist()[::29], "exp_avg_sq": ports[2].v.tolist()[::29],
            "num_zeroed": sum(port.num_zeroed for port in coded), **even_gradients(lr, betas, eps)}


def even_gradients(lr, betas, eps, num_steps=5):
    """bitsandbytes' own kernel for CPUs on gradients of one magnitude, where its coarser quantiser does not matter."""
    parameter = torch.nn.Parameter(hashed(4357, 0))
    optimizer = bitsandbytes.optim.AdamW8bit([parameter], lr=lr, betas=betas, eps=eps, weight_decay=0.0)
    for step in range(1, num_steps + 1):
        parameter.grad = torch.sign(hashed(4357, step)) * 0.5
        optimizer.step()
    return {"even_params": parameter.detach()[::29].tolist()}


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
                              ("ClipGolden", "kClipGoldens", clips), ("AdamW8bitGolden", "kAdamW8bitGoldens", [adamw_8bit_case()])):
        lines.append(f"inline const std::vector<{kind}> {name} = {{")
        lines += [f"  {cpp(case)}," for case in cases]
        lines.append("};")
    GOLDENS.mkdir(parents=True, exist_ok=True)
    (GOLDENS / "optim.inc").write_text("\n".join(lines) + "\n")


def bits(values, dtype=torch.int32):
    """The bytes of a tensor as unsigned numbers of 1 or 4 bytes."""
    size = {torch.int32: 1 << 32, torch.int8: 256}[dtype]
    return [value % size for value in values.contiguous().view(dtype).flatten().tolist()]


def quantized_case(code, w):
    case = {"code": code, "rows": w.shape[0], "width": w.shape[1], "input": bits(w)}
    make = {"nf4": rules.quantize_nf4, "int8": rules.quantize_int8, "fp8": rules.quantize_fp8}[code]
    codes, scales = make(w)
    case |= {"codes": bits(codes, torch.int8), "scales": bits(scales)}
    return case


def ties(thresholds):
    """Each threshold, its neighbours, and all of these negative."""
    t = torch.tensor(thresholds, dtype=torch.float32)
    around = torch.stack([t, t.nextafter(t - 1), t.nextafter(t + 1)]).flatten()
    return torch.cat([around, -around])


def short_blocks(values, width):
    """Blocks of 64 with these values below a largest one of 1, a block of zeros, and a last one of odd length."""
    generator = torch.Generator().manual_seed(3)
    full = [torch.nn.functional.pad(part, (63 - part.numel(), 1), value=1.0) for part in values.split(63)]
    flat = torch.cat([*full, torch.zeros(64), torch.randn(width, generator=generator)])
    return flat[:flat.numel() // width * width].view(-1, width)


def int8_ties():
    """Rows of a largest value and one whose code depends on how 127 / largest is rounded."""
    generator = torch.Generator().manual_seed(5)
    largest, w = torch.rand(2, 100_000, generator=generator).half().float().sort(0).values.flip(0)
    differs = (w * (127 * largest.reciprocal())).round() != (w * torch.div(torch.tensor(127.0), largest)).round()
    return torch.nn.functional.pad(torch.stack([largest[differs], w[differs]], 1)[:4], (0, 7))


def nested_input():
    """257 blocks of 64: formula in tests/unit/kernels/quantized_weight_test.cpp. The mean of the scales is exact in any order."""
    i = torch.arange(257 * 64)
    return ((i * 7919 % 2001 - 1000) / 1024 * 2.0 ** -(i // 64 % 5)).float().view(257, 64)


def nested_case():
    _, absmax = rules.quantize_nf4(nested_input())
    from bitsandbytes.functional import create_dynamic_map
    codes, scales, offset = rules.quantize_nested(absmax, create_dynamic_map())
    return {"scales": bits(codes, torch.int8), "nested_scales": bits(scales), "offset": bits(offset.view(1))[0]}


def write_quantized_weight():
    steps = torch.tensor([127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -126.5, 3, 0])
    int8 = torch.stack([steps, torch.zeros(9), torch.randn(9, generator=torch.Generator().manual_seed(4))])
    int8 = torch.cat([int8, int8_ties()])
    fp8 = torch.tensor([[448.0, 17, 19, 208, 2.0 ** -9, 2.0 ** -10, 3 * 2.0 ** -10, 5 * 2.0 ** -11, -0.0],
                        [-447.9, -17, 1e-9, 15.5, 0.0078125, 0.0146484375, -0.0151, 447, 0]])
    cases = [quantized_case("nf4", short_blocks(ties(rules.NF4_THRESHOLDS), 9)),
             quantized_case("int8", int8), quantized_case("fp8", fp8)]
    lines = ["// Written by scripts/make_goldens.py with tests/support/quantisation_rules.py; do not edit.", "// clang-format off",
             "inline const std::vector<QuantizationGolden> kQuantizationGoldens = {"]
    lines += [f"  {cpp(case)}," for case in cases]
    lines += ["};", f"inline const NestedGolden kNestedGolden = {cpp(nested_case())};"]
    (GOLDENS / "quantized_weight.inc").write_text("\n".join(lines) + "\n")


def write_dynamic_map():
    """The bits of both maps. torch.linspace differs by a bit in the last place on CPUs without fused multiply-add."""
    lines = ["// Written by scripts/make_goldens.py with bitsandbytes " + bitsandbytes.__version__ + "; do not edit.", "// clang-format off"]
    for name, signed in (("kSignedMapBits", True), ("kUnsignedMapBits", False)):
        bits = create_dynamic_map(signed).view(torch.int32).tolist()
        values = ", ".join(f"0x{value & 0xFFFFFFFF:08X}" for value in bits)
        lines.append(f"inline const std::vector<std::uint32_t> {name} = {{{values}}};")
    (GOLDENS / "dynamic_map.inc").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    write_optim()
    write_quantized_weight()
    write_dynamic_map()
