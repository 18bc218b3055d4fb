#!/usr/bin/env python3
"""Runs every command of lora-train on hostile folders, links, names and files (tests/batteries/hostile_cases.py), each in a sandbox of
its own, and checks after each that

- no byte of a file that was there has changed, and nothing was put beside it by a command that failed,
- no planted secret and no terminal escape stands in the output, run.log or a file that the command wrote,
- the exit code is one of those of the program, not 1 (internal), with a reason on stderr,
- it ended by itself; and, in a third of the cases, that SIGTERM ended it within 2 s (not counting the time in which other
  processes had its core).

Some cases need root (a device of their own, another user, an immutable file); without it they are left out, and counted.

Usage: tests/batteries/hostile_battery.py [--only TEXT] [--list] [--keep DIR] [--log FILE] [--bin build/ci/bin]
Committed results: tests/batteries/results/hostile_battery.txt. Exit status 1 when a case fails.
"""

import argparse
import hashlib
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(Path(__file__).resolve().parent))

import battery_log  # noqa: E402

EXAMPLE = ROOT / "examples/tiny-math"
SECRET = "sk-planted-9f86d081884c7d65"
NOBODY = 65534
LIMIT_S, STOP_S = 60, 2.0
CODES = {0, 2, 3, 4, 5, 6, 75}
CONTROL = re.compile(rb"[\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]")
CONTROL_IN_FILE = re.compile(rb"[\x00-\x08\x0b-\x1f]")  # of JSON, YAML and HTML, which nobody prints as they are
OF_A_FAILED_RUN = {"run.json", "run.log", "summary.json", "report.html", "metrics.jsonl"}
SETTINGS = ("device=cpu", "precision=fp32", "max_steps=2", "global_batch_size=2", "micro_batch_size=1", "max_seq_len=128",
            "report_to=none", "lora_r=2", "save_steps=1")


@dataclass
class Case:
    name: str
    make: object                          # Box -> arguments of lora-train
    codes: set = field(default_factory=lambda: CODES)
    is_stopped: bool = False              # SIGTERM too, whatever its number
    needs_root: bool = False


@dataclass
class Outcome:
    code: int
    seconds: float
    output: bytes
    problems: list


class Box:
    """The folder of a case; whatever is in it when the command starts is foreign, but for `own`."""

    def __init__(self, folder, world):
        self.folder, self.world = folder, world
        self.own = []          # paths of this program, which it may change
        self.is_nobody = False  # run as a user without rights
        self.environment = {}
        folder.mkdir()

    def __truediv__(self, name):
        return self.folder / name

    def write(self, name, content="mine\n"):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def link(self, name, target):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)
        return path

    def put(self, kind, name):
        """Something of that kind, a key of KINDS, under that name; what a link leads to is foreign."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        KINDS[kind](self, path)
        return path

    def copy(self, what, name):
        shutil.copytree(self.world / what, self.folder / name, symlinks=True)
        return self.folder / name

    def own_run(self, name="out"):
        """A finished run of this program."""
        self.own.append(self.folder / name)
        return self.copy("run", name)

    def train(self, out, *more):
        return ["train", "--model", self.world / "model", "--train-data", self.world / "rows.jsonl", b"--output-dir=" + os.fsencode(out),
                *more, *SETTINGS]

    def merge(self, out, *more):
        return ["merge", "--model", self.world / "model", "--adapter", self.world / "adapter", "--output-dir", out, "--no-check",
                *more]

    def init_model(self, out, *more):
        return ["init-model", "--config", self.world / "model", "--tokenizer", self.world / "model", "--output-dir", out, *more]

    def generate(self, *more, model=None, adapter=None):
        return ["generate", "--model", model or self.world / "model", "--adapter", adapter or self.world / "adapter", "--prompt",
                "1+1", "--max-new-tokens", "2", "--set", "device=cpu", "--set", "precision=fp32", *more]

    def evaluate(self, adapter):
        return ["eval", "--model", self.world / "model", "--adapter", adapter, "--eval-data", self.world / "rows.jsonl",
                "--max-samples", "2", "--set", "device=cpu", "--set", "precision=fp32"]

    def tokenize(self, data, *more):
        return ["tokenize", "--model", self.world / "model", "--train-data", data, *more]

    def check(self, profile, *more):
        return ["check", "--profile", profile, *more]


def bind(path):
    with socket.socket(socket.AF_UNIX) as made:
        here = os.getcwd()
        os.chdir(path.parent)  # the name of a socket has 107 bytes at most
        made.bind(path.name)
        os.chdir(here)


def null(path):
    """A /dev/null of the case's own: whoever replaces it harms nobody. Needs root."""
    os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    return path


