"""Model and adapter folders as they are in the field: a head in a tied model, adapters of some layers and modules, adapters of a
class without a head. Values from transformers and PEFT."""

import json
import shutil

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForCausalLM

import engine
import oracle

from command import ROOT, lora_train

MODEL = ROOT / "examples/tiny-math/model"
ROWS = [{"input_ids": ids, "labels": ids} for ids in ([5, 6, 7, 8, 9, 10], [40, 41, 42, 43])]
ADAPTERS = {  # arguments of LoraConfig
    "layers": {"target_modules": ["q_proj", "down_proj"], "layers_to_transform": [0, 2]},
    "a layer": {"target_modules": ["q_proj", "model.layers.3.self_attn.v_proj"], "layers_to_transform": 1, "layers_pattern": "layers"},
    "excluded names": {"target_modules": "all-linear", "exclude_modules": ["v_proj", "layers.1.mlp.up_proj"]},
    "excluded by expression": {"target_modules": ["q_proj", "v_proj"], "exclude_modules": r"model\.layers\.[02]\..*q_proj"},
    "without a head": {"target_modules": ["q_proj", "up_proj"], "task_type": "FEATURE_EXTRACTION"},
    "without a head, by expression": {"target_modules": r"layers\.\d\.mlp\.(up|down)_proj", "task_type": "FEATURE_EXTRACTION"},
}


def loss_of(folder, *arguments):
    """`eval`'s loss on ROWS."""
    rows = folder / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    run = lora_train("eval", "--json", *arguments, "device=cpu", "precision=fp32", f'eval_datasets=[{{"path": "{rows}"}}]')
    assert run.code == 0, run
    return json.loads(run.stdout.splitlines()[0])["loss"], run.stderr


def make_adapter(folder, **config):
    torch.manual_seed(0)
    is_headless = config.get("task_type") == "FEATURE_EXTRACTION"
    model = (AutoModel if is_headless else AutoModelForCausalLM).from_pretrained(MODEL, dtype=torch.float32)
    model = get_peft_model(model, LoraConfig(r=4, lora_alpha=64, init_lora_weights=False, **config))
    model.save_pretrained(folder)
    causal = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    if is_headless:
        causal.model = model
    return causal if is_headless else model


@pytest.mark.parametrize("name", ADAPTERS)
def test_an_adapter_of_some_modules_counts_as_in_peft(tmp_path, name):
    model = make_adapter(tmp_path / "adapter", **ADAPTERS[name])
    base, expected = oracle.loss(oracle.load_base(MODEL), ROWS), oracle.loss(model, ROWS)
    assert abs(base - expected) > 0.01
    ours, _ = loss_of(tmp_path, "--model", MODEL, "--adapter", tmp_path / "adapter")
    assert ours == pytest.approx(expected, rel=1e-5)


def test_a_portable_adapter_of_some_layers_names_its_linears(tmp_path):
    model = make_adapter(tmp_path / "adapter", **ADAPTERS["layers"])
    engine.run("lora-train", "merge", "--portable", "--adapter", tmp_path / "adapter", "--output-dir", tmp_path / "portable")
    assert oracle.loss(oracle.load_peft(MODEL, tmp_path / "portable"), ROWS) == pytest.approx(oracle.loss(model, ROWS), rel=1e-6)


@pytest.fixture(scope="module")
def with_head(tmp_path_factory):
    """A folder whose config.json says tied, with a head of its own."""
    folder = tmp_path_factory.mktemp("head") / "model"
    shutil.copytree(MODEL, folder)
    assert json.loads((folder / "config.json").read_text())["tie_word_embeddings"]
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].flip(0).contiguous()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


NOTE = "lm_head differs from the embedding and is used, although config.json says tie_word_embeddings"


def test_a_head_of_its_own_counts_and_results_say_so(with_head, tmp_path):
    expected = oracle.loss(oracle.load_base(with_head), ROWS)
    assert abs(expected - oracle.loss(oracle.load_base(MODEL), ROWS)) > 0.01
    ours, said = loss_of(tmp_path, "--model", with_head)
    assert ours == pytest.approx(expected, rel=1e-5) and said.count(NOTE) == 1, said
    make_adapter(tmp_path / "adapter", target_modules=["q_proj"])
    merge = ("--adapter", tmp_path / "adapter", "--allow-other-base", "--no-check", "--output-dir", tmp_path / "merged")
    engine.run("lora-train", "merge", "--model", with_head, *merge)
    engine.run("lora-train", "quantize", "--model", with_head, "--output-dir", tmp_path / "nf4")
    profile = {"model": str(with_head), "datasets": [{"path": str(tmp_path / "rows.jsonl")}], "adapter": "none", "max_steps": 1,
               "global_batch_size": 2, "device": "cpu", "precision": "fp32", "output_dir": str(tmp_path / "run"), "report_to": "none"}
    engine.train(profile, tmp_path)
    for folder in (tmp_path / "merged", tmp_path / "nf4", tmp_path / "run/model"):
        assert json.loads((folder / "config.json").read_text())["tie_word_embeddings"] is False, folder
        assert "lm_head.weight" in load_file(folder / "model.safetensors"), folder


def test_an_identical_copy_of_the_embedding_is_no_head(tmp_path):
    shutil.copytree(MODEL, tmp_path / "model")
    tensors = load_file(MODEL / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, tmp_path / "model/model.safetensors", {"format": "pt"})
    ours, said = loss_of(tmp_path, "--model", tmp_path / "model")
    assert ours == pytest.approx(oracle.loss(oracle.load_base(MODEL), ROWS), rel=1e-5) and "head" not in said, said
