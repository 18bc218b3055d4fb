"""Runs of several ranks: the same numbers as one rank under every launcher, and what is refused. rank_battery.py kills and stops
them."""

import json
import subprocess

import numpy as np
import pytest
from command import BINARY, ENVIRONMENT, Setup, model_tensors
from launchers import LAUNCHERS, Job
from safetensors.numpy import load_file
from tiny_math import hybrid_model

DONE, USAGE, NUMERIC = 0, 2, 7


def use_evaluation(setup):
    rows = setup.folder / "eval.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in setup.rows[:7]))
    setup.profile.update(eval_datasets=[{"path": str(rows), "type": "pretokenized"}], eval_steps=2)


def run(setup, launcher, num_ranks, name, of_last_rank={}, **changes):
    """Trains into its own folder. Returns losses and gradient norms, evaluation losses and ECEs, and the adapter."""
    folder = setup.folder / name
    profile = setup.write_profile(output_dir=str(folder), **changes)
    job = Job(launcher, num_ranks, ["--profile", profile], setup.folder / f"{name}.err", of_last_rank=of_last_rank)
    assert job.wait() == DONE, job.stderr()
    steps = [[event["loss"], event["grad_norm"]] for event in setup.events("train", folder)]
    evals = [[event["loss"], event["token_accuracy"], event["ece"]] for event in setup.events("eval", folder)]
    return np.array(steps), np.array(evals), load_file(folder / "adapter/adapter_model.safetensors")


def expect_equal(one, other, rtol=0):
    for mine, theirs in zip(one[:2], other[:2]):
        np.testing.assert_allclose(theirs, mine, rtol=rtol, atol=1e-6)
    for name, values in one[2].items():
        np.testing.assert_allclose(other[2][name], values, rtol=0, atol=1e-5, err_msg=name)


@pytest.fixture(scope="module")
def one_rank(tmp_path_factory):
    setup = Setup(tmp_path_factory.mktemp("one_rank"))
    use_evaluation(setup)
    return run(setup, "nproc", 1, "one", max_steps=4)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_every_launcher_gives_the_numbers_of_one_rank(setup, one_rank, launcher):
    """Nor do variables of one rank alone change any."""
    use_evaluation(setup)
    expect_equal(one_rank, run(setup, launcher, 2, launcher, dict(OMP_NUM_THREADS="1"), max_steps=4))


@pytest.mark.parametrize("name, changes", [
    ("packed", dict(packing=True)), ("documents", dict(packing=True, batch_unit="documents", global_batch_size=5, micro_batch_size=1)), ("dropout", dict(lora_dropout=0.3)),
    ("uneven last step", dict(max_steps="unset", num_epochs=2, global_batch_size=5)),
    ("global batch below the world size", dict(global_batch_size=2, micro_batch_size=1))])
def test_the_number_of_ranks_changes_no_number(setup, name, changes):
    use_evaluation(setup)
    expect_equal(run(setup, "nproc", 1, "one", **changes), run(setup, "nproc", 4, "four", **changes))


def test_ranks_of_a_hybrid_model_hold_whole_documents(setup):
    # Ranks add in another order. With an epsilon of 1e-8 AdamW doubles what rounding does to gradients near zero.
    changes = dict(model=str(hybrid_model(setup.folder)), packing=True, micro_batch_size=1, learning_rate=1e-4, adam_epsilon=1e-3)
    use_evaluation(setup)
    expect_equal(run(setup, "nproc", 1, "one", **changes), run(setup, "nproc", 2, "two", **changes), rtol=1e-6)


def test_a_run_goes_on_with_another_number_of_ranks(setup):
    whole = run(setup, "nproc", 1, "whole", max_steps=9, save_steps=3)
    for num_ranks, max_steps in ((4, 3), (1, 6), (2, 9)):
        profile = setup.write_profile(output_dir=str(setup.folder / "run"), max_steps=max_steps, save_steps=3)
        job = Job("nproc", num_ranks, ["--profile", profile, "--allow-changed", "max_steps"], setup.folder / "err")
        assert job.wait() == DONE, job.stderr()
    losses = [[event["loss"], event["grad_norm"]] for event in setup.events("train", setup.folder / "run")]
    np.testing.assert_allclose(losses, whole[0], rtol=0, atol=1e-6)


