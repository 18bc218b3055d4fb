"""What a run makes of its output folder: what it deletes, keeps, goes on from and refuses; failures on the way."""

import json
import os
import shutil
import signal
import subprocess

import pytest
import yaml

from command import BINARY, ENVIRONMENT, lora_train, model_tensors, wait_for
from run_files import adapter_bytes, snapshot

STOPPED = 75


def test_a_stop_or_a_failure_before_step_1_does_not_block_the_folder(setup):
    """No checkpoint is owed before step 1: the same command begins anew, without --overwrite."""
    evaluation = dict(eval_datasets=[{"path": str(setup.rows_file), "type": "pretokenized", "name": "val"}])
    run = setup.train("--max-time", "0.001s", **evaluation)
    assert run.code == STOPPED and setup.summary()["step"] == 0 and setup.events("train") == [], run
    whole = (setup.model / "model.safetensors").read_bytes()
    broken = model_tensors()
    broken["model.norm.weight"][0] = float("nan")
    setup.write_model(broken)
    run = setup.train(**evaluation)
    assert run.code == 7, run
    (setup.model / "model.safetensors").write_bytes(whole)
    run = setup.train(**evaluation)
    assert run.code == 0 and "starting over" not in run.stderr, run
    assert [line["step"] for line in setup.events("train")] == [1, 2, 3]
    assert [line["step"] for line in setup.events("eval")] == [0, 3] and len(setup.events("start")) == 1


