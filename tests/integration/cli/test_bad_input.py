"""Every broken input is refused with the right exit code and a message that says what, where and what was expected.

Nothing half-written stays behind: no adapter, no checkpoint, no temporary file; the same command works once the input
is repaired.
"""

import json
import shutil
import struct

import numpy as np
import pytest

from command import lora_train, model_tensors
from refusals import DATA, FORMAT, NUMERIC, USAGE, assert_nothing_half_written, refused


def test_the_unbroken_setup_trains(setup):
    """What the other tests break is good: a refusal there is due to what they broke."""
    run = setup.train()
    assert run.code == 0, run
    assert (setup.output_dir / "adapter/adapter_model.safetensors").exists()


def test_a_repaired_input_trains_in_the_same_folder(setup):
    weights = setup.model / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-100])
    refused(setup, FORMAT, "model.safetensors")
    weights.write_bytes(whole)
    run = setup.train()
    assert run.code == 0, run


# ---- model folder ---------------------------------------------------------------------------------------------------

def test_missing_model_folder(setup):
    refused(setup, FORMAT, setup.folder / "nowhere", model=str(setup.folder / "nowhere"))


def test_model_name_that_is_not_in_the_cache(setup):
    refused(setup, FORMAT, "nobody/no-such-model", "download", model="nobody/no-such-model")


def test_missing_config(setup):
    (setup.model / "config.json").unlink()
    refused(setup, FORMAT, "config.json")


def test_config_that_is_not_json(setup):
    (setup.model / "config.json").write_text('{"hidden_size": 32,')
    refused(setup, FORMAT, "config.json")


@pytest.mark.parametrize("field", ["hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
                                   "vocab_size", "model_type"])
def test_config_without_a_field(setup, field):
    setup.write_config(without=[field] if field != "model_type" else ["model_type", "architectures"])
    refused(setup, FORMAT, "config.json", field)


@pytest.mark.parametrize("field, value", [("hidden_size", "32"), ("num_hidden_layers", 0), ("hidden_size", None),
                                          ("num_key_value_heads", 3), ("rms_norm_eps", -1), ("vocab_size", 2**40),
                                          ("hidden_act", "gelu")])
def test_config_with_a_bad_field(setup, field, value):
    setup.write_config(**{field: value})
    refused(setup, FORMAT, field)


def test_chat_template_that_does_not_parse(setup):
    (setup.model / "chat_template.jinja").write_text("{% if %}")
    refused(setup, FORMAT, "chat_template.jinja")


def test_unknown_architecture(setup):
    setup.write_config(model_type="gpt2", architectures=["GPT2LMHeadModel"])
    refused(setup, FORMAT, "config.json", "GPT2LMHeadModel", "Qwen2ForCausalLM", "LlamaForCausalLM")


def test_quantised_checkpoint(setup):
    setup.write_config(quantization_config={"quant_method": "gptq", "bits": 4})
    refused(setup, FORMAT, "config.json", "quantization_config")


def test_rope_that_depends_on_batch_mates(setup):
    setup.write_config(max_position_embeddings=32, rope_scaling={"rope_type": "dynamic", "factor": 2.0})
    refused(setup, FORMAT, "dynamic")


@pytest.mark.parametrize("size", [0, 5, 8, 100, -1])
def test_truncated_safetensors(setup, size):
    path = setup.model / "model.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    refused(setup, FORMAT, path)


def broken_header(setup, change):
    """Rewrites the header of model.safetensors through change(dict)."""
    path = setup.model / "model.safetensors"
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + length])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length:])
    return path


NORM = "model.norm.weight"
BAD_HEADERS = {
    "offsets past the end": lambda h: h[NORM].update(data_offsets=[h[NORM]["data_offsets"][0], 10**9]),
    "reversed offsets": lambda h: h[NORM].update(data_offsets=h[NORM]["data_offsets"][::-1]),
    "shape of another size": lambda h: h[NORM].update(shape=[33]),
    "negative shape": lambda h: h[NORM].update(shape=[-32]),
    "unknown dtype": lambda h: h[NORM].update(dtype="F33"),
}


