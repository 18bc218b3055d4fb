"""What a person sees while a run goes on: one line on a terminal, plain lines elsewhere."""

import json
import os
import re
import select
import signal
import subprocess
import time

import terminals
from command import BINARY, stop, wait_for

STOPPED = 75
BAR = re.compile(r"^ *\d+% ")
ESCAPE = re.compile(r"\x1b\[(\d*)([A-Za-z])")


class Screen:
    """As much of a terminal as the bar needs. One that becomes narrower wraps the lines it has, as tmux and most others do: the
    cursor stays at its place in the line."""

    def __init__(self, columns):
        self.columns, self.lines, self.line, self.at = columns, [""], 0, 0

    def feed(self, text):
        while text:
            escape = ESCAPE.match(text)
            if escape:
                self.control(*escape.groups())
                text = text[escape.end():]
                continue
            self.put(text[0])
            text = text[1:]

    def control(self, number, what):
        line = self.lines[self.line]
        if what == "K":  # to the end of the row
            end = (self.at // self.columns + 1) * self.columns
            self.lines[self.line] = (line[:self.at] + " " * (min(end, len(line)) - self.at) + line[end:]).rstrip()
        elif what == "J" and number in ("", "0"):
            self.lines[self.line] = line[:self.at]
            del self.lines[self.line + 1:]
        else:
            assert what == "m", (number, what)

    def put(self, character):
        if character == "\r":
            self.at = self.at // self.columns * self.columns
        elif character == "\n":
            self.line, self.at = self.line + 1, 0
            self.lines += [""] * (self.line + 1 - len(self.lines))
        else:
            line = self.lines[self.line].ljust(self.at)
            self.lines[self.line] = line[:self.at] + character + line[self.at + 1:]
            self.at += 1

    def rows(self):
        return [line[i:i + self.columns] for line in self.lines for i in range(0, max(len(line), 1), self.columns)]


class Terminal:
    """A run whose stderr is a terminal."""

    def __init__(self, setup, columns, term="xterm", **changes):
        self.screen, self.text = Screen(columns), ""
        self.fd, side = terminals.open_terminal(columns)
        self.process = subprocess.Popen([str(BINARY), "train", "--profile", str(setup.write_profile(**changes))], stderr=side,
                                        stdout=subprocess.DEVNULL, env=dict(terminals.COLOURFUL, TERM=term))
        os.close(side)

    def read(self, timeout=0.1):
        """False at the end."""
        if not select.select([self.fd], [], [], timeout)[0]:
            return True
        text = terminals.read_part(self.fd).decode()
        self.text += text
        self.screen.feed(text.replace("\r\n", "\n"))
        return bool(text)

    def read_until(self, pattern, limit_s=30):
        end, seen = time.monotonic() + limit_s, len(self.text)
        while not re.search(pattern, self.text[seen:]):
            assert self.read() and time.monotonic() < end, self.text[-3000:]

    def resize(self, columns):
        """With nothing on its way."""
        self.process.send_signal(signal.SIGSTOP)
        while select.select([self.fd], [], [], 0.1)[0]:
            self.read()
        terminals.set_columns(self.fd, columns)
        self.screen.columns = columns
        self.process.send_signal(signal.SIGCONT)

    def finish(self):
        while self.read(timeout=120):
            pass
        os.close(self.fd)
        return self.process.wait(timeout=120)


def bars(rows):
    return [row for row in rows if BAR.match(row)]


LONG = dict(max_steps=100000, save_steps=100000, val_set_size=2, eval_steps=50000, num_epochs="unset")


def test_the_line_fits_the_terminal(setup):
    """What leaves it at other widths, and without colours: progress_bar_test."""
    terminal = Terminal(setup, 120, **LONG)
    terminal.read_until(r"\x1b\[J *\d+% [^\r]*loss")
    terminal.process.send_signal(signal.SIGTERM)
    assert terminal.finish() == STOPPED
    rows = terminal.screen.rows()
    [bar] = bars(rows)
    assert all(name in bar for name in ("/100000", "<", "loss ", "eval ", "tok/s", "it/s", "lr 1.0e-02", "eval@50000", "save@100000")), bar
    assert len(bar) < 120 and any(row.startswith("stopped (SIGTERM)") for row in rows), rows


def test_a_terminal_that_becomes_narrower_and_wider_keeps_no_garbage(setup):
    terminal = Terminal(setup, 200, **LONG)
    terminal.read_until(r"epoch \d")
    for columns in (60, 35, 150):
        terminal.resize(columns)
        terminal.read_until(r"\x1b\[J *\d+% [^\r]*\r")
        rows = terminal.screen.rows()
        assert len(bars(rows)) == 1 and sum("loss 0." in row or "it/s" in row for row in rows) <= 1, rows
    terminal.process.send_signal(signal.SIGTERM)
    assert terminal.finish() == STOPPED
    rows = terminal.screen.rows()
    assert len(bars(rows)) == 1 and "tok/s" not in "".join(rows[rows.index(bars(rows)[0]) + 1:]).replace("tokens", ""), rows


def test_a_log_has_about_a_hundred_lines(setup):
    run = setup.train(max_steps=600, save_steps=600)
    steps = [int(step) for step in re.findall(r"^step (\d+)/600 ", run.stderr, re.MULTILINE)]
    assert run.code == 0 and steps[0] == 1 and steps[-1] == 600 and 90 < len(steps) < 130, run
    assert "\x1b" not in run.stderr and "\r" not in run.stderr
    assert re.search(r"^step 600/600 \(100%\) loss [\d.]+ lr 1.00e-02 epoch [\d.]+ [\d.]+ it/s [\d,]+ tok/s, \d+s elapsed, 0s left$", run.stderr, re.MULTILINE), run
    assert [line["step"] for line in setup.events("train")] == list(range(1, 601))  # all of them


def test_a_log_of_a_run_that_is_stopped_ends_with_its_last_step(setup):
    process = setup.start(**dict(LONG, val_set_size="unset", eval_steps="unset"))
    wait_for(lambda: len(setup.events("train")) >= 5, "step 5", process)
    stderr = stop(process)
    steps = re.findall(r"^step (\d+)/100000 ", stderr, re.MULTILINE)
    assert int(steps[0]) == 1 and int(steps[-1]) == setup.summary()["step"], stderr


def test_an_evaluation_says_how_far_it_is(setup):
    rows = setup.rows * 40
    (setup.folder / "val.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    terminal = Terminal(setup, 120, eval_datasets=[{"path": str(setup.folder / "val.jsonl"), "type": "pretokenized", "name": "val"}])
    assert terminal.finish() == 0
    done = re.findall(r"evaluating val (\d+)/(\d+)", terminal.text)
    assert done and all(1 <= int(number) <= int(whole) for number, whole in done), terminal.text
    [bar] = bars(terminal.screen.rows())
    assert "evaluating" not in bar and f"eval {setup.summary()['eval_loss']:.4f}" in bar, bar


def test_a_dumb_terminal_gets_plain_lines(setup):
    terminal = Terminal(setup, 80, term="dumb")
    assert terminal.finish() == 0
    assert "\x1b" not in terminal.text and re.findall(r"^step (\d)/3 ", terminal.text, re.MULTILINE) == ["1", "2", "3"], terminal.text
