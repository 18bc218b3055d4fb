"""`chat`: a script's conversation, and a person's at a terminal."""

import fcntl
import json
import os
import re
import select
import shutil
import signal
import subprocess
import termios
import time

import pytest

import terminals
from command import BINARY, ENVIRONMENT, expect_end, has_library, lora_train
from tiny_math import FP32, MODEL, QUESTIONS, completions, generate, hybrid_model, model_without_template, write_rows

LONG = ("--temperature", "5", "--top-k", "60", "--seed", "3")  # an answer of many tokens
UP, LEFT, PASTE = "\x1b[A", "\x1b[D", "\x1b[200~{}\x1b[201~"
EMPTY_LINE_END, CTRL_C = "\x04", "\x03"


edits_lines = pytest.mark.skipif(not has_library("libedit.so.2", "libedit.so.0"), reason="libedit is not here")


def chat(*arguments, said, model=MODEL):
    command = ["chat", *(["--model", str(model)] if model else []), *FP32, *map(str, arguments)]
    data = said if isinstance(said, bytes) else "".join(line + "\n" for line in said).encode()
    return lora_train(*command, data=data)


def answers(*arguments, said, **options):
    run = chat("--json", *arguments, said=said, **options)
    assert run.code == 0, run
    return run.json_lines()


def user(text):
    return {"role": "user", "content": text}


