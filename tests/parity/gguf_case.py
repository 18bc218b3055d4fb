"""Small models with tokenizers and adapters that GGUF can hold, of every family, and what their GGUF files should hold.

The names of tensors and keys come from the gguf package; the reordering of rows is written down here a second time.
"""

import json
import os
import random
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import GenerationConfig

import engine
import oracle
import random_case

DATA = Path(os.environ.get("LORA_TRAIN_TEST_DATA", engine.ROOT / "../shared/data"))
ARCHITECTURES = {"qwen2": gguf.MODEL_ARCH.QWEN2, "qwen3": gguf.MODEL_ARCH.QWEN3, "mistral": gguf.MODEL_ARCH.LLAMA,
                 "llama": gguf.MODEL_ARCH.LLAMA, "gemma3": gguf.MODEL_ARCH.GEMMA3, "granite": gguf.MODEL_ARCH.GRANITE}
ROTATES_PAIRS = ("mistral", "llama", "granite")
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
PATTERNS = {"qwen35": (CONTRACTIONS + r"\p{N}" + REST).replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"^\s\p{L}", r"^\s\p{L}\p{M}"),
            "qwen2": CONTRACTIONS + r"\p{N}" + REST, "llama-bpe": CONTRACTIONS + r"\p{N}{1,3}" + REST}
TEXT = ["The quick brown fox jumps over the lazy dog. The dog sleeps, and the fox is gone!", "It's 12345 o'clock; they'll sing.",
        "Where the river ends, there the other one begins: then and there, here and now."] * 3
TEMPLATE = ("{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
            "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")


@dataclass
class Case:
    family: str
    pre: str  # tokenizer.ggml.pre, "default" for SentencePiece
    model_dir: Path
    adapter_dir: Path
    description: str

    @property
    def config(self):
        return json.loads((self.model_dir / "config.json").read_text())


