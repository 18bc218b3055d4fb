"""gpu_check (tests/gpu/gpu_check.py) cannot pass without having looked: its parts over programs that do nothing, over results that
were made up, and the goals at its end. No GPU, no LibTorch."""

import json
import os
import re
import select
import shutil
import subprocess
import sys
import tarfile
from types import SimpleNamespace

import pytest

from conftest import ROOT, lora_train

GPU = ROOT / "tests/gpu"
sys.path.insert(0, str(GPU))
import device  # noqa: E402
import goals  # noqa: E402
import gpu_check  # noqa: E402
import kernel_names  # noqa: E402
import sanitizer  # noqa: E402
import steps  # noqa: E402
import parts  # noqa: E402
import program  # noqa: E402
from parts import BUDGET_S, CALLS, FIRST_LIGHT, PARTS, SPARE, UNITS  # noqa: E402
from program import DoesNotFit, Failure, Skipped, checked, json_line  # noqa: E402

PROGRAMS = ["lora-train", "lora-train-probe", "kernels_test", "optim_test", "model_test", "train_test", "lora_test", "cuda_test",
            "native_kernels_test", "cuda_kernels_test", "gpu_bench", "sanitizer_control", "compute-sanitizer", "nvidia-smi",
            "lib/libcount_cuda_calls.so", "lib/librecord_cuda_kernels.so"]
SCRIPTS = ["bench/gpu_measure.py", "bench/compare_hf_gpu.py", "tests/gpu/parity_gpu.py"]


@pytest.fixture
def silent(tmp_path):
    """A bundle whose programs and scripts print nothing and exit with 0. run(*arguments) runs gpu_check of it."""
    root = tmp_path / "bundle"
    shutil.copytree(GPU, root / "tests/gpu", ignore=shutil.ignore_patterns("__pycache__"))
    for name in PROGRAMS:
        file = root / "bin" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("#!/bin/sh\nexit 0\n")
        file.chmod(0o755)
    for name in SCRIPTS:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("")
    (root / "examples/tiny-math").mkdir(parents=True)

    def run(*arguments):
        environment = dict(os.environ, LORA_TRAIN_BIN=str(root / "bin"),
                           PATH=f"{root / 'bin'}:{os.environ['PATH']}")
        return subprocess.run([sys.executable, root / "tests/gpu/gpu_check.py", "--out", tmp_path / "out", *arguments],
                              capture_output=True, text=True, env=environment, timeout=300)

    run.root = root
    return run


def rows_of(done):
    """{part: line} of the table of parts."""
    table = done.stdout.split("figure\n", 1)[1].split("\n\n", 1)[0]
    return {line.split()[0]: line for line in table.splitlines()}


# A part that imports torch before it looks at anything has its own tests: parity in test_bundle.py.
EVERY_PART = sorted(set(PARTS) - {"compare_8", "rivals", "parity_reference", "parity_attention", "parity_plain"})


def test_no_part_passes_over_programs_that_do_nothing(silent):
    done = silent("--device", "cuda", "--only", ",".join(EVERY_PART))
    assert done.returncode == 1, done
    rows = rows_of(done)
    assert set(rows) == set(EVERY_PART)
    assert not [line for line in rows.values() if " FAILED " not in line], done.stdout
    assert "MISSED" not in done.stdout and "holds" not in done.stdout and "not measured" in done.stdout


@pytest.mark.parametrize("name", ["compare_8", "parity_reference"])
def test_no_comparison_passes_over_scripts_that_do_nothing(silent, name):
    assert " FAILED " in rows_of(silent("--device", "cuda", "--only", name))[name]


def test_a_part_that_needs_a_gpu_is_skipped_on_a_cpu_and_not_passed(silent):
    done = silent("--device", "cpu", "--only", "sanitizer,steady")
    assert done.returncode == 1, done
    assert all(" skipped " in line for line in rows_of(done).values()), done


def test_a_call_ends_where_nothing_runs_on_the_gpu(silent):
    done = silent("--device", "cuda", "--call", "correct")
    assert done.returncode == 1, done
    rows = rows_of(done)
    assert [rows[name].split()[1] for name in CALLS["correct"]] == ["FAILED"] * 4 + ["left"] * 5, done.stdout
    assert "nothing runs on this GPU: load, cuda_kernels, doctor failed" in rows["parity"]


