"""Malformed PEFT folders in init_adapter: exit code, place and words of each, from `lora-train train --dry-run`.

The command loads torch, which takes most of its time: all cases run first, as many at a time as there are cores.
"""

import json
import os
import pickle
import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from command import Setup
from malformed import Case, assert_enough, assert_refused, fifo, ids, run_quickly
from safetensors.numpy import save_file

CONFIG_FILE, TENSOR_FILE = "/adapter_config.json", "/adapter_model.safetensors"
RANK, LAYERS = 4, 2
LINEARS = {"self_attn.q_proj": (32, 32), "self_attn.k_proj": (16, 32), "self_attn.v_proj": (16, 32), "self_attn.o_proj": (32, 32),
           "mlp.gate_proj": (48, 32), "mlp.up_proj": (48, 32), "mlp.down_proj": (32, 48)}  # [out, in]
PREFIX = "base_model.model."
Q = PREFIX + "model.layers.0.self_attn.q_proj"
Q_A, Q_B = Q + ".lora_A.weight", Q + ".lora_B.weight"


class Adapter:
    """A good adapter of the small model; a case changes config, tensors or files."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir(parents=True)
        self.config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": 8, "lora_dropout": 0.0,
                       "bias": "none", "target_modules": [name.split(".")[1] for name in LINEARS], "use_dora": False}
        self.tensors = {}
        for layer in range(LAYERS):
            for name, (rows, columns) in LINEARS.items():
                at = f"{PREFIX}model.layers.{layer}.{name}"
                self.tensors[at + ".lora_A.weight"] = np.full((RANK, columns), 0.01, np.float32)
                self.tensors[at + ".lora_B.weight"] = np.zeros((rows, RANK), np.float32)
        self.write()

    def write(self):
        self.config_path.write_text(json.dumps(self.config))
        save_file(self.tensors, self.tensor_path)

    @property
    def config_path(self):
        return self.folder / "adapter_config.json"

    @property
    def tensor_path(self):
        return self.folder / "adapter_model.safetensors"


def config(without=(), **changes):
    def make(adapter):
        adapter.config.update(changes)
        for key in without:
            del adapter.config[key]
        adapter.write()
    return make


def config_text(change):
    return lambda adapter: adapter.config_path.write_text(change(adapter.config_path.read_text()))


def tensors(change):
    """change(dict of arrays), in place."""
    def make(adapter):
        change(adapter.tensors)
        adapter.write()
    return make


def renamed(change):
    return tensors(lambda t: [t.__setitem__(change(name), t.pop(name)) for name in list(t)])


def one(name, change):
    return tensors(lambda t: t.update({name: np.ascontiguousarray(change(t[name]))}))


def spoiled(name, number):
    def change(tensor):
        tensor = tensor.copy()
        tensor.flat[-1] = number
        return tensor
    return one(name, change)


def tensor_bytes(change):
    return lambda adapter: adapter.tensor_path.write_bytes(change(adapter.tensor_path.read_bytes()))


def pickle_only(adapter):
    adapter.tensor_path.unlink()
    (adapter.folder / "adapter_model.bin").write_bytes(pickle.dumps({"a": 1}))


def key(name, value, *words, suffix=""):
    """A case of one key with one value."""
    return Case(f"{name}_{json.dumps(value)}", config(**{name: value}), f"{CONFIG_FILE}: {name}{suffix}", words)


LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
FILES = [
    Case("config_missing", lambda a: a.config_path.unlink(), CONFIG_FILE, "is missing"),
    Case("tensors_missing", lambda a: a.tensor_path.unlink(), TENSOR_FILE, "is missing"),
    Case("pickle_only", pickle_only, TENSOR_FILE, ".bin adapters are not supported"),
    Case("folder_of_a_full_model", lambda a: [a.config_path.unlink(), a.tensor_path.rename(a.folder / "model.safetensors")],
         CONFIG_FILE, "a PEFT adapter folder"),
    Case("a_file_in_place_of_the_folder", lambda a: [shutil.rmtree(a.folder), a.folder.write_text("")], CONFIG_FILE, "is missing"),
    Case("config_is_a_pipe", lambda a: fifo(a.config_path), CONFIG_FILE, "is a pipe"),
    Case("tensors_are_a_folder", lambda a: [a.tensor_path.unlink(), a.tensor_path.mkdir()], TENSOR_FILE, "is a folder"),
    Case("tensors_are_a_git_lfs_pointer", lambda a: a.tensor_path.write_text(LFS), TENSOR_FILE, "git lfs pull"),
    Case("tensors_cut_short", tensor_bytes(lambda b: b[:-8]), TENSOR_FILE, "truncated"),
    Case("tensors_with_stray_bytes", tensor_bytes(lambda b: b + b"\0"), TENSOR_FILE, "follow the last tensor"),
]

CONFIG_TEXT = [
    Case("config_empty", config_text(lambda t: ""), CONFIG_FILE, "is empty"),
    Case("config_cut_short", config_text(lambda t: t[:-10]), "", "not valid JSON"),
    Case("config_is_a_list", config_text(lambda t: "[]"), CONFIG_FILE, "a JSON object"),
    Case("config_nested_without_end", config_text(lambda t: t[:-1] + ', "use_dora": ' + "[" * 200_000 + "]" * 200_000 + "}"),
         CONFIG_FILE, "64 levels"),
    Case("config_of_yaml", config_text(lambda t: "peft_type: LORA\nr: 4\n"), "", "not valid JSON"),
]

CONFIG = [
    key("peft_type", "IA3", '"IA3"', "only LORA"),
    key("peft_type", 5, "wrong type"),
    Case("no_peft_type", config(without=["peft_type"]), f"{CONFIG_FILE}: peft_type", "only LORA"),
    key("use_dora", True, "not supported"),
    key("bias", "lora_only", "trains biases"),
    key("lora_bias", True, "not supported"),
    key("modules_to_save", ["lm_head"], "lm_head", "not supported"),
    key("trainable_token_indices", [1, 1], "names id 1 twice"),
    key("trainable_token_indices", [-1], "-1, which is not a token id"),
    key("trainable_token_indices", ["a"], "not a token id"),
    key("trainable_token_indices", 3, "a list of token ids was expected"),
    key("trainable_token_indices", dict(wte=[1]), '"wte"', "embed_tokens and lm_head"),
    key("trainable_token_indices", [10_000_000], "far above"),
    key("layers_to_transform", [0], "not supported"),
    key("fan_in_fan_out", True, "not supported"),
    key("init_lora_weights", "pissa", "path_initial_model_for_weight_conversion"),
    key("r", 0, "a whole number from 1"),
    key("r", "4", "a whole number from 1"),
    key("r", 2**40, "a whole number from 1"),
    key("lora_alpha", "8", "a number above zero"),
    key("lora_alpha", True, "a number above zero"),
    key("lora_alpha", 0, "a number above zero"),
    key("use_rslora", 1, "wrong type"),
    key("rank_pattern", ["q_proj"], "an object of names"),
    key("rank_pattern", {"q_proj": 0}, "a whole number from 1", suffix=".q_proj"),
    key("rank_pattern", {"q_(proj": 4}, "not a valid regular expression"),
    key("alpha_pattern", {"q_proj": -8}, "a number above zero", suffix=".q_proj"),
    Case("no_targets", config(without=["target_modules"]), f"{CONFIG_FILE}: target_modules", "is missing"),
    key("target_modules", [], "non-empty list"),
    key("target_modules", [1], "not a string"),
    key("target_modules", ["c_attn"], '"c_attn" matches no linear', "q_proj"),
    key("target_modules", ["lm_head"], "output head are not supported"),
    key("target_modules", "(unclosed", "not a valid regular expression"),
    key("target_modules", "((m|.)+)+[!?]", "takes too long"),
]

TENSORS = [
    Case("tensor_missing", tensors(lambda t: t.pop(Q_B)), f"{TENSOR_FILE}: {Q_B}", "is missing, but adapter_config.json"),
    Case("layer_missing", tensors(lambda t: [t.pop(name) for name in list(t) if ".layers.1." in name]), "", "is missing"),
    Case("magnitudes_of_dora", tensors(lambda t: t.update({Q + ".lora_magnitude_vector": np.ones(32, np.float32)})),
         f"{TENSOR_FILE}: {Q}.lora_magnitude_vector", "would be ignored"),
    Case("a_head_more", tensors(lambda t: t.update({PREFIX + "lm_head.weight": np.ones((64, 32), np.float32)})),
         f"{TENSOR_FILE}: {PREFIX}lm_head.weight", "would be ignored"),
    Case("a_layer_more", tensors(lambda t: t.update({Q_A.replace("layers.0", "layers.2"): t[Q_A].copy()})), "", "would be ignored"),
    Case("rank_of_the_config_differs", config(r=8), f"{TENSOR_FILE}: {Q_A}", ("[8, 32]", "another model or rank")),
    Case("matrix_transposed", one(Q_A, np.transpose), f"{TENSOR_FILE}: {Q_A}", "F32 [32, 4]"),
    Case("another_model", one(Q_A, lambda a: np.zeros((RANK, 64), np.float32)), f"{TENSOR_FILE}: {Q_A}", "another model or rank"),
    Case("matrices_swapped", tensors(lambda t: t.update({Q_A: t[Q_B], Q_B: t[Q_A]})), f"{TENSOR_FILE}: {Q_A}", "expected shape"),
    Case("nan", spoiled(Q_B, np.nan), f"{TENSOR_FILE}: {Q_B}", "NaN or infinity"),
    Case("infinity", spoiled(Q_A, -np.inf), f"{TENSOR_FILE}: {Q_A}", "NaN or infinity"),
    Case("doubles", one(Q_A, lambda a: a.astype(np.float64)), f"{TENSOR_FILE}: {Q_A}", "F64"),
    Case("integers", one(Q_B, lambda a: a.astype(np.int8)), f"{TENSOR_FILE}: {Q_B}", "I8"),
    Case("names_with_the_adapter", renamed(lambda name: name.replace(".weight", ".default.weight")), f": {Q_A}", "is missing"),
    Case("names_without_the_prefix", renamed(lambda name: name.removeprefix(PREFIX)), f": {Q_A}", "is missing"),
]

CASES = FILES + CONFIG_TEXT + CONFIG + TENSORS

GOOD = {
    "as_it_is": lambda a: None,
    "half_precision": tensors(lambda t: [t.__setitem__(name, t[name].astype(np.float16)) for name in t]),
    "unknown_keys_and_no_defaults": config(without=["bias", "lora_dropout", "use_dora"], some_new_key={"a": 1}),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The finished process of each case by name."""
    folder = tmp_path_factory.mktemp("adapters")
    profile = Setup(folder).write_profile(lora_r="unset", lora_alpha="unset", max_steps=1)

    def run(number, make):
        adapter = Adapter(folder / str(number) / "adapter")
        make(adapter)
        return run_quickly("train", "--dry-run", "--json", "--profile", profile, f"init_adapter={adapter.folder}",
                           f"output_dir={adapter.folder.parent / 'run'}")

    every = {case.name: case.make for case in CASES} | GOOD
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return dict(zip(every, pool.map(run, range(len(every)), every.values())))


@pytest.mark.parametrize("case", CASES, ids=ids(CASES))
def test_is_refused(runs, case):
    assert_refused(runs[case.name], case)


@pytest.mark.parametrize("name", GOOD)
def test_good(runs, name):
    assert runs[name].code == 0, runs[name]


def test_there_are_enough_cases():
    assert_enough(CASES, 25)
