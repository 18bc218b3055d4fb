"""`generate` on the shipped model: formats, resuming, stopping, comparing, and what it refuses."""

import json
import os
import pty
import shutil
import signal
import subprocess

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from command import BINARY, ENVIRONMENT, lora_train, train_tiny_math, wait_for
from tiny_math import FP32, MODEL, QUESTIONS, completions, generate, poisoned_model, write_rows


@pytest.fixture(scope="module")
def adapter(tmp_path_factory):
    return train_tiny_math(tmp_path_factory.mktemp("adapter")) / "adapter"


@pytest.fixture
def prompts(tmp_path):
    return write_rows(tmp_path / "prompts.jsonl", [{"prompt": text} for text in QUESTIONS[:12]])


def test_answers_are_json_lines_in_the_order_of_the_prompts(prompts):
    lines = completions("--prompts", prompts, "--max-new-tokens", 24)
    assert [line["prompt"] for line in lines] == QUESTIONS[:12] and [line["index"] for line in lines] == list(range(12))
    for line in lines:
        assert 1 <= len(line["completion_ids"]) <= 24
        ended = line["completion_ids"][-1] in (2045, 2047)
        assert line["finish_reason"] == ("stop" if ended else "length")
        assert "<|im_end|>" not in line["completion"]
    assert any(line["finish_reason"] == "stop" for line in lines)


@pytest.mark.parametrize("most", [1, 24])
def test_the_first_token_of_an_answer_counts_as_time_of_the_prompt(prompts, most):
    run = generate("--json", "--prompts", prompts, "--max-new-tokens", most)
    num_new = sum(len(line["completion_ids"]) for line in run.json_lines())
    speed = f" {num_new} new tokens" + (f"; decoding, without the first of each answer: {num_new - 12} in " if most > 1 else "\n")
    assert num_new >= 12 and speed in run.stderr and run.stderr.count("tok/s") == (2 if most > 1 else 1), run


def test_plain_output_is_the_text(prompts):
    [line] = completions("--prompt", QUESTIONS[0])
    run = generate("--prompt", QUESTIONS[0])
    assert run.code == 0 and run.stdout == line["completion"] + "\n" and "tok/s" in run.stderr, run
    both = generate("--prompt", QUESTIONS[0], "--prompt", QUESTIONS[1])
    assert both.stdout.startswith(f"> {QUESTIONS[0]}\n{line['completion']}\n\n> {QUESTIONS[1]}\n"), both


