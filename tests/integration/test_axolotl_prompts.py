"""Examples of Axolotl with words of its own around prompt and answer: the same text, and the same trained tokens.

Axolotl 0.19 tokenises prompt and answer apart (InstructionPromptTokenizingStrategy): BOS where the tokenizer adds one, the prompt, the
answer, and the end token; only the answer and the end token are trained.
"""

import json
import shutil

import pytest
import yaml

from conftest import ROOT, lora_train

MODEL = ROOT / "examples/tiny-math/model"
USAGE = 2
TASK = "Below is an instruction that describes a task{}. Write a response that appropriately completes the request."
CONTEXT = ", paired with an input that provides further context"

ROWS = [{"instruction": "Add 1 and 2.", "input": "", "output": "3"}, {"instruction": "Add them.", "input": "4 and 5", "output": "It's 9."},
        {"instruction": "Add the {numbers}: 'a' \\ b", "input": "6\n7", "output": "13\n"}]


def convert(folder, entry, rows, *arguments, **keys):
    if rows is not None:
        (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    file = folder / "axolotl.yml"
    entries = entry if isinstance(entry, list) else [{"path": "rows.jsonl", **entry}]
    file.write_text(yaml.safe_dump({"base_model": str(MODEL), "adapter": "lora", "lora_r": 4, "lora_target_linear": True, "datasets": entries, **keys}))
    return lora_train("convert", file, *arguments, cwd=folder)


def ids_of(text, model=MODEL):
    return lora_train("tokenize", "--model", model, "--text", text, "--json").json_lines()[0]["input_ids"]


def shown(folder, count, *settings):
    run = lora_train("tokenize", "my.yaml", "--show", count, "--json", "max_seq_len=512", "dataset_prepared_path=null", *settings, cwd=folder)
    assert run.code == 0 and "not_rendered" not in run.stderr, run
    return run.json_lines()


def assert_tokens_are_axolotl_s(folder, prompts, answers, model=MODEL, bos=()):
    [end] = ids_of("<|im_end|>")
    lines = shown(folder, len(prompts))
    assert len(lines) == len(prompts) > 0
    for line, prompt, answer in zip(lines, prompts, answers):
        before, behind = [*bos, *ids_of(prompt, model)], [*ids_of(answer, model), end]
        assert line["input_ids"] == before + behind, (line["text"], prompt + answer)
        assert line["labels"] == [-100] * len(before) + behind, line


def alpaca(row):
    task, words = TASK.format(CONTEXT if row.get("input") else ""), "### Instruction:\n{instruction}\n\n"
    if row.get("input"):
        words += "### Input:\n{input}\n\n"
    return task + "\n\n" + words.format(**row) + "### Response:\n"


def test_alpaca_has_axolotl_s_text_and_trained_tokens(tmp_path):
    run = convert(tmp_path, {"type": "alpaca"}, ROWS, "-o", "my.yaml", val_set_size=0, chat_template="chatml")
    assert run.code == 0 and "the chat template of the run" in run.stderr and "no example uses it" in run.stderr, run
    profile = yaml.safe_load((tmp_path / "my.yaml").read_text())
    assert profile["datasets"] == [{"path": "rows.jsonl", "type": "alpaca"}] and profile["chat_template"] == "my.jinja", profile
    assert_tokens_are_axolotl_s(tmp_path, [alpaca(row) for row in ROWS], [row["output"] for row in ROWS])
    assert lora_train("check", "my.yaml", cwd=tmp_path).code == 0
    jinja2 = pytest.importorskip("jinja2")  # what reads the result, too
    template = jinja2.Environment(trim_blocks=True, lstrip_blocks=True).from_string((tmp_path / "my.jinja").read_text())
    for row in ROWS:
        question = {"role": "user", "content": row["instruction"] + ("\n" + row["input"] if row["input"] else ""), "input": row["input"]}
        chat = [question, {"role": "assistant", "content": row["output"]}]
        assert template.render(messages=chat, eos_token="</s>") == alpaca(row) + row["output"] + "</s>"


def test_other_names_of_prompts_have_their_own_words(tmp_path):
    task = TASK.format("")
    for type_, rows, prompts in (
            ("alpaca:chatml", ROWS[:1], [f"<|im_start|>system\n{task}<|im_end|>\n<|im_start|>user\nAdd 1 and 2.<|im_end|>\n<|im_start|>assistant\n"]),
            ("alpaca_w_system.load_instruct", [dict(ROWS[0], system="Be brief.")], ["Be brief.\n\n### Instruction:\nAdd 1 and 2.\n\n### Response:\n"]),
            ("gpteacher", [{"instruction": "Add 1 and 2.", "input": "", "response": "3"}], [alpaca(ROWS[0])])):
        run = convert(tmp_path, {"type": type_}, rows, "--output", "my.yaml", "--overwrite")
        assert run.code == 0, run
        assert_tokens_are_axolotl_s(tmp_path, prompts, ["3"])


def test_a_format_of_the_file_is_written(tmp_path):
    rows = [{"q": "Who's {there}?", "more": "", "a": "Me"}, {"q": "Q", "more": "a\\n", "a": "B"}]
    own = {"field_instruction": "q", "field_input": "more", "field_output": "a", "format": "[{{Q}}] {instruction} | {input}\n'A':\n",
           "no_input_format": "[{{Q}}] {instruction}\n'A':\n", "system_prompt": "It's\nbrief.", "system_format": "<<{system}>>\n"}
    run = convert(tmp_path, {"type": own}, rows, "--output", "my.yaml")
    assert run.code == 0, run
    prompts = [f"<<It's\nbrief.>>\n[{{Q}}] {row['q']}{' | ' + row['more'] if row['more'] else ''}\n'A':\n" for row in rows]
    assert_tokens_are_axolotl_s(tmp_path, prompts, ["Me", "B"])


def test_bos_stands_where_the_tokenizer_adds_it(tmp_path):
    model = tmp_path / "model"
    shutil.copytree(MODEL, model)
    config = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps(dict(config, add_bos_token=True, bos_token="<|im_start|>")))
    run = convert(tmp_path, {"type": "alpaca"}, ROWS[:1], "--output", "my.yaml", base_model=str(model))
    assert run.code == 0, run
    assert_tokens_are_axolotl_s(tmp_path, [alpaca(ROWS[0])], ["3"], model, bos=ids_of("<|im_start|>"))


