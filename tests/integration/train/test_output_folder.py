"""What a run makes of its output folder, on the disk: what it deletes, keeps and goes on from; failures on the way.

What is refused, resumed or begun anew is decided in run_folder/output_folder, and tested there (output_folder_test).
"""

import json
import os
import shutil
import signal
import subprocess
import time

import yaml

from command import BINARY, ENVIRONMENT, expect_end, model_tensors, stop, wait_for
from run_files import adapter_bytes, snapshot

STOPPED = 75


def kill(process):
    process.kill()
    process.communicate(timeout=300)


def test_a_stop_before_step_1_does_not_block_the_folder(setup):
    """No checkpoint is owed before step 1: the same command begins anew. The last line says how each run ended."""
    evaluation = dict(eval_datasets=[{"path": str(setup.rows_file), "type": "pretokenized", "name": "val"}])
    run = setup.train("--max-time", "0.001s", **evaluation)
    assert run.code == STOPPED and setup.summary()["step"] == 0 and setup.events("train") == [], run
    assert "before the end of step 1; the same command resumes the run" in run.stderr.splitlines()[-1], run
    run = setup.train(**evaluation)
    assert run.code == 0 and "starting over" not in run.stderr, run
    assert [line["step"] for line in setup.events("train")] == [1, 2, 3]
    assert [line["step"] for line in setup.events("eval")] == [0, 3] and len(setup.events("start")) == 1
    assert run.stderr.splitlines()[-1].startswith("done: 3 of 3 steps, ") and str(setup.output_dir / "adapter") in run.stderr, run


def test_closed_standard_streams_write_into_no_file(setup):
    """The next file that is opened would get their numbers, and the lines of the progress with it."""
    for name, how, code in (("usual", "", 0), ("closed", "<&- >&- 2>&-", 5)):  # 5: the result cannot be printed
        command = [BINARY, "quantize", "--model", setup.model, "--output-dir", setup.folder / name]
        assert subprocess.run(["sh", "-c", f'exec "$@" {how}', "sh", *map(str, command)], env=ENVIRONMENT).returncode == code
    for file in (setup.folder / "usual").iterdir():
        assert (setup.folder / "closed" / file.name).read_bytes() == file.read_bytes(), file.name


def test_a_read_that_the_disk_fails_ends_with_its_code(setup):
    """SIGBUS is what a mapped file that became shorter gives."""
    process = setup.start(max_steps=100000)
    wait_for(lambda: setup.events("train"), "a step", process)
    assert "a file that was being read became shorter" in stop(process, signal.SIGBUS, code=5)


def test_a_result_is_written_again_and_never_names_a_base_on_which_no_step_ran(setup):
    assert setup.train().code == 0
    adapter, base = adapter_bytes(setup.output_dir), (setup.output_dir / "adapter/base_model.json").read_bytes()
    shutil.rmtree(setup.output_dir / "adapter")
    run = setup.train()
    assert run.code == 0 and adapter_bytes(setup.output_dir) == adapter, run
    setup.write_model(model_tensors(seed=1))
    summary = setup.summary()
    assert setup.train(max_steps=4).code == 2 and setup.summary() == summary, "a refused start leaves the result"
    shutil.rmtree(setup.output_dir / "adapter")
    expect_end(setup.train("--allow-changed", "model"), 2, "no steps left to train on this one")
    run = setup.train("--allow-changed", "model", max_steps=4)
    assert run.code == 0 and (setup.output_dir / "adapter/base_model.json").read_bytes() != base, run


def test_the_written_profile_has_the_numbers_that_auto_became(setup):
    """A dry run with auto says what the run would say of the folder, and writes nothing."""
    auto = dict(max_seq_len="auto", micro_batch_size="auto")
    assert setup.train(max_steps=2, **auto).code == 0
    written = yaml.safe_load((setup.output_dir / "profile.yaml").read_text())
    assert written["max_seq_len"] == 64 and written["micro_batch_size"] == 4 and written["global_batch_size"] == 4
    assert written["mlp_tile_tokens"] == 0
    assert yaml.safe_load((setup.output_dir / "checkpoint-2/profile.yaml").read_text()) == written
    before = snapshot(setup.output_dir)
    expect_end(setup.train("--dry-run", max_steps=3, **auto), 0, "resumed from")
    assert "complete" in setup.train("--dry-run", "--json", max_steps=2, **auto).json_lines()[0]["reason"]
    assert snapshot(setup.output_dir) == before


