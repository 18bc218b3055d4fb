"""What users of Axolotl, TRL and LLaMA-Factory try in their first hour. What is said of their files and keys is in tests/unit/convert/tables."""

import pytest

from command import lora_train

USAGE = 2


@pytest.mark.parametrize("command", ["train", "check", "tokenize"])
def test_a_file_of_another_tool_says_how_it_becomes_a_profile(command, tmp_path):
    (tmp_path / "theirs.yaml").write_text("base_model: m\nsample_packing: true\nrl: dpo\nlora_rnk: 8\n")
    run = lora_train(command, "theirs.yaml", cwd=tmp_path)
    assert run.code == USAGE and run.stderr.count("convert") == 1 and "run `lora-train convert theirs.yaml`." in run.stderr, run
    assert "theirs.yaml:4: lora_rnk: unknown key" in run.stderr and run.stdout == "", run


def test_trl_s_dpo_file_trains_on_the_chosen_answers(tmp_path):
    (tmp_path / "pairs.jsonl").write_text('{"prompt": "a", "chosen": "b", "rejected": "c"}\n')
    (tmp_path / "f.yaml").write_text("model_name_or_path: m\ndataset_name: pairs.jsonl\nuse_peft: true\nbeta: 0.1\n")
    run = lora_train("dpo", "--config", "f.yaml", cwd=tmp_path)
    line = "lora-train convert f.yaml --allow-refused --output my.yaml"
    assert run.code == USAGE and line in run.stderr, run
    assert lora_train(*line.split()[1:], cwd=tmp_path).code == 0
    run = lora_train("check", "--no-files", "my.yaml", cwd=tmp_path)
    assert run.code == 0 and "completion: chosen" in run.stdout and "loss_on: completion" in run.stdout, run
