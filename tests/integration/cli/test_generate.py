"""`generate` on the shipped model: formats, resuming, stopping, comparing, and what it refuses."""

import json
import shutil
import signal
import subprocess

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import terminals
from command import BINARY, ENVIRONMENT, expect_end, good_run, lora_train, stop, wait_for
from tiny_math import FP32, MODEL, QUESTIONS, completions, generate, model_without_template, poisoned_model, write_rows


@pytest.fixture
def adapter(tiny_math_run):
    return tiny_math_run / "adapter"


@pytest.fixture
def prompts(tmp_path):
    return write_rows(tmp_path / "prompts.jsonl", [{"prompt": text} for text in QUESTIONS[:12]])


@pytest.mark.parametrize("most", [1, 24])
def test_answers_are_json_lines_in_the_order_of_the_prompts(prompts, most):
    """The first token of an answer counts as time of the prompt."""
    run = generate("--json", "--prompts", prompts, "--max-new-tokens", most)
    lines = run.json_lines()
    assert [line["prompt"] for line in lines] == QUESTIONS[:12] and [line["index"] for line in lines] == list(range(12))
    for line in lines:
        assert 1 <= len(line["completion_ids"]) <= most and "<|im_end|>" not in line["completion"]
        assert line["finish_reason"] == ("stop" if line["completion_ids"][-1] in (2045, 2047) else "length")
    assert most == 1 or any(line["finish_reason"] == "stop" for line in lines)
    num_new = sum(len(line["completion_ids"]) for line in lines)
    speed = f" {num_new} new tokens" + (f"; decoding, without the first of each answer: {num_new - 12} in " if most > 1 else "\n")
    assert num_new >= 12 and speed in run.stderr and run.stderr.count("tok/s") == (2 if most > 1 else 1), run


def test_plain_output_is_the_text_and_ends_before_a_stop_string():
    [whole] = completions("--prompt", QUESTIONS[0])
    run = generate("--prompt", QUESTIONS[0])
    assert run.code == 0 and run.stdout == whole["completion"] + "\n" and "tok/s" in run.stderr, run
    both = generate("--prompt", QUESTIONS[0], "--prompt", QUESTIONS[1])
    assert both.stdout.startswith(f"> {QUESTIONS[0]}\n{whole['completion']}\n\n> {QUESTIONS[1]}\n"), both
    word = whole["completion"].split()[-1]
    [cut] = completions("--prompt", QUESTIONS[0], "--stop", word)
    assert cut["completion"] == whole["completion"][:whole["completion"].index(word)] and cut["finish_reason"] == "stop"
    assert cut["completion_ids"] == whole["completion_ids"][:len(cut["completion_ids"])]


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


def test_compare_shows_the_base_and_the_adapter(tmp_path, adapter):
    """More prompts than are asked of the one and then of the other at a time, and drawn, so that each has draws of its own."""
    texts = [f"{number} plus {number % 7} is" for number in range(70)]
    rows = write_rows(tmp_path / "many.jsonl", [{"prompt": text} for text in texts])
    draw = ("--prompts", rows, "--temperature", "1.2", "--max-new-tokens", "4")
    base, tuned = completions(*draw), completions(*draw, "--adapter", adapter)
    compared = completions(*draw, "--adapter", adapter, "--compare")
    assert [line["prompt"] for line in compared] == texts
    for key in ("completion", "completion_ids"):
        assert [line["base_" + key] for line in compared] == [line[key] for line in base]
        assert [line[key] for line in compared] == [line[key] for line in tuned] != [line[key] for line in base]
    table = generate("--prompt", QUESTIONS[0], "--adapter", adapter, "--compare")
    lines = table.stdout.splitlines()
    assert table.code == 0 and lines[0] == "> " + QUESTIONS[0], table
    assert lines[1].split() == ["base", "|", "adapter"] and all(" |" in line for line in lines[1:]), table


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


CONFIG = {"do_sample": True, "temperature": 1.5, "top_k": 20, "eos_token_id": 2047}


def test_generation_config_is_taken_when_asked_for(tmp_path, prompts):
    model = tmp_path / "model"
    shutil.copytree(MODEL, model)
    arguments = ("--prompts", prompts, "--max-new-tokens", "12", "--json")

    def asked(**changes):
        (model / "generation_config.json").write_text(json.dumps(dict(CONFIG, **changes)))
        return generate(*arguments, "--generation-config", model=model)

    drawn = asked()
    greedy, spelled = (generate(*arguments, *flags, model=model).stdout for flags in ((), ("--temperature", "1.5", "--top-k", "20")))
    assert drawn.code == 0 and drawn.stdout == spelled != greedy and asked(do_sample=None).stdout == greedy
    expect_end(asked(repetition_penalty=1.05), 2, "repetition_penalty: 1.05")
    for key, value, expected in (("do_sample", "yes", ""), ("top_k", 1e30, "is 1e+30; expected a whole number from 0"), ("top_k", -1, "is -1; expected"),
                                 ("temperature", -0.5, "is -0.5; expected 0"), ("top_p", 1.5, "is 1.5; expected a number above 0"),
                                 ("min_p", 2, "is 2; expected a number from 0"), ("top_p", "a", 'is "a"; expected a number')):
        expect_end(asked(**{key: value}), 4, f"generation_config.json: {key}: {expected}")
    expect_end(asked(temperature=float("nan")), 4, "generation_config.json:1")


