"""eval_tasks in the loop: when they run, what they write, over ranks and stops. The figures: tests/parity/test_eval_figures.py."""

import json

import pytest
from safetensors.numpy import load_file

from command import Setup, expect_end, good_run, lora_train, stop, wait_for
from eval_task_rows import ROWS, chat, signed, task
from tiny_math import EXAMPLE, write_rows

SIGNS = {"?": 0.0, ";": 0.5, "!": 1.0}  # single tokens of the tokenizer


@pytest.fixture
def setup(tmp_path):
    """The shipped model and examples for each kind of task."""
    setup = Setup(tmp_path)
    for name, rows in ROWS.items():
        write_rows(tmp_path / f"{name}.jsonl", rows)
    setup.profile = {
        "model": str(EXAMPLE / "model"), "datasets": [{"path": str(tmp_path / "train.jsonl")}], "device": "cpu", "precision": "fp32",
        "max_seq_len": 64, "packing": False, "micro_batch_size": 4, "global_batch_size": 8, "max_steps": 6, "learning_rate": 1e-2,
        "lora_r": 4, "lr_scheduler_type": "constant", "warmup_steps": 0, "report_to": "tensorboard", "output_dir": str(setup.output_dir),
        "confidence_tokens": SIGNS, "eval_steps": 2}
    return setup


def tasks(setup):
    return [task(setup, "conf", "confidence"), task(setup, "quiz", "choices", every=3), task(setup, "sums", "exact_match", regex="is ([0-9]+)", max_samples=4)]


def figures(lines):
    """(step, name) -> the figures of a line, without times."""
    return {(line["step"], line["name"]): {key: value for key, value in line.items() if key not in ("eval_s", "spans", "event")}
            for line in lines}


def answers_of(folder):
    return [json.loads(line) for line in (folder / "eval_answers.jsonl").open()]


def test_tasks_run_when_they_are_due_and_are_in_every_file(setup):
    run = setup.good_run("--json", eval_tasks=tasks(setup), eval_datasets=[{"path": str(setup.folder / "sums.jsonl"), "name": "loss"}])
    found = figures(setup.events("eval"))
    assert [step for step, name in found if name == "conf"] == [0, 2, 4, 6]
    assert [step for step, name in found if name == "quiz"] == [0, 3, 6], "every: 3"
    assert [step for step, name in found if name == "loss"] == [0, 2, 4, 6]
    conf, quiz, sums, loss = (found[6, name] for name in ("conf", "quiz", "sums", "loss"))
    assert set(conf) == {"step", "name", "kind", "accuracy", "ece", "ece_equal_mass", "brier", "auroc", "mean_confidence",
                         "over_confidence", "num_rows", "bins"}
    assert set(quiz) == {"step", "name", "kind", "accuracy", "ece", "brier", "num_rows", "bins"}
    assert set(sums) == {"step", "name", "kind", "accuracy", "num_rows"} and sums["num_rows"] == 4
    assert "kind" not in loss and sum(count for count, _, _ in loss["bins"]) == loss["num_tokens"]
    assert conf["accuracy"] == pytest.approx(sum(row["correct"] for row in ROWS["conf"]) / 9)
    assert conf["over_confidence"] == pytest.approx(conf["mean_confidence"] - conf["accuracy"])
    summary = run.json_lines()[-1]
    assert summary["eval_tasks"]["conf"] == {key: value for key, value in conf.items() if key not in ("step", "name", "bins")}
    assert 0 < summary["eval_share"] < 1 and ", conf accuracy " in run.stderr.splitlines()[-1], run
    assert f"step 6: sums: accuracy {100 * sums['accuracy']:.2f}%, 4 examples" in run.stderr, run
    answers = answers_of(setup.output_dir)
    assert [(a["name"], a["step"]) for a in answers] == [(name, step) for name, count in (("conf", 8), ("quiz", 7), ("sums", 4))
                                                         for step in (0, 6) for _ in range(count)]
    first = answers[0]
    assert first["source"] == f"{setup.folder}/conf.jsonl:1" and first["prompt"].endswith("What is 50 plus 3?<|im_end|>\n<|im_start|>assistant\n")
    assert (first["expected"], first["answer"], first["is_right"]) == (None, "50 plus 3 is 53", True) and 0 < first["confidence"] < 1
    of_sums = next(a for a in answers if a["name"] == "sums")
    assert of_sums["expected"] == "73" and "confidence" not in of_sums
    # What `eval` says of the result is what the run said at its end.
    run = good_run("eval", "--profile", setup.profile_file, "--adapter", setup.output_dir / "adapter", "--json")
    by_name = {line["name"]: line for line in run.json_lines()}
    assert by_name["conf"] == {key: value for key, value in conf.items() if key != "step"}
    assert by_name["sums"]["accuracy"] == sums["accuracy"] and by_name["quiz"]["brier"] == quiz["brier"]
    table = lora_train("eval", "--profile", setup.profile_file).stdout
    assert "\n\ntask  " in table and len({len(line) for line in table.split("\n\n")[1].splitlines()}) == 1, table
    two = setup.folder / "two"
    setup.good_run("--nproc", "2", eval_tasks=tasks(setup), max_steps=2, micro_batch_size=2, report_to="none", output_dir=str(two))
    of_two = figures(setup.events("eval", two))
    at_start = {key: figure for key, figure in of_two.items() if key[0] == 0}
    assert len(at_start) == 3 and all(found[key] == figure for key, figure in at_start.items())
    first_answers = [[line for line in answers_of(folder) if line["step"] == 0] for folder in (two, setup.output_dir)]
    assert first_answers[0] == first_answers[1] != []
    tags = b"".join(path.read_bytes() for path in (setup.output_dir / "tensorboard").iterdir())
    assert b"eval/conf/ece" in tags and b"eval/loss" in tags and b"bins" not in tags


