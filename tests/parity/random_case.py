"""Random small models, adapters and examples for the parity tests, written to a folder as Hugging Face and PEFT write them.

A case is a function of its number alone. The weights make every part of the model matter: attention scores and logits
have a standard deviation over one, biases and norm weights are away from their neutral values, and B of the adapter is
not zero. A default-initialised tiny model would hide a missing RoPE, a missing mask and every gradient of A.
"""

import json
import math
import os
import random
from dataclasses import dataclass, field
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from transformers import Gemma3TextConfig, GraniteConfig, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config
from transformers import Gemma3ForCausalLM, GraniteForCausalLM, LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM
from transformers import Qwen3ForCausalLM

FAMILIES = {
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
    "llama": (LlamaConfig, LlamaForCausalLM),
    "gemma3": (Gemma3TextConfig, Gemma3ForCausalLM),
    "granite": (GraniteConfig, GraniteForCausalLM),
}
FIRST_OF_LATER = 100  # cases from this number on are of the families that came later, in turn
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
MLP = ["gate_proj", "up_proj", "down_proj"]
TOKEN_ROWS = {  # the tensors of trained token rows
    "embed_tokens": "base_model.model.model.embed_tokens.token_adapter.trainable_tokens_delta",
    "lm_head": "base_model.model.lm_head.token_adapter.trainable_tokens_delta"}
FILE_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
WINDOW = 7  # shorter than most documents


def num_cases(default):
    """LORA_TRAIN_PARITY_CASES, so that more can be tried than CI does."""
    return int(os.environ.get("LORA_TRAIN_PARITY_CASES", default))


@dataclass
class Case:
    number: int
    family: str
    model_dir: Path
    adapter_dir: Path
    data_file: Path
    rows: list = field(repr=False)  # [{"input_ids": [...], "labels": [...]}]
    max_seq_len: int
    description: str

    @property
    def supervised_tokens(self):
        return sum(label != -100 for row in self.rows for label in row["labels"][1:])


# (hidden, heads, kv heads, head_dim): head_dim is hidden / heads in the first list, another number in the second.
EVEN_SHAPES = [(40, 5, 1, 8), (72, 6, 2, 12), (48, 4, 4, 12), (56, 4, 2, 14), (36, 6, 3, 6)]
ODD_SHAPES = [(40, 5, 5, 16), (72, 6, 2, 20), (36, 6, 1, 10), (52, 4, 2, 8), (33, 3, 1, 14)]
ONE_HEAD = (36, 1, 1, 36)
WIDE = (160, 5, 1, 32)  # with 300 tokens, more than one thread's share for every kernel (kernels/launch/elements.h: 16384 elements)


def rope_parameters(kind, head_dim):
    """The RoPE variants; the original lengths are short, so that documents reach past them."""
    plain = {"rope_type": "default", "rope_theta": 1000.0}
    return {
        "default": plain,
        "linear": {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.5},
        "llama3": {"rope_type": "llama3", "rope_theta": 300.0, "factor": 8.0, "low_freq_factor": 1.0,
                   "high_freq_factor": 4.0, "original_max_position_embeddings": 64},
        "yarn": {"rope_type": "yarn", "rope_theta": 200.0, "factor": 4.0, "original_max_position_embeddings": 24,
                 "beta_fast": 8.0, "beta_slow": 1.0},
        "yarn_factor": {"rope_type": "yarn", "rope_theta": 200.0, "factor": 3.0, "attention_factor": 1.3,
                        "original_max_position_embeddings": 24},
    }[kind]


def gemma3_keys(rng, layers, head_dim):
    """Window layers and global ones, each with a RoPE base of its own; global ones scaled in half of the cases."""
    scaled = {"rope_type": "linear", "rope_theta": 1000.0, "factor": 4.0}
    pattern = rng.choice([2, layers])
    return dict(sliding_window=WINDOW, query_pre_attn_scalar=rng.choice([head_dim, 20]),
                layer_types=["full_attention" if (i + 1) % pattern == 0 else "sliding_attention" for i in range(layers)],
                attention_bias=rng.random() < 0.5, pad_token_id=None,
                rope_parameters={"full_attention": scaled if rng.random() < 0.5 else rope_parameters("default", head_dim),
                                 "sliding_attention": {"rope_type": "default", "rope_theta": 60.0}})