@pytest.mark.parametrize("closed", [">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_write_into_no_file(setup, closed):
    """The next file that is opened would get their numbers, and the lines of the progress with it."""
    def quantize(name, how):
        command = [BINARY, "quantize", "--model", setup.model, "--output-dir", setup.folder / name]
        return subprocess.run(["sh", "-c", f'exec "$@" {how}', "sh", *map(str, command)], env=ENVIRONMENT).returncode
    assert quantize("usual", "") == 0
    assert quantize("closed", closed) == 5  # the result cannot be printed
    for file in (setup.folder / "usual").iterdir():
        assert (setup.folder / "closed" / file.name).read_bytes() == file.read_bytes(), file.name


def test_a_read_that_the_disk_fails_ends_with_its_code(setup):
    """SIGBUS is what a mapped file that became shorter gives."""
    process = setup.start(max_steps=100000)
    wait_for(lambda: setup.events("train"), "a step", process)
    process.send_signal(signal.SIGBUS)
    assert "a file that was being read became shorter" in process.communicate(timeout=60)[1]
    assert process.returncode == 5


def test_without_a_folder_for_temporary_files_data_is_read_where_it_is(setup):
    run = lora_train("train", "--profile", setup.write_profile(stage_dir="auto"), environment=dict(TMPDIR="/nowhere"))
    assert run.code == 0 and "found no folder for temporary files" in run.stderr, run


def test_a_result_never_names_a_base_on_which_no_step_ran(setup):
    assert setup.train().code == 0
    base = (setup.output_dir / "adapter/base_model.json").read_bytes()
    setup.write_model(model_tensors(seed=1))
    shutil.rmtree(setup.output_dir / "adapter")  # the same command would write it again
    run = setup.train("--allow-changed", "model")
    assert run.code == 2 and "no steps left to train on this one" in run.stderr, run
    run = setup.train("--allow-changed", "model", max_steps=4)
    assert run.code == 0 and (setup.output_dir / "adapter/base_model.json").read_bytes() != base, run


def test_the_last_line_says_how_the_run_ended(setup):
    run = setup.train()
    assert run.stderr.splitlines()[-1].startswith("done: 3 of 3 steps, ") and str(setup.output_dir / "adapter") in run.stderr, run
    run = setup.train("--max-time", "0.001s", output_dir=str(setup.folder / "other"))
    assert run.code == STOPPED and "before the end of step 1; the same command resumes the run" in run.stderr.splitlines()[-1], run


def test_the_written_profile_has_the_numbers_that_auto_became(setup):
    auto = dict(max_seq_len="auto", micro_batch_size="auto")
    assert setup.train(max_steps=2, **auto).code == 0
    written = yaml.safe_load((setup.output_dir / "profile.yaml").read_text())
    assert written["max_seq_len"] == 64 and written["micro_batch_size"] == 4 and written["global_batch_size"] == 4
    assert written["mlp_tile_tokens"] == 0
    assert yaml.safe_load((setup.output_dir / "checkpoint-2/profile.yaml").read_text()) == written
    run = setup.train(max_steps=2, **auto)
    assert run.code == 0 and "already complete" in run.stderr, run
    run = setup.train(max_steps=3, **auto)
    assert run.code == 0 and "resumed" in run.stderr, run


def test_resume_from_a_path_into_a_new_folder_compares_the_profile(setup):
    assert setup.train(max_steps=2).code == 0
    other = dict(output_dir=str(setup.folder / "other"), resume_from_checkpoint=str(setup.output_dir / "checkpoint-2"))
    run = setup.train(max_steps=3, learning_rate=2e-2, **other)
    assert run.code == 2 and "learning_rate: 0.01 -> 0.02" in run.stderr, run
    run = setup.train(max_steps=3, **other)
    assert run.code == 0 and [line["step"] for line in setup.events("train", setup.folder / "other")] == [3], run


def test_the_same_command_with_a_named_checkpoint_goes_on_from_its_own(setup):
    """Stopped, and again: what it has done since is not done once more, also when the named checkpoint is gone."""
    assert setup.train(max_steps=2).code == 0
    other = setup.folder / "other"
    settings = dict(output_dir=str(other), resume_from_checkpoint=str(setup.output_dir / "checkpoint-2"), max_steps=400, save_steps=1000)
    process = setup.start(**settings)
    wait_for(lambda: len(setup.events("train", other)) >= 20, "step 22", process)
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=300)
    assert process.returncode == 75, stderr
    [checkpoint] = other.glob("checkpoint-*")
    run = setup.train(**settings)
    assert run.code == 0 and f"resumed from {checkpoint} after step" in run.stderr, run
    assert [line["step"] for line in setup.events("train", other)] == list(range(3, 401))
    run = setup.train(**settings)
    assert run.code == 0 and "already complete" in run.stderr, run


def test_a_run_that_ends_where_its_named_checkpoint_does_can_be_extended(setup):
    assert setup.train(max_steps=2).code == 0
    other = dict(output_dir=str(setup.folder / "other"))
    run = setup.train(max_steps=2, resume_from_checkpoint=str(setup.output_dir / "checkpoint-2"), **other)
    assert run.code == 0 and (setup.folder / "other/checkpoint-2/manifest.json").exists(), run
    run = setup.train(max_steps=3, **other)
    assert run.code == 0 and "after step 2" in run.stderr, run


def test_a_refused_start_leaves_the_result_of_the_run_that_was_there(setup):
    assert setup.train(max_steps=2).code == 0
    summary = setup.summary()
    tensors = model_tensors()
    tensors["model.norm.weight"] = tensors["model.norm.weight"] * 2
    setup.write_model(tensors)
    assert setup.train(max_steps=3).code == 2
    assert setup.summary() == summary
    setup.write_model(model_tensors())
    run = setup.train(max_steps=2)
    assert run.code == 0 and "already complete" in run.stderr, run


def test_a_damaged_newer_checkpoint_stays_until_something_newer_is_saved(setup):
    settings = dict(save_steps=2, save_total_limit=9)
    assert setup.train(max_steps=6, **settings).code == 0
    (setup.output_dir / "summary.json").unlink()
    manifest = setup.output_dir / "checkpoint-6/manifest.json"
    good = manifest.read_text()
    manifest.write_text(good[:-5])
    run = setup.train("--set", "model=" + str(setup.folder / "gone"), max_steps=6, **settings)
    assert run.code != 0 and manifest.exists(), run
    run = setup.train(max_steps=6, **settings)
    assert run.code == 0 and "checkpoint-6 is skipped" in run.stderr and "after step 4" in run.stderr, run
    assert manifest.read_text() != good[:-5] and (setup.output_dir / "checkpoint-6").exists()


def test_fewer_steps_than_the_checkpoint_are_refused(setup):
    assert setup.train(max_steps=4).code == 0
    run = setup.train("--allow-changed", "max_steps", max_steps=2)
    assert run.code == 2 and "max_steps" in run.stderr and "step 4" in run.stderr, run
    assert [line["step"] for line in setup.events("train")] == [1, 2, 3, 4]


def test_an_allowed_change_of_the_data_options_goes_on(setup):
    assert setup.train(max_steps=2).code == 0
    changed = dict(max_steps=4, overlength="drop", max_seq_len=60)
    assert setup.train("--allow-changed", "max_seq_len", **changed).code == 2
    run = setup.train("--allow-changed", "max_seq_len", "--allow-changed", "overlength", **changed)
    assert run.code == 0 and [line["step"] for line in setup.events("train")] == [1, 2, 3, 4], run


def test_a_run_may_begin_to_drop_duplicates(setup):
    assert setup.train(max_steps=2).code == 0
    run = setup.train("--allow-changed", "drop_duplicates", max_steps=4, drop_duplicates=True)
    assert run.code == 0 and [line["step"] for line in setup.events("train")] == [1, 2, 3, 4], run


def test_an_extended_run_that_dies_is_not_complete(setup):
    assert setup.train(max_steps=3).code == 0
    process = setup.start(max_steps=100000)
    wait_for(lambda: len(setup.events("train")) >= 5, "step 5", process)
    process.kill()
    process.communicate(timeout=300)
    num_lines = len(setup.events("start"))
    process = setup.start(max_steps=100000)
    wait_for(lambda: len(setup.events("start")) > num_lines, "the run going on", process)
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=300)
    assert process.returncode == STOPPED and setup.summary()["status"] == "stopped", stderr