@pytest.mark.parametrize("results, device, is_dark", [
    (["FAILED"] * 3, "cuda", True), (["FAILED", "FAILED", "passed"], "cuda", False), (["FAILED", "passed", "FAILED"], "cuda", False),
    (["FAILED"] * 2, "cuda", False), (["FAILED"] * 3, "cpu", False)])
def test_one_part_that_runs_keeps_the_call_going(results, device, is_dark):
    rows = [gpu_check.Row(name, result, "") for name, result in zip(FIRST_LIGHT, results)]
    assert gpu_check.Check.is_dark(SimpleNamespace(rows=rows, args=SimpleNamespace(device=device, only=""))) == is_dark


def test_calls_share_a_folder_and_leave_one_archive(silent, tmp_path):
    archive = tmp_path / "back" / "all.tgz"
    silent("--device", "cuda", "--only", "doctor", "--archive", archive)
    silent("--device", "cuda", "--call", "gate_up", "--archive", archive)
    with tarfile.open(archive) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
        log = packed.extractfile("out/log.txt").read().decode()
    assert {"table-only.txt", "table-gate_up.txt", "measured.json", "log.txt"} <= names
    assert "==== doctor" in log and "==== gate_up" in log
    assert set(json.loads((tmp_path / "out/measured.json").read_text())["parts"]) == {"doctor", "gate_up"}


def test_a_call_that_is_stopped_leaves_its_archive(silent, tmp_path):
    waits = silent.root / "bin/lora-train"
    waits.write_text('#!/bin/sh\ncase "$1" in --version) echo "lora-train 0" ;; *) echo begun >&2; exec tail -f /dev/null ;; esac\n')
    process = subprocess.Popen([sys.executable, silent.root / "tests/gpu/gpu_check.py", "--out", tmp_path / "out", "--only", "doctor",
                                "--archive", tmp_path / "all.tgz"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                               env=dict(os.environ, LORA_TRAIN_BIN=str(silent.root / "bin")))
    assert process.stderr.readline() == "== doctor\n"
    process.terminate()
    process.communicate(timeout=60)
    with tarfile.open(tmp_path / "all.tgz") as packed:
        assert "out/table-only.txt" in packed.getnames()


def test_the_log_of_all_calls_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_check, "MOST_OF_THE_LOG", 50)
    check = SimpleNamespace(log=tmp_path / "log.txt")
    for text in ("first" * 5, "middle" * 5, "last" * 5):
        gpu_check.Check.keep_log(check, text)
    kept = check.log.read_text()
    assert len(kept) == 50 and kept.endswith("last" * 5) and "first" not in kept


PART = PARTS["doctor"]
SAW_ALL = "checked: 66 of 66 kernel checks\nfigure: fine\n"


@pytest.mark.parametrize("status, log, result, words", [
    (0, SAW_ALL, "passed", "fine"),
    (0, "", "FAILED", "does not say what it looked at"),
    (0, "figure: fine\n", "FAILED", "does not say what it looked at"),
    (0, "checked: 0 of 0 kernel checks\nfigure: fine\n", "FAILED", "looked at 0 kernel checks, expected 60"),
    (0, "checked: 59 of 59 kernel checks\nfigure: fine\n", "FAILED", "looked at 59 kernel checks, expected 60"),
    (0, "checked: 65 of 66 kernel checks\nfigure: fine\n", "FAILED", "looked at 65 kernel checks, expected 66"),
    (1, SAW_ALL, "FAILED", "fine"), (124, SAW_ALL, "FAILED", "fine"), (137, SAW_ALL, "FAILED", "fine"),
    (-9, SAW_ALL, "FAILED", "fine"), (None, SAW_ALL, "FAILED", "stopped at its time limit"),
    (77, "figure: no peft\n", "skipped", "no peft")])
def test_a_part_has_to_say_what_it_looked_at(status, log, result, words):
    assert gpu_check.judge(PART, "cuda", status, log)[0] == result
    assert words in gpu_check.judge(PART, "cuda", status, log)[1]


def test_looking_at_nothing_or_at_less_is_a_failure():
    checked(3, 3, "things")
    for number, expected in ((0, 0), (2, 3), (0, 3)):
        with pytest.raises(Failure, match=f"{number} of {expected} things"):
            checked(number, expected, "things")


