"""`device: cuda` where it cannot be: each reason is a sentence that says what to do, exit 6, before anything is written.

The driver is a fake one (tests/programs/fake_driver) that the program finds by LD_LIBRARY_PATH, but for the first test."""

import glob

import pytest

from command import BINARY, lora_train

FAKES = BINARY.parent / "fake_driver"
DEVICE = 6
HAS_GPU = bool(glob.glob("/dev/nvidia[0-9]*"))
H200, EXCLUSIVE = "NVIDIA H200|9.0|143771|143000|0|", "NVIDIA A10G|8.6|23028|3000|3|4711:19456"


def train_on(setup, *arguments, **environment):
    assert (FAKES / "libcuda.so.1").exists(), "the fake driver is not built"
    profile = setup.write_profile(device="cuda")
    return lora_train("train", "--profile", profile, *arguments, environment=dict(environment, LD_LIBRARY_PATH=str(FAKES)))


@pytest.mark.skipif(HAS_GPU, reason="this machine has an NVIDIA GPU")
def test_machine_without_a_gpu_has_the_cpu_for_auto(setup):
    run = setup.train(device="cuda")
    assert run.code == DEVICE, run
    assert "device: libcuda.so.1, the NVIDIA driver's library, cannot be used" in run.stderr, run
    assert "Install the driver, 580 or newer" in run.stderr and "set device: cpu" in run.stderr, run
    assert not setup.output_dir.exists() or not list(setup.output_dir.glob("checkpoint*")), run
    assert setup.train(device="auto").code == 0


@pytest.mark.parametrize("environment, parts", [
    (dict(FAKE_CUDA_VERSION="12040", FAKE_DRIVER_VERSION="550.54.15"),
     ["NVIDIA driver 550.54.15 is too old", "CUDA up to 12.4", "driver 580 or newer", "Update the driver"]),
    (dict(CUDA_VISIBLE_DEVICES=""), ['no GPU is visible: CUDA_VISIBLE_DEVICES is ""']),
    (dict(FAKE_GPUS=EXCLUSIVE), ["in use by pid 4711 (19.0 GiB)", "one process at a time"])])
def test_gpu_that_cannot_be_used(setup, environment, parts):
    """Each other reason is in gpu_test."""
    run = train_on(setup, "--json", **environment)
    assert run.code == DEVICE and run.json_lines()[-1]["error"]["kind"] == "device", run
    error = [line for line in run.stderr.splitlines() if line.startswith("error: ")]
    assert len(error) == 1 and all(part in error[0] for part in [*parts, "set device: cpu"]), run


@pytest.mark.skipif((BINARY.parent / "lib/liblora_train_cuda.so").exists(), reason="the CUDA library is built")
def test_cpu_only_build_says_that_it_is_one(setup):
    run = train_on(setup, FAKE_GPUS=H200)
    assert run.code == DEVICE and "the CUDA library is missing" in run.stderr, run
    assert "liblora_train_cuda.so" in run.stderr and "cuda:0 (NVIDIA H200)" in run.stderr, run