def test_an_extended_run_keeps_its_folder_and_is_not_complete_when_it_dies(setup):
    assert setup.train(max_steps=3).code == 0
    process = setup.start(max_steps=100000)
    wait_for(lambda: len(setup.events("train")) >= 5, "step 5", process)
    expect_end(setup.train(max_steps=100000), 2, f"process {process.pid} ")
    kill(process)
    assert (setup.output_dir / ".lora-train.lock").exists()
    num_lines = len(setup.events("start"))
    process = setup.start(max_steps=100000)
    wait_for(lambda: len(setup.events("start")) > num_lines, "the run going on", process)
    stop(process)
    assert setup.summary()["status"] == "stopped" and not (setup.output_dir / ".lora-train.lock").exists()


def test_overwrite_keeps_the_old_run_until_the_new_one_has_saved(setup):
    """A mistake found late and a kill leave it; the same command goes on after exit code 75, as in a batch system."""
    assert setup.train(max_steps=3).code == 0
    adapter = adapter_bytes(setup.output_dir)
    run = setup.train("--overwrite", datasets=[{"path": str(setup.folder / "tpyo.jsonl"), "type": "pretokenized"}])
    assert run.code == 3, run
    assert adapter_bytes(setup.output_dir) == adapter and (setup.output_dir / "checkpoint-3/manifest.json").exists()
    assert "tpyo.jsonl" in (setup.output_dir / "run.log").read_text()

    replaced = setup.output_dir / ".lora-train-replaced"
    settings = dict(max_steps=400, save_steps=1000, learning_rate=2e-2)

    def start():
        began = time.time()
        process = setup.start("--overwrite", **settings)
        wait_for(lambda: len([line for line in setup.events("train") if line["time"] > began]) >= 5, "step 5", process)
        return process

    kill(start())
    assert adapter_bytes(replaced) == adapter and (replaced / "checkpoint-3/manifest.json").exists()
    stop(start())
    run = setup.train("--overwrite", **settings)
    assert run.code == 0 and "resumed from" in run.stderr and not replaced.exists(), run
    assert [line["step"] for line in setup.events("train")] == list(range(1, 401))
    assert "tpyo.jsonl" not in (setup.output_dir / "run.log").read_text()


def test_going_back_keeps_the_mean_loss_and_leaves_the_other_future(setup):
    settings = dict(max_steps=8, logging_steps=4)
    assert setup.train(save_steps=2, save_total_limit=9, **settings).code == 0
    (setup.output_dir / "summary.json").unlink()
    means = {line["step"]: line["loss_mean"] for line in setup.events("train")}
    run = setup.train("--allow-changed", "resume_from_checkpoint", save_steps=3, save_total_limit=1,
                      resume_from_checkpoint=str(setup.output_dir / "checkpoint-2"), **settings)
    assert run.code == 0 and "checkpoint-4: deleted because the run resumes from step" in run.stderr, run
    assert {path.name for path in setup.output_dir.glob("checkpoint-*")} == {"checkpoint-8"}
    assert {line["step"]: line["loss_mean"] for line in setup.events("train")} == means and sorted(means) == [4, 8]


def test_a_stop_in_the_last_evaluation_is_no_end(setup):
    path = setup.folder / "val.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in setup.rows * 2000))
    settings = dict(max_steps=3, eval_on_start=False, eval_datasets=[{"path": str(path), "type": "pretokenized", "name": "val"}])
    process = setup.start(**settings)
    wait_for(lambda: len(setup.events("train")) == 3, "step 3", process)
    stop(process)
    assert setup.events("eval") == [] and not (setup.output_dir / "adapter").exists()
    run = setup.train(**dict(settings, eval_max_samples=10))
    assert run.code == 0 and [line["step"] for line in setup.events("eval")] == [3], run
    assert setup.summary()["eval_loss"] == setup.events("eval")[0]["loss"]