def test_an_example_with_choices_is_right_where_the_model_chooses_right(setup):
    """Forced choice: the accuracy of a confidence task is that of the same examples as multiple choice."""
    forced, quiz = [], []
    for a in range(20, 30):
        choices = [f"{a} plus 3 is {a + 3 + wrong}" for wrong in (0, 1, 2)]
        question = {"role": "user", "content": f"What is {a} plus 3?"}
        quiz.append({"messages": [question], "choices": choices, "answer": a % 3})
        forced.append(dict(quiz[-1], messages=[question, {"role": "assistant", "content": choices[0] + "?;!"[a % 3]}]))
    for name, rows in (("forced", forced), ("same", quiz)):
        write_rows(setup.folder / f"{name}.jsonl", rows)
    assert setup.train(eval_tasks=[task(setup, "forced", "confidence"), task(setup, "same", "choices")], max_steps=1, report_to="none").code == 0
    found = figures(setup.events("eval"))
    assert found[0, "forced"]["accuracy"] == found[0, "same"]["accuracy"] > 0
    assert found[0, "forced"]["accuracy"] < 1, "a test that cannot fail"
    shown = [answer for answer in answers_of(setup.output_dir) if answer["step"] == 0]
    pairs = {name: [(a["expected"], a["answer"], a["is_right"]) for a in shown if a["name"] == name] for name in ("forced", "same")}
    assert pairs["forced"] == pairs["same"] and len(pairs["same"]) == 8


def test_the_best_step_and_the_end_may_be_those_of_a_task(setup):
    path = str(write_rows(setup.folder / "two.jsonl", [signed(50, correct=True), signed(51, correct=True)]))
    few = dict(task(setup, "few", "confidence"), path=path)
    changes = dict(eval_tasks=[*tasks(setup), few], metric_for_best_model="conf.ece", load_best_model_at_end=True, save_steps="off",
                   early_stopping_patience=2, max_steps=40, learning_rate=5e-2, report_to="none")
    run = setup.good_run(**changes)
    assert f"eval_tasks[3]: no example of {path} has ; of confidence_tokens" in run.stderr, run
    assert {line["auroc"] for line in setup.events("eval") if line["name"] == "few"} == {None}, "all answers were right"
    summary, found = setup.summary(), figures(setup.events("eval"))
    ece = {step: line["ece"] for (step, name), line in found.items() if name == "conf" and step > 0}
    best = min(ece, key=ece.get)
    assert summary["best_step"] == summary["adapter_step"] == best and summary["best_metric"] == ece[best]
    assert summary["step"] == best + 4 < 40 and summary["reason"] == f"early stopping: conf.ece did not improve in 2 evaluations; best at step {best}"
    last = summary["step"]
    assert (last, "quiz") in found, "a task that was not due is evaluated too where a patience ends the run"
    assert summary["eval_loss"] is None and "the best of conf.ece" in run.stderr


def test_a_task_may_change_on_resume(setup):
    assert setup.train(eval_tasks=tasks(setup), report_to="none", max_steps=2).code == 0
    setup.good_run(eval_tasks=[task(setup, "sums", "exact_match", every=1)], report_to="none", max_steps=3)
    assert [(line["step"], line["name"]) for line in setup.events("eval")][-1] == (3, "sums")
    expect_end(setup.train(eval_tasks=[], report_to="none", max_steps=4, confidence_tokens={"?": 0, "!": 1}), 2, "confidence_tokens: ")


