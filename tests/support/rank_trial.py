"""One case of rank_battery.py: starts the ranks, waits for its moment, sends the signal, and checks what is promised."""

import contextlib
import os
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from command import BINARY, handles_signals
from launchers import Job, slurm
from rank_cases import ALL, CTRL_C, LAUNCHER, LENGTHS, MAX_TIME, REQUEUE, SCANCEL, RankRun

DEVICE, STOPPED, KILLED = 6, 75, 128 + signal.SIGKILL
NAMED_S = {"kill": 2.0, "sigstop": 60.0}  # from the signal to the lines of all survivors
END_S = 30.0                              # from the signal to the end of the ranks: nobody hangs
FREE_CORE_S = 4.0                         # ranks that run so long after the signal wait for something
FORWARD_S = 5.0                           # a launcher passes on the last lines of a rank some time after its end
KILL_CODES = {"nproc": KILLED, "openmpi": KILLED, "slurm": KILLED, "torchrun": 1, "mpich": None}  # what launchers make of it
HOLD_BACK = {"openmpi", "mpich"}          # mpirun passes on lines of survivors when it ends, or not all; MPICH kills them at once
SIGSTOP_CODES = {"nproc": DEVICE, "openmpi": DEVICE, "slurm": KILLED}
STOP_CODES = {"nproc": STOPPED, "openmpi": STOPPED, "variables": STOPPED}
BATCH = """#!/bin/bash
#SBATCH --signal=TERM@50 --time=1 --requeue --open-mode=append -n 2
srun --overcommit -n {ranks} {program} train --profile {profile} || {{ [ $? -eq 75 ] && scontrol requeue "$SLURM_JOB_ID"; }}
"""


class Failure(Exception):
    pass


class Core:
    """A part of a semaphore that may be given back early."""

    def __init__(self, semaphore):
        self.semaphore, self.is_held = semaphore, False

    def __enter__(self):
        self.semaphore.acquire()
        self.is_held = True

    def release(self):
        if self.is_held:
            self.is_held = False
            self.semaphore.release()

    def __exit__(self, *_):
        self.release()


def expect(holds, what):
    if not holds:
        raise Failure(what)


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


@dataclass
class Outcome:
    case: object
    problem: str = ""
    phase: str = ""          # that was hit
    step: int = 0            # the last one
    named_s: float = 0       # from the signal until all survivors had named the rank, or until all had stopped
    notes: list = field(default_factory=list)
    stderr: str = ""

    def __str__(self):
        what = "FAILED: " + self.problem if self.problem else "passed"
        return f"{self.case}: {what} (hit {self.phase or '?'}, step {self.step}, {self.named_s:.2f} s{''.join(self.notes)})"


