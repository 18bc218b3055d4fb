"""Our CUDA kernels as nvcc has made them: their machine code, and the program that tests them on a GPU."""

import glob
import os
import shutil
import subprocess
import sys

import pytest

from command import BINARY, ROOT

LIBRARY = BINARY.parent / "lib/liblora_train_cuda.so"
TESTS = BINARY.parent / "cuda_kernels_test"
CHECK = ROOT / "scripts/checks/check_kernel_code.py"
pytestmark = pytest.mark.skipif(not LIBRARY.exists(), reason="a CPU-only build: no nvcc was found")


def run(*command, **environment):
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=600,
                          env=dict(os.environ, **environment))


def test_tests_on_a_gpu_link_no_torch():
    """So that compute-sanitizer starts them at once."""
    needed = [line for line in run("readelf", "-d", TESTS).stdout.splitlines() if "(NEEDED)" in line]
    assert any("libc.so" in line for line in needed), needed
    assert not [line for line in needed if "torch" in line or "c10" in line or "cuda" in line], needed


@pytest.mark.skipif(bool(glob.glob("/dev/nvidia[0-9]*")), reason="this machine has an NVIDIA GPU")
def test_tests_on_a_gpu_say_that_there_is_none():
    done = run(TESTS)
    assert done.returncode == 6 and "no CUDA device: " in done.stderr and "No kernel was tested" in done.stderr, done
    assert "[ RUN" not in done.stdout, done


def test_both_programs_have_the_same_cases():
    """But for the tests of the emulation itself."""
    on_cpu, on_cuda = (run(program, "--gtest_list_tests").stdout.splitlines()
                       for program in (TESTS.with_name("native_kernels_test"), TESTS))
    launch = on_cpu.index("Launch.")
    end = next((i for i in range(launch + 1, len(on_cpu)) if not on_cpu[i].startswith("  ")), len(on_cpu))
    assert len(on_cuda) > 35 and sorted(on_cpu[:launch] + on_cpu[end:]) == sorted(on_cuda)


def test_cases_pass_without_guard_zones():
    """As compute-sanitizer runs them; a filter that leaves nothing passes nothing."""
    native = TESTS.with_name("native_kernels_test")
    done = run(native, "--no-guards", "--gtest_brief=1", "--gtest_filter=RmsNorm*:Gather*:ScaledCopies*")
    assert done.returncode == 0 and "PASSED" in done.stdout, done
    assert run(native, "--gtest_filter=Nothing.*").returncode == 1
    assert run(native, "--no-zones").returncode == 2


def test_machine_code_is_that_of_the_table():
    done = run(sys.executable, CHECK, LIBRARY)
    if done.returncode == 77:
        pytest.skip(done.stdout)
    assert done.returncode == 0, done.stdout


SPILLS = """
__global__ void cast_kernel(float* to, int at) {
  float values[64];
  for (int i = 0; i < 64; ++i) values[i] = to[i];
  for (int i = 0; i < at; ++i) values[i * at % 64] += values[i];
  for (int i = 0; i < 64; ++i) to[i] = values[i];
}
"""


def test_local_memory_and_unknown_kernels_are_found(tmp_path):
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("nvcc is not on the PATH")
    (tmp_path / "spills.cu").write_text(SPILLS)
    assert run(nvcc, "-arch=sm_80", "-c", tmp_path / "spills.cu", "-o", tmp_path / "spills.o").returncode == 0
    done = run(sys.executable, CHECK, tmp_path / "spills.o")
    if done.returncode == 77:
        pytest.skip(done.stdout)
    assert done.returncode == 1, done
    assert "cast sm_80: uses 256 bytes of local memory, in the table 0" in done.stdout, done
    assert "cast: only in the build" in done.stdout and "adamw_step<4>: only in the table" in done.stdout, done
