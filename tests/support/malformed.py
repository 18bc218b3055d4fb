"""What test_malformed_*.py share: running the binary on a broken file, and what every refusal promises."""

import json
import os
from dataclasses import dataclass
from typing import Callable

from command import lora_train

USAGE, FORMAT, IO = 2, 4, 5
KINDS = {USAGE: "config", FORMAT: "format", IO: "io"}
MAX_CPU_S = 20  # a good refusal takes milliseconds, with torch two seconds, however long a busy machine takes for them
MAX_MESSAGE = 10_000  # characters; whatever the file holds, a message stays readable


@dataclass(frozen=True)
class Case:
    """One broken input: what makes it, and the place and the words of the refusal."""
    name: str
    make: Callable  # called with the fixture that the file at hand describes
    place: str  # what `where` ends in
    words: str | tuple  # all of them stand in the message
    code: int = FORMAT


def run_quickly(*arguments, cwd=None, environment=()):
    return lora_train(*arguments, cwd=cwd, environment=environment, cpu_seconds=MAX_CPU_S)


def assert_refused(run, case):
    """The exit code, kind, place and words of `case`, said once, in plain characters and in a few lines."""
    assert run.code == case.code, run
    error = json.loads(run.stdout.splitlines()[-1])["error"]
    assert error["kind"] == KINDS[case.code], run
    assert error["where"].endswith(case.place) and (error["where"] or not case.place), error
    for word in [case.words] if isinstance(case.words, str) else case.words:
        assert word in error["message"], f"{word!r} is not in {error}"
    assert "internal error" not in run.stderr, run
    assert len(run.stderr) < MAX_MESSAGE, f"{len(run.stderr)} characters: {run}"
    odd = [c for c in run.stderr if c != "\n" and not c.isprintable()]
    assert not odd, f"control characters would reach the terminal: {odd}"


def ids(cases):
    return [case.name for case in cases]


def assert_enough(cases, minimum):
    names = ids(cases)
    assert len(names) == len(set(names)) >= minimum, f"{len(names)} cases, {len(set(names))} names"


def fifo(path):
    """A pipe that nobody writes to: opening it would wait for ever."""
    path.unlink(missing_ok=True)
    os.mkfifo(path)
