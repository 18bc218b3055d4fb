#!/usr/bin/env python3
"""Checks that no number changes: losses, adapters, generated ids and merged weights of many tiny runs (tests/goldens/cases.py).

  scripts/check_goldens.py --bin NEW --against OLD     both programs on this machine: every value bit for bit the same
  scripts/check_goldens.py --bin NEW                   against tests/goldens/*.json: bit for bit where CPU and thread count are
                                                       those of a file, else within 1e-6 (fp32) and 3e-3 (bf16)
  scripts/check_goldens.py --bin DIR --write FILE      writes the values of DIR

--quick takes a slice of the cases, --only REGEX those whose name matches. DIR holds lora-train, lora-train-probe and
lora-train-generate-probe. Needs Python 3 alone. Results of OLD are kept in a file of the temporary folder, under the hash of its
programs. Exit status: 0 all equal, 1 a difference or a failed run, 2 a mistake on the command line.
"""

import argparse
import hashlib
import json
import os
import re
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GOLDENS = ROOT / "tests/goldens"
sys.path.insert(0, str(GOLDENS))
import cases as battery  # noqa: E402
import inputs  # noqa: E402

PROGRAMS = ("lora-train", "lora-train-probe", "lora-train-generate-probe")
TOLERANCE = {"fp32": 1e-6, "bf16": 3e-3}  # relative, of losses on another CPU
INSTRUCTIONS = re.compile(r"sse|ssse|avx|fma|f16c|bmi|amx|adx")  # the flags that math libraries choose kernels by


def cpu_type():
    """The name alone ("AMD EPYC") does not tell CPUs apart."""
    lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    info = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    flags = " ".join(sorted(flag for flag in info.get("flags", "").split() if INSTRUCTIONS.search(flag)))
    return {"name": info.get("model name", ""), "family": info.get("cpu family", ""), "model": info.get("model", ""),
            "stepping": info.get("stepping", ""), "cache": info.get("cache size", ""),
            "instructions": hashlib.sha256(flags.encode()).hexdigest()[:12]}