@pytest.mark.parametrize("what", BAD_HEADERS)
def test_bad_safetensors_header(setup, what):
    path = broken_header(setup, BAD_HEADERS[what])
    refused(setup, FORMAT, path, NORM)


def test_header_length_beyond_the_file(setup):
    path = setup.model / "model.safetensors"
    path.write_bytes(struct.pack("<Q", 2**60) + path.read_bytes()[8:])
    refused(setup, FORMAT, path)


def test_missing_tensor(setup):
    tensors = model_tensors()
    del tensors["model.layers.1.mlp.up_proj.weight"]
    setup.write_model(tensors)
    refused(setup, FORMAT, "model.layers.1.mlp.up_proj.weight")


def test_tensor_of_another_shape(setup):
    setup.write_model(dict(model_tensors(), **{"model.layers.0.mlp.up_proj.weight": np.zeros((47, 32), np.float32)}))
    refused(setup, FORMAT, "model.safetensors", "model.layers.0.mlp.up_proj.weight", "47", "48")


def test_tensor_of_an_integer_type(setup):
    setup.write_model(dict(model_tensors(), **{"model.norm.weight": np.ones(32, np.int64)}))
    refused(setup, FORMAT, "model.norm.weight", "I64")


def test_sharded_setup_trains(setup):
    setup.write_shards()
    run = setup.train()
    assert run.code == 0, run


@pytest.mark.parametrize("name", ["../secret.safetensors", "/etc/passwd", "sub/model.safetensors", ".."])
def test_index_that_points_outside_the_folder(setup, name):
    index = setup.write_shards()
    shutil.copy(setup.model / "model-00001-of-00002.safetensors", setup.folder / "secret.safetensors")
    index["weight_map"][NORM] = name
    setup.write_index(index)
    refused(setup, FORMAT, "model.safetensors.index.json", name)


def test_index_that_names_a_missing_shard(setup):
    setup.write_shards()
    (setup.model / "model-00002-of-00002.safetensors").unlink()
    refused(setup, FORMAT, "model-00002-of-00002.safetensors")


def test_index_that_names_the_wrong_shard(setup):
    index = setup.write_shards()
    names = sorted(set(index["weight_map"].values()))
    index["weight_map"][NORM] = names[1 - names.index(index["weight_map"][NORM])]
    setup.write_index(index)
    refused(setup, FORMAT, NORM)


def test_index_that_is_not_one(setup):
    setup.write_shards()
    (setup.model / "model.safetensors.index.json").write_text('{"weights": {}}')
    refused(setup, FORMAT, "model.safetensors.index.json", "weight_map")


def test_pickle_checkpoint(setup):
    (setup.model / "model.safetensors").rename(setup.model / "pytorch_model.bin")
    refused(setup, FORMAT, "pytorch_model.bin", "safetensors")


def test_folder_without_weights(setup):
    (setup.model / "model.safetensors").unlink()
    refused(setup, FORMAT, setup.model, "safetensors")


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_non_finite_weight_stops_before_the_update(setup, value):
    tensors = model_tensors()
    tensors["model.layers.1.mlp.up_proj.weight"][3, 5] = value
    setup.write_model(tensors)
    refused(setup, NUMERIC, "step 1")
    assert setup.events("train") == [] or all(np.isfinite(line["loss"]) for line in setup.events("train"))


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


# ---- data -----------------------------------------------------------------------------------------------------------

def test_missing_data_file(setup):
    missing = setup.folder / "nothing.jsonl"
    refused(setup, DATA, missing, datasets=[{"path": str(missing), "type": "pretokenized"}])


@pytest.mark.parametrize("text", ["", "\n\n"])
def test_empty_dataset(setup, text):
    setup.rows_file.write_text(text)
    refused(setup, DATA, setup.rows_file, "no example")


def test_example_with_every_label_masked(setup):
    """One such example of twelve is over max_drop_fraction; the message names its line."""
    setup.rows[4]["labels"] = [-100] * len(setup.rows[4]["labels"])
    setup.write_rows(setup.rows)
    refused(setup, DATA, f"{setup.rows_file}:5", "label")


