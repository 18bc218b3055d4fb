"""The whole engine with our CUDA kernels, compiled for the CPU, in place of the CPU's own: against transformers + PEFT and
against the CPU kernels. Matrix products and attention are those of the CPU here."""

import pytest
import torch

import engine
from first_step import assert_same, check
from replayed_steps import assert_near, curve

OWN_GRADIENTS = engine.CUDA_ON_CPU + engine.OWN_GRADIENTS
RECOMPUTED = dict(gradient_checkpointing="full", lora_dropout=0.1)


@pytest.mark.parametrize("number", [*range(4), 100, 101, 102, 103])  # every family
def test_step_1(references, tmp_path, number):
    case, loss, reference = references(number)
    profile = engine.profile_for(case, tmp_path / "run")
    in_place = engine.probe(profile, tmp_path, kernels=engine.CUDA_ON_CPU)
    check(case, *in_place, loss, reference)
    assert_same(engine.probe(profile, tmp_path, kernels=OWN_GRADIENTS), in_place)


@pytest.mark.parametrize("mode", ["cheap", "full"])
def test_recomputation(references, tmp_path, mode):
    case, loss, reference = references(1)
    profile = engine.profile_for(case, tmp_path / "run", gradient_checkpointing=mode, micro_batch_size=3)
    check(case, *engine.probe(profile, tmp_path, kernels=engine.CUDA_ON_CPU), loss, reference)


@pytest.mark.parametrize("number, changes, codes", [
    (0, dict(lora_dropout=0.2), [engine.CUDA_ON_CPU]), (3, dict(lora_dropout=0.2), [engine.CUDA_ON_CPU]),  # the same masks
    *((number, dict(adapter="none", init_adapter="unset"), [engine.CUDA_ON_CPU, OWN_GRADIENTS, engine.OWN_GRADIENTS])
      for number in (1, 2, 100, 101)),
    *((1, dict(base_precision=base, decoded_layers=0), [engine.CUDA_ON_CPU]) for base in ("nf4", "int8", "fp8"))])
def test_step_1_is_that_of_the_cpu_kernels(cases, tmp_path, number, changes, codes):
    case = cases(number)
    profile = engine.profile_for(case, tmp_path / "run", **changes)
    facts, gradients = engine.probe(profile, tmp_path)
    for kernels in codes:
        check(case, *engine.probe(profile, tmp_path, kernels=kernels), facts["loss"], gradients)


def test_bf16_is_as_near_to_fp32_as_the_cpu_kernels_are(references, tmp_path):
    case, _, reference = references(0)
    profile = engine.profile_for(case, tmp_path / "run", precision="bf16", base_precision="bf16")
    distance = {}
    for name, kernels in (("cpu", ()), ("cuda", engine.CUDA_ON_CPU)):
        _, gradients = engine.probe(profile, tmp_path, kernels=kernels)
        error = sum((gradients[key].double() - want.double()).square().sum() for key, want in reference.items())
        distance[name] = float(torch.sqrt(error))
    assert distance["cuda"] <= 1.1 * distance["cpu"], distance


@pytest.mark.parametrize("clip", [1.0, 0.01])
def test_a_curve_with_clipping_and_decay(cases, tmp_path, clip):
    changes = dict(max_grad_norm=clip, weight_decay=0.1)
    expected = curve(cases(2), tmp_path, 8, **changes)
    got = curve(cases(2), tmp_path, 8, engine.CUDA_ON_CPU, **changes)
    assert got["launches"] > 8 * 20 and expected["launches"] == 0
    assert_near(got, expected)
    assert expected["losses"][-1] < expected["losses"][0]


@pytest.mark.parametrize("number, changes", [
    *((number, {}) for number in (*range(4), 100, 101)), (1, dict(gradient_checkpointing="cheap")),
    (100, dict(gradient_checkpointing="cheap")), (2, RECOMPUTED), (101, RECOMPUTED), (0, dict(base_precision="nf4", decoded_layers=0)),
    (101, dict(base_precision="nf4", decoded_layers=0)), (3, dict(base_precision="fp8", decoded_layers=1)),
    (100, dict(base_precision="fp8", decoded_layers=1))])
def test_a_step_asks_for_no_memory(cases, tmp_path, number, changes):
    """Every buffer is planned: with our kernels a step allocates nothing outside of attention."""
    for kernels in (engine.CUDA_ON_CPU, OWN_GRADIENTS):
        assert curve(cases(number), tmp_path, 2, kernels, **changes)["allocations"] == 0


def test_reference_kernels_ask_for_memory(cases, tmp_path):
    assert curve(cases(0), tmp_path, 2, kernels="reference")["allocations"] > 0
