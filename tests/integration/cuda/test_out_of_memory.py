"""GPU memory that runs out, on the stand-in for the CUDA runtime: a run that fits by its plan plans once more."""

import re

import pytest
from launchers import Job
from stand_in_gpu import DEVICE, NEEDS_STAND_IN, PRELOADED, environment, expect_device_error, on_stand_in, run_on_stand_in

pytestmark = NEEDS_STAND_IN


@pytest.mark.parametrize("at", [1, 3])
def test_memory_that_is_refused_ends_the_run_with_advice(setup, at):
    run, _ = on_stand_in(setup, dict(STAND_IN_OOM_AT=str(at)), max_steps=4)
    expect_device_error(run, "(?i)out of.*memory")


def takes_gigabytes(setup):
    """Changes with which buffers for evaluations take 3 GiB without recomputation and much less with it, and the rehearsal allocates."""
    setup.use_layers(20)
    setup.write_config(num_hidden_layers=20, max_position_embeddings=2048)
    setup.write_rows([{"input_ids": [2] * 2048, "labels": [2] * 2048}] + setup.rows)
    return dict(precision="bf16", base_precision="bf16", max_seq_len=2048, micro_batch_size=1, val_set_size=2, eval_micro_batch_size=84,
                max_steps=2, tuning="off", attn_implementation="reference")


def test_memory_that_runs_out_though_the_plan_fits_is_planned_for_once_more(setup):
    """The last allocation of a run is one of the rehearsal."""
    changes = takes_gigabytes(setup)
    run, calls = on_stand_in(setup, **changes)
    assert run.code == 0 and "Planning once more" not in run.stderr, run
    profile = (setup.output_dir / "profile.yaml").read_text()
    last = calls["cudaMalloc"]
    run, calls = on_stand_in(setup, dict(STAND_IN_OOM_AT=f"{last}:{last + 1}"), output_dir=str(setup.folder / "again"), **changes)
    line, = (line for line in run.stderr.splitlines() if "Planning once more" in line)
    assert re.search(r"though the plan fits \(1 row, recomputation off, [2-9]\.\d GiB\): CUDA out of memory.*Planning once more, for "
                     r"[1-7]\.\d GiB: 1 row, recomputation (cheap|gate_up|full)", line), line
    assert run.code == 0 and run.stderr.count("before step 1: the largest micro-batch") == 1, run
    assert [event["step"] for event in setup.events("train", setup.folder / "again")] == [1, 2]
    assert profile.replace(str(setup.output_dir), str(setup.folder / "again")) == (setup.folder / "again/profile.yaml").read_text()


def test_memory_that_runs_out_twice_ends_the_run_with_advice(setup):
    changes = takes_gigabytes(setup)
    last = on_stand_in(setup, **changes)[1]["cudaMalloc"]
    for given, lines in ((dict(), 1), (dict(gradient_checkpointing="off"), 0)):  # nothing is left to auto
        run, _ = on_stand_in(setup, dict(STAND_IN_OOM_AT=f"{last}:{last + 1 if given else 10**6}"),
                             output_dir=str(setup.folder / f"again-{lines}"), **changes, **given)
        expect_device_error(run, "memory")
        assert run.stderr.count("Planning once more") == lines, run


BENCH_OF_GIGABYTES = ["bench", "--shape", "tiny-qwen3", "device=cuda", "max_seq_len=64", "micro_batch_size=40000", "tuning=off", "--steps", "3",
                      "--warm-up", "1", "--only-steps", "--json"]


def test_bench_plans_once_more_where_memory_runs_out(tmp_path):
    bench = [*BENCH_OF_GIGABYTES, "cuda_graphs=off"]
    run, calls = run_on_stand_in(tmp_path, bench)
    assert run.code == 0, run
    last = calls["cudaMalloc"]
    run, _ = run_on_stand_in(tmp_path, bench, dict(STAND_IN_OOM_AT=f"{last}:{last + 1}"))
    assert run.code == 0 and "Planning once more" in run.stderr and run.json_lines()[0]["speed"], run


def test_graphs_that_find_no_memory_are_planned_for_once_more(tmp_path):
    run, _ = run_on_stand_in(tmp_path, BENCH_OF_GIGABYTES, dict(STAND_IN_REFUSE_CAPTURE_AT="2", STAND_IN_REFUSE_CAPTURE="instantiate"))
    assert run.code == 0 and run.stderr.count("cudaGraphInstantiate. Planning once more") == 1, run
    assert run.json_lines()[0]["cuda_graphs"]["reason"].startswith("not enough memory to capture the steps: CUDA out of memory"), run


def test_memory_that_is_too_small_is_said_before_a_weight_is_read(setup):
    run, calls = on_stand_in(setup, dict(STAND_IN_FREE_GIB="1"), max_steps=4)
    assert run.code == DEVICE, run
    assert "out of GPU memory before step 1: a micro-batch of" in run.stderr and " short. Needed for: " in run.stderr, run
    assert calls["cudaMemcpyAsync"] == 0, calls


def test_ranks_plan_once_more_together_where_one_runs_out_of_memory(setup):
    changes = dict(takes_gigabytes(setup), device="cuda", learning_rate=1e-3, max_steps=1)
    calls, of_rank_1 = setup.folder / "calls.txt", {}
    for name in ("run", "again"):
        profile = setup.write_profile(**dict(changes, output_dir=str(setup.folder / name)))
        variables = dict(environment(STAND_IN_DEVICES="2"), LD_PRELOAD=PRELOADED)
        job = Job("variables", 2, ["--profile", profile], setup.folder / "err", variables,
                  of_last_rank=dict(of_rank_1, STAND_IN_CALLS=str(calls)))
        assert job.wait() == 0, job.stderr()
        assert job.stderr().count("Planning once more") == len(of_rank_1), job.stderr()
        last = int(re.search(r"cudaMalloc (\d+)", calls.read_text())[1])
        of_rank_1 = dict(STAND_IN_OOM_AT=f"{last}:{last + 1}")
    assert "): rank 1: CUDA out of memory. Tried to allocate" in job.stderr(), job.stderr()
    assert len(setup.events("train", setup.folder / "again")) == 1
