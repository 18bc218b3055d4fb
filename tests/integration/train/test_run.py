"""The life of a run: what it writes, going on after a stop, finished and changed runs, exit codes."""

import json
import shutil
import signal

import pytest

from command import BINARY, ROOT, lora_train, wait_for
from run_files import adapter_bytes, snapshot

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
    run = setup.train("--json", eval_datasets=[{"path": str(setup.rows_file), "type": "pretokenized", "name": "val"}],
                      eval_steps=2, report_to="tensorboard", max_steps=3)
    assert run.code == 0, run
    [summary] = run.json_lines()
    assert summary == setup.summary() and SUMMARY_KEYS <= set(summary)
    assert summary["status"] == "done" and summary["exit_code"] == 0 and summary["step"] == summary["total_steps"] == 3
    lines = setup.events("train")
    assert [line["step"] for line in lines] == [1, 2, 3]
    for line in lines:
        assert TRAIN_KEYS <= set(line), TRAIN_KEYS - set(line)
    first_rows = setup.rows  # shuffled: only the epoch's total is known
    assert sum(line["tokens"] for line in lines) == sum(len(row["input_ids"]) for row in first_rows)
    assert sum(line["supervised_tokens"] for line in lines) == sum(len(row["input_ids"]) - 2 for row in first_rows)
    assert sum(line["num_documents"] for line in lines) == len(first_rows)
    assert summary["tokens"] == sum(line["tokens"] for line in lines)
    evals = setup.events("eval")
    assert [(line["step"], line["name"]) for line in evals] == [(0, "val"), (2, "val"), (3, "val")]
    assert all(EVAL_KEYS <= set(line) for line in evals)
    assert summary["eval_loss"] == evals[-1]["loss"]
    assert summary["best_eval_loss"] == min(line["loss"] for line in evals)
    assert summary["run_name"] == setup.events("start")[0]["run_name"] == "run" and summary["cost_usd"] is None
    assert setup.events("start") and setup.events("end") and setup.events("checkpoint")
    written = {path.name for path in setup.output_dir.iterdir()}
    assert {"profile.yaml", "run.log", "metrics.jsonl", "tensorboard", "checkpoint-3", "adapter", "summary.json"} <= written
    assert not [name for name in written if "tmp" in name]
    assert list((setup.output_dir / "tensorboard").glob("events.out.tfevents*"))
    assert {"adapter_config.json", "adapter_model.safetensors", "optimizer.safetensors", "trainer_state.json",
            "manifest.json"} <= {path.name for path in (setup.output_dir / "checkpoint-3").iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors", "README.md"} <= {
        path.name for path in (setup.output_dir / "adapter").iterdir()}
    assert json.loads((setup.output_dir / "checkpoint-3/trainer_state.json").read_text())["global_step"] == 3


@pytest.mark.parametrize("changes, phases", [
    (dict(), []), (dict(eval_steps=2, eval_on_start=True, val_set_size=2), ["evaluation"])])
def test_the_time_to_the_end_of_step_1_is_reported_by_phase(setup, changes, phases):
    run = setup.train(max_steps=3, save_steps=2, **changes)
    assert run.code == 0, run
    expected = ["open model", "device", "data", "plan", "weights", "buffers", "output folder", *phases, "step 1"]
    summary = setup.summary()
    assert list(summary["startup_s"]) == expected and all(value >= 0 for value in summary["startup_s"].values())
    assert 0 < sum(summary["startup_s"].values()) <= summary["wall_s"]
    resumed = setup.train(max_steps=4, save_steps=2, **changes)
    assert resumed.code == 0 and list(setup.summary()["startup_s"])[-1] == "step 4", resumed


@pytest.mark.parametrize("changes, rank", [(dict(lora_r=4), 8), (dict(lora_r=20), 32),
                                           (dict(lora_r=4, rank_pattern={"q_proj": 40}), 64),
                                           (dict(lora_r=40, rank_pattern={".*": 16}), 16)])
def test_model_card_names_a_rank_that_vllm_takes(setup, changes, rank):
    assert setup.train(max_steps=1, **changes).code == 0
    assert f"--max-lora-rank {rank}\n" in (setup.output_dir / "adapter/README.md").read_text()


def test_the_written_profile_gives_the_same_run(setup):
    assert setup.train(max_steps=2).code == 0
    again = setup.folder / "again"
    run = lora_train("train", "--profile", setup.output_dir / "profile.yaml", "--output-dir", again)
    assert run.code == 0, run
    assert losses(setup) == losses(setup, again) and adapter_bytes(setup.output_dir) == adapter_bytes(again)


