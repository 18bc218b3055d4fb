"""init_adapter: what the profile may say beside it. What a PEFT folder may hold: adapter_file_test, malformed_adapter_test."""

import json
import shutil

import pytest

from command import Setup, lora_train
from refusals import USAGE, refused


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    setup = Setup(tmp_path_factory.mktemp("trained"))
    setup.good_run(max_steps=1)
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


@pytest.mark.parametrize("key, value", [("lora_r", 7), ("lora_alpha", 9), ("use_rslora", True),
                                        ("rank_pattern", {"q_proj": 5}), ("alpha_pattern", {"q_proj": 5}),
                                        ("lora_target_modules", ["q_proj"])])
def test_profile_that_contradicts_the_adapter(setup, adapter, key, value):
    refused(setup, USAGE, key, "init_adapter", **{key: value})


def test_profile_that_made_the_adapter_goes_with_it(setup, adapter):
    """all-linear there, the seven names in adapter_config.json."""
    setup.good_run(lora_r=4, lora_alpha=8, lora_target_modules="all-linear", use_rslora=False)
    change_adapter_config(adapter, alpha_pattern={"kproj": 2})
    run = setup.train("--overwrite")
    assert run.code == 0 and run.stderr.count('alpha_pattern: "kproj"') == 1, run


def test_commands_that_answer_take_what_training_starts_from(setup):
    """A run is the adapter in it."""
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
    run = lora_train("train", "--profile", profile)
    assert run.code == 0 and f"init_adapter: {setup.output_dir / 'adapter'}" in (setup.folder / "later/profile.yaml").read_text(), run