class Trial:
    """One case. Holds one of `cores` while ranks compute. `is_timed`: whether NAMED_S is checked."""

    def __init__(self, case, folder, rng, cores, is_timed, goes_on):
        self.case, self.rng, self.core, self.is_timed, self.goes_on = case, rng, Core(cores), is_timed, goes_on
        self.run = RankRun(folder, case, rng)
        self.error_file = folder / "stderr"
        self.arguments = ["--profile", self.run.write_profile()]
        self.outcome = Outcome(case)
        self.jobs, self.pids = [], {}

    def __call__(self):
        try:
            getattr(self, self.case.kind if self.case.target != REQUEUE else "requeue")()
        except Failure as failure:
            self.outcome.problem = str(failure)
        except Exception as error:  # of the test, or of a file that the program left broken
            self.outcome.problem = f"{type(error).__name__}: {error}"
        finally:
            for pid in Job.ranks(self.run.folder).values():
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            for job in self.jobs:
                for process in job.processes:
                    process.kill()
                    process.wait()
        with contextlib.suppress(OSError):
            self.outcome.stderr = self.error_file.read_text(errors="replace")
        self.outcome.step = self.run.last_step()
        return self.outcome

    # --- before the signal

    def start(self, launcher=None, error_file=None):
        job = Job(launcher or self.case.launcher, self.case.num_ranks, self.arguments, error_file or self.error_file,
                  self.run.environment)
        self.jobs.append(job)
        return job

    def wait_until(self, condition, what, seconds, pause=0.005, job=None):
        end = time.monotonic() + seconds
        while not condition():
            expect(job is None or job.poll() is None, f"the launcher has ended before {what}")
            expect(time.monotonic() < end, f"{what} did not happen within {seconds:.0f} s")
            time.sleep(pause)

    def reach_phase(self, job):
        """Waits for a random moment of the phase. A rank exists once its process does; it can be asked to stop a little later."""
        run, phase = self.run, self.case.phase
        wants_all = self.case.kind == "stop" or phase != "start"
        is_ready = handles_signals if self.case.kind == "stop" else is_alive

        def is_here():
            self.pids = job.ranks(run.folder)
            wanted = range(self.case.num_ranks) if wants_all else [self.case.target]
            return all(rank in self.pids and is_ready(self.pids[rank]) for rank in wanted)

        self.wait_until(is_here, "the start of the ranks", 120, job=job)
        first_step, evaluation, save = self.rng.randrange(1, 30), self.rng.randrange(3), self.rng.randrange(3)
        conditions = {
            "start": lambda: True, "data": lambda: run.phase_now() != "start", "step": lambda: run.last_step() >= first_step,
            "evaluation": lambda: len(run.events("eval")) >= evaluation and run.phase_now() == "evaluation",
            "save": lambda: len(run.events("checkpoint")) >= save and run.phase_now() == "save"}
        self.wait_until(conditions[phase], f"phase {phase}", 120, job=job)
        time.sleep(self.rng.random() * LENGTHS[phase])
        self.pids = job.ranks(run.folder)
        self.outcome.phase = run.phase_now()

    # --- after it

    def wait_for_end(self, ranks, seconds, started, pattern=None, count=0):
        """Waits until the processes of `ranks` have ended. Returns when `pattern` stood `count` times in stderr, if it is given."""
        seen_s = ended_s = None
        while ended_s is None or (pattern and seen_s is None):
            now_s = time.monotonic() - started
            running = [rank for rank in ranks if is_alive(self.pids.get(rank, 0))]
            if pattern and seen_s is None and self.error_file.read_text(errors="replace").count(pattern) >= count:
                seen_s = now_s
            if ended_s is None and not running:
                ended_s = now_s
            if now_s > FREE_CORE_S:
                self.core.release()
            if ended_s is not None and now_s > ended_s + FORWARD_S:
                break
            expect(not running or now_s < seconds, f"ranks {running} still run {seconds:.0f} s after the signal"
                   f"{', though all survivors have named the rank' if seen_s else ''}")
            time.sleep(0.005)
        self.outcome.named_s = seen_s or ended_s
        return seen_s

    def codes(self, job, seconds=150):
        """Of the launcher; of single processes, by rank."""
        try:
            return [process.wait(seconds) for process in job.processes]
        except subprocess.TimeoutExpired:
            raise Failure(f"the launcher still runs {seconds} s after the ranks have ended") from None

    def expect_intact(self):
        expect(not self.run.missing_files(), f"the newest checkpoint is not complete: {self.run.missing_files()}")

    def expect_goes_on(self):
        """The same command, started on this host by --nproc, does a step after its newest checkpoint."""
        saved = self.run.checkpoints()[-1:]
        begun = time.time()
        if self.case.target == MAX_TIME:
            self.run.profile.pop("max_time")
            self.run.write_profile()
        with self.core:
            job = self.start("nproc", self.run.folder / "stderr-again")
            self.wait_until(lambda: any(event["time"] >= begun for event in self.run.events("train")), "a step of the same command", 60,
                            job=job)
            job.process.send_signal(signal.SIGTERM)
            code = self.codes(job)[0]
        again = job.stderr()
        expect(code == STOPPED, f"the same command again: exit code {code}\n{again}")
        expect(not saved or f"checkpoint-{saved[0]} after step {saved[0]}" in again,
               f"did not resume from checkpoint {saved}\n{again}")
        self.outcome.notes.append(f", goes on from {saved[0] if saved else 'step 0'}")

    def is_held_back(self):
        """mpirun passes SIGTERM on after its grace, and every other signal at once."""
        return (self.case.launcher, self.case.signal, self.case.target) == ("openmpi", "TERM", LAUNCHER)

    def name_of(self, pid):
        """What every survivor prints; None where the launcher holds it back."""
        if self.case.launcher in HOLD_BACK:
            return None
        return f"rank {self.case.target} of {self.case.num_ranks}: process {pid} "

    def kill(self):
        case = self.case
        with self.core:
            job = self.start()
            self.reach_phase(job)
            expect(case.target in self.pids, f"rank {case.target} is not there")
            pid, started = self.pids[case.target], time.monotonic()
            os.kill(pid, signal.SIGKILL)
            self.pids = {**job.ranks(self.run.folder), **self.pids}
            survivors = [rank for rank in range(case.num_ranks) if rank != case.target]
            named_s = self.wait_for_end(survivors, END_S, started, self.name_of(pid), len(survivors))
        self.expect_peer_failure(job, survivors, named_s)

    def sigstop(self):
        case = self.case
        with self.core:
            job = self.start()
            self.reach_phase(job)
            pid, started = self.pids[case.target], time.monotonic()
            os.kill(pid, signal.SIGSTOP)
        survivors = [rank for rank in range(case.num_ranks) if rank != case.target]
        try:
            named_s = self.wait_for_end(survivors, NAMED_S["sigstop"], started, self.name_of(pid), len(survivors))
        finally:
            with contextlib.suppress(OSError):  # mpirun continues it, and it ends
                os.kill(pid, signal.SIGKILL)
        self.expect_peer_failure(job, survivors, named_s)

    def expect_peer_failure(self, job, survivors, named_s):
        case, codes = self.case, self.codes(job)
        has_log = (self.run.output_dir / "run.log").exists()
        if case.launcher in HOLD_BACK:
            is_late = self.is_timed and self.outcome.named_s > NAMED_S[case.kind] + FORWARD_S
            expect(not is_late, f"the survivors ended after {self.outcome.named_s:.2f} s")
        else:
            expect(named_s is not None, f"not every survivor named rank {case.target}")
            expect(named_s <= NAMED_S[case.kind] or not self.is_timed, f"named after {named_s:.2f} s")
        if case.launcher != "mpich" and 0 in survivors and has_log:
            expect(f"error: rank {case.target} of" in (self.run.output_dir / "run.log").read_text(), "not named in run.log")
        expect("internal error" not in self.error_file.read_text(errors="replace"), "internal error")
        if case.launcher == "variables":
            expected = [DEVICE if rank in survivors else -signal.SIGKILL for rank in range(case.num_ranks)]
            expect(codes == expected, f"exit codes {codes}, expected {expected}")
        else:
            expected = (KILL_CODES if case.kind == "kill" else SIGSTOP_CODES)[case.launcher]
            expect(codes[0] == expected or expected is None and codes[0] != 0, f"exit code {codes[0]}, expected {expected}")
        if 0 in survivors and case.launcher != "mpich" and has_log:
            summary = self.run.summary()
            expect(summary["exit_code"] == DEVICE, f"summary.json: {summary['exit_code']}, {summary['reason']}")
        self.expect_intact()
        last, saved = self.run.last_step(), (self.run.checkpoints() or [0])[-1]
        if 0 in survivors and case.launcher != "mpich":
            expect(saved == last, f"rank 0 survived step {last}, and its last checkpoint is of step {saved}")
        lost = 2 * self.run.profile["save_steps"]  # the save under way and the one before
        expect(last - saved <= lost, f"step {last} was done, and the last checkpoint is of step {saved}")
        if self.goes_on:
            self.expect_goes_on()

    def ask_to_stop(self, job):
        case = self.case
        number = getattr(signal, f"SIG{case.signal}", None)
        if case.target == SCANCEL:
            variables = Path(f"/proc/{self.pids[0]}/environ").read_text().split("\0")
            job_id = next(entry.split("=")[1] for entry in variables if entry.startswith("SLURM_JOB_ID="))
            subprocess.run(["scancel", job_id], env=slurm().environment, check=True)
        elif case.target == CTRL_C:
            os.killpg(job.process.pid, number)
        elif case.target == LAUNCHER:
            job.process.send_signal(number)
        elif case.target != MAX_TIME:
            for rank in range(case.num_ranks) if case.target == ALL else [case.target]:
                os.kill(self.pids[rank], number)

    def stop(self):
        case = self.case
        with self.core:
            job = self.start()
            if case.target == MAX_TIME:  # its clock chooses the moment
                self.wait_until(lambda: len(job.ranks(self.run.folder)) == case.num_ranks, "the start of the ranks", 120, job=job)
                self.pids, started = job.ranks(self.run.folder), time.monotonic()
                self.outcome.phase = "by the clock"
            else:
                self.reach_phase(job)
                expect(len(self.pids) == case.num_ranks, f"ranks {list(self.pids)} are there")
                started = time.monotonic()
                self.ask_to_stop(job)
            self.wait_for_end(range(case.num_ranks), END_S + (30 if self.is_held_back() else 0), started)
        self.expect_stopped(self.codes(job))
        if self.goes_on and case.target != SCANCEL:
            self.expect_goes_on()

    def expect_stopped(self, codes):
        case, run, stderr = self.case, self.run, self.error_file.read_text(errors="replace")
        expected = None if case.target == SCANCEL or self.is_held_back() else STOP_CODES.get(case.launcher)
        expect(expected is None or set(codes) == {expected}, f"exit codes {codes}, expected {expected}")
        ours = [line for line in stderr.splitlines() if "error: " in line and not line.startswith(("srun: ", "slurmstepd"))]
        expect(not ours, f"an error is printed: {ours[:1]}")
        if (run.output_dir / "run.log").exists():
            summary = run.summary()
            expect((summary["status"], summary["exit_code"]) == ("stopped", STOPPED),
                   f"summary.json: {summary['status']}, {summary['exit_code']}, {summary['reason']}")
            expect(summary["step"] == run.last_step(), f"summary.json: step {summary['step']}, metrics.jsonl: {run.last_step()}")
        last = run.last_step()
        expect(run.checkpoints() == ([last] if last else []), f"checkpoints {run.checkpoints()} after step {last}")
        self.expect_intact()
        expect(not run.left_over(), f"left over: {run.left_over()}")
        expect(not Job.ranks(run.folder), "a rank still runs")

    def requeue(self):
        """A batch job whose time ends: Slurm asks its ranks to stop, and the script queues it again. Without a core: it waits."""
        run, environment = self.run, dict(self.run.environment, **slurm().environment)
        environment.update({name: self.run.environment[name] for name in ("TMPDIR", "XDG_CACHE_HOME")})
        script = run.folder / "job.sh"
        script.write_text(BATCH.format(ranks=self.case.num_ranks, program=BINARY, profile=self.arguments[1]))
        done = subprocess.run(["sbatch", f"--output={self.error_file}", "--parsable", str(script)], env=environment, check=True,
                              capture_output=True, text=True, cwd=run.folder)
        job_id = done.stdout.strip()
        slurm_says = lambda *command: subprocess.run(command, env=environment, capture_output=True, text=True).stdout
        try:
            self.wait_until(lambda: (run.output_dir / "summary.json").exists(), "the stop before the time limit", 240, 0.1)
            self.wait_until(lambda: "PENDING" in slurm_says("squeue", "-h", "-j", job_id, "-o", "%T"), "the requeue", 60, 0.2)
            self.outcome.phase = "save"
            self.expect_stopped([])
            saved = run.checkpoints()[0]
            # By itself it would begin after two minutes; before the end of the old script is known, that would end it again.
            time.sleep(5)

            def has_resumed():
                slurm_says("scontrol", "update", f"JobId={job_id}", "StartTime=now")
                return f"checkpoint-{saved} after step {saved}" in self.error_file.read_text(errors="replace")

            self.wait_until(has_resumed, "the resumed run", 180, 1)
            self.wait_until(lambda: run.last_step() > saved, "a step of the resumed run", 60)
            self.outcome.notes.append(f", goes on from {saved}")
        except Failure as failure:
            raise Failure(f"{failure}; squeue: {slurm_says('squeue', '-h', '-j', job_id, '-o', '%T %r %S').strip()}") from None
        finally:
            slurm_says("scancel", job_id)
            self.wait_until(lambda: not Job.ranks(run.folder) and not slurm_says("squeue", "-h", "-j", job_id),
                            "the end of the cancelled job", 60, 0.2)
