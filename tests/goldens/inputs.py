"""Tiny models, adapters and rows for the goldens, written byte for byte the same everywhere: the standard library alone, and
only operations that IEEE 754 rounds exactly (no logarithm, no cosine, no torch)."""

import array
import json
import math
import random
import struct

VOCABULARY = 131
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 24, "beta_fast": 8.0, "beta_slow": 1.0}

# Heads tied and untied, biases, head norms, sliding windows shorter than the rows, and every kind of RoPE.
MODELS = {
    "qwen2": dict(model_type="qwen2", hidden_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                  intermediate_size=90, tie_word_embeddings=True, rope_theta=1000.0, use_sliding_window=True,
                  sliding_window=7, max_window_layers=1),
    "qwen3": dict(model_type="qwen3", hidden_size=40, num_hidden_layers=3, num_attention_heads=5, num_key_value_heads=1,
                  head_dim=16, intermediate_size=52, tie_word_embeddings=False, rope_theta=1000.0, rope_scaling=YARN),
    "mistral": dict(model_type="mistral", hidden_size=72, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2,
                    head_dim=20, intermediate_size=96, tie_word_embeddings=False, rope_theta=1000.0, sliding_window=7),
    "llama": dict(model_type="llama", hidden_size=36, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=3,
                  head_dim=6, intermediate_size=90, tie_word_embeddings=True, rope_theta=300.0, rope_scaling=LLAMA3,
                  attention_bias=True, mlp_bias=True),
    # Kernels share rows among threads from 16384 elements on.
    "wide": dict(model_type="qwen2", hidden_size=160, num_hidden_layers=2, num_attention_heads=5, num_key_value_heads=1,
                 intermediate_size=320, tie_word_embeddings=False, rope_theta=10000.0),
}
ARCHITECTURES = {"qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM", "mistral": "MistralForCausalLM",
                 "llama": "LlamaForCausalLM"}
PROJECTIONS = {"self_attn": ("q_proj", "k_proj", "v_proj", "o_proj"), "mlp": ("gate_proj", "up_proj", "down_proj")}


def head_dim(config):
    return config.get("head_dim", config["hidden_size"] // config["num_attention_heads"])


def linear_shapes(config):
    """{projection: (out, in)} of a layer."""
    hidden, ffn = config["hidden_size"], config["intermediate_size"]
    q = config["num_attention_heads"] * head_dim(config)
    kv = config["num_key_value_heads"] * head_dim(config)
    return {"q_proj": (q, hidden), "k_proj": (kv, hidden), "v_proj": (kv, hidden), "o_proj": (hidden, q),
            "gate_proj": (ffn, hidden), "up_proj": (ffn, hidden), "down_proj": (hidden, ffn)}


def has_bias(config, block, projection):
    if config["model_type"] == "qwen2":
        return projection in ("q_proj", "k_proj", "v_proj")
    return config.get("attention_bias" if block == "self_attn" else "mlp_bias", False)


def uniform(rng, shape, std, mean=0.0):
    """(shape, values): flat, of standard deviation std."""
    width = 2.0 * math.sqrt(3.0) * std
    return shape, [mean + width * (rng.random() - 0.5) for _ in range(math.prod(shape))]


def model_tensors(config, seed):
    """Weights for which every part matters: attention scores and logits of a standard deviation over one, biases and norms
    away from their neutral values."""
    rng = random.Random(seed)
    hidden = config["hidden_size"]
    tensors = {"model.embed_tokens.weight": uniform(rng, (VOCABULARY, hidden), 2.0 / math.sqrt(hidden))}
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[prefix + name + ".weight"] = uniform(rng, (hidden,), 0.25, mean=1.0)
        if config["model_type"] == "qwen3":
            for name in ("q_norm", "k_norm"):
                tensors[f"{prefix}self_attn.{name}.weight"] = uniform(rng, (head_dim(config),), 0.25, mean=1.0)
        for block, projections in PROJECTIONS.items():
            for projection in projections:
                shape = linear_shapes(config)[projection]
                gain = 1.3 if projection in ("q_proj", "k_proj") else 0.8
                tensors[f"{prefix}{block}.{projection}.weight"] = uniform(rng, shape, gain / math.sqrt(shape[1]))
                if has_bias(config, block, projection):
                    tensors[f"{prefix}{block}.{projection}.bias"] = uniform(rng, shape[:1], 0.5)
    tensors["model.norm.weight"] = uniform(rng, (hidden,), 0.25, mean=1.0)
    if not config["tie_word_embeddings"]:
        tensors["lm_head.weight"] = uniform(rng, (VOCABULARY, hidden), 2.0 / math.sqrt(hidden))
    return tensors


def adapter_tensors(config, rank, scale, seed):
    """Adds about a third of each linear's output; B is not zero."""
    rng = random.Random(seed)
    tensors = {}
    for layer in range(config["num_hidden_layers"]):
        for block, projections in PROJECTIONS.items():
            for projection in projections:
                rows, columns = linear_shapes(config)[projection]
                prefix = f"base_model.model.model.layers.{layer}.{block}.{projection}."
                tensors[prefix + "lora_A.weight"] = uniform(rng, (rank, columns), 0.7 / math.sqrt(columns))
                tensors[prefix + "lora_B.weight"] = uniform(rng, (rows, rank), 0.5 / math.sqrt(rank) / scale)
    return tensors


def to_bytes(values, dtype):
    fp32 = array.array("f", values)
    if dtype == "F32":
        return struct.pack(f"<{len(fp32)}f", *fp32)
    bits = struct.unpack(f"<{len(fp32)}I", struct.pack(f"<{len(fp32)}f", *fp32))
    return struct.pack(f"<{len(bits)}H", *((b + 0x7FFF + (b >> 16 & 1)) >> 16 for b in bits))  # BF16, nearest even


def write_safetensors(path, tensors, dtype):
    header, chunks, end = {}, [], 0
    for name, (shape, values) in tensors.items():
        chunks.append(to_bytes(values, dtype))
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [end, end + len(chunks[-1])]}
        end += len(chunks[-1])
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(chunks))


