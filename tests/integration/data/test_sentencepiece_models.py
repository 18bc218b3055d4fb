"""tokenizer.model files of every kind, trained here: ids, texts and training masks against the sentencepiece package."""

import io
import json
import re
import subprocess

import gguf
import pytest
import sentencepiece
import tokenizer_probe
from command import BINARY, CONFIG, expect_end, good_run, lora_train

PROBE = BINARY.parent / "tokenizer-probe"
SENTENCES = [
    "the quick brown fox jumps over the lazy dog", "she sells sea shells by the sea shore", "Fran\u00e7ois va \u00e0 l'\u00e9cole",
    "\u4eba\u4eba\u751f\u800c\u81ea\u7531\uff0c\u5728\u5c0a\u4e25\u548c\u6743\u5229\u4e0a\u4e00\u5f8b\u5e73\u7b49", "red, green and blue; 1234567890!",
    "a tokenizer cuts text into pieces, pieces into ids", "how much wood would a woodchuck chuck"]
TEXTS = [
    "", " ", "  two  spaces ", "the dog", "unseen words: zygote, quartz", "\u4eba\u4eba \u5e73\u7b49\uff0c\u81ea\u7531", "\ufb01ne \uff21\uff22\uff23 \u2168 e\u0301",
    "smile \U0001f600\U0001f468\u200d\U0001f469", "tab\tand\nline\r\n", "<mark>the<mark> fox <s></s>", "\u2581 lower block", "a" * 300, "nul \0 byte",
    " ".join(SENTENCES * 20)]
COMMON = {"vocab_size": 160, "character_coverage": 1.0, "num_threads": 1, "minloglevel": 2, "hard_vocab_limit": False}
PLAIN = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
KINDS = {
    "unigram": {"model_type": "unigram"},
    "unigram-bytes": {"model_type": "unigram", "byte_fallback": True, "vocab_size": 420, "user_defined_symbols": ["<mark>"], **PLAIN},
    "unigram-no-prefix": {"model_type": "unigram", "add_dummy_prefix": False, "normalization_rule_name": "nfkc_cf"},
    "bpe-nfkc": {"model_type": "bpe", "normalization_rule_name": "nmt_nfkc_cf", "user_defined_symbols": ["<mark>", "  "]},
    "bpe-unknown": {"model_type": "bpe", **PLAIN},
    "char": {"model_type": "char"},
    "word": {"model_type": "word", **PLAIN},
}
TEMPLATE = ("{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}"
            "{% else %}{{ m.content }} {% endif %}{% endfor %}")


def train(folder, options):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(SENTENCES * 3), model_writer=model, **{**COMMON, **options})
    (folder / "tokenizer.model").write_bytes(model.getvalue())
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def encode(folder, texts):
    """(ids, the text they decode to) per text, as lora-train has them."""
    out, done = tokenizer_probe.encode(PROBE, folder, texts, decode=True)
    assert done.stderr == "", done
    return out


