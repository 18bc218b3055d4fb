#!/usr/bin/env python3
"""Adds up the results of scripts/test.sh: add_up_tests.py RESULTS_FOLDER [FAILED_STAGE...]
Or lists the tests that took longest: add_up_tests.py --slowest N RESULTS_FOLDER

Reads the JUnit files of ctest and pytest, and checks.txt, fuzz.txt and batteries.txt (`passed` or `failed` and a name, one a line). A
stage that failed without a failed test in its file (a build error, a crash of the runner) counts as one failure. Lists
what failed and what was skipped and why; the last line is `N passed, N failed, N skipped`. Exits 1 when anything failed.
"""

import collections
import pathlib
import sys
import xml.etree.ElementTree as ElementTree


# Stages that write lines "passed [NAME]" or "failed [NAME]", and what a line without a name is.
LISTED_STAGES = {"checks": "a check", "fuzz": "a fuzz target", "batteries": "a battery"}


def outcome(case):
    """(passed | failed | skipped, reason) of one JUnit test case."""
    for tag in ("failure", "error"):
        if case.find(tag) is not None:
            return "failed", case.find(tag).get("message") or ""
    # ctest: a test whose program is missing is "notrun" and must not pass for a skip.
    reason = (case.find("skipped").get("message") or "") if case.find("skipped") is not None else ""
    if case.get("status") == "fail" or "Unable to find executable" in reason or "Fixture dependency" in reason:
        return "failed", reason
    if case.find("skipped") is not None or case.get("status") in {"notrun", "disabled"}:
        return "skipped", reason_of_googletest(case) or reason
    return "passed", ""


def reason_of_googletest(case):
    """What a test gave to GTEST_SKIP(), which ctest hides behind the expression that matched; "" when not found."""
    lines = (case.findtext("system-out") or "").splitlines()
    places = [i for i, line in enumerate(lines) if line.endswith(": Skipped")]
    return lines[places[0] + 1] if places and places[0] + 1 < len(lines) else ""


def cases_of(path):
    """The test cases of a JUnit file. Throws ParseError, for one that a crash has cut off."""
    return ElementTree.parse(path).iter("testcase") if path.is_file() else []


def name_of(case):
    return f"{case.get('classname')}.{case.get('name')}"


def results_of_stage(folder, stage):
    """[(outcome, name, reason)], empty where the stage wrote nothing."""
    if stage in LISTED_STAGES:
        path = folder / f"{stage}.txt"
        lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
        words = [(line.split(maxsplit=1) + [LISTED_STAGES[stage]])[:2] for line in lines]
        return [(result, name, "see above") for result, name in words]
    path = folder / f"{stage}.xml"
    try:
        return [(*outcome(case)[:1], name_of(case), outcome(case)[1]) for case in cases_of(path)]
    except ElementTree.ParseError as error:
        return [("failed", path.name, f"cannot be read: {error}")]


def slowest(folder, num_tests):
    """Lines "SECONDS STAGE: NAME" of the tests that took longest, by the clock."""
    times = []
    for path in folder.glob("*.xml"):
        try:
            times += [(float(case.get("time") or 0), f"{path.stem}: {name_of(case)}") for case in cases_of(path)]
        except ElementTree.ParseError:
            continue  # results_of_stage() counts it as a failure
    return [f"{seconds:8.1f} s  {name}" for seconds, name in sorted(times, reverse=True)[:num_tests]]


def main():
    if sys.argv[1] == "--slowest":
        print(*slowest(pathlib.Path(sys.argv[3]), int(sys.argv[2])), sep="\n")
        return 0
    folder, failed_stages = pathlib.Path(sys.argv[1]), sys.argv[2:]
    stages = {path.stem for path in folder.glob("*.xml")} | set(LISTED_STAGES) | set(failed_stages)
    counts, skips = collections.Counter(), collections.Counter()
    for stage in sorted(stages):
        results = results_of_stage(folder, stage)
        if stage in failed_stages and all(result != "failed" for result, _, _ in results):
            results.append(("failed", "the stage itself", "see its output above"))
        for result, name, reason in results:
            counts[result] += 1
            if result == "failed":
                print(f"FAILED {stage}: {name} ({reason.splitlines()[0] if reason else 'no reason given'})")
            if result == "skipped":
                skips[f"{stage}: {reason.splitlines()[0] if reason else 'no reason given'}"] += 1
    for reason, count in sorted(skips.items()):
        print(f"skipped {count} in {reason}")
    print(f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
    return 1 if counts["failed"] or not counts["passed"] else 0


if __name__ == "__main__":
    sys.exit(main())