def test_chats_lists_raw_text_and_a_system_message_are_what_the_template_makes_of_them(tmp_path):
    text = QUESTIONS[0]
    rows = write_rows(tmp_path / "rows.jsonl", [
        {"prompt": text}, {"prompt": [{"role": "user", "content": text}]},
        {"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": "left out"}]}])
    chats = completions("--prompts", rows)
    assert len({line["completion"] for line in chats}) == 1
    assert chats[2]["prompt"] == [{"role": "user", "content": text}]
    raw = completions("--raw", "--prompt", f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n")
    assert raw[0]["completion_ids"] == chats[0]["completion_ids"]
    spelled = completions("--raw", "--prompt", f"<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n{text}<|im_end|>\n"
                          "<|im_start|>assistant\n")
    assert completions("--system", "Be brief.", "--prompt", text)[0]["completion_ids"] == spelled[0]["completion_ids"]


def test_compare_shows_the_base_and_the_adapter(prompts, adapter):
    base = completions("--prompts", prompts)
    tuned = completions("--prompts", prompts, "--adapter", adapter)
    compared = completions("--prompts", prompts, "--adapter", adapter, "--compare")
    assert [line["completion_ids"] for line in base] != [line["completion_ids"] for line in tuned]
    for at, line in enumerate(compared):
        assert line["base_completion_ids"] == base[at]["completion_ids"]
        assert line["base_completion"] == base[at]["completion"]
        assert line["completion_ids"] == tuned[at]["completion_ids"]
    table = generate("--prompt", QUESTIONS[0], "--adapter", adapter, "--compare")
    lines = table.stdout.splitlines()
    assert table.code == 0 and lines[0] == "> " + QUESTIONS[0], table
    assert lines[1].split() == ["base", "|", "adapter"] and all(" |" in line for line in lines[1:]), table


def test_many_comparisons_are_those_of_their_prompts(tmp_path, adapter):
    """More prompts than are asked of the one and then of the other at a time, and drawn, so that each has draws of its own."""
    texts = [f"{number} plus {number % 7} is" for number in range(70)]
    rows = write_rows(tmp_path / "many.jsonl", [{"prompt": text} for text in texts])
    draw = ("--prompts", rows, "--temperature", "1.2", "--max-new-tokens", "4")
    base, tuned = completions(*draw), completions(*draw, "--adapter", adapter)
    compared = completions(*draw, "--adapter", adapter, "--compare")
    assert [line["prompt"] for line in compared] == texts
    assert [line["base_completion_ids"] for line in compared] == [line["completion_ids"] for line in base]
    assert [line["completion_ids"] for line in compared] == [line["completion_ids"] for line in tuned]


def test_a_seed_draws_the_same_text_whatever_else_is_asked(prompts):
    draw = ("--temperature", "1.0", "--top-p", "0.95", "--max-new-tokens", "16")
    first = completions("--prompts", prompts, *draw)
    assert completions("--prompts", prompts, *draw) == first
    alone = completions("--prompt", QUESTIONS[0], *draw)
    assert alone[0]["completion_ids"] == first[0]["completion_ids"]
    other = completions("--prompts", prompts, *draw, "--seed", "7")
    assert [line["completion_ids"] for line in other] != [line["completion_ids"] for line in first]
    greedy = completions("--prompts", prompts, "--max-new-tokens", "16")
    assert [line["completion_ids"] for line in greedy] != [line["completion_ids"] for line in first]


def test_an_answer_ends_before_a_stop_string():
    [whole] = completions("--prompt", QUESTIONS[0])
    word = whole["completion"].split()[-1]
    [cut] = completions("--prompt", QUESTIONS[0], "--stop", word)
    assert cut["completion"] == whole["completion"][:whole["completion"].index(word)] and cut["finish_reason"] == "stop"
    assert cut["completion_ids"] == whole["completion_ids"][:len(cut["completion_ids"])]


def test_generation_config_is_taken_when_asked_for(tmp_path, prompts):
    model = tmp_path / "model"
    shutil.copytree(MODEL, model)
    config = {"do_sample": True, "temperature": 1.5, "top_k": 20, "eos_token_id": 2047}
    (model / "generation_config.json").write_text(json.dumps(config))
    arguments = ("--prompts", prompts, "--max-new-tokens", "12")
    greedy = completions(*arguments, model=model)
    asked = completions(*arguments, "--generation-config", model=model)
    spelled = completions(*arguments, "--temperature", "1.5", "--top-k", "20", model=model)
    assert asked == spelled != greedy
    (model / "generation_config.json").write_text(json.dumps(dict(config, repetition_penalty=1.05)))
    run = generate(*arguments, "--generation-config", model=model)
    assert run.code == 2 and "repetition_penalty: 1.05" in run.stderr, run
    (model / "generation_config.json").write_text(json.dumps(dict(config, do_sample=None)))
    assert completions(*arguments, "--generation-config", model=model) == greedy
    (model / "generation_config.json").write_text(json.dumps(dict(config, do_sample="yes")))
    run = generate(*arguments, "--generation-config", model=model)
    assert run.code == 4 and "do_sample" in run.stderr, run
    for key, value, expected in (("top_k", 1e30, "is 1e+30; expected a whole number from 0"), ("top_k", -1, "is -1; expected"),
                                 ("temperature", -0.5, "is -0.5; expected 0"), ("top_p", 1.5, "is 1.5; expected a number above 0"),
                                 ("min_p", 2, "is 2; expected a number from 0"), ("top_p", "a", 'is "a"; expected a number')):
        (model / "generation_config.json").write_text(json.dumps(dict(config, **{key: value})))
        run = generate(*arguments, "--generation-config", model=model)
        assert run.code == 4 and f"generation_config.json: {key}: {expected}" in run.stderr, run
    (model / "generation_config.json").write_text(json.dumps(dict(config, temperature=float("nan"))))
    run = generate(*arguments, "--generation-config", model=model)
    assert run.code == 4 and "generation_config.json:1" in run.stderr, run


def test_output_goes_on_where_it_stopped(tmp_path, prompts):
    output = tmp_path / "answers.jsonl"
    arguments = ("--prompts", prompts, "--output", output, "--temperature", "0.9", "--max-new-tokens", "16")
    run = generate(*arguments)
    assert run.code == 0 and run.stdout == "", run
    whole = output.read_bytes()
    lines = whole.splitlines(keepends=True)
    assert [json.loads(line)["prompt"] for line in lines] == QUESTIONS[:12]
    assert [json.loads(line)["completion_ids"] for line in lines] == \
        [line["completion_ids"] for line in completions(*arguments[:2], *arguments[4:])]
    output.write_bytes(lines[7] + lines[2] + lines[3][:20])  # stopped in the middle of a line, in another order
    run = generate(*arguments)
    assert run.code == 0 and "2 of 12 answers are already there" in run.stderr, run
    assert output.read_bytes() == whole
    run = generate(*arguments)
    assert run.code == 0 and "already complete" in run.stderr and output.read_bytes() == whole, run
    run = generate(*arguments, "--seed", "1")
    assert run.code == 2 and "seed: 42 -> 1" in run.stderr and str(output) in run.stderr, run
    assert output.read_bytes() == whole


def test_output_goes_on_with_the_same_settings_alone(tmp_path, prompts, adapter):
    copy, output = tmp_path / "adapter", tmp_path / "answers.jsonl"
    shutil.copytree(adapter, copy)
    settings = {"--adapter": copy, "--temperature": "0.9", "--top-p": "0.9", "--top-k": "40", "--min-p": "0.01", "--seed": "5",
                "--max-new-tokens": "2", "--stop": "###", "--system": "Be brief.", "--set": "precision=fp32"}

    def again(*more, **changed):
        chosen = {**settings, **{"--" + key.replace("_", "-"): value for key, value in changed.items()}}
        flags = [word for flag, value in chosen.items() if value is not None for word in (flag, value)]
        return lora_train("generate", "--model", MODEL, "--set", "device=cpu", "--prompts", prompts, "--output", output, *flags, *more)

    assert again().code == 0
    whole = output.read_bytes()
    for name, run in {
            "adapter": again(adapter=adapter), "temperature": again(temperature="1"), "top_p": again(top_p="0.8"),
            "top_k": again(top_k="0"), "min_p": again(min_p="0"), "seed": again(seed="6"), "stop": again(stop="##"),
            "max_new_tokens": again(max_new_tokens="3"), "system": again(system="Be long."), "compare": again("--compare"),
            "raw": again("--raw", system=None), "precision": again(set="precision=bf16")}.items():
        assert run.code == 2 and f"\n  {name}: " in run.stderr, f"{name}: {run}"
    config = json.loads((copy / "adapter_config.json").read_text())
    (copy / "adapter_config.json").write_text(json.dumps(dict(config, lora_alpha=config["lora_alpha"] + 1)))
    run = again()
    assert run.code == 2 and "\n  adapter_fingerprint: " in run.stderr and "\n  adapter: " not in run.stderr, run
    assert output.read_bytes() == whole


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_with_whole_lines_and_the_same_command_goes_on(tmp_path, number):
    rows = write_rows(tmp_path / "many.jsonl", [{"prompt": text} for text in QUESTIONS * 2])
    output = tmp_path / "answers.jsonl"
    arguments = ["generate", "--model", str(MODEL), *FP32, "--prompts", str(rows), "--output", str(output), "--temperature", "1.5"]
    process = subprocess.Popen([str(BINARY), *arguments], env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: output.exists() and output.read_bytes().count(b"\n") >= 3, "the third answer", process)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=300)
    assert process.returncode == 75 and "run the same command to resume" in stderr, stderr
    lines = output.read_text().splitlines(keepends=True)
    assert 3 <= len(lines) < 2 * len(QUESTIONS) and all(json.loads(line) and line.endswith("\n") for line in lines)
    kept = {json.loads(line)["index"]: line for line in lines}
    run = lora_train(*arguments)
    assert run.code == 0, run
    final = output.read_text().splitlines(keepends=True)
    assert [json.loads(line)["index"] for line in final] == list(range(2 * len(QUESTIONS)))
    assert all(final[index] == line for index, line in kept.items())