def test_a_mistake_found_late_leaves_the_run_that_overwrite_would_delete(setup):
    assert setup.train(max_steps=2).code == 0
    adapter = adapter_bytes(setup.output_dir)
    run = setup.train("--overwrite", datasets=[{"path": str(setup.folder / "tpyo.jsonl"), "type": "pretokenized"}])
    assert run.code == 3, run
    assert adapter_bytes(setup.output_dir) == adapter and (setup.output_dir / "checkpoint-2/manifest.json").exists()
    assert "tpyo.jsonl" in (setup.output_dir / "run.log").read_text()
    assert setup.train("--overwrite", max_steps=3).code == 0
    assert "tpyo.jsonl" not in (setup.output_dir / "run.log").read_text()


def test_going_back_to_an_older_checkpoint_leaves_the_other_future(setup):
    assert setup.train(max_steps=6, save_steps=2, save_total_limit=9).code == 0
    (setup.output_dir / "summary.json").unlink()
    back = dict(max_steps=6, save_steps=3, save_total_limit=1, resume_from_checkpoint=str(setup.output_dir / "checkpoint-2"))
    run = setup.train(**back)
    assert run.code == 2 and f"would delete the later checkpoints, up to {setup.output_dir}/checkpoint-6" in run.stderr and "another --output-dir" in run.stderr, run
    run = setup.train("--allow-changed", "resume_from_checkpoint", **back)
    assert run.code == 0 and "checkpoint-4: deleted because the run resumes from step" in run.stderr, run
    assert {path.name for path in setup.output_dir.glob("checkpoint-*")} == {"checkpoint-6"}
    assert [line["step"] for line in setup.events("train")] == [1, 2, 3, 4, 5, 6]


def test_the_mean_loss_between_logged_steps_survives_a_resume(setup):
    settings = dict(max_steps=8, logging_steps=4, save_steps=2, save_total_limit=9)
    assert setup.train(**settings).code == 0
    other = setup.folder / "other"
    run = setup.train(output_dir=str(other), resume_from_checkpoint=str(setup.output_dir / "checkpoint-2"), **settings)
    assert run.code == 0, run
    means = [{line["step"]: line["loss_mean"] for line in setup.events("train", folder)} for folder in (setup.output_dir, other)]
    assert means[0] == means[1] and sorted(means[0]) == [4, 8]


def test_the_best_checkpoint_is_kept(setup):
    """Random examples can only be learnt by heart: the loss on other ones rises."""
    path = setup.folder / "val.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in setup.rows[6:]))
    setup.write_rows(setup.rows[:6])
    run = setup.train(max_steps=12, learning_rate=5e-2, eval_steps=1, save_steps=1, save_total_limit=1,
                      eval_datasets=[{"path": str(path), "type": "pretokenized", "name": "val"}], eval_on_start=False)
    assert run.code == 0, run
    best = setup.summary()["best_step"]
    assert best < 12
    assert {path.name for path in setup.output_dir.glob("checkpoint-*")} == {f"checkpoint-{best}", "checkpoint-12"}


