"""Malformed shard indexes, shards that do not fit them, and model names that lead elsewhere."""

import json
import os
import shutil

import numpy as np
import pytest
from command import CONFIG, model_tensors
from malformed import Case, assert_enough, assert_refused, fifo, ids, run_quickly
from safetensors.numpy import save_file

FIRST, NORM, UP = "model.embed_tokens.weight", "model.norm.weight", "model.layers.0.mlp.up_proj.weight"
SHARDS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
INDEX = "/model.safetensors.index.json"


class Sharded:
    """A good model in two shards under an index; a case changes them."""

    def __init__(self, folder):
        self.folder, self.shards, self.environment = folder / "model", [{}, {}], {}
        self.folder.mkdir()
        self.name = str(self.folder)  # what the profile says
        self.path = self.folder / "model.safetensors.index.json"
        (self.folder / "config.json").write_text(json.dumps(CONFIG))
        for position, (name, tensor) in enumerate(sorted(model_tensors().items())):
            self.shards[position % 2][name] = tensor
        self.index = {"metadata": {"total_size": 1}, "weight_map": {
            name: file for shard, file in zip(self.shards, SHARDS) for name in shard}}
        self.map = self.index["weight_map"]
        self.write_shards()
        self.write_index()

    def write_shards(self):
        for shard, name in zip(self.shards, SHARDS):
            save_file(shard, self.folder / name)

    def write_index(self, text=None):
        self.path.write_bytes(text if isinstance(text, bytes) else (json.dumps(self.index) if text is None else text).encode())

    def shard_of(self, name):
        return self.folder / self.map[name]


def text(change):
    """The text of the index through change(text)."""
    return lambda model: model.write_index(change(model.path.read_text()))


def index(change):
    """The index as a dict through change(dict)."""
    def make(model):
        change(model.index)
        model.write_index()
    return make


def named(file, escape=False):
    """One tensor is said to be in `file`."""
    def make(model):
        model.map[NORM] = file
        model.write_index(json.dumps(model.index, ensure_ascii=escape))
    return make


def outside(file):
    """The same, and a good shard is where the name leads."""
    def make(model):
        shutil.copy(model.shard_of(NORM), model.folder.parent / "secret.safetensors")
        named(file.replace("PARENT", str(model.folder.parent)))(model)
    return make


def shards(change):
    def make(model):
        change(model.shards)
        model.write_shards()
    return make


def first_shard(action):
    """action(path) in place of the first shard."""
    def make(model):
        (model.folder / SHARDS[0]).unlink()
        action(model.folder / SHARDS[0])
    return make


def in_both(content):
    """A tensor of the first shard stands in the second too."""
    def change(both):
        name = sorted(both[0])[0]
        both[1][name] = content(both[0][name])
    return shards(change)


def only(*files):
    """Other files in place of weights and index."""
    def make(model):
        for path in [model.path] + [model.folder / name for name in SHARDS]:
            path.unlink()
        for name in files:
            (model.folder / name).write_bytes(b"\x80\x04.")
    return make


def hub(name, refs="1234", snapshot=None):
    """A profile that names org/name, and a cache whose refs/main holds `refs`."""
    def make(model):
        cache = model.folder.parent / "hub"
        repository = cache / "models--org--name"
        (repository / "refs").mkdir(parents=True)
        (repository / "snapshots/1234").mkdir(parents=True)
        if refs is not None:
            (repository / "refs/main").write_bytes(refs.encode())
        if snapshot:
            snapshot(repository / "snapshots/1234")
        shutil.copytree(model.folder, cache.parent / "escape")
        model.name, model.environment = name, {"HF_HUB_CACHE": str(cache)}
    return make


def folder_is(name):
    def make(model):
        model.name = name(model) if callable(name) else name
    return make


