"""Saving on disks that are full or come back, and going on where what the run reads has changed."""

import json
import re
import shutil

import pytest
from command import model_tensors, wait_for
from long_run import LongRun, amount, checkpoint_steps
from run_files import used_bytes


def test_training_goes_on_while_saves_fail(tmp_path, small_disk):
    run = LongRun(tmp_path)
    run.learn_what_to_expect()
    disk = small_disk(8 << 20)
    output_dir = disk / "run"
    profile = tmp_path / "run.json"
    profile.write_text(json.dumps(dict(run.profile, **run.settings(output_dir=str(output_dir), max_failed_saves=1000))))
    process = run.begin(output_dir, slow_sync_ms=5)
    wait_for(lambda: checkpoint_steps(output_dir), "the first checkpoint", process)
    with open(disk / "filler", "wb", buffering=0) as filler:
        try:
            while True:
                filler.write(bytes(4096))
        except OSError:
            pass
    kept = checkpoint_steps(output_dir)
    lines = []
    # stderr says it while the disk, and with it run.log, is full.
    for line in process.stderr:
        lines.append(line)
        if "failed (" in line:
            break
    assert re.search(r"warning: saving checkpoint-\d+ failed \(\d+ in a row\).*No space left on device", lines[-1]), lines
    assert set(kept) & set(checkpoint_steps(output_dir)), "an earlier checkpoint stays"
    (disk / "filler").unlink()
    stderr = process.communicate(timeout=300)[1]
    assert process.returncode == 0, stderr
    assert run.outcome(output_dir) == run.expected


def test_too_many_failed_saves_end_the_run_with_the_last_checkpoint_intact(tmp_path, small_disk, record_property):
    run = LongRun(tmp_path)
    run.learn_what_to_expect()
    whole = tmp_path / "whole"
    disk = small_disk(64 << 20)
    output_dir = disk / "run"
    sizes = amount(6, 64)
    need = used_bytes(whole)
    ends = {0: 0, 5: 0}
    for i in range(sizes):
        shutil.rmtree(output_dir, ignore_errors=True)
        small_disk(max(4096, need * 12 * i // (10 * (sizes - 1))))
        process = run.begin(output_dir)
        stderr = process.communicate(timeout=300)[1]
        assert process.returncode in ends, f"{i}: {process.returncode}\n{stderr}"
        ends[process.returncode] += 1
        if process.returncode == 5:
            assert "No space left on device" in stderr, stderr
        small_disk(64 << 20)
        run.finish(output_dir, f"after a disk of {i} / {sizes - 1} of 120% of the need")
    record_property("shown", f"durability: {sizes} runs on disks of 0 to 120% of the need: {ends[5]} ended with exit code 5, {ends[0]} did not; "
                    "all went on to the same bits when there was room")
    assert ends[0] and ends[5]


def write_tokenizer(setup, last):
    vocabulary = {f"<{i}>": i for i in range(63)} | {last: 63}
    (setup.model / "tokenizer.json").write_text(json.dumps({"model": {"type": "BPE", "vocab": vocabulary, "merges": []}}))


def write_template(setup, text):
    (setup.model / "chat_template.jinja").write_text(text)


CHANGED = {  # what is written before and after; what the message names, what allows it
    "base_model": (lambda s: None, lambda s: s.write_model(model_tensors(seed=1)), "base model", "model"),
    "data": (lambda s: None, lambda s: s.write_rows([*s.rows[:-1], {"input_ids": [2, 3, 4, 5], "labels": [2, 3, 4, 5]}]), "data", "datasets"),
    "tokenizer": (lambda s: write_tokenizer(s, "a"), lambda s: write_tokenizer(s, "b"), "tokenizer", "model"),
    "chat_template": (lambda s: write_template(s, "{{ messages }}"), lambda s: write_template(s, "{{ messages }}!"), "chat template", "chat_template"),
}


@pytest.mark.parametrize("what", CHANGED, ids="changed_{}".format)
def test_what_the_run_reads_is_the_same_when_it_goes_on(setup, what):
    before, after, name, allowed = CHANGED[what]
    before(setup)
    assert setup.train(max_steps=2).code == 0
    after(setup)
    run = setup.train(max_steps=4)
    assert run.code == 2 and f"was trained with {'' if what == 'data' else 'a '}different {name}" in run.stderr, run
    assert f"--allow-changed {allowed}" in run.stderr and setup.train("--allow-changed", allowed, max_steps=4).code == 0, run


def test_going_on_says_which_checkpoints_were_passed_over_and_why(setup):
    run = setup.train(max_steps=3, save_steps=1, save_total_limit=3)
    assert re.search(r"checkpoint-1: training paused for \d+ ms, on disk after \d+\.\d\d s", run.stderr), run
    assert [event["step"] for event in setup.events("checkpoint")] == [1, 2, 3]
    for event in setup.events("checkpoint"):
        assert event["stall_s"] >= 0 and event["save_s"] > 0 and event["path"] == f"checkpoint-{event['step']}"
    state = setup.output_dir / "checkpoint-3/trainer_state.json"
    state.write_text(state.read_text().replace("3", "4", 1))
    (setup.output_dir / "checkpoint-2/manifest.json").unlink()
    run = setup.good_run(max_steps=5)
    assert "checkpoint-3 is skipped: trainer_state.json: does not match its hash in the manifest" in run.stderr, run
    assert "checkpoint-2 is skipped" in run.stderr and "is missing: the checkpoint is incomplete" in run.stderr, run
    assert re.search(r"resumed from \S*checkpoint-1 after step 1", run.stderr), run
