"""A forked program does what a started one does (tests/support/fork_server.py)."""

import re
import signal
import subprocess

import fork_server
import pytest

from command import BINARY, ENVIRONMENT, lora_train
from tiny_math import MODEL


def both(*arguments, **options):
    """(code, stdout, stderr without times) of a forked and of a started program."""
    settings = dict(dict(environment=ENVIRONMENT, cwd=None, data=b"", timeout=600, cpu_seconds=0), **options)
    forked = fork_server.run(BINARY, *arguments, **settings)
    started = fork_server.start([str(BINARY), *map(str, arguments)], **settings)
    return [(done.returncode, done.stdout, re.sub(r"[\d.]+ (s|tok/s)\b", "TIME", done.stderr)) for done in (forked, started)]


def test_arguments_folder_stdin_and_streams_are_its_own(setup):
    rows = setup.rows_file.read_bytes()
    for arguments, options in ((["--version"], {}), (["train", "no.yaml"], {"cwd": setup.folder}), (["train", "model=\udcff"], {}),
                               (["check", setup.write_profile(), "--lora-r", "0"], {}), (["check", "profile.json"], {"cwd": setup.folder}),
                               (["tokenize", "--model", MODEL, "--text", "-"], {"data": "1 + \N{EURO SIGN}\0\r\n".encode()}),
                               (["chat", "--model", MODEL, "--json", "--set", "device=cpu"], {"data": b"1 + 1\n"}),
                               (["tokenize", setup.profile_file, "datasets=[{path: /dev/stdin, type: pretokenized}]"], {"data": rows})):
        forked, started = both(*arguments, **options)
        assert forked == started, arguments
        assert forked[1] or forked[2], arguments


def test_its_environment_is_its_own(setup):
    setup.write_profile(output_dir="${WHERE}")
    for environment in (dict(ENVIRONMENT, WHERE=str(setup.folder / "a")), dict(ENVIRONMENT, WHERE="relative"), ENVIRONMENT):
        forked, started = both("check", setup.profile_file, environment=environment, cwd=setup.folder)
        assert forked == started
    assert "WHERE" in started[2]


def test_numbers_are_those_of_a_start_and_nothing_stays_from_the_run_before(setup):
    def losses(run):
        run("train", setup.write_profile(seed=1), "--overwrite")
        return [line["loss"] for line in setup.events("train")]

    def start(*arguments):
        subprocess.run([BINARY, *arguments], env=ENVIRONMENT, check=True, capture_output=True)

    started = losses(start)
    assert len(started) == 3 and losses(lora_train) == started and losses(lora_train) == started


def test_limits_signals_and_time_end_it_and_the_next_one_runs(setup):
    endless = ["train", setup.write_profile(max_steps=10**8)]
    assert fork_server.run(BINARY, *endless, environment=ENVIRONMENT, cpu_seconds=1).returncode in (-signal.SIGKILL, -signal.SIGXCPU)
    with pytest.raises(subprocess.TimeoutExpired):
        fork_server.run(BINARY, *endless, "--overwrite", environment=ENVIRONMENT, timeout=1)
    assert lora_train("--version").code == 0
