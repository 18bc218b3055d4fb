"""Runs and adapters of others: what they hold is plain data, and an adapter is not used with another base by mistake. What others put
into a run survives."""

import json
import os
import re
import shutil

import pytest

from command import Setup, good_run, lora_train, model_tensors
from tiny_math import FP32

SECRET = "the-secret-of-the-reader"
PLACEHOLDER = "${LORA_TRAIN_TEST_SECRET}"
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 .?"  # 64 tokens


def write_tokenizer(folder):
    (folder / "tokenizer.json").write_text(json.dumps(
        {"version": "1.0", "model": {"type": "BPE", "vocab": {letter: i for i, letter in enumerate(LETTERS)}, "merges": []}}))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished run, whose model has a tokenizer. Tests copy it before they change it."""
    setup = Setup(tmp_path_factory.mktemp("trained"))
    write_tokenizer(setup.model)
    setup.good_run(max_steps=2, save_steps=1)
    return setup


@pytest.fixture
def here(trained, tmp_path):
    """A copy of the finished run of `trained` in tmp_path/run, with the paths of its profile."""
    setup = Setup(tmp_path)
    write_tokenizer(setup.model)
    shutil.copytree(trained.output_dir, setup.output_dir)
    profile = setup.output_dir / "profile.yaml"
    profile.write_text(profile.read_text().replace(str(trained.folder), str(setup.folder)))
    return setup


def uses_of(adapter, model, setup):
    """A command for each way to use an adapter."""
    rows = ("--set", f"eval_datasets[+].path={setup.rows_file}", "--set", "eval_datasets[0].type=pretokenized")
    return {
        "generate": ("generate", "--model", model, *FP32, "--adapter", adapter, "--raw", "--prompt", "ab", "--max-new-tokens", "1"),
        "eval": ("eval", "--model", model, *FP32, "--adapter", adapter, *rows),
        "merge": ("merge", "--model", model, "--adapter", adapter, "--output-dir", setup.folder / "merged", "--no-check"),
        "train": ("train", "--profile", setup.write_profile(init_adapter=str(adapter), model=str(model), lora_r="unset",
                                                            lora_alpha="unset", output_dir=str(setup.folder / "next")),
                  "--dry-run")}


@pytest.mark.parametrize("command", ["generate", "eval", "merge", "train"])
def test_an_adapter_is_not_used_with_other_weights_by_mistake(here, command):
    adapter = here.output_dir / "adapter"
    assert (adapter / "base_model.json").exists() and (here.output_dir / "checkpoint-2/base_model.json").exists()
    moved = here.folder / "moved"
    shutil.copytree(here.model, moved)
    run = lora_train(*uses_of(adapter, moved, here)[command])
    assert run.code == 0 and "base model" not in run.stderr and "other weights" not in run.stderr, run
    shutil.rmtree(here.folder / "merged", ignore_errors=True)

    here.write_model(model_tensors(seed=1))
    arguments = uses_of(adapter, here.model, here)[command]
    allows = ("--allow-changed", "model") if command == "train" else ("--allow-other-base",)
    tokenizer = here.model / "tokenizer.json"
    whole = tokenizer.read_text()
    tokenizer.write_text("{" if command == "generate" else whole)  # another base is refused before its tokenizer is read
    run = lora_train(*arguments)
    tokenizer.write_text(whole)
    named = json.loads((adapter / "adapter_config.json").read_text())["base_model_name_or_path"]
    assert run.code == 2 and f"other weights ({named}), not those in {here.model}" in run.stderr, run
    assert " ".join(allows) in run.stderr, run
    run = lora_train(*arguments, *allows)
    assert run.code == 0 and run.stderr.count("other weights") == 1, run
    shutil.rmtree(here.folder / "merged", ignore_errors=True)

    (adapter / "base_model.json").unlink()  # as PEFT writes it
    run = lora_train(*arguments)
    assert run.code == 0 and run.stderr.count(f"names {named} as its base model, but is used with {here.model}") == 1, run


def test_a_template_of_an_adapter_has_the_special_tokens_of_the_model(here):
    """PEFT's folder may hold chat_template.jinja alone."""
    (here.model / "tokenizer_config.json").write_text('{"eos_token": "."}')
    rows = here.folder / "chats.jsonl"
    rows.write_text(json.dumps({"messages": [{"role": "user", "content": "a b"}, {"role": "assistant", "content": "c d"}]}) + "\n")
    adapter = here.output_dir / "adapter"
    (adapter / "tokenizer_config.json").unlink(missing_ok=True)
    losses = {}
    for token in ("{{ eos_token }}", ".", ""):
        (adapter / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}" + token + "{% endfor %}")
        run = good_run("eval", "--model", here.model, *FP32, "--adapter", adapter, "--eval-data", rows, "--json")
        losses[token] = run.json_lines()[-1]["loss"]
    assert losses["{{ eos_token }}"] == losses["."] != losses[""]


