"""Checkpoints that a run is asked to go on from and that are not whole: exit code, place and words of each. The checks come
before torch is loaded into anything, but `train` loads it, so that all cases run first, as many at a time as there are cores."""

import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest
from command import Setup
from malformed import Case, assert_enough, assert_refused, fifo, ids, run_quickly

MANIFEST, STATE, OPTIMIZER, TENSORS = "manifest.json", "trainer_state.json", "optimizer.safetensors", "adapter_model.safetensors"


def text(name, content):
    return lambda folder: (folder / name).write_text(content)


def edited(name, change):
    """`change` gets the JSON of the file and changes it in place."""
    def make(folder):
        value = json.loads((folder / name).read_text())
        change(value)
        (folder / name).write_text(json.dumps(value, indent=2) + "\n")
    return make


def listed(name, entry=None):
    return edited(MANIFEST, lambda manifest: manifest["files"].update({name: entry or {"bytes": 1, "xxh128": "0" * 32}}))


def cut(name, keep):
    return lambda folder: os.truncate(folder / name, keep if keep >= 0 else (folder / name).stat().st_size + keep)


def flipped(name, place):
    def make(folder):
        data = bytearray((folder / name).read_bytes())
        data[place] ^= 1
        (folder / name).write_bytes(data)
    return make


def removed(name):
    return lambda folder: (folder / name).unlink()


def linked(name):
    def make(folder):
        (folder / name).rename(folder / "elsewhere")
        (folder / name).symlink_to("elsewhere")
    return make


def folder_instead(name):
    def make(folder):
        (folder / name).unlink()
        (folder / name).mkdir()
    return make


def instead_of_folder(make_it):
    def make(folder):
        shutil.rmtree(folder)
        make_it(folder)
    return make


def of_another_step(folder):
    """The state file of checkpoint-1, whose manifest knows nothing of it."""
    shutil.copyfile(folder.parent / "whole-1" / STATE, folder / STATE)


UNFINISHED = NOTHING = "manifest.json: is missing"
NO_MANIFEST = "is not a manifest"
CASES = [Case(name, make, place="/broken", words=("is not a good checkpoint", *words)) for name, make, *words in [
    ("no manifest", removed(MANIFEST), MANIFEST, UNFINISHED),
    ("empty manifest", text(MANIFEST, ""), NO_MANIFEST),
    ("manifest cut", cut(MANIFEST, -20), NO_MANIFEST),
    ("manifest: a web page", text(MANIFEST, "<!DOCTYPE html><html><body>404</body></html>"), NO_MANIFEST),
    ("manifest: an array", text(MANIFEST, "[]"), NO_MANIFEST),
    ("manifest: a number", text(MANIFEST, "7"), NO_MANIFEST),
    ("manifest: nested deeply", text(MANIFEST, "[" * 200_000), "nested deeper than 16 levels"),
    ("manifest: version 1", edited(MANIFEST, lambda m: m.update(version=1)), "has version 1; this program reads version 2"),
    ("manifest: of the future", edited(MANIFEST, lambda m: m.update(version=99)), "has version 99"),
    ("manifest: no version", edited(MANIFEST, lambda m: m.pop("version")), NO_MANIFEST),
    ("manifest: no files", edited(MANIFEST, lambda m: m.pop("files")), NO_MANIFEST),
    ("manifest: files is a list", edited(MANIFEST, lambda m: m.update(files=[])), "was changed after it was written"),
    ("manifest: size is a text", listed("x", {"bytes": "many", "xxh128": "0"}), "bytes is \"many\"; expected a whole number, 0 or more"),
    ("manifest: step edited", edited(MANIFEST, lambda m: m.update(step=3)), "was changed after it was written"),
    ("manifest: a fingerprint edited", edited(MANIFEST, lambda m: m["fingerprints"].update(data="0")), "was changed after it was written"),
    ("manifest: a file taken out", edited(MANIFEST, lambda m: m["files"].pop(OPTIMIZER)), "was changed after it was written"),
    ("manifest: spaces edited", lambda folder: text(MANIFEST, (folder / MANIFEST).read_text() + "\n")(folder), "was changed after it was written"),
    ("manifest: a name that leads out", listed("../../secret"), "names the file \"../../secret\", which holds a path separator"),
    ("manifest: an absolute name", listed("/etc/passwd"), "which holds a path separator"),
    ("manifest: a name with a zero byte", listed("a\0b"), "which holds a control character"),
    ("manifest: a name like an option", listed("-rf"), "which starts with a dash"),
    ("manifest: a hidden name", listed(".ssh"), "which starts with a dot"),
    ("manifest: a folder", folder_instead(MANIFEST), "is not a file"),
    ("manifest: a pipe", lambda folder: fifo(folder / MANIFEST), "is not a file"),
    ("manifest: a link", linked(MANIFEST), "is not a file"),
    ("no state", removed(STATE), STATE, "is missing or not a file"),
    ("state cut", cut(STATE, -1), STATE, "bytes, but the manifest says"),
    ("state edited", edited(STATE, lambda s: s.update(epoch=9.0)), STATE, "manifest"),
    ("state of another step", of_another_step, STATE, "manifest"),
    ("no optimizer", removed(OPTIMIZER), OPTIMIZER, "is missing or not a file"),
    ("optimizer: one bit", flipped(OPTIMIZER, 5000), OPTIMIZER, "does not match its hash in the manifest"),
    ("optimizer: empty", cut(OPTIMIZER, 0), OPTIMIZER, "has 0 bytes, but the manifest says"),
    ("optimizer: a pipe", lambda folder: fifo(folder / OPTIMIZER), OPTIMIZER, "is missing or not a file"),
    ("adapter: one bit", flipped(TENSORS, -1), TENSORS, "does not match its hash in the manifest"),
    ("adapter: a link", linked(TENSORS), TENSORS, "is missing or not a file"),
    ("adapter config edited", edited("adapter_config.json", lambda c: c.update(r=8)), "adapter_config.json", "manifest"),
    ("no profile", removed("profile.yaml"), "profile.yaml", "is missing or not a file"),
    ("an empty folder", instead_of_folder(lambda folder: folder.mkdir()), UNFINISHED),
    ("a file", instead_of_folder(lambda folder: folder.write_text("checkpoint")), UNFINISHED),
    ("nothing there", instead_of_folder(lambda folder: None), NOTHING),
    ("an adapter without a state", instead_of_folder(lambda folder: shutil.copytree(folder.parent / "run/adapter", folder)), UNFINISHED),
]]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """{case name: the finished run}"""
    setup = Setup(tmp_path_factory.mktemp("checkpoints"))
    assert setup.train(max_steps=2, save_steps=1).code == 0
    shutil.copytree(setup.output_dir / "checkpoint-1", setup.folder / "whole-1")

    def run(numbered):
        number, case = numbered
        home = setup.folder / str(number)
        home.mkdir()
        for name in ("run", "whole-1"):
            (home / name).symlink_to(setup.folder / name)
        broken = home / "broken"
        shutil.copytree(setup.output_dir / "checkpoint-2", broken)
        case.make(broken)
        return case.name, run_quickly("train", "--json", "--profile", setup.profile_file, "--output-dir", home / "new",
                                      "--resume", broken)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return dict(pool.map(run, enumerate(CASES)))


@pytest.mark.parametrize("case", CASES, ids=ids(CASES))
def test_a_checkpoint_that_is_not_whole_is_refused(results, case):
    assert_refused(results[case.name], case)


def test_count():
    assert_enough(CASES, 15)
