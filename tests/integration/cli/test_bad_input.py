"""Broken inputs through `train`: exit code, message, and nothing half-written behind it; the same command works once the input is
repaired. One of each kind is in test_malformed.py; what each reader refuses, and in which words, is in its unit tests."""

import numpy as np

from command import expect_end, lora_train, model_tensors
from refusals import FORMAT, NUMERIC, refused


def test_a_repaired_input_trains_in_the_same_folder(setup):
    weights = setup.model / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-100])
    refused(setup, FORMAT, weights)
    weights.write_bytes(whole)
    setup.good_run()
    assert (setup.output_dir / "adapter/adapter_model.safetensors").exists()


def test_non_finite_weight_stops_before_the_update(setup):
    tensors = model_tensors()
    tensors["model.layers.1.mlp.up_proj.weight"][3, 5] = np.inf
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
    expect_end(lora_train("eval", "--profile", setup.write_profile(**evaluation)), NUMERIC, "held-out")