def test_a_stop_in_the_last_evaluation_is_no_end(setup):
    path = setup.folder / "val.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in setup.rows * 2000))
    settings = dict(max_steps=3, eval_on_start=False, eval_datasets=[{"path": str(path), "type": "pretokenized", "name": "val"}])
    process = setup.start(**settings)
    wait_for(lambda: len(setup.events("train")) == 3, "step 3", process)
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=300)
    assert process.returncode == STOPPED and setup.events("eval") == [], stderr
    assert not (setup.output_dir / "adapter").exists()
    run = setup.train(**dict(settings, eval_max_samples=10))
    assert run.code == 0 and [line["step"] for line in setup.events("eval")] == [3], run
    assert setup.summary()["eval_loss"] == setup.events("eval")[0]["loss"]


def test_metrics_that_cannot_be_written_end_no_run(setup):
    mark_as_run(setup.output_dir)
    limit_kib = 1024
    lines = '{"event": "note"}\n' * (limit_kib * 1024 // 18)
    (setup.output_dir / "metrics.jsonl").write_text(lines)
    done = train_with_file_limit(setup, limit_kib, max_steps=5)
    assert done.returncode == 0 and setup.summary()["step"] == 5, done.stderr
    assert done.stderr.count("File too large") == 1, done.stderr


def test_an_error_on_a_full_disk_keeps_its_code(setup):
    """The summary cannot be written either: the error that ended the run is the one that is reported."""
    setup.rows_file.unlink()
    mark_as_run(setup.output_dir)
    done = train_with_file_limit(setup, 0)
    assert done.returncode == 3 and "summary.json was not written" in done.stderr, done.stderr


def test_two_runs_never_write_into_one_folder(setup):
    process = setup.start(max_steps=100000)
    wait_for(lambda: len(setup.events("train")) >= 2, "step 2", process)
    run = setup.train(max_steps=100000)
    assert run.code == 2 and f"process {process.pid} " in run.stderr, run
    process.kill()
    process.communicate(timeout=300)
    assert (setup.output_dir / ".lora-train.lock").exists()
    shutil.rmtree(setup.output_dir)
    setup.output_dir.mkdir()
    (setup.output_dir / ".lora-train.lock").write_text("process 1 on nowhere")
    assert setup.train(max_steps=2).code == 0 and not (setup.output_dir / ".lora-train.lock").exists()


def test_dry_run_says_what_the_run_would_say_of_the_folder(setup):
    assert setup.train().code == 0
    before = snapshot(setup.output_dir)
    run = setup.train("--dry-run", learning_rate=2e-2, max_steps=4)
    assert run.code == 2 and "learning_rate: 0.01 -> 0.02" in run.stderr, run
    run = setup.train("--dry-run", max_steps=5)
    assert run.code == 0 and "resumed from" in run.stderr, run
    assert "complete" in setup.train("--dry-run", "--json").json_lines()[0]["reason"]
    assert snapshot(setup.output_dir) == before


def train_with_file_limit(setup, limit_kib, **settings):
    """No file grows above the limit, as on a full disk."""
    command = [str(BINARY), "train", "--profile", str(setup.write_profile(**settings))]
    return subprocess.run(["bash", "-c", f"trap '' XFSZ; ulimit -f {limit_kib}; exec \"$@\"", "bash", *command],
                          capture_output=True, text=True, env=ENVIRONMENT)


def mark_as_run(folder, **changes):
    """run.json: makes the program take what it finds in the folder for its own."""
    folder.mkdir(parents=True, exist_ok=True)
    marker = {"made_by": "lora-train", "version": 1, "run_id": "0" * 32, "started_at": 1, "began_with_overwrite": False}
    (folder / "run.json").write_text(json.dumps({**marker, **changes}))


FOREIGN = {"metrics.jsonl": '{"step": 1, "loss": 2.0}\n', "run.log": "make: *** [all] Error 2\n", "profile.yaml": "mine: true\n",
           "summary.json": '{"status": "done"}', "report.html": "<p>mine</p>", "run.json": '{"run_id": 7}'}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_folder_that_the_program_did_not_make_is_never_touched(setup, name):
    setup.output_dir.mkdir()
    (setup.output_dir / name).write_text(FOREIGN[name])
    for folder in ("adapter", "checkpoint-4", "tensorboard"):
        (setup.output_dir / folder).mkdir()
        (setup.output_dir / folder / "data").write_text("mine")
    before = snapshot(setup.output_dir)
    for arguments in ([], ["--overwrite"], ["--dry-run"]):
        run = setup.train(*arguments)
        assert run.code == 2 and name in run.stderr and str(setup.output_dir) in run.stderr, run
        assert snapshot(setup.output_dir) == before


def test_checkpoints_of_other_tools_are_left_alone(setup):
    """Not with --overwrite, not by rotation, not by going back; in the way of the run's own, they are refused."""
    hugging_face = setup.output_dir / "checkpoint-500"
    hugging_face.mkdir(parents=True)
    (hugging_face / "trainer_state.json").write_text(json.dumps({"global_step": 500, "log_history": [], "epoch": 1.0}))
    for arguments in ([], ["--overwrite"]):
        run = setup.train(*arguments, max_steps=4, save_steps=1, save_total_limit=1)
        assert run.code == 0 and run.stderr.count("checkpoint-500 was not written by lora-train") == 1, run
    run = setup.train(resume_from_checkpoint=str(setup.output_dir / "checkpoint-4"), max_steps=5)
    assert run.code == 0 and (hugging_face / "trainer_state.json").exists(), run
    shutil.rmtree(setup.output_dir)
    (setup.output_dir / "checkpoint-3").mkdir(parents=True)
    (setup.output_dir / "checkpoint-3/weights").write_text("mine")
    weights = bytearray((setup.model / "model.safetensors").read_bytes())
    weights[-1000:] = b"\xff" * 1000  # NaN: names and shapes are read, no weight yet
    (setup.model / "model.safetensors").write_bytes(weights)
    for arguments in ([], ["--dry-run"]):
        run = setup.train(*arguments, max_steps=3)
        assert run.code == 2 and "checkpoint-3 was not written by lora-train" in run.stderr, run
        assert "may save a checkpoint under that name" in run.stderr, run
    assert (setup.output_dir / "checkpoint-3/weights").read_text() == "mine"


def stop_after(setup, steps, *arguments, **settings):
    process = setup.start(*arguments, **settings)
    wait_for(lambda: len(setup.events("train")) >= steps, f"step {steps}", process)
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=300)
    assert process.returncode == STOPPED, stderr


