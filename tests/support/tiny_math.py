"""`generate` on the model that examples/tiny-math ships, and its questions."""

import json
import shutil

from command import ROOT, good_run, lora_train

EXAMPLE = ROOT / "examples/tiny-math"
MODEL = EXAMPLE / "model"
FP32 = ("--set", "device=cpu", "--set", "precision=fp32")
CHATS = [json.loads(line)["messages"] for line in (EXAMPLE / "heldout.jsonl").read_text().splitlines()]
QUESTIONS = [chat[0]["content"] for chat in CHATS if len(chat) == 2]


def generate(*arguments, model=MODEL):
    return lora_train("generate", "--model", model, *FP32, *arguments)


def completions(*arguments, model=MODEL):
    return good_run("generate", "--model", model, *FP32, "--json", *arguments).json_lines()


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def model_without_template(folder):
    model = folder / "model"
    shutil.copytree(MODEL, model, ignore=shutil.ignore_patterns("chat_template.jinja"))
    config = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps({key: config[key] for key in config if key != "chat_template"}))
    return model


def hybrid_model(folder):
    """A Qwen3.5 with random weights, and the tokenizer and template of the model."""
    sizes = {"architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "hidden_size": 64, "intermediate_size": 96,
             "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "linear_num_key_heads": 2,
             "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 24, "initializer_range": 0.2,
             "max_position_embeddings": 4096}
    config = json.loads((MODEL / "config.json").read_text())
    kept = {key: config[key] for key in ("vocab_size", "eos_token_id") if key in config}
    (folder / "hybrid.json").write_text(json.dumps({**sizes, **kept}))
    good_run("init-model", "--config", folder / "hybrid.json", "--tokenizer", MODEL, "--output-dir", folder / "hybrid", "--dtype", "fp32")
    return folder / "hybrid"


def poisoned_model(folder):
    """The model with NaN in one weight."""
    model = folder / "model"
    shutil.copytree(MODEL, model)
    content = bytearray((model / "model.safetensors").read_bytes())
    header_bytes = int.from_bytes(content[:8], "little")
    tensor = json.loads(content[8:8 + header_bytes])["model.layers.3.mlp.down_proj.weight"]
    assert tensor["dtype"] == "BF16"
    begin, end = (8 + header_bytes + offset for offset in tensor["data_offsets"])
    content[begin:end] = b"\xc0\x7f" * ((end - begin) // 2)
    (model / "model.safetensors").write_bytes(content)
    return model
