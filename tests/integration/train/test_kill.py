"""SIGKILL at random moments, at least a third of them inside a save, and the same command again until the run is done: the
result has the bits of a run that was never killed, and no kill costs more than the steps since the last checkpoint."""

import random
import time

import pytest

from long_run import SAVE_STEPS, LongRun, amount, checkpoint_steps, is_saving


def kill_somewhere(run, output_dir, rng):
    """Starts the run and kills it. Returns whether it was alive then, and whether it was inside a save."""
    process = run.begin(output_dir, slow_sync_ms=rng.choice([1, 15]))
    wants_save = rng.random() < 0.6
    if wants_save:
        passed = rng.randrange(3)  # saves that are let by
        was_saving = False
        while process.poll() is None:
            saving = is_saving(output_dir, process)
            if saving and not was_saving:
                if passed == 0:
                    time.sleep(rng.random() * 0.12)
                    break
                passed -= 1
            was_saving = saving
            time.sleep(0.001)
    else:
        try:
            process.wait(timeout=rng.random() * 1.6)
        except Exception:
            pass
    is_alive = process.poll() is None
    process.kill()
    stderr = process.communicate()[1]
    assert is_alive or process.returncode == 0, stderr
    return is_alive, is_saving(output_dir, process)


@pytest.mark.parametrize("seed", [20261121, 20261129])
def test_kill_9(seed, tmp_path, record_property):
    target = amount(15, 500)
    run = LongRun(tmp_path)
    run.learn_what_to_expect()
    rng = random.Random(seed)
    num_kills = num_in_save = num_runs = most_lost = 0
    while num_kills < target:
        output_dir = tmp_path / f"killed-{num_runs}"
        for _ in range(rng.randrange(1, 12)):
            before = checkpoint_steps(output_dir)
            is_alive, in_save = kill_somewhere(run, output_dir, rng)
            if not is_alive:
                break
            num_kills += 1
            num_in_save += in_save
            after = checkpoint_steps(output_dir)
            assert not before or max(after) >= max(before), f"{before} -> {after}"
            steps = [line["step"] for line in run.events("train", output_dir)]
            if steps and after:
                most_lost = max(most_lost, steps[-1] - max(after))
        run.finish(output_dir, f"run {num_runs}, after {num_kills} kills")
        num_runs += 1
    record_property("shown", f"durability: {num_kills} kills in {num_runs} runs, {num_in_save} of them inside a save; "
                    f"at most {most_lost} steps to be done again")
    assert 3 * num_in_save >= num_kills, f"only {num_in_save} of {num_kills} kills were inside a save"
    assert most_lost <= 2 * SAVE_STEPS  # the one under way and the one before
