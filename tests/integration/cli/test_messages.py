"""What is said where something is wrong: all at once, each thing once, and only what helps."""

import shutil

from command import lora_train


def test_several_wrong_flags_are_told_at_once(setup):
    run = lora_train("train", setup.write_profile(), "--lora-rr", "8", "--learning-rate", "fast", "--max-tme", "2h", "--nproc", "0", "--no-packing")
    assert run.code == 2 and not setup.output_dir.exists(), run
    for line in ('--lora-rr: unknown flag. Did you mean "--lora-r"?', "--learning-rate: ", '--max-tme: unknown flag. Did you mean "--max-time"?',
                 '--nproc: got "0"', "--no-packing: unknown flag. Switch it off with --packing false."):
        assert line in run.stderr, (line, run.stderr)
    run = lora_train("compare", setup.folder, "--srot", "eval_loss", "--revers")
    assert run.code == 2 and "--srot: unknown flag" in run.stderr and "--revers: unknown flag" in run.stderr and "eval_loss:" not in run.stderr, run


def test_a_flag_of_another_trainer_names_it(setup):
    for flag in ("--group-by-length", "--group_by_length"):
        run = lora_train("train", setup.write_profile(), flag)
        assert run.code == 2 and f"{flag}: is a key of Axolotl: run `lora-train convert FILE`." in run.stderr, run


def test_a_refused_resume_offers_only_what_helps(setup):
    assert setup.train(max_steps=2).code == 0
    run = setup.train(max_steps=2, learning_rate=3e-4, seed=7)
    assert run.code == 2 and "\n  --allow-changed learning_rate --allow-changed seed  continues with the changes" in run.stderr, run
    run = setup.train(max_steps=2, learning_rate=3e-4, lora_r=8)
    assert run.code == 2 and "no checkpoint fits this" in run.stderr and "--allow-changed learning_rate" not in run.stderr, run


def test_a_mistake_on_the_command_line_says_each_thing_once(setup):
    run = lora_train("train", setup.write_profile(metric_for_best_model="eval_perplexity"), "max_steps=0", f"eval_tasks=[{{name: a, kind: {'x' * 40}}}]")
    assert run.code == 2 and 'max_steps=0: got "0", expected' in run.stderr and "eval_tasks=...: eval_tasks[0].kind: got" in run.stderr, run
    assert "metric_for_best_model: eval_perplexity is read as perplexity\n" in run.stderr, run
    missing = [{"path": "gone.jsonl", "type": "pretokenized"}]
    run = setup.train(datasets=missing, eval_datasets=missing)
    assert run.code == 3 and run.stderr.count("no such file, folder or glob") == 2 and len(max(run.stderr.splitlines(), key=len)) < 250, run


def test_the_folder_of_a_failed_start_is_taken_without_a_word(setup):
    assert setup.train(datasets=[{"path": "gone.jsonl", "type": "pretokenized"}]).code == 3 and setup.summary()["status"] == "failed"
    run = setup.train(lora_r=2)
    assert run.code == 0 and setup.summary()["status"] == "done" and "starting over" not in run.stderr, run
    # one that failed later: the folder has a profile and the start in metrics.jsonl
    other = setup.folder / "other"
    assert setup.train(output_dir=str(other)).code == 0
    for entry in other.iterdir():
        if entry.name not in ("run.json", "run.log", "profile.yaml", "metrics.jsonl", "summary.json"):
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    start = (other / "metrics.jsonl").read_text().splitlines(keepends=True)[0]
    (other / "metrics.jsonl").write_text(start)
    run = setup.train(output_dir=str(other), lora_r=2)
    assert run.code == 0 and str(other) not in "".join(line for line in run.stderr.splitlines() if "again" in line), run