def test_a_terminal_sees_the_text_as_it_comes():
    # Long, so that this process surely reads before the end.
    arguments = ("--prompt", QUESTIONS[0], "--temperature", "5", "--top-k", "60", "--seed", "3", "--max-new-tokens", "150")
    [line] = completions(*arguments)
    leader, follower = pty.openpty()
    process = subprocess.Popen([str(BINARY), "generate", "--model", str(MODEL), *FP32, *arguments],
                               env=ENVIRONMENT, stdout=follower, stderr=subprocess.PIPE)
    os.close(follower)
    shown, pieces = b"", 0
    while True:
        try:
            piece = os.read(leader, 4096)
        except OSError:  # the other side is closed
            break
        if not piece:
            break
        shown, pieces = shown + piece, pieces + 1
    os.close(leader)
    assert process.wait(timeout=300) == 0, process.stderr.read()
    assert shown.decode().replace("\r\n", "\n") == line["completion"] + "\n" and pieces > 1


# What is refused.

def test_bad_prompt_files_name_file_and_line(tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "a"}\n{"question": "a"}\n')
    run = generate("--prompts", rows)
    assert run.code == 3 and f"{rows}:2: the example (question) has no prompt" in run.stderr and '{"prompt"' in run.stderr, run
    write_rows(rows, [{"prompt": "a"}, {"prompt": "word " * 1100}])
    run = generate("--prompts", rows)
    assert run.code == 3 and f"{rows}:2" in run.stderr and "1,024" in run.stderr, run


