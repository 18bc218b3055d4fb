"""`doctor`: what is measured and computed, the table and JSON. GPUs are those of the fake driver (tests/programs/fake_driver), found by
LD_LIBRARY_PATH. Which check fails where: doctor_report_test, gpu_test, program_test."""

import glob
import re

import pytest

from command import BINARY, lora_train
from stand_in_gpu import STAND_IN, run_on_stand_in

FAKES = BINARY.parent / "fake_driver"
HAS_GPU = bool(glob.glob("/dev/nvidia[0-9]*"))
STATUSES = ("ok", "note: ", "FAILED: ")


def doctor(tmp_path, *arguments, **fake):
    environment = dict(fake, LD_LIBRARY_PATH=str(FAKES)) if fake else {}
    return lora_train("doctor", "--output-dir", tmp_path, *arguments, environment=environment)


def checks_of(run):
    objects = run.json_lines()
    assert len(objects) == 1, run
    return objects[0], {check["name"]: check for check in objects[0]["checks"]}


@pytest.mark.skipif(HAS_GPU, reason="this machine has an NVIDIA GPU")
def test_machine_without_a_gpu_gets_a_note(tmp_path):
    run = doctor(tmp_path, "--no-kernels")
    assert run.code == 0, run
    lines = run.stdout.splitlines()
    gpu = next(line for line in lines if line.startswith("GPU "))
    assert "note: no NVIDIA GPU here; runs compute on the CPU" in gpu, run
    assert all(any(f"  {status}" in line for status in STATUSES) for line in lines[:-1]), run
    assert lines[-1].endswith("0 FAILED"), run
    assert not list(tmp_path.iterdir()), "the file that measured the disk is gone"


@pytest.mark.skipif(HAS_GPU, reason="this machine has an NVIDIA GPU")
def test_every_kernel_is_held_against_its_reference(tmp_path):
    run = doctor(tmp_path, "--json", "--no-disk")
    found, checks = checks_of(run)
    assert run.code == 0 and found["passed"], run
    names = {kernel["name"].rsplit(" ", 1)[0] for kernel in found["kernels"]}
    assert names == {"rms_norm forward", "rms_norm backward", "rms_norm_add forward",
                     "rms_norm backward of 1 + weight", "swiglu forward", "swiglu backward", "geglu forward",
                     "geglu backward", "gated_delta forward", "gated_delta backward", "rope forward", "embedding forward, scaled", "embedding backward, scaled",
                     "rope backward", "cross_entropy", "cross_entropy weighted", "embedding forward", "embedding backward", "lora gradient of A",
                     "lora gradient of B", "lora gradients of S and B", "dropout", "attention forward", "attention backward",
                     "qk_norm_rope forward", "qk_norm_rope backward", "qkv rope forward", "qkv rope backward",
                     "qk_norm_rope forward of 1 + weight", "qk_norm_rope backward of 1 + weight", "cast",
                     "dequantize nf4", "dequantize nested nf4", "dequantize int8", "dequantize fp8",
                     "causal_conv forward", "causal_conv backward", "gated_norm forward", "gated_norm backward",
                     "output_gate forward", "output_gate backward", "gather_rows", "scatter_rows", "sample_tokens", "add_losses", "gradient norm", "adamw", "adamw_8bit"}
    for kernel in found["kernels"]:
        assert kernel["passed"] and kernel["note"] is None, kernel
        assert 0 <= kernel["max_error"] <= kernel["tolerance"] and kernel["own_us"] > 0 and kernel["reference_us"] > 0, kernel
        assert checks[kernel["name"]]["status"] == "ok"
    assert {kernel["name"].rsplit(" ", 1)[1] for kernel in found["kernels"]} == {"fp32", "bf16"}
    # Our own vector code is not the reference itself.
    assert any(kernel["max_error"] > 0 for kernel in found["kernels"])


KERNEL_LINE = re.compile(r"^(\S.*?) {2,}\S.*: error (\S+), at most (\S+); ([\d.]+) us, reference ([\d.]+) us {2,}(ok|note: |FAILED: )", re.M)


@pytest.mark.skipif(HAS_GPU, reason="this machine has an NVIDIA GPU")
@pytest.mark.skipif(not (STAND_IN / "libstand_in_runtime.so").exists(), reason="the CUDA library is not built here")
def test_inputs_are_drawn_and_compared_on_the_gpu(tmp_path):
    """Kernels of the stand-in compute nothing, so each fails, but is reported."""
    run, calls = run_on_stand_in(tmp_path, ["doctor", "--json", "--no-disk"])
    assert calls["bytesToHost"] + calls["bytesFromPageable"] + calls["bytesFromPageLocked"] < 64 << 20, calls
    found, _ = checks_of(run)
    assert run.code == 6 and found["kernels_place"].startswith("cuda:0"), run
    assert [kernel["name"] for kernel in found["kernels"]] == [line[0] for line in KERNEL_LINE.findall(run.stderr)], run
    assert any("N=4096 F=18944" in kernel["shape"] for kernel in found["kernels"]), run


def test_json_has_what_was_measured(tmp_path):
    run = doctor(tmp_path, "--json", "--no-kernels")
    found, checks = checks_of(run)
    assert set(found) >= {"version", "commit", "passed", "checks", "libtorch", "gpu_architectures", "host", "driver", "gpus",
                          "peer_access", "libraries", "disk", "kernels"}
    assert found["libtorch"]["version"].startswith("2.11.") and found["kernels"] == []
    assert found["host"]["cores"] >= found["host"]["physical_cores"] >= 1 and found["host"]["numa_nodes"] >= 1
    assert found["host"]["memory_bytes"] > 2**28
    disk = found["disk"]
    assert disk["folder"] == str(tmp_path) and disk["free_bytes"] > 0, run
    assert disk["write_bytes_per_s"] > 0 and disk["read_bytes_per_s"] > 0, run
    if found["libtorch"]["cuda"]:
        assert found["libraries"]["NCCL"].startswith("2.") and found["libraries"]["cuDNN"].startswith("9."), run
    assert "disk" in checks and "engine" not in checks and "measuring the disk" in run.stderr, run


def test_old_driver_fails(tmp_path):
    run = doctor(tmp_path, "--no-kernels", "--no-disk", FAKE_CUDA_VERSION="12040", FAKE_DRIVER_VERSION="550.54.15")
    assert run.code == 6, run
    driver = next(line for line in run.stdout.splitlines() if line.startswith("driver "))
    assert "550.54.15, CUDA up to 12.4" in driver and "FAILED: NVIDIA driver 550.54.15 is too old" in driver, run