AGAIN = "download or save the model again"
TEXT = [
    Case("empty_file", text(lambda t: ""), INDEX, "the file is empty"),
    Case("cut_short", text(lambda t: t[:len(t) // 2]), INDEX, "not valid JSON at byte"),
    Case("html_page", text(lambda t: "<html>Access denied</html>"), INDEX, "not valid JSON at byte 1"),
    Case("git_lfs_pointer", text(lambda t: "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"), INDEX,
         "git lfs pull"),
    Case("utf16", lambda m: m.write_index(json.dumps(m.index).encode("utf-16")), INDEX, "not valid JSON at byte"),
    Case("name_that_is_not_utf8", lambda m: m.write_index(m.path.read_bytes().replace(b"model-0", b"mod\xff-0", 1)), INDEX,
         "not valid JSON at byte"),
    Case("two_objects", text(lambda t: t + t), INDEX, "not valid JSON at byte"),
    Case("a_list", text(lambda t: "[" + t + "]"), INDEX, "the index is an array"),
    Case("nesting_without_end", text(lambda t: '{"metadata": ' + '{"a":' * 100_000), INDEX, "not valid JSON at byte"),
]

MAP = [
    Case("no_weight_map", index(lambda i: i.pop("weight_map")), INDEX, "no weight_map"),
    Case("weight_map_empty", index(lambda i: i["weight_map"].clear()), INDEX, "at least one tensor"),
    Case("weight_map_is_a_list", index(lambda i: i.update(weight_map=SHARDS)), INDEX, "weight_map is an array"),
    Case("weight_map_is_null", index(lambda i: i.update(weight_map=None)), INDEX, "weight_map is null"),
    Case("weight_map_inside_metadata", index(lambda i: i.update(metadata={"weight_map": i.pop("weight_map")})), INDEX,
         "no weight_map"),
    Case("weight_map_twice", text(lambda t: t[:-1] + ', "weight_map": {}}'), INDEX, "weight_map appears twice"),
    Case("tensor_twice", text(lambda t: t.replace('"weight_map": {', f'"weight_map": {{"{NORM}": "{SHARDS[0]}", ')),
         f"{INDEX}: {NORM}", "the tensor appears twice"),
    Case("file_is_a_number", named(2), f"{INDEX}: {NORM}", "a file name was expected"),
    Case("file_is_a_list", named([SHARDS[0]]), f"{INDEX}: {NORM}", "a file name was expected"),
    Case("tensor_forgotten", index(lambda i: i["weight_map"].pop(NORM)), f": {NORM}", "the tensor is missing"),
    Case("tensor_too_many", index(lambda i: i["weight_map"].update(extra=SHARDS[0])), f"{INDEX}: extra", SHARDS[0]),
    Case("tensor_in_the_other_shard", index(lambda i: i["weight_map"].update(
        {NORM: next(name for name in SHARDS if name != i["weight_map"][NORM])})), f"{INDEX}: {NORM}", "safetensors"),
]

NAMES = [
    Case("parent_folder", outside("../secret.safetensors"), f"{INDEX}: {NORM}", ("../secret", "path separator")),
    Case("absolute_path", outside("PARENT/secret.safetensors"), f"{INDEX}: {NORM}", "path separator"),
    Case("sub_folder", outside("sub/model.safetensors"), f"{INDEX}: {NORM}", "path separator"),
    Case("backslash", outside("..\\secret.safetensors"), f"{INDEX}: {NORM}", "path separator"),
    Case("two_dots_alone", named(".."), f"{INDEX}: {NORM}", '".."'),
    Case("zero_byte", outside("x\0.safetensors"), f"{INDEX}: {NORM}", "control character"),
    Case("line_break", named("x\n.safetensors"), f"{INDEX}: {NORM}", "control character"),
    Case("leading_dash", named("-rf.safetensors"), f"{INDEX}: {NORM}", "dash"),
    Case("empty_name", named(""), f"{INDEX}: {NORM}", "is empty"),
    Case("pickle", named("pytorch_model-00001-of-00002.bin"), f"{INDEX}: {NORM}", ".safetensors file was expected"),
    Case("the_config", named("config.json"), f"{INDEX}: {NORM}", ".safetensors file was expected"),
    Case("escaped_separator", named("..%2fsecret.safetensors"), f"{INDEX}: {NORM}", '".."'),
    Case("separator_of_another_script", named("a\u2215secret.safetensors"), INDEX, ("1 of the 3", "secret")),
    Case("name_too_long", named("x" * 5000 + ".safetensors"), INDEX, "1 of the 3"),
    Case("many_missing_shards", index(lambda i: i["weight_map"].update(
        {f"t{n}": f"m-{n:05}.safetensors" for n in range(20_000)})), INDEX, ("20000 of the 20002", "m-00000")),
]

FILES = [
    Case("shard_missing", first_shard(lambda path: None), INDEX, ("1 of the 2", SHARDS[0])),
    Case("shard_cut_short", lambda m: os.truncate(m.folder / SHARDS[1], 900), SHARDS[1], "truncated"),
    Case("shard_is_a_folder", first_shard(lambda path: path.mkdir()), SHARDS[0], "is a folder"),
    Case("shard_is_a_pipe", first_shard(fifo), SHARDS[0], "is a pipe"),
    Case("shard_links_to_nothing", first_shard(lambda path: path.symlink_to("../../blobs/ab")), SHARDS[0], "the download is incomplete"),
    Case("shard_links_to_a_system_file", first_shard(lambda path: path.symlink_to("/etc/passwd")), SHARDS[0],
         "not a safetensors file"),
    Case("same_tensor_in_both", in_both(lambda tensor: tensor), "", ("is also in", "one file may hold it")),
    Case("same_name_other_content", in_both(lambda tensor: np.zeros((2, 2), np.float32)), "", "is also in"),
    Case("shard_of_another_model", shards(lambda both: next(shard for shard in both if UP in shard).update(
        {UP: np.zeros((96, 64), np.float32)})), f": {UP}", ("[96, 64]", "[48, 32]")),
    Case("shards_swapped", lambda m: [(m.folder / SHARDS[0]).rename(m.folder / "x"),
                                      (m.folder / SHARDS[1]).rename(m.folder / SHARDS[0]),
                                      (m.folder / "x").rename(m.folder / SHARDS[1])], "", ("index", SHARDS[0])),
    Case("index_is_a_folder", lambda m: [m.path.unlink(), m.path.mkdir()], INDEX, "is a folder"),
    Case("index_is_a_pipe", lambda m: fifo(m.path), INDEX, "is a pipe"),
    Case("shards_without_an_index", lambda m: m.path.unlink(), "/model", "index file"),
    Case("pickle_only", only("pytorch_model.bin"), "/pytorch_model.bin", ("never read", "save_pretrained")),
    Case("gguf_only", only("model-q4.gguf"), "/model-q4.gguf", "GGUF"),
    Case("adapter_only", only("adapter_model.safetensors"), "/model", "base_model_name_or_path"),
    Case("config_only", only(), "/model", "download the weights"),
]

PATHS = [
    Case("tokenizer_is_a_pipe", lambda m: fifo(m.folder / "tokenizer.json"), "/tokenizer.json", "is a pipe"),
    Case("template_links_to_a_device", lambda m: (m.folder / "chat_template.jinja").symlink_to("/dev/zero"),
         "/chat_template.jinja", "is a pipe, a socket or a device"),
    Case("model_is_a_file", folder_is(lambda m: str(m.path)), "index.json", "is a file"),
    Case("hub_name_of_dots", folder_is("org/.."), "org/..", "org/name"),
    Case("hub_name_with_a_way_up", folder_is("org/name/../../x"), "x", "org/name"),
    Case("hub_name_with_a_zero_byte", folder_is("org/na\0me"), ".json:1", "NUL byte", 2),
    Case("hub_revision_with_a_way_up", hub("org/name@../../escape"), "escape", "org/name"),
    Case("hub_revision_that_is_not_there", hub("org/name@v2"), "org/name@v2", "lora-train download org/name@v2"),
    Case("hub_reference_to_a_way_up", hub("org/name", "../../../escape"), "org/name", "lora-train download"),
    Case("hub_reference_empty", hub("org/name", ""), "org/name", "lora-train download"),
    Case("hub_reference_missing", hub("org/name", None), "org/name", "lora-train download"),
    Case("hub_reference_of_binary_data", hub("org/name", "\0\1\2"), "org/name", "lora-train download"),
    Case("hub_snapshot_is_a_file", hub("org/name", snapshot=lambda path: [path.rmdir(), path.write_text("")]), "org/name",
         "lora-train download"),
]

CASES = TEXT + MAP + NAMES + FILES + PATHS

GOOD = {
    "total_size_of_another_model": index(lambda i: i.update(metadata={"total_size": -10**30})),
    "no_metadata": index(lambda i: i.pop("metadata")),
    "metadata_of_anything": index(lambda i: i.update(metadata=[{"a": [None, 1.5]}], more={"weight_map": 1})),
    "link_out_of_the_folder": lambda m: [
        (m.folder / SHARDS[0]).rename(m.folder.parent / "blob"), (m.folder / SHARDS[0]).symlink_to("../blob")],
}


@pytest.fixture
def model(tmp_path):
    return Sharded(tmp_path)


def check(model):
    profile = model.folder.parent / "profile.json"
    profile.write_text(json.dumps({"model": model.name, "datasets": [os.devnull]}))
    command = ["tokenize", "--text", "a"] if model.name.startswith("org/") else ["check"]
    return run_quickly(*command, "--json", "--profile", profile, environment=model.environment)


@pytest.mark.parametrize("case", CASES, ids=ids(CASES))
def test_is_refused(model, case):
    case.make(model)
    run = check(model)
    assert_refused(run, case)


@pytest.mark.parametrize("name", GOOD)
def test_odd_but_good(model, name):
    GOOD[name](model)
    run = check(model)
    assert run.code == 0, run


def test_there_are_enough_cases():
    assert_enough(CASES, 40)
