"""Running the binary on a broken file, and what every refusal promises."""

import json
import os
from dataclasses import dataclass
from typing import Callable

from command import lora_train

USAGE, DATA, FORMAT = 2, 3, 4
KINDS = {USAGE: "config", DATA: "data", FORMAT: "format"}
MAX_CPU_S = 20  # a good refusal takes milliseconds, with torch two seconds, however long a busy machine takes for them
MAX_MESSAGE = 10_000  # characters; whatever the file holds, a message stays readable


@dataclass(frozen=True)
class Case:
    """One broken input: what makes it and returns the command, and the place and the words of the refusal."""
    name: str
    make: Callable  # called with a conftest.Setup
    place: str  # what `where` ends in
    words: tuple  # all of them stand in the message
    code: int = FORMAT


def run_quickly(*arguments, cwd=None):
    return lora_train(*arguments, cwd=cwd, cpu_seconds=MAX_CPU_S)


def assert_refused(run, case):
    """The exit code, kind, place and words of `case`, said once, in plain characters and in a few lines."""
    assert run.code == case.code, run
    error = json.loads(run.stdout.splitlines()[-1])["error"]
    assert error["kind"] == KINDS[case.code], run
    assert error["where"].endswith(case.place) and error["where"], error
    for word in case.words:
        assert word in error["message"], f"{word!r} is not in {error}"
    assert "internal error" not in run.stderr, run
    assert len(run.stderr) < MAX_MESSAGE, f"{len(run.stderr)} characters: {run}"
    odd = [c for c in run.stderr if c != "\n" and not c.isprintable()]
    assert not odd, f"control characters would reach the terminal: {odd}"


def fifo(path):
    """A pipe that nobody writes to: opening it would wait for ever."""
    path.unlink(missing_ok=True)
    os.mkfifo(path)
