"""`generate` and `eval` of several ranks: what one rank gives, in the same order, under each launcher; stops, errors and resuming."""

import json
import os
import signal
import subprocess
from types import SimpleNamespace

import pytest

import tiny_math
from command import BINARY, ENVIRONMENT, good_run, lora_train, stop, wait_for
from eval_task_rows import ROWS, task
from launchers import LAUNCHERS, Job
from tiny_math import FP32, MODEL, QUESTIONS, poisoned_model, write_rows

USAGE, DATA, IO, NUMERIC = 2, 3, 5, 7
MANY = [f"What is {a} plus {b}?" for a in range(10, 22) for b in range(3, 10)]  # more than a round of two ranks


@pytest.fixture
def prompts(tmp_path):
    return write_rows(tmp_path / "prompts.jsonl", [{"prompt": text} for text in QUESTIONS[:11]])


def generate(*arguments, ranks=1, **options):
    return tiny_math.generate("--max-new-tokens", 16, *arguments, *(("--nproc", ranks) if ranks > 1 else ()), **options)


@pytest.mark.parametrize("arguments", [(), ("--temperature", 1.3, "--top-p", 0.9), ("--stop", " is "), ("--compare",)],
                         ids=["greedy", "sampled", "stop strings", "compare"])
def test_answers_are_those_of_one_rank_in_the_same_order(prompts, tiny_math_run, arguments):
    arguments = ("--json", "--prompts", prompts, "--adapter", tiny_math_run, *arguments)
    one = generate(*arguments)
    assert one.code == 0 and len(one.json_lines()) == 11, one
    for ranks in (2, 12) if "--stop" in arguments else (3,):  # also more than prompts
        run = generate(*arguments, ranks=ranks)
        assert run.code == 0 and run.stdout == one.stdout, run
        assert run.stderr.count("new tokens;") == 1, "one report of all"
        assert one.stderr.split(" new tokens")[0].split()[-1] == run.stderr.split(" new tokens")[0].split()[-1]


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_every_launcher_gives_the_answers_of_one_rank(tmp_path, prompts, launcher):
    assert generate("--prompts", prompts, "--output", tmp_path / "one.jsonl").code == 0
    job = Job(launcher, 2, ["--model", MODEL, *FP32, "--max-new-tokens", 16, "--prompts", prompts, "--output", tmp_path / "two.jsonl"],
              tmp_path / "two.err", command="generate")
    assert job.wait() == 0, job.stderr()
    assert (tmp_path / "two.jsonl").read_text() == (tmp_path / "one.jsonl").read_text()


@pytest.fixture
def many(tmp_path):
    """(arguments, the file that they write, its text when it is complete): more prompts than a round of two ranks has, answered by one."""
    prompts = write_rows(tmp_path / "many.jsonl", [{"prompt": text} for text in MANY * 4])
    arguments = ("--model", MODEL, *FP32, "--max-new-tokens", 16, "--prompts", prompts, "--output")
    good_run("generate", *arguments, tmp_path / "one.jsonl")
    return (*arguments, tmp_path / "answers.jsonl"), tmp_path / "answers.jsonl", (tmp_path / "one.jsonl").read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_keeps_the_answers_of_all_ranks(many, number):
    arguments, file, whole = many
    command = list(map(str, [BINARY, "generate", *arguments, "--nproc", 2]))
    process = subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: file.exists() and len(file.read_text().splitlines()) >= 16, "16 answers", process)
    assert "run the same command to resume" in stop(process, number)
    indices = [json.loads(line)["index"] for line in file.read_text().splitlines()]
    assert len(indices) < len(MANY) * 4 and {index % 2 for index in indices} == {0, 1}
    assert lora_train(*command[1:]).code == 0 and file.read_text() == whole


def test_a_rank_that_is_killed_ends_all_and_the_same_command_goes_on_with_other_ranks(many, tmp_path):
    arguments, file, whole = many
    job = Job("nproc", 3, arguments, tmp_path / "err", command="generate")
    wait_for(lambda: file.exists() and len(file.read_text().splitlines()) >= 16, "16 answers", job)
    os.kill(Job.ranks(file)[1], signal.SIGKILL)
    assert job.wait() == 128 + signal.SIGKILL and "rank 1 of 3" in job.stderr(), job.stderr()
    num_kept = len(file.read_text().splitlines())
    for said in (f"{num_kept} of {len(MANY) * 4} answers are already there", f"already complete, {len(MANY) * 4} answers"):
        run = lora_train("generate", *arguments, "--nproc", 2)
        assert run.code == 0 and said in run.stderr and file.read_text() == whole, run


