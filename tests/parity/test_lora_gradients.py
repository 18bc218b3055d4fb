"""Step 1 of LoRA in fp32 against transformers + PEFT: loss within 1e-6, every gradient within 1e-5 (relative norm)."""

import json

import pytest

import engine
import oracle
from first_step import assert_same, check
from random_case import ONE_HEAD, WIDE, WINDOW, make_case, num_cases

LAYOUTS = {
    "one document a micro-batch": dict(micro_batch_size=1),
    "2 x 3": dict(micro_batch_size=2),
    "3 x 2": dict(micro_batch_size=3, global_batch_size="unset", gradient_accumulation_steps=2),
    "packed, one bin a micro-batch": dict(packing=True, micro_batch_size=1, global_batch_size=64),
    "packed, many bins a micro-batch": dict(packing=True, micro_batch_size=4, global_batch_size=64),
    "packed into one bin": dict(packing=True, micro_batch_size=1, global_batch_size=1, max_seq_len=256),
}
LATER = [100, 101, 102, 103]  # Gemma 3 and Granite, two each


@pytest.mark.parametrize("number", [*range(num_cases(12)), *LATER, 104, 105])
def test_step_1(references, tmp_path, number):
    case, loss, reference = references(number)
    check(case, *engine.probe(engine.profile_for(case, tmp_path / "run"), tmp_path), loss, reference)


@pytest.mark.parametrize("number", [*range(4), *LATER[:2]])  # one of each family
def test_one_attention_head(references, tmp_path, number):
    case, loss, reference = references(number, shape=ONE_HEAD)
    check(case, *engine.probe(engine.profile_for(case, tmp_path / "run"), tmp_path), loss, reference)


@pytest.mark.parametrize("number", [*range(4), *LATER[:2]])
def test_two_threads(references, tmp_path, number):
    case, loss, reference = references(number, shape=WIDE, num_rows=8, max_len=120)
    assert sum(len(row["input_ids"]) for row in case.rows) >= 300
    check(case, *engine.probe(engine.profile_for(case, tmp_path / "run"), tmp_path, threads=2), loss, reference)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("number", [2, 8, LATER[0]])  # with a window on some layer
def test_layouts(references, tmp_path, number, layout):
    """However the rows of a global step are dealt into micro-batches, loss and gradients are the same."""
    case, loss, reference = references(number)
    profile = engine.profile_for(case, tmp_path / "run", **LAYOUTS[layout])
    check(case, *engine.probe(profile, tmp_path), loss, reference)


@pytest.mark.parametrize("number", [1, 2, *LATER[:2]])  # with and without biases, output norms and a residual multiplier
def test_mlp_in_tiles(references, tmp_path, number):
    case, loss, reference = references(number)
    profile = engine.profile_for(case, tmp_path / "run", micro_batch_size=3, gradient_checkpointing="full", mlp_tile_tokens=11)
    check(case, *engine.probe(profile, tmp_path), loss, reference)


@pytest.mark.parametrize("number", [*range(1, 5), *LATER[:2]])
def test_checkpointing_gives_the_same_numbers(references, tmp_path, number):
    case, loss, reference = references(number)
    results = {mode: engine.probe(engine.profile_for(case, tmp_path / "run", micro_batch_size=3,
                                                     gradient_checkpointing=mode), tmp_path)
               for mode in ("off", "cheap", "gate_up", "full")}
    check(case, *results["off"], loss, reference)
    for mode in ("cheap", "gate_up", "full"):
        assert_same(results[mode], results["off"])


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_yarn_extends_the_context(tmp_path, family):
    """As the model cards of Qwen say: rope_scaling is added, and max_position_embeddings stays the original length. Rows are three
    times as long, and max_seq_len: auto is not cut to the original length."""
    case = make_case(0, tmp_path / "case", family=family, max_len=90)
    path = case.model_dir / "config.json"
    config = json.loads(path.read_text())
    for key in ("rope_parameters", "rope_theta", "rope_scaling"):
        config.pop(key, None)
    config.update(max_position_embeddings=32, rope_theta=500.0,
                  rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32})
    path.write_text(json.dumps(config))
    assert max(len(row["input_ids"]) for row in case.rows) == 90
    loss, reference = oracle.gradients(oracle.load_peft(case.model_dir, case.adapter_dir), case.rows)
    profile = engine.profile_for(case, tmp_path / "run", max_seq_len="auto", micro_batch_size=1)
    check(case, *engine.probe(profile, tmp_path), loss, reference)


def test_the_cases_reach_every_variant(cases):
    words = " \n".join(cases(number).description for number in range(12)) + " "
    for wanted in ("qwen2", "qwen3", "mistral", "llama", "rope=llama3", "rope=linear", "rope=yarn", f"window={WINDOW}",
                   "attention_bias=True", "mlp_bias=True", " tied", "untied", "sharded", "older config", "F32", "F16",
                   "BF16", "use_rslora=True", "'k_proj': 2", "all-linear", "max_window_layers=1", "=.*"):
        assert wanted in words, f"{wanted} is in none of the cases:\n{words}"
