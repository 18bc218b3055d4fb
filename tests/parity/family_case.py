"""Tiny models of every class that holds a text model, as transformers saves them and as they were published, with adapters that PEFT
made on the class itself."""

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

import torch
import transformers
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file

import engine
import random_case

DATA = Path(os.environ.get("LORA_TRAIN_TEST_DATA", engine.ROOT / "../shared/data")) / "families"

_TEXT = {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
         "num_key_value_heads": 2, "max_position_embeddings": 4096}
_PIXTRAL = {"model_type": "pixtral", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2,
            "head_dim": 16, "image_size": 32, "patch_size": 4}
OWN = {  # beside the folders of DATA
    "qwen2_vl": {  # published flat
        "architectures": ["Qwen2VLForConditionalGeneration"], "model_type": "qwen2_vl", **_TEXT, "rms_norm_eps": 1e-6,
        "rope_theta": 1e6, "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}, "tie_word_embeddings": False,
        "bos_token_id": 1, "eos_token_id": 0, "torch_dtype": "float32",
        "vision_config": {"depth": 1, "embed_dim": 32, "hidden_size": 64, "num_heads": 2, "patch_size": 4, "mlp_ratio": 2}},
    "gemma3": {  # num_attention_heads as of the class, and a tower with self_attn.q_proj
        "architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3",
        "text_config": {"model_type": "gemma3_text", "vocab_size": 256, "hidden_size": 64, "intermediate_size": 96,
                        "num_hidden_layers": 4, "head_dim": 16, "sliding_window": 32, "sliding_window_pattern": 2,
                        "query_pre_attn_scalar": 16, "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
        "vision_config": {"model_type": "siglip_vision_model", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1,
                          "num_attention_heads": 2, "image_size": 28, "patch_size": 7}, "mm_tokens_per_image": 4},
    "llava_pixtral": {
        "architectures": ["LlavaForConditionalGeneration"], "model_type": "llava", "vision_config": _PIXTRAL,
        "text_config": {"model_type": "mistral", **_TEXT, "head_dim": 24, "rms_norm_eps": 1e-5, "rope_theta": 1e9,
                        "sliding_window": None}, "vision_feature_layer": -1, "vision_feature_select_strategy": "full"},
}
SMALL_HYBRID = {  # in no folder of DATA, which a bundle lacks (tests/gpu/parity_gpu.py)
    "architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", **_TEXT, "num_hidden_layers": 4, "head_dim": 32,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 24,
    "rms_norm_eps": 1e-2}
HYBRID = ["qwen3_5", "qwen3_5-untied", "qwen3_5_text", "qwen3_next"]
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj", "in_proj_qkvz", "in_proj_ba", "out_proj"]  # PEFT takes Next's dense MLP for experts
NAMES = ["ministral", "ministral3", "ministral3-tied", "ministral3_text", "mistral3", "qwen2_5_vl", "qwen3_vl", "voxtral", *OWN, *HYBRID]
LENGTHS = [150, 1 + 1, 63, 64, 65, 40, 7]  # 150 crosses the period of Ministral 3's query scale three times


@dataclass
class FamilyCase:
    name: str
    model_dir: Path
    adapter_dir: Path
    data_file: Path
    rows: list = field(repr=False)
    max_seq_len: int = 160

    @property
    def description(self):
        return self.name

    @property
    def supervised_tokens(self):
        return sum(label != -100 for row in self.rows for label in row["labels"][1:])


def published_config(name):
    if name in OWN:
        return OWN[name]
    if name == "small hybrid":
        return dict(SMALL_HYBRID)
    config = json.loads((DATA / name / "config.json").read_text())
    if name in HYBRID:  # with random weights the gated norm of 1e-6 is ill-conditioned (test_hybrid.py)
        config.get("text_config", config)["rms_norm_eps"] = 1e-2
    if name == "qwen3_next":  # its gated delta nets, with the MLP of a dense model
        config["num_experts"] = 0
    return config


def spread(model):
    """The weights of the README of DATA, under which every part of the model matters."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, p in sorted(model.named_parameters()):
            if name.endswith("A_log"):  # slow decays, so that a state that leaks between documents shows
                p.copy_(torch.log(0.02 + 1.98 * torch.rand(p.shape, generator=generator)))
                continue
            noise = torch.randn(p.shape, generator=generator)
            if name.endswith("dt_bias"):
                p.copy_(-1 + 0.5 * noise)
            elif p.dim() == 1:
                p.add_(0.2 * noise)
            elif "embed_tokens" in name:
                p.copy_(0.25 * noise)
            else:
                p.copy_(noise * (p.numel() / p.shape[0]) ** -0.5)


def build(name, **text_keys):
    config = published_config(name)
    config.get("text_config", config).update(text_keys)
    folder_config = transformers.CONFIG_MAPPING[config["model_type"]].from_dict(config)
    torch.manual_seed(0)
    model = getattr(transformers, config["architectures"][0])._from_config(folder_config, attn_implementation="eager").eval()
    spread(model)
    return model


def rewrite_file(file, change):
    """The tensors of the file under the names, and with the values, that change(name, tensor) lists."""
    changed = dict(pair for name, tensor in load_file(file).items() for pair in change(name, tensor))
    save_file(changed, file, metadata={"format": "pt"})


def write_config(model_dir, config):
    (model_dir / "config.json").write_text(json.dumps(config, indent=1))


def make(name, folder, token_rows=None, **text_keys):
    """token_rows: for trainable_token_indices."""
    model = build(name, **text_keys)
    model.save_pretrained(folder / "model")
    is_wrapper = "ConditionalGeneration" in type(model).__name__
    targets = (r"model\.language_model\.layers\.\d+\.(self_attn|linear_attn|mlp)\.(\w+_proj|in_proj_\w+)" if is_wrapper
               else ATTENTION if name == "qwen3_next" else "all-linear")
    generator = torch.Generator().manual_seed(3)
    lora = dict(r=4, lora_alpha=8, lora_dropout=0.0, bias="none", task_type="CAUSAL_LM", target_modules=targets)
    if token_rows:
        lora["trainable_token_indices"] = token_rows
    random_case.save_adapter(model, lora, generator, folder / "adapter")
    ids = torch.randint(20, 240, (sum(LENGTHS),), generator=torch.Generator().manual_seed(2)).split(LENGTHS)
    rows = [{"input_ids": row.tolist(), "labels": [-100] + row.tolist()[1:]} for row in ids]
    random_case.write_rows(folder / "rows.jsonl", rows)
    return FamilyCase(name, folder / "model", folder / "adapter", folder / "rows.jsonl", rows)
