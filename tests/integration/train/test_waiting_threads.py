"""OpenMP's threads spin for a short time only, unless the user says otherwise. libgomp itself prints what it took."""

import os
import re
import subprocess

import pytest

from command import ENVIRONMENT, lora_train

TINY = ["bench", "--shape", "tiny-qwen2", "device=cpu", "max_seq_len=16", "micro_batch_size=1", "--steps", "1", "--warm-up", "0"]


@pytest.mark.parametrize("given, taken", [({}, 30000), ({"GOMP_SPINCOUNT": "77"}, 77), ({"OMP_WAIT_POLICY": "passive"}, 0)])
def test_threads_spin_for_a_short_time_unless_the_user_says_otherwise(monkeypatch, given, taken):
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.delitem(ENVIRONMENT, name, raising=False)
    run = lora_train(*TINY, environment={"OMP_DISPLAY_ENV": "verbose", **given})
    assert run.code == 0 and int(re.search(r"GOMP_SPINCOUNT = '(\d+)'", run.stderr)[1]) == taken, run


def test_threads_wait_passively_beside_other_programs(monkeypatch):
    for name in ("OMP_WAIT_POLICY", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delitem(ENVIRONMENT, name, raising=False)
    others = [subprocess.Popen(["yes"], stdout=subprocess.DEVNULL) for _ in range(os.cpu_count())]
    try:
        run = lora_train("bench", "--shape", "tiny-qwen2", "device=cpu", "max_seq_len=512", "micro_batch_size=8", "--steps", "60",
                         "--log-level", "debug")
    finally:
        for other in others:
            other.kill()
            other.wait()
    assert run.code == 0 and "other programs use the cores: threads wait passively" in run.stderr, run