KINDS = {
    "file": lambda box, path: path.write_text("precious\n"), "link to a file": lambda box, path: path.symlink_to(box.write("victim", "precious\n")),
    "folder": lambda box, path: box.write(path / "mine"), "link to a folder": lambda box, path: path.symlink_to(box.write("victims/file", "precious\n").parent),
    "fifo": lambda box, path: os.mkfifo(path), "dangling link": lambda box, path: path.symlink_to(box / "nothing"), "loop": lambda box, path: path.symlink_to(path),
    "socket": lambda box, path: bind(path), "null device": lambda box, path: null(path), "link to a device": lambda box, path: path.symlink_to(null(box / "null"))}


def files_below(folder):
    """{path: what it is}: kind and mode, and the bytes of a file or the target of a link."""
    found, waiting = {}, [os.fsencode(folder)]
    while waiting:
        path = waiting.pop()
        info = os.lstat(path)
        what = (stat.S_IFMT(info.st_mode), stat.S_IMODE(info.st_mode))
        if stat.S_ISDIR(info.st_mode):
            waiting += [entry.path for entry in os.scandir(path)]
        elif stat.S_ISREG(info.st_mode):
            what += (hashlib.sha256(Path(os.fsdecode(path)).read_bytes()).hexdigest(),)
        elif stat.S_ISLNK(info.st_mode):
            what += (os.readlink(path),)
        found[os.fsdecode(path)] = what
    return found


class World:
    """What all cases share and none may change: a model, rows, and a finished run with its adapter."""

    def __init__(self, folder, binary):
        self.folder, self.binary = folder, binary
        self.cache = folder / "cache"
        self.shared = folder / "world"
        self.shared.mkdir()
        self.cache.mkdir(mode=0o777)
        os.chmod(self.cache, 0o777)
        shutil.copytree(EXAMPLE / "model", self.shared / "model")
        shutil.copy(EXAMPLE / "heldout.jsonl", self.shared / "rows.jsonl")
        box = Box(folder / "first", self.shared)
        done = subprocess.run(self.command(box.train(self.shared / "run")), env=self.environment(box), capture_output=True)
        if done.returncode != 0:
            sys.exit(f"no case can run: {done.stderr.decode()}")
        shutil.copytree(self.shared / "run/adapter", self.shared / "adapter")
        self.files = files_below(self.shared)

    def command(self, arguments):
        return [os.fsencode(argument) for argument in [self.binary, *arguments]]

    def environment(self, box):
        return {"PATH": os.environ["PATH"], "HOME": str(box.folder), "XDG_CACHE_HOME": str(self.cache), "NO_COLOR": "1",
                "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "HF_HUB_OFFLINE": "1", "HOSTILE_SECRET": SECRET,
                **box.environment}

    def run(self, case, name, stop_after=None):
        """Makes the sandbox, runs the command and looks. stop_after: seconds until SIGTERM."""
        box = Box(self.folder / name, self.shared)
        arguments = case.make(box)
        before = files_below(box.folder)
        if box.is_nobody:
            for path in before:
                os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
        user = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if box.is_nobody else {}
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(self.command(arguments), cwd=box.folder, env=self.environment(box), stdout=output,
                                       stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, **user)
            code, seconds = wait(process, stop_after)
            output.seek(0)
            text = output.read(1 << 24)
        problems = look(case, box, before, code, seconds, text, stop_after is not None)
        if files_below(self.shared) != self.files:
            problems.append("changed what all cases share")
        return Outcome(code, seconds, text, problems)


