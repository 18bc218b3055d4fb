"""Signals at random moments, from the first line of the program to its end: exit 75 with a checkpoint of the last finished
step, a second signal leaves at once, and the same command goes on to the same bits."""

import collections
import json
import random
import signal
import time

import pytest

from command import handles_signals
from long_run import STEPS, LongRun, amount, checkpoint_steps, is_saving

SIGNALS = [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP]
STOPPED = 75


def of_this_life(run, output_dir, event, begun):
    """Lines that were written since; those of an earlier life stay until this one has read all it needs."""
    return [line for line in run.events(event, output_dir) if line["time"] >= begun]


def phase_of(run, output_dir, process, begun):
    if is_saving(output_dir, process):
        return "saving"
    if not of_this_life(run, output_dir, "start", begun):
        return "before step 1, reading"
    return "training" if of_this_life(run, output_dir, "train", begun) else "before step 1, evaluating"


def is_done(output_dir):
    file = output_dir / "summary.json"
    return file.exists() and json.loads(file.read_text())["status"] == "done"


def stop_once(run, output_dir, delay, number, second):
    """Returns (phase, exit code, seconds from signal to end, last step that was logged)."""
    begun = time.time()
    process = run.begin(output_dir, slow_sync_ms=10)
    while process.poll() is None and not handles_signals(process.pid):
        time.sleep(0.0005)
    try:
        process.wait(timeout=delay)
    except Exception:
        pass
    if process.poll() is not None:
        assert process.returncode == 0, process.communicate()[1]
        return "ended", 0, 0, STEPS
    phase = phase_of(run, output_dir, process, begun)
    steps = [line["step"] for line in of_this_life(run, output_dir, "train", begun)]
    is_ending = bool(steps) and steps[-1] >= STEPS - 1 or STEPS in checkpoint_steps(output_dir)
    start = time.monotonic()
    process.send_signal(number)
    if second is not None:
        time.sleep(0.002)
        process.send_signal(second)
    stderr = process.communicate(timeout=300)[1]
    seconds = time.monotonic() - start
    # Two that come together are delivered in any order.
    allowed = {STOPPED} | ({0} if is_ending else set()) | ({128 + number, 128 + second} if second is not None else set())
    assert process.returncode in allowed, f"{phase}: exit code {process.returncode}\n{stderr}"
    steps = [line["step"] for line in of_this_life(run, output_dir, "train", begun)]
    return phase, process.returncode, seconds, steps[-1] if steps else None


@pytest.mark.parametrize("seed", [7, 8])
def test_signals(seed, tmp_path, record_property):
    target = amount(30, 300)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup would have the program ignore it, as it should
    run = LongRun(tmp_path, rows=400)
    run.learn_what_to_expect()
    start = time.monotonic()
    process = run.begin(tmp_path / "timed", slow_sync_ms=10)
    process.communicate()
    whole_s = time.monotonic() - start
    rng = random.Random(seed)
    phases, codes, stopped = collections.Counter(), collections.Counter(), collections.Counter()
    num_signals = num_runs = 0
    slowest = 0.0
    while num_signals < target:
        output_dir = tmp_path / f"stopped-{num_runs}"
        for _ in range(rng.randrange(1, 10)):
            second = rng.choice(SIGNALS) if rng.random() < 0.2 else None
            earlier, was_done = checkpoint_steps(output_dir), is_done(output_dir)
            delay = rng.random() * (0.5 if rng.random() < 0.4 else whole_s)  # the start is short, and has many phases
            phase, code, seconds, last_step = stop_once(run, output_dir, delay, rng.choice(SIGNALS), second)
            if phase == "ended":
                break
            num_signals += 1
            phases[phase] += 1
            codes[code] += 1
            stopped[phase] += code == STOPPED
            slowest = max(slowest, seconds)
            assert seconds <= max(30, 5 * whole_s), "a stop takes longer than whole runs took a moment ago"
            if code == STOPPED and was_done:  # two signals ended the process before after its last line
                assert is_done(output_dir) and checkpoint_steps(output_dir) == earlier
            elif code == STOPPED:
                summary = json.loads((output_dir / "summary.json").read_text())
                assert summary["status"] == "stopped" and summary["exit_code"] == STOPPED, summary
                if last_step is not None:  # before step 1 none is owed
                    assert checkpoint_steps(output_dir)[-1] == last_step, phase
                else:
                    assert checkpoint_steps(output_dir)[-1:] == earlier[-1:], phase
            elif code != 0:
                assert not earlier or checkpoint_steps(output_dir)[-1] >= earlier[-1]
            if code == 0:
                break
        run.finish(output_dir, f"run {num_runs}")
        num_runs += 1
    for phase, count in phases.items():  # a fifth ends at once, and what is hit once may be that
        assert stopped[phase] or count < 5, f"no signal in phase {phase!r} ended in a stop"
    record_property("shown", f"durability: {num_signals} signals in {num_runs} runs of {STEPS} steps: {dict(phases)}; "
                    f"exit codes {dict(codes)}; at most {slowest:.2f} s from the signal to the end")
    assert phases["before step 1, reading"] and phases["training"] + phases["saving"], phases
