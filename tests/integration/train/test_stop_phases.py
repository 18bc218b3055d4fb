"""SIGTERM inside a single block of work that takes minutes: a file without an example, one huge example, a slow chat template,
epochs without number. The program must not finish the block first. test_signals.py has the moments between blocks."""

import gzip
import json
import os
import signal
import string
import subprocess
import time
from pathlib import Path

import pytest
from byte_tokenizer import write_tokenizer
from command import BINARY, ENVIRONMENT, handles_signals, wait_for
from long_run import PERCENT

STOPPED = 75
LIMIT_S = 30  # the promise is 2 s; this machine may be busy with something else. Without a stop, every phase takes minutes
MIB = 1 << 20


def use(setup, name, data=None, **dataset):
    path = setup.folder / name
    if data is not None:
        path.write_bytes(data)
    return dict(datasets=[{"path": str(path), **dataset}])


def gzip_of_line_ends(setup):
    return use(setup, "rows.jsonl.gz", gzip.compress(b"\n" * (64 * MIB)) * 256)


def blank_lines(setup):
    changes = use(setup, "rows.jsonl")
    with open(changes["datasets"][0]["path"], "wb") as file:
        for _ in range(4096):
            file.write(b"\n" * MIB)
    return changes


def csv_of_line_ends(setup):
    return use(setup, "rows.csv.gz", gzip.compress(b"\n" * (64 * MIB)) * 256)


def huge_file(setup):
    changes = use(setup, "rows.jsonl")
    with open(changes["datasets"][0]["path"], "wb") as file:
        file.truncate(1 << 40)
    return changes


def slow_template(setup):
    """900,000 steps an example, under the limit of a million; hundreds of examples are one block."""
    write_tokenizer(setup)
    (setup.model / "chat_template.jinja").write_text(
        "{% for a in range(300) %}{% for b in range(300) %}{{ a + b * 2 }}{% endfor %}{% endfor %}"
        "{% for m in messages %}{{ m.content }}{% endfor %}")
    row = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    return use(setup, "chats.jsonl", (json.dumps(row) + "\n").encode() * 500)


def many_messages(setup):
    write_tokenizer(setup)
    (setup.model / "chat_template.jinja").write_text(
        "{% for m in messages %}{% for n in messages %}{% if m.content == n.content %}{% endif %}{% endfor %}{% endfor %}")
    messages = [{"role": ("user", "assistant")[i % 2], "content": "a" * 100} for i in range(340)]
    return use(setup, "chats.jsonl", (json.dumps({"messages": messages}) + "\n").encode() * 500)


def one_word(setup):
    write_tokenizer(setup, merges=["a a", "aa aa", "aaaa aaaa"], vocabulary=["aa", "aaaa", "aaaaaaaa"])
    return use(setup, "text.jsonl", json.dumps({"text": "a" * (60 * MIB)}).encode() + b"\n") | {"max_seq_len": "auto"}


def marks(setup):
    write_tokenizer(setup, normalizer={"type": "NFC"})
    text = "a" + "\u0301\u0323" * (15 * MIB)
    return use(setup, "text.jsonl", json.dumps({"text": text}, ensure_ascii=False).encode() + b"\n")


def uncounted_epochs(setup):
    """Packing shuffled documents: every epoch has to be packed to be counted."""
    return dict(max_steps="unset", num_epochs=1e8, packing=True, shuffle=True)


def many_merges(setup):
    """2.3 million: every word of up to 4 letters, and some of 5. (Equal merges are refused after a thousand.)"""
    words, merges, last = [], [], list(string.ascii_lowercase)
    for letters in (string.ascii_lowercase,) * 3 + ("abcd",):
        merges += [f"{word} {letter}" for word in last for letter in letters]
        last = [word + letter for word in last for letter in letters]
        words += last
    write_tokenizer(setup, merges=merges, vocabulary=words)
    return use(setup, "text.jsonl", b'{"text": "a"}\n')


IN_CI = [gzip_of_line_ends, slow_template]
PHASES = IN_CI + [blank_lines, huge_file, one_word, csv_of_line_ends, many_messages, marks, uncounted_epochs, many_merges]


def cpu_seconds(process):
    fields = Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("phase", PHASES if PERCENT else IN_CI, ids=lambda phase: phase.__name__)
def test_stop_inside_a_block(setup, phase, record_property):
    profile = setup.write_profile(**{"max_seq_len": 64, **phase(setup)})
    process = subprocess.Popen([str(BINARY), "train", "--profile", str(profile), "overlength=drop", "max_drop_fraction=1"],
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
    wait_for(lambda: handles_signals(process.pid), "the first look for signals", process)
    begun = cpu_seconds(process)
    wait_for(lambda: cpu_seconds(process) >= begun + (2.0 if PERCENT else 0.7), "work on the block", process)
    start = time.monotonic()
    process.send_signal(signal.SIGTERM)
    try:
        stderr = process.communicate(timeout=LIMIT_S)[1]
    finally:
        process.kill()
    record_property("shown", f"durability: {phase.__name__}: {time.monotonic() - start:.2f} s from the signal to the end")
    assert process.returncode == STOPPED, stderr[-2000:]
    assert setup.summary()["status"] == "stopped"
    assert not setup.events("train"), "the signal came after the block"


def test_steps_without_number_cost_nothing(setup):
    run = setup.train(max_steps=10**12, packing=True, shuffle=True, save_steps="epoch", max_time="2s")
    assert run.code == STOPPED, run
    assert setup.summary()["total_steps"] == 10**12
    assert setup.summary()["peak_host_memory_gib"] < 4
    assert setup.events("train")