def test_a_model_without_a_chat_template_names_raw(tmp_path):
    model = tmp_path / "model"
    shutil.copytree(MODEL, model, ignore=shutil.ignore_patterns("chat_template.jinja"))
    config = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps({key: config[key] for key in config if key != "chat_template"}))
    run = generate("--prompt", "hi", model=model)
    assert run.code == 4 and "--raw" in run.stderr, run
    assert len(completions("--raw", "--prompt", "1 plus 1 is", "--max-new-tokens", "4", model=model)) == 1


def test_an_adapter_of_another_model_names_the_tensor(tmp_path, adapter):
    wrong = tmp_path / "wrong"
    shutil.copytree(adapter, wrong)
    tensors = load_file(wrong / "adapter_model.safetensors")
    name = sorted(tensors)[0]
    save_file(dict(tensors, **{name: np.zeros((16, 64), np.float32)}), wrong / "adapter_model.safetensors")
    run = generate("--prompt", "hi", "--adapter", wrong)
    assert run.code == 4 and name in run.stderr and "another model" in run.stderr, run
    config = json.loads((adapter / "adapter_config.json").read_text())
    (wrong / "adapter_config.json").write_text(json.dumps(dict(config, target_modules=["c_attn"])))
    run = generate("--prompt", "hi", "--adapter", wrong)
    assert run.code == 4 and "c_attn" in run.stderr and "q_proj" in run.stderr, run
    run = generate("--prompt", "hi", "--adapter", MODEL)
    assert run.code == 4 and "adapter_config.json" in run.stderr, run


def test_logits_that_are_not_finite_end_with_7(tmp_path):
    run = generate("--prompt", "hi", model=poisoned_model(tmp_path))
    assert run.code == 7 and "--prompt" in run.stderr, run


def test_a_full_disk_is_an_io_error(prompts):
    run = generate("--prompts", prompts, "--output", "/dev/full", "--max-new-tokens", "4")
    assert run.code == 5 and "/dev/full" in run.stderr, run
    with open("/dev/full", "wb") as full:
        code = subprocess.run([str(BINARY), "generate", "--model", str(MODEL), *FP32, "--prompt", "hi", "--json"], env=ENVIRONMENT,
                              stdout=full, stderr=subprocess.DEVNULL).returncode
    assert code == 5


@pytest.mark.parametrize("arguments, part", [
    ((), "--prompt"), (("--prompt", "a", "--prompts", "b.jsonl"), "not both"), (("--prompt", "a", "--compare"), "--adapter"),
    (("--prompt", "a", "--max-new-tokens", "0"), "from 1 to"), (("--prompt", "a", "--top-p", "0.9"), "--temperature"),
    (("--prompt", "a", "--temperature", "-1"), '--temperature: got "-1", expected 0'), (("--prompt", "a", "--stop", ""), "--stop"),
    (("--prompt", "a", "--temperature", "nan"), '--temperature: got "nan"'),
    (("--prompt", "a", "--temperature", "1", "--top-p", "1.5"), '--top-p: got "1.5", expected a number above 0, at most 1'),
    (("--prompt", "a", "--temperature", "1", "--top-k", "1e30"), '--top-k: got "1e30", expected a whole number from 0'),
    (("--prompt", "a", "--temperature", "1", "--top-k", "2.5"), '--top-k: got "2.5", expected a whole number from 0'),
    (("--prompt", "a", "--temperature", "1", "--min-p", "-0.1"), '--min-p: got "-0.1", expected a number from 0'),
    (("--prompt", "a", "--seed", "-1"), '--seed: got "-1", expected a whole number from 0 to'),
    (("--prompt", "a", "--seed", "99999999999999999999"), '--seed: got "99999999999999999999"'),
    (("--prompt", "a\udcff"), "--prompt: is not UTF-8 at byte 2"), (("--prompt", "a", "--system", "\udcff"), "--system")])
def test_usage_mistakes_end_with_2(arguments, part):
    run = generate(*arguments)
    assert run.code == 2 and part in run.stderr, run
