"""LoRA dropout is PEFT's in distribution; its masks depend on step, row, token and linear, and on nothing else."""

import json
import math

import pytest
import torch
from peft import PeftModel

import engine
import oracle
from random_case import write_rows

RATE = 0.3


def with_dropout(adapter_dir, folder, rate):
    """A copy of the adapter whose config asks for dropout: PEFT takes the rate from there, lora-train from its profile."""
    folder.mkdir()
    config = json.loads((adapter_dir / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(dict(config, lora_dropout=rate)))
    (folder / "adapter_model.safetensors").write_bytes((adapter_dir / "adapter_model.safetensors").read_bytes())
    return folder


@pytest.fixture
def dropped(cases, tmp_path):
    """(case, adapter folder with dropout)."""
    case = cases(6)  # all-linear
    return case, with_dropout(case.adapter_dir, tmp_path / "adapter", RATE)


def profile_for(dropped, output_dir, **changes):
    case, adapter_dir = dropped
    return engine.profile_for(case, output_dir, **dict(dict(init_adapter=str(adapter_dir), lora_dropout=RATE), **changes))


def test_the_mean_and_spread_of_the_loss_are_those_of_peft(dropped, tmp_path):
    case, adapter_dir = dropped
    num_draws = 150
    profile = profile_for(dropped, tmp_path / "run", max_steps=num_draws, learning_rate=1e-30,
                          eval_datasets=[{"path": str(case.data_file), "type": "pretokenized"}], eval_steps=10000)
    ours = torch.tensor([line["loss"] for line in engine.train(profile, tmp_path)], dtype=torch.float64)

    model = PeftModel.from_pretrained(oracle.load_base(case.model_dir), adapter_dir)
    model.train()
    torch.manual_seed(5)
    theirs = torch.tensor([oracle.loss(model, case.rows) for _ in range(num_draws)], dtype=torch.float64)
    error = math.sqrt((ours.var() + theirs.var()) / num_draws)
    assert abs(ours.mean() - theirs.mean()) < 4 * error, (ours.mean(), theirs.mean(), error)
    assert 0.6 < ours.std() / theirs.std() < 1.6, (ours.std(), theirs.std())
    assert len(set(ours.tolist())) == num_draws, "steps repeat their masks"
    without = oracle.loss(model.eval(), case.rows)
    assert theirs.std() > 0.01 * without, "dropout has no effect on this case"
    for line in engine.events(tmp_path / "run", "eval"):
        assert line["loss"] == pytest.approx(without, rel=1e-6), "dropout must be off in evaluation"


def test_masks_do_not_depend_on_layout_or_recomputation(dropped, tmp_path):
    case, _ = dropped
    reference = engine.probe(profile_for(dropped, tmp_path / "run"), tmp_path)
    for changes in (dict(micro_batch_size=1), dict(micro_batch_size=3), dict(gradient_checkpointing="full"),
                    dict(gradient_checkpointing="cheap"), dict(gradient_checkpointing="gate_up")):
        facts, gradients = engine.probe(profile_for(dropped, tmp_path / "run", **changes), tmp_path)
        assert facts["loss"] == pytest.approx(reference[0]["loss"], rel=1e-6), changes
        errors = oracle.gradient_errors(gradients, reference[1])
        assert max(errors.values()) <= 1e-5, f"{changes}: {oracle.worst(errors)}"
    other_seed, _ = engine.probe(profile_for(dropped, tmp_path / "run", seed=43), tmp_path)
    assert other_seed["loss"] != pytest.approx(reference[0]["loss"], rel=1e-4)


def test_each_linear_drops_its_own_inputs_and_scales_the_rest(cases, tmp_path):
    """In a document of two tokens only the first feeds the loss, so a column of dA is zero where its input was dropped.

    B is made so small that the masks do not change what flows back: kept columns are 1 / (1 - p) of those without.
    """
    rate, case = 0.5, cases(6)
    adapter_dir = with_dropout(case.adapter_dir, tmp_path / "tiny_b", rate)
    from safetensors.torch import load_file, save_file
    tensors = load_file(case.adapter_dir / "adapter_model.safetensors")
    save_file({name: t * 1e-7 if "lora_B" in name else t for name, t in tensors.items()},
              adapter_dir / "adapter_model.safetensors", metadata={"format": "pt"})
    write_rows(tmp_path / "two.jsonl", [{"input_ids": [5, 9], "labels": [-100, 9]}])
    profile = engine.profile_for(case, tmp_path / "run", init_adapter=str(adapter_dir), lora_dropout=rate,
                                 datasets=[{"path": str(tmp_path / "two.jsonl"), "type": "pretokenized"}],
                                 micro_batch_size=1, global_batch_size=1)
    _, dropped = engine.probe(profile, tmp_path)
    _, exact = oracle.gradients(oracle.load_peft(case.model_dir, adapter_dir), [{"input_ids": [5, 9], "labels": [-100, 9]}])
    kept, total, masks = 0, 0, {}
    for name, gradient in dropped.items():
        if "lora_A" not in name or "q_proj" in name or "k_proj" in name:  # one key: no gradient through the softmax
            continue
        mask = gradient.abs().sum(0) != 0
        masks[name] = mask
        kept, total = kept + int(mask.sum()), total + len(mask)
        assert oracle.relative_error(gradient, exact[name] * mask / (1 - rate)) <= 1e-4, name
    assert abs(kept / total - (1 - rate)) < 4 * math.sqrt(rate * (1 - rate) / total)
    names = sorted(masks)
    for first in names:
        for second in names:
            assert first >= second or len(masks[first]) != len(masks[second]) or not torch.equal(
                masks[first], masks[second]), f"{first} and {second} drop the same inputs"
