"""The key `thinking`: the text of a chat is what transformers renders of the messages and variables that the key stands for."""

import copy
import importlib.util
import json
import random
import re
from pathlib import Path

import chat_oracle
import pytest

QWEN3 = ["qwen3/chat_template.jinja", "qwen3/chat_template-thinking-2507.jinja"]
TRL = ["qwen3_5_think.jinja", "qwen3_5_nothink.jinja", "qwen3_6.jinja", "qwen3_8.jinja"]  # Qwen's own, unchanged
FIELDS = ("reasoning_content", "reasoning", "thinking")
BLOCK = re.compile(r"^\s*<think>\n*(.*?)\n*</think>\n*", re.DOTALL)
CALL = {"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}


def source_of(name):
    if name in QWEN3:
        path = chat_oracle.DATA / name
        if not path.exists():
            pytest.skip(f"no {name}; set LORA_TRAIN_TEST_DATA to the test data's folder")
    else:
        trl = importlib.util.find_spec("trl")  # found, not imported
        path = Path(trl.submodule_search_locations[0]) / "chat_templates" / name
    return path.read_text(encoding="utf-8")


def random_chat(rng):
    """Chats of several turns, with tools between; thoughts in a field, in the content, or none. No two thoughts are alike."""
    messages, marks = [{"role": "system", "content": "s"}] * rng.randint(0, 1), iter(range(100))

    def assistant(**fields):
        message = {"role": "assistant", "content": f"answer {next(marks)}", **fields}
        kind, thought = rng.choice(["none", "field", "content", "empty"]), f"thought {next(marks)}\nand more"
        if kind == "field":
            message["reasoning_content"] = thought
        elif kind in ("content", "empty"):
            message["content"] = f"<think>\n{thought if kind == 'content' else ''}\n</think>\n\n{message['content']}"
        messages.append(message)

    for turn in range(rng.randint(1, 4)):
        messages.append({"role": "user", "content": f"question {turn}"})
        for _ in range(rng.choice([0, 0, 1, 2])):
            assistant(tool_calls=[CALL])
            messages.append({"role": "tool", "content": "42"})
        assistant()
    return messages


def thoughts_of(message):
    """(thoughts, answer) of an assistant's message; its thoughts are "" for none."""
    block = BLOCK.match(message["content"])
    field = next((message[name] for name in FIELDS if message.get(name)), "")
    return field or (block.group(1) if block else ""), message["content"][block.end():] if block else message["content"]


def without_thoughts(messages):
    messages = copy.deepcopy(messages)
    for message in messages:
        if message["role"] == "assistant":
            message["content"] = thoughts_of(message)[1]
            for name in FIELDS:
                message.pop(name, None)
    return messages


def in_fields(messages):
    messages = copy.deepcopy(messages)
    for message in messages:
        if message["role"] == "assistant" and BLOCK.match(message["content"]) and not message.get("reasoning_content"):
            message["reasoning_content"], message["content"] = thoughts_of(message)
    return messages


def expected(source, messages, thinking):
    """transformers' text of what the key stands for, each variable as a user would pass it."""
    variables = {"keep": {"preserve_thinking": True}, "empty": {"enable_thinking": False}}.get(thinking, {})
    if thinking in ("drop", "empty"):
        messages = without_thoughts(messages)
    elif thinking == "keep" and "'</think>' in" not in source:  # it takes no thoughts out of a content
        messages = in_fields(messages)
    return chat_oracle.render_with_transformers(source, {"messages": messages, "kwargs": variables, "add_generation_prompt": False}, {})[0]


def expected_counts(text, messages):
    """kept, dropped, written empty: what the text has of each turn. No thought occurs elsewhere, and turns are in order."""
    counts = [0, 0, 0]
    turns = [part.split("<|im_end|>")[0] for part in text.split("<|im_start|>assistant\n")[1:]]
    answers = [message for message in messages if message["role"] == "assistant"]
    assert len(turns) == len(answers)
    for turn, message in zip(turns, answers):
        thoughts = thoughts_of(message)[0]
        if thoughts:
            counts[0 if thoughts in turn else 2 if turn.startswith("<think>\n\n</think>") else 1] += 1
    return counts


@pytest.mark.parametrize("thinking", ["template", "keep", "drop", "empty"])
@pytest.mark.parametrize("name", QWEN3 + TRL)
def test_the_text_is_that_of_transformers(name, thinking, ours):
    source = source_of(name)
    assert ours.set_template(source, None) == {}
    rng, num_refused = random.Random(f"{name} {thinking}"), 0
    for _ in range(60):
        messages = random_chat(rng)
        text = expected(source, messages, thinking)
        counts = expected_counts(text, messages)
        got = ours.ask({"row": json.dumps({"messages": messages}), "thinking": thinking})
        if thinking == "keep" and sum(counts[1:]) > 0:
            assert got.get("error") == "data" and "thinking is keep" in got["message"], (messages, got)
            num_refused += 1
        else:
            assert (got["text"], got["thoughts"]) == (text, counts), messages
    assert (num_refused > 0) == (thinking == "keep" and "preserve_thinking" not in source)
