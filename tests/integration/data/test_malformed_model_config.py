"""Malformed config.json files: exit code, key and words of each refusal.

The file stands beside good weights of the same model, so that what is asked for can also be what is not there.
"""

import json
import os

import pytest
from command import CONFIG, model_tensors
from malformed import Case, assert_enough, assert_refused, fifo, ids, run_quickly
from safetensors.numpy import save_file

FILE = "/config.json"
LAYERS = CONFIG["num_hidden_layers"]
GONE = object()


class ModelFolder:
    def __init__(self, folder):
        self.folder, self.path = folder, folder / "config.json"
        save_file(model_tensors(), folder / "model.safetensors")
        self.set()

    def set(self, **changes):
        self.write(json.dumps({key: value for key, value in dict(CONFIG, **changes).items() if value is not GONE}))

    def write(self, text):
        self.path.write_bytes(text if isinstance(text, bytes) else text.encode())


def keys(**changes):
    return lambda model: model.set(**changes)


def text(change):
    return lambda model: model.write(change(model.path.read_text()))


def key(name, value, words, place=None, **more):
    """A case of one key with one value."""
    return Case(f"{name}_{label(value)}", keys(**{name: value}, **more), f"{FILE}: {place or name}", words)


def label(value):
    return "gone" if value is GONE else str(value).replace(" ", "") or "empty"


def family(model_type, architecture, **more):
    return dict(model_type=model_type, architectures=[architecture], **more)


QWEN3 = family("qwen3", "Qwen3ForCausalLM", head_dim=8)
LLAMA = family("llama", "LlamaForCausalLM")
MISTRAL = family("mistral", "MistralForCausalLM", sliding_window=None)


def rope(words, place, **scaling):
    return Case("rope_" + "_".join(f"{name}_{label(value)}" for name, value in scaling.items()),
                keys(rope_scaling=scaling), f"{FILE}: rope_scaling.{place}", words)


TEXT = [
    Case("missing", lambda m: m.path.unlink(), FILE, "no such file"),
    Case("empty", text(lambda t: ""), FILE, "is empty"),
    Case("cut_short", text(lambda t: t[:-20]), FILE, "not valid JSON at byte"),
    Case("html_page", text(lambda t: "<html><body>404</body></html>"), FILE, "not valid JSON at byte 1"),
    Case("git_lfs_pointer", text(lambda t: "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"), FILE,
         "git lfs pull"),
    Case("merge_conflict", text(lambda t: t.replace('"vocab_size"', '\n<<<<<<< HEAD\n"vocab_size"')), FILE, "not valid JSON"),
    Case("comment", text(lambda t: "// mine\n" + t), FILE, "not valid JSON at byte 1"),
    Case("trailing_comma", text(lambda t: t[:-1] + ",}"), FILE, "not valid JSON"),
    Case("python_dict", text(lambda t: t.replace("true", "True")), FILE, "not valid JSON"),
    Case("bare_nan", text(lambda t: t.replace("1e-06", "NaN")), FILE, "not valid JSON"),
    Case("number_beyond_doubles", text(lambda t: t.replace("1e-06", "1e999")), FILE, "too large"),
    Case("not_utf8", lambda m: m.write(m.path.read_bytes().replace(b"silu", b"si\xfflu")), FILE, "not valid JSON at byte"),
    Case("utf16", lambda m: m.write(m.path.read_text().encode("utf-16")), FILE, "not valid JSON at byte"),
    Case("two_objects", text(lambda t: t + t), FILE, "not valid JSON"),
    Case("a_list", text(lambda t: "[" + t + "]"), FILE, "a JSON object was expected"),
    Case("text_of_json", text(json.dumps), FILE, "a JSON object was expected"),
    Case("nesting_without_end", text(lambda t: '{"a":' * 100_000), FILE, "64 levels"),
    Case("a_folder", lambda m: [m.path.unlink(), m.path.mkdir()], FILE, "is a folder"),
    Case("a_pipe", lambda m: fifo(m.path), FILE, "is a pipe"),
    Case("a_terabyte", lambda m: os.truncate(m.path, 2**40), FILE, "1099511627776 bytes"),
]

