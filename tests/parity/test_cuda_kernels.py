"""The whole engine with our CUDA kernels, compiled for the CPU, in place of the CPU's own: against transformers + PEFT and
against the CPU kernels. Matrix products and attention are those of the CPU here."""

import pytest
import torch

import engine
import oracle
from first_step import check
from replayed_steps import curve

BF16 = dict(precision="bf16", base_precision="bf16")


@pytest.mark.parametrize("number", [*range(4), 100, 101, 102, 103])  # every family
def test_step_1(references, tmp_path, number):
    case, loss, reference = references(number)
    check(case, *engine.probe(engine.profile_for(case, tmp_path / "run"), tmp_path, kernels=engine.CUDA_ON_CPU), loss, reference)


@pytest.mark.parametrize("number", [*range(4), 100, 101])
def test_gradients_that_attention_leaves_in_its_own_memory(references, tmp_path, number):
    case, loss, reference = references(number)
    profile = engine.profile_for(case, tmp_path / "run")
    facts, gradients = engine.probe(profile, tmp_path, kernels=engine.CUDA_ON_CPU + engine.OWN_GRADIENTS)
    check(case, facts, gradients, loss, reference)
    _, in_place = engine.probe(profile, tmp_path, kernels=engine.CUDA_ON_CPU)
    assert all(torch.equal(gradients[name], want) for name, want in in_place.items())


@pytest.mark.parametrize("mode", ["cheap", "full"])
def test_recomputation(references, tmp_path, mode):
    case, loss, reference = references(1)
    profile = engine.profile_for(case, tmp_path / "run", gradient_checkpointing=mode, micro_batch_size=3)
    check(case, *engine.probe(profile, tmp_path, kernels=engine.CUDA_ON_CPU), loss, reference)


@pytest.mark.parametrize("number", [0, 3])
def test_dropout_draws_the_same_masks(references, tmp_path, number):
    case, _, _ = references(number)
    profile = engine.profile_for(case, tmp_path / "run", lora_dropout=0.2)
    expected, want = engine.probe(profile, tmp_path)
    facts, gradients = engine.probe(profile, tmp_path, kernels=engine.CUDA_ON_CPU)
    assert facts["loss"] == pytest.approx(expected["loss"], rel=1e-6)
    assert max(oracle.gradient_errors(gradients, want).values()) <= 1e-5


@pytest.mark.parametrize("number", [1, 2, 100, 101])
def test_full_finetuning(references, tmp_path, number):
    case, _, _ = references(number)
    profile = engine.profile_for(case, tmp_path / "run", adapter="none", init_adapter="unset")
    expected, want = engine.probe(profile, tmp_path)
    for kernels in (engine.CUDA_ON_CPU, engine.CUDA_ON_CPU + engine.OWN_GRADIENTS, engine.OWN_GRADIENTS):
        facts, gradients = engine.probe(profile, tmp_path, kernels=kernels)
        assert facts["loss"] == pytest.approx(expected["loss"], rel=1e-6)
        assert facts["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-5)
        assert max(oracle.gradient_errors(gradients, want).values()) <= 1e-5


def test_bf16_is_as_near_to_fp32_as_the_cpu_kernels_are(references, tmp_path):
    case, _, reference = references(0)
    profile = engine.profile_for(case, tmp_path / "run", **BF16)
    distance = {}
    for name, kernels in (("cpu", ()), ("cuda", engine.CUDA_ON_CPU)):
        _, gradients = engine.probe(profile, tmp_path, kernels=kernels)
        error = sum((gradients[key].double() - want.double()).square().sum() for key, want in reference.items())
        distance[name] = float(torch.sqrt(error))
    assert distance["cuda"] <= 1.1 * distance["cpu"], distance


@pytest.mark.parametrize("clip", [1.0, 0.01])
def test_a_curve_with_clipping_and_decay(references, tmp_path, clip):
    case, _, _ = references(2)
    changes = dict(max_grad_norm=clip, weight_decay=0.1)
    expected = curve(case, tmp_path, 8, **changes)
    got = curve(case, tmp_path, 8, engine.CUDA_ON_CPU, **changes)
    assert got["launches"] > 8 * 20 and expected["launches"] == 0
    assert got["losses"] == pytest.approx(expected["losses"], rel=2e-6)
    assert got["grad_norms"] == pytest.approx(expected["grad_norms"], rel=2e-5)
    assert expected["losses"][-1] < expected["losses"][0]


@pytest.mark.parametrize("changes", [{}, dict(gradient_checkpointing="cheap"), dict(gradient_checkpointing="full", lora_dropout=0.1),
                                     dict(base_precision="nf4", decoded_layers=0), dict(base_precision="fp8", decoded_layers=1)])
@pytest.mark.parametrize("number", [*range(4), 100, 101])
def test_a_step_asks_for_no_memory(references, tmp_path, number, changes):
    """Every buffer is planned: with our kernels a step allocates nothing outside of attention."""
    case, _, _ = references(number)
    for kernels in (engine.CUDA_ON_CPU, engine.CUDA_ON_CPU + engine.OWN_GRADIENTS):
        assert curve(case, tmp_path, 2, kernels, **changes)["allocations"] == 0
    assert curve(case, tmp_path, 2, **dict(changes, kernels="reference"))["allocations"] > 0
