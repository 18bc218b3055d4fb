"""Fixtures and hooks of the parity tests."""

import functools
import os

import pytest

pytest.register_assert_rewrite("first_step", "loss_curves", "generation")
import chat_oracle  # noqa: E402
import engine  # noqa: E402
import oracle  # noqa: E402
import random_case  # noqa: E402
import torch  # noqa: E402

torch.set_num_threads(1)
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# Files that take longest, for the shortest wait at the end. The golden battery takes all cores by itself.
LONGEST_FIRST = ["test_goldens", "test_step_graphs", "test_cuda_kernels", "test_generate", "test_tokenizer_pipelines",
                 "test_token_weights", "test_lora_gradients", "test_full_finetuning", "test_bf16", "test_lora_curves", "test_merge",
                 "test_dropout", "test_determinism"]


def pytest_collection_modifyitems(items):
    places = {name: place for place, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(places)))
    for program in ("lora-train", "lora-train-probe"):
        if not (engine.BIN / program).exists():
            raise pytest.UsageError(f"{engine.BIN / program} is not there: build first, or set LORA_TRAIN_BIN")


@pytest.fixture(scope="session")
def cases(tmp_path_factory):
    """cases(number) makes a case once a session."""
    @functools.cache
    def get(number, **options):
        return random_case.make_case(number, tmp_path_factory.mktemp("case") / "files", **options)
    return get


@pytest.fixture(scope="module")
def references(cases):
    """references(number, options of make_case): (case, loss, gradients) of transformers + PEFT, made once."""
    @functools.cache
    def get(number, **options):
        case = cases(number, **options)
        return case, *oracle.gradients(oracle.load_peft(case.model_dir, case.adapter_dir), case.rows)
    return get


@pytest.fixture(scope="session")
def ours():
    """A renderer of chats."""
    renderer = chat_oracle.OurRenderer()
    yield renderer
    renderer.close()
