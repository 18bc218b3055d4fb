"""The life of a run: what it writes, going on after a stop, finished and changed runs, exit codes."""

import json
import shutil

import pytest

from command import ROOT, expect_end, good_run, stop, wait_for
from run_files import adapter_bytes

TRAIN_KEYS = {"event", "step", "epoch", "loss", "supervised_tokens", "loss_mean", "grad_norm", "learning_rate", "tokens",
              "num_documents", "tokens_per_s", "step_ms", "data_wait_ms", "memory_gib", "time", "elapsed_s", "eta_s", "cpu_percent",
              "host_memory_gib"}
EVAL_KEYS = {"event", "step", "name", "loss", "perplexity", "token_accuracy", "num_tokens", "eval_s"}
SUMMARY_KEYS = {"status", "exit_code", "reason", "step", "total_steps", "epoch", "train_loss", "eval_loss",
                "best_eval_loss", "best_step", "tokens", "supervised_tokens", "tokens_per_s", "steps_per_s", "wall_s",
                "train_s", "startup_s", "peak_memory_gib", "startup_peak_memory_gib", "peak_host_memory_gib", "gpu", "num_gpus", "cuda_graphs", "cost_usd", "ledger", "adapter",
                "profile_hash", "version", "energy_wh", "mean_gpu_utilization", "cpu_s"}
STOPPED = 75


def losses(setup, output_dir=None):
    """{step: (loss, grad_norm)}; a step that stands twice must stand with equal values."""
    seen = {}
    for line in setup.events("train", output_dir):
        value = (line["loss"], line["grad_norm"], line["learning_rate"])
        assert seen.setdefault(line["step"], value) == value, f"step {line['step']} stands twice with other values"
    return seen


def test_what_a_run_writes(setup):
    settings = dict(eval_datasets=[{"path": str(setup.rows_file), "type": "pretokenized", "name": "val"}], eval_steps=2, report_to="tensorboard", save_steps=2)
    run = setup.good_run("--json", max_steps=3, **settings)
    [summary] = run.json_lines()
    assert summary == setup.summary() and SUMMARY_KEYS <= set(summary)
    assert summary["status"] == "done" and summary["exit_code"] == 0 and summary["step"] == summary["total_steps"] == 3
    lines, evals = setup.events("train"), setup.events("eval")
    assert [line["step"] for line in lines] == [1, 2, 3] and all(TRAIN_KEYS <= set(line) for line in lines)
    # Shuffled: only the epoch's total is known.
    expected = {"tokens": sum(len(row["input_ids"]) for row in setup.rows), "num_documents": len(setup.rows),
                "supervised_tokens": sum(len(row["input_ids"]) - 2 for row in setup.rows)}
    assert {key: sum(line[key] for line in lines) for key in expected} == expected and summary["tokens"] == expected["tokens"]
    assert [(line["step"], line["name"]) for line in evals] == [(0, "val"), (2, "val"), (3, "val")] and all(EVAL_KEYS <= set(line) for line in evals)
    assert summary["eval_loss"] == evals[-1]["loss"] and summary["best_eval_loss"] == min(line["loss"] for line in evals)
    assert summary["run_name"] == setup.events("start")[0]["run_name"] == "run" and summary["cost_usd"] is None
    assert setup.events("end") and setup.events("checkpoint")
    for folder, names in {"": {"profile.yaml", "run.log", "metrics.jsonl", "tensorboard", "checkpoint-3", "adapter", "summary.json"},
                          "checkpoint-3": {"adapter_config.json", "adapter_model.safetensors", "optimizer.safetensors", "trainer_state.json", "manifest.json"},
                          "adapter": {"adapter_config.json", "adapter_model.safetensors", "README.md"}}.items():
        written = {path.name for path in (setup.output_dir / folder).iterdir()}
        assert names <= written and not [name for name in written if "tmp" in name], folder
    assert json.loads((setup.output_dir / "checkpoint-3/trainer_state.json").read_text())["global_step"] == 3
    # The time to the end of the first step is reported by phase.
    expected = ["open model", "device", "data", "plan", "weights", "buffers", "output folder", "evaluation", "step 1"]
    assert list(summary["startup_s"]) == expected and all(value >= 0 for value in summary["startup_s"].values())
    assert 0 < sum(summary["startup_s"].values()) <= summary["wall_s"]
    setup.good_run(max_steps=4, **settings)
    assert list(setup.summary()["startup_s"])[-1] == "step 4"


@pytest.mark.parametrize("changes, rank", [(dict(lora_r=20), 32), (dict(lora_r=4, rank_pattern={"q_proj": 40}), 64), (dict(lora_r=40, rank_pattern={".*": 16}), 16)])
def test_model_card_names_a_rank_that_vllm_takes(setup, changes, rank):
    run = setup.train(max_steps=1, run_name="first try", optimizer="adamw_torch", **changes)
    assert run.code == 0 and run.stdout == "", "stdout is for results"
    card = (setup.output_dir / "adapter/README.md").read_text()
    assert f"--max-lora-rank {rank}\n" in card and "# first try: LoRA adapter for" in card
    assert setup.summary()["run_name"] == setup.events("start")[0]["run_name"] == "first try"
    note = next(line for line in run.stderr.splitlines() if "optimizer: " in line)
    assert note in (setup.output_dir / "run.log").read_text(), "what is said before the folder is known belongs there too"


