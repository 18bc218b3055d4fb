"""The cases of rank_battery.py: which rank is killed, stopped or asked to stop, in which phase, under which launcher; and runs that
stay in a phase long enough to be hit there."""

import json
from dataclasses import dataclass

import numpy as np
from byte_tokenizer import write_tokenizer
from command import BINARY, ENVIRONMENT, Setup, model_tensors

PHASES = ["start", "data", "step", "evaluation", "save"]
LENGTHS = {"start": 0.5, "data": 1.0, "step": 0.3, "evaluation": 0.5, "save": 0.5}  # seconds in which a phase is hit
EVAL_STEPS = 3
LAUNCHER, ALL, CTRL_C, MAX_TIME, SCANCEL, REQUEUE = "launcher", "all ranks", "Ctrl-C", "max_time", "scancel", "sbatch --signal"


@dataclass(frozen=True)
class Case:
    kind: str       # kill, sigstop or stop
    launcher: str
    num_ranks: int
    phase: str
    signal: str     # KILL, TERM, ...; empty where another program sends it
    target: object  # a rank, or one of the words above

    def __str__(self):
        what = f"SIG{self.signal} to " if self.signal else ""
        target = self.target if isinstance(self.target, str) else f"rank {self.target}"
        return f"{self.kind} at {self.phase}: {what}{target} of {self.num_ranks}, {self.launcher}"


def kills():
    cases = [Case("kill", "nproc", num_ranks, phase, "KILL", rank)
             for num_ranks, times in ((3, 8), (2, 4)) for phase in PHASES for rank in range(num_ranks) for _ in range(times)]
    for launcher in ("openmpi", "mpich", "torchrun", "variables", "slurm"):
        # Of a rank that dies before it has met another one, only its launcher knows. --nproc says so and MPICH ends all; under the
        # others the survivors miss it after 5 minutes, unless SIGTERM ends them.
        phases = PHASES if launcher == "mpich" else PHASES[1:]
        cases += [Case("kill", launcher, 3, phases[i % len(phases)], "KILL", i % 3) for i in range(8)]
    return cases


def sigstops():
    return [Case("sigstop", launcher, 3, "step", "STOP", i % 3)
            for launcher, times in (("nproc", 9), ("variables", 6), ("openmpi", 3), ("slurm", 2)) for i in range(times)]


STOPS = [("nproc", 3, [("TERM", 0, 2), ("TERM", 1, 2), ("TERM", 2, 2), ("TERM", ALL, 3), ("TERM", LAUNCHER, 3), ("INT", CTRL_C, 4),
                       ("USR1", LAUNCHER, 2), ("", MAX_TIME, 4)]),
         ("nproc", 2, [("TERM", 0, 1), ("TERM", 1, 1), ("INT", CTRL_C, 1), ("", MAX_TIME, 1)]),
         ("openmpi", 3, [("USR1", LAUNCHER, 1), ("TERM", LAUNCHER, 1), ("TERM", 1, 1)]), ("mpich", 3, [("USR1", LAUNCHER, 1)]),
         ("torchrun", 3, [("TERM", LAUNCHER, 1)]),
         ("variables", 3, [("TERM", 0, 1), ("TERM", 1, 1), ("TERM", ALL, 1), ("", MAX_TIME, 1)]),
         ("slurm", 3, [("", SCANCEL, 2), ("TERM", 1, 1), ("", MAX_TIME, 1)])]


def stops():
    """Each row in every phase so many times; and a job that Slurm warns before its time is up, and queues again."""
    cases = [Case("stop", launcher, num_ranks, phase, signal, target)
             for launcher, num_ranks, rows in STOPS for signal, target, times in rows for phase in PHASES for _ in range(times)]
    return cases + [Case("stop", "slurm", 3, "save", "", REQUEUE)] * 5


def all_cases():
    return sigstops() + kills() + stops()


IN_CI = [Case("stop", "slurm", 3, "save", "", REQUEUE),  # waits longest
         Case("kill", "openmpi", 3, "step", "KILL", 1), Case("stop", "openmpi", 3, "step", "USR1", LAUNCHER),
         Case("kill", "nproc", 3, "start", "KILL", 1), Case("kill", "nproc", 3, "data", "KILL", 2),
         Case("kill", "nproc", 3, "evaluation", "KILL", 1), Case("kill", "nproc", 3, "save", "KILL", 2),
         Case("kill", "mpich", 3, "step", "KILL", 0), Case("kill", "torchrun", 2, "save", "KILL", 1),
         Case("kill", "variables", 3, "evaluation", "KILL", 0),
         Case("stop", "nproc", 3, "start", "TERM", 1), Case("stop", "nproc", 3, "data", "TERM", ALL),
         Case("stop", "nproc", 3, "evaluation", "USR1", LAUNCHER), Case("stop", "nproc", 2, "save", "INT", CTRL_C),
         Case("stop", "nproc", 2, "step", "", MAX_TIME), Case("stop", "torchrun", 2, "step", "TERM", LAUNCHER),
         Case("stop", "variables", 3, "data", "TERM", 2), Case("stop", "slurm", 3, "step", "", SCANCEL)]


