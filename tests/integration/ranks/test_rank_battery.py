"""8 kills and 10 stops of the long battery of ranks (rank_battery.py; `scripts/torture.sh --only ranks` runs all of it)."""

import os
import tempfile

import pytest
import rank_battery
from rank_cases import IN_CI, all_cases


@pytest.fixture(scope="module")
def outcomes(request):
    """Of the chosen cases, which run at the same time: most of them wait."""
    cases = [item.callspec.params["case"] for item in request.session.items if "outcomes" in getattr(item, "fixturenames", ())]
    with tempfile.TemporaryDirectory(prefix="lt-ranks-") as folder:
        done = rank_battery.run_cases(cases, max(1, os.cpu_count() // 2), 1, False, folder)
    return {outcome.case: outcome for outcome in done}


def test_the_long_battery_has_200_kills_20_sigstops_and_200_stops():
    kinds = [case.kind for case in all_cases()]
    assert [kinds.count(kind) for kind in ("kill", "sigstop", "stop")] == [200, 20, 200]
    assert [[case.kind for case in IN_CI].count(kind) for kind in ("kill", "stop")] == [8, 10]


@pytest.mark.parametrize("case", IN_CI, ids=str)
def test_a_killed_rank_is_named_and_a_stop_ends_all_at_one_step(outcomes, case):
    outcome = outcomes[case]
    assert not outcome.problem, f"{outcome}\n{outcome.stderr[-3000:]}"
