"""`export --gguf` against the gguf package, transformers and PEFT: models, merged models and adapters with the values that they should
have. LORA_TRAIN_GGUF_CASES=30 tries what tests/batteries/results/gguf.txt shows."""

import functools
import json
import os
import shutil

import gguf
import numpy as np
import pytest
from peft import PeftModel
from safetensors.numpy import load_file, save_file
from transformers import PreTrainedTokenizerFast

import engine
import gguf_case
import oracle

NUM_CASES = int(os.environ.get("LORA_TRAIN_GGUF_CASES", 6))
TYPES = {"f32": gguf.GGMLQuantizationType.F32, "f16": gguf.GGMLQuantizationType.F16, "bf16": gguf.GGMLQuantizationType.BF16,
         "q8_0": gguf.GGMLQuantizationType.Q8_0}


@pytest.fixture(scope="module")
def case_of(tmp_path_factory):
    @functools.cache
    def get(number, **options):
        return gguf_case.make_case(number, tmp_path_factory.mktemp("gguf") / "case", **options)
    return get


def export(path, *arguments):
    said = json.loads(engine.run("lora-train", "export", "--json", "--gguf", path, *arguments))
    assert said["file"] == str(path) and said["num_bytes"] == path.stat().st_size
    return said


def refused(code, *arguments):
    done = engine.start("lora-train", "export", *arguments)
    assert done.returncode == code, done.stderr
    return done.stderr


def same_bytes(tensor, expected, wanted):
    """The tensor holds `expected` in the type that it should have, as the gguf package encodes it."""
    kind = TYPES[wanted]
    if expected.ndim < 2:
        kind = gguf.GGMLQuantizationType.F32
    elif wanted == "q8_0" and expected.shape[-1] % 32:
        kind = gguf.GGMLQuantizationType.F16
    assert tensor.tensor_type == kind, tensor.name
    return np.array_equal(tensor.data.view(np.uint8).ravel(), gguf.quants.quantize(expected, kind).view(np.uint8).ravel())


@pytest.mark.parametrize("number", range(NUM_CASES))
def test_model_has_the_values_of_transformers_in_every_type(case_of, number, tmp_path):
    case = case_of(number)
    expected = gguf_case.expected_tensors(case, is_merged=False)
    for wanted in TYPES:
        said = export(tmp_path / f"{wanted}.gguf", "--model", case.model_dir, "--type", wanted)
        fields, tensors = gguf_case.read(tmp_path / f"{wanted}.gguf")
        freqs = tensors.pop("rope_freqs.weight", None)
        assert (freqs is not None) == ("llama3" in case.description), case.description
        assert set(tensors) == set(expected), case.description
        assert said["num_tensors"] == fields["GGUF.tensor_count"]
        for name, value in expected.items():
            assert same_bytes(tensors[name], value, wanted), f"{case.description}: {name} in {wanted}"


@pytest.mark.parametrize("number", range(NUM_CASES))
def test_merged_model_has_the_values_of_peft(case_of, number, tmp_path):
    case = case_of(number)
    said = export(tmp_path / "merged.gguf", "--model", case.model_dir, "--adapter", case.adapter_dir, "--merge", "--type", "f32")
    tensors = gguf_case.read(tmp_path / "merged.gguf")[1]
    tensors.pop("rope_freqs.weight", None)
    expected, base = (gguf_case.expected_tensors(case, is_merged) for is_merged in (True, False))
    changed = 0
    assert set(tensors) == set(expected)
    for name, value in expected.items():
        got = gguf_case.values(tensors[name])
        assert np.abs(got - value).max() <= 1e-5 * np.abs(value).max(), f"{case.description}: {name}"
        changed += not np.array_equal(got, base[name])
    assert changed == said["num_merged"] > 0