def test_a_program_without_tests_fails_beside_one_that_passes(tmp_path):
    passing = "[ RUN      ] Suite.A\\n[       OK ] Suite.A (0 ms)\\n"
    for name, text in (("optim_test", f'case "$*" in *list*) printf "Suite.\\n  A\\n" ;; *) printf "{passing}" ;; esac'),
                       ("lora_test", "exit 0")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)

    def run_tests(programs):
        return subprocess.run([sys.executable, GPU / "unit_tests.py", "--device", "cpu", "--only", programs],
                              capture_output=True, text=True, env=dict(os.environ, LORA_TRAIN_BIN=str(tmp_path)))

    alone, both = run_tests("optim_test"), run_tests("optim_test,lora_test")
    assert alone.returncode == 0 and "checked: 1 of 1 unit tests" in alone.stdout, alone
    assert both.returncode == 1 and "lora_test: lists no tests" in both.stdout, both


@pytest.mark.parametrize("results, on_cuda, on_cpu", [
    (["passed", "passed"], 0, 0), (["passed", "skipped"], 3, 0), (["passed", "left out"], 3, 0),
    (["passed", "skipped", "FAILED"], 1, 1), (["skipped"], 3, 1), ([], 3, 1)])
def test_the_exit_status_says_what_was_not_looked_at(results, on_cuda, on_cpu):
    for device, expected in (("cuda", on_cuda), ("cpu", on_cpu)):
        check = SimpleNamespace(rows=[gpu_check.Row("part", result, "") for result in results],
                                args=SimpleNamespace(device=device))
        assert gpu_check.Check.status(check) == expected, (device, results)


def test_a_part_is_stopped_with_what_it_started(tmp_path):
    """A shell that waits for a child for ever."""
    pid = tmp_path / "pid"
    part = SimpleNamespace(at_least=PART.at_least, needs_gpu=False, need_s=lambda: 1,
                           command=lambda *_: ["sh", "-c", f"tail -f /dev/null & echo $! > {pid}; echo figure: half; wait"])
    args = SimpleNamespace(out=tmp_path, budget=60, device="cuda", gpu="a GPU", commit="a commit")
    check = gpu_check.Check(args, tmp_path)
    check.run("part", part, 1)
    assert [row.result for row in check.rows] == ["FAILED"] and "stopped at its time limit; half" in check.rows[0].figure
    try:
        ended = select.select([os.pidfd_open(int(pid.read_text()))], [], [], 60)[0]
    except ProcessLookupError:
        return
    assert ended, "the child lives on"


def test_parts_share_no_folder_for_work(tmp_path):
    folders = []
    part = SimpleNamespace(at_least=PART.at_least, needs_gpu=False, need_s=lambda: 1,
                           command=lambda device, work, out, limit: folders.append(work) or ["mkdir", work])
    check = gpu_check.Check(SimpleNamespace(out=tmp_path, budget=60, device="cuda", gpu="a GPU", commit="a commit"), tmp_path)
    for name in ("one", "two", "one"):
        check.run(name, part, 60)
    assert folders[0] != folders[1] and folders[0] == folders[2]
    assert ["does not say" in row.figure for row in check.rows] == [True] * 3, list(map(str, check.rows))


@pytest.mark.parametrize("call", CALLS)
def test_later_parts_keep_their_time(call):
    args = SimpleNamespace(only="", call=call, out=gpu_check.Path("."), budget=BUDGET_S, device="cuda", commit="")
    check = SimpleNamespace(args=args, deadline=gpu_check.time.monotonic() + BUDGET_S, names=lambda: CALLS[call])
    for i, name in enumerate(CALLS[call]):
        limit = gpu_check.Check.time_for(check, name, CALLS[call][i + 1:])
        assert PARTS[name].limit_s - 1 <= limit
        assert limit + sum(PARTS[later].limit_s for later in CALLS[call][i + 1:]) <= BUDGET_S + 1


@pytest.mark.parametrize("name", PARTS)
def test_a_part_fits_its_limit_by_count(name):
    part = PARTS[name]
    assert part.need_s() > 0 and set(part.need) <= set(UNITS)
    assert SPARE * part.need_s() <= part.limit_s, f"{name} needs {part.need_s():.0f} s of {part.limit_s} s"