@pytest.mark.parametrize("more", [dict(), dict(lora_dropout=0.2, packing=True), dict(adapter="none", learning_rate=1e-3),
                                  dict(loraplus_lr_ratio=8, weight_decay=0.1),
                                  dict(lora_r=128, optim="adamw_8bit", weight_decay=0.1)],
                         ids=["lora", "dropout, packed", "full", "LoRA+", "8 bits"])
def test_stop_and_go_on_is_the_same_run(setup, more):
    """SIGTERM in the middle: exit 75 with a checkpoint of the last finished step; the same command ends the run with
    the bits of a run that was never stopped."""
    settings = dict(dict(max_steps=300, save_steps=1000, shuffle=True, lr_scheduler_type="cosine", warmup_steps=5), **more)
    whole = setup.folder / "whole"
    assert setup.train(output_dir=str(whole), **settings).code == 0
    process = setup.start(**settings)
    wait_for(lambda: len(setup.events("train")) >= 20, "step 20", process)
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=300)
    assert process.returncode == STOPPED, stderr
    summary = setup.summary()
    assert summary["status"] == "stopped" and summary["exit_code"] == STOPPED and 20 <= summary["step"] < 300
    [checkpoint] = setup.output_dir.glob("checkpoint-*")
    assert checkpoint.name == f"checkpoint-{summary['step']}"
    assert not (setup.output_dir / "adapter").exists() and not (setup.output_dir / "model").exists()

    run = setup.train(**settings)
    assert run.code == 0, run
    assert losses(setup) == losses(setup, whole)
    result = "model/model.safetensors" if more.get("adapter") == "none" else "adapter/adapter_model.safetensors"
    assert (setup.output_dir / result).read_bytes() == (whole / result).read_bytes()


def test_max_time_stops_and_the_same_command_goes_on(setup):
    def train_until_a_step_was_done(after):
        """A busy machine may need longer than the first limit only to get to step 1."""
        for seconds in (1, 2, 4, 8, 16, 32, 64, 128, 256):
            run = setup.train("--max-time", f"{seconds}s", max_steps=1000000)
            assert run.code == STOPPED, run
            if setup.summary()["step"] > after:
                return run, setup.summary()["step"]
        raise AssertionError(f"no step in {seconds} s: {run}")

    _, step = train_until_a_step_was_done(after=0)
    assert (setup.output_dir / f"checkpoint-{step}").exists()
    run, last = train_until_a_step_was_done(after=step)
    assert f"resumed from {setup.output_dir}/checkpoint-{step} " in run.stderr and last > step, run
    assert [line["step"] for line in setup.events("train")] == list(range(1, setup.summary()["step"] + 1))


def test_resume_falls_back_to_an_older_checkpoint(setup):
    settings = dict(max_steps=6, save_steps=2, save_total_limit=5)
    whole = setup.folder / "whole"
    assert setup.train(output_dir=str(whole), **settings).code == 0
    shutil.copytree(whole, setup.output_dir)
    shutil.rmtree(setup.output_dir / "adapter")
    (setup.output_dir / "summary.json").unlink()
    path = setup.output_dir / "checkpoint-6/adapter_model.safetensors"
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    run = setup.train(**settings)
    assert run.code == 0 and "checkpoint-6" in run.stderr, run
    assert losses(setup) == losses(setup, whole) and adapter_bytes(setup.output_dir) == adapter_bytes(whole)


def test_finished_run_is_left_alone(setup):
    assert setup.train().code == 0
    before = snapshot(setup.output_dir)
    run = setup.train("--json")
    assert run.code == 0 and "already complete" in run.stderr, run
    assert run.json_lines() == [setup.summary()]
    assert snapshot(setup.output_dir) == before


def test_a_changed_lora_plus_ratio_is_refused(setup):
    assert setup.train(max_steps=2).code == 0
    run = setup.train(loraplus_lr_ratio=16, max_steps=4)
    assert run.code == 2 and "loraplus_lr_ratio: null -> 16" in run.stderr, run
    run = setup.train("--allow-changed", "loraplus_lr_ratio", loraplus_lr_ratio=16, max_steps=4)
    assert run.code == 0, run


def test_more_steps_go_on(setup):
    whole = setup.folder / "whole"
    assert setup.train(max_steps=5, output_dir=str(whole)).code == 0
    assert setup.train(max_steps=3).code == 0
    run = setup.train(max_steps=5)
    assert run.code == 0, run
    assert losses(setup) == losses(setup, whole) and adapter_bytes(setup.output_dir) == adapter_bytes(whole)


