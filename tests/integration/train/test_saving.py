"""Saving on disks that are full or come back, and going on where what the run reads has changed."""

import json
import re
import shutil


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


def test_a_changed_base_model_is_refused(setup):
    assert setup.train(max_steps=2).code == 0
    tensors = model_tensors()
    tensors["model.layers.1.mlp.up_proj.weight"] = tensors["model.layers.1.mlp.up_proj.weight"] * 1.01
    setup.write_model(tensors)
    run = setup.train(max_steps=4)
    assert run.code == 2 and "was trained with a different base model" in run.stderr and "--allow-changed model" in run.stderr, run
    assert setup.train("--allow-changed", "model", max_steps=4).code == 0


def test_changed_data_is_refused(setup):
    assert setup.train(max_steps=2).code == 0
    setup.write_rows([*setup.rows[:-1], {"input_ids": [2, 3, 4, 5], "labels": [2, 3, 4, 5]}])
    run = setup.train(max_steps=4)
    assert run.code == 2 and "was trained with different data" in run.stderr and "--allow-changed datasets" in run.stderr, run
    assert setup.train("--allow-changed", "datasets", max_steps=4).code == 0


def test_a_changed_tokenizer_is_refused(setup):
    def write_tokenizer(last):
        vocabulary = {f"<{i}>": i for i in range(63)} | {last: 63}
        (setup.model / "tokenizer.json").write_text(json.dumps({"model": {"type": "BPE", "vocab": vocabulary, "merges": []}}))

    write_tokenizer("a")
    assert setup.train(max_steps=2).code == 0
    write_tokenizer("b")
    run = setup.train(max_steps=4)
    assert run.code == 2 and "was trained with a different tokenizer" in run.stderr and "--allow-changed model" in run.stderr, run
    assert setup.train("--allow-changed", "model", max_steps=4).code == 0


def test_a_changed_chat_template_is_refused(setup):
    template = setup.model / "chat_template.jinja"
    template.write_text("{{ messages }}")
    assert setup.train(max_steps=2).code == 0
    template.write_text("{{ messages }}!")
    run = setup.train(max_steps=4)
    assert run.code == 2 and "was trained with a different chat template" in run.stderr, run
    assert setup.train("--allow-changed", "chat_template", max_steps=4).code == 0


def test_going_on_says_which_checkpoints_were_passed_over_and_why(setup):
    assert setup.train(max_steps=3, save_steps=1, save_total_limit=3).code == 0
    state = setup.output_dir / "checkpoint-3/trainer_state.json"
    state.write_text(state.read_text().replace("3", "4", 1))
    (setup.output_dir / "checkpoint-2/manifest.json").unlink()
    run = setup.train(max_steps=5)
    assert run.code == 0, run
    assert "checkpoint-3 is skipped: trainer_state.json: does not match its hash in the manifest" in run.stderr, run
    assert "checkpoint-2 is skipped" in run.stderr and "is missing: the checkpoint is incomplete" in run.stderr, run
    assert re.search(r"resumed from \S*checkpoint-1 after step 1", run.stderr), run


def test_the_log_says_how_long_training_stood_still_and_when_it_was_durable(setup):
    run = setup.train(max_steps=2, save_steps=1)
    assert run.code == 0, run
    for event in setup.events("checkpoint"):
        assert event["stall_s"] >= 0 and event["save_s"] > 0 and event["path"] == f"checkpoint-{event['step']}"
    assert re.search(r"checkpoint-1: training paused for \d+ ms, on disk after \d+\.\d\d s", run.stderr), run
    assert [event["step"] for event in setup.events("checkpoint")] == [1, 2]
