"""Tokenizer and template files that are wrong: exit code 4, and where in the file."""

import base64
import json

import pytest
from command import lora_train

FORMAT = 4
JSON = {"version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": None, "post_processor": None, "decoder": None,
        "model": {"type": "BPE", "unk_token": "<unk>", "vocab": {"<unk>": 0, "a": 1, "b": 2, "ab": 3, ":": 4, "u": 5}, "merges": ["a b"]}}
TEKKEN = {"config": {"pattern": "[^\\s]+|\\s+", "num_vocab_tokens": 256, "default_vocab_size": 260, "default_num_special_tokens": 4, "version": "v7"},
          "vocab": [{"rank": i, "token_bytes": base64.b64encode(bytes([i])).decode(), "token_str": None} for i in range(256)],
          "special_tokens": [{"rank": i, "token_str": t, "is_control": True} for i, t in enumerate(["<unk>", "<s>", "</s>"])]}
ROW = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "ab"}]}


def changed(good, path, value):
    copy = json.loads(json.dumps(good))
    place = copy
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return copy


TOKENIZERS = [
    ("no_json", "tokenizer.json", '{\n"model": {\n', ":3", "not valid JSON"),
    ("empty", "tokenizer.json", "", ":1", "not valid JSON"),
    ("other_model", "tokenizer.json", changed(JSON, ["model", "type"], "Unigram"), ": model", '"Unigram" is not supported'),
    ("merge_of_nothing", "tokenizer.json", changed(JSON, ["model", "merges"], ["a z"]), ": model.merges[0]", "not in model.vocab"),
    ("pattern", "tokenizer.json", changed(JSON, ["pre_tokenizer"], {"type": "Split", "pattern": {"Regex": "a("}, "behavior": "Isolated"}),
     ": pre_tokenizer.pattern.Regex", "does not compile"),
    ("behavior", "tokenizer.json", changed(JSON, ["pre_tokenizer"], {"type": "Split", "pattern": {"Regex": "a"}, "behavior": "Dropped"}),
     ": pre_tokenizer.behavior", "expected one of Isolated"),
    ("normalizer", "tokenizer.json", changed(JSON, ["normalizer"], {"type": "Lowercase"}), ": normalizer", "not supported"),
    ("not_protobuf", "tokenizer.model", b"\xff\xff\xff\xff", ": byte ", ""),
    ("tekken_version", "tekken.json", changed(TEKKEN, ["config", "version"], "v99"), ": config.version", '"v99" is not supported'),
    ("tekken_bytes", "tekken.json", changed(TEKKEN, ["vocab", 3, "token_bytes"], "?"), ": vocab[3].token_bytes", "base64")]

TEMPLATES = [
    ("unclosed", "a\n{% if x %}b", ":2", "endif"),
    ("statement", "\n\n{% include 'x' %}", ":3", "{% include %} is not supported"),
    ("filter", "{{ messages | nofilter }}", ":1", 'filter "nofilter" is not supported'),
    ("method", "a\n{{ 'a'.swapcase() }}", ":2", "str.swapcase() is not supported"),
    ("format", "{{ '%*d' % (3, 4) }}", ":1", "not supported"),
    ("bomb", "\n{{ 'a' * 999999999 }}", ":2", "16 MiB")]


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else (content if isinstance(content, str) else json.dumps(content)).encode())


@pytest.mark.parametrize("name, content, where, message", [case[1:] for case in TOKENIZERS], ids=[case[0] for case in TOKENIZERS])
def test_a_tokenizer_is_refused_at_its_place(tmp_path, name, content, where, message):
    write(tmp_path / name, content)
    run = lora_train("tokenize", "--model", tmp_path, "--text", "ab")
    assert run.code == FORMAT, run
    assert f"{tmp_path / name}{where}" in run.stderr, run
    assert message in run.stderr, run


@pytest.mark.parametrize("content", [JSON, TEKKEN], ids=["json", "tekken"])
def test_the_good_ones_are_read(tmp_path, content):
    write(tmp_path / ("tekken.json" if content is TEKKEN else "tokenizer.json"), content)
    run = lora_train("tokenize", "--model", tmp_path, "--text", "ab", "--json")
    assert run.code == 0, run


def tokenize_chat(folder, template):
    write(folder / "tokenizer.json", JSON)
    write(folder / "chat_template.jinja", template)
    write(folder / "rows.jsonl", json.dumps(ROW) + "\n")
    profile = {"model": str(folder), "datasets": [{"path": str(folder / "rows.jsonl")}], "output_dir": str(folder / "run")}
    write(folder / "profile.json", profile)
    return lora_train("tokenize", "--show", "1", "--json", "--profile", folder / "profile.json")


@pytest.mark.parametrize("source, where, message", [case[1:] for case in TEMPLATES], ids=[case[0] for case in TEMPLATES])
def test_a_template_is_refused_at_its_line(tmp_path, source, where, message):
    run = tokenize_chat(tmp_path, source)
    assert run.code == FORMAT, run
    error = run.json_lines()[-1]["error"]
    assert error["where"] == f"{tmp_path / 'chat_template.jinja'}{where}", run
    assert message in error["message"], run


def test_the_good_template_is_rendered(tmp_path):
    run = tokenize_chat(tmp_path, "{% for m in messages %}{{ '%s:%s' % (m.role[0], m.content) }}{% endfor %}")
    assert run.code == 0, run
    assert run.json_lines()[0]["input_ids"] == [5, 4, 1, 1, 4, 3], run