def test_every_call_fits_into_ten_minutes_and_is_documented():
    for name, names in CALLS.items():
        assert sum(PARTS[part].limit_s for part in names) <= BUDGET_S, name
        assert len(set(names)) == len(names)
    assert {part for names in CALLS.values() for part in names} == set(PARTS)
    assert parts.markdown() in (ROOT / "docs/gpu.md").read_text(), "tests/gpu/parts.py prints the tables of docs/gpu.md"
    assert set(FIRST_LIGHT) <= set(CALLS["correct"][:4]) and list(CALLS)[:4] == ["correct", "speed", "rest", "rivals"]


# ---- the parts that read what others wrote ---------------------------------------------------------------------------------

def kernel(name, ms, calls=10, local_bytes=0):
    return dict(name=name, ms=ms, calls=calls, registers=64, local_bytes=local_bytes)


FA2 = "_ZN13pytorch_flash16flash_fwd_kernelI23Flash_fwd_kernel_traitsILi128EN7cutlass10bfloat16_tEEE"
GOOD = [kernel("nvjet_tst_256x128_64x4_2x1_v_bz_coopA_NNT", 600), kernel("cutlass3x_sm90_bf16_s64x128x16gemm", 40),
        kernel(FA2, 80), kernel("_ZN10lora_train13rms_norm_cudaEv", 60)]


@pytest.mark.parametrize("kernels, is_new, findings", [
    (GOOD, True, []),
    (GOOD + [kernel("cutlass_80_tensorop_bf16_s16816gemm_bf16_128x128_64x3_nn_align8", 30)], True, ["cutlass_80_tensorop"]),
    (GOOD + [kernel("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_tn", 30)], True, ["ampere_bf16"]),
    (GOOD + [kernel("cutlass3x_simt_f32_gemm_128x64_8x5_nn_align1", 30)], True, ["simt"]),
    (GOOD + [kernel("cudnn_generated_fort_native_sdpa_sm80_flash_bprop", 30)], True, ["sdpa_sm80"]),
    (GOOD + [kernel("cutlass_80_tensorop_bf16_s16816gemm_bf16_64x64_align8", 0.6)], True, []),  # a small one
    (GOOD + [kernel("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_tn", 30)], False, []),
    (GOOD + [kernel("_ZN10lora_train9rope_cudaEv", 1, local_bytes=48)], True, ["local memory"])])
def test_older_kernels_of_large_products_are_findings(kernels, is_new, findings, capsys):
    kernel_names.describe({"kernels": kernels, "dropped": 0}, is_new)
    found = [line for line in capsys.readouterr().out.splitlines() if line.startswith("finding: ")]
    assert len(found) == len(findings) and all(word in line for word, line in zip(findings, found)), found


@pytest.mark.parametrize("recorded, words", [
    ({"kernels": [], "dropped": 0}, "no kernel was recorded"), ({"kernels": GOOD, "dropped": 3}, "dropped 3"),
    ({"kernels": GOOD[2:], "dropped": 0}, "names are not known"), ({"kernels": GOOD[:2], "dropped": 0}, "no native kernel")])
def test_a_recording_without_a_step_fails(recorded, words):
    with pytest.raises(Failure, match=words):
        kernel_names.describe(recorded, True)


FINISHED = "[       OK ] A.B (1 ms)\n[  PASSED  ] 1 test.\n========= ERROR SUMMARY: 0 errors\n"


@pytest.mark.parametrize("control, tests, words", [
    ((99, ""), (0, FINISHED), None), ((0, ""), (0, FINISHED), "did not find the mistake"),
    ((6, ""), (0, FINISHED), "did not find the mistake"), ((None, ""), (0, FINISHED), "did not find the mistake"),
    ((99, ""), (None, "[       OK ] A.B (1 ms)\n"), "was stopped .* 1 tests were finished"), ((99, ""), (99, FINISHED), "exit code 99"),
    ((99, ""), (0, ""), "finished no test"), ((99, ""), (0, "[  PASSED  ] 0 tests.\n"), "finished no test"),
    ((99, ""), (0, FINISHED.split("=")[0]), "printed no summary")])
def test_a_checker_that_finished_no_test_fails(control, tests, words, monkeypatch):
    results = iter([control, tests])
    monkeypatch.setattr(sanitizer, "run", lambda *_: next(results))
    monkeypatch.setattr(sanitizer, "checker", lambda: "compute-sanitizer")
    if words is None:
        assert sanitizer.check("memcheck", 60) == 1
    else:
        with pytest.raises(Failure, match=words):
            sanitizer.check("memcheck", 60)


