"""`merge` where something is wrong: the right exit code, a sentence that says what, and never a half-written folder."""

import fcntl
import json
import os
import resource
import shutil
import signal
import subprocess

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from command import BINARY, ENVIRONMENT, Setup, lora_train, model_tensors, wait_for

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

    def write_adapter(self, hidden=32, layers=2, change=None, **config):
        rng = np.random.default_rng(3)
        tensors = {}
        for layer in range(layers):
            for path, out, into in (("self_attn.q_proj", hidden, hidden), ("mlp.down_proj", hidden, 48)):
                at = f"{PREFIX}{layer}.{path}."
                tensors[at + "lora_A.weight"] = rng.normal(size=(4, into)).astype(np.float32)
                tensors[at + "lora_B.weight"] = rng.normal(size=(out, 4)).astype(np.float32)
        if change:
            change(tensors)
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


def test_says_what_it_did(merge):
    [said] = merge.merge("--json").json_lines()
    assert said["output_dir"] == str(merge.out)
    assert (said["num_tensors"], said["num_merged"]) == (len(model_tensors()), 4)
    assert 0 <= said["max_logit_difference"] < 1e-4 < said["max_logit"]
    assert said["num_argmax_changed"] == 0 and said["num_positions"] > 50
    again = merge.merge("--overwrite", "--rows", merge.rows_file)
    assert "4 of them merged" in again.stdout and "largest logit difference from the unmerged model" in again.stdout, again
    assert "rows.jsonl:" in again.stdout and "merging: 0 of" in again.stderr, again


def test_evaluates_as_base_and_adapter_do(merge):
    assert merge.merge("--no-check").code == 0
    profile = merge.write_profile(datasets="unset", eval_datasets=[{"path": str(merge.rows_file), "type": "pretokenized"}])
    [unmerged] = lora_train("eval", "--profile", profile, "--adapter", merge.adapter, "--json").json_lines()
    [base] = lora_train("eval", "--profile", profile, "--json").json_lines()
    [merged] = lora_train("eval", "--profile", profile, "--model", merge.out, "--json").json_lines()
    assert merged["loss"] == pytest.approx(unmerged["loss"], rel=1e-6)
    assert abs(merged["loss"] - base["loss"]) > 0.05


def test_is_not_compared_without_torch_or_when_told(merge):
    without = merge.merge("--json", environment={"LORA_TRAIN_TORCH": "/nonexistent"})
    assert without.code == 0, without
    assert without.json_lines()[0]["max_logit_difference"] is None
    assert "LORA_TRAIN_TORCH" in without.json_lines()[0]["not_compared"]
    told = merge.merge("--no-check", "--overwrite")
    assert "not compared with the unmerged model: --no-check" in told.stdout, told
    asked = merge.merge("--overwrite", "--rows", merge.rows_file, environment={"LORA_TRAIN_TORCH": "/nonexistent"})
    assert asked.code == 2, asked


def test_a_full_disk(merge):
    size = max(path.stat().st_size for path in merge.model.glob("*.safetensors"))

    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size - 100, resource.RLIM_INFINITY))

    done = subprocess.run(list(map(str, [BINARY, *merge.command()])), capture_output=True, text=True, env=ENVIRONMENT,
                          preexec_fn=limit)
    assert done.returncode == 5, done.stderr
    assert "File too large" in done.stderr
    assert merge.names() == merge.inputs


def test_killed_in_the_middle_and_started_again(merge):
    process = merge.start("--no-check")
    wait_for(lambda: len(merge.temporary_files()) > 1, "the second file", process)
    process.kill()
    process.communicate()
    assert not merge.out.exists()
    assert merge.names() != merge.inputs, "it was not in the middle"
    assert merge.merge("--no-check").code == 0
    assert merge.names() == sorted([*merge.inputs, "out"])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stopped_in_the_middle(merge, number):
    process = merge.start("--no-check")
    wait_for(lambda: len(merge.temporary_files()) > 0, "the first file", process)
    process.send_signal(number)
    stderr = process.communicate()[1]
    assert process.returncode == 75, stderr
    assert merge.names() == merge.inputs, stderr


