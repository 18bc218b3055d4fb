"""Tokens that only the files beside tokenizer.json name: the ids of AutoTokenizer, or a refusal; the same after a run has saved them."""

import json
import shutil

import pytest
import tokenizer_probe
import transformers
from transformers import AutoTokenizer

import engine
from engine import ROOT
from test_new_tokens import save_model

MODEL = ROOT / "examples/tiny-math/model"  # 2048 tokens
MAP, ADDED = "special_tokens_map.json", "added_tokens.json"
TEXTS = ["a <n1> b<n0>c", "<n0><n1> <n2>x <n3>", "the<|im_end|> the  <|im_end|>ing making<n1><n1>", "<e\u0301> <\u00e9> <n2>"]


def token(content, **flags):
    return {"__type": "AddedToken", "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True} | flags


# Members of tokenizer_config.json, and other files.
FORMS = {
    "a list": ({"extra_special_tokens": ["<n1>", "<n0>"]}, {}),
    "an older list": ({"additional_special_tokens": ["<n1>", "<n0>"]}, {}),
    "both lists": ({"extra_special_tokens": ["<n1>"], "additional_special_tokens": ["<n0>"]}, {}),
    "no list before an older one": ({"extra_special_tokens": None, "additional_special_tokens": ["<n0>"]}, {}),
    "objects": ({"extra_special_tokens": [token("<n1>"), "<n0>"], "pad_token": token("<n2>")}, {}),
    "words of the vocabulary, doubles and nothing": ({"extra_special_tokens": ["ing", "<|im_end|>", "<n1>", "", "<n1>"]}, {}),
    "a token that the normalizer changes": ({"extra_special_tokens": ["<e\u0301>", "<n1>"]}, {}),
    "a name": ({"extra_special_tokens": {"image_token": "<n1>", "end": "<|im_end|>"}, "additional_special_tokens": ["<n0>"]}, {}),
    "a key of its own": ({"image_token": "<n1>", "extra_special_tokens": ["<n0>"]}, {}),
    "known keys": ({"pad_token": "<n2>", "unk_token": "<n3>", "mask_token": "<n1>", "extra_special_tokens": ["<n0>"]}, {}),
    "a name that is a known key": ({"extra_special_tokens": {"pad_token": "<n1>"}, "mask_token": "<n0>"}, {}),
    "a list in the map": ({}, {MAP: {"additional_special_tokens": ["<n1>", "<n0>"]}}),
    "a list more in the map": ({"extra_special_tokens": ["<n2>"]}, {MAP: {"extra_special_tokens": ["<n1>", "<n2>"]}}),
    "an older list in the map behind another": ({"additional_special_tokens": ["<n2>"]}, {MAP: {"additional_special_tokens": ["<n1>"]}}),
    "a name in the map": ({"extra_special_tokens": ["<n2>"]}, {MAP: {"extra_special_tokens": {"i_token": "<n1>"}, "additional_special_tokens": ["<n0>"]}}),
    "known keys in the map": ({"pad_token": "<n0>"}, {MAP: {"pad_token": "<n1>", "mask_token": {"content": "<n2>", "normalized": True}}}),
    "no token in the map": ({"pad_token": "<n1>"}, {MAP: {"pad_token": None, "image_token": "<n2>"}}),
    "a key of its own in both": ({"image_token": "<n0>"}, {MAP: {"image_token": "<n1>"}}),
    "added tokens": ({"extra_special_tokens": ["<n2>", "<n1>"]}, {ADDED: {"<n1>": 2049, "<n0>": 2048, "<|im_end|>": 2047}}),
    "added tokens and a map": ({}, {ADDED: {"<n2>": 2049, "<e\u0301>": 2048}, MAP: {"pad_token": "<n2>", "additional_special_tokens": ["<n0>"]}}),
}
REFUSED = {
    "ids with a gap": ({}, {ADDED: {"<n1>": 2050}}, "the next free id, 2048"),
    "white space": ({"extra_special_tokens": [token("<n1>", lstrip=True)]}, {}, "depend on tokenizer_class"),
    "two names": ({"extra_special_tokens": {"b_token": "<n1>", "a_token": "<n0>"}}, {}, "second new token with a name; list both"),
}


def write_folder(folder, form, tokenizer_class, has_decoder):
    members, files = form[:2]
    folder.mkdir()
    shutil.copy(MODEL / "tokenizer.json", folder)
    config = json.loads((MODEL / "tokenizer_config.json").read_text()) | {"tokenizer_class": tokenizer_class}
    for name in ["chat_template", "additional_special_tokens", *([] if has_decoder else ["added_tokens_decoder"])]:
        config.pop(name, None)
    (folder / "tokenizer_config.json").write_text(json.dumps(config | members))
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    return folder


def our_ids(folder, work):
    return tokenizer_probe.encode(engine.BIN / "tokenizer-probe", work, TEXTS, model=folder, file="json")[0]


def reference_ids(folder, new_tokens=()):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.add_tokens(list(new_tokens)) == len(new_tokens)
    return [tokenizer(text, add_special_tokens=False).input_ids for text in TEXTS]


@pytest.fixture(autouse=True)
def quiet():
    transformers.logging.set_verbosity_error()


@pytest.mark.parametrize("has_decoder", [True, False], ids=["decoder", "no decoder"])
@pytest.mark.parametrize("tokenizer_class", ["PreTrainedTokenizerFast", "Qwen2TokenizerFast"])
def test_every_form_gives_the_ids_of_transformers(tokenizer_class, has_decoder, tmp_path):
    without = reference_ids(write_folder(tmp_path / "plain", ({}, {}), tokenizer_class, has_decoder))
    num_new = 0
    for place, (name, form) in enumerate(FORMS.items()):
        folder = write_folder(tmp_path / str(place), form, tokenizer_class, has_decoder)
        theirs = reference_ids(folder)
        assert our_ids(folder, tmp_path) == theirs, name
        num_new += theirs != without
    assert num_new == len(FORMS) - (3 if has_decoder else 1)


@pytest.mark.parametrize("name", REFUSED)
def test_forms_whose_ids_are_an_accident_are_refused(name, tmp_path):
    folder = write_folder(tmp_path / "model", REFUSED[name], "PreTrainedTokenizerFast", False)
    with pytest.raises(AssertionError, match=REFUSED[name][2]):
        our_ids(folder, tmp_path)


@pytest.mark.parametrize("name", ["a list", "added tokens", "known keys in the map"])
def test_a_run_with_new_tokens_keeps_the_ids(name, tmp_path):
    new = ["<n3>"] if name != "a list" else []
    model = save_model(tmp_path / "base", 2070, True)
    folder = write_folder(tmp_path / "tokenizer", FORMS[name], "Qwen2TokenizerFast", False)
    for file in folder.iterdir():
        shutil.copy(file, model)
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    profile = {"model": str(model), "datasets": [str(rows)], "device": "cpu", "precision": "fp32", "global_batch_size": 2, "micro_batch_size": 2,
               "max_steps": 1, "max_seq_len": 64, "packing": False, "report_to": "none", "output_dir": str(tmp_path / "run"), "add_tokens": new}
    engine.train(profile, tmp_path)
    theirs = reference_ids(folder, new)
    assert our_ids(tmp_path / "run/adapter", tmp_path) == theirs
    assert reference_ids(tmp_path / "run/adapter") == theirs


def test_a_token_without_a_row_is_refused_before_a_step(tmp_path):
    model = save_model(tmp_path / "base", 2048, True)
    config = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps(config | {"pad_token": "<n1>"}))
    done = engine.start("lora-train", "tokenize", "--model", model, "--text", "a")
    assert done.returncode == 4
    assert "tokenizer_config.json: pad_token: \"<n1>\" is new, and the model has no row for its id, 2048" in done.stderr