@pytest.mark.parametrize("output", ["========= Device not supported. Please refer to the documentation", "Error: error 999 at cudaMalloc"])
def test_a_checker_that_cannot_open_the_gpu_is_skipped(output, monkeypatch):
    monkeypatch.setattr(sanitizer, "run", lambda *_: (1, output))
    monkeypatch.setattr(sanitizer, "checker", lambda: "compute-sanitizer")
    with pytest.raises(Skipped, match="memcheck cannot open this GPU"):
        sanitizer.check("memcheck", 60)


def test_a_machine_without_the_checkers_is_skipped(monkeypatch):
    monkeypatch.setattr(sanitizer.shutil, "which", lambda *_, **__: None)
    with pytest.raises(Skipped, match="not installed"):
        sanitizer.check("memcheck", 60)


def test_kernels_of_a_step_that_was_stopped_are_shown(tmp_path, monkeypatch, capsys):
    args = SimpleNamespace(out=tmp_path, device="cuda", deadline=gpu_check.time.monotonic() + 60)
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/librecord_cuda_kernels.so").touch()
    monkeypatch.setattr(kernel_names, "BIN", tmp_path)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(get_device_capability=lambda: (9, 0))))

    def stopped(*arguments, environment, **_):
        assert "--only-steps" in arguments
        gpu_check.Path(environment["RECORD_CUDA_KERNELS"]).write_text(json.dumps({"kernels": GOOD, "dropped": 0}))
        raise subprocess.TimeoutExpired(["lora-train"], 40)

    monkeypatch.setattr(kernel_names, "bench", stopped)
    monkeypatch.setattr(kernel_names, "library_path", lambda: "")
    with pytest.raises(subprocess.TimeoutExpired):
        kernel_names.kernel_names(args)
    assert "until it stopped: 4 kernels; products 82%" in capsys.readouterr().out


def test_a_doctor_that_is_stopped_has_said_what_it_found(tmp_path, monkeypatch):
    program_file = tmp_path / "lora-train"
    program_file.write_text("#!/bin/sh\nline='N=37: error 0.5, at most 1e-05; 1.4 us, reference 20.8 us'\n"
                            "echo \"rms_norm  $line   ok\" >&2\necho \"rope  $line   FAILED: wrong result\" >&2\nexec tail -f /dev/null\n")
    program_file.chmod(0o755)
    monkeypatch.setattr(device, "BIN", tmp_path)
    with pytest.raises(Failure, match="stopped after 2 kernels, 1 of them wrong"):
        device.doctor(SimpleNamespace(out=tmp_path, device="cuda", deadline=gpu_check.time.monotonic() + 1))


def test_what_a_stopped_command_said_is_printed(capsys):
    with pytest.raises(subprocess.TimeoutExpired) as stopped:
        program.run_shown(["sh", "-c", "echo begun; exec tail -f /dev/null"], 1)
    assert capsys.readouterr().out == stopped.value.output == "begun\n"


# ---- quantised ------------------------------------------------------------------------------------------------------------

def fake_bench(monkeypatch, refused=(), broken=(), rates="assumed"):
    """Steps of 100 ms in bf16 and 104 in nf4, whose decoding has a bound of 3.4 ms."""
    ran = []

    def bench_step(args, shape, *words):
        text = " ".join((shape, *words))
        if any(word in text for word in refused):
            raise DoesNotFit("lora-train bench: exit code 6\nout of GPU memory before step 1")
        if any(word in text for word in broken):
            raise Failure("lora-train bench: exit code 1")
        ran.append(text)
        rows = int(re.search(r"micro_batch_size=(\d)", text)[1])
        return dict(tokens=rows * 2048, shape=shape, cuda_graphs={"recorded": True, "reason": None}, rates={"source": rates},
                    classes=[{"name": "decode", "bound_ms": 3.4}],
                    speed={"step_ms": 104 if "nf4" in text else 100, "tokens_per_s": 1, "peak_memory_gib": 7})

    monkeypatch.setattr(steps, "bench_step", bench_step)
    return ran


def test_rows_that_do_not_fit_this_card_are_left_out(monkeypatch, capsys):
    ran = fake_bench(monkeypatch, refused=["micro_batch_size=8 gradient_checkpointing=off base_precision=bf16"], rates="a file")
    figure = steps.quantised(SimpleNamespace(device="cuda"))
    out = capsys.readouterr().out
    assert len(ran) == 10 and "checked: 10 of 10 workloads" in out and "bf16 does not fit with 8 rows" in figure
    assert "measured: nf4_share/8k 0.961538" in out and "nf4_share/16k" not in out
    assert "measured: target/nf4_share/4k 0.961538" in out  # 100 / (100 + 3.4 / 0.85)