def train_with_file_limit(setup, limit_kib, **settings):
    """No file grows above the limit, as on a full disk."""
    command = [str(BINARY), "train", "--profile", str(setup.write_profile(**settings))]
    return subprocess.run(["bash", "-c", f"trap '' XFSZ; ulimit -f {limit_kib}; exec \"$@\"", "bash", *command],
                          capture_output=True, text=True, env=ENVIRONMENT)


def mark_as_run(folder):
    """run.json: makes the program take what it finds in the folder for its own."""
    folder.mkdir(parents=True)
    marker = {"made_by": "lora-train", "version": 1, "run_id": "0" * 32, "started_at": 1, "began_with_overwrite": False}
    (folder / "run.json").write_text(json.dumps(marker))


def test_no_full_disk_hides_how_a_run_ends(setup):
    """Metrics that cannot be written end no run; where the summary cannot be written either, the error that ended the run is reported."""
    mark_as_run(setup.output_dir)
    limit_kib = 1024
    (setup.output_dir / "metrics.jsonl").write_text('{"event": "note"}\n' * (limit_kib * 1024 // 18))
    done = train_with_file_limit(setup, limit_kib, max_steps=5)
    assert done.returncode == 0 and setup.summary()["step"] == 5 and done.stderr.count("File too large") == 1, done.stderr
    setup.rows_file.unlink()
    setup.output_dir = setup.folder / "other"
    mark_as_run(setup.output_dir)
    done = train_with_file_limit(setup, 0, output_dir=str(setup.output_dir))
    assert done.returncode == 3 and "summary.json was not written" in done.stderr, done.stderr


def test_a_folder_that_the_program_did_not_make_is_never_touched(setup):
    """A checkpoint of another tool in the way of the run's own is refused before a weight is read."""
    (setup.output_dir / "adapter").mkdir(parents=True)
    (setup.output_dir / "adapter/data").write_text("mine")
    os.mkfifo(setup.output_dir / "metrics.jsonl")
    before = snapshot(setup.output_dir)
    expect_end(setup.train("--overwrite"), 2, "which lora-train did not write", str(setup.output_dir))
    assert snapshot(setup.output_dir) == before
    shutil.rmtree(setup.output_dir)
    hugging_face = setup.output_dir / "checkpoint-6"
    hugging_face.mkdir(parents=True)
    (hugging_face / "trainer_state.json").write_text(json.dumps({"global_step": 500, "log_history": [], "epoch": 1.0}))
    run = setup.train("--overwrite", max_steps=4, save_steps=1, save_total_limit=1)
    assert run.code == 0 and run.stderr.count("checkpoint-6 was not written by lora-train") == 1, run
    setup.write_model(model_tensors(seed=1))
    run = setup.train(max_steps=6)
    assert run.code == 2 and "checkpoint-6 was not written by lora-train" in run.stderr, run
    assert "may save a checkpoint under that name" in run.stderr and (hugging_face / "trainer_state.json").exists(), run


def test_a_change_may_be_allowed_but_not_an_end_before_the_checkpoint(setup):
    assert setup.train(max_steps=4).code == 0
    expect_end(setup.train("--allow-changed", "max_steps", max_steps=2), 2, "max_steps", "step 4")
    expect_end(setup.train(max_steps=4, thinking="drop"), 2, "thinking: template -> drop", "--allow-changed thinking")
    changed = dict(thinking="drop", overlength="drop", max_seq_len=60, drop_duplicates=True)
    setup.good_run(*[word for key in changed for word in ("--allow-changed", key)], max_steps=6, **changed)
    assert [line["step"] for line in setup.events("train")] == [1, 2, 3, 4, 5, 6]