def test_an_error_is_said_once_and_ends_all_ranks(tmp_path, prompts):
    file = tmp_path / "mine.jsonl"
    file.write_text("mine\n")
    for arguments, code, said in ((["generate", "--prompts", tmp_path / "none.jsonl"], IO, "none.jsonl"),
                                  (["generate", "--prompts", "-"], USAGE, "only one process can read"),
                                  (["generate", "--prompts", prompts, "--output", file], USAGE, "mine.jsonl"),
                                  (["eval", "--eval-data", tmp_path / "gone.jsonl"], DATA, "gone.jsonl"), (["eval"], USAGE, "nothing to evaluate on")):
        run = lora_train(*arguments, "--model", MODEL, *FP32, "--nproc", 2)
        assert run.code == code and run.stderr.count("error: ") == 1 and said in run.stderr, run
    assert file.read_text() == "mine\n"
    run = generate("--prompts", prompts, model=poisoned_model(tmp_path), ranks=2)
    assert run.code == NUMERIC and run.stderr.count("not finite") == 1, run


def test_ranks_with_other_prompts_are_refused(tmp_path, prompts):
    file = tmp_path / "of_rank.sh"
    write_rows(tmp_path / "other.jsonl", [{"prompt": text} for text in QUESTIONS[1:12]])
    file.write_text(f'#!/bin/sh\n[ "$RANK" = 1 ] && set -- "$@" --prompts {tmp_path}/other.jsonl || set -- "$@" --prompts {prompts}\n'
                    f'exec {BINARY} "$@"\n')
    file.chmod(0o755)
    job = Job("variables", 2, ["--model", MODEL, *FP32], tmp_path / "err", command="generate", binary=file)
    assert job.wait() == USAGE and "differs from rank 0 in its set of prompts" in job.stderr(), job.stderr()


def evaluate(setup_folder, profile, *arguments, ranks=1):
    file = setup_folder / "profile.json"
    file.write_text(json.dumps(profile))
    answers = setup_folder / f"answers-{ranks}.jsonl"
    tasks = ("--answers", answers) if profile.get("eval_tasks") else ()
    run = good_run("eval", "--profile", file, "--json", *tasks, *arguments, *(("--nproc", ranks) if ranks > 1 else ()))
    return run.json_lines(), answers.read_text() if tasks else ""


def expect_same(one, other):
    """Sums of losses differ in their last bits; counts and figures of examples do not."""
    assert [line.keys() for line in one] == [line.keys() for line in other]
    for mine, theirs in zip(one, other):
        for key, value in mine.items():
            is_sum = "loss" in mine and key in ("loss", "perplexity", "ece", "token_accuracy")
            assert theirs[key] == (pytest.approx(value, rel=1e-9) if is_sum else value), key


@pytest.fixture
def rows(tmp_path):
    for name, lines in ROWS.items():
        write_rows(tmp_path / f"{name}.jsonl", lines)
    return tmp_path


@pytest.mark.parametrize("flags, data", [(("--exact-match", "is ([0-9]+)", "--max-new-tokens", 12), "sums"), (("--choices",), "quiz"), ((), "many")])
def test_eval_has_the_figures_of_one_rank(rows, flags, data):
    profile = {"model": str(MODEL), "eval_datasets": [{"path": str(rows / f"{data}.jsonl")}], "device": "cpu", "precision": "fp32",
               "max_seq_len": 64, "eval_micro_batch_size": 2}
    one, _ = evaluate(rows, profile, *flags)
    for ranks in (2, 4):
        expect_same(one, evaluate(rows, profile, *flags, ranks=ranks)[0])


def test_eval_tasks_have_the_figures_and_answers_of_one_rank(rows):
    folder = SimpleNamespace(folder=rows)
    profile = {"model": str(MODEL), "device": "cpu", "precision": "fp32", "confidence_tokens": {"?": 0.0, ";": 0.5, "!": 1.0},
               "eval_tasks": [task(folder, "conf", "confidence"), task(folder, "quiz", "choices"), task(folder, "sums", "exact_match", regex="is ([0-9]+)")]}
    one, answers = evaluate(rows, profile)
    assert '"logits"' in answers and len(answers.splitlines()) == 9 + 7 + 6
    for ranks in (2, 3):
        assert evaluate(rows, profile, ranks=ranks) == (one, answers)
