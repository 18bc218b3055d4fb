"""Examples of Axolotl: the names of their parts, and what is refused because it has words of its own around prompt and answer."""

import json
import shutil

import pytest
import yaml

from command import ROOT, lora_train

MODEL = ROOT / "examples/tiny-math/model"
USAGE = 2
ROWS = [{"instruction": "Add 1 and 2.", "input": "", "output": "3"}, {"instruction": "Add them.", "input": "4 and 5", "output": "It's 9."}]


def convert(folder, entry, rows, *arguments, **keys):
    if rows is not None:
        (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    file = folder / "axolotl.yml"
    entries = entry if isinstance(entry, list) else [{"path": "rows.jsonl", **entry}]
    file.write_text(yaml.safe_dump({"base_model": str(MODEL), "adapter": "lora", "lora_r": 4, "lora_target_linear": True, "datasets": entries, **keys}))
    return lora_train("convert", file, *arguments, cwd=folder)


def shown(folder, count, *settings):
    run = lora_train("tokenize", "my.yaml", "--show", count, "--json", "max_seq_len=512", "dataset_prepared_path=null", *settings, cwd=folder)
    assert run.code == 0 and "not_rendered" not in run.stderr, run
    return run.json_lines()


@pytest.mark.parametrize("type_", ["alpaca", "alpaca:chatml", "gpteacher", "alpaca_w_system.load_instruct"])
def test_instructions_keep_their_columns_and_ask_for_the_words(type_, tmp_path):
    run = convert(tmp_path, {"type": type_}, ROWS, "--json")
    refused = json.loads(run.stdout)["refused"]
    assert run.code == USAGE and list(refused) == ["datasets[0].type"], run
    assert "Set by hand: a .jinja file with these words as chat_template" in refused["datasets[0].type"], run
    run = convert(tmp_path, {"type": type_}, ROWS, "--allow-refused", "datasets[0].type")
    expected = {"path": "rows.jsonl", "type": "alpaca", **({"field_map": {"output": "response"}} if type_ == "gpteacher" else {})}
    assert run.code == 0 and yaml.safe_load(run.stdout)["datasets"] == [expected], run


@pytest.mark.parametrize("type_", [{"format": "Q: {instruction}\n", "no_input_format": "Q: {instruction}\n"}, {"format": "{instruction}"},
                                   {"format": "{instruction}", "no_input_format": "{instruction}", "system_prompt": "p"}])
def test_a_format_of_the_file_is_left_out(type_, tmp_path):
    run = convert(tmp_path, {"type": type_}, ROWS, "--output", "my.yaml")
    assert run.code == USAGE and "datasets[0].type" in run.stderr and "a format of its own" in run.stderr and "is left out" in run.stderr, run
    assert not (tmp_path / "my.yaml").exists()


@pytest.mark.parametrize("keys", [("role", "content"), ("from", "value")])
def test_axolotl_s_default_names_of_speakers(keys, tmp_path):
    who, what = keys
    rows = [{"messages": [{who: speaker, what: text} for speaker, text in turns]} for turns in
            ([("human", "1 + 1"), ("gpt", "2")], [("system", "s"), ("user", "1 + 1"), ("assistant", "2")])]
    run = convert(tmp_path, {"type": "chat_template", "message_property_mappings": {"role": who, "content": what}}, rows, "--output", "my.yaml")
    assert run.code == 0, run
    assert all("<|im_start|>assistant\n2<|im_end|>" in line["text"] and "<|im_start|>user\n1 + 1" in line["text"] for line in shown(tmp_path, 2))
    assert lora_train("convert", "axolotl.yml", "datasets[0].path=org/name", cwd=tmp_path).code == 0  # examples that nobody sees


def test_tokens_are_found_as_they_are_written(tmp_path):
    model = tmp_path / "model"
    shutil.copytree(MODEL, model)
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    tokenizer["normalizer"] = {"type": "Prepend", "prepend": "\u2581"}
    (model / "tokenizer.json").write_text(json.dumps(tokenizer))
    rows = [{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b<conf>"}]}]
    run = convert(tmp_path, {"type": "chat_template"}, rows, "--output", "my.yaml", base_model=str(model), tokens=["<conf>"])
    assert run.code == 0 and yaml.safe_load((tmp_path / "my.yaml").read_text())["add_tokens"] == [{"token": "<conf>", "normalized": False}], run
    new = max([token["id"] for token in tokenizer["added_tokens"]] + list(tokenizer["model"]["vocab"].values())) + 1
    assert new in shown(tmp_path, 1)[0]["input_ids"]
    assert new not in shown(tmp_path, 1, "add_tokens=[<conf>]")[0]["input_ids"]
    (tmp_path / "mine.yaml").write_text("model: m\ndatasets: [d]\ntokens: [<conf>]\n")
    run = lora_train("check", "--no-files", "mine.yaml", cwd=tmp_path)
    assert run.code == 0 and "normalized: false" in run.stdout, run


def test_a_column_system_beside_messages_is_their_first_turn(tmp_path):
    rows = [{"system": "You are a pirate.", "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ahoy"}]}]
    for name, more in (("system", {}), ("sys", {"field_system": "sys"})):
        columns = [{name: row["system"], "messages": row["messages"]} for row in rows]
        done = convert(tmp_path, {"type": "chat_template", **more}, columns, "--output", tmp_path / "my.yaml", "--overwrite", chat_template="chatml")
        assert done.code == 0, done
        assert "<|im_start|>system\nYou are a pirate.<|im_end|>" in shown(tmp_path, 1)[0]["text"], done


def test_what_axolotl_s_keys_mean_otherwise_is_said(tmp_path):
    rows = [{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ahoy"}]}]
    done = convert(tmp_path, {"type": "chat_template"}, rows, chat_template="chatml", train_on_inputs=True, shuffle_merged_datasets=False)
    assert done.code == 0 and "around the messages are also trained here" in done.stderr, done
    assert yaml.safe_load(done.stdout).get("shuffle", True) is True and "curriculum_sampling" in done.stderr, done


def test_columns_that_axolotl_does_not_read_are_not_read(tmp_path):
    rows = [ROWS[0]] * 30 + [dict(ROWS[1], system="You are a pirate."), dict(ROWS[1], history=[["a", "b"]])]
    for type_, unread in (("alpaca", ["system", "history"]), ("alpaca_w_system", ["history"])):
        run = convert(tmp_path, {"type": type_}, rows, "--allow-refused")
        assert yaml.safe_load(run.stdout)["datasets"][0]["field_map"] == dict.fromkeys(unread), run
