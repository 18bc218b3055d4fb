"""The same command over a run that is finished."""

from command import ROOT, expect_end, lora_train
from run_files import snapshot

USAGE, DATA = 2, 3


def test_a_finished_run_is_left_alone_and_data_that_changed_since_are_named(setup):
    assert setup.train().code == 0
    before = snapshot(setup.output_dir)
    run = setup.train("--json")
    assert run.code == 0 and "already complete" in run.stderr and run.json_lines() == [setup.summary()], run
    rows = setup.rows_file.read_text()
    setup.rows_file.write_text(rows + rows.splitlines()[0] + "\n")
    expect_end(setup.train(), USAGE, "is complete, but was trained with different data", "--overwrite")
    expect_end(setup.train("--allow-changed", "datasets"), 0, "already complete")
    setup.rows_file.unlink()
    run = setup.train()
    assert run.code == 0 and "already complete" in run.stderr and snapshot(setup.output_dir) == before, run
    run = setup.train("--resume", setup.output_dir / "checkpoint-3")  # its data are read
    assert run.code == DATA and "rows.jsonl: no such file" in run.stderr, run
    setup.rows_file.write_text(rows)
    expect_end(setup.train("--resume", setup.output_dir / "checkpoint-3"), 0, "all 3 steps are already done: nothing left to train")
    # A mistake about the folder does not hide one about the data.
    run = setup.train(max_steps=1, datasets=[{"path": str(setup.folder / "nope.jsonl"), "type": "pretokenized"}])
    assert run.code == USAGE and "max_steps: 3 -> 1  (may be raised, not lowered)" in run.stderr, run
    assert "nope.jsonl" in run.stderr.split("And in the profile: ")[1], run


def test_check_misses_a_checkpoint_that_is_not_there(setup):
    for folder in (setup.output_dir, setup.folder / "other"):
        run = lora_train("check", setup.write_profile(resume_from_checkpoint=str(folder / "checkpoint-7")))
        assert run.code and "checkpoint-7: no such folder" in run.stderr, run


def test_an_adapter_is_no_teacher_and_an_input_is_prompts(tmp_path):
    folder = tmp_path / "run"
    (folder / "adapter").mkdir(parents=True)
    (folder / "adapter/adapter_config.json").write_text("{}")
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "1 + 1"}\n' * 8)
    run = lora_train("distill", "--teacher", folder, f"model={ROOT / 'examples/tiny-math/model'}", "datasets=[prompts.jsonl]", "output_dir=out", cwd=tmp_path)
    assert run.code == USAGE and f"lora-train merge --adapter {folder} --output-dir {folder}-merged" in run.stderr, run
    expect_end(lora_train("generate", "--model", "m", "--input", "prompts.jsonl", cwd=tmp_path), USAGE, '--input: unknown flag. Did you mean "--prompts"?')
