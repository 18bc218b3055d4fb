"""OpenMP's threads spin for a short time only, unless the user says otherwise. libgomp itself prints what it took."""

import re

import pytest

from command import ENVIRONMENT, lora_train

TINY = ["bench", "--shape", "tiny-qwen2", "device=cpu", "max_seq_len=16", "micro_batch_size=1", "--steps", "1", "--warm-up", "0"]


@pytest.fixture
def spins(monkeypatch):
    """spins(variables of the user): GOMP_SPINCOUNT of libgomp in the program."""
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.delitem(ENVIRONMENT, name, raising=False)

    def ask(**environment):
        run = lora_train(*TINY, environment={"OMP_DISPLAY_ENV": "verbose", **environment})
        assert run.code == 0, run
        return int(re.search(r"GOMP_SPINCOUNT = '(\d+)'", run.stderr)[1])
    return ask


def test_threads_spin_for_a_short_time(spins):
    assert spins() == 30000


@pytest.mark.parametrize("name, value, taken", [
    ("GOMP_SPINCOUNT", "77", 77), ("OMP_WAIT_POLICY", "passive", 0), ("OMP_WAIT_POLICY", "active", 30000000000)])
def test_the_users_own_setting_wins(spins, name, value, taken):
    assert spins(**{name: value}) == taken
