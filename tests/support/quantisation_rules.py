"""The rules of bitsandbytes' CUDA kernels in torch, one comparison after the other as those kernels make them: the oracle of
scripts/make_goldens.py and tests/batteries/quantisation_battery.py. bitsandbytes' own CPU code differs where the battery says.

One difference is ours: a block of zeros gets the code of zero, which CUDA's 0 * (1 / 0) does not.
"""
import torch

SMALLEST = 1e-38  # below it 1 / absmax may be infinite
NF4_THRESHOLDS = [-0.8480964004993439, -0.6106329262256622, -0.4599952697753906, -0.33967943489551544, -0.23460740596055984,
                  -0.13791173323988914, -0.045525018125772476, 0.03979014977812767, 0.1202552504837513, 0.2035212516784668,
                  0.2920137718319893, 0.3893125355243683, 0.5016634166240692, 0.6427869200706482, 0.8614784181118011]


def in_blocks(flat, size):
    """[blocks, size], padded with zeros."""
    return torch.nn.functional.pad(flat.float(), (0, -flat.numel() % size)).view(-1, size)


def absmax_and_scaled(flat, size):
    blocks = in_blocks(flat, size)
    absmax = blocks.abs().amax(1)
    return absmax, blocks * (1 / absmax.clamp_min(SMALLEST)).unsqueeze(1)


def rank_among(x, thresholds):
    """How many thresholds are below x."""
    return sum((x > torch.tensor(threshold, dtype=torch.float32)).long() for threshold in thresholds)


def quantize_nf4(w, size=64):
    """(bytes [ceil(n / 2)], absmax)"""
    absmax, x = absmax_and_scaled(w.flatten(), size)
    pairs = rank_among(x, NF4_THRESHOLDS).flatten().view(-1, 2)
    return (pairs[:, 0] * 16 + pairs[:, 1])[:(w.numel() + 1) // 2].to(torch.uint8), absmax


def nearest_8_bits(x, table):
    """The binary search of dQuantize: between neighbours the middle decides, and what lies on it goes to where the search ended."""
    pivot = torch.full_like(x, 127, dtype=torch.long)
    upper_pivot, lower_pivot = torch.full_like(pivot, 255), torch.zeros_like(pivot)
    for step in (64, 32, 16, 8, 4, 2, 1):
        above = x > table[pivot]
        lower_pivot, upper_pivot = torch.where(above, pivot, lower_pivot), torch.where(above, upper_pivot, pivot)
        pivot = torch.where(above, pivot + step, pivot - step)
    value = table[pivot]
    up = torch.where(x > (table[upper_pivot] + value) * 0.5, upper_pivot, pivot)
    down = torch.where(x < (table[lower_pivot] + value) * 0.5, lower_pivot, pivot)
    return torch.where(x > value, up, down)


def quantize_nested(absmax, table, size=256):
    """(codes, nested_absmax, offset)"""
    offset = absmax.mean()
    nested_absmax, x = absmax_and_scaled(absmax - offset, size)
    return nearest_8_bits(x.flatten()[:absmax.numel()], table).to(torch.uint8), nested_absmax, offset


def quantize_int8(w):
    """(codes [O, D], SCB [O])"""
    half = w.half().float()
    absmax = half.abs().amax(1)
    return (half * (absmax.reciprocal() * 127).unsqueeze(1)).round().nan_to_num(0).to(torch.int8), absmax


def quantize_fp8(w, size=128):
    """(codes [O, D], scales), tiles of size x size"""
    codes, scales = torch.empty_like(w, dtype=torch.float8_e4m3fn), []
    for row in range(0, w.shape[0], size):
        scales.append([])
        for column in range(0, w.shape[1], size):
            tile = w[row:row + size, column:column + size].float()
            scale = tile.abs().max() / 448
            scale = torch.where(scale == 0, 1.0, scale)
            codes[row:row + size, column:column + size] = (tile / scale).clamp(-448, 448).to(torch.float8_e4m3fn)
            scales[-1].append(scale)
    return codes, torch.tensor(scales)
