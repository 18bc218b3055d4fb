"""Steps that are recorded once and replayed (train/step_graphs): on the CPU, our CUDA kernels, products and attention are
recorded in the order in which a step asks for them, and run again at the same addresses for every later micro-batch. What a
replay needs from the host but is not told shows as another number; what ATen computes aside is an error of the recorder."""

import pytest

import engine
from first_step import check
from random_case import make_case, write_rows
from replayed_steps import GRAPHS, NUM_STEPS, assert_near, assert_same, check_replayed, curve

DROPOUT = dict(gradient_checkpointing="cheap", lora_dropout=0.2)
CLIPPED = dict(gradient_checkpointing="full", max_grad_norm=0.01, weight_decay=0.1)
PACKED = dict(packing=True, max_seq_len=128)
NF4 = dict(base_precision="nf4", decoded_layers=1, gradient_checkpointing="full")
FULL = dict(adapter="none", init_adapter="unset", learning_rate=1e-3)


@pytest.mark.parametrize("number, changes", [(0, {}), (1, {}), (1, DROPOUT), (3, DROPOUT), (2, CLIPPED), (3, CLIPPED), (2, PACKED),
                                             (3, PACKED), (0, NF4), (1, NF4), (2, FULL)])
def test_replayed_steps_are_the_steps(cases, tmp_path, number, changes):
    _, asked = check_replayed(cases(number), tmp_path, **changes)
    assert_near(asked, curve(cases(number), tmp_path, NUM_STEPS, engine.CUDA_ON_CPU, **changes))  # filled slots count for nothing


def test_layer_inputs_that_are_offloaded(tmp_path):
    """Copies to the host and back are recorded where a step asks for them. Two of five layers have a place there."""
    case = make_case(2, tmp_path / "case", num_layers=5)
    changes = dict(gradient_checkpointing="full", lora_dropout=0.2)
    _, offloaded = check_replayed(case, tmp_path, activation_offload="on", **changes)
    assert_same(offloaded, curve(case, tmp_path, NUM_STEPS, GRAPHS["off"], activation_offload="off", **changes))


@pytest.mark.parametrize("changes", [dict(lora_dropout=0.2), PACKED, dict(NF4, activation_offload="on"), FULL])
def test_mlp_in_tiles(cases, tmp_path, changes):
    """Each micro-batch ends in a tile that is not full."""
    changes = dict(changes, gradient_checkpointing="full")
    _, asked = check_replayed(cases(2), tmp_path, mlp_tile_tokens=23, **changes)
    assert_near(asked, curve(cases(2), tmp_path, NUM_STEPS, GRAPHS["off"], mlp_tile_tokens="off", **changes))


@pytest.mark.parametrize("number", [1, 3])  # without and with a norm of q and k heads
def test_gradients_in_memory_that_is_let_go_of_while_recording(cases, tmp_path, number):
    replayed, _ = check_replayed(cases(number), tmp_path, engine.OWN_GRADIENTS)
    assert_same(replayed, curve(cases(number), tmp_path, NUM_STEPS, GRAPHS["off"]))


def rows_of(num_tokens):
    """One micro-batch of four rows."""
    ids = [3 + (7 * i) % 60 for i in range(num_tokens)]
    quarters = [ids[i * num_tokens // 4:(i + 1) * num_tokens // 4] for i in range(4)]
    return [{"input_ids": quarter, "labels": [-100] + quarter[1:]} for quarter in quarters]


def case_of(folder, sizes):
    """Its micro-batches have so many tokens."""
    case = make_case(0, folder / "case", num_rows=1, max_len=248)
    write_rows(case.data_file, [row for size in sizes for row in rows_of(size)])
    return case


def test_each_micro_batch_is_replayed_in_its_class(tmp_path):
    replayed, _ = check_replayed(case_of(tmp_path, (125, 380, 120)), tmp_path, global_batch_size=4, micro_batch_size=4)
    assert replayed["classes"] == [128, 384]


@pytest.mark.parametrize("changes", [dict(lora_dropout=0.2), FULL])
def test_a_longer_run_has_other_classes_and_the_same_numbers(tmp_path, changes):
    """Classes are chosen for the whole plan, so a run that goes on with a larger max_steps may fill its micro-batches further."""
    sizes = [125, 250] + [128 * i - 2 for i in range(3, 8)] * 2 + [250, 990]
    case = case_of(tmp_path, sizes)
    changes = dict(global_batch_size=4, micro_batch_size=4, **changes)
    curves = [curve(case, tmp_path, 2, GRAPHS["off"], **dict(changes, max_steps=steps)) for steps in (2, len(sizes))]
    assert [c["classes"][:2] for c in curves] == [[128, 256], [256, 512]]
    assert_same(*curves)


@pytest.mark.parametrize("mode", ["on", "off"])
@pytest.mark.parametrize("number", [0, 3])
def test_step_1_equals_the_reference(references, tmp_path, number, mode):
    case, loss, reference = references(number)
    profile = engine.profile_for(case, tmp_path / "run", micro_batch_size=3)
    check(case, *engine.probe(profile, tmp_path, kernels=GRAPHS[mode]), loss, reference)
