"""A few broken files, through the whole program: the exit code, the error object of --json, what reaches the
terminal, and that nothing was written or lost. Every other case is in a table of tests/unit: storage/safetensors_test.cpp,
storage/model_weights_test.cpp, model/config/, config/load_test.cpp, data/, export/malformed_adapter_test.cpp,
run_folder/checkpoint_test.cpp and tokenizer/."""

import json
import os

import pytest
from command import lora_train, model_tensors
from safetensors.numpy import save_file

USAGE, DATA, FORMAT = 2, 3, 4
KINDS = {USAGE: "config", DATA: "data", FORMAT: "format"}
MAX_CPU_S = 20  # a good refusal takes milliseconds, with torch two seconds, however long a busy machine takes for them
MAX_MESSAGE = 10_000  # characters; whatever the file holds, a message stays readable
NORM = "model.norm.weight"


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


def config_is_a_pipe(setup):
    """That nobody writes to: opening it would wait for ever."""
    (setup.model / "config.json").unlink()
    os.mkfifo(setup.model / "config.json")
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
    config = {"peft_type": "LORA", "r": 0, "lora_alpha": 8, "target_modules": ["q_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    save_file({"x": model_tensors()[NORM]}, folder / "adapter_model.safetensors")
    profile = setup.write_profile(lora_r="unset", lora_alpha="unset")
    return ["train", "--dry-run", "--profile", profile, f"init_adapter={folder}"]


def checkpoint(setup):
    """A manifest that names a file outside the checkpoint."""
    assert setup.train(max_steps=1, save_steps=1).code == 0
    manifest = setup.output_dir / "checkpoint-1/manifest.json"
    value = json.loads(manifest.read_text())
    value["files"]["../../secret"] = {"bytes": 1, "xxh128": "0" * 32}
    manifest.write_text(json.dumps(value))
    return ["train", "--profile", setup.profile_file, "--output-dir", setup.folder / "new", "--resume", manifest.parent]


CASES = {  # what makes the input and returns the command; what `where` ends in, words of the message, exit code
    "control characters": (tensor_named("\x1b[2J\x1b[31mgone\r\n"), "gone\\x0d?", ("takes 132",), FORMAT),
    "a name of a megabyte": (tensor_named("n" * 10**6), "...", ("takes 132",), FORMAT),
    "a pipe": (config_is_a_pipe, "/config.json", ("is a pipe",), FORMAT),
    "a profile": (profile_of_yaml, "mine.yaml:3", ('Did you mean "weight_decay"', "\nmine.yaml:4: lora_r: got"), USAGE),
    "a row": (row, "/rows.jsonl:2:2", ("invalid JSON",), DATA),
    "an adapter": (adapter, "/adapter_config.json: r", ("a whole number from 1",), FORMAT),
    "a checkpoint": (checkpoint, "/checkpoint-1", ("is not a good checkpoint: ", "path separator"), FORMAT),
}


def files_of(folder):
    return {path.relative_to(folder): path.is_file() and path.read_bytes() for path in folder.rglob("*") if not path.is_dir()}


@pytest.mark.parametrize("name", CASES)
def test_is_refused(setup, name):
    """With exit code, kind, place and words, said once, in plain characters and in a few lines."""
    make, place, words, code = CASES[name]
    command = make(setup)
    before = files_of(setup.folder)
    run = lora_train(*command, "--json", cwd=setup.folder, cpu_seconds=MAX_CPU_S)
    assert run.code == code, run
    error = json.loads(run.stdout.splitlines()[-1])["error"]
    assert error["kind"] == KINDS[code] and error["where"].endswith(place), run
    assert all(word in error["message"] for word in words), error
    assert "internal error" not in run.stderr and len(run.stderr) < MAX_MESSAGE, f"{len(run.stderr)} characters: {run}"
    odd = [c for c in run.stderr if c != "\n" and not c.isprintable()]
    assert not odd, f"control characters would reach the terminal: {odd}"
    assert files_of(setup.folder) == before, run


def test_bad_rows_are_dropped_and_counted_when_asked(setup):
    setup.write_rows(setup.rows[:2], more="{]\n")
    profile = setup.write_profile(on_bad_row="drop", max_drop_fraction=0.5)
    run = lora_train("tokenize", "--json", "--show", "9", "--profile", profile)
    assert run.code == 0 and len(run.json_lines()) == 2, run
    assert f"1 (33.33%) malformed, dropped (on_bad_row: drop); first: {setup.rows_file}:3:2" in run.stderr, run