def test_a_run_that_stops_inside_an_evaluation_goes_on_bit_for_bit(setup):
    changes = dict(eval_tasks=[task(setup, "conf", "confidence"), task(setup, "many", "exact_match", max_new_tokens=200)], report_to="none",
                   metric_for_best_model="conf.brier", load_best_model_at_end=True, max_steps=4)
    setup.good_run(**changes)
    pieces = setup.folder / "pieces"
    process = setup.start(**dict(changes, output_dir=str(pieces)))
    is_inside = lambda: any(line["step"] == 2 for line in setup.events("eval", pieces))  # noqa: E731
    wait_for(is_inside, "the first task of the evaluation after step 2", process)
    stop(process)
    assert (2, "many") not in figures(setup.events("eval", pieces))
    assert json.loads((pieces / "summary.json").read_text())["step"] == 2
    expect_end(setup.train(**dict(changes, output_dir=str(pieces))), 0, "resumed from")
    assert figures(setup.events("eval", pieces)) == figures(setup.events("eval"))
    assert answers_of(pieces) == answers_of(setup.output_dir)
    for folder in ("adapter", "checkpoint-4"):
        ours, theirs = (load_file(at / folder / "adapter_model.safetensors") for at in (pieces, setup.output_dir))
        assert ours.keys() == theirs.keys() and all((ours[name] == theirs[name]).all() for name in ours)
    summary = json.loads((pieces / "summary.json").read_text())
    assert [summary[key] for key in ("best_step", "best_metric", "eval_tasks")] == [setup.summary()[key] for key in ("best_step", "best_metric", "eval_tasks")]


def bad_rows(setup, name, kind, *rows):
    return dict(eval_tasks=[dict(task(setup, name, kind), path=str(write_rows(setup.folder / "bad.jsonl", rows)))])


BAD = {  # what is wrong: the changes of the profile, a part of the message, the exit code of train; of check if it is another
    "an example without a token": (lambda s: bad_rows(s, "conf", "confidence", signed(50, correct=True), chat("a?", "b", correct=True)),
                                   "bad.jsonl:2: has no confidence token in its last answer", 3, 0),
    "correct is no flag": (lambda s: bad_rows(s, "conf", "confidence", signed(50, correct=1)), "bad.jsonl:1: correct is number, expected true or false", 3, 0),
    "no prompt": (lambda s: bad_rows(s, "sums", "exact_match", {"text": "a"}), "bad.jsonl:1: has an answer but no prompt", 3, 0),
    "no one token": (lambda s: dict(eval_tasks=[task(s, "conf", "confidence")], confidence_tokens={"<conf_0>": 0, "!": 1}),
                     'confidence_tokens: "<conf_0>" is', 2, 2),
    "a regex that does not match": (lambda s: dict(eval_tasks=[task(s, "sums", "exact_match", regex="#### ([0-9]+)")]),
                                    "sums.jsonl:1: the regex of eval_tasks[0].regex does not match the example's own answer", 3, 0),
    "no file": (lambda s: dict(eval_tasks=[task(s, "gone", "exact_match")]), "gone.jsonl: no such file", 3, 2),
    "an unknown metric": (lambda s: dict(eval_tasks=[task(s, "conf", "confidence")], metric_for_best_model="conf.ecee"),
                          'metric_for_best_model: no evaluation has "conf.ecee". Did you mean "conf.ece"?', 2, 2),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_sentence_before_any_computing(setup, name):
    change, part, code, code_of_check = BAD[name]
    profile = setup.write_profile(**change(setup))
    run = lora_train("train", "--profile", profile)
    assert run.code == code and part in run.stderr and run.stderr.count("error: ") == 1, run
    assert not setup.events("train") and not setup.events("eval") and "weights" not in run.stderr, run
    check = lora_train("check", "--profile", profile)
    assert check.code == code_of_check and (code_of_check == 0 or part in check.stderr), check


def test_all_answers_need_a_task_and_replace_no_file_of_others(setup):
    theirs = setup.folder / "sums.jsonl"
    before = theirs.read_bytes()
    for changes, said in ((dict(eval_datasets=[str(theirs)]), "--answers: needs eval_tasks"), (dict(eval_tasks=[task(setup, "conf", "confidence")]), str(theirs))):
        run = lora_train("eval", "--profile", setup.write_profile(**changes), "--answers", theirs)
        assert run.code == 2 and said in run.stderr and theirs.read_bytes() == before, run
