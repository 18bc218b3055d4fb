"""Runs on several GPUs, on the stand-ins for NCCL and the CUDA runtime (tests/programs/stand_in_gpu): ranks are processes, and sums
are right, though kernels compute nothing."""

import json
import os
import re
import signal
import subprocess

import pytest

from command import BINARY, ROOT, lora_train
from launchers import Job
from stand_in_gpu import DEVICE, NEEDS_STAND_IN, PRELOADED, STAND_IN, environment, train_on_gpus

pytestmark = NEEDS_STAND_IN
USAGE = 2


def test_the_transport():
    """Unit tests that need the stand-ins; without them they are skipped."""
    tests = subprocess.run([str(BINARY.parent / "ranks_test"), "--gtest_filter=Nccl*"], capture_output=True, text=True,
                           timeout=600, env=dict(os.environ, LD_LIBRARY_PATH=str(STAND_IN), LD_PRELOAD=PRELOADED))
    assert tests.returncode == 0 and "PASSED  ] 18 tests" in tests.stdout, tests.stdout[-3000:] + tests.stderr[-1000:]


@pytest.mark.parametrize("changes", [{}, dict(cuda_graphs="off", deterministic=True, lora_dropout=0.1),
                                     dict(adapter="none", eval_steps=4, val_set_size=2)])
def test_a_step_makes_one_all_reduce_and_nothing_else_does(setup, changes):
    losses = []
    for num_ranks in (1, 2):
        run, counts = train_on_gpus(setup, num_ranks, name=f"run-{num_ranks}", max_steps=8, save_steps=4, **changes)
        assert run.code == 0 and ("using one of 2 GPUs; --nproc 2 uses all of them" in run.stderr) == (num_ranks == 1), run
        events = setup.events("train", setup.folder / f"run-{num_ranks}")
        losses.append([(event["step"], event["loss"], event["grad_norm"], event["tokens"]) for event in events])
    assert losses[0] == losses[1] and len(losses[0]) == 8
    assert all(len(event["rank_memory_gib"]) == 2 and min(event["rank_memory_gib"]) > 0 for event in events[4:]), events  # the first have no times yet
    assert [len(event["rank_compute_ms"]) for event in events][-1] == 2, events[-1]
    assert len(counts) == 2, counts
    for count in counts:
        assert count["connect"] == 1 and count["captured"] == 0, count
        assert count["finalize"] == 1 and count["destroy"] == 1 and count["abort"] == 0, count
        assert count["all_reduce"] == 8 + 1, count  # and one before memory is planned
        assert count["broadcast"] == 1, count
    assert "training with 2 processes (1 node x 2, --nproc)" in run.stderr, run


def test_parameters_go_to_the_other_ranks_when_a_run_goes_on(setup):
    assert train_on_gpus(setup, 2, max_steps=2, save_steps=2)[0].code == 0
    run, counts = train_on_gpus(setup, 2, "--allow-changed", "max_steps", max_steps=4, save_steps=2)
    assert run.code == 0 and "resumed from" in run.stderr, run
    assert [count["broadcast"] for count in counts] == [2, 2] and [count["all_reduce"] for count in counts] == [3, 3], counts


def test_rank_0_measures_for_all(setup):
    run, _ = train_on_gpus(setup, 2, "--log-level", "info", max_steps=2)
    assert run.code == 0, run
    lines = re.findall(r"^(.rank 1. )?tuning: \d+ choices, (\d+) from the checkpoint, 0 from the cache, (\d+) measured", run.stderr, re.M)
    (_, _, measured), (_, adopted, measured_by_1) = sorted(lines)
    assert int(measured) > 30, run  # all but one, which has one candidate
    assert int(adopted) > 0 and measured_by_1 == "0", run