def test_a_workload_that_fails_stops_no_other(monkeypatch, capsys):
    ran = fake_bench(monkeypatch, broken=["micro_batch_size=4 gradient_checkpointing=off base_precision=nf4 decoded_layers=0"])
    with pytest.raises(Failure, match="micro_batch_size=4 .*decoded_layers=0.*exit code 1"):
        steps.quantised(SimpleNamespace(device="cuda"))
    out = capsys.readouterr().out
    assert len(ran) == 12 and "measured: nf4_decoded_share/8k" in out and "measured: peak_gib/qwen3-8b/nf4/1xfull" in out
    assert "target/" not in out  # with assumed rates


@pytest.mark.parametrize("out", ["", "steps: 3\n", '{"status": "done"}\nwarning: late\n'])
def test_a_program_that_prints_no_json_is_named(out):
    assert json_line('warning: early\n{"status": "done"}\n', "train") == {"status": "done"}
    with pytest.raises(Failure, match="lora-train train printed no JSON"):
        json_line(out, "train")


def test_a_step_that_was_not_captured_fails():
    args = SimpleNamespace(device="cuda")
    steps.expect_recorded(args, "a shape", {"cuda_graphs": {"recorded": True, "reason": None}})
    with pytest.raises(Failure, match="fp32 attention reads lengths"):
        steps.expect_recorded(args, "a shape", {"cuda_graphs": {"recorded": False, "reason": "fp32 attention reads lengths"}})
    with pytest.raises(Failure, match="does not say"):
        steps.expect_recorded(args, "a shape", {})
    dry_run = SimpleNamespace(device="cpu")
    steps.expect_recorded(dry_run, "a shape", {"cuda_graphs": {"recorded": False, "reason": "the run is on a CPU"}})
    for silent in ({}, {"cuda_graphs": {"recorded": False, "reason": None}}):
        with pytest.raises(Failure, match="does not say"):
            steps.expect_recorded(dry_run, "a shape", silent)


# ---- goals -----------------------------------------------------------------------------------------------------------------

def measured(tmp_path, figures, device="cuda", gpu="H100", commit="a commit"):
    found = goals.Measured(tmp_path / "measured.json", device, gpu, commit)
    found.add("a part", figures.items())
    return goals.Measured(tmp_path / "measured.json", device, gpu, commit)  # as a later call reads it


def test_the_document_has_the_goals_of_the_table():
    assert goals.markdown() in (ROOT / "docs/gpu_owed.md").read_text(), "tests/gpu/goals.py prints the table of docs/gpu_owed.md"
    for goal in goals.load()["goals"]:
        value, thousands = re.search(r"([\d.]+)(k?)", goal["goal"]).groups()
        in_words = float(value) * (1000 if thousands else 0.01 if "%" in goal["goal"] and goal["unit"] == "" else 1)
        assert in_words == pytest.approx(goal.get("at_least", goal.get("at_most"))), goal


@pytest.mark.parametrize("goal", [goal for goal in goals.load()["goals"] if "over_bound" in goal], ids=lambda goal: goal["measured"])
def test_a_speed_of_the_document_is_the_bound_at_assumed_rates(goal):
    shape, *mix = goal["measured"].split("/")[1:]
    run = lora_train("bench", "--shape", shape, "--count", "--json", "precision=bf16", *["--mix"] * len(mix))
    found = json.loads(run.stdout)
    assert found["rates"]["source"] == "assumed"
    assert found["tokens"] / sum(found["bound"][f"{name}_s"] for name in ("gemm", "attention", "memory")) / goal["over_bound"] == \
        pytest.approx(goal["at_least"], rel=3e-3)