def test_a_strangers_run_is_plain_data_for_every_command(here):
    """A secret in the environment and one in a file: neither appears on a terminal or in a file."""
    secret_file = here.folder / "secret.yaml"
    secret_file.write_text(f"run_name: {SECRET}\n")
    out, stranger = here.folder, here.output_dir
    config = stranger / "adapter/adapter_config.json"
    config.write_text(json.dumps(dict(json.loads(config.read_text()), base_model_name_or_path=PLACEHOLDER)))
    (stranger / "adapter/README.md").write_text(f"base_model: {PLACEHOLDER}\n\n## Use\n\nPEFT:\n{PLACEHOLDER}\n")
    profile = here.write_profile(max_steps=2, save_steps=1)
    uses = uses_of(stranger / "adapter", here.model, here)
    del uses["train"]
    compare = [("compare", stranger, *more) for more in ((), ("--csv",), ("--json",), ("--html", out / "page.html"))]
    adapter = [*uses.values(), ("merge", "--portable", "--adapter", stranger / "adapter", "--output-dir", out / "portable")]
    train = [("train", "--profile", profile, *more) for more in (
        ("--set", f"output_dir={out}/other", "--resume", stranger / "checkpoint-2"), ("--dry-run",), ("--overwrite", "--dry-run"),
        ("--set", "max_steps=3"))]
    stored = stranger / "profile.yaml"
    hostile = re.sub(r"(?m)^run_name:.*$", f'run_name: "{PLACEHOLDER}"', stored.read_text())
    assert PLACEHOLDER in hostile
    for more, commands in (("", compare + adapter + train), (f"extends: {secret_file}\n", compare + train)):
        stored.write_text(hostile + more)
        for command in commands:
            run = lora_train(*command, environment={"LORA_TRAIN_TEST_SECRET": SECRET})
            assert SECRET not in run.stdout + run.stderr, run
            if command[0] == "compare":
                assert run.code == 0, run
    for path in out.glob("**/*"):
        assert path == secret_file or not path.is_file() or SECRET.encode() not in path.read_bytes(), path


def test_what_others_put_into_the_folders_of_a_run_survives(setup):
    settings = dict(save_steps=1, save_total_limit=1)
    assert setup.train(max_steps=2, **settings).code == 0
    theirs = [setup.output_dir / name for name in ("adapter/NOTES.md", "adapter/.git/HEAD", "checkpoint-2/evals/mmlu.txt")]
    for file in theirs:
        file.parent.mkdir(exist_ok=True)
        file.write_text("mine")
    run = setup.train("--allow-changed", "max_steps", max_steps=4, **settings)
    assert run.code == 0 and "checkpoint-2: keeping files that lora-train did not write: evals" in run.stderr, run
    assert run.stderr.count("did not write") == 1 and all(file.read_text() == "mine" for file in theirs)
    assert os.listdir(setup.output_dir / "checkpoint-2") == ["evals"]
    setup.good_run("--overwrite", max_steps=1)
    survived = [file.read_text() for file in setup.output_dir.rglob("*") if file.name in ("NOTES.md", "HEAD", "mmlu.txt")]
    assert survived == ["mine"] * 3 and (setup.output_dir / "adapter/NOTES.md").exists()