def check_that_the_answer_is_trained_by_byte_offsets(tmp_path, reference):
    (tmp_path / "tokenizer_config.json").write_text('{"add_bos_token": false, "add_eos_token": false}')
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    prompt, answer = "how much  wood, \u4eba\u4eba?", "would \U0001f600 \uff21 woodchuck"
    row = {"messages": [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    profile = {"model": str(tmp_path), "datasets": [{"path": str(tmp_path / "rows.jsonl")}], "output_dir": str(tmp_path / "run")}
    (tmp_path / "profile.json").write_text(json.dumps(profile))
    run = good_run("tokenize", "--show", "1", "--json", "--profile", tmp_path / "profile.json")
    shown = run.json_lines()[0]
    pieces = reference.encode(prompt + " " + answer, out_type="immutable_proto").pieces
    assert shown["input_ids"] == [piece.id for piece in pieces], run
    begin = len(prompt) + 1  # in characters, as the package counts
    ends = [piece.end for piece in pieces]
    for i in range(len(pieces) - 1, 0, -1):  # the last byte of a character alone has a range
        if pieces[i - 1].begin == pieces[i - 1].end:
            ends[i - 1] = max(ends[i], pieces[i - 1].end + 1)
    want = [piece.id if end > begin else -100 for piece, end in zip(pieces, ends)]
    assert 0 < sum(label == -100 for label in want) < len(want)
    assert shown["labels"] == want, run


@pytest.mark.parametrize("kind", KINDS)
def test_ids_texts_and_masks_equal_the_library(tmp_path, kind):
    reference = train(tmp_path, KINDS[kind])
    assert len(reference.encode(TEXTS[-1])) > 100
    for text, (ids, decoded) in zip(TEXTS, encode(tmp_path, TEXTS)):
        assert ids == reference.encode(text), text
        known = [i for i in ids if not reference.is_unknown(i)]  # the library writes an unknown piece as " \u2047 "
        if known == ids:
            assert decoded == reference.decode(ids), text
    check_that_the_answer_is_trained_by_byte_offsets(tmp_path, reference)


def test_the_engine_trains_beside_the_library(setup):
    train(setup.model, {**KINDS["word"], "vocab_size": 64})
    setup.write_rows([{"prompt": "how much wood ", "completion": text} for text in SENTENCES])
    setup.good_run(datasets=[{"path": str(setup.rows_file)}])
    assert setup.summary()["step"] == 3


BYTES = {"model_type": "bpe", "byte_fallback": True, "vocab_size": 420, **PLAIN}


def random_model(folder):
    """Weights beside the tokenizer."""
    (folder / "config.json").write_text(json.dumps(dict(CONFIG, vocab_size=448)))
    good_run("init-model", "--config", folder / "config.json", "--tokenizer", folder, "--output-dir", folder / "model")
    return folder / "model"


def test_export_has_the_pieces_and_scores_of_the_library(tmp_path):
    reference = train(tmp_path, {**BYTES, "user_defined_symbols": ["<mark>"]})
    good_run("export", "--gguf", tmp_path / "out.gguf", "--model", random_model(tmp_path))
    reader = gguf.GGUFReader(tmp_path / "out.gguf")
    field = {name: reader.get_field(f"tokenizer.ggml.{name}").contents()
             for name in ("model", "tokens", "scores", "token_type", "bos_token_id", "eos_token_id", "unknown_token_id")}
    size = len(reference)
    assert field["model"] == "llama" and len(field["tokens"]) == 448
    assert field["tokens"][:size] == [reference.id_to_piece(i) for i in range(size)]
    assert field["tokens"][size:] == [f"[PAD{i}]" for i in range(size, 448)]
    assert field["scores"][:size] == [reference.get_score(i) for i in range(size)]
    assert [field[name + "_token_id"] for name in ("unknown", "bos", "eos")] == [0, 1, 2]
    kinds = [2, 3, 3, 4, *[6] * 256]
    assert field["token_type"] == [*kinds, *[1] * (size - len(kinds)), *[5] * (448 - size)]


@pytest.mark.parametrize("options, key", [
    ({"model_type": "unigram"}, "trainer_spec.model_type"), ({"byte_fallback": False}, "trainer_spec.byte_fallback"),
    ({"normalization_rule_name": "nfkc"}, "normalizer_spec.precompiled_charsmap"),
    ({"remove_extra_whitespaces": True}, "normalizer_spec.remove_extra_whitespaces")])
def test_export_refuses_what_llama_cpp_would_read_otherwise(tmp_path, options, key):
    train(tmp_path, {**BYTES, **options})
    expect_end(lora_train("export", "--gguf", tmp_path / "out.gguf", "--model", random_model(tmp_path)), 4, f"tokenizer.model: {key}: ")
    assert not (tmp_path / "out.gguf").exists()


def test_the_carried_library_shows_its_own_symbols_alone():
    listed = subprocess.run(["readelf", "-W", "--dyn-syms", BINARY.parent / "lib/libsentencepiece.so.0"],
                            capture_output=True, text=True, check=True).stdout
    symbols = [line.split() for line in listed.splitlines() if re.match(r"\s*\d+:", line)]
    shown = [name[7] for name in symbols if len(name) > 7 and name[6] != "UND" and name[5] == "DEFAULT"]
    assert len(shown) > 50
    assert [name for name in shown if not re.match("_Z(N|NK|TVN|TIN|TSN)13sentencepiece", name)] == []
    assert any("protobuf" in name[7] and name[5] == "HIDDEN" for name in symbols if len(name) > 7)