def test_stopped_while_replacing_leaves_the_older_one(merge):
    assert merge.merge("--no-check").code == 0
    before = {path.name: path.read_bytes() for path in merge.out.iterdir()}
    process = merge.start("--no-check", "--overwrite", "--dtype", "bf16")
    wait_for(lambda: len(merge.temporary_files()) > 0, "the first file", process)
    process.terminate()
    assert process.wait() == 75
    assert {path.name: path.read_bytes() for path in merge.out.iterdir()} == before


def commands_that_write(merge):
    to = ["--output-dir", merge.out, "--overwrite"]
    return {"merge": ["merge", "--model", merge.model, "--adapter", merge.adapter, "--no-check", *to],
            "portable": ["merge", "--portable", "--adapter", merge.adapter, *to],
            "quantize": ["quantize", "--model", merge.model, *to],
            "init-model": ["init-model", "--config", merge.model / "config.json", *to]}


@pytest.mark.parametrize("name", ["merge", "portable", "quantize", "init-model"])
def test_overwrite_replaces_outputs_only(merge, name):
    command = commands_that_write(merge)[name]
    merge.out.mkdir()
    for file in ("config.json", "adapter_config.json", "thesis.txt"):
        (merge.out / file).write_text("{}")
    left = merge.folder / ".tmp-out-77"
    left.mkdir()
    (left / "photo.jpg").write_text("mine")
    merge.inputs = merge.names()
    assert_refused(merge, lora_train(*command), 2, str(merge.out), "was not written by lora-train", "delete the folder yourself")
    shutil.rmtree(merge.out)
    assert lora_train(*command).code == 0 and lora_train(*command).code == 0
    (merge.out / "thesis.txt").write_text("mine")
    assert_refused(merge, lora_train(*command), 2, '"thesis.txt"', "which lora-train did not write")
    assert (merge.out / "thesis.txt").read_text() == (left / "photo.jpg").read_text() == "mine"


def test_a_second_merge_to_the_same_place_is_refused(merge):
    """The test holds the temporary folder as the first one would."""
    first = merge.out.parent / f".tmp-{merge.out.name}-7"
    first.mkdir()
    (first / ".lora-train-output.json").write_text(json.dumps({"made_by": "lora-train", "version": 1, "holds": "model"}))
    holder = os.open(first, os.O_RDONLY)
    fcntl.flock(holder, fcntl.LOCK_EX)
    run = merge.merge("--no-check", "--overwrite")
    assert run.code == 2 and "another command is writing this folder now" in run.stderr and first.is_dir(), run
    os.close(holder)  # killed
    assert merge.merge("--no-check").code == 0
    assert merge.names() == sorted([*merge.inputs, "out"]) and (merge.out / "model.safetensors.index.json").exists()


def spoil(name, value):
    def change(tensors):
        tensors[name][0, 0] = value
    return change


Q_A = f"{PREFIX}0.self_attn.q_proj.lora_A.weight"
ADAPTERS = {
    "another width": (dict(hidden=64), (f"{PREFIX}0.mlp.down_proj.lora_B.weight", "is F32 [64, 4]", "expected shape [32, 4]",
                                        'names the base model "org/the-base"')),
    "another depth": (dict(layers=3), (f"{PREFIX}2.", "would be ignored", "org/the-base")),
    "a head": (dict(target_modules=["lm_head"]), ("adapters on the embedding or the output head are not supported",)),
}


@pytest.mark.parametrize("name", ADAPTERS)
def test_adapters_that_do_not_fit(merge, name):
    changes, words = ADAPTERS[name]
    merge.write_adapter(**changes)
    assert_refused(merge, merge.merge(), 4, *words)