def test_the_table_says_which_goals_hold_and_which_class_is_to_blame(tmp_path):
    figures = {"rate/gemm_tflop_s": 711, "tokens_per_s/qwen2.5-7b": 18000, "target/tokens_per_s/qwen2.5-7b": 18900,
               "tokens_per_s/qwen3-8b": 17500, "target/tokens_per_s/qwen3-8b": 17280, "tokens_per_s/qwen3-0.6b": 1e6,
               "gradient_share": 1.1, "peak_gib/qwen2.5-7b/full": 17, "step_ms": 900, "class_ms/gemm": 660,
               "class_bound_ms/gemm": 640, "class_ms/swiglu": 150, "class_bound_ms/swiglu": 60}
    table = measured(tmp_path, figures).table()
    lines = {line.split("  ")[0]: line for line in table.splitlines()}
    assert lines["Qwen2.5-7B bf16, rows of 2048"].endswith("MISSED by 5.0%"), table
    assert lines["Qwen3-8B bf16"].endswith("holds") and "17280" in lines["Qwen3-8B bf16"], table
    assert "not judged: the rates of this machine are not known" in lines["Qwen3-0.6B"], table
    assert lines["bf16 gradients: largest error, in PEFT's errors"].endswith("holds"), table
    assert lines["peak memory, 7B, 1 x 2048, full recomputation"].endswith("MISSED by 4.9%"), table
    assert lines["Qwen3-4B"].endswith("not measured") and "Rates: gemm_tflop_s 711" in table
    assert lines["swiglu"].endswith("+90.00  <- to blame first") and "to blame" not in lines["gemm"], table
    assert "+200.00" in lines["step"] and "90.00" in lines["between them"], table


@pytest.mark.parametrize("source, own_rate, target", [
    ("a file", 700e12, 16384 / (0.8 + 0.1 + 0.1) / 1.047), ("a file", 800e12, 16384 / (0.7 + 0.1 + 0.1) / 1.047),
    ("assumed", 700e12, None), ("a file", None, None)])
def test_the_target_of_a_speed_is_the_bound_at_the_rates_of_this_machine(source, own_rate, target, capsys):
    found = dict(tokens=16384, speed={"tokens_per_s": 18000, "gemm_flops_per_s": own_rate},
                 rates={"source": source, "gemm_flops_per_s": 700e12}, bound={"gemm_s": 0.8, "attention_s": 0.1, "memory_s": 0.1})
    steps.keep_speed(found, "qwen2.5-7b")
    printed = dict(line.removeprefix("measured: ").split() for line in capsys.readouterr().out.splitlines())
    assert printed["tokens_per_s/qwen2.5-7b"] == "18000"
    assert (target and f"{target:.6g}") == printed.get("target/tokens_per_s/qwen2.5-7b")


def test_a_cpu_and_another_gpu_measure_no_goal_and_another_program_is_named(tmp_path):
    figures = {"gradient_share": 1.1}
    assert "holds" not in measured(tmp_path, figures, device="cpu").table()
    assert "holds" in measured(tmp_path, figures).table()
    assert "holds (a commit)" in goals.Measured(tmp_path / "measured.json", "cuda", "H100", "another commit").table()
    assert "holds" not in goals.Measured(tmp_path / "measured.json", "cuda", "H200", "a commit").table()


FAST, SLOW = {"tokens_per_s/qwen2.5-7b": 25000}, {"tokens_per_s/qwen2.5-7b": 15000}


@pytest.mark.parametrize("call, results, findings, figures, words", [
    ("correct", {"parity": "FAILED"}, False, {}, "--call speed; later --call wrong, for parity did not pass"),
    ("correct", {"parity": "passed"}, False, {}, "next: gpu_check.sh --call speed"), ("speed", {}, True, SLOW, "--call rest"),
    ("rest", {"sanitizer": "left out"}, False, FAST, "--call wrong, for sanitizer"), ("rest", {}, False, SLOW, "--call slow (Qwen2.5-7B"),
    ("rest", {}, True, FAST, "--call slow (there are findings)"), ("rest", {}, False, FAST, "--call rivals"),
    ("wrong", {"parity_plain": "passed", "sanitizer": "FAILED"}, False, FAST, "repair first: sanitizer")])
def test_what_a_call_finds_decides_the_next(tmp_path, call, results, findings, figures, words):
    figures = dict(figures, **{"target/tokens_per_s/qwen2.5-7b": 20000}) if figures else {}
    assert words in goals.next_call(call, results, findings, measured(tmp_path, figures))


def test_figures_of_parts_reach_the_file(tmp_path):
    found = measured(tmp_path, {"step_ms": "712.5"})
    assert found.value("step_ms") == 712.5
    assert json.loads((tmp_path / "measured.json").read_text())["figures"]["step_ms"]["part"] == "a part"