def write_model(folder, name, dtype, seed):
    folder.mkdir(parents=True)
    config = MODELS[name]
    (folder / "config.json").write_text(json.dumps(dict(
        config, architectures=[ARCHITECTURES[config["model_type"]]], vocab_size=VOCABULARY, hidden_act="silu",
        rms_norm_eps=1e-6, max_position_embeddings=256, bos_token_id=0, eos_token_id=1,
        torch_dtype="float32" if dtype == "F32" else "bfloat16"), indent=1))
    write_safetensors(folder / "model.safetensors", model_tensors(config, seed), dtype)


def write_adapter(folder, name, seed, rank=4, alpha=8):
    folder.mkdir(parents=True)
    targets = [projection for projections in PROJECTIONS.values() for projection in projections]
    (folder / "adapter_config.json").write_text(json.dumps(dict(
        peft_type="LORA", task_type="CAUSAL_LM", base_model_name_or_path="base", r=rank, lora_alpha=alpha, lora_dropout=0.0,
        bias="none", fan_in_fan_out=False, use_rslora=False, target_modules=targets), indent=1))
    write_safetensors(folder / "adapter_model.safetensors", adapter_tensors(MODELS[name], rank, alpha / rank, seed), "F32")


def random_rows(seed, num_rows, max_len):
    """Documents of 2 to max_len tokens; some wholly trained, some with a prompt, some with holes."""
    rng = random.Random(seed)
    rows = []
    for index in range(num_rows):
        length = max_len if index == 0 else rng.randint(2, max_len)
        ids = [rng.randrange(VOCABULARY) for _ in range(length)]
        prompt = 0 if index % 3 == 0 else rng.randint(0, length - 2)
        labels = [-100 if at < prompt or (index % 3 == 2 and at < length - 1 and rng.random() < 0.3) else token
                  for at, token in enumerate(ids)]
        rows.append({"input_ids": ids, "labels": labels})
    return rows


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_all(folder):
    """models/NAME-DTYPE, adapters/NAME, rows.jsonl, long_rows.jsonl and eval_rows.jsonl."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(MODELS):
        for dtype in ("F32", "BF16"):
            write_model(folder / "models" / f"{name}-{dtype}", name, dtype, seed=100 + number)
        write_adapter(folder / "adapters" / name, name, seed=200 + number)
    write_rows(folder / "rows.jsonl", random_rows(1, 23, 40))
    write_rows(folder / "long_rows.jsonl", random_rows(2, 19, 120))
    write_rows(folder / "eval_rows.jsonl", random_rows(3, 9, 40))
