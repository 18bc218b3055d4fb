"""The example: LoRA on the shipped 1-2 M parameter model learns its task, on real text through its own tokenizer."""

from pathlib import Path

import pytest

from command import ROOT, events_of, expect_end, good_run, lora_train

EXAMPLE = ROOT / "examples/tiny-math"


@pytest.fixture
def arguments(tmp_path):
    model = EXAMPLE / "model"
    assert (model / "model.safetensors").stat().st_size < 5e6
    return ["--model", model, "--train-data", EXAMPLE / "train.jsonl", "--eval-data", EXAMPLE / "heldout.jsonl",
            "--output-dir", tmp_path / "run", "--set", "device=cpu", "--set", "precision=fp32", "--set", "max_seq_len=256", "--set", "packing=true",
            "--set", "global_batch_size=4", "--set", "micro_batch_size=1", "--set", "max_steps=30",
            "--set", "learning_rate=3e-3", "--set", "eval_steps=1000", "--set", "report_to=none"]


def test_a_short_run_lowers_the_loss_on_held_out_examples(arguments, tmp_path):
    run = good_run("train", *arguments, "--json")
    evals = events_of(tmp_path / "run", "eval")
    assert [event["step"] for event in evals] == [0, 30]
    assert evals[-1]["loss"] < 0.9 * evals[0]["loss"], evals
    assert evals[-1]["token_accuracy"] > evals[0]["token_accuracy"], evals
    adapter = tmp_path / "run/adapter"
    for name in ("adapter_config.json", "adapter_model.safetensors", "tokenizer.json", "README.md"):
        assert (adapter / name).exists(), name


def test_tokenize_shows_what_is_trained():
    run = good_run("tokenize", "--model", EXAMPLE / "model", "--train-data", EXAMPLE / "train.jsonl", "--show", "3", "--json")
    rows = run.json_lines()
    assert len(rows) == 3
    for row in rows:
        assert len(row["input_ids"]) == len(row["labels"]) and row["source"].startswith(str(EXAMPLE / "train.jsonl"))
        trained = [label for label in row["labels"] if label != -100]
        assert trained and len(trained) < len(row["labels"])
        assert all(label in (-100, token) for label, token in zip(row["labels"], row["input_ids"]))


@pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="the profile runs on the GPU here")
def test_the_profile_of_an_a10g_trains_without_a_gpu_and_says_so_once(tmp_path):
    run = good_run("--profile", "a10g-4bit", "--model", EXAMPLE / "model", "--train-data", EXAMPLE / "train.jsonl", "--output-dir", tmp_path / "run",
                   "--set", "max_steps=2", "--set", "learning_rate=3e-3", "--set", "warmup_steps=0", cwd=ROOT)
    notes = [line for line in run.stderr.splitlines() if "CPU" in line or "GPU" in line]
    assert notes == ["device: CPU, because this machine has no NVIDIA device; GPU settings (cuda_graphs, tf32) have no effect"], run
    assert "base: 28 linears in 4 bits" in run.stderr, run
    assert "optimizer state: 795.8 KiB, 420.2 KiB less than with fp32 moments" in run.stderr, run
    steps = events_of(tmp_path / "run", "train")
    assert steps[1]["loss"] < steps[0]["loss"] and all(0 < step["optim_zero_second_moments"] < 0.01 for step in steps), steps


def test_a_chat_template_of_a_file_is_used_and_saved(arguments, tmp_path):
    template = tmp_path / "mine.jinja"
    template.write_text("{% for message in messages %}<{{ message.role }}> {{ message.content }}\n{% endfor %}")
    run = good_run("train", *arguments, "--set", "max_steps=1", "--set", f"chat_template={template}")
    assert (tmp_path / "run/adapter/chat_template.jinja").read_text() == template.read_text()
    template.write_text("{% if %}")
    expect_end(lora_train("train", *arguments, "--overwrite", "--set", f"chat_template={template}"), 4, f"{template}:1")
