"""`chat`: a script's conversation, and a person's at a terminal."""

import ctypes
import fcntl
import json
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import termios
import time

import pytest

from command import BINARY, ENVIRONMENT, ROOT, lora_train, train_tiny_math

EXAMPLE = ROOT / "examples/tiny-math"
MODEL = EXAMPLE / "model"
FP32 = ("--set", "device=cpu", "--set", "precision=fp32")
QUESTIONS = [json.loads(line)["messages"][0]["content"] for line in (EXAMPLE / "heldout.jsonl").read_text().splitlines()]
LONG = ("--temperature", "5", "--top-k", "60", "--seed", "3")  # an answer of many tokens
UP, LEFT, PASTE = "\x1b[A", "\x1b[D", "\x1b[200~{}\x1b[201~"
EMPTY_LINE_END, CTRL_C = "\x04", "\x03"


def has_libedit():
    for name in ("libedit.so.2", "libedit.so.0"):
        try:
            return bool(ctypes.CDLL(name))
        except OSError:
            pass
    return False


edits_lines = pytest.mark.skipif(not has_libedit(), reason="libedit is not here")


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    return train_tiny_math(tmp_path_factory.mktemp("adapter"))


def chat(*arguments, said, model=MODEL):
    command = ["chat", *(["--model", str(model)] if model else []), *FP32, *map(str, arguments)]
    data = said if isinstance(said, bytes) else "".join(line + "\n" for line in said).encode()
    return lora_train(*command, data=data)


def answers(*arguments, said, **options):
    run = chat("--json", *arguments, said=said, **options)
    assert run.code == 0, run
    return run.json_lines()


def generated(messages, *arguments, folder):
    rows = folder / "row.jsonl"
    rows.write_text(json.dumps({"messages": messages}) + "\n")
    run = lora_train("generate", "--model", MODEL, *FP32, "--json", "--prompts", rows, *arguments)
    assert run.code == 0, run
    return run.json_lines()[0]


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


class Person:
    """Somebody at a terminal, with the history in a folder of their own."""

    def __init__(self, folder, *arguments, terminal="xterm", model=MODEL, columns=100):
        self.text, self.history = "", folder / "lora-train/chat_history"
        self.fd, side = pty.openpty()
        fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
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

    def finish(self):
        code = self.process.wait(timeout=60)
        self.read()
        assert termios.tcgetattr(self.side) == self.modes, "the terminal is left as it was not"
        os.close(self.side)
        os.close(self.fd)
        return code


# A script.

def test_a_turn_goes_through_the_template_with_all_turns_before_it(tmp_path):
    first, second = answers(said=QUESTIONS[:2])
    chats = [[user(QUESTIONS[0])], [user(QUESTIONS[0]), assistant(first["completion"]), user(QUESTIONS[1])]]
    assert [first["prompt"], second["prompt"]] == chats
    for line, messages in zip((first, second), chats):
        assert line["completion_ids"] == generated(messages, folder=tmp_path)["completion_ids"]


def test_what_is_in_the_cache_is_not_computed_again(tmp_path):
    run = chat("--json", said=QUESTIONS[:4])
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"prompt": line["prompt"]}) + "\n" for line in run.json_lines()))
    whole = lora_train("generate", "--model", MODEL, *FP32, "--json", "--prompts", rows)
    assert [line["completion_ids"] for line in run.json_lines()] == [line["completion_ids"] for line in whole.json_lines()]
    in_chat, in_generate = (int(re.search(r"^([\d,]+) prompt tokens", of.stderr, re.MULTILINE)[1].replace(",", "")) for of in (run, whole))
    assert in_chat < in_generate / 2, (in_chat, in_generate)


def test_stdout_has_the_answers_alone():
    lines = answers(said=QUESTIONS[:2])
    run = chat(said=[QUESTIONS[0], "/help", QUESTIONS[1]])
    assert run.code == 0 and run.stdout == "".join(line["completion"] + "\n" for line in lines), run
    assert "> " not in run.stderr.splitlines() and "/reset" in run.stderr, run


def test_reset_system_and_adapter(tmp_path, run_folder):
    question = QUESTIONS[0]
    lines = answers("--adapter", run_folder, "--system", "Be brief.", said=[
        question, "/adapter off", "/reset", question, "/adapter on", "/reset", question, "/system", "/reset", question, "/exit", question], model=None)
    tuned, base = (generated([{"role": "system", "content": "Be brief."}, user(question)], *flags, folder=tmp_path)["completion_ids"]
                   for flags in (("--adapter", run_folder), ()))
    plain = generated([user(question)], "--adapter", run_folder, folder=tmp_path)["completion_ids"]
    assert tuned != base
    assert [line["completion_ids"] for line in lines] == [tuned, base, tuned, plain]
    assert [len(line["prompt"]) for line in lines] == [2, 2, 2, 1]


def test_the_same_conversation_is_drawn_again_and_a_repeated_question_anew():
    draw = ("--temperature", "1.5", "--max-new-tokens", "16", "--seed", "5")
    said = [QUESTIONS[0], "/reset", QUESTIONS[0]]
    lines = answers(*draw, said=said)
    assert answers(*draw, said=said) == lines
    assert lines[0]["completion_ids"] != lines[1]["completion_ids"]