def test_the_written_profile_gives_the_same_run(setup):
    """12 rows, 5 a step: steps of 5, 5 and 2 rows, twice."""
    assert setup.train(global_batch_size=5, micro_batch_size=5, num_epochs=2, max_steps="unset").code == 0
    assert [line["num_documents"] for line in setup.events("train")] == [5, 5, 2] * 2 and setup.summary()["epoch"] == 2
    again = setup.folder / "again"
    good_run("train", "--profile", setup.output_dir / "profile.yaml", "--output-dir", again)
    assert losses(setup) == losses(setup, again) and adapter_bytes(setup.output_dir) == adapter_bytes(again)


@pytest.mark.parametrize("more", [dict(), dict(lora_dropout=0.2, packing=True, max_steps=150), dict(adapter="none", learning_rate=1e-3),
                                  dict(loraplus_lr_ratio=8, weight_decay=0.1),
                                  dict(lora_r=128, optim="adamw_8bit", weight_decay=0.1, max_steps=150)],
                         ids=["lora", "dropout, packed", "full", "LoRA+", "8 bits"])
def test_stop_and_go_on_is_the_same_run(setup, more):
    """SIGTERM in the middle: exit 75 with a checkpoint of the last finished step; the same command ends the run with
    the bits of a run that was never stopped."""
    settings = dict(dict(max_steps=300, save_steps=1000, shuffle=True, lr_scheduler_type="cosine", warmup_steps=5), **more)
    whole = setup.folder / "whole"
    assert setup.train(output_dir=str(whole), **settings).code == 0
    process = setup.start(**settings)
    wait_for(lambda: len(setup.events("train")) >= 20, "step 20", process)
    stop(process)
    summary = setup.summary()
    assert summary["status"] == "stopped" and summary["exit_code"] == STOPPED and 20 <= summary["step"] < settings["max_steps"]
    [checkpoint] = setup.output_dir.glob("checkpoint-*")
    assert checkpoint.name == f"checkpoint-{summary['step']}"
    assert not (setup.output_dir / "adapter").exists() and not (setup.output_dir / "model").exists()

    setup.good_run(**settings)
    assert losses(setup) == losses(setup, whole)
    result = "model/model.safetensors" if more.get("adapter") == "none" else "adapter/adapter_model.safetensors"
    assert (setup.output_dir / result).read_bytes() == (whole / result).read_bytes()


def test_resume_falls_back_to_an_older_checkpoint_and_more_steps_go_on(setup):
    settings = dict(save_steps=2, save_total_limit=2)
    whole = setup.folder / "whole"
    assert setup.train(output_dir=str(whole), max_steps=7, **settings).code == 0
    assert {path.name for path in whole.glob("checkpoint-*")} == {"checkpoint-6", "checkpoint-7"}
    assert setup.train(max_steps=6, **settings).code == 0
    shutil.rmtree(setup.output_dir / "adapter")
    (setup.output_dir / "summary.json").unlink()
    path = setup.output_dir / "checkpoint-6/adapter_model.safetensors"
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    expect_end(setup.train(max_steps=7, **settings), 0, "checkpoint-6", "checkpoint-4 after step 4")
    assert losses(setup) == losses(setup, whole) and adapter_bytes(setup.output_dir) == adapter_bytes(whole)


def test_dry_run_computes_the_largest_micro_batch_and_writes_nothing(setup):
    """Rows in the order of the files, two a micro-batch: the two longest come last, in step 3."""
    setup.write_rows(sorted(setup.rows, key=lambda row: len(row["input_ids"])))
    lengths = sorted(len(row["input_ids"]) for row in setup.rows)
    run = setup.train("--dry-run", "--json", shuffle=False)
    assert run.code == 0 and not setup.output_dir.exists(), run
    [summary] = run.json_lines()
    assert f"step 3, {sum(lengths[-2:])} tokens" in summary["reason"], summary
    assert summary["profile_hash"] and summary["version"] and summary["wall_s"] > 0 and summary["total_steps"] == 3


@pytest.mark.parametrize("file, ends", [({"do_sample": False, "eos_token_id": 2045}, [2047, 2045]), ({"eos_token_id": [2045, 2047]}, [2045, 2047]),
                                        (None, [2047, 2045]), ({}, [2047])])
def test_generation_config_names_the_token_that_ends_a_turn(tmp_path, file, ends):
    """A base model names another end token than the one that training teaches it: servers would never stop there."""
    example = ROOT / "examples/tiny-math"
    model = tmp_path / "model"
    shutil.copytree(example / "model", model)
    (model / "generation_config.json").unlink()
    if file is not None:
        (model / "generation_config.json").write_text(json.dumps(file))
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(dict(config, eos_token_id=2045)))
    tokenizer = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps(dict(tokenizer, eos_token="<|endoftext|>")))
    run = good_run("train", "--model", model, "--train-data", example / "train.jsonl", "--output-dir", tmp_path / "run", "device=cpu",
                   "precision=fp32", "max_steps=1", "global_batch_size=4", "max_seq_len=256", "report_to=none")
    assert ("ends a turn with <|im_end|> (id 2047)" in run.stderr) == (ends[1:] != [2047]), run
    run = good_run("merge", "--model", model, "--adapter", tmp_path / "run", "--output-dir", tmp_path / "merged")
    for folder in ("run/adapter", "merged"):
        assert json.loads((tmp_path / folder / "generation_config.json").read_text()) == dict(file or {}, eos_token_id=ends)
