"""Fixtures and hooks of the integration tests. What they share otherwise is in tests/support."""

import subprocess

import pytest
from command import BINARY, Setup, train_tiny_math

# Files that take longest, for the shortest wait at the end.
LONGEST_FIRST = ["test_rank_battery", "test_ranks", "test_bundle", "test_ablate", "test_confidence", "test_examples", "test_jobs",
                 "test_shipped_profiles", "test_orders", "test_tokenizer_battery", "test_cuda_host", "test_tiny_math", "test_run",
                 "test_output_folder", "test_doctor", "test_generate", "test_sweep", "test_init_adapter", "test_eval_tasks",
                 "test_packing", "test_merge"]


def pytest_collection_modifyitems(items):
    places = {name: place for place, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(places)))
    if items and not BINARY.exists():
        raise pytest.UsageError(f"{BINARY} is not there: build first, or set LORA_TRAIN_BIN")


def pytest_terminal_summary(terminalreporter):
    """What tests want to be seen (record_property("shown", text))."""
    for report in terminalreporter.stats.get("passed", []):
        for name, text in report.user_properties if report.when == "call" else ():
            if name == "shown":
                terminalreporter.write_line(text)


@pytest.fixture
def setup(tmp_path):
    return Setup(tmp_path)


@pytest.fixture(scope="session")
def tiny_math_run(tmp_path_factory):
    """The folder of a run on the shipped model. No test changes it."""
    return train_tiny_math(tmp_path_factory.mktemp("tiny-math"))


@pytest.fixture
def small_disk(tmp_path):
    """mount(size) gives the folder a tmpfs of that many bytes, or another size to the one it has."""
    folder = tmp_path / "disk"
    folder.mkdir()
    is_mounted = []

    def mount(size):
        options = f"size={size}" if not is_mounted else f"remount,size={size}"
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "lora-train-test", str(folder)], capture_output=True, text=True)
        if done.returncode != 0:
            pytest.skip(f"mounting a tmpfs is not allowed here: {done.stderr.strip()}")
        is_mounted.append(True)
        return folder

    yield mount
    if is_mounted:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
