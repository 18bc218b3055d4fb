"""`eval --exact-match` and `eval --choices` on the shipped model; the figures themselves: tests/parity/test_eval_figures.py."""

import json
import signal
import subprocess

import pytest

from command import BINARY, ENVIRONMENT, expect_end, lora_train
from tiny_math import EXAMPLE, FP32, MODEL, completions, poisoned_model, write_rows

HELDOUT = EXAMPLE / "heldout.jsonl"
ROWS = [json.loads(line) for line in HELDOUT.read_text().splitlines()]


def evaluate(*arguments, model=MODEL, data=HELDOUT):
    return lora_train("eval", "--model", model, "--eval-data", data, *FP32, *arguments)


def figures(*arguments, **options):
    run = evaluate("--json", *arguments, **options)
    assert run.code == 0, run
    [line] = run.json_lines()
    return line


def answered(messages, answer):
    return {"messages": [*messages, {"role": "assistant", "content": answer}]}


def test_exact_match_counts_the_answers_that_generate_gives(tmp_path):
    """Of a chat the last answer is asked for; a regex picks the answer out of both."""
    asked = [row["messages"][:-1] for row in ROWS]
    asked += [answered(messages, "I do not know.")["messages"] + messages for messages in asked[:3]]
    prompts = write_rows(tmp_path / "prompts.jsonl", [{"prompt": messages} for messages in asked])
    answers = [line["completion"] for line in completions("--prompts", prompts, "--max-new-tokens", 64)]
    rows = [answered(messages, answer if at % 3 == 0 else answer + " no") for at, (messages, answer) in enumerate(zip(asked, answers))]
    line = figures("--exact-match", "--max-new-tokens", "64", data=write_rows(tmp_path / "own.jsonl", rows))
    assert line["num_answers"] == len(rows) and line["num_matched"] == len(rows[::3])
    assert line["exact_match"] == pytest.approx(len(rows[::3]) / len(rows))
    assert {"name", "loss", "perplexity", "token_accuracy", "ece", "num_tokens"} <= set(line)
    first = write_rows(tmp_path / "first.jsonl", [answered(messages, f"#### {answer.split()[0]}") for messages, answer in zip(asked[:20], answers)])
    assert figures("--exact-match", r"^\s*(?:#### )?(\S+)", "--max-new-tokens", "64", data=first)["exact_match"] == 1


def test_the_table_is_aligned_and_shows_answers_that_are_cut(tmp_path):
    run = evaluate("--exact-match", "--max-samples", "3")
    head, cells = run.stdout.splitlines()
    assert head.endswith("exact match  answers") and "cut" not in head and "lost" not in head and len(head) == len(cells), run
    arguments = ("--exact-match", "--max-new-tokens", "1", "--max-samples", "3")
    head, cells = evaluate(*arguments).stdout.splitlines()
    assert head.endswith("answers  answers cut") and cells.split()[-2:] == ["3", "3"]
    line = figures(*arguments)
    assert line["num_answers"] == line["num_cut"] == 3
    run = evaluate("--choices", data=write_rows(tmp_path / "quiz.jsonl", [{"prompt": "1 plus 1 is", "choices": [" 2", " 3"], "answer": 0}]))
    assert run.stdout.splitlines()[0].split()[-6:] == ["acc", "acc_norm", "choices", "ece", "brier", "examples"], run


def test_examples_that_are_cut_or_lost_are_shown():
    shown = lora_train("tokenize", "--model", MODEL, "--train-data", HELDOUT, "--show", len(ROWS), "--json")
    rows = [line["labels"] for line in shown.json_lines()]
    limit = sorted(map(len, rows))[len(rows) // 2]
    longer = [labels for labels in rows if len(labels) > limit]
    num_masked = sum(set(labels[:limit]) == {-100} for labels in longer)  # no answer in what is left
    assert len(rows) == len(ROWS) and 0 < num_masked < len(longer) < len(rows)
    for overlength, counts, columns in (
            ("truncate", {"num_rows_cut": len(longer) - num_masked, "num_rows_lost": num_masked}, "  examples cut  examples lost"),
            ("drop", {"num_rows_lost": len(longer)}, "  tokens  examples lost")):
        options = ("--set", f"max_seq_len={limit}", "--set", f"overlength={overlength}", "--set", "max_drop_fraction=1")
        line = figures(*options)
        assert {name: line[name] for name in line if name.startswith("num_rows")} == counts, overlength
        head, cells = evaluate(*options).stdout.splitlines()
        assert head.endswith(columns) and len(head) == len(cells), head
        assert list(map(int, cells.split()[-len(counts):])) == list(counts.values()), cells


@pytest.mark.parametrize("number, arguments", [(signal.SIGINT, ()), (signal.SIGTERM, ("--exact-match",)),
                                               (signal.SIGTERM, ("--exact-match", "--json"))])
def test_a_signal_ends_with_75_and_without_figures(tmp_path, number, arguments):
    many = write_rows(tmp_path / "many.jsonl", ROWS * 60)
    command = [BINARY, "eval", "--model", MODEL, "--eval-data", many, *FP32, *arguments]
    process = subprocess.Popen(list(map(str, command)), env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    lines = iter(process.stderr.readline, "")
    assert any("6,000 read" in line for line in lines)  # what follows takes seconds
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=300)
    assert process.returncode == 75 and f"{number.name}: asked to stop; no figures" in stderr, stderr
    if "--json" in arguments:
        error = json.loads(stdout)["error"]
        assert error["kind"] == "stopped" and error["where"] == number.name
    else:
        assert stdout == ""


def test_bad_examples_and_flags_are_refused(tmp_path):
    expect_end(evaluate("--exact-match", "#### ([0-9]+)"), 3, f"{HELDOUT}:1", "does not match the example's own answer")
    run = evaluate("--exact-match", "loss_on=all", "--max-samples", "2")  # a setting, not the regex
    assert run.code == 2 and "loss_on" in run.stderr, run
    quiz = write_rows(tmp_path / "quiz.jsonl", [{"prompt": "word " * 1100, "choices": ["b", "c"], "answer": 1}])
    expect_end(evaluate("--choices", data=quiz), 3, f"{quiz}:1", "1,024")
    expect_end(evaluate("--choices", "--exact-match", data=quiz), 2)


def test_logits_that_are_not_finite_end_with_7(tmp_path):
    model = poisoned_model(tmp_path)
    quiz = write_rows(tmp_path / "quiz.jsonl", [{"prompt": "a", "choices": ["b", "c"], "answer": 1}])
    for arguments, data in ((("--exact-match", "--max-samples", "2"), HELDOUT), (("--choices",), quiz)):
        expect_end(evaluate(*arguments, model=model, data=data), 7)
