"""Model folders that are stored quantised, as bitsandbytes and FP8 checkpoints are published, and their decoded weights.

Decoding is plain torch: the CPU kernels of bitsandbytes are wrong at in_features that 64 does not divide.
"""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
MAX_E4M3 = 448.0
STATE = ".quant_state.bitsandbytes__"


def write_quantised(folder, model, kind, *, skip=(), **options):
    """Writes the plain folder `model` to `folder`, its linears stored as `kind`; those whose names end in one of `skip` stay plain.

    nf4, fp4      by transformers and bitsandbytes. nested: bool; storage: dtype of the packed bytes
    int8          by transformers and bitsandbytes
    fp8, compressed-tensors   scales: "block", "row" or "matrix"; block: (rows, columns); scale_dtype; activation_scales: bool
    """
    folder, model = Path(folder), Path(model)
    folder.mkdir(parents=True)
    if kind in ("nf4", "fp4", "int8"):
        write_bitsandbytes(folder, model, kind, skip, **options)
    else:
        write_fp8(folder, model, kind, skip, **options)
    for file in model.iterdir():
        if not (folder / file.name).exists() and not file.name.startswith("model.safetensors"):
            shutil.copy(file, folder)
    return folder


def write_bitsandbytes(folder, model, kind, skip, nested=False, storage=torch.uint8):
    if kind == "int8":
        how = BitsAndBytesConfig(load_in_8bit=True, llm_int8_skip_modules=["lm_head", *skip])
    else:
        how = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type=kind, bnb_4bit_use_double_quant=nested,
                                 bnb_4bit_quant_storage=storage, llm_int8_skip_modules=["lm_head", *skip])
    quantised = AutoModelForCausalLM.from_pretrained(model, quantization_config=how, dtype="auto", device_map={"": "cpu"})
    quantised.save_pretrained(folder)


def write_fp8(folder, model, kind, skip, scales="block", block=(128, 128), scale_dtype=torch.float32, activation_scales=False):
    name = "weight_scale_inv" if kind == "fp8" else "weight_scale"
    tensors = {}
    for weight, value in load_weights(model).items():
        prefix = weight.removesuffix("weight")
        is_linear = weight.endswith(".weight") and prefix.rstrip(".").rpartition(".")[2] in LINEARS
        if not is_linear or any(prefix.rstrip(".").endswith(end) for end in skip):
            tensors[weight] = value
            continue
        codes, scale = encode_fp8(value.float(), scales, block, scale_dtype)
        tensors |= {weight: codes, prefix + name: scale}
        if activation_scales:
            tensors[prefix + "input_scale"] = torch.ones(1)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((model / "config.json").read_text())
    config["quantization_config"] = fp8_config(kind, skip, scales, block, scale_dtype, activation_scales)
    (folder / "config.json").write_text(json.dumps(config, indent=2))


def encode_fp8(weight, scales, block, scale_dtype):
    """(codes in e4m3, scales): the largest weight of a block becomes the largest code."""
    rows, columns = weight.shape
    high, wide = {"block": block, "row": (1, columns), "matrix": (rows, columns)}[scales]
    padded = torch.zeros(-(-rows // high) * high, -(-columns // wide) * wide)
    padded[:rows, :columns] = weight
    largest = padded.view(padded.shape[0] // high, high, padded.shape[1] // wide, wide).abs().amax((1, 3))
    scale = torch.where(largest == 0, 1.0, largest / MAX_E4M3)
    if scale_dtype == torch.float8_e8m0fnu:
        scale = torch.exp2(torch.ceil(torch.log2(scale)))
    scale = scale.to(scale_dtype)
    codes = (weight / spread(scale, high, wide, weight.shape)).clamp(-MAX_E4M3, MAX_E4M3).to(torch.float8_e4m3fn)
    return codes, scale.reshape(1) if scales == "matrix" else scale


def fp8_config(kind, skip, scales, block, scale_dtype, activation_scales):
    activations = "static" if activation_scales else "dynamic"
    if kind == "fp8":
        config = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": activations,
                  "weight_block_size": list(block) if scales == "block" else None,
                  "modules_to_not_convert": ["lm_head", *skip]}
        return config | ({"scale_fmt": "ue8m0"} if scale_dtype == torch.float8_e8m0fnu else {})
    strategy = {"block": "block", "row": "channel", "matrix": "tensor"}[scales]
    number = {"num_bits": 8, "type": "float", "symmetric": True, "group_size": None, "actorder": None}
    group = {"weights": number | {"strategy": strategy, "dynamic": False, "observer": "minmax", "observer_kwargs": {},
                                  "block_structure": list(block) if scales == "block" else None},
             "input_activations": number | {"strategy": "token", "dynamic": not activation_scales, "observer": None},
             "output_activations": None, "targets": ["Linear"]}
    return {"quant_method": "compressed-tensors", "format": "float-quantized", "quantization_status": "compressed",
            "config_groups": {"group_0": group}, "ignore": ["lm_head", *skip], "kv_cache_scheme": None,
            "global_compression_ratio": None}


def load_weights(folder):
    return {name: value for file in sorted(Path(folder).glob("*.safetensors")) for name, value in load_file(file).items()}


def decoded_weights(folder):
    """{name: fp32 tensor} of every weight of a quantised folder, those that are plain too."""
    folder = Path(folder)
    config = json.loads((folder / "config.json").read_text()).get("quantization_config", {})
    tensors, decoded = load_weights(folder), {}
    for name, value in tensors.items():
        prefix, _, last = name.rpartition(".")
        if last not in ("weight", "bias"):
            continue
        scale = tensors.get(f"{prefix}.weight_scale_inv", tensors.get(f"{prefix}.weight_scale"))
        states = [key for key in tensors if key.startswith(name + STATE)]
        if states:
            decoded[name] = decode_4bit(tensors, name, json.loads(bytes(tensors[states[0]].tolist())))
        elif f"{prefix}.SCB" in tensors and last == "weight":
            decoded[name] = value.float() * tensors[f"{prefix}.SCB"].mul(1.0 / 127.0).unsqueeze(1)
        elif scale is not None and last == "weight":
            decoded[name] = value.float() * fp8_scales(scale.float(), value.shape, config)
        else:
            decoded[name] = value.float()
    return decoded


def decode_4bit(tensors, name, state):
    packed = tensors[name].view(torch.uint8).flatten()
    codes = torch.stack([packed >> 4, packed & 15], 1).flatten().long()  # the first element is the high nibble
    absmax = tensors[name + ".absmax"]
    if "nested_blocksize" in state:
        nested = tensors[name + ".nested_absmax"].repeat_interleave(state["nested_blocksize"])[:len(absmax)]
        absmax = tensors[name + ".nested_quant_map"][absmax.long()] * nested + torch.tensor(state["nested_offset"])
    count = torch.Size(state["shape"]).numel()
    scale = absmax.repeat_interleave(state["blocksize"])[:count]
    return (tensors[name + ".quant_map"][codes[:count]] * scale).view(state["shape"])


def fp8_scales(scale, shape, config):
    if scale.numel() == 1:
        return scale.reshape(1, 1)
    if scale.shape[0] == shape[0] and scale.numel() == shape[0]:
        return scale.reshape(-1, 1)
    groups = config.get("config_groups", {}).values()
    block = config.get("weight_block_size") or next(group["weights"]["block_structure"] for group in groups)
    return spread(scale, *block, shape)


def spread(scale, high, wide, shape):
    """A scale for each weight."""
    return scale.float().repeat_interleave(high, 0).repeat_interleave(wide, 1)[:shape[0], :shape[1]]
