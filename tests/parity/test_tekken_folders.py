"""Folders with tekken.json alone: the GGUF file and the tokenizer.json with new tokens that are made of them have its ids."""

import json
import os

import battery_strings
import gguf
import pytest
import tokenizer_probe
from mistral_common.tokens.tokenizers.tekken import Tekkenizer
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer

import chat_oracle
import engine
import gguf_case
import tekken_folders

NUM_TOKENS = int(os.environ.get("LORA_TRAIN_TEKKEN_TOKENS", 20000))  # 130072: all of them
NUM_STRINGS = 3000
NEW = ["<conf_0>", "<conf_100>"]
CONFIG = {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "vocab_size": tekken_folders.NUM_SPECIAL + NUM_TOKENS, "hidden_size": 16,
          "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 32, "sliding_window": None,
          "tie_word_embeddings": True, "max_position_embeddings": 256}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tekken")
    tekken_folders.make_folder(folder, "v13", NUM_TOKENS)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    engine.run("lora-train", "init-model", "--config", folder / "config.json", "--tokenizer", folder, "--output-dir", folder / "model")
    assert (folder / "model/tekken.json").exists() and not (folder / "model/tokenizer.json").exists()
    return folder / "model"


@pytest.fixture(scope="module")
def texts(model):
    """Strings without special tokens, and their ids by mistral-common."""
    tokenizer = Tekkenizer.from_file(model / "tekken.json")
    vocabulary = [tokenizer.id_to_piece(id) for id in range(tekken_folders.NUM_SPECIAL + 256, tokenizer.n_words)]
    strings = [text for kind, text in battery_strings.strings(5, NUM_STRINGS, chat_oracle.DATA, ["<s>"])]
    strings += [text for kind, text in battery_strings.adversarial(5, 300, vocabulary, ["<s>"])]
    special = [token["token_str"] for token in tokenizer._all_special_tokens]
    strings = [text for text in strings if text and not any(token in text for token in special)]
    assert len(strings) > 2500
    return strings, [tokenizer.encode(text, bos=False, eos=False) for text in strings]


def test_a_gguf_file_has_the_ids(model, texts, tmp_path):
    engine.run("lora-train", "export", "--gguf", tmp_path / "x.gguf", "--model", model)
    fields, _ = gguf_case.read(tmp_path / "x.gguf")
    tokens = fields["tokenizer.ggml.tokens"]
    assert (fields["tokenizer.ggml.model"], fields["tokenizer.ggml.pre"]) == ("gpt2", "tekken")
    assert [tokens[fields[f"tokenizer.ggml.{name}_token_id"]] for name in ("bos", "eos", "padding")] == ["<s>", "</s>", "<pad>"]
    assert fields["tokenizer.ggml.add_bos_token"]
    assert fields["tokenizer.chat_template"].startswith("{%- set version = 13 %}")
    controls = tekken_folders.NUM_SPECIAL * [gguf.TokenType.CONTROL]
    assert fields["tokenizer.ggml.token_type"] == controls + NUM_TOKENS * [gguf.TokenType.NORMAL]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    assert len(merges) > 0.9 * (NUM_TOKENS - 256)
    # As llama.cpp reads it: "tekken" is this pattern, and a piece that is a token is not split further.
    tokenizer = Tokenizer(models.BPE({token: id for id, token in enumerate(tokens)}, merges, ignore_merges=True))
    pattern = json.loads((model / "tekken.json").read_text())["config"]["pattern"]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"),
                                                       pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    strings, ids = texts
    assert [encoding.ids for encoding in tokenizer.encode_batch(strings)] == ids


def test_new_tokens_are_behind_the_others(model, texts, tmp_path):
    strings, ids = texts
    rows = [{"messages": [{"role": "user", "content": f"Is {i} odd?"}, {"role": "assistant", "content": f"Yes.{NEW[i % 2]}"}]} for i in range(8)]
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    profile = {"model": str(model), "datasets": [str(tmp_path / "rows.jsonl")], "device": "cpu", "precision": "fp32", "add_tokens": NEW,
               "global_batch_size": 4, "micro_batch_size": 4, "max_steps": 2, "max_seq_len": 64, "packing": False, "report_to": "none",
               "output_dir": str(tmp_path / "run")}
    engine.train(profile, tmp_path)
    engine.run("lora-train", "merge", "--model", model, "--adapter", tmp_path / "run/adapter", "--output-dir", tmp_path / "merged")
    first = CONFIG["vocab_size"]
    for folder in (tmp_path / "run/adapter", tmp_path / "merged"):
        assert not (folder / "tekken.json").exists(), "transformers would read it, without the new tokens"
        theirs = AutoTokenizer.from_pretrained(folder)
        assert theirs.convert_tokens_to_ids(NEW) == [first, first + 1]
        assert (theirs.bos_token, theirs.eos_token, theirs.pad_token) == ("<s>", "</s>", "<pad>")
        assert theirs(strings, add_special_tokens=False).input_ids == ids
        assert tokenizer_probe.encode(engine.BIN / "tokenizer-probe", tmp_path, strings, model=folder)[0] == ids
        chat = theirs.apply_chat_template(rows[1]["messages"], tokenize=True, return_dict=False)
        text = f"<s>[INST]Is 1 odd?[/INST]Yes.{NEW[1]}</s>"
        assert tokenizer_probe.encode(engine.BIN / "tokenizer-probe", tmp_path, [text], model=folder)[0] == [chat]
        assert chat[-2:] == [first + 1, 2]