@pytest.mark.parametrize("wanted, tolerance", [("f32", 1e-6), ("f16", 2e-3)])
@pytest.mark.parametrize("number", range(NUM_CASES))
def test_adapter_has_the_products_of_peft(case_of, number, wanted, tolerance, tmp_path):
    """llama.cpp adds alpha / r B A, with r the rows of A."""
    case = case_of(number)
    export(tmp_path / "adapter.gguf", "--model", case.model_dir, "--adapter", case.adapter_dir, "--type", wanted)
    fields, tensors = gguf_case.read(tmp_path / "adapter.gguf")
    assert fields["general.type"] == "adapter" and fields["adapter.type"] == "lora"
    assert fields["general.architecture"] == gguf.MODEL_ARCH_NAMES[gguf_case.ARCHITECTURES[case.family]]
    model = PeftModel.from_pretrained(oracle.load_base(case.model_dir), case.adapter_dir)
    num_linears = 0
    for path, module in model.base_model.model.named_modules():
        if not hasattr(module, "lora_A"):
            continue
        num_linears += 1
        A, B = (side["default"].weight.detach().numpy() for side in (module.lora_A, module.lora_B))
        name = gguf_case.gguf_name(case, path + ".weight")
        a, b = tensors[f"{name}.lora_a"], tensors[f"{name}.lora_b"]
        assert a.tensor_type == b.tensor_type == TYPES[wanted]
        assert list(a.shape) == list(reversed(A.shape)) and list(b.shape) == list(reversed(B.shape))
        got = fields["adapter.lora.alpha"] / A.shape[0] * (gguf_case.values(b) @ gguf_case.values(a))
        expected = gguf_case.reordered(case, path + ".weight", module.scaling["default"] * (B @ A))
        assert np.abs(got - expected).max() <= tolerance * np.abs(expected).max(), f"{case.description}: {name}"
    assert 2 * num_linears == len(tensors) > 0


@pytest.mark.parametrize("number", range(NUM_CASES))
def test_metadata_is_that_of_config_and_tokenizer(case_of, number, tmp_path):
    case = case_of(number)
    export(tmp_path / "model.gguf", "--model", case.model_dir)
    fields, config = gguf_case.read(tmp_path / "model.gguf")[0], case.config
    prefix = fields["general.architecture"]
    for key, name in {"block_count": "num_hidden_layers", "embedding_length": "hidden_size", "feed_forward_length": "intermediate_size",
                      "attention.head_count": "num_attention_heads", "attention.head_count_kv": "num_key_value_heads",
                      "vocab_size": "vocab_size"}.items():
        assert fields[f"{prefix}.{key}"] == config[name]
    tokenizer = PreTrainedTokenizerFast.from_pretrained(case.model_dir)
    tokens, kinds = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    vocabulary = tokenizer.get_vocab()
    assert len(tokens) == len(kinds) == len(set(tokens)) == config["vocab_size"]
    assert all(tokens[id] == text for text, id in vocabulary.items())
    for id, kind in enumerate(kinds):
        added = tokenizer.added_tokens_decoder.get(id)
        assert (kind == gguf.TokenType.UNUSED) == (id not in vocabulary.values())
        if added:
            expected = gguf.TokenType.UNKNOWN if added.content == "<unk>" else gguf.TokenType.CONTROL if added.special \
                else gguf.TokenType.USER_DEFINED
            assert kind == expected, added
    assert fields["tokenizer.ggml.model"] == ("llama" if case.pre == "default" else "gpt2")
    assert fields["tokenizer.ggml.pre"] == case.pre
    assert tokens[fields["tokenizer.ggml.eos_token_id"]] == "<|im_end|>", "what ends a turn of the template"
    assert tokens[fields["tokenizer.ggml.eot_token_id"]] == tokenizer.eos_token
    assert fields["tokenizer.chat_template"] == gguf_case.TEMPLATE
    assert fields["tokenizer.ggml.add_bos_token"] == (case.pre == "default")


