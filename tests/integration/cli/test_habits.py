"""What people type out of habit, where a run has to answer: a profile as the only word, the folder of a run as its adapter, Ctrl-C.
What is refused, and in which words, is in habits_test, open_model_test and command_line_test."""

import json
import re
import shlex
import signal
import subprocess

import pytest

from command import BINARY, ENVIRONMENT, lora_train, stop, wait_for
from tiny_math import MODEL


def test_a_run_says_in_a_line_each_what_it_does_and_what_comes_next(setup):
    """From a profile as a word and a key as a flag. The next commands work, and the report has its figures without JavaScript."""
    run = lora_train("train", setup.write_profile(), "--lora-r", "2")
    assert run.code == 0 and json.loads((setup.output_dir / "adapter/adapter_config.json").read_text())["r"] == 2, run
    said = run.stderr.splitlines()
    for line in (r"device: cpu.*, \d+ threads?, precision fp32$", r"model: .*, Qwen2ForCausalLM, [\d,]+ parameters$",
                 r"adapter: LoRA, r 2, alpha [\d.]+, on \d+ linears; [\d,]+ of [\d,]+ parameters are trained"):
        assert [one for one in said if re.match(line, one)], (line, run)
    assert f"output: {setup.output_dir}" in said and f"report: {setup.output_dir}/report.html" in said, run
    assert "only 3 steps in total, which may be too few to learn much. Raise max_steps or num_epochs" in run.stderr, run
    log = (setup.output_dir / "run.log").read_text()
    assert "activations: at most" in log and "activations: at most" not in run.stderr, run

    page = (setup.output_dir / "report.html").read_text()
    plain = page[page.index("<noscript>"):page.index("</noscript>")]
    assert "<li>steps 3</li>" in plain and "final training loss" in plain and "metrics.jsonl" in plain, plain

    [generate, merge] = [line.removeprefix("next: ").split() for line in said if line.startswith("next: ")]
    assert said[-1].startswith("done: ") and generate[:4] == ["lora-train", "generate", "--adapter", str(setup.output_dir)], run
    merged = lora_train(*merge[1:], "--no-check")
    assert merged.code == 0 and (setup.folder / "run-merged/model.safetensors").exists(), merged


def chats(answer="7"):
    return [{"messages": [{"role": "user", "content": f"What's {i} plus 4?"}, {"role": "assistant", "content": answer}]} for i in range(4)]


def test_a_run_is_an_adapter_that_knows_its_base(setup):
    """The command at its end asks what it was trained for, and answers like one that names model and adapter."""
    setup.write_rows(chats())
    run = setup.train(model=str(MODEL), datasets=[str(setup.rows_file)], max_steps=1)
    generate = shlex.split(next(line for line in run.stderr.splitlines() if line.startswith("next: lora-train generate")))
    assert generate[3:] == ["--adapter", str(setup.output_dir), "--prompt", "What's 0 plus 4?"], run
    short = lora_train(*generate[2:], "--max-new-tokens", "4", "--set", "device=cpu", "--json")
    named = subprocess.run([BINARY, "generate", "--model", MODEL, "--adapter", setup.output_dir / "adapter", "--prompts", "-", "--max-new-tokens", "4", "--json",
                            "--set", "device=cpu"], input='{"prompt": "What\'s 0 plus 4?"}\n', capture_output=True, text=True, env=ENVIRONMENT)
    assert named.returncode == short.code == 0, (named.stderr, short)
    assert json.loads(named.stdout)["completion_ids"] == short.json_lines()[0]["completion_ids"]


def test_ctrl_c_is_answered_at_once_and_the_same_command_goes_on(setup):
    process = setup.start(max_steps=100_000, logging_steps=1000, num_epochs="unset")
    wait_for(lambda: (setup.output_dir / "metrics.jsonl").exists() and "start" in (setup.output_dir / "metrics.jsonl").read_text(), "its start", process)
    lines = stop(process, signal.SIGINT).splitlines()
    assert lines.count("stopping after this step; again to quit now") == 1 and "the same command resumes" in lines[-1], lines
    log = (setup.output_dir / "run.log").read_text()
    assert "SIGINT: stopping" in log and "stopped (SIGINT)" in log, log


def test_bash_completes_flags():
    script = lora_train("completion", "bash").stdout
    asked = f'{script}\nCOMP_WORDS=({BINARY} train --over) COMP_CWORD=2\n_lora_train\necho "${{COMPREPLY[@]}}"'
    assert "--overwrite" in subprocess.run(["bash", "-c", asked], capture_output=True, text=True, check=True, env=ENVIRONMENT).stdout.split()


def test_a_run_is_evaluated_on_its_own_data_with_its_own_template(setup):
    """The template is announced once, and no piece of its end becomes an end token."""
    setup.write_rows(chats())
    other = setup.folder / "other.jsonl"
    other.write_text(setup.rows_file.read_text())
    profile = dict(model=str(MODEL), datasets=[{"path": str(setup.rows_file), "weight": 0.5}], max_steps=1, chat_template="llama3", max_seq_len="auto",
                   eval_datasets=[{"path": str(setup.rows_file), "name": "own"}])
    check = lora_train("check", setup.write_profile(**profile))
    run = setup.train(**profile)
    for told in (check, run):
        assert told.code == 0 and 'the chat template ends a turn with "<|eot_id|>", which this tokenizer cuts into' in told.stderr, told
    ends = json.loads((setup.output_dir / "adapter/generation_config.json").read_text())["eos_token_id"]
    base_ends = json.loads((MODEL / "generation_config.json").read_text())["eos_token_id"]
    assert (ends if isinstance(ends, list) else [ends]) == (base_ends if isinstance(base_ends, list) else [base_ends])
    assert run.stderr.count("replaces the model's own") == 1, run
    assert "of them trained; weight 0.5" in (setup.output_dir / "run.log").read_text()

    trained = lora_train("eval", "--adapter", setup.output_dir, "--json")
    assert trained.code == 0 and f"profile: {setup.output_dir}/profile.yaml, the run's own" in trained.stderr, trained
    words = ["eval", "--adapter", setup.output_dir / "adapter", "--eval-data", other, "--set", "precision=fp32", "--set", "device=cpu", "--json"]
    own, base = lora_train(*words), lora_train(*words, "--set", "chat_template=chatml")
    assert own.code == 0 and base.code == 0, (own, base)
    found = [json.loads(line.stdout) for line in (trained, own, base)]
    assert found[0]["name"] == "own" != found[1]["name"]
    assert found[1]["loss"] == pytest.approx(found[0]["loss"], rel=1e-5) and found[2]["loss"] != pytest.approx(found[0]["loss"], rel=1e-3)


def test_an_allowed_change_is_written_once_a_step_uses_it(setup):
    assert setup.train(max_steps=2).code == 0
    profile = setup.output_dir / "profile.yaml"
    before = profile.read_text()
    run = setup.train("--allow-changed", "learning_rate", max_steps=2, learning_rate=0.02)
    assert run.code == 0 and profile.read_text() == before and "learning_rate: 0.01 -> 0.02: no step is left" in run.stderr, run
    run = setup.train("--allow-changed", "learning_rate", max_steps=3, learning_rate=0.02)
    assert run.code == 0 and run.stderr.count("learning_rate: 0.01 -> 0.02 from step 3\n") == 1 and profile.read_text() != before, run
    assert [line["learning_rate"] for line in setup.events("train")] == [0.01, 0.01, 0.02]