def test_name_and_price_of_a_run(setup):
    assert setup.train(run_name="first try", gpu_price_per_hour=36.0).code == 0
    summary = setup.summary()
    assert summary["run_name"] == setup.events("start")[0]["run_name"] == "first try"
    assert summary["cost_usd"] == pytest.approx(summary["wall_s"] / 100)
    assert "# first try: LoRA adapter for" in (setup.output_dir / "adapter/README.md").read_text()


def test_save_total_limit(setup):
    assert setup.train(max_steps=7, save_steps=2, save_total_limit=2).code == 0
    assert {path.name for path in setup.output_dir.glob("checkpoint-*")} == {"checkpoint-6", "checkpoint-7"}


def test_last_smaller_batch_of_an_epoch_is_trained(setup):
    """12 rows, 5 a step: steps of 5, 5 and 2 rows, twice."""
    run = setup.train(global_batch_size=5, micro_batch_size=5, num_epochs=2, max_steps="unset")
    assert run.code == 0, run
    assert [line["num_documents"] for line in setup.events("train")] == [5, 5, 2] * 2
    assert setup.summary()["epoch"] == 2


def test_dry_run_computes_the_largest_micro_batch_and_writes_nothing(setup):
    """Rows in the order of the files, two a micro-batch: the two longest come last, in step 3."""
    setup.write_rows(sorted(setup.rows, key=lambda row: len(row["input_ids"])))
    lengths = sorted(len(row["input_ids"]) for row in setup.rows)
    run = setup.train("--dry-run", "--json", shuffle=False)
    assert run.code == 0 and not setup.output_dir.exists(), run
    [summary] = run.json_lines()
    assert f"step 3, {sum(lengths[-2:])} tokens" in summary["reason"], summary
    assert summary["profile_hash"] and summary["version"] and summary["wall_s"] > 0 and summary["total_steps"] == 3


SHIPPED = sorted(path.name for path in (ROOT / "configs").iterdir() if path.is_file() and path.name != "gpus.json")


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_profiles_are_found_from_any_folder(name, tmp_path):
    """By name, from the copy beside the binary. Their relative paths start in the working directory, as all do."""
    assert (BINARY.parent / "configs" / name).read_bytes() == (ROOT / "configs" / name).read_bytes()
    run = lora_train("check", "--profile", name, cwd=tmp_path)
    if name == "tiny_cpu.yaml":
        assert run.code == 2 and "examples/tiny-math/train.jsonl" in run.stderr and str(tmp_path) in run.stderr, run
        assert lora_train("check", "--profile", "tiny_cpu", cwd=ROOT).code == 0
        run = lora_train("train", "--profile", "h100", cwd=tmp_path)
        assert run.code == 2 and "datasets: missing" in run.stderr, run
    else:
        assert run.code == 0 and "--train-data FILE" in run.stderr, run


def test_stdout_is_for_results(setup):
    run = setup.train(optimizer="adamw_torch")
    assert run.code == 0 and run.stdout == "" and "loss" in run.stderr, run
    log = (setup.output_dir / "run.log").read_text()
    assert "loss" in log
    note = next(line for line in run.stderr.splitlines() if "optimizer: " in line)
    assert note in log, "what is said before the folder is known belongs there too"


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
    run = lora_train("train", "--model", model, "--train-data", example / "train.jsonl", "--output-dir", tmp_path / "run", "device=cpu",
                     "precision=fp32", "max_steps=1", "global_batch_size=4", "max_seq_len=256", "report_to=none")
    assert run.code == 0, run
    assert ("ends a turn with <|im_end|> (id 2047)" in run.stderr) == (ends[1:] != [2047]), run
    run = lora_train("merge", "--model", model, "--adapter", tmp_path / "run", "--output-dir", tmp_path / "merged")
    assert run.code == 0, run
    for folder in ("run/adapter", "merged"):
        assert json.loads((tmp_path / folder / "generation_config.json").read_text()) == dict(file or {}, eos_token_id=ends)


def test_a_mistake_about_the_folder_does_not_hide_one_about_the_data(setup):
    assert setup.train(max_steps=2).code == 0
    run = setup.train(max_steps=1, datasets=[{"path": str(setup.folder / "nope.jsonl"), "type": "pretokenized"}])
    assert run.code == 2 and "max_steps: 2 -> 1  (may be raised, not lowered)" in run.stderr, run
    assert "And in the profile: " in run.stderr and "nope.jsonl" in run.stderr.split("And in the profile: ")[1], run


def test_a_finished_run_that_is_resumed_by_name_says_that_nothing_is_left(setup):
    assert setup.train(max_steps=2).code == 0
    run = setup.train("--resume", setup.output_dir / "checkpoint-2", max_steps=2)
    assert run.code == 0 and "all 2 steps are already done: nothing left to train" in run.stderr, run
