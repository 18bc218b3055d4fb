"""distill: a teacher's answers, training on them, and the student beside its teacher, in one command."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import yaml

from command import BINARY, ENVIRONMENT, ROOT, expect_end, lora_train, stop, wait_for
from distill_battery import children_of, run_kills
from launchers import free_port
from teacher_server import FAULTS, TeacherServer

USAGE, DATA, FORMAT, IO, STOPPED = 2, 3, 4, 5, 75
MODEL = ROOT / "examples/tiny-math/model"
STAND_IN = ROOT / "tests/support/teacher_server.py"
PROFILE = """\
model: {model}
datasets: [{{path: {folder}/prompts.txt}}]
val_set_size: 8
teacher: {url}
teacher_system: {folder}/long.txt
student_system: Answer shortly.
device: cpu
precision: fp32
max_seq_len: 96
packing: false
global_batch_size: 8
num_epochs: null
max_steps: {steps}
learning_rate: 1.0e-2
eval_steps: off
report_to: none
output_dir: {folder}/run
"""


def one_answer(messages, seed):
    return "The answer is 7."


@pytest.fixture
def place(tmp_path):
    (tmp_path / "prompts.txt").write_text("".join(f"What is {i} plus {i + 1}?\n" for i in range(32)))
    (tmp_path / "long.txt").write_text("You are a mathematician.\nMany rules.\n")
    return tmp_path


def profile(place, url, steps=16, more=""):
    file = place / "my.yaml"
    file.write_text(PROFILE.format(model=MODEL, folder=place, url=url, steps=steps) + more)
    return file


def distill(place, url, *flags, steps=16, more="", environment=()):
    return lora_train("distill", profile(place, url, steps, more), "--max-tokens", 16, *flags,
                      environment={"LORA_TRAIN_HTTP_RETRIES": "8", **dict(environment)})


def rows_of(file):
    return [json.loads(line)["messages"] for line in file.read_text().splitlines()]


def test_a_student_learns_what_its_teacher_answers(place):
    with TeacherServer(faults=FAULTS, share=0.1, reply=one_answer) as server:
        run = distill(place, server.url, "--json", "--price-in", 1, "--price-out", 2, more="gpu_price_per_hour: 3\n")
        assert run.code == 0, run
        assert len(set(server.answered)) == 32
        assert all(body["messages"][0] == {"role": "system", "content": "You are a mathematician.\nMany rules."} for body in server.asked)
        url = server.url
    trained, held_out = rows_of(place / "run/teacher.jsonl"), rows_of(place / "run/teacher_heldout.jsonl")
    assert (len(trained), len(held_out)) == (24, 8) and not {m[1]["content"] for m in trained} & {m[1]["content"] for m in held_out}
    assert all([m["content"] for m in row] == ["Answer shortly.", row[1]["content"], "The answer is 7."] for row in trained + held_out)
    [told] = run.json_lines()
    assert told["agreement"] == {"rows": 8, "before": 0, "after": 1}, told
    assert told["teacher"]["answers"] == 32 and told["teacher"]["rows"] == 24 and told["training"]["steps"] == 16
    assert told["teacher"]["cost_usd"] == pytest.approx((32 * 7 + 2 * 32 * 4) / 1e6)
    assert told["training"]["cost_usd"] == pytest.approx(3 * told["training"]["seconds"] / 3600, rel=0.01)
    assert told["cost_usd"] == pytest.approx(told["teacher"]["cost_usd"] + told["training"]["cost_usd"])
    summary = json.loads((place / "run/summary.json").read_text())
    assert summary["status"] == "done" and summary["ledger"]["total"] == 24 and "agreement" in (place / "run/report.html").read_text()
    # All of it is there: neither the server nor anything else is needed.
    again = distill(place, url, "--price-in", 1, "--price-out", 2, more="gpu_price_per_hour: 3\n", environment={"LORA_TRAIN_HTTP_RETRIES": "0"})
    assert again.code == 0 and "already complete" in again.stderr, again
    assert "on 8 held-out prompts: 0.00% before training, 100.00% after" in again.stdout, again
    assert "lora-train chat --adapter" in again.stdout and "32 answers, 224 prompt and 128 answer tokens" in again.stdout
    expect_end(distill(place, url, "--temperature", 0.5), USAGE, "temperature: 0.0 -> 0.5")
    expect_end(lora_train("train", place / "my.yaml"), USAGE, "my.yaml:4: teacher: is for lora-train distill")


def test_stopped_in_either_phase_the_same_command_goes_on(place):
    with TeacherServer(seconds=0.05, reply=one_answer) as server:
        words = [str(BINARY), "distill", str(profile(place, server.url, 40)), "--max-tokens", "16", "--concurrency", "2"]
        for file in (place / "run/teacher.answers.jsonl", place / "run/metrics.jsonl"):  # in either phase
            process = subprocess.Popen(words, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)
            wait_for(lambda: file.exists() and file.stat().st_size, file.name, process)
            stop(process)
        asked = len(server.asked)
        run = distill(place, server.url, "--concurrency", 2, steps=40)
        assert run.code == 0 and len(server.asked) == asked <= 32 + 2, run  # a stop drops the answers under way
        assert "100.00% after" in run.stdout, run


def test_prompts_held_out_in_a_file_of_their_own(place):
    (place / "held.jsonl").write_text('{"prompt": "What is 90 plus 1?"}\n')
    with TeacherServer(reply=one_answer) as server:
        run = distill(place, server.url, "--set", f"eval_datasets={place}/held.jsonl", "--match", r"\d+", steps=2, more="eval_tasks: []\n")
        assert run.code == 0 and len(rows_of(place / "run/teacher.jsonl")) == 32, run
        assert [m[1]["content"] for m in rows_of(place / "run/teacher_heldout.jsonl")] == ["What is 90 plus 1?"]
        [task] = yaml.safe_load((place / "run/profile.yaml").read_text())["eval_tasks"]
        assert (task["name"], task["regex"], task["max_new_tokens"]) == ("agreement", r"\d+", 16)
        run = distill(place, server.url, "--set", "val_set_size=0", "--output-dir", place / "none", steps=2)
        assert run.code == 0 and "no prompts are held out" in run.stdout, run


def test_equal_prompts_stay_together(place):
    (place / "prompts.txt").write_text("a\nb\na\nc\na\nb\nd\n")
    held = set()
    with TeacherServer(reply=one_answer) as server:
        for seed in range(4):
            run = distill(place, server.url, "--teacher-only", "--output-dir", place / str(seed), "val_set_size=1", f"seed={seed}", "datasets[0].max_samples=6")
            assert run.code == 0 and not (place / str(seed) / "metrics.jsonl").exists(), run
            sets = [[m[1]["content"] for m in rows_of(place / str(seed) / name)] for name in ("teacher_heldout.jsonl", "teacher.jsonl")]
            assert len(set(sets[0])) == 1 and not set(sets[0]) & set(sets[1]) and sorted(sum(sets, [])) == list("aaabbc"), sets
            held.add(sets[0][0])
    assert len(held) > 1, "the seed chooses"


def test_what_fails_in_training_is_said_once(place):
    with TeacherServer(reply=one_answer) as server:
        run = distill(place, server.url, "--json", "max_seq_len=8")
    assert run.code == DATA and run.stderr.count("longer than max_seq_len") == 1, run
    [told] = run.json_lines()
    assert told["error"]["kind"] == "data" and "training ended with exit code 3" in told["error"]["message"], told


def start_flags(port, *more):
    command = " ".join(["exec", sys.executable, str(STAND_IN), "--port", str(port), *more])
    return ["--start-teacher", "--teacher-command", command]


def test_a_teacher_that_is_started_is_waited_for_and_ended(place):
    port = free_port()
    run = distill(place, f"http://127.0.0.1:{port}/v1", *start_flags(port, "--start-s", "0.6"), steps=2)
    assert run.code == 0, run
    said = run.stderr
    assert said.index("starting the teacher: ") < said.index("the teacher answered after") < said.index("ending the teacher") < said.index("adapter: LoRA")
    assert "32 questions, 32 answers" in (place / "run/teacher.log").read_text()
    again = distill(place, f"http://127.0.0.1:{port}/v1", *start_flags(port), steps=2)
    assert again.code == 0 and "starting the teacher" not in again.stderr, again


def test_a_teacher_that_dies_or_never_answers_is_said(place):
    port = free_port()
    url = f"http://127.0.0.1:{port}/v1"
    run = distill(place, url, "--start-teacher", "--teacher-command", "echo out of memory; exit 3")
    assert run.code == IO and "the teacher ended (exit code 3) before it answered" in run.stderr and "\n  out of memory" in run.stderr, run
    expect_end(distill(place, url, *start_flags(port, "--start-s", "60"), "--teacher-timeout", "2"), IO, "raise --teacher-timeout to wait longer", "HTTP 503")
    run = distill(place, url, "--teacher-model", "Qwen/Qwen3-30B-A3B-Instruct-2507", "--tensor-parallel-size", 4, environment={"LORA_TRAIN_HTTP_RETRIES": "0"})
    line = f"vllm serve Qwen/Qwen3-30B-A3B-Instruct-2507 --tensor-parallel-size 4 --max-model-len 32768 --dtype auto --gpu-memory-utilization 0.9 --port {port}"
    assert run.code == IO and line in run.stderr and "--start-teacher" in run.stderr, run


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_teacher_does_not_outlive_the_command(place, number):
    port = free_port()
    words = [str(BINARY), "distill", str(profile(place, f"http://127.0.0.1:{port}/v1")), *start_flags(port, "--start-s", "60")]
    process = subprocess.Popen(words, env=ENVIRONMENT, stderr=subprocess.DEVNULL)
    log = place / "run/teacher.log"
    wait_for(lambda: log.exists() and log.stat().st_size, "the start of the teacher", process)
    [teacher] = children_of(process.pid)
    process.send_signal(number)
    assert process.wait(30) == (STOPPED if number == signal.SIGTERM else -number)
    for _ in range(1000):
        if not os.path.exists(f"/proc/{teacher}"):
            return
        time.sleep(0.01)
    pytest.fail("the teacher is still there")


def test_a_model_of_this_machine_teaches(place):
    run = distill(place, ROOT / "examples/orders/model", "--json", steps=2)
    assert run.code == 0, run
    [told] = run.json_lines()
    assert (told["teacher"]["answers"], told["teacher"]["rows"], told["agreement"]["rows"]) == (32, 24, 8)
    only = distill(place, ROOT / "examples/orders/model", "--teacher-only", "--json", steps=2)
    assert only.code == 0 and only.json_lines()[0]["teacher"]["answers"] == 32, only
    expect_end(distill(place, place / "no-model", steps=2), FORMAT, "no-model")


@pytest.mark.parametrize("flags, said", [
    (["teacher=null", "teacher_system=null", "student_system=null"], "teacher: missing. Name a server"),
    (["teacher=null"], "my.yaml:5: teacher_system: needs a teacher"), (["teacher=http://127.0.0.1:9"], "expected a URL that ends in /v1"),
    (["teacher_system=prompts/gone.txt"], "there is no file prompts/gone.txt"), (["datasets[0].path=gone.txt"], "gone.txt"),
    (["datasets[0].weight=2"], "datasets[0].weight=2: is for examples with answers, but distill reads prompts"),
    (["eval_tasks=[{name: agreement, kind: exact_match, path: my.yaml}]"], '"agreement" is a name that distill uses'),
    (["val_set_size=32"], "val_set_size: holds out all prompts: datasets has only 32"),
    (["--teacher", "http://far.example/v1", "--start-teacher", "--teacher-command", "true"], "starts a server on this machine"),
    (["--start-teacher"], "--teacher-model ORG/NAME"), (["--teacher-command", "true"], "needs --start-teacher"),
    (["--agree", "2"], "needs at least as many --samples"), (["lora_r=0"], "lora_r"), ([], "run/distill.json: was not written by distill")])
def test_mistakes_are_refused_before_anything_is_asked(place, flags, said):
    if not flags:  # a file of somebody else stays
        (place / "run").mkdir()
        (place / "run/distill.json").write_text("{}\n")
    run = distill(place, "http://127.0.0.1:9/v1", *flags)
    assert run.code in (USAGE, DATA) and said in run.stderr, run
    assert run.code == USAGE or "gone.txt" in said, run
    assert not list(place.glob("run/teacher*.jsonl")) and (flags or (place / "run/distill.json").read_text() == "{}\n"), run


def test_killed_at_random_moments_it_resumes(tmp_path):
    assert sum(run_kills(2, 3, tmp_path).values()) == 2
