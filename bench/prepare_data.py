#!/usr/bin/env python3
"""Times what happens between the files of a dataset and the first step: reading, rendering, encoding and the token cache.

  threads   `tokenize` of chat rows on 1, 2, 4 ... cores (the program is bound to them), token cache empty
  cached    the same data from the cache
  rows      ten million rows of text: time and memory

The rows are made here from gsm8k (a number in each makes them differ). Nothing else should run.

Usage: bench/prepare_data.py [--bin build/dev/bin/lora-train] [--data ../shared/data] [--chats 200000] [--rows 10000000]
       [--work DIR] [--log FILE]
Writes bench/results/<date>-prepare-<cpu>.txt.
"""

import argparse
import datetime
import json
import os
import platform
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def cpu_name():
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return re.sub(r"[^a-z0-9]+", "-", line.split(":")[1].lower()).strip("-")
    return platform.machine()


def write_chats(source, target, count):
    rows = [json.loads(line)["messages"] for line in source.open()]
    with target.open("w") as out:
        for i in range(count):
            messages = [dict(message) for message in rows[i % len(rows)]]
            messages[1]["content"] = f"({i}) {messages[1]['content']}"
            out.write(json.dumps({"messages": messages}) + "\n")


def write_texts(target, count):
    with target.open("w") as out:
        for i in range(count):
            out.write(f'{{"text": "Row {i} of a long file: {i * i % 1000003} and then {i * 7919 % 999983}."}}\n')


def run(args, cores, work, data, layout):
    """Wall seconds, the largest resident and anonymous (not of mapped files) memory in MiB, what stdout said."""
    profile = {"model": str(args.model), "datasets": [{"path": str(data), "type": layout}], "output_dir": str(work / "run"),
               "dataset_prepared_path": str(work / "cache"), "max_seq_len": 2048, "overlength": "drop"}
    file = work / "profile.json"
    file.write_text(json.dumps(profile))
    before = set(range(cores))
    started = time.monotonic()
    process = subprocess.Popen([args.bin, "tokenize", "--profile", str(file)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True, preexec_fn=lambda: os.sched_setaffinity(0, before))
    peak = {"VmHWM": 0, "RssAnon": 0}
    while process.poll() is None:
        status = Path(f"/proc/{process.pid}/status").read_text()
        for key, value in re.findall(r"^(VmHWM|RssAnon):\s+(\d+) kB", status, re.M):
            peak[key] = max(peak[key], int(value) // 1024)
        time.sleep(0.02)
    out, err = process.communicate()
    wall = time.monotonic() - started
    if process.returncode != 0:
        raise SystemExit(f"{args.bin} ended with {process.returncode}:\n{err}")
    return wall, f"{peak['VmHWM']} MiB resident at most, {peak['RssAnon']} MiB of it anonymous", out.splitlines()[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=str(ROOT / "build/dev/bin/lora-train"))
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--chats", type=int, default=200_000)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--log", type=Path)
    args = parser.parse_args()
    args.bin = str(Path(args.bin).resolve())
    log = args.log or ROOT / "bench/results" / f"{datetime.date.today()}-prepare-{cpu_name()}.txt"
    work = Path(tempfile.mkdtemp(prefix="prepare-", dir=args.work))
    args.model = work / "model"
    args.model.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(args.data / "qwen2.5" / name, args.model / name)
    lines = []

    def say(text):
        print(text, flush=True)
        lines.append(text)

    commit = subprocess.run(["git", "-C", str(ROOT), "describe", "--always", "--dirty"], capture_output=True, text=True).stdout.strip()
    say(f"date {datetime.datetime.now():%Y-%m-%d %H:%M}, commit {commit}, {cpu_name()}, {os.cpu_count()} cores, "
        f"load before {os.getloadavg()[0]:.2f}; command: bench/prepare_data.py --chats {args.chats} --rows {args.rows}")
    try:
        chats = work / "chats.jsonl"
        write_chats(args.data / "datasets/chat/gsm8k-chat.jsonl", chats, args.chats)
        mib = chats.stat().st_size / 2**20
        cores, alone = 1, None
        while cores <= os.cpu_count():
            shutil.rmtree(work / "cache", ignore_errors=True)
            wall, memory, totals = run(args, cores, work, chats, "messages")
            alone = alone or wall
            say(f"{args.chats} chats ({mib:.0f} MiB), {cores} cores: {wall:.2f} s, {args.chats / wall:.0f} rows/s, {mib / wall:.1f} MiB/s, "
                f"{alone / wall:.2f}x of one core, {memory}   [{totals}]")
            cores *= 2
        wall, _, _ = run(args, os.cpu_count(), work, chats, "messages")
        say(f"the same from the token cache: {wall:.2f} s")
        chats.unlink()
        texts = work / "texts.jsonl"
        for count in (args.rows // 10, args.rows):
            write_texts(texts, count)
            mib = texts.stat().st_size / 2**20
            shutil.rmtree(work / "cache", ignore_errors=True)
            wall, memory, totals = run(args, os.cpu_count(), work, texts, "text")
            say(f"{count} rows of text ({mib:.0f} MiB), {os.cpu_count()} cores: {wall:.1f} s, {count / wall:.0f} rows/s, "
                f"{memory}   [{totals}]")
    finally:
        shutil.rmtree(work, ignore_errors=True)
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