@pytest.mark.parametrize("type_, row, said", [
    ("alpaca:chat", {}, 'ends its prompt with "ASSISTANT:"'),
    ({"format": "[INST] {instruction} [/INST]", "no_input_format": "{instruction}\n"}, {}, 'ends its prompt with "[INST] {instruction} [/INST]"'),
    ({"format": "{instruction} {inputs}\n", "no_input_format": "{instruction}\n"}, {}, "; only {instruction} and {input} are placeholders there"),
    ({"format": "{instruction}{\n", "no_input_format": "{instruction}\n"}, {}, 'format is "{instruction}{'),
    ({"format": "{instruction}\n", "no_input_format": "{input}\n"}, {}, "no_input_format is"),
    ({"format": "{instruction}\n", "no_input_format": "{instruction}\n", "system_prompt": "p"}, {"system": ""}, "instead of system_prompt")])
def test_what_would_be_other_tokens_is_left_out(type_, row, said, tmp_path):
    run = convert(tmp_path, {"type": type_}, [dict(ROWS[0], **row)], "--output", "my.yaml")
    assert run.code == USAGE and "datasets[0].type" in run.stderr and said in run.stderr and "is left out" in run.stderr, run
    assert not (tmp_path / "my.yaml").exists()


def test_the_tokenizer_decides(tmp_path):
    for name, code in (("org/Qwen2.5-7B", 0), ("org/Llama-3.1-8B", 0), ("org/Mistral-7B-v0.1", USAGE)):
        run = convert(tmp_path, {"type": "alpaca"}, ROWS[:1], "--output", "my.yaml", "--overwrite", base_model=name)
        assert run.code == code, run
        assert ("needs the tokenizer of org/Mistral-7B-v0.1" if code else "is guessed from the model's name") in run.stderr, run
        if not code:
            assert ("bos_token" in (tmp_path / "my.jinja").read_text()) == ("Llama" in name)