def granite_keys(rng):
    return dict(attention_bias=rng.random() < 0.5, mlp_bias=rng.random() < 0.5, embedding_multiplier=3.0, logits_scaling=1.5,
                residual_multiplier=0.4, attention_multiplier=0.3)


def random_config(family, rng, shape):
    """Returns the keyword arguments of the family's config class and the words that describe them."""
    drawn = rng.choice(EVEN_SHAPES if family in ("qwen2", "granite") else EVEN_SHAPES + 2 * ODD_SHAPES)
    hidden, heads, kv_heads, head_dim = shape or drawn
    layers = rng.choice([2, 3])
    rope = rng.choice({"llama": ["llama3", "linear", "yarn", "yarn_factor", "default"]}.get(family, ["default", "yarn"]))
    more = {}
    if family not in ("qwen2", "granite"):
        more["head_dim"] = head_dim
    if family in ("qwen3", "llama"):
        more["attention_bias"] = rng.random() < 0.5
    if family == "llama":
        more["mlp_bias"] = rng.random() < 0.5
    if family == "mistral":
        more["sliding_window"] = rng.choice([None, WINDOW, WINDOW])
    if family.startswith("qwen") and rng.random() < 0.5:
        more.update(use_sliding_window=True, sliding_window=WINDOW, max_window_layers=rng.choice([0, 1]))
    config = dict(vocab_size=rng.choice([97, 128, 131]), hidden_size=hidden, num_hidden_layers=layers,
                  num_attention_heads=heads, num_key_value_heads=kv_heads, intermediate_size=rng.choice([52, 90, 96]),
                  max_position_embeddings=256, rms_norm_eps=rng.choice([1e-5, 1e-6]),
                  rope_parameters=rope_parameters(rope, head_dim), tie_word_embeddings=rng.random() < 0.5, **more)
    if family == "gemma3":
        config.update(gemma3_keys(rng, layers, head_dim))
    if family == "granite":
        config.update(granite_keys(rng))
    words = f"{family} D{hidden} H{heads}/{kv_heads} E{head_dim} L{layers} rope={rope} " \
            f"{'tied' if config['tie_word_embeddings'] else 'untied'} " + " ".join(
                f"{key}={value}" for key, value in more.items() if key != "head_dim")
    return config, words


def randomise_weights(model, generator):
    """Norm weights are near what leaves a value as it is: 1, or 0 where the model adds 1. Query and key weights give scores of standard deviation about 2; the head gives logits of about 2."""
    def normal(tensor, std, mean=0.0):
        with torch.no_grad():
            tensor.copy_(mean + std * torch.randn(tensor.shape, generator=generator))

    neutral = 0.0 if model.config.model_type == "gemma3_text" else 1.0
    for name, tensor in model.named_parameters():
        if name.endswith("bias"):
            normal(tensor, 0.5)
        elif tensor.dim() == 1:
            normal(tensor, 0.25, mean=neutral)
        elif "embed_tokens" in name or "lm_head" in name:
            normal(tensor, 2.0 / math.sqrt(tensor.shape[1]))
        else:
            gain = 1.3 if ".q_proj" in name or ".k_proj" in name else 0.8
            normal(tensor, gain / math.sqrt(tensor.shape[1]))


