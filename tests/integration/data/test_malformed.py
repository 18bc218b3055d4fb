"""One or two broken files of each kind, through the whole program: the exit code, the error object of --json, what reaches the
terminal, and that nothing was written or lost. Every other case is in a table of tests/unit: storage/safetensors_test.cpp,
storage/model_weights_test.cpp, model/config/, config/malformed_profile_test.cpp, data/, export/malformed_adapter_test.cpp,
run_folder/checkpoint_test.cpp and tokenizer/."""

import json
import os
from dataclasses import dataclass
from typing import Callable

import pytest
from command import lora_train, model_tensors
from safetensors.numpy import save_file

USAGE, DATA, FORMAT = 2, 3, 4
KINDS = {USAGE: "config", DATA: "data", FORMAT: "format"}
MAX_CPU_S = 20  # a good refusal takes milliseconds, with torch two seconds, however long a busy machine takes for them
MAX_MESSAGE = 10_000  # characters; whatever the file holds, a message stays readable
NORM = "model.norm.weight"
TOKENIZER = {"added_tokens": [], "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "u": 3}, "merges": ["a b"]}}


@dataclass(frozen=True)
class Case:
    """One broken input: what makes it and returns the command, and the place and the words of the refusal."""
    name: str
    make: Callable  # called with a command.Setup
    place: str  # what `where` ends in
    words: tuple  # all of them stand in the message
    code: int = FORMAT


def run_quickly(*arguments, cwd=None):
    return lora_train(*arguments, cwd=cwd, cpu_seconds=MAX_CPU_S)


def assert_refused(run, case):
    """The exit code, kind, place and words of `case`, said once, in plain characters and in a few lines."""
    assert run.code == case.code, run
    error = json.loads(run.stdout.splitlines()[-1])["error"]
    assert error["kind"] == KINDS[case.code], run
    assert error["where"].endswith(case.place) and error["where"], error
    for word in case.words:
        assert word in error["message"], f"{word!r} is not in {error}"
    assert "internal error" not in run.stderr, run
    assert len(run.stderr) < MAX_MESSAGE, f"{len(run.stderr)} characters: {run}"
    odd = [c for c in run.stderr if c != "\n" and not c.isprintable()]
    assert not odd, f"control characters would reach the terminal: {odd}"


def fifo(path):
    """A pipe that nobody writes to: opening it would wait for ever."""
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def write_json(path, value):
    path.write_text(json.dumps(value))


def check(setup):
    return ["check", f"model={setup.model}", "datasets=[/dev/null]"]


def tensor_named(name):
    """A file that is too short for its last tensor."""
    def make(setup):
        path = setup.model / "model.safetensors"
        setup.write_model({name: model_tensors()[NORM]})
        path.write_bytes(path.read_bytes().replace(b"[32]", b"[33]"))
        return check(setup)
    return make


def shard_outside(setup):
    """The index names a good shard outside its folder."""
    index = setup.write_shards()
    (setup.folder / "secret.safetensors").write_bytes((setup.model / index["weight_map"][NORM]).read_bytes())
    index["weight_map"][NORM] = "../secret.safetensors"
    setup.write_index(index)
    return check(setup)


def config(**changes):
    def make(setup):
        setup.write_config(**changes)
        return check(setup)
    return make


def config_is_a_pipe(setup):
    fifo(setup.model / "config.json")
    return check(setup)


def profile_of_yaml(setup):
    (setup.folder / "mine.yaml").write_text("model: m\ndatasets: [train.jsonl]\nweigth_decay: 0.1\nlora_r: many\n")
    return ["check", "--no-files", "--profile", "mine.yaml"]


def row(setup):
    setup.write_rows(setup.rows[:1], more="{]\n")
    return ["tokenize", "--show", "1", "--profile", setup.write_profile()]


def adapter(setup):
    folder = setup.folder / "adapter"
    folder.mkdir()
    write_json(folder / "adapter_config.json", {"peft_type": "LORA", "r": 0, "lora_alpha": 8, "target_modules": ["q_proj"]})
    save_file({"x": model_tensors()[NORM]}, folder / "adapter_model.safetensors")
    profile = setup.write_profile(lora_r="unset", lora_alpha="unset")
    return ["train", "--dry-run", "--profile", profile, f"init_adapter={folder}"]


def checkpoint(setup):
    """A manifest that names a file outside the checkpoint."""
    assert setup.train(max_steps=1, save_steps=1).code == 0
    manifest = setup.output_dir / "checkpoint-1/manifest.json"
    value = json.loads(manifest.read_text())
    value["files"]["../../secret"] = {"bytes": 1, "xxh128": "0" * 32}
    write_json(manifest, value)
    return ["train", "--profile", setup.profile_file, "--output-dir", setup.folder / "new", "--resume", manifest.parent]


def tokenizer(setup):
    write_json(setup.model / "tokenizer.json", {**TOKENIZER, "model": {**TOKENIZER["model"], "merges": ["a z"]}})
    return ["tokenize", "--model", setup.model, "--text", "ab"]


def template(setup):
    write_json(setup.model / "tokenizer.json", TOKENIZER)
    (setup.model / "chat_template.jinja").write_text("\n\n{% include 'x' %}")
    setup.write_rows([{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "ab"}]}])
    return ["tokenize", "--show", "1", "--profile", setup.write_profile(datasets=[str(setup.rows_file)])]


CASES = [
    Case("control characters", tensor_named("\x1b[2J\x1b[31mgone\r\n"), "gone\\x0d?", ("takes 132",)),
    Case("a name of a megabyte", tensor_named("n" * 10**6), "...", ("takes 132",)),
    Case("a shard outside", shard_outside, f"model.safetensors.index.json: {NORM}", ("../secret", "path separator")),
    Case("a size of config.json", config(hidden_size=-32), "/config.json: hidden_size", ("a whole number from 1",)),
    Case("a pipe", config_is_a_pipe, "/config.json", ("is a pipe",)),
    Case("a profile", profile_of_yaml, "mine.yaml:3", ('Did you mean "weight_decay"', "\nmine.yaml:4: lora_r: got"), USAGE),
    Case("a row", row, "/rows.jsonl:2:2", ("invalid JSON",), DATA),
    Case("an adapter", adapter, "/adapter_config.json: r", ("a whole number from 1",)),
    Case("a checkpoint", checkpoint, "/checkpoint-1", ("is not a good checkpoint: ", "path separator")),
    Case("a tokenizer", tokenizer, "/tokenizer.json: model.merges[0]", ("not in model.vocab",)),
    Case("a template", template, "/chat_template.jinja:3", ("{% include %} is not supported",)),
]


def files_of(folder):
    return {path.relative_to(folder): path.is_file() and path.read_bytes() for path in folder.rglob("*") if not path.is_dir()}


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_is_refused(setup, case):
    command = case.make(setup)
    before = files_of(setup.folder)
    run = run_quickly(*command, "--json", cwd=setup.folder)
    assert_refused(run, case)
    assert files_of(setup.folder) == before, run


def test_bad_rows_are_dropped_and_counted_when_asked(setup):
    setup.write_rows(setup.rows[:2], more="{]\n")
    profile = setup.write_profile(on_bad_row="drop", max_drop_fraction=0.5)
    run = run_quickly("tokenize", "--json", "--show", "9", "--profile", profile)
    assert run.code == 0 and len(run.json_lines()) == 2, run
    assert f"1 (33.33%) malformed, dropped (on_bad_row: drop); first: {setup.rows_file}:3:2" in run.stderr, run