def test_one_run_has_one_template(tmp_path):
    chat = {"path": "chat.jsonl", "type": "chat_template"}
    run = convert(tmp_path, [{"path": "rows.jsonl", "type": "alpaca"}, chat], ROWS, "--output", "my.yaml")
    assert run.code == USAGE and "datasets[1] has a chat template" in run.stderr, run
    other = {"format": "Q: {instruction}\n", "no_input_format": "Q: {instruction}\n"}
    run = convert(tmp_path, [{"path": "rows.jsonl", "type": "alpaca"}, {"path": "rows.jsonl", "type": other}], ROWS, "--output", "my.yaml")
    assert run.code == USAGE and "datasets[1].type" in run.stderr and "this is the second" in run.stderr, run
    run = convert(tmp_path, {"type": "alpaca"}, ROWS)
    assert run.code == USAGE and "convert with --output FILE" in run.stderr, run


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
    rows = [ROWS[0]] * 30 + [dict(ROWS[1], system="You are a pirate."), dict(ROWS[2], history=[["a", "b"]])]
    for type_, more, unread in (("alpaca", {}, ["system", "history"]), ("gpteacher", {"response": "3"}, ["system", "history"]),
                                ({"format": "{instruction} {input}\n", "no_input_format": "{instruction}\n"}, {}, ["history"])):
        run = convert(tmp_path, {"type": type_}, [dict(row, **more) for row in rows], "--output", "my.yaml", "--overwrite")
        assert run.code == 0, run
        field_map = yaml.safe_load((tmp_path / "my.yaml").read_text())["datasets"][0]["field_map"]
        assert [name for name in ("system", "history") if name in field_map and field_map[name] is None] == unread, run
    run = convert(tmp_path, {"type": "alpaca"}, rows, "--output", "my.yaml", "--overwrite")
    assert_tokens_are_axolotl_s(tmp_path, [alpaca(row) for row in rows], [row["output"] for row in rows])


@pytest.mark.parametrize("model, type_, advice", [
    (None, {"format": "Q: {instruction} A:", "no_input_format": "Q: {instruction} A:"}, "End the format with a line feed; or use type: chat_template"),
    ("org/unknown", {"format": "{instruction} A:", "no_input_format": "{instruction} A:"}, "where the model's tokenizer cuts (download the model"),
    (None, "alpaca:chat", "To train it, use type: chat_template")])
def test_a_format_that_ends_without_a_line_feed_has_advice(model, type_, advice, tmp_path):
    run = convert(tmp_path, {"type": type_}, ROWS[:1], "--output", "my.yaml", **({"base_model": model} if model else {}))
    assert run.code == USAGE and advice in run.stderr, run
    if model is None and isinstance(type_, dict):
        ended = {name: text + "\n" for name, text in type_.items()}
        assert convert(tmp_path, {"type": ended}, ROWS[:1], "--output", "my.yaml").code == 0


def test_without_output_only_that_is_said(tmp_path):
    for more in ([], ["--allow-refused"]):
        run = convert(tmp_path, {"type": "alpaca"}, ROWS, *more)
        assert run.code == USAGE and run.stdout == "" and "lora-train convert" in run.stderr and "--output my.yaml" in run.stderr, run
        assert "no dataset is left" not in run.stderr and "is left out" not in run.stderr and "refused" not in run.stderr, run
    run = convert(tmp_path, {"type": "alpaca"}, ROWS, "--json", chat_template="chatml")
    assert json.loads(run.stdout)["profile"]["datasets"] and list(json.loads(run.stdout)["refused"]) == ["datasets[0].type"], run
    run = convert(tmp_path, {"type": "alpaca"}, ROWS, rl="dpo")
    assert "1 key is refused" in run.stderr and "--output my.yaml" in run.stderr, run
