"""One broken input of each kind through the whole program: exit code, message, and nothing half-written behind it.

No adapter, no checkpoint, no temporary file; the same command works once the input is repaired. What each reader
refuses, and in which words, is in its unit tests: model_config_test, safetensors_test, model_weights_test,
expected_weights_test, example_format_test, prepare_test.
"""

import json

import numpy as np
import pytest

from command import lora_train, model_tensors
from refusals import DATA, FORMAT, NUMERIC, USAGE, refused


def test_a_repaired_input_trains_in_the_same_folder(setup):
    weights = setup.model / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-100])
    refused(setup, FORMAT, weights)
    weights.write_bytes(whole)
    run = setup.train()
    assert run.code == 0, run
    assert (setup.output_dir / "adapter/adapter_model.safetensors").exists()


NORM, UP = "model.norm.weight", "model.layers.1.mlp.up_proj.weight"


def test_shards_whose_index_leads_outside_the_folder(setup):
    index = setup.write_shards()
    shard = index["weight_map"][NORM]
    index["weight_map"][NORM] = "../secret.safetensors"
    setup.write_index(index)
    refused(setup, FORMAT, "model.safetensors.index.json", "../secret.safetensors")
    index["weight_map"][NORM] = shard
    setup.write_index(index)
    run = setup.train()
    assert run.code == 0, run


BROKEN_MODELS = {
    "a bad field": (lambda s: s.write_config(num_hidden_layers=0), ["config.json", "num_hidden_layers"]),
    "a missing tensor": (lambda s: s.write_model({name: value for name, value in model_tensors().items() if name != UP}), [UP]),
    "pickled weights": (lambda s: (s.model / "model.safetensors").rename(s.model / "pytorch_model.bin"), ["pytorch_model.bin", "safetensors"]),
}


@pytest.mark.parametrize("what", BROKEN_MODELS)
def test_broken_model_folder(setup, what):
    change, parts = BROKEN_MODELS[what]
    change(setup)
    refused(setup, FORMAT, *parts)


def test_non_finite_weight_stops_before_the_update(setup):
    tensors = model_tensors()
    tensors[UP][3, 5] = np.inf
    setup.write_model(tensors)
    refused(setup, NUMERIC, "step 1")
    assert setup.events("train") == [] or all(np.isfinite(line["loss"]) for line in setup.events("train"))
    setup.write_model(model_tensors())
    run = setup.train(lora_r=2)  # another profile: the folder of a failed start is taken without a word
    assert run.code == 0 and "starting over" not in run.stderr, run
    assert [line["step"] for line in setup.events("train")] == [1, 2, 3] and len(setup.events("start")) == 1


def test_non_finite_evaluation_is_an_error(setup):
    """Token 63 has a NaN embedding and stands in the evaluation data only."""
    tensors = model_tensors()
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
    tensors["model.embed_tokens.weight"][63] = np.nan
    setup.write_model(tensors)
    setup.write_config(tie_word_embeddings=False)
    setup.write_rows([{"input_ids": [5, 6, 7, 8 + row], "labels": [5, 6, 7, 8 + row]} for row in range(12)])
    path = setup.folder / "val.jsonl"
    path.write_text('{"input_ids": [5, 6, 7], "labels": [5, 6, 7]}\n{"input_ids": [5, 63, 7], "labels": [5, 63, 7]}\n')
    evaluation = dict(eval_datasets=[{"path": str(path), "type": "pretokenized", "name": "held-out"}], eval_micro_batch_size=1)
    said = refused(setup, NUMERIC, "held-out", f"{path}:2", **evaluation)
    assert f"{path}:1" not in said
    run = lora_train("eval", "--profile", setup.write_profile(**evaluation))
    assert run.code == NUMERIC and "held-out" in run.stderr, run


@pytest.mark.parametrize("key", ["datasets", "eval_datasets"])
def test_bad_example(setup, key):
    path = setup.folder / "bad.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in setup.rows[:4]) + '{"input_ids": [1, 2, 64], "labels": [1, 2, 64]}\n')
    refused(setup, DATA, f"{path}:5", "64", **{key: [{"path": str(path), "type": "pretokenized"}]})


def test_mistakes_of_the_profile_leave_no_folder(setup):
    refused(setup, USAGE, "profile.json:", "weigth_decay", "weight_decay", "lora_r", weigth_decay=0.1, lora_r="many")
    assert not setup.output_dir.exists()
