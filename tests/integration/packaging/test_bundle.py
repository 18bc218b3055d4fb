"""The archive for a machine with a GPU (scripts/make_bundle.sh), and what runs from it (scripts/gpu_check.sh), on a CPU."""

import glob
import importlib.metadata
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from command import BINARY, ROOT

HAS_GPU = bool(glob.glob("/dev/nvidia[0-9]*"))
CUDART = glob.glob(f"{sys.prefix}/lib/python3*/site-packages/nvidia/cu13/lib/libcudart.so.13")
pytestmark = pytest.mark.skipif(not (BINARY.parent / "lib/liblora_train_cuda.so").exists(),
                                reason="a CPU-only build: no nvcc was found")


def run(*command, **environment):
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=600,
                          env=dict(os.environ, OMP_WAIT_POLICY="passive", **environment))


MOST_BYTES = 50_000_000  # of a build for several GPUs, compressed fast; at level 6 it takes three quarters of that


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    """(what make_bundle.sh printed, the file)"""
    file = tmp_path_factory.mktemp("archive") / "bundle.tar.xz"
    done = run(ROOT / "scripts/make_bundle.sh", "--no-build", "--level", 0, "--limit", MOST_BYTES, "--build", BINARY.parent.parent,
               "--out", file)
    assert done.returncode == 0, done
    return done.stdout, file


@pytest.fixture(scope="module")
def bundle(archive, tmp_path_factory):
    folder = tmp_path_factory.mktemp("other machine")
    subprocess.run(["tar", "xf", archive[1], "-C", folder], check=True)
    return folder / "lora-train-bundle"


def requirements_of(names):
    """The distributions that `pip install` of these brings, with themselves."""
    found, left = {}, list(names)
    while left:
        name = left.pop()
        if name.lower() in found:
            continue
        found[name.lower()] = distribution = importlib.metadata.distribution(name)
        for line in distribution.requires or []:
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                left.append(requirement.name)
    return found.values()