KIND = [
    Case("no_model_type", keys(model_type=GONE, architectures=GONE), f"{FILE}: architectures", "Qwen2ForCausalLM"),
    Case("unknown_model_type", keys(model_type="gpt_neox", architectures=GONE), f"{FILE}: model_type",
         ('"gpt_neox" is not supported', "LlamaForCausalLM")),
    Case("classifier", keys(architectures=["Qwen2ForSequenceClassification"]), f"{FILE}: architectures", "is not supported"),
    Case("architectures_is_text", keys(architectures="Qwen2ForCausalLM"), f"{FILE}: architectures", "a list of strings"),
    Case("two_families", keys(model_type="llama"), f"{FILE}: model_type", ("does not belong to", '"qwen2"')),
    Case("model_type_is_a_number", keys(model_type=2), f"{FILE}: model_type", "a string was expected"),
    Case("quantised", keys(quantization_config={"quant_method": "awq", "bits": 4}), f"{FILE}: quantization_config",
         ('"awq"', "unquantised")),
    Case("quantised_by_a_word", keys(quantization_config="nf4"), f"{FILE}: quantization_config", "an object was expected"),
    Case("experts", keys(num_local_experts=8), f"{FILE}: num_local_experts", "mixture-of-experts"),
    Case("gelu", keys(hidden_act="gelu_new"), f"{FILE}: hidden_act", "expected silu"),
    Case("attention_dropout", keys(attention_dropout=0.1), f"{FILE}: attention_dropout", "set it to 0"),
    Case("multimodal_rope", keys(use_mrope=True), f"{FILE}: use_mrope", "multimodal"),
]

SIZES = [
    key("hidden_size", GONE, "the key is missing"),
    key("hidden_size", "32", "a whole number from 1 to"),
    key("hidden_size", 32.5, "a whole number from 1 to"),
    key("hidden_size", -32, "a whole number from 1 to"),
    key("hidden_size", 2**40, "a whole number from 1 to"),
    key("hidden_size", True, "a whole number from 1 to"),
    key("num_hidden_layers", 0, "a whole number from 1 to"),
    key("num_hidden_layers", 2**63, "a whole number from 1 to 10000"),
    key("vocab_size", None, "a whole number from 1 to"),
    key("vocab_size", 10**19, "a whole number from 1 to"),
    key("intermediate_size", [48], "is [48]"),
    key("num_attention_heads", 5, ("does not divide hidden_size", "32"), num_key_value_heads=5),
    key("num_key_value_heads", 3, ("does not divide num_attention_heads", "4")),
    key("num_key_value_heads", 8, "does not divide num_attention_heads"),
    key("num_key_value_heads", GONE, "the default, the key is missing"),
    key("head_dim", 7, "is odd"),
    key("head_dim", 2**21, "the maximum is"),
    key("max_position_embeddings", 0, "a whole number from 1 to"),
    key("rms_norm_eps", 0, "above zero"),
    key("rms_norm_eps", "1e-6", "a number was expected"),
    key("rms_norm_eps", 1e6, ("above 1", "1e-6")),
    key("tie_word_embeddings", "true", "true or false was expected"),
    key("tie_word_embeddings", 1, "true or false was expected"),
    key("torch_dtype", 16, "a string was expected"),
    key("eos_token_id", "</s>", "a whole number from"),
    key("eos_token_id", [1, -5], "is -5"),
    key("bos_token_id", 2.5, "a whole number from"),
]

