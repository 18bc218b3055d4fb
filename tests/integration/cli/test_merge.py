"""`merge` where something is wrong: the right exit code, a sentence that says what, and never a half-written folder."""

import json
import os
import shutil
import signal
import subprocess

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from command import BINARY, ENVIRONMENT, Setup, expect_end, lora_train, model_tensors, stop, wait_for

SLOW_DISK = dict(ENVIRONMENT, LD_PRELOAD=str(BINARY.parent / "lib/libslow_sync.so"), SLOW_SYNC_MS="150")
PREFIX = "base_model.model.model.layers."
CONFIG = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "down_proj"], "bias": "none",
          "base_model_name_or_path": "org/the-base"}


class Merge(Setup):
    """model/ in two shards, adapter/ and the command that makes out/ of them."""

    def __init__(self, folder):
        super().__init__(folder)
        self.write_shards()
        self.adapter, self.out = folder / "adapter", folder / "out"
        self.adapter.mkdir()
        self.write_adapter()
        self.inputs = self.names()

    def write_adapter(self, hidden=32, layers=2, **config):
        rng = np.random.default_rng(3)
        tensors = {}
        for layer in range(layers):
            for path, out, into in (("self_attn.q_proj", hidden, hidden), ("mlp.down_proj", hidden, 48)):
                at = f"{PREFIX}{layer}.{path}."
                tensors[at + "lora_A.weight"] = rng.normal(size=(4, into)).astype(np.float32)
                tensors[at + "lora_B.weight"] = rng.normal(size=(out, 4)).astype(np.float32)
        save_file(tensors, self.adapter / "adapter_model.safetensors")
        (self.adapter / "adapter_config.json").write_text(json.dumps(dict(CONFIG, **config)))

    def command(self, *more):
        return ["merge", "--model", self.model, "--adapter", self.adapter, "--output-dir", self.out, *more]

    def merge(self, *more, **options):
        return lora_train(*self.command(*more), **options)

    def start(self, *more):
        return subprocess.Popen(list(map(str, [BINARY, *self.command(*more)])), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                text=True, env=SLOW_DISK)

    def names(self):
        return sorted(os.listdir(self.folder))

    def temporary_files(self):
        return [path for path in self.folder.glob(".tmp-out-*/*") if path.stat().st_size]


@pytest.fixture
def merge(tmp_path):
    return Merge(tmp_path)


def assert_refused(merge, run, code, *words):
    assert run.code == code, run
    for word in words:
        assert word in run.stderr, f"{word!r} is not in\n{run}"
    assert merge.names() == merge.inputs, run


def test_says_what_it_did_and_evaluates_as_base_and_adapter_do(merge):
    [said] = merge.merge("--json").json_lines()
    assert said["output_dir"] == str(merge.out)
    assert (said["num_tensors"], said["num_merged"]) == (len(model_tensors()), 4)
    assert 0 <= said["max_logit_difference"] < 1e-4 < said["max_logit"]
    assert said["num_argmax_changed"] == 0 and said["num_positions"] > 50
    again = merge.merge("--overwrite", "--rows", merge.rows_file)
    assert "4 of them merged" in again.stdout and "largest logit difference from the unmerged model" in again.stdout, again
    assert "rows.jsonl:" in again.stdout and "merging: 0 of" in again.stderr, again
    profile = merge.write_profile(datasets="unset", eval_datasets=[{"path": str(merge.rows_file), "type": "pretokenized"}])
    unmerged, base, merged = (lora_train("eval", "--profile", profile, *flags, "--json").json_lines()[0]["loss"]
                              for flags in (("--adapter", merge.adapter), (), ("--model", merge.out)))
    assert merged == pytest.approx(unmerged, rel=1e-6) and abs(merged - base) > 0.05


def test_is_not_compared_without_torch_or_when_told(merge):
    without = merge.merge("--json", environment={"LORA_TRAIN_TORCH": "/nonexistent"})
    assert without.code == 0, without
    assert without.json_lines()[0]["max_logit_difference"] is None
    assert "LORA_TRAIN_TORCH" in without.json_lines()[0]["not_compared"]
    told = merge.merge("--no-check", "--overwrite")
    assert "not compared with the unmerged model: --no-check" in told.stdout, told
    expect_end(merge.merge("--overwrite", "--rows", merge.rows_file, environment={"LORA_TRAIN_TORCH": "/nonexistent"}), 2)


def test_stopped_in_the_middle_it_leaves_what_was_there(merge):
    def stop_at_the_first_file(number, *more):
        process = merge.start("--no-check", *more)
        wait_for(lambda: len(merge.temporary_files()) > 0, "the first file", process)
        stop(process, number)

    stop_at_the_first_file(signal.SIGINT)
    assert merge.names() == merge.inputs
    assert merge.merge("--no-check").code == 0
    before = {path.name: path.read_bytes() for path in merge.out.iterdir()}
    stop_at_the_first_file(signal.SIGTERM, "--overwrite", "--dtype", "bf16")
    assert {path.name: path.read_bytes() for path in merge.out.iterdir()} == before and merge.names() == sorted([*merge.inputs, "out"])