def changed(folder, target, name, **keys):
    """A copy of the folder whose JSON file has other keys."""
    target.mkdir()
    for file in folder.iterdir():
        (target / file.name).symlink_to(file)
    content = json.loads((folder / name).read_text())
    (target / name).unlink()
    (target / name).write_text(json.dumps({**content, **keys}))
    return target


@pytest.mark.parametrize("family, keys, what", [
    ("qwen3", {"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                   "original_max_position_embeddings": 64}}, "rope_type: llama3"),
    ("llama", {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "attention_factor": 1.5,
                                   "original_max_position_embeddings": 64}}, "attention_factor: "),
    ("llama", {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "truncate": False,
                                   "original_max_position_embeddings": 64}}, "truncate: false"),
    ("gemma3", {"query_pre_attn_scalar": 999}, "query_pre_attn_scalar: "),
])
def test_refuses_what_llama_cpp_computes_otherwise(case_of, family, keys, what, tmp_path):
    case = case_of(list(gguf_case.ARCHITECTURES).index(family))
    folder = changed(case.model_dir, tmp_path / "model", "config.json", rope_scaling=None, **keys)
    assert what in refused(4, "--gguf", tmp_path / "x.gguf", "--model", folder, "--adapter", case.adapter_dir)
    assert not (tmp_path / "x.gguf").exists()


def test_refusals_of_the_command_line(case_of, tmp_path):
    case, out = case_of(0), tmp_path / "x.gguf"
    model = ("--gguf", out, "--model", case.model_dir)
    assert "--gguf: missing" in refused(2, "--model", case.model_dir)
    assert "expected f32|f16|bf16|q8_0" in refused(2, *model, "--type", "q4_k")
    assert "needs --adapter" in refused(2, *model, "--merge")
    assert "an adapter is exported as f32 or f16" in refused(2, *model, "--adapter", case.adapter_dir, "--type", "q8_0")
    out.write_text("mine")
    assert "already exists" in refused(2, *model)
    assert "was not written by export" in refused(2, *model, "--overwrite")
    assert out.read_text() == "mine"
    export(tmp_path / "y.gguf", "--model", case.model_dir)
    export(tmp_path / "y.gguf", "--model", case.model_dir, "--type", "f16", "--overwrite")
    assert gguf_case.read(tmp_path / "y.gguf")[0]["general.file_type"] == gguf.LlamaFileType.MOSTLY_F16


def test_refuses_a_tokenizer_that_llama_cpp_cuts_otherwise(case_of, tmp_path):
    case = case_of(0)
    pre_tokenizer = {"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": r"\w+|\W"}, "behavior": "Isolated", "invert": False},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}]}
    folder = changed(case.model_dir, tmp_path / "model", "tokenizer.json", normalizer=None, pre_tokenizer=pre_tokenizer,
                     decoder={"type": "ByteLevel"})
    if case.pre == "default":
        pytest.fail("this case needs a byte-level tokenizer")
    assert "tokenizer.json: pre_tokenizer: splits text unlike every tokenizer" in refused(4, "--gguf", tmp_path / "x.gguf", "--model", folder)


def test_refuses_more_tokens_than_rows_and_values_beyond_f16(case_of, tmp_path):
    case = case_of(0, file_dtype="F32")
    folder = changed(case.model_dir, tmp_path / "model", "config.json")
    for path in folder.glob("*.safetensors"):
        tensors = load_file(path)
        for name in tensors:
            if "down_proj" in name:
                tensors[name] = tensors[name] * np.float32(1e6)
        path.unlink()
        save_file(tensors, path, metadata={"format": "pt"})
    assert "beyond what F16 can hold" in refused(7, "--gguf", tmp_path / "x.gguf", "--model", folder, "--type", "f16")
    assert list(tmp_path.iterdir()) == [folder], "a failed export leaves nothing"
    export(tmp_path / "y.gguf", "--model", folder, "--type", "bf16")


