"""What users of Axolotl, TRL and LLaMA-Factory try in their first hour: their files, or single keys of them in a profile."""

import json

import pytest

from conftest import lora_train

USAGE = 2


def convert(folder, text, *arguments, name="theirs.yaml"):
    (folder / name).write_text(text)
    return lora_train("convert", name, *arguments, cwd=folder)


def check(folder, text):
    (folder / "mine.yaml").write_text(text)
    return lora_train("check", "--no-files", "mine.yaml", cwd=folder)


AXOLOTL = "base_model: m\nadapter: lora\nlora_r: 8\nlora_alpha: 16\nlora_target_linear: true\n"
CHAT = "type: chat_template"


@pytest.mark.parametrize("datasets", [
    f"datasets:\n- {{path: a.jsonl, {CHAT}, chat_template: chatml}}\n- {{path: b.jsonl, {CHAT}}}\n",
    f"datasets:\n- {{path: b.jsonl, {CHAT}}}\n- {{path: a.jsonl, {CHAT}, chat_template: chatml}}\n",
    f"datasets: [{{path: a.jsonl, {CHAT}, chat_template: chatml}}]\ntest_datasets: [{{path: b.jsonl, {CHAT}}}]\n"])
def test_a_template_of_some_datasets_is_not_that_of_all(datasets, tmp_path):
    run = convert(tmp_path, AXOLOTL + datasets)
    assert run.code == USAGE and "A run has one template for all data" in run.stderr, run
    assert "datasets[" in run.stderr and "names none" in run.stderr, run


def test_a_template_that_all_datasets_name_is_the_run_s(tmp_path):
    entries = "".join(f"- {{path: {name}.jsonl, {CHAT}, chat_template: chatml}}\n" for name in "ab")
    for more in ("", "- {path: c.txt, type: completion}\n"):
        run = convert(tmp_path, AXOLOTL + "datasets:\n" + entries + more)
        assert run.code == 0 and "chat_template: chatml" in run.stdout, run


def test_trl_s_false_for_assistant_only_loss_is_no_default(tmp_path):
    run = check(tmp_path, "model: m\ndatasets: [d.jsonl]\nassistant_only_loss: false\n")
    assert run.code == USAGE and "mine.yaml:3: assistant_only_loss: " in run.stderr and "loss_on: all" in run.stderr, run
    assert check(tmp_path, "model: m\ndatasets: [d.jsonl]\nassistant_only_loss: true\n").code == 0


@pytest.mark.parametrize("row, loss_on", [({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}, "all"),
                                          ({"prompt": "a", "completion": "b"}, "completion")])
def test_completion_only_loss_says_nothing_of_chats(row, loss_on, tmp_path):
    (tmp_path / "d.jsonl").write_text(json.dumps(row) + "\n")
    run = convert(tmp_path, "model_name_or_path: m\ndataset_name: d.jsonl\nuse_peft: true\ncompletion_only_loss: true\nassistant_only_loss: false\n")
    assert run.code == 0 and f"\nloss_on: {loss_on}" in run.stdout, run