@pytest.mark.parametrize("command", [
    ["merge", "--model", "model", "--adapter", "adapter", "--no-check"], ["merge", "--portable", "--adapter", "adapter"],
    ["quantize", "--model", "model"], ["init-model", "--config", "model/config.json"]], ids=" ".join)
def test_overwrite_replaces_outputs_only(merge, command):
    def run():
        return lora_train(*command, "--output-dir", merge.out, "--overwrite", cwd=merge.folder)

    merge.out.mkdir()
    for file in ("config.json", "adapter_config.json", "thesis.txt"):
        (merge.out / file).write_text("{}")
    left = merge.folder / ".tmp-out-77"
    left.mkdir()
    (left / "photo.jpg").write_text("mine")
    merge.inputs = merge.names()
    assert_refused(merge, run(), 2, str(merge.out), "was not written by lora-train", "delete the folder yourself")
    shutil.rmtree(merge.out)
    assert run().code == 0 and run().code == 0
    (merge.out / "thesis.txt").write_text("mine")
    assert_refused(merge, run(), 2, '"thesis.txt"', "which lora-train did not write")
    assert (merge.out / "thesis.txt").read_text() == (left / "photo.jpg").read_text() == "mine"


def test_numbers_that_are_not_finite(merge):
    def spoil(name, value, command, code, *words):
        for path in merge.model.glob("*.safetensors"):
            tensors = load_file(path)
            if name in tensors:
                whole = path.read_bytes()
                tensors[name] = tensors[name].astype(getattr(value, "dtype", tensors[name].dtype))
                tensors[name].flat[0] = value
                save_file(tensors, path)
                assert_refused(merge, lora_train(*command, "--model", merge.model, "--output-dir", merge.out), code, *words)
                path.write_bytes(whole)

    down, norm, merging = "model.layers.1.mlp.down_proj.weight", "model.norm.weight", ("merge", "--adapter", merge.adapter)
    spoil(down, 1e5, [*merging, "--dtype", "fp16"], 7, down, "beyond what F16")
    spoil(down, np.nan, merging, 4, down, "the base model is damaged")
    spoil(norm, np.inf, merging, 7, "the logits are not finite")
    for name, value in (("model.embed_tokens.weight", np.float16("inf")), (norm, np.float32("nan"))):
        spoil(name, value, ["quantize"], 4, name, "holds NaN or infinity", "the base model is damaged")


REFUSED = {  # changes of the adapter, flags; exit code, parts of the message
    "another width": (dict(hidden=64), [], 4, [f"{PREFIX}0.mlp.down_proj.lora_B.weight", "is F32 [64, 4]", "expected shape [32, 4]",
                                               'names the base model "org/the-base"']),
    "another depth": (dict(layers=3), [], 4, [f"{PREFIX}2.", "would be ignored", "org/the-base"]),
    "rows that are bad": ({}, ["--rows", "bad.jsonl"], 3, ["bad.jsonl:1"]), "rows that are not there": ({}, ["--rows", "none.jsonl"], 3, ["none.jsonl"]),
    "no rows": ({}, ["--rows", "empty.jsonl"], 3, ["empty.jsonl"]), "rows for nothing": ({}, ["--no-check", "--rows", "rows.jsonl"], 2, ["--rows"]),
    "a type": ({}, ["--dtype", "int8"], 2, ["expected bf16|fp16|fp32"]),
    "a head": (dict(target_modules=["lm_head"]), [], 4, ["adapters on the embedding or the output head are not supported"]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused(merge, name):
    changes, flags, code, words = REFUSED[name]
    merge.write_adapter(**changes)
    for file, text in (("bad.jsonl", "{\n"), ("empty.jsonl", "")):
        (merge.folder / file).write_text(text)
    merge.inputs = merge.names()
    assert_refused(merge, merge.merge(*flags, cwd=merge.folder), code, *words)


def test_the_base_that_the_adapter_names_is_asked_for(merge):
    run = lora_train("merge", "--adapter", merge.adapter, "--output-dir", merge.out)
    assert_refused(merge, run, 4, "org/the-base", "lora-train download org/the-base")


def test_portable(merge):
    merge.write_adapter(use_rslora=True)
    command = ["merge", "--portable", "--adapter", merge.adapter, "--output-dir", merge.out, "--json"]
    [said] = lora_train(*command).json_lines()
    assert said == {"output_dir": str(merge.out), "num_tensors": 8, "num_padded": 0, "num_rescaled": 0, "r": 4,
                    "lora_alpha": 16.0}, "8 / sqrt 4 is 16 / 4"
    for more, part in (([], "is not empty"), *((flags, f"{flags[0]}: cannot be combined with --portable") for flags in (
            ["--model", merge.model], ["--dtype", "bf16"], ["--rows", merge.rows_file], ["--no-check"]))):
        expect_end(lora_train(*command, *more), 2, part)
