"""batch_unit: documents. Packed, the updates are those of a trainer without packing."""

import numpy as np
from command import good_run, lora_train

ONE_EPOCH = dict(max_steps="unset", num_epochs=1, global_batch_size=1, micro_batch_size=1)


def losses(setup, name, *arguments, **changes):
    folder = setup.folder / name
    run = good_run("train", "--profile", setup.write_profile(output_dir=str(folder), lora_dropout=0.0, logging_steps=1, **changes), *arguments)
    return run, np.array([[event["loss"], event["grad_norm"], event["num_documents"]] for event in setup.events("train", folder)])


def test_the_updates_are_those_without_packing(setup):
    schedule = dict(max_steps="unset", num_epochs=2, global_batch_size=4, micro_batch_size=1)
    _, unpacked = losses(setup, "unpacked", packing=False, **schedule)
    run, packed = losses(setup, "packed", packing=True, batch_unit="documents", **schedule)
    np.testing.assert_allclose(packed, unpacked, rtol=0, atol=1e-6)
    assert "a step has 4 documents, about " in run.stderr and "To count documents, set batch_unit: documents" not in run.stderr, run
    run, _ = losses(setup, "rows", packing=True, **ONE_EPOCH)  # few updates are explained with both numbers
    assert "To count documents, set batch_unit: documents" in run.stderr and "a trainer that counts documents takes" in run.stderr, run


def test_documents_need_a_number(setup):
    setup.profile.pop("global_batch_size", None)
    setup.profile.pop("micro_batch_size", None)
    run = lora_train("check", "--no-files", "--profile", setup.write_profile(batch_unit="documents", gradient_accumulation_steps=2,
                                                                              packing=True))
    assert run.code == 2 and "batch_unit" in run.stderr and "needs a number for micro_batch_size" in run.stderr, run