def write_as_older_transformers(model_dir):
    """config.json as before transformers 5: rope_theta and rope_scaling, torch_dtype."""
    path = model_dir / "config.json"
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    if "full_attention" in rope:  # as Gemma 3 was published
        config["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        config["sliding_window_pattern"] = config.pop("layer_types").index("full_attention") + 1
        rope = rope["full_attention"]
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    config["torch_dtype"] = config.pop("dtype")
    path.write_text(json.dumps(config, indent=2))


def save_model(family, config, file_dtype, is_sharded, is_older, generator, model_dir):
    config_class, model_class = FAMILIES[family]
    model = model_class(config_class(**config))
    randomise_weights(model, generator)
    model.to(FILE_DTYPES[file_dtype]).save_pretrained(model_dir, max_shard_size="30KB" if is_sharded else "5GB")
    num_files = len(list(model_dir.glob("*.safetensors")))
    assert (num_files > 1) == is_sharded, f"{num_files} weight files in {model_dir}"
    if is_older:
        write_as_older_transformers(model_dir)
    return model.float()


def random_lora_config(rng, num_layers):
    targets = rng.choice(["all-linear", ATTENTION, ["q_proj", "v_proj"], ["k_proj", "o_proj", "down_proj"], MLP + ATTENTION,
                          r".*\.(self_attn\.(q|k)_proj|mlp\.(gate|up)_proj)", rf"model\.layers\.{num_layers - 1}\..*_proj"])
    use_patterns = rng.random() < 0.5
    return dict(
        r=rng.choice([1, 3, 4, 8]), lora_alpha=rng.choice([3, 8, 16]), lora_dropout=0.0, bias="none",
        task_type="CAUSAL_LM", target_modules=targets, use_rslora=rng.random() < 0.4,
        rank_pattern={"k_proj": 2, r"layers.0.*up_proj": 5} if use_patterns else {},
        alpha_pattern={"q_proj": 5, r"layers.1.*(o|down)_proj": 7} if use_patterns else {})


def save_adapter(model, lora_config, generator, adapter_dir):
    """An adapter that adds about a third of a linear's output whatever its scale: dA is as large as dB, and rounding
    is not amplified (with a scale of 16 and the same B, PEFT in fp32 is 1e-4 away from fp64). Token rows are other rows than
    those of the base."""
    peft_model = get_peft_model(model, LoraConfig(**lora_config))
    for name, rows in peft_model.named_parameters():
        if "trainable_tokens_delta" in name:
            with torch.no_grad():
                rows.copy_(1.5 / math.sqrt(rows.shape[1]) * torch.randn(rows.shape, generator=generator))
    for module in peft_model.modules():
        if not hasattr(module, "lora_A"):
            continue
        A, B, scale = module.lora_A["default"].weight, module.lora_B["default"].weight, module.scaling["default"]
        with torch.no_grad():
            A.copy_(0.7 / math.sqrt(A.shape[1]) * torch.randn(A.shape, generator=generator))
            B.copy_(0.5 / math.sqrt(B.shape[1]) / scale * torch.randn(B.shape, generator=generator))
    peft_model.save_pretrained(adapter_dir)


def random_rows(rng, vocab_size, num_rows, max_len):
    """Documents of 2 to max_len tokens; some wholly trained, some with a prompt, some with holes."""
    rows = []
    for index in range(num_rows):
        length = max_len if index == 0 else rng.randint(2, max_len)
        ids = [rng.randrange(vocab_size) for _ in range(length)]
        style = index % 3
        prompt = 0 if style == 0 else rng.randint(0, length - 2)
        labels = [-100 if at < prompt or (style == 2 and at < length - 1 and rng.random() < 0.3) else token
                  for at, token in enumerate(ids)]
        rows.append({"input_ids": ids, "labels": labels})
    return rows


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def make_case(number, folder, num_rows=6, max_len=40, family=None, file_dtype=None, shape=None, num_layers=None,
              token_rows=None):
    """Case `number`; its family goes round the first four, from FIRST_OF_LATER on round the others. `shape` and `num_layers`
    stand in for the drawn ones. token_rows: ids for trainable_token_indices, or pairs (module, ids). The folder must not exist."""
    rng = random.Random(9000 + number)
    generator = torch.Generator().manual_seed(number)
    names = list(FAMILIES)[4:] if number >= FIRST_OF_LATER else list(FAMILIES)[:4]
    family = family or names[number % len(names)]
    config, words = random_config(family, rng, shape)
    config["num_hidden_layers"] = num_layers or config["num_hidden_layers"]
    file_dtype = file_dtype or rng.choice(list(FILE_DTYPES))
    is_sharded, is_older = rng.random() < 0.5, rng.random() < 0.5
    folder.mkdir(parents=True)
    model = save_model(family, config, file_dtype, is_sharded, is_older, generator, folder / "model")
    lora_config = random_lora_config(rng, config["num_hidden_layers"])
    if token_rows:
        lora_config["trainable_token_indices"] = {name: list(ids) for name, ids in token_rows} \
            if isinstance(token_rows[0], tuple) else list(token_rows)
    save_adapter(model, lora_config, generator, folder / "adapter")
    rows = random_rows(rng, config["vocab_size"], num_rows, max_len)
    write_rows(folder / "rows.jsonl", rows)
    words += f" {file_dtype}{' sharded' if is_sharded else ''}{' older config' if is_older else ''} | lora " + " ".join(
        f"{key}={value}" for key, value in lora_config.items() if key not in ("bias", "task_type", "lora_dropout"))
    return Case(number, family, folder / "model", folder / "adapter", folder / "rows.jsonl", rows, max_len + 8, words)
