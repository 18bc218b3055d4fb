"""Steps that are recorded once and replayed (train/step_graphs): on the CPU, our CUDA kernels, products and attention are
recorded in the order in which a step asks for them, and run again at the same addresses for every later micro-batch. What a
replay needs from the host but is not told shows as another number; what ATen computes aside is an error of the recorder."""

import pytest

import engine
from first_step import check
from random_case import make_case, write_rows
from replayed_steps import GRAPHS, curve

CASES = [
    dict(),
    dict(gradient_checkpointing="cheap", lora_dropout=0.2),
    dict(gradient_checkpointing="full", max_grad_norm=0.01, weight_decay=0.1),
    dict(packing=True, max_seq_len=128),
    dict(base_precision="nf4", decoded_layers=1, gradient_checkpointing="full"),
]


@pytest.mark.parametrize("changes", CASES)
@pytest.mark.parametrize("number", range(4))  # one of each family
def test_replayed_steps_are_the_steps(references, tmp_path, number, changes):
    case, _, _ = references(number)
    replayed = curve(case, tmp_path, 4, GRAPHS["on"], **changes)
    asked = curve(case, tmp_path, 4, GRAPHS["off"], **changes)
    alone = curve(case, tmp_path, 4, engine.CUDA_ON_CPU, **changes)
    assert replayed["replays"] >= 4 * 4 and asked["replays"] == 0
    assert replayed["losses"] == asked["losses"] and replayed["grad_norms"] == asked["grad_norms"]  # bit for bit
    assert asked["losses"] == pytest.approx(alone["losses"], rel=2e-6)  # filled slots count for nothing
    assert asked["grad_norms"] == pytest.approx(alone["grad_norms"], rel=2e-5)
    assert len(set(replayed["losses"])) > 1


def test_layer_inputs_that_are_offloaded(tmp_path):
    """Copies to the host and back are recorded where a step asks for them. Two of five layers have a place there."""
    case = make_case(2, tmp_path / "case", num_layers=5)
    changes = dict(gradient_checkpointing="full", lora_dropout=0.2)
    kept = curve(case, tmp_path, 3, GRAPHS["off"], activation_offload="off", **changes)
    for mode in ("on", "off"):
        offloaded = curve(case, tmp_path, 3, GRAPHS[mode], activation_offload="on", **changes)
        assert (offloaded["replays"] >= 3 * 4) == (mode == "on")
        assert offloaded["losses"] == kept["losses"] and offloaded["grad_norms"] == kept["grad_norms"]


@pytest.mark.parametrize("changes", [dict(lora_dropout=0.2), dict(packing=True, max_seq_len=128),
                                     dict(base_precision="nf4", decoded_layers=1, activation_offload="on"),
                                     dict(adapter="none", init_adapter="unset", learning_rate=1e-3)])
def test_mlp_in_tiles(references, tmp_path, changes):
    """Each micro-batch ends in a tile that is not full."""
    case, _, _ = references(2)
    changes = dict(changes, gradient_checkpointing="full")
    whole = curve(case, tmp_path, 4, GRAPHS["off"], mlp_tile_tokens="off", **changes)
    replayed, asked = (curve(case, tmp_path, 4, GRAPHS[mode], mlp_tile_tokens=23, **changes) for mode in ("on", "off"))
    assert replayed["replays"] >= 4 * 4
    assert replayed["losses"] == asked["losses"] and replayed["grad_norms"] == asked["grad_norms"]
    assert asked["losses"] == pytest.approx(whole["losses"], rel=2e-6)
    assert asked["grad_norms"] == pytest.approx(whole["grad_norms"], rel=2e-5)


@pytest.mark.parametrize("number", [1, 3])  # without and with a norm of q and k heads
def test_gradients_in_memory_that_is_let_go_of_while_recording(references, tmp_path, number):
    case, _, _ = references(number)
    replayed = curve(case, tmp_path, 3, GRAPHS["on"] + engine.OWN_GRADIENTS)
    asked = curve(case, tmp_path, 3, GRAPHS["off"])
    assert replayed["replays"] >= 3 * 4
    assert replayed["losses"] == asked["losses"] and replayed["grad_norms"] == asked["grad_norms"]


def test_full_finetuning(references, tmp_path):
    case, _, _ = references(2)
    changes = dict(adapter="none", init_adapter="unset", learning_rate=1e-3)
    replayed, asked = (curve(case, tmp_path, 4, GRAPHS[mode], **changes) for mode in ("on", "off"))
    assert replayed["replays"] >= 4 * 4
    assert replayed["losses"] == asked["losses"] and replayed["grad_norms"] == asked["grad_norms"]


def rows_of(num_tokens):
    """One micro-batch of four rows."""
    ids = [3 + (7 * i) % 60 for i in range(num_tokens)]
    quarters = [ids[i * num_tokens // 4:(i + 1) * num_tokens // 4] for i in range(4)]
    return [{"input_ids": quarter, "labels": [-100] + quarter[1:]} for quarter in quarters]


def test_each_micro_batch_is_replayed_in_its_class(tmp_path):
    case = make_case(0, tmp_path / "case", num_rows=1, max_len=248)
    write_rows(case.data_file, [row for size in (125, 380, 120) for row in rows_of(size)])
    replayed, asked = (curve(case, tmp_path, 3, GRAPHS[mode], global_batch_size=4, micro_batch_size=4) for mode in ("on", "off"))
    assert replayed["classes"] == [128, 384] and replayed["replays"] >= 3 * 4
    assert replayed["losses"] == asked["losses"] and replayed["grad_norms"] == asked["grad_norms"]


@pytest.mark.parametrize("changes", [dict(lora_dropout=0.2), dict(adapter="none", init_adapter="unset", learning_rate=1e-3)])
def test_a_longer_run_has_other_classes_and_the_same_numbers(tmp_path, changes):
    """Classes are chosen for the whole plan, so a run that goes on with a larger max_steps may fill its micro-batches further."""
    case = make_case(0, tmp_path / "case", num_rows=1, max_len=248)
    sizes = [125, 250] + [128 * i - 2 for i in range(3, 8)] * 2 + [250, 990]
    write_rows(case.data_file, [row for size in sizes for row in rows_of(size)])
    changes = dict(global_batch_size=4, micro_batch_size=4, **changes)
    curves = [curve(case, tmp_path, 2, GRAPHS["off"], **dict(changes, max_steps=steps)) for steps in (2, len(sizes))]
    assert [c["classes"][:2] for c in curves] == [[128, 256], [256, 512]]
    assert curves[0]["losses"] == curves[1]["losses"] and curves[0]["grad_norms"] == curves[1]["grad_norms"]


@pytest.mark.parametrize("mode", ["on", "off"])
@pytest.mark.parametrize("number", [0, 3])
def test_step_1_equals_the_reference(references, tmp_path, number, mode):
    case, loss, reference = references(number)
    profile = engine.profile_for(case, tmp_path / "run", micro_batch_size=3)
    check(case, *engine.probe(profile, tmp_path, kernels=GRAPHS[mode]), loss, reference)
