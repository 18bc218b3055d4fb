"""What people type out of habit: a profile as the only word, keys as flags, the folder of a run as its adapter, Ctrl-C."""

import json
import re
import signal
import subprocess

import pytest

from conftest import BINARY, ENVIRONMENT, ROOT, lora_train, wait_for

MODEL = ROOT / "examples/tiny-math/model"


def test_a_profile_is_a_word_and_a_key_is_a_flag(setup):
    for words in (["train", setup.write_profile(), "--lora-r", "2"], ["train", "--config", setup.write_profile(), "--lora_r=2", "--overwrite"]):
        run = lora_train(*words)
        assert run.code == 0, run
        assert json.loads((setup.output_dir / "adapter/adapter_config.json").read_text())["r"] == 2
    wrong = lora_train("train", setup.profile_file, "--lora-r", "x")
    assert wrong.code == 2 and '--lora-r: lora_r: got "x"' in wrong.stderr, wrong
    assert lora_train("train", "no-such.yaml").code == 2


def test_the_start_says_in_a_line_each_what_runs(setup):
    run = setup.train()
    said = run.stderr.splitlines()
    assert [line for line in said if re.match(r"device: cpu.*, \d+ threads?, precision fp32$", line)], run
    assert [line for line in said if re.match(rf"model: .*, Qwen2ForCausalLM, [\d,]+ parameters$", line)], run
    assert [line for line in said if re.match(r"adapter: LoRA, r \d+, alpha [\d.]+, on \d+ linears; [\d,]+ of [\d,]+ parameters are trained", line)], run
    assert f"output: {setup.output_dir}" in said, run
    log = (setup.output_dir / "run.log").read_text()
    assert "activations: at most" in log and "activations: at most" not in run.stderr, run


def test_the_end_names_report_and_next_commands_which_work(setup):
    run = setup.train()
    said = run.stderr.splitlines()
    assert run.code == 0 and f"report: {setup.output_dir}/report.html" in said, run
    [generate, merge] = [line.removeprefix("next: ").split() for line in said if line.startswith("next: ")]
    assert said[-1].startswith("done: "), run
    assert generate[:4] == ["lora-train", "generate", "--adapter", str(setup.output_dir)]
    merged = lora_train(*merge[1:], "--no-check")
    assert merged.code == 0 and (setup.folder / "run-merged/model.safetensors").exists(), merged


@pytest.fixture
def chat_run(setup):
    """A run on the shipped model, which answers."""
    row = {"messages": [{"role": "user", "content": "What is 3 plus 4?"}, {"role": "assistant", "content": "7"}]}
    setup.write_rows([row] * 4)
    run = setup.train(model=str(MODEL), datasets=[str(setup.rows_file)], max_steps=1)
    assert run.code == 0, run
    return setup.output_dir


def test_a_run_is_an_adapter_that_knows_its_base(chat_run):
    named = lora_train("generate", "--model", MODEL, "--adapter", chat_run / "adapter", "--prompt", "Hi", "--set", "device=cpu", "--json")
    short = subprocess.run([BINARY, "generate", "--adapter", chat_run, "--prompts", "-", "--json", "--set", "device=cpu"], input='{"prompt": "Hi"}\n',
                           capture_output=True, text=True, env=ENVIRONMENT)
    assert named.code == short.returncode == 0, (named, short.stderr)
    assert json.loads(short.stdout)["completion_ids"] == named.json_lines()[0]["completion_ids"]


def test_a_run_that_has_not_ended_names_its_checkpoint(chat_run):
    (chat_run / "adapter").rename(chat_run / "elsewhere")
    run = lora_train("generate", "--adapter", chat_run, "--prompt", "Hi")
    assert run.code == 2 and f"--adapter {chat_run}/checkpoint-1" in run.stderr, run


def test_ctrl_c_is_answered_at_once_and_the_same_command_goes_on(setup):
    process = setup.start(max_steps=100_000, logging_steps=1000, num_epochs="unset")
    wait_for(lambda: (setup.output_dir / "metrics.jsonl").exists() and "start" in (setup.output_dir / "metrics.jsonl").read_text(), "its start", process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 75, err
    lines = err.splitlines()
    assert lines.count("stopping after this step; again to quit now") == 1 and "the same command resumes" in lines[-1], err
    log = (setup.output_dir / "run.log").read_text()
    assert "SIGINT: stopping" in log and "stopped (SIGINT)" in log, log


def test_help_version_completion_schema_and_sweep(setup):
    assert lora_train("help").stdout == lora_train("--help").stdout
    assert lora_train("help", "train").stdout == lora_train("train", "--help").stdout
    assert lora_train("-V").stdout == lora_train("--version").stdout
    words = lora_train("completion", "words").stdout.split()
    assert {"train", "sweep", "help"} <= set(words)
    flags = lora_train("train", "--list-flags").stdout.split()
    assert {"--profile", "--overwrite", "--lora-r"} <= set(flags)
    script = lora_train("completion", "bash").stdout
    asked = f'{script}\nCOMP_WORDS=({BINARY} train --over) COMP_CWORD=2\n_lora_train\necho "${{COMPREPLY[@]}}"'
    assert "--overwrite" in subprocess.run(["bash", "-c", asked], capture_output=True, text=True, check=True, env=ENVIRONMENT).stdout.split()
    schema = json.loads(lora_train("check", "--schema").stdout)
    assert schema["properties"]["lora_r"]["description"] and "weigth_decay" not in schema["properties"]
    dry = lora_train("sweep", "--dry-run", "--profile", setup.write_profile(), "output_dir=" + str(setup.folder / "runs/{lora_r}"), "lora_r=2,4")
    assert dry.code == 0 and dry.stdout.count(" train ") == 2, dry