@pytest.fixture(scope="module")
def second_python(tmp_path_factory):
    """A virtual environment with torch, transformers and peft, and what they need, as a machine with a GPU has."""
    folder = tmp_path_factory.mktemp("second environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    site = next(folder.glob("lib/python3*/site-packages"))
    distributions = requirements_of(["torch", "transformers", "peft"])
    assert len(distributions) > 20
    for distribution in distributions:
        for top in {file.parts[0] for file in distribution.files if file.parts[0] not in ("..", "__pycache__")}:
            if not (site / top).exists():
                (site / top).symlink_to(Path(distribution.locate_file(top)).resolve())
    assert run(folder / "bin/python", "-c", "import pytest").returncode == 1
    return folder / "bin/python"


def gpu_check(bundle, out, *arguments, python=sys.executable, **environment):
    return run(bundle / "scripts/gpu_check.sh", "--python", python, "--out", out, *arguments, **environment)


def test_archive_is_small_and_complete(archive, bundle):
    assert "highest: " in archive[0] and "GLIBCXX_3.4." in archive[0], archive
    assert archive[1].stat().st_size <= MOST_BYTES
    files = {str(path.relative_to(bundle)) for path in bundle.rglob("*") if path.is_file()}
    assert files >= {"BUNDLE", "bin/lora-train", "bin/lora-train-probe", "bin/kernels_test", "bin/cuda_kernels_test", "bin/gpu_bench",
                     "bin/lib/liblora_train_engine.so", "bin/lib/liblora_train_cuda.so", "bin/lib/libcount_cuda_calls.so",
                     "bin/lib/librecord_cuda_kernels.so", "bin/lib/liblora_train_arrow.so", "bin/sanitizer_control", "bin/lora-train-generate-probe",
                     "bin/configs/h100.yaml", "scripts/gpu_check.sh", "scripts/sweep.sh",
                     "tests/gpu/gpu_check.py", "tests/gpu/goals.json", "tests/gpu/parity_gpu.py",
                     "tests/parity/oracle.py", "tests/parity/family_case.py", "bench/gpu_measure.py", "bench/hf_steps.py", "examples/tiny-math/train.jsonl",
                     "packages/liger_kernel/transformers/monkey_patch.py"}
    assert not {"bin/lib/torch_path", "bin/lib/arrow_path"} & set(files), "they name folders of the machine that built"
    assert not [path for path in bundle.rglob("*") if path.is_symlink()]


def test_cuda_library_without_code_for_a_named_architecture_is_refused(tmp_path):
    (tmp_path / "bin").mkdir()
    for file in BINARY.parent.iterdir():
        (tmp_path / "bin" / file.name).symlink_to(file)
    (tmp_path / "bin/lora-train").unlink()
    (tmp_path / "bin/lora-train").write_text("#!/bin/sh\necho 'GPU architectures: sm_80 sm_75'\n")
    (tmp_path / "bin/lora-train").chmod(0o755)
    done = run(ROOT / "scripts/make_bundle.sh", "--no-build", "--level", 0, "--build", tmp_path, "--out", tmp_path / "bundle.tar.xz")
    assert done.returncode == 1 and not (tmp_path / "bundle.tar.xz").exists(), done
    assert "the program names sm_75, but liblora_train_cuda.so has code only for " in done.stderr and "sm_90" in done.stderr, done


def test_file_that_needs_more_than_ubuntu_has_is_named(bundle, tmp_path):
    """Limits below what the files need, a run path, and a library that nobody brings."""
    check = ROOT / "scripts/checks/check_portable.py"
    assert run(sys.executable, check, bundle).returncode == 0
    older = run(sys.executable, check, bundle, "--limit", "GLIBC=2.20")
    assert older.returncode == 1, older
    assert any(line.startswith("bin/lora-train: needs ") and "of GLIBC_2." in line
               for line in older.stdout.splitlines()), older
    shutil.copy(BINARY.parent / "kernels_test", tmp_path / "kernels_test")
    unprepared = run(sys.executable, check, tmp_path)
    assert unprepared.returncode == 1 and "kernels_test: has the run path /" in unprepared.stdout, unprepared
    (tmp_path / "kernels_test").unlink()
    shutil.copy(sys.executable, tmp_path / "program")
    foreign = run(sys.executable, check, tmp_path)
    assert foreign.returncode == 1 and "program: needs lib" in foreign.stdout, foreign
    assert run(sys.executable, check, ROOT / "docs").returncode == 1, "a folder without programs proves nothing"


def test_comparison_finds_liger_in_the_bundle(bundle, second_python):
    done = run(second_python, "-W", "ignore", "-c", "import hf_steps, liger_kernel.transformers; print(liger_kernel.__path__)",
               PYTHONPATH=str(bundle / "bench"))
    assert done.returncode == 0 and str(bundle / "packages/liger_kernel") in done.stdout, done


@pytest.mark.skipif(HAS_GPU, reason="this machine has an NVIDIA GPU")
def test_machine_without_a_gpu_is_told_so_in_one_line(bundle, tmp_path):
    done = gpu_check(bundle, tmp_path / "out")
    assert done.returncode == 6 and len(done.stderr.splitlines()) == 1 and "no NVIDIA GPU here" in done.stderr, done
    assert not (tmp_path / "out").exists()


def results_of(table):
    """{part: result}; below the parts, "gate_up exact ..." is a choice."""
    rows = (line.split() for line in table.split("figure\n", 1)[1].split("\n\n", 1)[0].splitlines())
    return {row[0]: row[1] for row in rows}


CALL_OF_A_CPU = ["load", "doctor", "recorded", "classes", "hybrid", "parity", "parity_hybrid"]
ALL_CALLS = ["correct", "speed", "rest", "rivals", "figures", "slow"] if os.environ.get("GPU_CHECK_PARTS") == "all" else []
NEED_A_GPU = {"cuda_kernels", "kernel_names", "sanitizer", "steady"}


@pytest.mark.parametrize("call", ["some", *ALL_CALLS])
def test_parts_that_a_cpu_can_run_pass(bundle, second_python, tmp_path, call):
    """GPU_CHECK_PARTS=all runs whole calls, which takes minutes for each."""
    out, chosen = tmp_path / "out", ["--only", ",".join(CALL_OF_A_CPU)] if call == "some" else ["--call", call]
    done = gpu_check(bundle, out, "--dry-run-cpu", *chosen, "--archive", tmp_path / "all.tgz", "--budget", 3600, python=second_python)
    assert done.returncode == 0, done
    results = results_of(done.stdout)
    assert {name for name, result in results.items() if result != "passed"} <= NEED_A_GPU, done
    assert "not measured" in done.stdout and "holds" not in done.stdout, "a CPU reaches no goal"
    if call == "some":
        assert list(results) == CALL_OF_A_CPU
        assert (out / "table-only.txt").read_text() == done.stdout and "lora-train 0." in done.stdout
        assert json.loads((out / "doctor.json").read_text())["passed"] and (out / "trace.json").exists()
        figures = json.loads((out / "measured.json").read_text())["figures"]
        assert {"class_ms/gemm", "tokens_per_s/tiny-qwen2", "rate/gemm_tflop_s", "rate/copy_tb_s"} <= set(figures)
    with tarfile.open(tmp_path / "all.tgz") as archive:
        assert {"out/log.txt", "out/measured.json"} <= set(archive.getnames())


def test_the_archive_runs_as_it_is(archive, tmp_path):
    unpacked = run(ROOT / "scripts/gpu_check.sh", "--bundle", archive[1], "--python", sys.executable, "--out", tmp_path / "unpacked",
                   "--dry-run-cpu", "--only", "machine")
    assert unpacked.returncode == 0 and "machine            passed" in unpacked.stdout, unpacked


@pytest.mark.skipif(HAS_GPU, reason="this machine has an NVIDIA GPU")
def test_failing_parts_are_reported_and_the_others_run(bundle, tmp_path):
    """A stand-in for nvidia-smi makes the script believe in a GPU, on which then everything but `machine` fails."""
    fake = tmp_path / "bin"
    fake.mkdir()
    (fake / "nvidia-smi").write_text("#!/bin/sh\necho 'A GPU, 580.00'\n")
    (fake / "nvidia-smi").chmod(0o755)
    done = gpu_check(bundle, tmp_path / "out", "--only", "machine,doctor,steady,sanitizer",
                     PATH=f"{fake}:{os.environ['PATH']}")
    assert done.returncode == 1, done
    rows = {line.split()[0]: line for line in done.stdout.splitlines() if " passed " in line or " FAILED " in line
            or " skipped " in line}
    assert "passed" in rows["machine"] and "A GPU, 580.00" in rows["machine"], rows
    assert "FAILED" in rows["doctor"] and "FAILED" in rows["steady"], rows
    assert re.search(" FAILED | skipped .*not installed", rows["sanitizer"]), rows
    assert "exit code 6" in (tmp_path / "out/log.txt").read_text()


@pytest.mark.skipif(HAS_GPU, reason="this machine has an NVIDIA GPU")
def test_skipped_test_on_cuda_fails_where_a_gpu_should_be(bundle):
    command = (sys.executable, bundle / "tests/gpu/unit_tests.py", "--only", "optim_test", "--device")
    on_cpu, on_cuda = (run(*command, device, LORA_TRAIN_BIN=str(bundle / "bin")) for device in ("cpu", "cuda"))
    assert on_cpu.returncode == 0 and " 0 failed" in on_cpu.stdout and " 0 passed" not in on_cpu.stdout, on_cpu
    assert on_cuda.returncode == 1, on_cuda
    assert "was skipped on a machine with a GPU: no NVIDIA driver here" in on_cuda.stdout, on_cuda


def test_parity_script_can_fail(bundle, tmp_path):
    """A probe that prints nothing, bf16 that is computed in fp32, and TF32 that rounds as fp32 does."""
    command = (sys.executable, "-W", "ignore", bundle / "tests/gpu/parity_gpu.py", "--device", "cpu", "--cases", 1,
               "--curves", 0, "--work")
    engine = tmp_path / "engine/lora-train-probe"
    engine.parent.mkdir()
    engine.write_text("#!/bin/sh\nwhile read -r line; do echo 0; done\n")
    engine.chmod(0o755)
    broken = run(*command, tmp_path / "again", LORA_TRAIN_BIN=str(engine.parent))
    assert broken.returncode == 1 and "figure: 0 passed, 2 failed" in broken.stdout, broken
    older = ("from types import SimpleNamespace; import parity_gpu; parity_gpu.transformers = SimpleNamespace(__version__='4.57.1'); "
             "parity_gpu.main()")
    unknown = run(sys.executable, "-W", "ignore", "-c", older, *command[4:], tmp_path / "older", "--hybrid",
                  PYTHONPATH=str(bundle / "tests/gpu"))
    assert unknown.returncode == 77 and "figure: not checked: transformers 4.57.1 has no qwen3_5" in unknown.stdout, unknown
    unseen = ("import parity_gpu; errors = {'fp32 gradient': 1e-6, 'tf32 gradient': 2e-6}; "
              "print(*parity_gpu.not_looked_at(errors, ['fp32', 'tf32'])); "
              "assert not list(parity_gpu.not_looked_at(dict(errors, **{'tf32 gradient': 1e-4}), ['tf32'])); parity_gpu.main()")
    exact = run(sys.executable, "-W", "ignore", "-c", unseen, *command[4:], tmp_path / "work", "--set", "precision=fp32", "--set", "base_precision=fp32", "--modes", "bf16",
                LORA_TRAIN_BIN=str(bundle / "bin"), PYTHONPATH=str(bundle / "tests/gpu"))
    assert exact.returncode == 1 and "bf16 rounds less than bf16" in exact.stdout, exact
    assert "TF32 rounds as fp32 does: gradient 2.0e-06, fp32 1.0e-06" in exact.stdout, exact


def test_measurements_run(bundle):
    done = run(sys.executable, "-W", "ignore", bundle / "bench/gpu_measure.py", "--device", "cpu", "--only",
               "copy,gemm,gemm_rate,pitch,gate_up,gated_delta", "--whole-step", LORA_TRAIN_BIN=str(bundle / "bin"))
    figure = done.stdout.splitlines()[-1]
    assert done.returncode == 0 and " 0 failed" in figure and "TFLOP/s" in done.stdout, done
    assert all(f"gated_delta {documents}: forward" in done.stdout for documents in ("1x96", "8x12", "16x6")), done
    for verdict in ("tiny-qwen2: GEMMs ", "pitch tiny: ", "gate_up exact tiny: dS beside d", "whole step of tiny-qwen2: "):
        assert verdict in figure, done


@pytest.mark.skipif(not CUDART, reason="the torch wheel brings no libcudart.so.13")
def test_calls_of_the_cuda_runtime_are_counted(bundle, tmp_path):
    """The real runtime, without a driver: its functions fail, but are called and counted."""
    counts = tmp_path / "calls.json"
    program = ("import ctypes; "
               f"ctypes.CDLL({CUDART[0]!r}, mode=ctypes.RTLD_GLOBAL); runtime = ctypes.CDLL(None); "
               "runtime.cudaDeviceSynchronize(); runtime.cudaStreamSynchronize(None); runtime.cudaStreamSynchronize(None)")
    done = run(sys.executable, "-c", program, LD_PRELOAD=shutil.copy(bundle / "bin/lib/libcount_cuda_calls.so", tmp_path),
               COUNT_CUDA_CALLS=str(counts))
    assert done.returncode == 0, done
    found = json.loads(counts.read_text())
    assert found["cudaDeviceSynchronize"] == 1 and found["cudaStreamSynchronize"] == 2 and found["cudaMalloc"] == 0, found


@pytest.mark.parametrize("drops, refuses", [(0, 0), (3, 0), (0, 1)])
def test_kernels_are_recorded_by_name(bundle, tmp_path, drops, refuses):
    """Over a CUPTI that has three records (tests/gpu/fake_cupti.cpp); the driver calls InitializeInjection()."""
    file = tmp_path / "kernels.json"
    program = ("import ctypes, sys; recorder = ctypes.CDLL(sys.argv[1]); "
               "ctypes.CDLL(None).exit(10 + recorder.InitializeInjection())")
    done = run(sys.executable, "-c", program, bundle / "bin/lib/librecord_cuda_kernels.so", RECORD_CUDA_KERNELS=str(file),
               LD_LIBRARY_PATH=str(BINARY.parent / "fake_cupti"), FAKE_CUPTI_DROPS=str(drops), FAKE_CUPTI_REFUSES=str(refuses))
    assert done.returncode == 11 - refuses, done
    if refuses:
        assert "CUPTI records nothing here" in done.stderr and not file.exists(), done
        return
    found = json.loads(file.read_text())
    assert found["dropped"] == drops
    assert found["kernels"] == [dict(name="native_b", calls=1, ms=0.5, registers=40, local_bytes=16),
                                dict(name="nvjet_a", calls=2, ms=3.0, registers=40, local_bytes=0)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_process_that_is_stopped_leaves_its_kernels(bundle, tmp_path, number):
    """CUPTI hands over a buffer, then a signal comes that no handler sees."""
    file = tmp_path / "kernels.json"
    program = ("import ctypes, os, sys; ctypes.CDLL(sys.argv[1]).InitializeInjection(); "
               "ctypes.CDLL('libcupti.so.13').cuptiActivityFlushAll(0); os.kill(os.getpid(), int(sys.argv[2]))")
    done = run(sys.executable, "-c", program, bundle / "bin/lib/librecord_cuda_kernels.so", str(int(number)), RECORD_CUDA_KERNELS=str(file),
               LD_LIBRARY_PATH=str(BINARY.parent / "fake_cupti"))
    assert done.returncode == -number, done
    assert [kernel["calls"] for kernel in json.loads(file.read_text())["kernels"]] == [1, 2]


FAKE_TESTS = """#!/usr/bin/env python3
# Talks as GoogleTest does: D fails, E fails after it in the same process alone, B dies.
import os, signal, sys
filters = [a.split("=", 1)[1].split(":") for a in sys.argv if a.startswith("--gtest_filter=")]
if "--gtest_list_tests" in sys.argv:
    sys.exit(print("CudaSuite.\\n  A\\n  B\\n  C\\nPlaces/Suite.\\n  D/cuda_Float  # GetParam() = 8-byte object\\n  E/cuda_Float"))
failed = False
for name in filters[0]:
    print(f"[ RUN      ] {name}", flush=True)
    if name == "CudaSuite.B":
        os.kill(os.getpid(), signal.SIGSEGV)
    failed |= ".D/" in name
    print(f"[  FAILED  ] {name}, where GetParam() = 8 (1 ms)" if failed else f"[       OK ] {name} (1 ms)", flush=True)
"""


def test_program_that_dies_takes_no_other_test_down(bundle, tmp_path):
    program = tmp_path / "optim_test"
    program.write_text(FAKE_TESTS)
    program.chmod(0o755)
    done = run(sys.executable, bundle / "tests/gpu/unit_tests.py", "--only", "optim_test", LORA_TRAIN_BIN=str(tmp_path))
    assert done.returncode == 1, done
    assert "figure: 3 passed, 1 of them on CUDA, 2 failed, 0 skipped, 0 not run" in done.stdout, done
    assert "optim_test CudaSuite.B: FAILED" in done.stdout and "died in CudaSuite.B: exit code -11" in done.stdout, done
    assert "optim_test Places/Suite.D/cuda_Float: FAILED" in done.stdout and "Suite.E/cuda_Float: FAILED" not in done.stdout, done
