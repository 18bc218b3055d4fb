"""A fresh adapter: PEFT's targets and ranks, and the gradients it starts with."""

import pytest
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file

import engine
import oracle

SETTINGS = {
    "all-linear": dict(lora_r=8, lora_alpha=16, lora_target_modules="all-linear"),
    "list, rsLoRA": dict(lora_r=4, lora_alpha=4, lora_target_modules=["q_proj", "o_proj", "up_proj"], use_rslora=True),
    "regex, patterns": dict(lora_r=4, lora_alpha=8, rank_pattern={"k_proj": 2, r"layers.0.*up_proj": 6},
                            lora_target_modules=r"model\.layers\.\d+\.(self_attn\.(q|k)|mlp\.up)_proj",
                            alpha_pattern={"layers.1.self_attn.q_proj": 3}),
    # Each second pattern also matches what the first one does: sorted, as JSON libraries like to write them, they would
    # swap places and give k of layer 1 another rank and q of layer 1 another scale.
    "overlapping patterns": dict(lora_r=4, lora_alpha=8, lora_target_modules=["q_proj", "k_proj"],
                                 rank_pattern={"k_proj": 2, r"layers.1.self_attn.(q|k)_proj": 3},
                                 alpha_pattern={"q_proj": 5, r"layers.1.self_attn.(q|k)_proj": 11}),
}


def peft_config(settings):
    return LoraConfig(r=settings["lora_r"], lora_alpha=settings["lora_alpha"], task_type="CAUSAL_LM",
                      target_modules=settings["lora_target_modules"], use_rslora=settings.get("use_rslora", False),
                      rank_pattern=settings.get("rank_pattern", {}), alpha_pattern=settings.get("alpha_pattern", {}))


@pytest.mark.parametrize("name", SETTINGS)
def test_targets_and_step_1_are_those_of_peft(cases, tmp_path, name):
    case, settings = cases(6 if name == "all-linear" else 7), SETTINGS[name]
    profile = engine.profile_for(case, tmp_path / "run", init_adapter="unset", seed=3, learning_rate=1e-30, **settings)
    engine.train(profile, tmp_path)
    saved = load_file(tmp_path / "run/adapter/adapter_model.safetensors")
    wanted = oracle.trainable(get_peft_model(oracle.load_base(case.model_dir), peft_config(settings)))
    assert {key: t.shape for key, t in saved.items()} == {key: p.shape for key, p in wanted.items()}

    facts, gradients = engine.probe(profile, tmp_path)
    loss, reference = oracle.gradients(oracle.load_peft(case.model_dir, tmp_path / "run/adapter"), case.rows)
    assert facts["loss"] == pytest.approx(loss, rel=1e-6)
    for key, gradient in reference.items():
        if "lora_A" in key:  # B is zero, but for one step at a rate of 1e-30
            assert gradient.abs().max() < 1e-20 and gradients[key].abs().max() < 1e-20, key
        else:
            assert oracle.relative_error(gradients[key], gradient) <= 1e-5, key
