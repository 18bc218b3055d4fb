"""Runs lora-train for the checks on a GPU, with nothing but Python's own library. LORA_TRAIN_BIN names its folder.

What a part of gpu_check prints for the driver (gpu_check.py), each on a line of its own:

  checked: 66 of 66 kernels   how much was looked at, of how much there is. Without this line, a part has failed
  measured: NAME NUMBER       a figure for measured.json and the table of goals
  finding: TEXT               what is slow, or may be wrong, although the part passes; shown at the end, and decides the next call
  choice: TEXT                which of two ways was faster; shown at the end
  figure: TEXT                the part in one line
"""

import argparse
import importlib.util
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(os.environ.get("LORA_TRAIN_BIN", ROOT / "build/dev/bin"))
EXAMPLE = ROOT / "examples/tiny-math"


class Failure(Exception):
    """A check that failed: what was expected and what was found."""


class DoesNotFit(Failure):
    """A step that was refused for lack of GPU memory before it began."""


class Skipped(Exception):
    """A check that this machine cannot make, and why."""


def expect(condition, message):
    if not condition:
        raise Failure(message)


def checked(number, expected, what):
    """What was looked at; a part that has looked at less than there is fails."""
    print(f"checked: {number} of {expected} {what}", flush=True)
    expect(number == expected and number > 0, f"{number} of {expected} {what} were looked at")


def measured(name, value):
    expect(math.isfinite(value), f"{name} is {value}")
    print(f"measured: {name} {value:.6g}", flush=True)


def library_path():
    """LD_LIBRARY_PATH for the programs of a bundle, which carry no path to LibTorch."""
    torch = importlib.util.find_spec("torch")
    expect(torch is not None, "this Python has no torch")
    site = Path(torch.origin).parents[1]
    folders = [os.environ.get("LD_LIBRARY_PATH", ""), str(BIN / "lib"), str(site / "torch/lib"), str(site / "nvidia/cu13/lib")]
    return ":".join(filter(None, folders))


def run_shown(command, timeout_s, environment=None, stdout=None):
    """(exit code, output) of a command whose lines are printed as they come, so that a stop leaves them. stdout: a file for it;
    output is then stderr alone. Throws TimeoutExpired."""
    process = subprocess.Popen(list(map(str, command)), stdout=stdout or subprocess.PIPE, text=True, errors="replace", cwd=ROOT,
                               stderr=subprocess.PIPE if stdout else subprocess.STDOUT, env=dict(os.environ, **(environment or {})))
    timer, lines = threading.Timer(max(1.0, timeout_s), process.kill), []
    timer.start()
    try:
        for line in process.stderr if stdout else process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
        process.wait()
    finally:
        is_stopped = not timer.is_alive()
        timer.cancel()
        process.kill()
    if is_stopped:
        raise subprocess.TimeoutExpired(process.args, timeout_s, "".join(lines))
    return process.returncode, "".join(lines)


def run_program(name, *arguments, environment=None, timeout_s=600):
    """(exit code, stdout and stderr) of a test program. Throws Failure where it does not exist."""
    expect((BIN / name).exists(), f"{name} is not in {BIN}")
    return run_shown([BIN / name, *arguments], timeout_s, dict(environment or {}, LD_LIBRARY_PATH=library_path()))


def run(*arguments, environment=None, timeout_s=600):
    """stdout of lora-train, whose stderr is printed; a failure carries the command and the end of its stderr."""
    with tempfile.TemporaryFile("w+") as stdout:
        code, stderr = run_shown([BIN / "lora-train", *arguments], timeout_s,
                                 dict(environment or {}, NO_COLOR="1", HF_HUB_OFFLINE="1"), stdout)
        kind = DoesNotFit if code == 6 and "out of GPU memory before step 1" in stderr else Failure
        if code != 0:
            raise kind(f"lora-train {' '.join(map(str, arguments))}: exit code {code}\n{stderr[-3000:]}")
        stdout.seek(0)
        return stdout.read()


def settings(values):
    """--set arguments; a list or an object is written as JSON, which YAML is a superset of."""
    return [part for key, value in values.items() for part in
            ("--set", f"{key}={value if isinstance(value, str) else json.dumps(value)}")]


def train(profile, output_dir, *arguments, environment=None, **changes):
    """Trains and returns the summary."""
    out = run("train", *(["--profile", profile] if profile else []), "--output-dir", output_dir, "--json", *arguments,
              *settings(changes), environment=environment)
    return json_line(out, "train")


def json_line(out, command, at=-1):
    lines = out.strip().splitlines()
    expect(lines and lines[at].startswith("{"), f"lora-train {command} printed no JSON")
    return json.loads(lines[at])


def bench(shape, device, *arguments, environment=None, timeout_s=600):
    """The JSON of lora-train bench, which has measured steps on that device."""
    steps = [] if "--steps" in arguments else ["--steps", "3", "--warm-up", "1"]
    tiny = [] if device == "cuda" else ["max_seq_len=64", *steps]
    found = json_line(run("bench", "--shape", shape, f"device={device}", *tiny, "--json", *arguments, environment=environment,
                          timeout_s=timeout_s), "bench")
    speed = found["speed"]
    expect((found["device"] == "cpu") == (device == "cpu"), f"measured on {found['device']}")
    expect(speed and speed["tokens_per_s"] > 0 and speed["step_ms"] > 0, f"{shape}: no speed in {speed}")
    expect(math.isfinite(speed["first_loss"]) and math.isfinite(speed["last_loss"]), f"{shape}: losses {speed}")
    return found


def events(output_dir, kind):
    lines = [json.loads(line) for line in (Path(output_dir) / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["event"] == kind]


def write_rows(path, num_rows, length, vocab_size):
    """Examples of token ids that can be learnt: each token follows from the one before."""
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
    except Skipped as reason:
        print(f"figure: {reason}")
        sys.exit(77)
    except (Failure, subprocess.TimeoutExpired, OSError, ValueError, LookupError, TypeError) as error:
        if isinstance(error, subprocess.TimeoutExpired):
            error = Failure(f"{Path(error.cmd[0]).name} was stopped after {error.timeout:.0f} s")
        print(f"FAILED after {time.monotonic() - started:.1f} s: {type(error).__name__}: {error}", flush=True)
        print("figure: " + (str(error).splitlines() or [type(error).__name__])[0][:150])
        sys.exit(1)
    print(f"figure: {figure}")


def run_check(checks, doc):
    """main() of a file of checks: FILE CHECK --device D --work DIR --out DIR --limit-s S."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("check", choices=[check.__name__ for check in checks])
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--work", type=Path, required=True, help="a folder for files that nobody keeps")
    parser.add_argument("--out", type=Path, help="a folder for what is kept (default: that of --work)")
    parser.add_argument("--limit-s", type=float, default=600)
    args = parser.parse_args()
    args.work = args.work.resolve()
    args.out = (args.out or args.work).resolve()
    for folder in (args.work, args.out):
        folder.mkdir(parents=True, exist_ok=True)
    args.deadline = time.monotonic() + args.limit_s
    finish(next(check for check in checks if check.__name__ == args.check), args)
