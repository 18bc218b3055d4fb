#!/usr/bin/env python3
"""The long battery of ranks: SIGKILL and SIGSTOP to one rank, and stops of all kinds, at random moments of every phase, under every
launcher (tests/support/rank_cases.py).

- After SIGKILL, every survivor names the dead rank within 2 s and ends with exit code 6; after SIGSTOP, within 60 s.
- After a stop, all ranks end with exit code 75 at one step, with one checkpoint, of that step, or none before step 1, and without
  an error; nothing is left in the folder for temporary files.
- Nobody hangs, the newest checkpoint is complete, and in every 5th case the same command goes on from it.

Usage: rank_battery.py [--only KIND,...] [--launcher NAME,...] [--phase NAME,...] [--percent N] [--jobs N] [--seed N] [--log FILE]
As many cases at a time as there are cores (--jobs); a rank that only waits takes none. FILE gets the output behind what it has;
tests/batteries/results/rank_battery.txt is committed. Exit status 1 when a case fails.
"""

import argparse
import os
import random
import shutil
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/support"), str(ROOT / "tests/batteries")]
import battery_log  # noqa: E402
from launchers import slurm  # noqa: E402
from rank_cases import MAX_TIME, REQUEUE, all_cases  # noqa: E402
from rank_trial import HOLD_BACK, Trial  # noqa: E402


def run_cases(cases, jobs, seed, is_timed, folder, keep=None, say=print):
    """Returns the outcomes, each printed as it comes. `folder` has a short name."""
    cores, printing = threading.Semaphore(jobs), threading.Lock()

    def run(number, case):
        at = Path(folder) / f"{number:03}"  # none begins with another: processes are found by it
        at.mkdir()
        outcome = Trial(case, at, random.Random(f"{seed}/{number}"), cores, is_timed, number % 5 == 0)()
        if outcome.problem and keep:
            shutil.copytree(at, keep / at.name, symlinks=True, ignore=lambda *_: {"t", "model"})
        shutil.rmtree(at, ignore_errors=True)
        with printing:
            say(f"{number}: {outcome}")
        return outcome

    if any(case.launcher == "slurm" for case in cases):
        slurm()
    with ThreadPoolExecutor(max_workers=12 * jobs) as pool:
        return list(pool.map(run, range(len(cases)), cases))


def in_words(outcomes):
    """How long the survivors took, and the share of cases that hit the phase they aimed at."""
    lines = []
    for kind in ("kill", "sigstop", "stop"):
        of_kind = [outcome for outcome in outcomes if outcome.case.kind == kind]
        if not of_kind:
            continue
        seconds = sorted(outcome.named_s for outcome in of_kind if not outcome.problem and (
            kind == "stop" or outcome.case.launcher not in HOLD_BACK)) or [0]
        aimed = [outcome for outcome in of_kind if outcome.case.target not in (MAX_TIME, REQUEUE)]
        hit = sum(outcome.phase == outcome.case.phase for outcome in aimed)
        again = sum(bool(outcome.notes) for outcome in of_kind)
        until = "all ranks have ended" if kind == "stop" else "all survivors have named the rank"
        lines.append(f"durability: {kind}: {len(of_kind)} cases, {hit} of {len(aimed)} in the phase aimed at, {again} gone on with; "
                     f"from the signal until {until}: median {seconds[len(seconds) // 2]:.2f} s, at most {seconds[-1]:.2f} s")
    return lines


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--only", default="sigstop,kill,stop")
    parser.add_argument("--launcher")
    parser.add_argument("--phase")
    parser.add_argument("--percent", type=int, default=int(os.environ.get("LORA_TRAIN_TORTURE") or 100))
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--seed", type=int, default=20261123)
    parser.add_argument("--log", type=Path)
    parser.add_argument("--keep", type=Path, help="copy the folders of failed cases into this new folder")
    return parser.parse_args()


def main():
    options = parse_arguments()
    chosen = [(options.only, "kind"), (options.launcher, "launcher"), (options.phase, "phase")]
    cases = [case for case in all_cases()
             if all(names is None or getattr(case, what) in names.split(",") for names, what in chosen)]
    random.Random(options.seed).shuffle(cases)
    cases.sort(key=lambda case: case.kind != "sigstop" and case.target != REQUEUE)  # those that wait come first
    cases = cases[:-(-len(cases) * options.percent // 100)]
    say = battery_log.Log(options.log, ROOT, is_kept=True).say
    say(f"{os.cpu_count()} cores, seed {options.seed}")
    with tempfile.TemporaryDirectory(prefix="lt-ranks-") as folder:
        outcomes = run_cases(cases, options.jobs, options.seed, True, folder, options.keep, say)
    failed = [outcome for outcome in outcomes if outcome.problem]
    for line in in_words(outcomes):
        say(line)
    say(f"{len(outcomes)} cases, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
