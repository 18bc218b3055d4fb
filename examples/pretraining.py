"""What the pretraining scripts of the examples share: a byte-level BPE and a small Qwen2-shaped model, from texts and seeds.

`make_model` writes a Hugging Face folder: tokenizer in the layout of Qwen2's tokenizer.json with its ChatML markers and
template, config, and weights in bf16 that were trained in fp32. On one thread the bytes are the same on every run.
"""

import argparse
import json
import math
import pathlib
import random
import time

import numpy
import tokenizers
import torch
import transformers
from safetensors.torch import save_file

END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
QWEN2_SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
               r"|\s+(?!\S)|\s+")
CHAT_TEMPLATE = (
    "{%- for message in messages %}\n"
    "    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}\n"
    "{%- endfor %}\n"
    "{%- if add_generation_prompt %}\n"
    "    {{- '<|im_start|>assistant\\n' }}\n"
    "{%- endif %}\n")
CONFIG = {
    "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": None, "eos_token_id": None,
    "hidden_act": "silu", "hidden_size": 128, "initializer_range": 0.02, "intermediate_size": 384,
    "max_position_embeddings": 1024, "max_window_layers": 4, "model_type": "qwen2", "num_attention_heads": 4,
    "num_hidden_layers": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 10000.0,
    "sliding_window": None, "tie_word_embeddings": True, "torch_dtype": "bfloat16", "use_cache": True,
    "use_sliding_window": False, "vocab_size": None,
}


def chat_text(user, assistant):
    return f"{TURN_START}user\n{user}{TURN_END}\n{TURN_START}assistant\n{assistant}{TURN_END}\n"


def train_tokenizer(texts, vocab_size, split):
    """A tokenizer.json as Qwen2 writes it: vocabulary and merges of a byte-level BPE, markers as the last ids."""
    markers = [END_OF_TEXT, TURN_START, TURN_END]
    trained = tokenizers.Tokenizer(tokenizers.models.BPE())
    trained.normalizer = tokenizers.normalizers.NFC()
    byte_level = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trained.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [tokenizers.pre_tokenizers.Split(tokenizers.Regex(split), behavior="isolated"), byte_level])
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size - len(markers), min_frequency=2, initial_alphabet=alphabet, show_progress=False)
    trained.train_from_iterator(texts, trainer)
    model = json.loads(trained.to_str())["model"]
    byte_level_options = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    vocab = dict(sorted(model["vocab"].items(), key=lambda item: item[1]))
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [
            {"id": len(vocab) + i, "content": marker, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": True} for i, marker in enumerate(markers)],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": split}, "behavior": "Isolated", "invert": False},
            byte_level_options]},
        "post_processor": byte_level_options, "decoder": byte_level_options,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "",
            "end_of_word_suffix": "", "fuse_unk": False, "byte_fallback": False, "vocab": vocab,
            "merges": [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]},
    }


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_tokenizer(folder, tokenizer_json, tokenizer_class, max_length):
    write_json(folder / "tokenizer.json", tokenizer_json)
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    write_json(folder / "tokenizer_config.json", {
        "add_bos_token": False, "add_prefix_space": False,
        "added_tokens_decoder": {
            str(token["id"]): {key: value for key, value in token.items() if key != "id"}
            for token in tokenizer_json["added_tokens"]},
        "additional_special_tokens": [TURN_START, TURN_END],
        "bos_token": None, "chat_template": CHAT_TEMPLATE, "clean_up_tokenization_spaces": False,
        "eos_token": TURN_END, "errors": "replace", "model_max_length": max_length,
        "pad_token": END_OF_TEXT, "split_special_tokens": False, "tokenizer_class": tokenizer_class,
        "unk_token": None})


