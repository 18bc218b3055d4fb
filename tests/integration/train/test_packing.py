"""The loss does not depend on how documents are laid out: packed or not, in large micro-batches or small ones."""

import math

import pytest

TOLERANCE = 1e-6  # relative, fp32


def losses(setup, name, **changes):
    """Of steps and evaluations."""
    folder = setup.folder / name
    setup.good_run(output_dir=str(folder), shuffle=True, **changes)
    return [[line["loss"] for line in setup.events(kind, folder)] for kind in ("train", "eval")]


def assert_equal(these, those):
    assert len(these) == len(those) > 0
    for a, b in zip(these, those):
        assert math.isclose(a, b, rel_tol=TOLERANCE), (a, b, abs(a - b) / abs(b))


def test_packed_is_unpacked(setup):
    """All documents in one step, so that a step has the same ones either way; three epochs of it. (With dropout it has the
    same documents too, but draws by their place in the step, which packing changes.)"""
    settings = dict(global_batch_size=len(setup.rows), max_steps=3,
                    eval_datasets=[{"path": str(setup.rows_file), "type": "pretokenized", "name": "val"}])
    packed = losses(setup, "packed", packing=True, micro_batch_size=2, **settings)
    single = losses(setup, "single", packing=False, micro_batch_size=len(setup.rows), **settings)
    assert_equal(packed[0], single[0])
    assert_equal(packed[1], single[1])


@pytest.mark.parametrize("packing, dropout", [(False, 0.2), (True, 0.0), (True, 0.2)])
def test_micro_batches_make_no_difference(setup, packing, dropout):
    settings = dict(global_batch_size=8, max_steps=6, packing=packing, lora_dropout=dropout)
    whole, _ = losses(setup, "whole", micro_batch_size=8, **settings)
    for micro_batch_size in (4, 1):
        assert_equal(losses(setup, str(micro_batch_size), micro_batch_size=micro_batch_size, **settings)[0], whole)


def test_what_packing_does_to_the_steps_is_a_warning_only_where_nobody_asked_for_it(setup):
    settings = dict(max_seq_len=256, global_batch_size=1, max_steps=1)
    for packing, has_warning in ((True, False), ("unset", True)):
        run = setup.train(packing=packing, output_dir=str(setup.folder / f"run-{packing}"), **settings)
        assert run.code == 0 and ("warning: packing puts about" in run.stderr) == has_warning and "packing puts about" in run.stderr, run
