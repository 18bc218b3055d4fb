"""`eval --exact-match` and `eval --choices` on the shipped model; the figures themselves: tests/parity/test_eval_figures.py."""

import json
import signal
import subprocess

import pytest

from command import BINARY, ENVIRONMENT, lora_train
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


@pytest.fixture(scope="module")
def answers():
    """The model's own greedy answers to the held-out questions."""
    return [line["completion"] for line in completions("--prompts", HELDOUT, "--max-new-tokens", 64)]


def test_exact_match_counts_the_answers_that_generate_gives(tmp_path, answers):
    rows = [dict(row, messages=row["messages"][:-1] + [{"role": "assistant", "content": answer if at % 3 == 0 else answer + " no"}])
            for at, (row, answer) in enumerate(zip(ROWS, answers))]
    line = figures("--exact-match", "--max-new-tokens", "64", data=write_rows(tmp_path / "own.jsonl", rows))
    assert line["num_answers"] == len(ROWS) and line["num_matched"] == len(ROWS[::3])
    assert line["exact_match"] == pytest.approx(len(ROWS[::3]) / len(ROWS))
    assert {"name", "loss", "perplexity", "token_accuracy", "ece", "num_tokens"} <= set(line)


def test_a_regex_picks_the_answer_out_of_both(tmp_path, answers):
    rows = [{"messages": row["messages"][:-1] + [{"role": "assistant", "content": f"#### {answer.split()[0]}"}]}
            for row, answer in zip(ROWS[:20], answers)]
    data = write_rows(tmp_path / "first.jsonl", rows)
    assert figures("--exact-match", "--max-new-tokens", "64", data=data)["exact_match"] == 0
    assert figures("--exact-match", r"^\s*(?:#### )?(\S+)", "--max-new-tokens", "64", data=data)["exact_match"] == 1


def test_of_a_chat_the_last_answer_is_asked_for(tmp_path):
    chats = [{"messages": [*row["messages"][:-1], {"role": "assistant", "content": "I do not know."}, row["messages"][0]]}
             for row in ROWS[:3]]
    lines = completions("--prompts", write_rows(tmp_path / "chats.jsonl", chats), "--max-new-tokens", 64)
    rows = [{"messages": chat["messages"] + [{"role": "assistant", "content": line["completion"]}]} for chat, line in zip(chats, lines)]
    assert figures("--exact-match", "--max-new-tokens", "64", data=write_rows(tmp_path / "own.jsonl", rows))["exact_match"] == 1


def test_max_samples_takes_the_first_examples():
    assert figures("--exact-match", "--max-samples", "7")["num_answers"] == 7


def test_the_table_is_aligned(tmp_path):
    run = evaluate("--exact-match", "--max-samples", "3")
    lines = run.stdout.splitlines()
    assert run.code == 0 and len(lines) == 2 and lines[0].endswith("exact match  answers"), run
    assert "cut" not in lines[0] and "lost" not in lines[0], run
    assert len(lines[0]) == len(lines[1]), run
    quiz = write_rows(tmp_path / "quiz.jsonl", [{"prompt": "1 plus 1 is", "choices": [" 2", " 3"], "answer": 0}])
    run = evaluate("--choices", data=quiz)
    assert run.code == 0 and run.stdout.splitlines()[0].split()[-6:] == ["acc", "acc_norm", "choices", "ece", "brier", "examples"], run


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


def test_answers_that_are_cut_are_shown():
    arguments = ("--exact-match", "--max-new-tokens", "1", "--max-samples", "3")
    assert figures(*arguments)["num_cut"] == 3
    head, cells = evaluate(*arguments).stdout.splitlines()
    assert head.endswith("answers  answers cut") and cells.split()[-2:] == ["3", "3"]


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
    run = evaluate("--exact-match", "#### ([0-9]+)")
    assert run.code == 3 and f"{HELDOUT}:1" in run.stderr and "does not match the example's own answer" in run.stderr, run
    run = evaluate("--exact-match", "loss_on=all", "--max-samples", "2")  # a setting, not the regex
    assert run.code == 2 and "loss_on" in run.stderr, run
    quiz = write_rows(tmp_path / "quiz.jsonl", [{"prompt": "word " * 1100, "choices": ["b", "c"], "answer": 1}])
    run = evaluate("--choices", data=quiz)
    assert run.code == 3 and f"{quiz}:1" in run.stderr and "1,024" in run.stderr, run
    run = evaluate("--choices", "--exact-match", data=quiz)
    assert run.code == 2, run


def test_logits_that_are_not_finite_end_with_7(tmp_path):
    model = poisoned_model(tmp_path)
    quiz = write_rows(tmp_path / "quiz.jsonl", [{"prompt": "a", "choices": ["b", "c"], "answer": 1}])
    for arguments, data in ((("--exact-match", "--max-samples", "2"), HELDOUT), (("--choices",), quiz)):
        run = evaluate(*arguments, model=model, data=data)
        assert run.code == 7, run