def test_a_merge_stops_at_the_models_stop_tokens_too(case_of, tmp_path):
    """The adapter has a tokenizer, but no generation_config.json, as save_pretrained of both leaves it."""
    case = case_of(0)
    vocabulary = PreTrainedTokenizerFast.from_pretrained(case.model_dir).get_vocab()
    stops = ["<|endoftext|>", "<|im_start|>"]
    model = changed(case.model_dir, tmp_path / "model", "generation_config.json", eos_token_id=[vocabulary[stop] for stop in stops])
    adapter = shutil.copytree(case.adapter_dir, tmp_path / "adapter")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(case.model_dir / name, adapter)
    export(tmp_path / "x.gguf", "--model", model, "--adapter", adapter, "--merge")
    fields = gguf_case.read(tmp_path / "x.gguf")[0]
    assert [fields[f"tokenizer.ggml.{key}_token_id"] for key in ("eos", "eot", "eom")] == [vocabulary[text] for text in ("<|im_end|>", *stops)]


def test_trained_token_rows_need_a_merge(tmp_path):
    case = gguf_case.make_case(1, tmp_path / "case", trainable_token_indices=[3, 5, 9])
    arguments = ("--model", case.model_dir, "--adapter", case.adapter_dir)
    assert "trained token rows" in refused(4, "--gguf", tmp_path / "x.gguf", *arguments)
    export(tmp_path / "y.gguf", *arguments, "--merge", "--type", "f32")
    expected = gguf_case.expected_tensors(case, is_merged=True)["token_embd.weight"]
    got = gguf_case.values(gguf_case.read(tmp_path / "y.gguf")[1]["token_embd.weight"])
    assert np.abs(got - expected).max() <= 1e-6 * np.abs(expected).max()


@pytest.mark.skipif(not gguf_case.DATA.is_dir(), reason="no test data")
@pytest.mark.parametrize("version, size", [("v1", 32000), ("v3", 32768)])
def test_a_converted_sentencepiece_model_has_its_pieces_in_its_order(version, size, tmp_path):
    """tokenizer.json has no scores: they come from the order of the merges."""
    fields = []
    for file in ("tokenizer.model", "tokenizer.json"):
        folder = gguf_case.untrained(tmp_path / file.replace(".", "-"), gguf_case.DATA / "mistral" / version, file, size)
        export(tmp_path / f"{file}.gguf", "--model", folder)
        fields.append({key.removeprefix("tokenizer.ggml."): value for key, value in gguf_case.read(tmp_path / f"{file}.gguf")[0].items()})
    model, converted = fields
    for key in ("model", "pre", "tokens", "token_type", "add_space_prefix", "add_bos_token", "bos_token_id", "eos_token_id", "unknown_token_id"):
        assert model[key] == converted[key], key
    merged = [id for id, text in enumerate(model["tokens"]) if len(text) > 1 and model["token_type"][id] == gguf.TokenType.NORMAL]
    assert len(merged) > 20000
    one, other = (sorted(merged, key=lambda id, scores=of["scores"]: -scores[id]) for of in fields)
    assert one == other, "merged in the same order"


def test_a_quantised_base_is_decoded_as_merge_does(case_of, tmp_path):
    case = case_of(0)
    engine.run("lora-train", "quantize", "--model", case.model_dir, "--output-dir", tmp_path / "int8", "--base-precision", "int8")
    arguments = ("--model", tmp_path / "int8", "--adapter", case.adapter_dir, "--allow-other-base")
    engine.run("lora-train", "merge", *arguments, "--output-dir", tmp_path / "merged", "--dtype", "fp32", "--no-check")
    export(tmp_path / "x.gguf", *arguments, "--merge", "--type", "f32")
    export(tmp_path / "y.gguf", "--model", tmp_path / "merged", "--type", "f32")
    one, other = (gguf_case.read(tmp_path / f"{name}.gguf")[1] for name in "xy")
    assert set(one) == set(other) and all(np.array_equal(one[name].data, other[name].data) for name in one)
