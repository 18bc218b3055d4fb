#!/usr/bin/env python3
"""Checks that two builds of the program say and write the same: the help of every command, `check --json` and `plan --json` of every
profile, bad profiles, conversions, and all that a short run leaves in its folder (adapters and checkpoints byte for byte; logs and pages
with their times blanked).

Usage: scripts/house/compare_outputs.py --bin NEW --against OLD      DIR holds lora-train
"""

import argparse
import difflib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RUN, CACHES = ROOT / "build/compare_outputs", ROOT / "build/compare_outputs_caches"
TIMES = re.compile(r"(_s|_ms|_at|_gib|time|times|rates?|per_s|mfu|usage|spans|provenance|version|tokens_per_second|memory|price|clock|load|run_id|percent|share|commit|xxh128|bytes)$")
NUMBER = re.compile(r"\b[0-9a-f]{8,}\b|\d+(?:[.,:]\d+)*(?:e-\d+)?")
CACHE_KEY = re.compile(r"[0-9a-f]{32}(?=\.tokens)")  # has the build in it


def without_times(value):
    if isinstance(value, dict):
        return {key: without_times(inner) for key, inner in value.items() if not TIMES.search(key)}
    return [without_times(inner) for inner in value] if isinstance(value, list) else value


def text_of(path):
    data = path.read_bytes()
    if path.suffix == ".safetensors" or path.name == "profile.yaml":
        return data
    if path.name.startswith("events.out"):
        return b"events"
    try:
        text = data.decode()
    except UnicodeDecodeError:  # pictures show times
        return b"binary"
    if path.suffix in {".json", ".jsonl"}:
        try:
            lines = [text] if path.suffix == ".json" else text.splitlines()
            return json.dumps([without_times(json.loads(line)) for line in lines], indent=0).encode()
        except json.JSONDecodeError:
            pass
    return NUMBER.sub("#", re.sub(r"time: .*|\"spans\":\[(\[[^]]*\],?)*\]", "", CACHE_KEY.sub("KEY", text))).replace('"commit":"#+"', '"commit":"#"').encode()


def outputs(folder):
    """{name: what is said}"""
    program = Path(folder).resolve() / "lora-train"
    found = {}
    for empty in (RUN, CACHES):
        shutil.rmtree(empty, ignore_errors=True)
    CACHES.mkdir(parents=True)

    def say(name, *arguments, blank=False):
        run = subprocess.run([program, *arguments], cwd=ROOT, capture_output=True, stdin=subprocess.DEVNULL,
                             env={**os.environ, "COLUMNS": "120", "OMP_NUM_THREADS": "2",
                                  "XDG_CACHE_HOME": str(CACHES), "TMPDIR": str(CACHES)})
        said = f"exit {run.returncode}\n{run.stdout.decode()}\n{run.stderr.decode()}".replace(str(program.parent), "BIN")
        said = CACHE_KEY.sub("KEY", said)
        found[name] = (NUMBER.sub("#", re.sub(r"(?m)^time: .*", "", said)) if blank else said).encode()

    say("help", "--help")
    commands = re.findall(r"^  ([a-z][a-z-]+)  ", found["help"].decode(), re.MULTILINE)
    assert len(commands) > 20, commands
    for command in commands:
        say(f"help {command}", command, "--help")
        say(f"wrong flag {command}", command, "--no-such-flag", "x")
    say("keys", "check", "--keys")
    for shell in ("bash", "zsh", "fish"):
        say(f"completion {shell}", "completion", shell)
    profiles = sorted([*ROOT.glob("configs/*.yaml"), *ROOT.glob("configs/*.json"), *ROOT.glob("configs/jobs/*/*.yaml"),
                       *ROOT.glob("examples/*/*.yaml")])
    assert len(profiles) > 15
    for profile in profiles:
        name = str(profile.relative_to(ROOT))
        for model in ([], ["--model", "examples/orders/model", "--train-data", "examples/orders/train.jsonl"]):
            say(f"check {name} {len(model)}", "check", "--json", name, *model)
        say(f"plan {name}", "plan", "--json", name, "--model", "examples/orders/model", "--train-data", "examples/orders/train.jsonl")
    for case in sorted(Path(os.environ.get("LORA_TRAIN_TEST_DATA", ROOT / "../shared/data")).glob("**/*.y*ml"))[:120]:
        say(f"check {case.name}", "check", "--json", str(case))
        say(f"convert {case.name}", "convert", str(case))
    say("train", "train", "configs/tiny_cpu.yaml", "--output-dir", str(RUN), "--max-steps", "8", "--save-steps", "4", "--eval-steps", "4",
        blank=True)
    say("resumed", "train", "configs/tiny_cpu.yaml", "--output-dir", str(RUN), "--max-steps", "12", "--save-steps", "4", "--eval-steps",
        "4", "--allow-changed", "max_steps", blank=True)
    for name, *arguments in (("eval", "eval", "--profile", "configs/tiny_cpu.yaml", "--adapter", f"{RUN}/adapter", "--json"),
                             ("tokenize", "tokenize", "configs/tiny_cpu.yaml", "--show", "2"),
                             ("tokenize step", "tokenize", "configs/tiny_cpu.yaml", "--step", "1"),
                             ("merge", "merge", "--model", "examples/tiny-math/model", "--adapter", f"{RUN}/adapter", "--output-dir",
                              f"{RUN}/merged"),
                             ("export", "export", f"{RUN}/merged", "--output", f"{RUN}/merged.gguf")):
        say(name, *arguments, blank=name in ("eval", "merge", "export"))
    files = sorted(path for path in RUN.rglob("*") if path.is_file())
    assert len(files) > 15, files
    found["files"] = "\n".join(str(path.relative_to(RUN)).split("tfevents")[0] for path in files).encode()
    for path in files:
        found[f"file {str(path.relative_to(RUN)).split('tfevents')[0]}"] = path.read_bytes() if path.suffix == ".gguf" else text_of(path)
    shutil.rmtree(RUN)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--against", required=True)
    arguments = parser.parse_args()
    new, old = outputs(arguments.bin), outputs(arguments.against)
    different = [name for name in sorted(new.keys() | old.keys()) if new.get(name) != old.get(name)]
    for name in different:
        print(f"== {name}")
        before, after = (found.get(name, b"").decode(errors="replace").splitlines() for found in (old, new))
        for line in list(difflib.unified_diff(before, after, "old", "new", lineterm="", n=0))[:20]:
            print(line[:400])
    print(f"compare_outputs: {len(new)} outputs, {len(different)} differ")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