def test_a_backslash_continues_the_line():
    assert answers(said=["1 plus\\", "1?\\"])[0]["prompt"] == [user("1 plus\n1?")]


@pytest.mark.parametrize("said, code, part", [
    ([QUESTIONS[0], "/rest"], 2, "stdin:2: /rest: unknown command. Did you mean \"/reset\"?"), (b"a\xff\n", 3, "stdin:1: the message is not UTF-8 at byte 2"),
    (["word " * 1100], 3, "stdin:1: the message has"), (["/adapter off"], 2, "start with --adapter DIR")])
def test_a_mistake_ends_a_script(said, code, part):
    run = chat(said=said)
    assert run.code == code and part in run.stderr, run


def test_a_full_context_says_what_to_do():
    run = chat(*LONG, "--max-new-tokens", "100000", said=["word " * 200, "word " * 900])
    assert run.code == 3 and "stdin:2: the conversation has" in run.stderr and "/reset forgets the conversation" in run.stderr, run


@pytest.mark.parametrize("arguments, code, part", [
    (("--stop", ""), 2, "--stop"), (("--top-p", "0.9"), 2, "--temperature"), (("--chat-template", "no-such"), 5, "Built in: "),
    (("--prompt", "a"), 2, "--prompt"), (("--max-new-tokens", "0"), 2, "from 1 to")])
def test_flags_that_are_wrong(arguments, code, part):
    run = chat(*arguments, said=[])
    assert run.code == code and part in run.stderr, run


def test_a_model_without_a_template_names_the_flag(tmp_path):
    model = tmp_path / "model"
    shutil.copytree(MODEL, model, ignore=shutil.ignore_patterns("chat_template.jinja"))
    config = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps({key: config[key] for key in config if key != "chat_template"}))
    run = chat(said=["a"], model=model)
    assert run.code == 4 and "--chat-template chatml" in run.stderr, run
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

def test_two_turns_then_the_base_then_ctrl_d(tmp_path, run_folder):
    question = QUESTIONS[0]
    tuned, base = (generated([user(question)], *flags, folder=tmp_path)["completion"].split("\n")[0] for flags in (("--adapter", run_folder), ()))
    person = Person(tmp_path, "--adapter", run_folder, model=None)
    shown = person.say(question)
    assert tuned in shown, shown
    person.say(QUESTIONS[1])
    assert "The conversation is forgotten." in person.say("/reset", r"forgotten\.\r\n.*> ")
    assert "The base model answers" in person.say("/adapter off", r"\(base\) > ")
    assert base in person.say(question, r"\r\n\r\n.*\(base\) > ")
    person.type(EMPTY_LINE_END)
    assert person.finish() == 0


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
    person.type(EMPTY_LINE_END)
    assert person.finish() == 0
    assert person.history.stat().st_mode & 0o777 == 0o600
    again = Person(tmp_path, "--json", "--max-new-tokens", "3")
    assert json.loads(re.search(r"\{.*\}", again.say(UP))[0])["prompt"] == [user("first\nsecond\t\nthird")]
    assert json.loads(re.search(r"\{.*\}", again.say(UP + UP))[0])["prompt"][-1] == user("1 plus 21 é")
    again.type(EMPTY_LINE_END)
    assert again.finish() == 0


@edits_lines
def test_a_history_that_cannot_be_kept_is_said_once(tmp_path):
    (tmp_path / "lora-train").write_text("in the way")
    person = Person(tmp_path, "--max-new-tokens", "3")
    assert "the history of this chat is not saved" in person.say("a")
    assert "the history" not in person.say("b")
    person.type(EMPTY_LINE_END)
    assert person.finish() == 0


def test_a_dumb_terminal_gets_plain_lines(tmp_path):
    person = Person(tmp_path, "--max-new-tokens", "8", terminal="dumb")
    shown = person.say(QUESTIONS[0])
    assert "\x1b" not in shown
    person.type(EMPTY_LINE_END)
    assert person.finish() == 0
    assert not person.history.exists()


def test_a_model_cannot_control_the_terminal(tmp_path):
    """A model whose digit 4 is the escape character."""
    model = tmp_path / "model"
    shutil.copytree(MODEL, model)
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    vocab, escape = tokenizer["model"]["vocab"], "\u011b"
    vocab[escape], vocab["4"] = vocab["4"], vocab[escape]
    (model / "tokenizer.json").write_text(json.dumps(tokenizer))
    question = next(text for text in QUESTIONS if "4" in generated([user(text)], folder=tmp_path)["completion"] and "4" not in text)
    person = Person(tmp_path, model=model)
    shown = person.say(question)
    answer = shown.split("\r\n", 1)[1]
    assert "\\x1b" in answer and "\x1b" not in answer.replace("\x1b[?2004l", "").replace("\x1b[?2004h", ""), shown
    person.type(EMPTY_LINE_END)
    assert person.finish() == 0