def test_an_error_of_nccl_ends_all_ranks(setup):
    run, _ = train_on_gpus(setup, 2, settings=dict(STAND_IN_NCCL_FAULT="error:7:1"), max_steps=20, save_steps=2, tuning="off")
    assert run.code == DEVICE, run
    errors = [line for line in run.stderr.splitlines() if "error: " in line]
    assert len(errors) == 1 and "rank 1 of 2" in errors[0] and "asked for by STAND_IN_NCCL_FAULT" in errors[0], run
    assert json.loads((setup.folder / "run/summary.json").read_text())["exit_code"] == DEVICE
    last = setup.events("train", setup.folder / "run")[-1]["step"]
    assert last < 7 and (setup.folder / f"run/checkpoint-{last // 2 * 2}").is_dir(), run
    run, _ = train_on_gpus(setup, 2, max_steps=20, save_steps=2, tuning="off")
    assert run.code == 0 and "resumed from" in run.stderr, run


def test_a_rank_that_does_not_end_is_not_waited_for(setup):
    """The other has its results: it breaks off after 5 s."""
    run, counts = train_on_gpus(setup, 2, settings=dict(STAND_IN_NCCL_FAULT="hang:-1:1"), max_steps=2, tuning="off")
    assert run.code == 0, run
    assert [(count["finalize"], count["destroy"], count["abort"]) for count in counts] == [(1, 0, 1)] * 2, counts


def test_a_rank_that_dies_in_a_collective_is_named(setup):
    run, _ = train_on_gpus(setup, 2, settings=dict(STAND_IN_NCCL_FAULT="kill:7:1"), max_steps=20, save_steps=2, tuning="off")
    assert run.code == 128 + signal.SIGKILL, run
    assert "rank 1 of 2: process" in run.stderr and "has ended without a word" in run.stderr, run


def test_a_gpu_and_a_cpu_do_not_train_together(setup):
    """Each rank reads its device from its environment."""
    profile = setup.write_profile(device="${DEVICE}", max_steps=2)
    variables = dict(environment(STAND_IN_DEVICES="2", DEVICE="cuda"), LD_PRELOAD=PRELOADED)
    job = Job("variables", 2, ["--profile", profile], setup.folder / "err", variables, of_last_rank=dict(DEVICE="cpu"))
    assert job.wait() == USAGE, job.stderr()
    assert job.stderr().count("device: rank 0 of 2 computes on a GPU and rank 1 on its CPU") == 1, job.stderr()


def test_two_ranks_never_share_a_gpu(setup):
    run, _ = train_on_gpus(setup, 2, settings=dict(STAND_IN_DEVICES="1"), max_steps=2)
    assert run.code == DEVICE and "ranks 0 and 1 of 2 see the same GPU (GPU-" in run.stderr, run
    run, _ = train_on_gpus(setup, 3, max_steps=2)
    assert run.code == DEVICE and "3 ranks were started on this host, which has 2 GPUs" in run.stderr, run
    run, _ = train_on_gpus(setup, 2, settings=dict(STAND_IN_DEVICES="1", NCCL_MULTI_RANK_GPU_ENABLE="1"), max_steps=2)
    assert run.code == 0, run


def test_generate_and_eval_take_a_gpu_for_each_rank(tmp_path):
    """The stand-in computes nothing: what counts is who answers, in which order, and where."""
    file, variables = tmp_path / "prompts.jsonl", dict(environment(STAND_IN_DEVICES="2"), LD_PRELOAD=PRELOADED)
    file.write_text("".join(json.dumps({"prompt": f"What is {a} plus 3?", "completion": " 4"}) + "\n" for a in range(41)))
    flags = ("--model", ROOT / "examples/tiny-math/model", "--set", "device=cuda", "precision=bf16", "--json")
    generate = ("generate", *flags, "--prompts", file, "--max-new-tokens", 8)
    one, two, three = (lora_train(*generate, *(("--nproc", ranks) if ranks > 1 else ()), environment=variables) for ranks in (1, 2, 3))
    assert one.code == 0 and "using one of 2 GPUs; --nproc 2 uses all" in one.stderr, one
    assert two.code == 0 and "GPUs is used" not in two.stderr and [line["index"] for line in two.json_lines()] == list(range(41)), two
    assert three.code == DEVICE and "3 ranks were started on this host, which has 2 GPUs" in three.stderr, three
    run = lora_train("eval", *flags, "--eval-data", file, "--exact-match", "--max-new-tokens", 8, "--nproc", 2, environment=variables)
    assert run.code == 0 and run.json_lines()[0]["num_answers"] == 41, run