def byte_level(pre):
    tokenizer = Tokenizer(models.BPE(ignore_merges=pre == "llama-bpe"))
    steps = {"refact": [pre_tokenizers.Digits(individual_digits=True)], "gpt-2": []}.get(pre)
    if steps is None:
        steps = [pre_tokenizers.Split(Regex(PATTERNS[pre]), "isolated")]
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pre in ("refact", "gpt-2")))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(TEXT, trainers.BpeTrainer(
        vocab_size=280, special_tokens=[], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer.add_tokens(["<tool>"])
    return tokenizer


def sentencepiece_like():
    """As Hugging Face converts a SentencePiece model: every way to make a piece is a merge, in the order of the pieces."""
    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trained.train_from_iterator([part for text in TEXT for part in text.split()], trainers.BpeTrainer(vocab_size=70, show_progress=False))
    pieces = sorted(trained.get_vocab().items(), key=lambda item: item[1])
    words = [text for text, _ in pieces if len(text) > 1]
    vocab = {text: at for at, text in enumerate(["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words,
                                                 *(text for text, _ in pieces if len(text) == 1)])}
    merges = [(word[:at], word[at:]) for word in words for at in range(1, len(word)) if word[:at] in vocab and word[at:] in vocab]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = trained.normalizer
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"])
    return tokenizer


def write_tokenizer(pre, folder):
    tokenizer = sentencepiece_like() if pre == "default" else byte_level(pre)
    tokenizer.save(str(folder / "tokenizer.json"))
    eos = "</s>" if pre == "default" else "<|endoftext|>"
    names = {"eos_token": eos, "tokenizer_class": "PreTrainedTokenizerFast", "chat_template": TEMPLATE}
    if pre == "default":
        names.update(bos_token="<s>", add_bos_token=True)
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    stops = [tokenizer.token_to_id(eos), tokenizer.token_to_id("<|im_end|>")]
    GenerationConfig(eos_token_id=stops).save_pretrained(folder)


def random_config(family, rng, tied=True):
    """A configuration that llama.cpp computes as transformers does. Not `tied`: the head is never the embedding, which tends to say the last token
    again."""
    config, words = random_case.random_config(family, rng, None)
    head_dim = config.get("head_dim", config["hidden_size"] // config["num_attention_heads"])
    config["vocab_size"] = rng.choice([340, 352])
    config["bos_token_id"] = config["eos_token_id"] = None
    if not tied:
        config["tie_word_embeddings"] = False
    if family in ("qwen3", "gemma3"):
        config["attention_bias"] = False
    for key in ("sliding_window", "use_sliding_window", "max_window_layers"):
        if family != "gemma3":
            config.pop(key, None)
    if family == "mistral":
        config["sliding_window"] = None
    if family == "gemma3":
        config["query_pre_attn_scalar"] = head_dim
        config["head_dim"] = head_dim
    if config["rope_parameters"].get("attention_factor"):
        config["rope_parameters"] = random_case.rope_parameters("yarn", head_dim)
    rope = config["rope_parameters"].get("rope_type", "by kind of layer")
    return config, f"{family} D{config['hidden_size']} H{config['num_attention_heads']}/{config['num_key_value_heads']} E{head_dim} rope={rope}"


def amplify(adapter_dir, gain):
    """Makes the adapter as strong as the base, so that it changes greedy answers."""
    path = adapter_dir / "adapter_model.safetensors"
    tensors = load_file(path)
    save_file({name: tensor * (gain if ".lora_B." in name else 1) for name, tensor in tensors.items()}, path, metadata={"format": "pt"})


def make_case(number, folder, family=None, file_dtype=None, gain=1, tied=True, **lora):
    """Case `number`: its family and tokenizer go round."""
    rng = random.Random(700 + number)
    generator = torch.Generator().manual_seed(number)
    family = family or list(ARCHITECTURES)[number % len(ARCHITECTURES)]
    config, words = random_config(family, rng, tied)
    file_dtype = file_dtype or rng.choice(list(random_case.FILE_DTYPES))
    is_older = rng.random() < 0.5
    folder.mkdir(parents=True)
    model = random_case.save_model(family, config, file_dtype, rng.random() < 0.5, is_older, generator, folder / "model")
    pre = rng.choice(["qwen2", "llama-bpe", "refact", "gpt-2", "default"])
    write_tokenizer(pre, folder / "model")
    options = {**random_case.random_lora_config(rng, config["num_hidden_layers"]), **lora}
    random_case.save_adapter(model, options, generator, folder / "adapter")
    amplify(folder / "adapter", gain)
    return Case(family, pre, folder / "model", folder / "adapter",
                f"{words} {file_dtype} tokenizer={pre} | r={options['r']} alpha={options['lora_alpha']} rslora={options['use_rslora']} "
                f"patterns={bool(options['rank_pattern'])}")


def gguf_name(case, name):
    return gguf.get_tensor_name_map(ARCHITECTURES[case.family], 8).get_name(name, try_suffixes=(".weight", ".bias"))


def reordered(case, name, rows):
    """Rows of q and k, from the two halves of a head to pairs."""
    heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}.get(name.split(".")[-2])
    if heads is None or case.family not in ROTATES_PAIRS:
        return rows
    count = case.config[heads]
    half = rows.shape[0] // count // 2
    order = [head * 2 * half + part * half + at for head in range(count) for at in range(half) for part in range(2)]
    return rows[order]


def expected_tensors(case, is_merged):
    """By GGUF name, in fp32."""
    model = oracle.load_peft(case.model_dir, case.adapter_dir).merge_and_unload() if is_merged else oracle.load_base(case.model_dir)
    is_tied = case.config["tie_word_embeddings"]
    tensors = {}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and is_tied:
            continue
        value = tensor.float().numpy()
        if case.family == "gemma3" and name.endswith("norm.weight"):
            value = value + np.float32(1)
        tensors[gguf_name(case, name)] = reordered(case, name, value)
    return tensors


def read(path):
    """(fields by key, tensors by name) of a GGUF file."""
    reader = gguf.GGUFReader(path)
    return {key: field.contents() for key, field in reader.fields.items()}, {tensor.name: tensor for tensor in reader.tensors}


def values(tensor):
    return gguf.quants.dequantize(tensor.data, tensor.tensor_type)


def untrained(folder, source, file, num_rows):
    """A model of one layer with that file of a published tokenizer."""
    folder.mkdir()
    for part in (file, "tokenizer_config.json"):
        (folder / part).symlink_to(source / part)
    (folder / "config.json").write_text(json.dumps(
        {"model_type": "qwen2" if "qwen" in str(source) else "mistral", "vocab_size": num_rows, "hidden_size": 32, "num_hidden_layers": 1,
         "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 32, "sliding_window": None, "tie_word_embeddings": True}))
    engine.run("lora-train", "init-model", "--config", folder / "config.json", "--tokenizer", folder, "--output-dir", folder / "model")
    return folder / "model"