class RankRun(Setup):
    """A run of 100,000 steps in a folder of its own, temporary files and caches included, with a checkpoint that stays."""

    def __init__(self, folder, case, rng):
        super().__init__(folder)
        self.phase = case.phase
        self.temporary = folder / "t"  # short: Open MPI has sockets there
        self.temporary.mkdir()
        self.environment = dict(ENVIRONMENT, TMPDIR=str(self.temporary), XDG_CACHE_HOME=str(folder / "cache"))
        self.profile.update(max_steps=100000, save_steps=25, save_total_limit=1, logging_steps=1)
        if case.phase in ("start", "data"):
            self.use_slow_data()
        if case.phase == "evaluation":
            self.use_long_evaluation()
        if case.phase == "save":
            self.profile.update(save_steps=3)
            self.environment.update(LD_PRELOAD=str(BINARY.parent / "lib/libslow_sync.so"), SLOW_SYNC_MS="60")
        if case.target == MAX_TIME:
            early = {"start": 0.05, "data": 0.7}.get(case.phase, 1.2)
            self.profile.update(max_time=f"{early + LENGTHS[case.phase] * rng.random():.2f}s")

    def use_slow_data(self):
        """Chats through a template that counts to 90,000 for each."""
        tensors = model_tensors()
        embedding = tensors["model.embed_tokens.weight"]
        tensors["model.embed_tokens.weight"] = np.tile(embedding, (256 // len(embedding), 1))
        self.write_config(vocab_size=256)
        self.write_model(tensors)
        write_tokenizer(self)
        (self.model / "chat_template.jinja").write_text(
            "{% for a in range(300) %}{% for b in range(300) %}{% if a == b %}{% endif %}{% endfor %}{% endfor %}"
            "{% for m in messages %}{{ m.content }}{% endfor %}")
        rows = [{"messages": [{"role": "user", "content": "a" * i}, {"role": "assistant", "content": "b" * i}]}
                for i in range(1, 31)]
        self.write_rows(rows)
        self.profile.update(datasets=[{"path": str(self.rows_file)}])

    def use_long_evaluation(self):
        rows = self.folder / "eval.jsonl"
        rows.write_text("".join(json.dumps(row) + "\n" for row in self.rows * 400))
        self.profile.update(eval_datasets=[{"path": str(rows), "type": "pretokenized"}], eval_steps=EVAL_STEPS)

    def last_step(self):
        steps = [event["step"] for event in self.events("train")]
        return steps[-1] if steps else 0

    def phase_now(self):
        if not (self.output_dir / "run.log").exists():
            return "start"
        if not self.events("start"):
            return "data"
        if any(self.output_dir.glob(".tmp-checkpoint-*")):
            return "save"
        step = self.last_step()
        is_due = self.phase == "evaluation" and step % EVAL_STEPS == 0
        return "evaluation" if is_due and step not in [event["step"] for event in self.events("eval")] else "step"

    def checkpoints(self):
        return sorted(int(path.name.split("-")[1]) for path in self.output_dir.glob("checkpoint-*"))

    def missing_files(self):
        """Of the newest checkpoint, by its manifest; and what is left of others that were written or deleted."""
        steps = self.checkpoints()
        if not steps:
            return []
        folder = self.output_dir / f"checkpoint-{steps[-1]}"
        if not (folder / "manifest.json").exists():
            return [f"{folder.name}/manifest.json"]
        files = json.loads((folder / "manifest.json").read_text())["files"]
        return [name for name, entry in files.items()
                if not (folder / name).exists() or (folder / name).stat().st_size != entry["bytes"]]

    def left_over(self):
        """Rendezvous files, job folders, and half-written files."""
        return [str(path.relative_to(self.folder)) for path in
                [*self.temporary.rglob("*lora-train*"), *self.output_dir.glob(".tmp-*"), *self.output_dir.glob("*.address")]]