def test_output_goes_on_where_it_stopped(tmp_path, prompts):
    output = tmp_path / "answers.jsonl"
    draw = ("--prompts", prompts, "--temperature", "0.9", "--max-new-tokens", "16")
    run = generate(*draw, "--output", output)
    assert run.code == 0 and run.stdout == "", run
    whole = output.read_bytes()
    lines = whole.splitlines(keepends=True)
    assert [json.loads(line)["completion_ids"] for line in lines] == [line["completion_ids"] for line in completions(*draw)]
    output.write_bytes(lines[7] + lines[2] + lines[3][:20])  # stopped in the middle of a line, in another order
    for said in ("2 of 12 answers are already there", "already complete"):
        run = generate(*draw, "--output", output)
        assert run.code == 0 and said in run.stderr and output.read_bytes() == whole, run


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
        assert run.code == 2 and f"\n  {name}: " in run.stderr and str(output) in run.stderr, f"{name}: {run}"
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
    assert "run the same command to resume" in stop(process, number)
    lines = output.read_text().splitlines(keepends=True)
    assert 3 <= len(lines) < 2 * len(QUESTIONS) and all(json.loads(line) and line.endswith("\n") for line in lines)
    kept = {json.loads(line)["index"]: line for line in lines}
    good_run(*arguments)
    final = output.read_text().splitlines(keepends=True)
    assert [json.loads(line)["index"] for line in final] == list(range(2 * len(QUESTIONS)))
    assert all(final[index] == line for index, line in kept.items())


def test_a_terminal_sees_the_text_as_it_comes():
    # Long, so that this process surely reads before the end.
    arguments = ("--prompt", QUESTIONS[0], "--temperature", "5", "--top-k", "60", "--seed", "3", "--max-new-tokens", "150")
    [line] = completions(*arguments)
    pieces = terminals.parts_of([BINARY, "generate", "--model", MODEL, *FP32, *arguments], 100, ENVIRONMENT)
    assert b"".join(pieces).decode().replace("\r\n", "\n") == line["completion"] + "\n" and len(pieces) > 1


# What is refused.

def test_bad_prompt_files_name_file_and_line(tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "a"}\n{"question": "a"}\n')
    expect_end(generate("--prompts", rows), 3, f"{rows}:2: the example (question) has no prompt", '{"prompt"')
    write_rows(rows, [{"prompt": "a"}, {"prompt": "word " * 1100}])
    expect_end(generate("--prompts", rows), 3, f"{rows}:2", "1,024")


def test_a_model_without_a_chat_template_names_raw(tmp_path):
    model = model_without_template(tmp_path)
    expect_end(generate("--prompt", "hi", model=model), 4, "--raw")
    assert len(completions("--raw", "--prompt", "1 plus 1 is", "--max-new-tokens", "4", model=model)) == 1


def test_an_adapter_of_another_model_names_the_tensor(tmp_path, adapter):
    wrong = tmp_path / "wrong"
    shutil.copytree(adapter, wrong)
    tensors = load_file(wrong / "adapter_model.safetensors")
    name = sorted(tensors)[0]
    save_file(dict(tensors, **{name: np.zeros((16, 64), np.float32)}), wrong / "adapter_model.safetensors")
    expect_end(generate("--prompt", "hi", "--adapter", wrong), 4, name, "another model")
    config = json.loads((adapter / "adapter_config.json").read_text())
    (wrong / "adapter_config.json").write_text(json.dumps(dict(config, target_modules=["c_attn"])))
    expect_end(generate("--prompt", "hi", "--adapter", wrong), 4, "c_attn", "q_proj")
    expect_end(generate("--prompt", "hi", "--adapter", MODEL), 4, "adapter_config.json")


def test_logits_that_are_not_finite_end_with_7(tmp_path):
    expect_end(generate("--prompt", "hi", model=poisoned_model(tmp_path)), 7, "--prompt")


def test_a_full_disk_is_an_io_error(prompts):
    expect_end(generate("--prompts", prompts, "--output", "/dev/full", "--max-new-tokens", "4"), 5, "/dev/full")
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
    expect_end(generate(*arguments), 2, part)
