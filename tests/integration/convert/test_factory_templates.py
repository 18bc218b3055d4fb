"""LLaMA-Factory's templates and examples: the same here, or a line that says what differs.

LLaMA-Factory 0.9.5 writes a <think> block into every answer (ReasoningTemplate), and skips
chats whose turns do not alternate (converter.py).
"""

import json

import pytest
import yaml

from command import ROOT, lora_train

MODEL = ROOT / "examples/tiny-math/model"
USAGE = 2
ALPACA = ({}, [{"instruction": "a", "output": "b"}])
CHAT = ({"formatting": "sharegpt"}, [{"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}])


def convert(folder, template, *arguments, model=MODEL, data=ALPACA, **keys):
    entry, rows = data
    (folder / "data").mkdir(exist_ok=True)
    (folder / "data/d.json").write_text(json.dumps(rows))
    (folder / "data/dataset_info.json").write_text(json.dumps({"d": dict(entry, file_name="d.json")}))
    (folder / "theirs.yaml").write_text(yaml.safe_dump({"model_name_or_path": str(model), "stage": "sft", "finetuning_type": "lora", "dataset": "d",
                                                        "template": template, **keys}))
    run = lora_train("convert", "theirs.yaml", "--output", "my.yaml", "--overwrite", "--json", *arguments, cwd=folder)
    return run, json.loads(run.stdout)


@pytest.mark.parametrize("template", ["default", "alpaca", "mistral", "vicuna", "empty"])
def test_a_template_that_is_not_built_in_says_what_to_set(template, tmp_path):
    run, result = convert(tmp_path, template)
    assert run.code == USAGE and f"{template} is not supported. Use the model's own (chat_template: tokenizer), or write a .jinja file" in result["refused"]["template"], run


def test_where_the_think_blocks_of_qwen3_are_is_said(tmp_path):
    for data, keys, is_said in ((CHAT, {}, True), (ALPACA, {}, False), (CHAT, {"mask_history": True}, False)):
        run, result = convert(tmp_path, "qwen3", data=data, **keys)
        assert run.code == 0 and any("only the last answer has a <think> block" in note for note in result["notes"]) == is_said, run
    for value in (False, None):
        run, result = convert(tmp_path, "qwen3", enable_thinking=value)
        assert run.code == USAGE and "enable_thinking" in result["refused"], run


def test_white_space_that_a_template_trims_is_said(tmp_path):
    for template, is_said in (("llama3", True), ("gemma", True), ("chatml", False)):
        run, result = convert(tmp_path, template)
        assert any("white space at both ends" in note for note in result["notes"]) == is_said, run


def test_what_becomes_of_examples_that_llama_factory_skips_is_said(tmp_path):
    for data, is_said in ((CHAT, True), (ALPACA, False)):
        run, result = convert(tmp_path, "qwen", data=data)
        assert any(note.startswith("dataset: LLaMA-Factory skips chats") and "on_bad_row: drop" in note for note in result["notes"]) == is_said, run


def test_a_misspelt_template_is_named_and_a_known_one_is_not_built(tmp_path):
    run, result = convert(tmp_path, "qwn")
    assert run.code == USAGE and "qwn is not a LLaMA-Factory template. Did you mean \"qwen\" or \"qwen3\"?" in result["refused"]["template"], run
    run, result = convert(tmp_path, "llama4")
    assert "llama4 is not supported." in result["refused"]["template"] and "Did you mean" not in result["refused"]["template"], run


def test_how_long_examples_are_cut_is_said_truly(tmp_path):
    run, result = convert(tmp_path, "qwen", cutoff_len=32)
    assert "cuts each prompt and answer in proportion" in run.stderr + json.dumps(result["defaults"]), run
    rows = [{"prompt": "1 + 1 = " * 40, "completion": "2"}] + [{"prompt": "1 + 1 = ", "completion": "2"}] * 3
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for overlength in ("truncate", "drop"):
        run = lora_train("tokenize", f"model={MODEL}", "datasets=[rows.jsonl]", "max_seq_len=32", f"overlength={overlength}", "max_drop_fraction=0.1",
                         "dataset_prepared_path=null", cwd=tmp_path)
        assert run.code and "Fix the examples, raise max_seq_len, or raise max_drop_fraction" in run.stderr, run


def test_what_llama_factory_would_refuse_is_named(tmp_path):
    run, result = convert(tmp_path, "qwen", train_on_prompt=True, mask_history=True)
    assert run.code == USAGE and "which LLaMA-Factory refuses" in result["refused"]["mask_history"], run


def test_a_dataset_that_is_not_here_is_said(tmp_path):
    convert(tmp_path, "qwen")
    (tmp_path / "data/d.json").unlink()
    run = lora_train("convert", "theirs.yaml", "--json", cwd=tmp_path)
    assert run.code == 0 and "dataset: d is data/d.json, which was not found" in run.stderr + run.stdout, run


EXPORT = "model_name_or_path: m\ntemplate: qwen\nfinetuning_type: lora\nexport_dir: out\n"


@pytest.mark.parametrize("given", ["a, b", "[a, b]"])
def test_several_adapters_are_merged_one_after_the_other(given, tmp_path):
    text = EXPORT + f"adapter_name_or_path: {given}\n"
    (tmp_path / "merge.yaml").write_text(text)
    lines = ("lora-train merge --model m --adapter a --output-dir out-1 && lora-train merge --model out-1 --adapter b --output-dir out")
    run = lora_train("convert", "merge.yaml", "--from", "llamafactory", cwd=tmp_path)
    assert run.code == USAGE and f"to merge: {lines}." in run.stderr, run
    run = lora_train("export", "merge.yaml", cwd=tmp_path)
    assert run.code == USAGE and lines in run.stderr, run
