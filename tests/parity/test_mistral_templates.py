"""The built-in templates of tekken.json's versions against mistral-common: texts, token ids, refusals, and what is trained."""

import json
import os
import random
from pathlib import Path

import pytest
import tokenizer_probe

import tekken_folders

ROOT = Path(__file__).resolve().parents[2]
PROBE = Path(os.environ.get("LORA_TRAIN_BIN", ROOT / "build/dev/bin")) / "tokenizer-probe"
NUM_DIALOGUES = 400
TEXTS = ["Hi", "Hello there. ", "  spaced  ", "", "caf\u00e9 \u4f60\u597d", "line\n", "a\n\nb", '{"a": 1}', "The answer is 42."]
ARGUMENTS = [{}, {"city": "Paris", "n": 2}, {"x": [1, 2.5, None, True], "\u00e9": {"k": '"q"'}}]
OPEN_THOUGHT = {"type": "thinking", "thinking": "hm", "closed": False}


class Dialogues:
    """make() gives a dialogue, which mistral-common accepts more often than not."""

    def __init__(self, version):
        self.random, self.version, self.num_calls = random.Random(version), version, 0

    def chance(self, probability):
        return self.random.random() < probability

    def content(self, thinks=0.0):
        if self.chance(0.7):
            return self.random.choice(TEXTS)
        chunks = [{"type": "text", "text": self.random.choice(TEXTS)} for _ in range(self.random.randint(1, 3))]
        if self.chance(thinks):
            thought = {"type": "thinking", "thinking": self.random.choice(TEXTS)}
            chunks.insert(0 if self.chance(0.8) else self.random.randint(0, len(chunks)), thought)
        return chunks

    def call(self):
        self.num_calls += 1
        arguments = self.random.choice(ARGUMENTS)
        if self.chance(0.5):
            arguments = json.dumps(arguments, ensure_ascii=False) if self.chance(0.9) else self.random.choice(["", None])
        bad = self.chance(0.02)
        return {"id": self.random.choice(["short", "null", "", "abc/efghi", "aaaaaaaaa"]) if bad else f"call{self.num_calls:05d}", "type": "function",
                "function": {"name": "bad name" if self.chance(0.005) else self.random.choice(["f", "get_x"]), "arguments": arguments}}

    def calls(self):
        """An answer with calls, and their results."""
        calls = [self.call() for _ in range(self.random.randint(1, 3))]
        answer = {"role": "assistant", "tool_calls": calls, **({"content": self.content(self.thinks)} if self.chance(0.5) else {})}
        results = [{"role": "tool", "tool_call_id": call["id"], "content": self.content(), **({"name": "f"} if self.chance(0.2) else {})} for call in calls]
        if self.chance(0.3):
            self.random.shuffle(results)
        if self.chance(0.02):
            results = results[1:] if self.chance(0.5) else results + results[:1]
        return [answer, *results]

    def exchange(self):
        messages = [{"role": "user", "content": self.content(0.01)}] if self.chance(0.98) else []
        messages += [{"role": "user", "content": self.content()}] if self.chance(0.1) else []
        messages += [{"role": "system", "content": self.content()}] if self.chance(0.03) else []
        for _ in range(self.random.choice([0, 0, 1, 2])):
            messages += self.calls()
        for _ in range(self.random.choice([0, 1, 1, 1, 1, 1, 1, 2])):
            reasoning = {"reasoning_content" if self.chance(0.5) else "reasoning": self.random.choice(TEXTS)} if self.chance(self.thinks) else {}
            messages.append({"role": "assistant", "content": self.content(0 if reasoning and self.chance(0.9) else self.thinks), **reasoning})
        return messages

    def make(self):
        self.thinks = 0.6 if self.version in ("v13", "v15") else 0.01
        messages = [{"role": "system", "content": self.content(0.3 if self.version == "v13" else 0.01)} for _ in range(self.random.choice([0, 1, 1, 2]))]
        for _ in range(self.random.randint(1, 3)):
            messages += self.exchange()
        if self.chance(0.1):
            messages.append({"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {}}}]})
        messages = messages or [{"role": "user", "content": "Hi"}]
        if self.chance(0.05):
            self.random.shuffle(messages)
        if self.chance(0.1 * self.thinks):
            messages += [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": [OPEN_THOUGHT]}]
        if messages[-1]["role"] == "tool":  # a prompt may have too many results there, and a training example not
            messages.append({"role": "assistant", "content": "So."})
        dialogue = {"messages": messages, "add_generation_prompt": self.chance(0.5)}
        if self.chance(0.5):
            dialogue["tools"] = [{"type": "function", "function": {
                "name": self.random.choice(["f", "get_x"]), **({"description": 'does "it" \u00e9'} if self.chance(0.8) else {}),
                **({"parameters": {"type": "object", "properties": {"city": {"type": "string"}}}} if self.chance(0.8) else {}),
                **({"strict": True} if self.chance(0.2) else {})}} for _ in range(self.random.randint(0, 2))]
        if self.version == "v15" and self.chance(0.2):
            dialogue["kwargs"] = {"reasoning_effort": self.random.choice(["none", "high"])}
        return dialogue


def is_only_ours(messages):
    """What only we refuse: a dialogue that begins with calls of tools or their results."""
    return messages[0]["role"] == "tool" or bool(messages[0].get("tool_calls"))


@pytest.mark.parametrize("version", tekken_folders.VERSIONS)
def test_dialogues_have_the_ids_of_mistral_common(version, ours, tmp_path):
    theirs = tekken_folders.MistralCommon(tekken_folders.make_folder(tmp_path, version))
    assert ours.use_template("tokenizer", tmp_path) == {}
    dialogues, texts, ids, num_refused = Dialogues(version), [], [], 0
    for _ in range(NUM_DIALOGUES):
        dialogue = dialogues.make()
        expected, got = theirs.encode(dialogue), ours.render(dialogue)
        if len(expected) == 1 or is_only_ours(dialogue["messages"]):
            num_refused += 1
            assert len(got) == 1 and got[0].startswith("data: "), (expected, got, dialogue)
            continue
        assert got[0] == expected[0], dialogue
        texts.append(got[0])
        ids.append(expected[1])
    assert len(texts) > NUM_DIALOGUES / 2 and num_refused > NUM_DIALOGUES / 20, (len(texts), num_refused)
    assert tokenizer_probe.encode(PROBE, tmp_path, texts, file="tekken")[0] == ids


def trained_text(answer):
    raw = answer["text"].encode()
    return [raw[a:b].decode() for a, b in answer["spans"]]


CALL = {"id": "call00001", "type": "function", "function": {"name": "f", "arguments": {}}}
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "And?"}, {"role": "assistant", "content": "Let me see. ", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call00001", "content": "7"}, {"role": "assistant", "content": "7."}]
CALLS = {"v7": '[TOOL_CALLS][{"name": "f", "arguments": {}, "id": "call00001"}]', "v11": "[TOOL_CALLS]f[CALL_ID]call00001[ARGS]{}",
         "v13": "[TOOL_CALLS]f[ARGS]{}", "v15": "[TOOL_CALLS]f[ARGS]{}"}


@pytest.mark.parametrize("version", tekken_folders.VERSIONS)
def test_answers_and_their_calls_are_trained(version, ours):
    assert ours.use_template(f"mistral-{version}") == {}
    answer = ours.ask({"messages": CHAT})
    assert trained_text(answer) == ["Hello</s>", f"Let me see.{CALLS[version]}</s>", "7.</s>"]
    assert answer["omissions"] == []


def test_thoughts_are_trained(ours):
    assert ours.use_template("mistral-v13") == {}
    answer = ours.ask({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes", "reasoning_content": "hm"}]})
    assert trained_text(answer) == ["[THINK]hm[/THINK]Yes</s>"]
    assert answer["omissions"] == []


def test_text_behind_an_open_thought_is_refused(ours):
    """mistral-common cuts there, which no text can show."""
    assert ours.use_template("mistral-v15") == {}
    answer = ours.ask({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": [OPEN_THOUGHT, {"type": "text", "text": "Yes"}]}]})
    assert "text must not follow a thought" in answer["message"]