class Person:
    """Somebody at a terminal, with the history in a folder of their own."""

    def __init__(self, folder, *arguments, terminal="xterm", model=MODEL, columns=100):
        self.text, self.history = "", folder / "lora-train/chat_history"
        self.fd, side = terminals.open_terminal(columns)
        self.modes = termios.tcgetattr(side)
        environment = dict(ENVIRONMENT, TERM=terminal, XDG_STATE_HOME=str(folder), HOME=str(folder), LC_ALL="C.UTF-8")
        self.process = subprocess.Popen([str(BINARY), "chat", *(["--model", str(model)] if model else []), *FP32, *map(str, arguments)],
                                        stdin=side, stdout=side, stderr=side, env=environment, start_new_session=True,
                                        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        self.side = side
        self.wait_for("> ")

    def read(self, timeout=0.1):
        if select.select([self.fd], [], [], timeout)[0]:
            self.text += os.read(self.fd, 65536).decode()

    def wait_for(self, pattern, limit_s=60):
        end = time.monotonic() + limit_s
        while not re.search(pattern, self.text):
            assert self.process.poll() is None and time.monotonic() < end, f"no {pattern}: {self.text[-2000:]!r}"
            self.read()
        seen, self.text = self.text, ""
        return seen

    def type(self, text):
        os.write(self.fd, text.encode())

    def say(self, text, until="\r\n\r\n.*> "):
        """Types a message, and returns what comes until the next prompt."""
        self.type(text + "\r")
        return self.wait_for(until)

    def leave(self):
        self.type(EMPTY_LINE_END)
        assert self.finish() == 0

    def finish(self):
        code = self.process.wait(timeout=60)
        self.read()
        assert termios.tcgetattr(self.side) == self.modes, "the terminal is left as it was not"
        os.close(self.side)
        os.close(self.fd)
        return code


# A script.

def test_a_turn_goes_through_the_template_and_what_is_in_the_cache_is_not_computed_again(tmp_path):
    run = chat("--json", said=QUESTIONS[:4])
    lines, turns = run.json_lines(), []
    for question, line in zip(QUESTIONS, lines):
        turns.append(user(question))
        assert line["prompt"] == turns
        turns.append({"role": "assistant", "content": line["completion"]})
    rows = write_rows(tmp_path / "rows.jsonl", [{"prompt": line["prompt"]} for line in lines])
    whole = generate("--json", "--prompts", rows)
    assert len(lines) == 4 and [line["completion_ids"] for line in lines] == [line["completion_ids"] for line in whole.json_lines()]
    in_chat, in_generate = (int(re.search(r"^([\d,]+) prompt tokens", of.stderr, re.MULTILINE)[1].replace(",", "")) for of in (run, whole))
    assert in_chat < in_generate / 2, (in_chat, in_generate)
    plain = chat(said=[QUESTIONS[0], "/help", QUESTIONS[1]])
    assert plain.code == 0 and plain.stdout == "".join(line["completion"] + "\n" for line in lines[:2]), plain
    assert "> " not in plain.stderr.splitlines() and "/reset" in plain.stderr, plain


@pytest.mark.parametrize("new_tokens", [7, 24])
def test_the_state_of_a_hybrid_model_goes_on_from_turn_to_turn(tmp_path, new_tokens):
    """And begins anew where a prompt shares only its beginning with the last: after /reset, and where the text of an answer (of 24 random
    tokens) is cut into other tokens."""
    model, few = hybrid_model(tmp_path), ("--max-new-tokens", str(new_tokens), "--temperature", "0")
    run = chat("--json", *few, said=[*QUESTIONS[:3], "/reset", QUESTIONS[1]], model=model)
    lines = run.json_lines()
    rows = write_rows(tmp_path / "rows.jsonl", [{"prompt": line["prompt"]} for line in lines])
    whole = generate("--json", "--prompts", rows, *few, model=model)
    assert len(lines) == 4 and [line["completion_ids"] for line in lines] == [line["completion_ids"] for line in whole.json_lines()]
    in_chat, in_generate = (int(re.search(r"^([\d,]+) prompt tokens", of.stderr, re.MULTILINE)[1].replace(",", "")) for of in (run, whole))
    assert in_chat < in_generate or new_tokens == 24, (in_chat, in_generate)
    assert "guesses no repeated text" in run.stderr


def test_reset_system_and_adapter(tmp_path, tiny_math_run):
    question = QUESTIONS[0]
    lines = answers("--adapter", tiny_math_run, "--system", "Be brief.", said=[
        question, "/adapter off", "/reset", question, "/adapter on", "/reset", question, "/system", "/reset", question, "/exit", question], model=None)
    brief = write_rows(tmp_path / "brief.jsonl", [{"prompt": [{"role": "system", "content": "Be brief."}, user(question)]}, {"prompt": question}])
    (base, _), (tuned, plain) = ([line["completion_ids"] for line in completions("--prompts", brief, *flags)] for flags in ((), ("--adapter", tiny_math_run)))
    assert tuned != base
    assert [line["completion_ids"] for line in lines] == [tuned, base, tuned, plain]
    assert [len(line["prompt"]) for line in lines] == [2, 2, 2, 1]


def test_a_repeated_question_is_drawn_anew():
    draw = [answers("--temperature", "1.5", "--max-new-tokens", "16", "--seed", "5", said=[QUESTIONS[0], "/reset", QUESTIONS[0]]) for _ in range(2)]
    assert draw[0] == draw[1] and draw[0][0]["completion_ids"] != draw[0][1]["completion_ids"]


@pytest.mark.parametrize("arguments, said, code, part", [
    ((), [QUESTIONS[0], "/rest"], 2, "stdin:2: /rest: unknown command. Did you mean \"/reset\"?"), ((), b"a\xff\n", 3, "stdin:1: the message is not UTF-8 at byte 2"),
    ((), ["word " * 1100], 3, "stdin:1: the message has"), ((*LONG, "--max-new-tokens", "100000"), ["word " * 200, "word " * 900], 3, "stdin:2: the conversation has"),
    (("--chat-template", "no-such"), [], 5, "Built in: "), (("--prompt", "a"), [], 2, "--prompt"), (("--max-new-tokens", "0"), [], 2, "from 1 to")])
def test_a_mistake_ends_a_script(arguments, said, code, part):
    expect_end(chat(*arguments, said=said), code, part)


def test_a_model_without_a_template_names_the_flag(tmp_path):
    model = model_without_template(tmp_path)
    expect_end(chat(said=["a"], model=model), 4, "--chat-template chatml")
    assert len(answers("--chat-template", "chatml", "--max-new-tokens", "3", said=["a"], model=model)) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_script_with_0(number):
    process = subprocess.Popen([str(BINARY), "chat", "--model", str(MODEL), *FP32], env=ENVIRONMENT, stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdin.write(QUESTIONS[0].encode() + b"\n")
    process.stdin.flush()
    assert process.stdout.readline()
    process.send_signal(number)
    assert process.wait(timeout=10) == 0, process.stderr.read()
    process.communicate()


# A person.

def test_two_turns_then_the_base_then_ctrl_d(tmp_path, tiny_math_run):
    tuned, base = (completions("--prompt", QUESTIONS[0], *flags)[0]["completion"].split("\n")[0] for flags in (("--adapter", tiny_math_run), ()))
    person = Person(tmp_path, "--adapter", tiny_math_run, model=None)
    assert tuned in person.say(QUESTIONS[0])
    person.say(QUESTIONS[1])
    assert "The conversation is forgotten." in person.say("/reset", r"forgotten\.\r\n.*> ")
    assert "The base model answers" in person.say("/adapter off", r"\(base\) > ")
    assert base in person.say(QUESTIONS[0], r"\r\n\r\n.*\(base\) > ")
    person.leave()


@edits_lines
def test_ctrl_c_stops_an_answer_and_then_ends_the_program(tmp_path):
    person = Person(tmp_path, *LONG)
    person.type(QUESTIONS[0] + "\r")
    person.wait_for(r"\r\n.")
    person.type(CTRL_C)
    assert "(stopped)" in person.wait_for(r"\r\n\r\n.*> ")
    person.type("half a message")
    person.wait_for("half a message")
    person.type(CTRL_C)
    person.wait_for(r"\^C\r\n.*> ")
    person.type(CTRL_C)
    assert person.finish() == 0


def test_sigterm_ends_with_0_and_gives_the_terminal_back(tmp_path):
    person = Person(tmp_path)
    person.type("half")
    person.wait_for("half")
    person.process.send_signal(signal.SIGTERM)
    assert person.finish() == 0


@edits_lines
def test_lines_are_edited_and_remembered(tmp_path):
    person = Person(tmp_path, "--json", "--max-new-tokens", "3")
    assert user("1 plus 21 é") in json.loads(re.search(r"\{.*\}", person.say("1 plus 1 é" + 3 * LEFT + "2"))[0])["prompt"]
    pasted = person.say(PASTE.format("first\rsecond\t\rthird"))
    assert json.loads(re.search(r"\{.*\}", pasted)[0])["prompt"][-1] == user("first\nsecond\t\nthird")
    person.leave()
    assert person.history.stat().st_mode & 0o777 == 0o600
    again = Person(tmp_path, "--json", "--max-new-tokens", "3")
    assert json.loads(re.search(r"\{.*\}", again.say(UP))[0])["prompt"] == [user("first\nsecond\t\nthird")]
    assert json.loads(re.search(r"\{.*\}", again.say(UP + UP))[0])["prompt"][-1] == user("1 plus 21 é")
    again.leave()


@edits_lines
def test_a_history_that_cannot_be_kept_is_said_once(tmp_path):
    (tmp_path / "lora-train").write_text("in the way")
    person = Person(tmp_path, "--max-new-tokens", "3")
    assert "the history of this chat is not saved" in person.say("a")
    assert "the history" not in person.say("b")
    person.leave()


def test_a_dumb_terminal_gets_plain_lines(tmp_path):
    person = Person(tmp_path, "--max-new-tokens", "8", terminal="dumb")
    assert "\x1b" not in person.say(QUESTIONS[0])
    person.leave()
    assert not person.history.exists()


def test_a_model_cannot_control_the_terminal(tmp_path):
    """A model whose digit 4 is the escape character."""
    model = tmp_path / "model"
    shutil.copytree(MODEL, model)
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    vocab, escape = tokenizer["model"]["vocab"], "\u011b"
    vocab[escape], vocab["4"] = vocab["4"], vocab[escape]
    (model / "tokenizer.json").write_text(json.dumps(tokenizer))
    asked = write_rows(tmp_path / "asked.jsonl", [{"prompt": text} for text in QUESTIONS if "4" not in text])
    question = next(line["prompt"] for line in completions("--prompts", asked) if "4" in line["completion"])
    person = Person(tmp_path, model=model)
    shown = person.say(question)
    answer = shown.split("\r\n", 1)[1]
    assert "\\x1b" in answer and "\x1b" not in answer.replace("\x1b[?2004l", "").replace("\x1b[?2004h", ""), shown
    person.leave()
