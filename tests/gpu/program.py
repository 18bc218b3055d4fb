"""Runs lora-train for the checks on a GPU, with nothing but Python's own library. LORA_TRAIN_BIN names its folder."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(os.environ.get("LORA_TRAIN_BIN", ROOT / "build/dev/bin"))
EXAMPLE = ROOT / "examples/tiny-math"


class Failure(Exception):
    """A check that failed: what was expected and what was found."""


def expect(condition, message):
    if not condition:
        raise Failure(message)


def run(*arguments, environment=None, timeout_s=600):
    """stdout of lora-train; a failure carries the command and the end of its stderr."""
    command = [str(BIN / "lora-train"), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, cwd=ROOT,
                          env=dict(os.environ, NO_COLOR="1", HF_HUB_OFFLINE="1", **(environment or {})))
    expect(done.returncode == 0, f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr[-3000:]}")
    return done.stdout


def settings(values):
    """--set arguments; a list or an object is written as JSON, which YAML is a superset of."""
    return [part for key, value in values.items() for part in
            ("--set", f"{key}={value if isinstance(value, str) else json.dumps(value)}")]


def train(profile, output_dir, *arguments, environment=None, **changes):
    """Trains and returns the summary."""
    out = run("train", *(["--profile", profile] if profile else []), "--output-dir", output_dir, "--json", *arguments,
              *settings(changes), environment=environment)
    return json.loads(out.strip().splitlines()[-1])


def events(output_dir, kind):
    lines = [json.loads(line) for line in (Path(output_dir) / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["event"] == kind]


def write_rows(path, num_rows, length, vocab_size):
    """Rows of token ids that can be learnt: each token follows from the one before."""
    with open(path, "w") as file:
        for row in range(num_rows):
            ids = [(17 * row + 1) % vocab_size]
            while len(ids) < length:
                ids.append((31 * ids[-1] + 7) % vocab_size)
            file.write(json.dumps({"input_ids": ids, "labels": ids}) + "\n")


def finish(check, *arguments):
    """Runs a check, prints its figure on the last line, and exits 1 where it fails."""
    started = time.monotonic()
    try:
        figure = check(*arguments)
    except (Failure, subprocess.TimeoutExpired) as error:
        print(f"FAILED after {time.monotonic() - started:.1f} s: {error}", flush=True)
        print("figure: " + str(error).splitlines()[0][:90])
        sys.exit(1)
    print(f"figure: {figure}")
