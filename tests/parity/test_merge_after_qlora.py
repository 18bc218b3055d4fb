"""Merging an adapter that was trained on a base quantised on loading: into the decoded weights, or the model's own.

A folder that another tool has quantised says what the decoded weights are; PEFT and transformers compute the logits.
"""

import dataclasses
import json
from types import SimpleNamespace

import gguf
import pytest
import torch
from transformers import AutoModelForCausalLM

import engine
import oracle
from quantised_folders import load_weights, write_quantised
from test_field_checkpoints import MODEL, make_adapter
from test_quantised import plain_copy

KINDS = ["nf4", "int8", "fp8"]


def merge(case, out, *flags, code=0):
    done = engine.start("lora-train", "merge", "--json", "--model", case.model_dir, "--adapter", case.adapter_dir, "--output-dir", out, *flags)
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout) if code == 0 else done.stderr


def logits(model, rows):
    with torch.no_grad():
        return torch.cat([model(input_ids=torch.tensor([row["input_ids"]]), use_cache=False).logits[0] for row in rows])


def gap(folder, base, case):
    """The largest logit difference between the merged folder and base + adapter."""
    merged = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    return float((logits(merged, case.rows) - logits(oracle.load_peft(base, case.adapter_dir), case.rows)).abs().max())


@pytest.fixture
def decoded(cases, tmp_path):
    """decoded(kind): a case, and the folder of its decoded weights in fp32, which another tool has quantised."""
    def get(kind):
        case = cases(2)
        quantised = write_quantised(tmp_path / "quantised", case.model_dir, kind, **({"nested": True} if kind == "nf4" else {}))
        return case, plain_copy(quantised, tmp_path / "decoded")
    return get


@pytest.mark.parametrize("kind", KINDS)
def test_both_gaps_and_the_merged_weights(decoded, tmp_path, kind):
    case, base = decoded(kind)
    flags = ("--base-precision", kind, "--rows", case.data_file, "--dtype", "fp32")
    said = merge(case, tmp_path / "onto", *flags)
    expected = oracle.load_peft(base, case.adapter_dir).merge_and_unload().state_dict()
    for name, tensor in load_weights(tmp_path / "onto").items():
        assert (tensor - expected[name]).norm() <= 3e-3 * expected[name].norm(), name  # codes at a tie: test_quantised
    trained, original = (gap(tmp_path / "onto", folder, case) for folder in (base, case.model_dir))
    assert said["max_logit_difference"] < 1e-3 * said["max_logit"] < 0.1 * original
    assert said["original"]["max_logit_difference"] == pytest.approx(original, rel=0.02)

    other = merge(case, tmp_path / "original", *flags, "--onto", "original")
    assert other["original"]["max_logit_difference"] < 1e-4 * other["max_logit"]
    assert other["max_logit_difference"] == pytest.approx(gap(tmp_path / "original", base, case), rel=0.02)
    assert trained < 0.05 * other["max_logit_difference"]
    plain = merge(case, tmp_path / "plain", *flags[2:])
    assert "original" not in plain and "Merged into the weights of the base model.\n" in (tmp_path / "plain/README.md").read_text()
    for name, tensor in load_weights(tmp_path / "plain").items():
        assert torch.equal(load_weights(tmp_path / "original")[name], tensor), name
    card = (tmp_path / "onto/README.md").read_text()
    assert f"Merged into the weights of the base model, decoded from {kind}.\n" in card
    assert f"from what was trained (base in {kind}) " in card and "from the adapter on the original weights " in card, card


@pytest.mark.parametrize("kind, nested", [("nf4", True), ("nf4", False), ("int8", True), ("fp8", True)])
def test_what_a_run_trained_on_is_what_it_is_merged_into(cases, tmp_path, kind, nested):
    """`base_precision` of the run decides: the merged model answers as the run's evaluation did."""
    case = cases(2)
    profile = engine.profile_for(case, tmp_path / "run", init_adapter="unset", base_precision=kind, double_quant=nested, max_steps=2,
                                 learning_rate=1e-2)
    engine.train(profile, tmp_path)
    adapter = tmp_path / "run/adapter"
    assert json.loads((adapter / "lora_train.json").read_text())["base_precision"] == kind
    merged = dataclasses.replace(case, adapter_dir=adapter)
    said = merge(merged, tmp_path / "merged", "--rows", case.data_file, "--dtype", "fp32")
    assert said["max_logit_difference"] < 1e-4 * said["max_logit"] < 0.1 * said["original"]["max_logit_difference"]
    assert "base_precision" not in json.loads((tmp_path / "merged/lora_train.json").read_text())
    evaluated = dict(profile, eval_datasets=profile["datasets"])
    ours = engine.evaluate(dict(evaluated, model=str(tmp_path / "merged"), base_precision="auto"), tmp_path)
    assert ours[0]["loss"] == pytest.approx(engine.evaluate(evaluated, tmp_path, adapter)[0]["loss"], rel=1e-5)
    said = merge(merged, tmp_path / "no", "--base-precision", "fp8" if kind != "fp8" else "nf4", code=2)
    assert f"--base-precision: the adapter was trained on {kind} weights" in said


def test_what_nothing_says_is_refused(cases, tmp_path):
    case = cases(2)
    said = merge(case, tmp_path / "out", "--onto", "decoded", code=2)
    assert "--onto: nothing says that the adapter was trained on quantised weights" in said
    quantised = write_quantised(tmp_path / "quantised", case.model_dir, "fp8")
    done = engine.start("lora-train", "merge", "--model", quantised, "--adapter", case.adapter_dir, "--output-dir", tmp_path / "out",
                        "--onto", "original")
    assert done.returncode == 2 and "is stored quantised: it has no original weights" in done.stderr, done.stderr
    assert not (tmp_path / "out").exists()


def export(case, out, *flags, code=0):
    done = engine.start("lora-train", "export", "--json", "--model", case.model_dir, "--adapter", case.adapter_dir, "--gguf", out, *flags)
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout) if code == 0 else done.stderr


def test_export_merges_into_the_same_weights(tmp_path):
    make_adapter(tmp_path / "adapter", target_modules="all-linear")
    case = SimpleNamespace(model_dir=MODEL, adapter_dir=tmp_path / "adapter")
    said = export(case, tmp_path / "onto.gguf", "--merge", "--base-precision", "nf4", "--type", "f32")
    assert said["max_logit_difference"] < 0.5 * said["original"]["max_logit_difference"] and not list(tmp_path.glob(".tmp*")), said
    merge(case, tmp_path / "onto", "--base-precision", "nf4", "--dtype", "fp32")
    engine.run("lora-train", "export", "--json", "--model", tmp_path / "onto", "--gguf", tmp_path / "folder.gguf", "--type", "f32")
    ours, theirs = gguf_tensors(tmp_path / "onto.gguf"), gguf_tensors(tmp_path / "folder.gguf")
    assert ours.keys() == theirs.keys() and all((ours[name] == theirs[name]).all() for name in ours)
    assert "max_logit_difference" not in export(case, tmp_path / "plain.gguf", "--merge", "--type", "f32")
    assert any((gguf_tensors(tmp_path / "plain.gguf")[name] != ours[name]).any() for name in ours)
    assert "not_compared" in export(case, tmp_path / "no.gguf", "--merge", "--base-precision", "nf4", "--no-check")
    assert "--onto: is for --merge" in export(case, tmp_path / "alone.gguf", "--onto", "original", code=2)


def gguf_tensors(file):
    return {tensor.name: tensor.data for tensor in gguf.GGUFReader(file).tensors}