def hash_of_programs(folder):
    digest = hashlib.sha256()
    for path in [folder / name for name in PROGRAMS] + sorted((folder / "lib").glob("*.so*")):
        if path.exists():
            digest.update(path.name.encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def hash_of_battery():
    return hashlib.sha256(b"".join((GOLDENS / name).read_bytes() for name in ("cases.py", "inputs.py"))).hexdigest()[:16]


class Runner:
    """Runs cases of one program folder, a few at a time, over inputs that are written once."""

    def __init__(self, arguments, scratch):
        self.jobs, self.threads, self.scratch = arguments.jobs, arguments.threads, scratch
        inputs.write_all(scratch / "inputs")

    def run(self, folder, cases, seed=42):
        """{name: values}; a case that failed has {"failed": why}."""
        def compute(case):
            place = battery.Workplace(folder, self.scratch / "inputs", Path(tempfile.mkdtemp(dir=self.scratch)), self.threads,
                                      seed)
            try:
                return case.compute(place)
            except (battery.ProgramFailed, AssertionError, OSError, KeyError, ValueError) as error:
                return {"failed": f"{type(error).__name__}: {error}"}

        with ThreadPoolExecutor(self.jobs) as pool:
            return dict(zip([case.name for case in cases], pool.map(compute, cases)))

    def run_cached(self, folder, cases):
        key = f"{hash_of_programs(folder)}-{hash_of_battery()}-t{self.threads}-{cpu_type()['instructions']}"
        cache = Path(tempfile.gettempdir()) / f"lora-train-goldens-{os.getuid()}-{key}.json"
        known = json.loads(cache.read_text()) if cache.exists() else {}
        missing = [case for case in cases if case.name not in known]
        if missing:
            print(f"running {len(missing)} cases of {folder} once; their values are kept in {cache}", flush=True)
            fresh = self.run(folder, missing)
            known = {**(json.loads(cache.read_text()) if cache.exists() else {}),
                     **{name: values for name, values in fresh.items() if "failed" not in values}}
            partial = cache.with_suffix(f".{os.getpid()}")
            partial.write_text(json.dumps(known))
            partial.replace(cache)
            known = {**known, **fresh}
        return {case.name: known[case.name] for case in cases}


def flat(value):
    return [item for part in value for item in flat(part)] if isinstance(value, list) else [value]


def first_difference(got, expected):
    """None where every value is the same bit for bit."""
    for key in [*expected, *(key for key in got if key not in expected)]:
        if key not in got or key not in expected:
            return f"{key} is only on one side"
        ours, theirs = flat(got[key]), flat(expected[key])
        if ours == theirs and got[key] == expected[key]:
            continue
        for index, pair in enumerate(zip(ours, theirs)):
            if pair[0] != pair[1]:
                return f"{key}[{index}]: {pair[0]!r}, expected {pair[1]!r}"
        return f"{key}: {len(ours)} values, expected {len(theirs)}"
    return None


def first_distance(case, got, expected):
    """As first_difference, between CPUs. Bytes and draws are not comparable, nor are choices made in bf16."""
    for key, theirs in expected.items():
        is_choice = key.endswith("ids") or key.endswith("accuracy")
        if key.endswith("sha256") or key == "sampled_ids" or (is_choice and case.precision == "bf16"):
            continue
        if key not in got:
            return f"{key} is missing"
        if is_choice:
            if got[key] != theirs:
                return f"{key}: {got[key]}, expected {theirs}"
            continue
        ours, theirs = flat(got[key]), flat(theirs)
        if len(ours) != len(theirs):
            return f"{key}: {len(ours)} values, expected {len(theirs)}"
        # Of one token, log p has the rounding of its logit, which a mean over many has not.
        tolerance = TOLERANCE[case.precision] * (10 if any(word in key for word in ("norm", "ece", "log_prob")) else 1)
        for index, (one, other) in enumerate(zip(ours, theirs)):
            if not abs(one - other) <= tolerance * abs(other):
                return f"{key}[{index}]: {one!r}, expected {other!r} within {tolerance:g} relative"
    return None


def report(cases, got, expected, difference):
    """Prints every case that differs; returns the exit status."""
    num_wrong = 0
    for case in cases:
        why = got[case.name].get("failed") or expected[case.name].get("failed")
        why = why or difference(case, got[case.name], expected[case.name])
        if why:
            num_wrong += 1
            print(f"DIFFERS {case.name}: {why}", flush=True)
    print(f"goldens: {len(cases) - num_wrong} of {len(cases)} cases are the same")
    return 1 if num_wrong else 0


def choose_golden(machine):
    """(content, is of this machine)"""
    files = [json.loads(path.read_text()) for path in sorted(GOLDENS.glob("*.json"))]
    if not files:
        sys.exit("check_goldens.py: there is no tests/goldens/*.json; write one with --write")
    for content in files:
        if content["machine"] == machine:
            return content, True
    return files[0], False


def check_committed(runner, arguments, cases, machine):
    golden, is_same_machine = choose_golden(machine)
    if golden["battery"] != hash_of_battery():
        print("check_goldens.py: tests/goldens/*.json is of other cases; write it anew", file=sys.stderr)
        return 1
    got = runner.run(arguments.bin, cases, arguments.seed)
    print("compared bit for bit: CPU and threads are those of the goldens" if is_same_machine else
          f"compared within tolerances: goldens are of {golden['machine']}, this is {machine}")
    return report(cases, got, golden["cases"], lambda case, ours, theirs: first_difference(ours, theirs) if is_same_machine
                  else first_distance(case, ours, theirs))


def write_golden(runner, arguments, cases, machine):
    got = runner.run(arguments.bin, cases)
    failed = {name: values["failed"] for name, values in got.items() if "failed" in values}
    if failed:
        print("\n".join(f"FAILED {name}: {why}" for name, why in failed.items()))
        return 1
    lines = ",\n".join(f'{json.dumps(name)}: {json.dumps(values)}' for name, values in got.items())
    arguments.write.write_text(f'{{"machine": {json.dumps(machine)},\n"battery": "{hash_of_battery()}",\n'
                               f'"cases": {{\n{lines}}}}}\n')
    print(f"goldens: wrote {len(got)} cases to {arguments.write}")
    return 0


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=Path, default=ROOT / "build/dev/bin", help="folder of the programs (default build/dev/bin)")
    parser.add_argument("--against", type=Path, help="folder of the old programs")
    parser.add_argument("--write", type=Path, help="JSON file to write")
    parser.add_argument("--quick", action="store_true", help="a slice of the cases")
    parser.add_argument("--only", default="", help="regex of case names")
    parser.add_argument("--threads", type=int, default=2, help="OpenMP threads of a run (default 2)")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time (default 2)")
    parser.add_argument("--seed", type=int, default=42, help="of the new program; any but 42 must make the check fail")
    parser.add_argument("--list", action="store_true", help="print the names of the cases")
    return parser, parser.parse_args()


def main():
    parser, arguments = parse_arguments()
    cases = [case for case in battery.all_cases()
             if (case.is_quick or not arguments.quick) and re.search(arguments.only, case.name)]
    if not cases:
        parser.error("no case has such a name; --list prints them")
    if arguments.list:
        print("\n".join(case.name for case in cases))
        return 0
    arguments.bin = arguments.bin.resolve()
    for folder in filter(None, (arguments.bin, arguments.against)):
        for program in sorted({program for case in cases for program in case.programs}):
            if not (folder / program).exists():
                parser.error(f"{folder / program} is not there; build it, or choose other cases with --only")
    machine = {"cpu": cpu_type(), "threads": arguments.threads}
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="lora-train-goldens-") as scratch:
        runner = Runner(arguments, Path(scratch))
        if arguments.write:
            status = write_golden(runner, arguments, cases, machine)
        elif arguments.against:
            expected = runner.run_cached(arguments.against.resolve(), cases)
            status = report(cases, runner.run(arguments.bin, cases, arguments.seed), expected,
                            lambda case, ours, theirs: first_difference(ours, theirs))
        else:
            status = check_committed(runner, arguments, cases, machine)
    print(f"goldens: {time.monotonic() - started:.0f} s")
    return status


if __name__ == "__main__":
    sys.exit(main())