def test_bases_that_are_not_whole_or_not_supported(merge):
    merge.write_config(quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True})
    assert_refused(merge, merge.merge(), 4, "quantization_config")
    merge.write_config()
    (merge.model / "model-00002-of-00002.safetensors").unlink()
    assert_refused(merge, merge.merge(), 4, "model-00002-of-00002.safetensors", "download")


def spoil_base(merge, name, value):
    for path in merge.model.glob("*.safetensors"):
        tensors = load_file(path)
        if name in tensors:
            tensors[name] = tensors[name].astype(getattr(value, "dtype", tensors[name].dtype))
            tensors[name].flat[0] = value
            save_file(tensors, path)


def test_numbers_that_are_not_finite(merge):
    spoil_base(merge, "model.layers.1.mlp.down_proj.weight", 1e5)
    assert_refused(merge, merge.merge("--dtype", "fp16"), 7, "model.layers.1.mlp.down_proj.weight", "beyond what F16")
    spoil_base(merge, "model.layers.1.mlp.down_proj.weight", np.nan)
    assert_refused(merge, merge.merge(), 4, "model.layers.1.mlp.down_proj.weight", "the base model is damaged")
    spoil_base(merge, "model.layers.1.mlp.down_proj.weight", 0.1)
    spoil_base(merge, "model.norm.weight", np.inf)
    assert_refused(merge, merge.merge(), 7, "the logits are not finite")


def test_quantising_refuses_numbers_that_are_not_finite(merge):
    for name, value in (("model.embed_tokens.weight", np.float16("inf")), ("model.norm.weight", np.float32("nan"))):
        spoil_base(merge, name, value)
        run = lora_train("quantize", "--model", merge.model, "--output-dir", merge.out)
        assert_refused(merge, run, 4, name, "holds NaN or infinity", "the base model is damaged")
        spoil_base(merge, name, np.float32(1))


def test_rows_that_are_bad(merge):
    merge.write_rows(merge.rows, more="{\n")
    assert_refused(merge, merge.merge("--rows", merge.rows_file), 3, "rows.jsonl:13")
    merge.write_rows([])
    assert_refused(merge, merge.merge("--rows", merge.rows_file), 3, "rows.jsonl")
    assert_refused(merge, merge.merge("--rows", merge.folder / "none.jsonl"), 3, "none.jsonl")


def test_flags_that_mean_nothing_are_refused(merge):
    portable = ["merge", "--portable", "--adapter", merge.adapter, "--output-dir", merge.out]
    for more in (["--model", merge.model], ["--dtype", "bf16"], ["--rows", merge.rows_file], ["--no-check"]):
        assert_refused(merge, lora_train(*portable, *more), 2, more[0], "cannot be combined with --portable")
    assert_refused(merge, merge.merge("--no-check", "--rows", merge.rows_file), 2, "--rows")
    assert_refused(merge, merge.merge("--dtype", "int8"), 2, "expected bf16|fp16|fp32")
    of_adapter = lora_train("merge", "--adapter", merge.adapter, "--output-dir", merge.out)  # the base that it names
    assert_refused(merge, of_adapter, 4, "org/the-base", "lora-train download org/the-base")


def test_portable(merge):
    merge.write_adapter(use_rslora=True)
    out = lora_train("merge", "--portable", "--adapter", merge.adapter, "--output-dir", merge.out, "--json")
    [said] = out.json_lines()
    assert said == {"output_dir": str(merge.out), "num_tensors": 8, "num_padded": 0, "num_rescaled": 0, "r": 4,
                    "lora_alpha": 16.0}, "8 / sqrt 4 is 16 / 4"
    again = lora_train("merge", "--portable", "--adapter", merge.adapter, "--output-dir", merge.out)
    assert again.code == 2 and "is not empty" in again.stderr, again
    merge.write_adapter(change=spoil(Q_A, np.inf))
    shutil.rmtree(merge.out)
    broken = lora_train("merge", "--portable", "--adapter", merge.adapter, "--output-dir", merge.out)
    assert_refused(merge, broken, 4, Q_A, "holds NaN or infinity")