ATTENTION = [
    key("use_sliding_window", "no", "true or false was expected"),
    Case("window_of_zero", keys(use_sliding_window=True, sliding_window=0), f"{FILE}: sliding_window", "from 1 to"),
    Case("window_of_text", keys(use_sliding_window=True, sliding_window="4k"), f"{FILE}: sliding_window", "from 1 to"),
    Case("window_layers_negative", keys(use_sliding_window=True, sliding_window=8, max_window_layers=-1),
         f"{FILE}: max_window_layers", "from 0 to"),
    key("layer_types", ["full_attention"], ("1 entries", f"{LAYERS} layers")),
    key("layer_types", ["full_attention", "chunked_attention"], '"chunked_attention" is not supported'),
    key("layer_types", ["full_attention", "sliding_attention"], "there is no window"),
    Case("llama_with_windows", keys(**LLAMA, layer_types=["sliding_attention"] * LAYERS), f"{FILE}: layer_types", "llama family"),
    Case("mistral_of_two_kinds", keys(**MISTRAL, layer_types=["full_attention", "sliding_attention"]),
         f"{FILE}: layer_types", "sliding_window"),
]

ROPE = [
    key("rope_theta", 0, "above zero"),
    key("rope_theta", -1e6, "above zero"),
    key("rope_theta", None, "a number was expected"),
    key("rope_scaling", "linear", "an object was expected"),
    rope('"su" is not supported', "rope_type", rope_type="su", factor=2.0),
    rope("multimodal RoPE", "mrope_section", type="default", mrope_section=[1, 1, 2]),
    rope("the key is missing", "factor", rope_type="linear"),
    rope("above zero", "factor", rope_type="yarn", factor=-4.0),
    rope("must be larger than low_freq_factor", "high_freq_factor", rope_type="llama3", factor=8.0, low_freq_factor=4.0,
         high_freq_factor=1.0),
    rope("were expected", "short_factor", rope_type="longrope", short_factor=[1.0], long_factor=[1.0]),
    rope("a list of numbers", "short_factor", rope_type="longrope", short_factor="1", long_factor=[1.0] * 4),
    rope("no effect without rope_type", "factor", factor=4.0),
    key("partial_rotary_factor", 0.5, "expected 1.0"),
]

WEIGHTS = [
    Case("more_layers_than_weights", keys(num_hidden_layers=3), ": model.layers.2.input_layernorm.weight", "missing"),
    Case("larger_vocabulary", keys(vocab_size=65), ": model.embed_tokens.weight", ("[64, 32]", "[65, 32]")),
    Case("other_heads", keys(num_key_value_heads=4), ": model.layers.0.self_attn.k_proj.weight", ("[16, 32]", "[32, 32]")),
    Case("untied_head", keys(tie_word_embeddings=False), ": lm_head.weight", "must say tie_word_embeddings: true"),
    Case("another_family", keys(**QWEN3), ": model.layers.0.self_attn.q_norm.weight", "missing"),
    Case("ten_thousand_layers", keys(num_hidden_layers=10_000, hidden_size=2**22, num_attention_heads=2, head_dim=2),
         ": model.embed_tokens.weight", "[64, 4194304]"),
]

CASES = TEXT + KIND + SIZES + ATTENTION + ROPE + WEIGHTS

GOOD = {
    "byte_order_mark": lambda m: m.write("\ufeff" + m.path.read_text()),
    "key_twice": text(lambda t: '{"vocab_size": 65, ' + t[1:]),  # the last counts, as in Python
    "unknown_keys": keys(auto_map={"AutoConfig": "evil.py"}, my_key=[{}]),
    "inert_window": keys(sliding_window="whatever", use_sliding_window=False),
    "empty_quantization": keys(quantization_config={}),
    "old_ids": keys(bos_token_id=-1, eos_token_id=None),
}


@pytest.fixture
def model(tmp_path):
    return ModelFolder(tmp_path)


def check(model):
    return run_quickly("check", "--json", f"model={model.folder}", "datasets=[/dev/null]")


@pytest.mark.parametrize("case", CASES, ids=ids(CASES))
def test_is_refused(model, case):
    case.make(model)
    assert_refused(check(model), case)


@pytest.mark.parametrize("name", GOOD)
def test_odd_but_good(model, name):
    GOOD[name](model)
    run = check(model)
    assert run.code == 0, run


def test_there_are_enough_cases():
    assert_enough(CASES, 50)