def encode_all(tokenizer, texts, context):
    ids = []
    end = tokenizer.token_to_id(END_OF_TEXT)
    for encoding in tokenizer.encode_batch(texts):
        ids += encoding.ids + [end]
    return torch.from_numpy(numpy.array(ids[: len(ids) // context * context])).view(-1, context)


def pass_on_values(model, gain):
    """Attention of every layer but the first starts by adding what it looks at, times `gain`, to where it looks from: the heads then
    have to learn only where to look, and a model of a million parameters copies within minutes instead of hours."""
    identity = torch.eye(model.config.hidden_size) * gain**0.5
    with torch.no_grad():
        for layer in model.model.layers[1:]:
            layer.self_attn.v_proj.weight.copy_(identity)
            layer.self_attn.o_proj.weight.copy_(identity)


def pretrain(model, rows, num_steps, batch_size, learning_rate, warmup):
    """Plain next-token training on rows [n, context], in order and around again."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.98), weight_decay=0.01)
    started = time.time()
    for step in range(num_steps):
        progress = max(0, step - warmup) / (num_steps - warmup)
        rate = learning_rate * min(1, (step + 1) / warmup) * (0.02 + 0.98 * (1 + math.cos(math.pi * progress)) / 2)
        for group in optimizer.param_groups:
            group["lr"] = rate
        batch = rows[torch.arange(step * batch_size, (step + 1) * batch_size) % len(rows)]
        loss = model(input_ids=batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 100 == 0 or step == num_steps - 1:
            print(f"step {step} loss {loss.item():.4f} {time.time() - started:.0f} s", flush=True)


def as_llama(weights, config_json):
    """The same model under the name of Llama, whose output projection has a bias where the others have one: it is zero. transformers
    reads a tokenizer.json as it is for Llama; for Qwen2 it puts Qwen2's own pre-tokenizer in its place."""
    config = {name: value for name, value in config_json.items() if "sliding_window" not in name and name != "max_window_layers"}
    config.update(architectures=["LlamaForCausalLM"], model_type="llama", attention_bias=True, mlp_bias=False)
    for name in [name for name in weights if name.endswith("q_proj.bias")]:
        weights[name.replace("q_proj", "o_proj")] = torch.zeros(config["hidden_size"], dtype=torch.bfloat16)
    return weights, config


def save_model(folder, model, config_json, has_own_tokenizer):
    write_json(folder / "generation_config.json", {
        "do_sample": False, "eos_token_id": [config_json["eos_token_id"], config_json["bos_token_id"]],
        "pad_token_id": config_json["bos_token_id"]})
    weights = {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in model.state_dict().items()
               if name != "lm_head.weight"}  # tied to the embedding
    if has_own_tokenizer:
        weights, config_json = as_llama(weights, config_json)
    write_json(folder / "config.json", config_json)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def parse_arguments(description, output_dir, **defaults):
    """--steps, --batch-size, --learning-rate, --documents and more, with the defaults of an example."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output-dir", type=pathlib.Path, default=output_dir)
    parser.add_argument("--threads", type=int, default=1, help="one: the same sums on any number of cores")
    for name, value in defaults.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    return parser.parse_args()


def make_model(arguments, document, *, vocab_size, context, split=QWEN2_SPLIT, tokenizer_class="Qwen2Tokenizer", warmup=100,
               embedding_std=None, value_gain=0.0, **config):
    """Writes the folder arguments.output_dir. `document(rng)` makes a text; `config` replaces values of CONFIG.

    The embedding starts with the deviation `embedding_std` instead of initializer_range, attention with pass_on_values(value_gain)."""
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    rng = random.Random(arguments.seed)
    texts = [document(rng) for _ in range(arguments.documents)]
    tokenizer_json = train_tokenizer([text for text in texts if TURN_START not in text], vocab_size, split)
    folder = arguments.output_dir
    folder.mkdir(parents=True, exist_ok=True)
    config_json = dict(CONFIG, **config)
    write_tokenizer(folder, tokenizer_json, tokenizer_class, config_json["max_position_embeddings"])
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    rows = encode_all(tokenizer, texts, context)
    config_json.update(vocab_size=tokenizer.get_vocab_size(), bos_token_id=tokenizer.token_to_id(END_OF_TEXT),
                       eos_token_id=tokenizer.token_to_id(TURN_END))
    print(f"{len(texts)} documents, {rows.numel()} tokens, vocabulary of {config_json['vocab_size']}", flush=True)
    model = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**config_json)).train()
    if embedding_std is not None:
        torch.nn.init.normal_(model.model.embed_tokens.weight, std=embedding_std)
    if value_gain > 0:
        pass_on_values(model, value_gain)
    pretrain(model, rows, arguments.steps, arguments.batch_size, arguments.learning_rate, warmup)
    save_model(folder, model, config_json, has_own_tokenizer=split != QWEN2_SPLIT)
    print(f"{folder}: {sum(p.numel() for p in model.parameters())} parameters")
