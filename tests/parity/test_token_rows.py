"""Trained rows of embedding and head against PEFT's trainable_token_indices: adapters that PEFT wrote, tied and untied, as a list
and as an object. Step 1, generation, and merging; a curve is in test_lora_curves.py."""

import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import engine
import generation
import oracle
from first_step import check
from random_case import TOKEN_ROWS
from replayed_steps import check_replayed

IDS = (17, 3, 96, 40, 41)  # in no order: the tensor has theirs
BOTH = (("embed_tokens", IDS), ("lm_head", IDS))
OTHERS = (("embed_tokens", IDS), ("lm_head", (5, 17)))
TIED, UNTIED = (0, 3, 5, 2, 101), (1, 6, 100)
CASES = [*((number, IDS) for number in TIED), (5, BOTH), *((number, BOTH) for number in UNTIED), (6, IDS), (1, OTHERS),
         (6, (("lm_head", IDS),)), (1, (("model.embed_tokens", IDS),))]


@pytest.mark.parametrize("number, rows", CASES)
def test_step_1(references, tmp_path, number, rows):
    case, loss, reference = references(number, token_rows=rows)
    assert any(name in reference for name in TOKEN_ROWS.values())
    check(case, *engine.probe(engine.profile_for(case, tmp_path / "run"), tmp_path), loss, reference)


@pytest.mark.parametrize("changes, kernels", [(dict(micro_batch_size=1, gradient_checkpointing="full"), ()),
                                              (dict(packing=True, micro_batch_size=1, global_batch_size=64), ()), ({}, engine.CUDA_ON_CPU)])
@pytest.mark.parametrize("number, rows", [(0, IDS), (6, BOTH)])
def test_layouts_and_cuda_kernels(references, tmp_path, number, rows, changes, kernels):
    case, loss, reference = references(number, token_rows=rows)
    check(case, *engine.probe(engine.profile_for(case, tmp_path / "run", **changes), tmp_path, kernels=kernels), loss, reference)


@pytest.mark.parametrize("changes", [dict(), dict(base_precision="nf4", decoded_layers=1, gradient_checkpointing="full")])
@pytest.mark.parametrize("number, rows", [(0, IDS), (6, BOTH)])
def test_replayed_steps_are_the_steps(cases, tmp_path, number, rows, changes):
    check_replayed(cases(number, token_rows=rows), tmp_path, **changes)


@pytest.mark.parametrize("number, rows", [(0, IDS), (6, BOTH), (6, IDS)])
def test_generate_and_eval_know_the_rows(cases, tmp_path, number, rows):
    case = cases(number, token_rows=rows)
    profile = engine.profile_for(case, tmp_path / "run", init_adapter="unset",
                                 eval_datasets=[{"path": str(case.data_file), "type": "pretokenized"}])
    for adapter, model in ((None, oracle.load_base(case.model_dir)),
                           (case.adapter_dir, oracle.load_peft(case.model_dir, case.adapter_dir))):
        said, = engine.evaluate(profile, tmp_path, adapter)
        assert said["loss"] == pytest.approx(oracle.loss(model, case.rows), rel=1e-6)


@pytest.mark.parametrize("number, rows", [(0, IDS), (6, BOTH)])
def test_generated_ids_are_those_of_peft(cases, tmp_path, number, rows):
    case = cases(number, token_rows=rows)
    prompts = [row["input_ids"] for row in case.rows]
    for adapter in (True, False):
        got = generation.ids_of(generation.probe(generation.request_for(case, prompts, adapter), tmp_path))
        assert got == [generation.by_transformers(generation.load(case, adapter), ids) for ids in prompts]


@pytest.mark.parametrize("number, rows", [(0, IDS), (2, IDS), (6, BOTH), (6, IDS), (3, IDS)])
def test_merge_is_that_of_peft(cases, tmp_path, number, rows):
    case = cases(number, token_rows=rows)
    folder = tmp_path / "merged"
    said = json.loads(engine.run("lora-train", "merge", "--json", "--model", case.model_dir, "--adapter", case.adapter_dir,
                                 "--output-dir", folder))
    assert said["max_logit_difference"] <= 2e-2 * said["max_logit"]
    written = {name: tensor for path in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(path).items()}
    adapter = load_file(case.adapter_dir / "adapter_model.safetensors")
    matrix = written["model.embed_tokens.weight"]
    assert torch.equal(matrix[list(IDS)], adapter[TOKEN_ROWS["embed_tokens"]].to(matrix.dtype))
    if rows == BOTH:
        assert torch.equal(written["lm_head.weight"][list(IDS)], adapter[TOKEN_ROWS["lm_head"]].to(matrix.dtype))
    merged = AutoModelForCausalLM.from_pretrained(folder, dtype=matrix.dtype)
    reference = oracle.load_peft(case.model_dir, case.adapter_dir, matrix.dtype).merge_and_unload()
    for name, tensor in reference.state_dict().items():
        other = merged.state_dict()[name]
        assert float((tensor.float() - other.float()).norm()) <= 2e-3 * float(tensor.float().norm()), name
