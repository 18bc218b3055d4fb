"""init_adapter: what a PEFT folder may hold, and what the profile may say beside it."""

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from command import Setup, lora_train
from refusals import FORMAT, USAGE, assert_nothing_half_written, refused


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    setup = Setup(tmp_path_factory.mktemp("trained"))
    run = setup.train(max_steps=1)
    assert run.code == 0, run
    return setup.output_dir / "adapter"


@pytest.fixture
def adapter(setup, trained):
    """A good adapter folder, made by a short run on the same model."""
    folder = setup.folder / "good_adapter"
    shutil.copytree(trained, folder)
    for key in ("lora_r", "lora_alpha"):
        setup.profile.pop(key)
    setup.profile["init_adapter"] = str(folder)
    return folder


def change_adapter_config(folder, **changes):
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(dict(json.loads(path.read_text()), **changes)))


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_adapter_without_a_file(setup, adapter, name):
    (adapter / name).unlink()
    refused(setup, FORMAT, name)


def test_adapter_config_that_we_would_have_to_ignore(setup, adapter):
    change_adapter_config(adapter, use_dora=True)
    run = setup.train()
    assert run.code == FORMAT and "use_dora" in run.stderr, run
    assert_nothing_half_written(setup)


@pytest.mark.parametrize("key, value", [("lora_r", 7), ("lora_alpha", 9), ("use_rslora", True),
                                        ("rank_pattern", {"q_proj": 5}), ("alpha_pattern", {"q_proj": 5}),
                                        ("lora_target_modules", ["q_proj"])])
def test_profile_that_contradicts_the_adapter(setup, adapter, key, value):
    refused(setup, USAGE, key, "init_adapter", **{key: value})


def test_profile_that_made_the_adapter_goes_with_it(setup, adapter):
    """all-linear there, the seven names in adapter_config.json."""
    run = setup.train(lora_r=4, lora_alpha=8, lora_target_modules="all-linear", use_rslora=False)
    assert run.code == 0, run


def test_pattern_of_an_adapter_that_matches_nothing_is_warned_of(setup, adapter):
    change_adapter_config(adapter, alpha_pattern={"kproj": 2})
    run = setup.train()
    assert run.code == 0 and run.stderr.count('alpha_pattern: "kproj"') == 1, run


def test_truncated_adapter(setup, adapter):
    path = adapter / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:-8])
    refused(setup, FORMAT, path)


def test_non_finite_adapter(setup, adapter):
    tensors = load_file(adapter / "adapter_model.safetensors")
    name = sorted(tensors)[0]
    tensors[name] = np.full_like(tensors[name], np.nan)
    save_file(tensors, adapter / "adapter_model.safetensors")
    refused(setup, FORMAT, name)


def test_a_run_is_the_adapter_in_it(setup):
    assert setup.train(max_steps=1).code == 0
    first = setup.output_dir
    for key in ("lora_r", "lora_alpha"):
        setup.profile.pop(key)
    run = setup.train(init_adapter=str(first), output_dir=str(setup.folder / "second"), max_steps=1)
    assert run.code == 0, run
    assert f"init_adapter: {first / 'adapter'}" in (setup.folder / "second/profile.yaml").read_text()


def test_commands_that_answer_take_what_training_starts_from(setup):
    assert setup.train(max_steps=2, learning_rate=0.05).code == 0
    for key in ("lora_r", "lora_alpha"):
        setup.profile.pop(key)
    rows = [{"path": str(setup.rows_file), "type": "pretokenized"}]
    profile = setup.write_profile(init_adapter=str(setup.output_dir), output_dir=str(setup.folder / "later"), eval_datasets=rows)
    given, named, base = (lora_train("eval", "--profile", profile, "--json", *words)
                          for words in ([], ["--adapter", setup.output_dir], ["init_adapter=null"]))
    assert given.code == named.code == base.code == 0, (given, named, base)
    assert "which training starts from (init_adapter)" in given.stderr, given
    assert given.json_lines() == named.json_lines() != base.json_lines()


def test_a_checkpoint_that_is_none_says_what_it_is(setup):
    run = setup.train("--resume", setup.folder / "nope")
    assert run.code == FORMAT and "is not a good checkpoint" in run.stderr and "manifest.json: is missing" in run.stderr, run
    (setup.folder / "theirs").mkdir()
    run = setup.train("--resume", setup.folder / "theirs")
    assert run.code == FORMAT and "manifest.json: is missing" in run.stderr and "init_adapter" in run.stderr, run
