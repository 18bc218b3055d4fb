"""Quantised bases through every command: the same numbers wherever layers are decoded, whole folders, and what is refused."""

import json
import os
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from command import BINARY, ENVIRONMENT, ROOT, expect_end, good_run, lora_train, model_tensors, wait_for
from run_files import adapter_bytes, used_bytes

SLOW_DISK = dict(ENVIRONMENT, LD_PRELOAD=str(BINARY.parent / "lib/libslow_sync.so"), SLOW_SYNC_MS="150")
FORMATS = ("nf4", "int8", "fp8")


def train(setup, name, *arguments, **changes):
    """Trains into folder/name; returns (run, bytes of the adapter)."""
    run = setup.good_run(*arguments, output_dir=str(setup.folder / name), **changes)
    return run, adapter_bytes(setup.folder / name)


@pytest.mark.parametrize("kind", FORMATS)
def test_where_layers_are_decoded_changes_no_bit(setup, kind):
    """Nor does a stop."""
    _, once = train(setup, "once", base_precision=kind, decoded_layers=2)
    train(setup, "never", base_precision=kind, decoded_layers=0, max_steps=2, save_steps=2)
    run, never = train(setup, "never", "--allow-changed", "max_steps", base_precision=kind, decoded_layers=0, save_steps=2)
    assert "14 linears in" in run.stderr and "0 of 2 layers decoded once" in run.stderr and "resumed from" in run.stderr, run
    assert never == once == train(setup, "folder", model=setup.quantised(kind), decoded_layers=1)[1]
    assert train(setup, "plain")[1] != once
    assert "The base was quantised during training: 14 linears in" in (setup.folder / "never/adapter/README.md").read_text()
    run, whole = train(setup, "whole", model=setup.quantised(kind), base_precision="fp32")
    assert "decoded once" in run.stderr and whole == once


@pytest.mark.parametrize("kind", FORMATS)
def test_merge_writes_plain_weights_or_quantises_again(setup, kind):
    base = setup.quantised(kind)
    train(setup, "run", model=str(base))
    adapter = setup.folder / "run/adapter"
    merged = setup.folder / "merged"
    run = good_run("merge", "--model", base, "--adapter", adapter, "--output-dir", merged, "--json")
    assert run.json_lines()[0]["max_logit_difference"] < 1e-4
    tensors = load_file(merged / "model.safetensors")
    assert set(tensors) == set(model_tensors())
    assert "quantization_config" not in json.loads((merged / "config.json").read_text())

    again = setup.folder / "again"
    run = good_run("merge", "--model", base, "--adapter", adapter, "--output-dir", again, "--keep-quantised", "--json")
    said = run.json_lines()[0]
    assert 1e-4 < said["max_logit_difference"] < said["max_logit"]
    assert not list(setup.folder.glob(".*"))
    assert "with a LoRA adapter merged in" in (again / "README.md").read_text() and said["num_files"] == len(list(again.glob("[!.]*")))
    assert "quantization_config" in json.loads((again / "config.json").read_text())
    for command in (["check"], ["eval", "--json", "--eval-data", setup.rows_file]):
        good_run(*command, "--profile", setup.profile_file, "--set", f"model={again}")


def test_a_failed_merge_into_quantised_weights_leaves_nothing_and_the_older_one(setup):
    base = setup.quantised("nf4")
    train(setup, "run", model=str(base))
    out, theirs = setup.folder / "out", setup.folder / ".out.plain"
    theirs.mkdir()
    (theirs / "config.json").write_text("mine")
    command = ["merge", "--model", base, "--adapter", setup.folder / "run/adapter", "--output-dir", out, "--keep-quantised"]
    assert lora_train(*command, "--no-check").code == 0
    before, names = {path.name: path.read_bytes() for path in out.iterdir()}, sorted(os.listdir(setup.folder))
    process = subprocess.Popen(list(map(str, [BINARY, *command, "--no-check", "--overwrite"])), env=SLOW_DISK, stderr=subprocess.DEVNULL)
    wait_for(lambda: any(setup.folder.glob(".tmp-out-*/.tmp-quantised-*/model*")), "the quantised weights", process)
    process.kill()
    process.wait()
    assert sorted(os.listdir(setup.folder)) != names, "it was not in the middle"
    spoil_norm(Path(base))
    expect_end(lora_train(*command, "--overwrite", "--allow-other-base"), 7, "the logits are not finite")
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert sorted(os.listdir(setup.folder)) == names and (theirs / "config.json").read_text() == "mine"


def spoil_norm(folder):
    tensors = dict(load_file(folder / "model.safetensors"))
    tensors["model.norm.weight"] = np.full_like(tensors["model.norm.weight"], 3e38)  # finite, but not what it scales
    save_file(tensors, folder / "model.safetensors")


def test_shards_get_an_index_of_their_own(setup):
    setup.write_shards()
    base = Path(setup.quantised("nf4"))
    index = json.loads((base / "model.safetensors.index.json").read_text())
    names = {name: set(load_file(base / name)) for name in set(index["weight_map"].values())}
    assert len(names) == 2
    for name, file in index["weight_map"].items():
        assert name in names[file]
    assert sum(map(len, names.values())) == len(index["weight_map"])
    train(setup, "run", model=str(base))
    merged = setup.folder / "merged"
    assert lora_train("merge", "--model", base, "--adapter", setup.folder / "run/adapter", "--output-dir", merged).code == 0
    index = json.loads((merged / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"]) == set(model_tensors())


def test_a_weight_that_is_not_finite_is_named(setup):
    tensors = model_tensors()
    tensors["model.layers.1.mlp.up_proj.weight"][3, 5] = np.inf
    setup.write_model(tensors)
    for kind in FORMATS:
        expect_end(setup.train(base_precision=kind), 4, "model.layers.1.mlp.up_proj.weight", "NaN or infinity")


def test_generate_decodes_layers_as_often_as_it_must():
    command = ["generate", "--model", ROOT / "examples/tiny-math/model", "--prompt", "2 + 3 =", "--max-new-tokens", 8,
               "--set", "device=cpu", "--set", "base_precision=nf4"]
    answers = [lora_train(*command, "--set", f"decoded_layers={layers}") for layers in (0, 1, 9)]
    assert len({run.stdout for run in answers}) == 1 and answers[0].stdout.strip() and not any(run.code for run in answers), answers


def test_a_full_disk_while_merged_weights_are_quantised_leaves_the_older_ones(setup, small_disk):
    """Once the plain weights do not fit, once the quantised ones."""
    base = setup.quantised("nf4")
    train(setup, "run", model=str(base))
    out = small_disk(8 << 20) / "out"
    command = ["merge", "--model", base, "--adapter", setup.folder / "run/adapter", "--output-dir", out, "--keep-quantised", "--no-check"]
    assert lora_train(*command).code == 0
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    for free_kib, what in ((24, "plain"), (100, "quantised")):
        small_disk(used_bytes(out.parent) + (free_kib << 10))
        run = lora_train(*command, "--overwrite")
        assert run.code == 5 and re.search(f"tmp-{what}-.*No space left on device", run.stderr), run
        assert {path.name: path.read_bytes() for path in out.iterdir()} == before and os.listdir(out.parent) == ["out"]