def test_the_scaled_learning_rate_is_explained(setup):
    del setup.profile["global_batch_size"]
    batch = dict(micro_batch_size=1, gradient_accumulation_steps=2)
    profile = setup.write_profile(learning_rate=1e-3, lr_scaling="sqrt", lr_base_batch=4, **batch)
    job = Job("nproc", 2, ["--profile", profile], setup.folder / "err")
    assert job.wait() == DONE, job.stderr()
    assert ("learning_rate: 0.001 x sqrt(4 / 4) = 0.001 (lr_scaling: sqrt); 1 GPU: batch 2, 0.0007071, 2 GPUs: batch 4, 0.001, "
            "4 GPUs: batch 8, 0.001414, 8 GPUs: batch 16, 0.002") in job.stderr(), job.stderr()
    assert max(event["learning_rate"] for event in setup.events("train", setup.output_dir)) <= 1e-3 * (1 + 1e-9)


def test_a_rehearsal_needs_no_row_on_every_rank(setup):
    profile = setup.write_profile(global_batch_size=2, micro_batch_size=1)
    job = Job("nproc", 4, ["--profile", profile, "--dry-run"], setup.folder / "err")
    assert job.wait() == DONE and "dry run: the largest micro-batch" in job.stderr(), job.stderr()


def test_two_jobs_on_one_host_do_not_meet(setup):
    profile = setup.write_profile()
    jobs = [Job("openmpi", 2, ["--profile", profile, "--output-dir", setup.folder / f"job{i}"], setup.folder / f"{i}.err")
            for i in (0, 1)]
    for i, job in enumerate(jobs):
        assert job.wait() == DONE, job.stderr()
        assert len(setup.events("train", setup.folder / f"job{i}")) == 3


def test_other_data_on_one_rank_is_named_once(setup):
    """Each rank reads the file that its launcher's variable names."""
    setup.profile["datasets"][0]["path"] = "${ROWS}"
    other = setup.folder / "other.jsonl"
    other.write_text("".join(json.dumps(row) + "\n" for row in setup.rows[1:]))
    profile = setup.write_profile()
    script = setup.folder / "rank.sh"
    script.write_text(f'#!/bin/sh\n[ "$OMPI_COMM_WORLD_RANK" = 1 ] && ROWS={other} || ROWS={setup.rows_file}\n'
                      'export ROWS\nexec "$@"\n')
    script.chmod(0o755)
    done = subprocess.run(["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--mca", "odls_base_sigkill_timeout",
                           "2", "-n", "2", script, BINARY, "train", "--profile", profile],
                          capture_output=True, text=True, env=ENVIRONMENT, timeout=120)
    assert done.returncode == USAGE, done.stderr
    assert done.stderr.count("error: rank 1 of 2: differs from rank 0 in its ") == 1, done.stderr


def test_nproc_under_another_launcher_is_refused(setup):
    job = Job("mpich", 2, ["--profile", setup.write_profile(), "--nproc", "2"], setup.folder / "err", grace_s=2)
    assert job.wait() != DONE
    assert "--nproc" in job.stderr() and "has started this process already" in job.stderr()
    assert not setup.output_dir.exists()


def test_examples_that_are_not_finite_are_named_with_their_rank(setup):
    tensors = model_tensors()
    tensors["model.embed_tokens.weight"][63] = 3e38  # finite, and its square is not
    setup.write_model(tensors)
    rows = [{"input_ids": [2 + i, 3 + i, 4 + i, 5 + i], "labels": [-100, 3 + i, 4 + i, 5 + i]} for i in range(4)]
    rows[3]["input_ids"][2] = 63
    setup.write_rows(rows)
    job = Job("nproc", 2, ["--profile", setup.write_profile(micro_batch_size=2, shuffle=False)], setup.folder / "err")
    assert job.wait() == NUMERIC, job.stderr()
    assert job.stderr().count("not finite") == 1, job.stderr()
    assert "on rank " in job.stderr() and "rows.jsonl:4" in job.stderr() and "No step came before it" in job.stderr(), job.stderr()


def test_a_bad_profile_is_named_once(setup):
    profile = setup.write_profile(lora_r=-1)
    job = Job("openmpi", 2, ["--profile", profile], setup.folder / "err", grace_s=2)
    assert job.wait() == USAGE and job.stderr().count("lora_r") == 1, job.stderr()
