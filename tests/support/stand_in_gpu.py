"""Runs on the stand-ins for the CUDA runtime and NCCL (tests/programs/stand_in_gpu)."""

import glob
import re
import shutil
from pathlib import Path

import pytest
from command import BINARY, CACHE, lora_train

STAND_IN = BINARY.parent / "stand_in_gpu"
PRELOADED = " ".join(str(STAND_IN / f"libstand_in_{name}.so") for name in ("runtime", "nccl"))
EMPTY_CACHE = Path(CACHE.name) / "empty"  # of a run that is given no other
DEVICE = 6
TAKES_MEMORY_OR_WAITS = ("cudaMalloc", "cudaFree", "cudaHostAlloc", "cudaMemcpy", "cudaStreamSynchronize", "cudaDeviceSynchronize")
NEEDS_STAND_IN = [
    pytest.mark.skipif(not (STAND_IN / "libstand_in_runtime.so").exists(), reason="the CUDA library is not built here"),
    pytest.mark.skipif(bool(glob.glob("/dev/nvidia[0-9]*")), reason="this machine has an NVIDIA GPU")]


def environment(**settings):
    shutil.rmtree(EMPTY_CACHE, ignore_errors=True)
    return dict(dict(XDG_CACHE_HOME=str(EMPTY_CACHE), LD_LIBRARY_PATH=str(STAND_IN)), **settings,
                LD_PRELOAD=str(STAND_IN / "libstand_in_runtime.so"))


def run_on_stand_in(folder, command, settings=()):
    """(the run, {call of the CUDA runtime: how often})."""
    calls = folder / "calls.txt"
    calls.unlink(missing_ok=True)
    run = lora_train(*command, environment=environment(**dict(settings), STAND_IN_CALLS=str(calls)))
    counts = dict(line.split() for line in calls.read_text().splitlines()) if calls.exists() else {}
    return run, {name: int(count) for name, count in counts.items()}


def on_stand_in(setup, settings=(), command="train", kind=None, **changes):
    if kind:
        changes["model"] = setup.quantised(kind)  # beforehand: kernels of the stand-in would quantise to nothing
    changes = {"device": "cuda", "learning_rate": 1e-3, "logging_steps": 1, **changes}
    command = [command] if isinstance(command, str) else command
    return run_on_stand_in(setup.output_dir.parent, [*command, "--profile", setup.write_profile(**changes)], settings)


def in_20_steps(setup, said, **changes):
    """What 30 steps call more often than 10, neither of which takes memory or waits: {call of the CUDA runtime: how often}."""
    counts = []
    for steps in (10, 30):
        run, calls = on_stand_in(setup, max_steps=steps, save_steps=1000, eval_steps=1000, output_dir=str(setup.folder / f"run-{steps}"), **changes)
        assert run.code == 0 and said in run.stderr and "0 segments allocated after step 1" in run.stderr, run
        counts.append(calls)
    more = {name: counts[1][name] - counts[0][name] for name in counts[0]}
    assert not any(more[name] for name in TAKES_MEMORY_OR_WAITS), more
    return more, calls


def expect_device_error(run, pattern="CUDA error.*lora-train doctor"):
    """Exit code and the one line of an error."""
    assert run.code == DEVICE, run
    errors = [line for line in run.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and re.search(pattern, errors[0]), run


def train_on_gpus(setup, num_ranks, *flags, settings=(), name="run", **changes):
    """(the run, [{call of NCCL: how often}, by rank])."""
    calls = setup.folder / "nccl-calls.txt"
    for old in setup.folder.glob("nccl-calls.txt.*"):
        old.unlink()
    changes = {"device": "cuda", "learning_rate": 1e-3, "logging_steps": 1, "output_dir": str(setup.folder / name), **changes}
    variables = environment(**{"STAND_IN_DEVICES": "2", "STAND_IN_NCCL_CALLS": str(calls), **dict(settings)})
    variables["LD_PRELOAD"] = PRELOADED
    run = lora_train("train", "--profile", setup.write_profile(**changes), "--nproc", str(num_ranks), *flags, environment=variables)
    counts = []
    for file in sorted(setup.folder.glob("nccl-calls.txt.*")):
        counts.append({key: int(count) for key, count in (line.split() for line in file.read_text().splitlines())})
    return run, counts
