"""Folders that bitsandbytes and FP8 checkpoints store quantised: `check` accepts them and names their formats."""

import bitsandbytes
import pytest
import torch
from safetensors.torch import load_file
from transformers import Qwen3Config, Qwen3ForCausalLM

import engine
from oracle import relative_error
from quantised_folders import decoded_weights, load_weights, write_quantised

# name: (kind, options, how `check` counts the 14 linears, largest relative error of a decoded weight)
FOLDERS = {
    "nf4": ("nf4", dict(), "14 linears nf4", 0.11),
    "nf4 nested": ("nf4", dict(nested=True), "14 linears nf4", 0.11),
    "nf4 in bf16 storage": ("nf4", dict(nested=True, storage=torch.bfloat16), "14 linears nf4", 0.11),
    "nf4 with skipped modules": ("nf4", dict(skip=["down_proj", "model.layers.1.self_attn.q_proj"]),
                                 "11 linears nf4, 3 bf16", 0.11),
    "fp4": ("fp4", dict(), "14 linears fp4", 0.15),
    "fp4 nested": ("fp4", dict(nested=True), "14 linears fp4", 0.15),
    "int8": ("int8", dict(), "14 linears int8", 0.01),
    "int8 with skipped modules": ("int8", dict(skip=["o_proj"]), "12 linears int8, 2 bf16", 0.01),
    "fp8 as Qwen3 has it": ("fp8", dict(scale_dtype=torch.bfloat16), "14 linears fp8", 0.04),
    "fp8 as DeepSeek has it": ("fp8", dict(), "14 linears fp8", 0.04),
    "fp8 with ue8m0 scales": ("fp8", dict(scale_dtype=torch.float8_e8m0fnu), "14 linears fp8", 0.04),
    "fp8 with other blocks": ("fp8", dict(block=(32, 64), skip=["v_proj"]), "12 linears fp8, 2 bf16", 0.04),
    "fp8 with a scale per matrix": ("fp8", dict(scales="matrix", activation_scales=True), "14 linears fp8", 0.04),
    "compressed-tensors with a scale per row": ("compressed-tensors", dict(scales="row", scale_dtype=torch.bfloat16),
                                                "14 linears fp8", 0.04),
    "compressed-tensors with blocks": ("compressed-tensors", dict(scales="block"), "14 linears fp8", 0.04),
    "compressed-tensors, static": ("compressed-tensors", dict(scales="matrix", activation_scales=True), "14 linears fp8",
                                   0.04),
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A Qwen3 of two layers in bf16, its linears wider than a block of 128."""
    folder = tmp_path_factory.mktemp("plain") / "model"
    torch.manual_seed(18)
    config = Qwen3Config(hidden_size=128, intermediate_size=192, num_hidden_layers=2, num_attention_heads=4,
                         num_key_value_heads=2, head_dim=32, vocab_size=300, max_position_embeddings=128)
    Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def quantised(plain, tmp_path_factory):
    """quantised(name) writes a folder once."""
    made = {}

    def get(name):
        if name not in made:
            kind, options, *_ = FOLDERS[name]
            made[name] = write_quantised(tmp_path_factory.mktemp("quantised") / "model", plain, kind, **options)
        return made[name]
    return get


def check(folder):
    done = engine.start("lora-train", "check", f"model={folder}", "datasets=[/dev/null]")
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.parametrize("name", FOLDERS)
def test_check_accepts_the_folder_and_counts_its_formats(quantised, name):
    log = check(quantised(name))
    assert FOLDERS[name][2] + "\n" in log, log
    assert "are not part of" not in log, log


@pytest.mark.parametrize("name", FOLDERS)
def test_decoded_weights_are_those_that_were_quantised(plain, quantised, name):
    original, decoded = load_weights(plain), decoded_weights(quantised(name))
    assert set(decoded) == set(original)
    errors = {key: relative_error(decoded[key], original[key].float()) for key in original}
    assert max(errors.values()) < FOLDERS[name][3], errors
    assert all((error > 0) <= key.endswith("_proj.weight") for key, error in errors.items()), errors


@pytest.mark.parametrize("name", ["nf4", "nf4 nested", "nf4 in bf16 storage", "fp4 nested"])
def test_decoded_weights_are_those_of_bitsandbytes(quantised, name):
    tensors, decoded = load_file(quantised(name) / "model.safetensors"), decoded_weights(quantised(name))
    weights = [key for key in decoded if f"{key}.absmax" in tensors]
    assert len(weights) == 14
    for weight in weights:
        parts = {key: value for key, value in tensors.items() if key.startswith(weight + ".")}
        state = bitsandbytes.functional.QuantState.from_dict(parts, torch.device("cpu"))
        state.dtype = torch.float32
        packed = tensors[weight].view(torch.uint8)
        assert torch.equal(decoded[weight], bitsandbytes.functional.dequantize_4bit(packed, state)), weight


def test_plain_folders_are_counted_too(plain):
    assert "14 linears bf16\n" in check(plain)