def test_the_same_overwriting_command_goes_on_after_a_stop(setup):
    """A batch system runs the same command again after exit code 75."""
    assert setup.train(max_steps=2).code == 0
    settings = dict(max_steps=400, save_steps=1000)
    stop_after(setup, 5, "--overwrite", **settings)
    stopped_at = setup.summary()["step"]
    run = setup.train("--overwrite", **settings)
    assert run.code == 0 and "resumed from" in run.stderr, run
    assert [line["step"] for line in setup.events("train")] == list(range(1, 401)) and stopped_at >= 5
    run = setup.train("--overwrite", **settings)
    assert run.code == 0 and "resumed from" not in run.stderr and len(setup.events("start")) == 1, run


def test_a_replaced_run_stays_until_the_new_one_has_saved(setup):
    assert setup.train(max_steps=3).code == 0
    adapter = adapter_bytes(setup.output_dir)
    replaced = setup.output_dir / ".lora-train-replaced"
    process = setup.start("--overwrite", max_steps=100000, save_steps=100000, learning_rate=2e-2)
    wait_for(lambda: (replaced / "run.json").exists() and len(setup.events("train")) >= 2, "step 2", process)
    process.kill()
    process.communicate(timeout=300)
    assert adapter_bytes(replaced) == adapter and (replaced / "checkpoint-3/manifest.json").exists()
    run = setup.train("--overwrite", max_steps=3, learning_rate=2e-2)
    assert run.code == 0 and not replaced.exists(), run
    assert adapter_bytes(setup.output_dir) != adapter


def test_a_lost_result_of_a_finished_run_is_written_again(setup):
    assert setup.train(max_steps=3).code == 0
    adapter = adapter_bytes(setup.output_dir)
    shutil.rmtree(setup.output_dir / "adapter")
    run = setup.train(max_steps=3)
    assert run.code == 0 and adapter_bytes(setup.output_dir) == adapter, run
    assert "already complete" in setup.train(max_steps=3).stderr


@pytest.mark.parametrize("name", ["run.log", "metrics.jsonl", "summary.json", ".lora-train.lock", "tensorboard", "profile.yaml"])
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_links_and_pipes_are_refused(setup, name, kind):
    assert setup.train(max_steps=2).code == 0
    target = setup.folder / "mine"
    target.write_text("mine")
    path = setup.output_dir / name
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.symlink_to(target) if kind == "link" else os.mkfifo(path)
    run = setup.train(max_steps=4)
    assert run.code == 2 and name in run.stderr and target.read_text() == "mine", run
