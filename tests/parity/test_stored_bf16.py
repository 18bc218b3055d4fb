"""Generation in fp32 from a model that is stored in bf16, which stays so in memory."""

import copy
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

import oracle
from generation import (LOGITS_TOLERANCE, NEW_TOKENS, by_transformers, ids_of, load, logits_by_transformers, probe, prompts_of,
                        request_for)


@pytest.mark.parametrize("adapter", [False, True], ids=["base", "adapter"])
@pytest.mark.parametrize("number", range(4))
def test_a_model_stored_in_bf16_is_computed_in_fp32(cases, tmp_path, number, adapter):
    """Its matrices stay in bf16 then; the numbers are those of fp32."""
    case = copy.copy(cases(number))
    case.model_dir = tmp_path / "model"
    shutil.copytree(cases(number).model_dir, case.model_dir)
    for file in case.model_dir.glob("*.safetensors"):
        save_file({name: tensor.to(torch.bfloat16) for name, tensor in load_file(file).items()}, file)
    model, prompts = load(case, adapter), prompts_of(case)
    want = [by_transformers(model, ids) for ids in prompts]
    results = [probe(request_for(case, prompts, adapter, logits=str(tmp_path / f"logits-{keeps}"), keeps_bf16=keeps), tmp_path)
               for keeps in (True, False)]
    assert [result["element_bytes"] for result in results] == [2, 4]
    for keeps, result in zip((True, False), results):
        assert ids_of(result) == want, case.description
        rows = load_file(tmp_path / f"logits-{keeps}")
        for index, ids in enumerate(prompts):
            reference = logits_by_transformers(model, ids + want[index])
            for position in range(NEW_TOKENS):
                assert oracle.relative_error(rows[f"{index}.{position}"], reference[len(ids) - 1 + position]) < LOGITS_TOLERANCE
