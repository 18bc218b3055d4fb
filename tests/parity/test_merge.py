"""`merge` against PEFT's merge_and_unload, and `merge --portable` in PEFT.

PEFT (0.21, safe_merge off) computes W += (B A) * scale with fp32 adapters: the sum in fp32, rounded once to the dtype of
W. So does `merge`; only the order in which a product of the rank dimension is summed may differ, so that a fp32 weight may
differ in its last bits and, seldom, one of 16 bits by one unit.
"""

import functools
import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import engine
import oracle
from random_case import num_cases

NUMBERS = [*range(num_cases(6)), 100, 101]
DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}


def merge(*arguments):
    return json.loads(engine.run("lora-train", "merge", "--json", *arguments))


def logits(model, rows):
    with torch.no_grad():
        return torch.cat([model(input_ids=torch.tensor([row["input_ids"]]), use_cache=False).logits[0] for row in rows])


def tensors_of(folder):
    return {name: tensor for path in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(path).items()}


def largest_difference(one, other):
    return float((one - other).abs().max() / other.abs().max())


def peft_merged(case, dtype):
    return oracle.load_peft(case.model_dir, case.adapter_dir, dtype).merge_and_unload()


@pytest.fixture(scope="module")
def merged(cases, tmp_path_factory):
    """merged(number, *flags): (case, folder, what --json said), made once."""
    @functools.cache
    def get(number, *flags):
        case = cases(number)
        folder = tmp_path_factory.mktemp("merged") / "out"
        said = merge("--model", case.model_dir, "--adapter", case.adapter_dir, "--output-dir", folder, "--rows", case.data_file, *flags)
        return case, folder, said
    return get


@pytest.mark.parametrize("number", NUMBERS)
def test_logits_equal_those_of_pefts_merge_in_fp32(merged, number):
    case, folder, said = merged(number, "--dtype", "fp32")
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    assert model.dtype == torch.float32, "config.json says what the weights are"
    expected = logits(peft_merged(case, torch.float32), case.rows)
    error = largest_difference(logits(model, case.rows), expected)
    assert error < 1e-5, f"{case.description}: {error:.2e}"
    assert said["max_logit_difference"] < 1e-5 * float(expected.abs().max()) * 4, said
    base = logits(oracle.load_base(case.model_dir), case.rows)
    assert largest_difference(base, expected) > 0.01, "the adapter changes nothing: this case tests nothing"


@pytest.mark.parametrize("number", NUMBERS)
def test_files_and_bits_of_a_merge_in_the_dtype_of_the_model(merged, number):
    case, folder, said = merged(number)
    source = sorted(case.model_dir.glob("*.safetensors"))
    assert [path.name for path in sorted(folder.glob("*.safetensors"))] == [path.name for path in source]
    for path in source:
        with safe_open(path, "pt") as before, safe_open(folder / path.name, "pt") as after:
            assert list(before.offset_keys()) == list(after.offset_keys())
    index = "model.safetensors.index.json"
    assert (case.model_dir / index).exists() == (folder / index).exists()
    if (folder / index).exists():
        old, new = (json.loads((place / index).read_text()) for place in (case.model_dir, folder))
        assert list(old["weight_map"].items()) == list(new["weight_map"].items())
        assert new["metadata"]["total_size"] == said["weight_bytes"]
    assert (folder / "config.json").read_bytes() == (case.model_dir / "config.json").read_bytes()

    got = tensors_of(folder)
    dtype = next(iter(got.values())).dtype
    expected = peft_merged(case, dtype).state_dict()
    original = tensors_of(case.model_dir)
    num_other, num_changed, count = 0, 0, 0
    for name, tensor in got.items():
        assert tensor.dtype == original[name].dtype == dtype
        if torch.equal(tensor, original[name]):
            assert torch.equal(tensor, expected[name]), f"{name} is changed by PEFT"
            continue
        num_changed += 1
        count += tensor.numel()
        num_other += int((tensor != expected[name]).sum())
        worst = float((tensor.float() - expected[name].float()).abs().max())
        assert worst <= torch.finfo(dtype).eps * float(expected[name].float().abs().max()), f"{name}: {worst:.2e}"
    print(f"{case.description}: {num_other} of {count} elements differ from PEFT's")
    assert num_changed == said["num_merged"] > 0
    if dtype != torch.float32:
        assert num_other <= 1e-4 * count, f"{case.description}: {num_other} of {count}"


@pytest.mark.parametrize("number", NUMBERS[:2])
def test_the_difference_that_is_printed_is_the_one_transformers_sees(merged, number):
    case, folder, said = merged(number, "--dtype", "bf16")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    unmerged = logits(oracle.load_peft(case.model_dir, case.adapter_dir), case.rows)
    got = logits(model, case.rows)
    expected = float((got - unmerged).abs().max())
    assert expected > 1e-3, "bf16 rounds something"
    assert said["max_logit_difference"] == pytest.approx(expected, rel=0.01), case.description
    assert said["max_logit"] == pytest.approx(float(unmerged.abs().max()), rel=1e-4)
    assert said["num_positions"] == len(unmerged)
    assert abs(said["num_argmax_changed"] - int((got.argmax(-1) != unmerged.argmax(-1)).sum())) <= 1


@pytest.mark.parametrize("number", NUMBERS[1:4])
def test_a_portable_adapter_gives_the_same_logits_in_peft(cases, tmp_path, number):
    case = cases(number)
    said = merge("--portable", "--adapter", case.adapter_dir, "--output-dir", tmp_path / "portable")
    config = json.loads((tmp_path / "portable" / "adapter_config.json").read_text())
    assert not config["use_rslora"] and not config["rank_pattern"] and not config["alpha_pattern"]
    assert (config["r"], config["lora_alpha"]) == (said["r"], said["lora_alpha"])
    ranks = {tensor.shape[0] for name, tensor in tensors_of(tmp_path / "portable").items() if "lora_A" in name}
    assert ranks == {config["r"]}
    oracle.adapter_keys_match(case.model_dir, tmp_path / "portable")
    expected = logits(oracle.load_peft(case.model_dir, case.adapter_dir), case.rows)
    got = logits(oracle.load_peft(case.model_dir, tmp_path / "portable"), case.rows)
    assert largest_difference(got, expected) < 1e-5, case.description
