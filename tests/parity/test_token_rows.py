"""Trained rows of embedding and head against PEFT's trainable_token_indices: adapters that PEFT wrote, tied and untied, as a list
and as an object. Step 1, 50 steps, the files, and merging."""

import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import engine
import generation
import loss_curves as curves
import oracle
from first_step import check
from random_case import TOKEN_ROWS

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


@pytest.mark.parametrize("changes", [dict(micro_batch_size=1, gradient_checkpointing="full"),
                                     dict(packing=True, micro_batch_size=1, global_batch_size=64)])
@pytest.mark.parametrize("number, rows", [(0, IDS), (6, BOTH)])
def test_layouts(references, tmp_path, number, rows, changes):
    case, loss, reference = references(number, token_rows=rows)
    check(case, *engine.probe(engine.profile_for(case, tmp_path / "run", **changes), tmp_path), loss, reference)


@pytest.mark.parametrize("number, rows", [(0, IDS), (6, BOTH)])
def test_cuda_kernels_on_the_cpu(references, tmp_path, number, rows):
    case, loss, reference = references(number, token_rows=rows)
    check(case, *engine.probe(engine.profile_for(case, tmp_path / "run"), tmp_path, kernels=engine.CUDA_ON_CPU), loss, reference)


@pytest.mark.parametrize("changes", [dict(), dict(base_precision="nf4", decoded_layers=1, gradient_checkpointing="full")])
@pytest.mark.parametrize("number, rows", [(0, IDS), (6, BOTH)])
def test_replayed_steps_are_the_steps(cases, tmp_path, number, rows, changes):
    case = cases(number, token_rows=rows)
    settings = dict(max_steps=4, micro_batch_size=2, learning_rate=5e-3, **changes)
    replayed, asked = (engine.probe_steps(engine.profile_for(case, tmp_path / mode, **settings), tmp_path, 4,
                                          (*engine.CUDA_ON_CPU, "--graphs", mode)) for mode in ("on", "off"))
    assert replayed["replays"] >= 4 * 4 and asked["replays"] == 0
    assert replayed["losses"] == asked["losses"] and replayed["grad_norms"] == asked["grad_norms"]


@pytest.mark.parametrize("number, rows, options", [(8, IDS, dict(lr_scheduler_type="cosine", warmup_steps=5, weight_decay=0.1)),
                                                   (10, BOTH, dict(weight_decay=0.1, micro_batch_size=2))])
def test_curve_and_final_adapter(cases, tmp_path, number, rows, options):
    """50 steps, weight decay on the rows as Hugging Face's Trainer has it; PEFT reads every tensor of the result."""
    case = cases(number, token_rows=rows)
    model = oracle.load_peft(case.model_dir, case.adapter_dir)
    history = curves.reference_curve(model, case, 3e-3, options)
    curves.assert_falls(history)
    output_dir = tmp_path / "run"
    settings = dict(dict(micro_batch_size=curves.BATCH), **options)
    lines = engine.train(engine.profile_for(case, output_dir, global_batch_size=curves.BATCH, max_steps=curves.NUM_STEPS,
                                            learning_rate=3e-3, **settings), tmp_path)
    curves.assert_same_curve(lines, history, curves.CURVE_TOLERANCE)
    loaded = oracle.adapter_keys_match(case.model_dir, output_dir / "adapter")
    assert oracle.loss(loaded, case.rows) == pytest.approx(oracle.loss(model, case.rows), rel=curves.CURVE_TOLERANCE)
    config = json.loads((output_dir / "adapter/adapter_config.json").read_text())
    assert config["trainable_token_indices"] == (list(IDS) if rows == IDS else {name: list(IDS) for name in TOKEN_ROWS})


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
