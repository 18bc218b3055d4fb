"""Kills `distill` at random moments (SIGKILL of all its processes at once) and runs the same command again, until a run has ended by
itself: no answer that was recorded is asked for again, and rows, losses and adapter are those of a run that nobody disturbed.
Two kills run in CI (test_distill.py); all of them:

    LORA_TRAIN_BIN=build/dev/bin python tests/batteries/distill_battery.py      writes results/distill_battery.txt
"""

import collections
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/support"))
from teacher_server import FAULTS, TeacherServer  # noqa: E402

BINARY = Path(os.environ.get("LORA_TRAIN_BIN", ROOT / "build/dev/bin")) / "lora-train"
NUM_KILLS, KILLS_OF_A_RUN = 30, 4
PROFILE = """\
model: {root}/examples/tiny-math/model
datasets: [{{path: {folder}/prompts.jsonl}}]
val_set_size: 12
teacher: {url}
teacher_system: A long prompt that only the teacher sees.
device: cpu
precision: fp32
max_seq_len: 192
packing: false
global_batch_size: 8
num_epochs: null
max_steps: 30
learning_rate: 5.0e-3
eval_steps: 10
save_steps: 2
report_to: none
output_dir: {folder}/{name}
"""


def children_of(pid):
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            found += [int(child), *children_of(child)]
    return found


def kill_all(process):
    """No process of the run sees the end of another."""
    process.send_signal(signal.SIGSTOP)
    pids = children_of(process.pid)
    for pid in [*pids, process.pid]:
        os.kill(pid, signal.SIGKILL)
    process.wait()


class Place:
    """A folder with prompts, and runs on them. Some answers of the server are faults."""

    def __init__(self, folder, server):
        self.folder, self.server = Path(folder), server
        rows = (ROOT / "examples/tiny-math/train.jsonl").read_text().splitlines()[:72]
        (self.folder / "prompts.jsonl").write_text("\n".join(rows) + "\n")
        self.environment = dict(os.environ, XDG_CACHE_HOME=str(self.folder / "cache"), OMP_NUM_THREADS="1", MKL_NUM_THREADS="1",
                                LORA_TRAIN_HTTP_RETRIES="8")

    def start(self, name):
        profile = self.folder / f"{name}.yaml"
        profile.write_text(PROFILE.format(root=ROOT, folder=self.folder, url=self.server.url, name=name))
        words = [str(BINARY), "distill", str(profile), "--max-tokens", "24", "--concurrency", "4", "--json"]
        with open(self.folder / f"{name}.log", "a", encoding="utf-8") as log:
            return subprocess.Popen(words, env=self.environment, cwd=ROOT, stdout=log, stderr=log, start_new_session=True)

    def finish(self, name):
        code = self.start(name).wait(120)
        assert code == 0, (code, (self.folder / f"{name}.log").read_text()[-2000:])

    def recorded(self, name):
        """Questions whose answers are on disk."""
        found = set()
        for file in (self.folder / name).glob("teacher*.answers.jsonl"):
            whole = [line for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]
            found |= {json.loads(line)["prompt"][-1]["content"] for line in whole}
        return found

    def phase(self, name):
        folder = self.folder / name
        if (folder / "metrics.jsonl").exists():
            return "training"
        if (folder / "teacher_heldout.answers.jsonl").exists():
            return "held-out answers"
        return "answers" if (folder / "teacher.answers.jsonl").exists() else "before the first answer"

    def result(self, name):
        folder = self.folder / name
        events = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        losses = {(e["step"], e.get("name")): e.get("loss", e.get("accuracy")) for e in events if e["event"] in ("train", "eval")}
        return {"rows": (folder / "teacher.jsonl").read_bytes(), "held out": (folder / "teacher_heldout.jsonl").read_bytes(),
                "losses": losses, "adapter": (folder / "adapter/adapter_model.safetensors").read_bytes()}


def run_killed(place, name, num_kills, generator, longest_s):
    """Returns the phases in which it was killed. The run may end before all kills came."""
    killed = []
    while len(killed) < num_kills:
        before = place.recorded(name)
        asked_before = len(place.server.asked)
        process = place.start(name)
        time.sleep(generator.uniform(0.02, longest_s))
        is_over = process.poll() is not None
        assert not is_over or process.returncode == 0, (process.returncode, (place.folder / f"{name}.log").read_text()[-2000:])
        if not is_over:
            kill_all(process)
            killed.append(place.phase(name))
        check_questions(place, before, asked_before)
        if is_over:
            return killed
    before, asked_before = place.recorded(name), len(place.server.asked)
    place.finish(name)
    check_questions(place, before, asked_before)
    return killed


def check_questions(place, recorded, asked_before):
    asked = [body["messages"][-1]["content"] for body in place.server.asked[asked_before:]]
    again = recorded & set(asked)
    assert not again, f"asked again, though the answer was recorded: {sorted(again)[:3]}"


def run_kills(num_kills, seed, folder, say=lambda line: None):
    generator = random.Random(seed)
    phases = collections.Counter()
    with TeacherServer(faults=FAULTS, share=0.05, seconds=0.03, seed=seed) as server:
        place = Place(folder, server)
        begin = time.monotonic()
        place.finish("undisturbed")
        longest_s = 0.8 * (time.monotonic() - begin)
        expected = place.result("undisturbed")
        for number in range(10 * num_kills):
            left = num_kills - sum(phases.values())
            if left == 0:
                break
            name = f"run{number}"
            killed = run_killed(place, name, min(left, KILLS_OF_A_RUN), generator, longest_s)
            phases.update(killed)
            for part, value in place.result(name).items():
                assert value == expected[part], f"{name}, killed in {killed}: other {part} than undisturbed"
            say(f"{name}: killed in {', '.join(killed) or 'no phase'}; nothing asked again, rows, losses and adapter equal")
    assert sum(phases.values()) == num_kills
    return phases


def main():
    lines = []

    def say(line):
        print(line, flush=True)
        lines.append("  " + line)

    with tempfile.TemporaryDirectory(prefix="lora-train-distill-") as folder:
        phases = run_kills(NUM_KILLS, 7, folder, say)
    head = f"distill: {sum(phases.values())} kills as they should be: " + ", ".join(f"{count} in {phase}" for phase, count in sorted(phases.items()))
    (ROOT / "tests/batteries/results/distill_battery.txt").write_text("\n".join([head, *lines]) + "\n")
    print(head)
    return 0


if __name__ == "__main__":
    sys.exit(main())
