"""A slice of tests/batteries/hostile_battery.py: no file of others changes, no secret and no escape is printed, a reason is given."""

import hostile_battery
import hostile_cases
import pytest
from command import BINARY

SLICE = ["train --overwrite in a folder of home", "merge --overwrite in a folder of git", "train --overwrite over a foreign .lora-train-replaced",
         "train --overwrite where .lora-train.lock is a link to a file", "train where metrics.jsonl is a fifo",
         "merge --overwrite to a dangling link", "generate --output to a foreign settings file", "compare --csv to a link to a file",
         "bench --profile-trace to a fifo", "check: extends of itself", "compare: a stored run with escapes in the reason",
         "merge: an adapter with escapes in its base"]
CASES = {case.name: case for case in hostile_cases.CASES}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return hostile_battery.World(tmp_path_factory.mktemp("hostile"), BINARY)


def test_there_are_120_cases_and_each_has_its_name():
    assert len(CASES) == len(hostile_cases.CASES) >= 120


@pytest.mark.parametrize("name", SLICE)
def test_nothing_of_others_is_lost_and_nobody_is_fooled(world, name):
    outcome = world.run(CASES[name], str(SLICE.index(name)))
    assert not outcome.problems, outcome.output.decode(errors="replace")[-2000:]