def test_every_example_masked(setup):
    setup.write_rows([dict(row, labels=[-100] * len(row["labels"])) for row in setup.rows])
    refused(setup, DATA, f"{setup.rows_file}:1")


def test_label_at_the_first_position_only(setup):
    """Hugging Face counts labels[1:]: nothing predicts the first token."""
    setup.write_rows([dict(row, labels=row["input_ids"][:1] + [-100] * (len(row["labels"]) - 1)) for row in setup.rows])
    refused(setup, DATA, f"{setup.rows_file}:1")


BAD_LINES = {
    '{"input_ids": [1, 2, 3], "labels": [1, 2': "",
    '{"input_ids": [1, 2, 3], "labels": [1, 2]}': "labels",
    '{"input_ids": [1, 2, 64], "labels": [1, 2, 64]}': "64",
    '{"input_ids": [1, -2, 3], "labels": [1, 2, 3]}': "input_ids",
    '{"input_ids": [1, 2.5, 3], "labels": [1, 2, 3]}': "input_ids",
    '{"input_ids": "1 2 3", "labels": [1, 2, 3]}': "input_ids",
    '{"labels": [1, 2, 3]}': "input_ids",
    '{"input_ids": [], "labels": []}': "input_ids",
    '[1, 2, 3]': "",
    'not json': "",
}


@pytest.mark.parametrize("line", BAD_LINES)
def test_bad_example(setup, line):
    setup.write_rows(setup.rows[:4], more=line + "\n" + json.dumps(setup.rows[5]) + "\n")
    refused(setup, DATA, f"{setup.rows_file}:5", BAD_LINES[line])


def test_bad_example_of_evaluation_data(setup):
    path = setup.folder / "val.jsonl"
    path.write_text(json.dumps(setup.rows[0]) + "\nnot json\n")
    refused(setup, DATA, f"{path}:2", eval_datasets=[{"path": str(path), "type": "pretokenized"}])


def test_example_longer_than_max_seq_len(setup):
    said = refused(setup, DATA, setup.rows_file, "max_seq_len", max_seq_len=16)
    assert "drop" in said and "truncate" in said


# ---- profile --------------------------------------------------------------------------------------------------------

def test_missing_profile(setup):
    run = lora_train("train", "--profile", setup.folder / "no.yaml")
    assert run.code == USAGE and "no.yaml" in run.stderr, run


def test_unknown_key_is_named_with_its_line_and_the_nearest_key(setup):
    refused(setup, USAGE, "profile.json:", "weigth_decay", "weight_decay", weigth_decay=0.1)


def test_all_mistakes_of_a_profile_are_reported_together(setup):
    run = setup.train(learning_rate=-1, lora_r="many", precision="fp16", no_such_key=1)
    assert run.code == USAGE, run
    for part in ("learning_rate", "lora_r", "precision", "no_such_key"):
        assert part in run.stderr, run
    assert not setup.output_dir.exists()


@pytest.mark.parametrize("key", ["model", "datasets"])
def test_required_key(setup, key):
    refused(setup, USAGE, key, **{key: "unset"})


@pytest.mark.parametrize("changes, part", [(dict(teacher="a"), "teacher"),
                                           (dict(report_to="wandb"), "wandb sync"), (dict(fp16=True), "bf16")])
def test_what_is_not_built_is_refused_by_name(setup, changes, part):
    run = setup.train(**changes)
    assert run.code == USAGE and part in run.stderr, run
    assert_nothing_half_written(setup)


def test_target_that_matches_nothing_lists_the_names(setup):
    refused(setup, USAGE, "lora_target_modules", "qq_proj", "q_proj", "down_proj",
            lora_target_modules=["q_proj", "qq_proj"])


def test_pattern_that_matches_nothing(setup):
    refused(setup, USAGE, "rank_pattern", '"kproj"', rank_pattern={"k_proj": 2, "kproj": 3})


def test_unknown_flag_and_command():
    for arguments in (["train", "--no-such-flag"], ["no-such-command"], []):
        run = lora_train(*arguments)
        assert run.code == USAGE, run
