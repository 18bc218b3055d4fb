"""The wheel (scripts/make_wheel.sh): installed into a fresh environment beside torch, it is the program."""

import os
import subprocess
import sys
import venv
import zipfile

import pytest

from command import BINARY, ROOT


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """A virtual environment with the wheel; torch is that of the test's own environment."""
    folder = tmp_path_factory.mktemp("wheel")
    packed = subprocess.run([ROOT / "scripts/make_wheel.sh", "--build", BINARY.parents[1], "--output-dir", folder],
                            capture_output=True, text=True, check=True)
    venv.create(folder / "venv", with_pip=False)
    site = next((folder / "venv/lib").glob("python3*")) / "site-packages"
    (site / "torch.pth").write_text(next(path for path in sys.path if path.endswith("site-packages")) + "\n")
    wheel = packed.stdout.strip()
    subprocess.run([sys.executable, "-m", "pip", "--python", folder / "venv/bin/python", "install", "--quiet", "--no-deps",
                    "--no-index", wheel], check=True)
    return folder


def run(environment, *words, path=""):
    env = {"HOME": str(environment), "PATH": path or f"{environment}/venv/bin:/usr/bin:/bin"}
    return subprocess.run(["lora-train", *map(str, words)], cwd=environment, env=env, capture_output=True, text=True,
                          executable=environment / "venv/bin/lora-train")


def test_the_program_finds_the_torch_of_its_environment(environment):
    found = run(environment, "--version")
    assert found.returncode == 0 and "LibTorch 2.11." in found.stdout and ", loaded" in found.stdout, found
    assert run(environment, "check", "--list").stdout.count("\n") > 5


def test_it_trains(environment):
    example = ROOT / "examples/tiny-math"
    trained = run(environment, "train", "--model", example / "model", "--train-data", example / "train.jsonl", "--output-dir", "run",
                  "--max-steps", 1, "--device", "cpu", "--precision", "fp32", "--quiet")
    assert trained.returncode == 0, trained.stderr
    assert (environment / "run/adapter/adapter_model.safetensors").exists()


def test_it_reads_parquet_with_the_pyarrow_of_its_environment(environment):
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow
    parquet.write_table(pyarrow.table({"text": ["a"]}), environment / "rows.parquet")
    shown = run(environment, "tokenize", "--model", ROOT / "examples/tiny-math/model", "--train-data", "rows.parquet", "--show", 1, "--json",
                path="/usr/bin:/bin")  # whose python3 has none
    assert shown.returncode == 0 and shown.stdout.startswith('{"source":"rows.parquet:1"'), shown
    requires = next((environment / "venv/lib").glob("python3*/site-packages/lora_train-*.dist-info/METADATA")).read_text()
    assert f"Requires-Dist: pyarrow=={pyarrow.__version__}; extra == 'parquet'" in requires


def test_exit_codes_pass_through(environment):
    assert run(environment, "train", "--no-such-flag").returncode == 2


def test_what_it_holds_is_the_program_alone(environment):
    program = next((environment / "venv/lib").glob("python3*")) / "site-packages/lora_train/program"
    assert not list((program / "lib").glob("*_path"))  # folders of the machine that built it
    assert (program / "lib/liblora_train_arrow.so").exists()
    assert os.access(program / "lora-train", os.X_OK)
    assert {path.name for path in program.iterdir()} == {"lora-train", "lib", "configs"}


def test_licences_of_all_libraries_and_readable_files(environment):
    info = next(next((environment / "venv/lib").glob("python3*")).glob("site-packages/lora_train-*.dist-info"))
    third_party = {path.parent.name for path in (info / "licenses/third-party").rglob("*") if path.is_file()}
    assert {"libsentencepiece-dev", "libpng-dev", "fonts-dejavu-core"} <= third_party and len(third_party) > 15
    listed = [line.partition(": ")[2] for line in (info / "METADATA").read_text().splitlines() if line.startswith("License-File: ")]
    assert len(listed) > 15 and all((info / "licenses" / name).stat().st_size > 500 for name in listed)
    with zipfile.ZipFile(next(environment.glob("*.whl"))) as wheel:
        assert {member.external_attr >> 16 for member in wheel.infolist()} == {0o100644, 0o100755}