def waited_for_a_core(process):
    """Seconds in which the main thread could have run, on a machine that has nothing else to do."""
    try:
        return int(Path(f"/proc/{process.pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


def has_ended(process):
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None


def wait(process, stop_after):
    """Exit code (None: it did not end), and the seconds that it took, from the signal on if there is one."""
    start, delay = time.monotonic(), 0.0
    is_stopped = stop_after is None
    while not has_ended(process):
        passed = time.monotonic() - start
        if passed > LIMIT_S:
            process.kill()
            process.wait()
            return None, passed
        if not is_stopped and passed >= stop_after:
            start, delay = time.monotonic(), waited_for_a_core(process)
            process.send_signal(signal.SIGTERM)
            is_stopped = True
        time.sleep(0.002)
    waited = waited_for_a_core(process) - delay if stop_after is not None else 0
    seconds = max(time.monotonic() - start - waited, 0)
    return process.wait(), seconds


def look(case, box, before, code, seconds, text, is_stopped):
    problems = []
    codes = CODES | {-signal.SIGTERM} if is_stopped else case.codes
    if code is None:
        problems.append(f"did not end in {LIMIT_S} s")
    elif code not in codes:
        problems.append(f"exit code {code}, expected one of {sorted(codes)}")
    if is_stopped and seconds > STOP_S:
        problems.append(f"ended {seconds:.1f} s after SIGTERM")
    if code not in (0, 75, None) and not is_stopped and not re.search(rb"^(error: |lora-train: |Usage|\S+: )\S", text, re.M):
        problems.append("no reason on stderr")
    after = files_below(box.folder)
    own = tuple(str(path) for path in box.own)

    def is_own(path):
        return any(path == name or path.startswith(name + "/") for name in own)

    problems += [f"changed {path!r}" for path, what in before.items() if not is_own(path) and after.get(path) != what]
    new = [path for path, what in after.items() if before.get(path) != what]
    if code not in (0, 75, None) and not is_stopped:
        foreign = foreign_folders(before, box, is_own)
        problems += [f"left {path!r} behind" for path in new
                     if os.path.dirname(path) in foreign and os.path.basename(path) not in OF_A_FAILED_RUN]
    return problems + leaks(text, new, before)


def foreign_folders(before, box, is_own):
    """Folders with someone's files in them; the sandbox itself is the user's working folder, where runs begin."""
    return {os.path.dirname(path) for path in before if not is_own(path)} - {str(box.folder), os.path.dirname(box.folder)}


def leaks(text, new, before):
    problems = []
    copied = {what[2] for what in before.values() if len(what) == 3}
    for name, content in [("the output", text), *((path, read(path)) for path in new)]:
        if "/.tmp-" in name:
            continue  # of a command that was stopped: space that is reserved holds zeros
        if name != "the output" and hashlib.sha256(content).hexdigest() in copied:
            continue
        if SECRET.encode() in content:
            problems.append(f"the secret is in {name!r}")
        pattern = CONTROL if name == "the output" or name.endswith("run.log") else CONTROL_IN_FILE
        if not name.endswith((".safetensors", ".png")) and (found := pattern.search(content)):
            problems.append(f"a control character is in {name!r}: {found[0]!r}")
    return problems


def read(path):
    info = os.lstat(path)
    return Path(path).read_bytes() if stat.S_ISREG(info.st_mode) else b""


def run_case(world, case, number):
    """The line of the report, and whether all was well."""
    outcome = world.run(case, f"{number:03d}")
    problems = outcome.problems
    stopped = "-"
    if case.is_stopped or number % 3 == 0:
        end = world.run(case, f"{number:03d}-stopped", stop_after=min(outcome.seconds * (number % 7 + 1) / 8, 5))
        stopped = f"{end.seconds:.1f}"
        problems = problems + [f"stopped: {problem}" for problem in end.problems]
    reason = outcome.output.decode(errors="replace").strip().splitlines()[-1:] or [""]
    line = f"{number:3d} {case.name:62s} {str(outcome.code):>4s} {outcome.seconds:5.1f} {stopped:>5s}  "
    line += "ok" if not problems else "FAILED: " + "; ".join(problems)
    return line, not problems, reason[0]


def main():
    import hostile_cases
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="only cases whose name holds this text")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--keep", type=Path, help="leave the sandboxes in this folder")
    parser.add_argument("--log", type=Path, help="also write the table to this file")
    parser.add_argument("--bin", type=Path, default=Path(os.environ.get("LORA_TRAIN_BIN", ROOT / "build/ci/bin")))
    parser.add_argument("--reasons", action="store_true", help="print the last line of each output too")
    args = parser.parse_args()
    cases = [(number, case) for number, case in enumerate(hostile_cases.CASES, 1) if args.only in case.name]
    if args.list:
        print("\n".join(f"{number:3d} {case.name}" for number, case in cases))
        return
    say = battery_log.Log(args.log, ROOT).say
    say(f"  # {'case':62s} code     s  stop  verdict")
    folder = args.keep or Path(tempfile.mkdtemp(prefix="lora-train-hostile-"))
    folder.mkdir(exist_ok=True)
    os.chmod(folder, 0o755)
    failed = left_out = 0
    try:
        world = World(folder, args.bin.resolve() / "lora-train")
        for number, case in cases:
            if case.needs_root and os.getuid() != 0:
                left_out += 1
                continue
            line, is_good, reason = run_case(world, case, number)
            failed += not is_good
            say(line)
            if args.reasons:
                print(f"      {reason[:200]!r}")
    finally:
        if not args.keep:
            hostile_cases.give_back(folder)
            shutil.rmtree(folder, ignore_errors=True)
    say(f"{len(cases) - left_out} cases, {failed} failed" + (f", {left_out} need root" if left_out else ""))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
