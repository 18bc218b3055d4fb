"""Rows as people publish them give the text that transformers renders of what they mean."""

import copy
import importlib.util
import json
import shutil
from pathlib import Path

import chat_oracle
import pytest
import transformers
from command import good_run

FIELD = chat_oracle.DATA / "field"
FILES = ["qwen2.5/chat_template.jinja", "qwen3/chat_template.jinja", "mistral/v3/chat_template.jinja", "field/09-content-parts/template.jinja"]
TRL = ["deepseekv3", "gemma3", "glm4moe", "llama3", "llama3_1", "qwen2_5_vl", "qwen3_5_think", "qwen3_6", "qwen3_8"]
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
USER, TOOL = {"role": "user", "content": "How warm is it in Ulm?"}, {"role": "tool", "tool_call_id": "call12345", "name": "get_temp", "content": "12"}
ANSWER = {"role": "assistant", "content": "12 degrees."}


def source_of(name):
    if name in TRL:
        trl = importlib.util.find_spec("trl")  # found, not imported
        return (Path(trl.submodule_search_locations[0]) / "chat_templates" / f"{name}.jinja").read_text(encoding="utf-8")
    path = chat_oracle.DATA / name
    if not path.exists():
        pytest.skip(f"no {name}; set LORA_TRAIN_TEST_DATA to the test data's folder")
    return path.read_text(encoding="utf-8")


def rows_of(name):
    path = FIELD / name
    if not path.exists():
        pytest.skip(f"no {path}; set LORA_TRAIN_TEST_DATA to the test data's folder")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def template(ours, tmp_path):
    """template(name) sets the template of lora-train and returns transformers' (text, or None where it refuses the row)."""
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(TOKENS))

    def use(name):
        source = source_of(name)
        assert ours.set_template(source, tmp_path) == {}

        def render(row):
            dialogue = {"messages": row["messages"], "tools": row.get("tools"), "add_generation_prompt": False}
            texts = chat_oracle.render_with_transformers(source, dialogue, TOKENS)
            return texts[0] if len(texts) > 1 else None
        return render
    return use


def call(arguments):
    return {"role": "assistant", "content": "", "tool_calls": [{"id": "call12345", "type": "function", "function": {"name": "get_temp", "arguments": arguments}}]}


def with_arguments(row, change):
    row = copy.deepcopy(row)
    for message in row["messages"]:
        for entry in message.get("tool_calls") or []:
            function = entry.get("function", entry)
            function["arguments"] = change(function["arguments"])
    return row


def without_nulls(value):
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


OWN_ARGUMENTS = [{"messages": [USER, call('{"a": {"b": [1, null]}, "c": "\\u00e9", "d": 1e3}'), TOOL, ANSWER]},
                 {"messages": [USER, {**call('{"a": null}'), "content": None}, TOOL, call({"x": 1}), TOOL, ANSWER]}]


@pytest.mark.parametrize("name", FILES[:3] + TRL)
def test_arguments_that_are_text_are_objects_as_servers_decode_them(name, template, ours):
    """DeepSeek's template takes only text: there they stay."""
    render = template(name)
    for row in rows_of("02-tool-arguments-as-string/rows.jsonl") + OWN_ARGUMENTS:
        decoded = without_nulls({"messages": [{k: v for k, v in m.items() if k != "tool_calls"} for m in row["messages"]]})
        for message, given in zip(decoded["messages"], with_arguments(row, lambda a: json.loads(a) if isinstance(a, str) else a)["messages"]):
            if "tool_calls" in given:
                message["tool_calls"] = given["tool_calls"]
        decoded["tools"] = row.get("tools")
        text = render(decoded)
        got = ours.ask({"row": json.dumps(row)})
        if name == "deepseekv3":
            assert text is None and got.get("decoded_arguments", False) is False
            assert got.get("text") == render(without_nulls(row))
        else:
            assert (got.get("text"), got.get("decoded_arguments")) == (text, text is not None or None), (row, got)


@pytest.mark.parametrize("arguments", ["Ulm", "[1]", '{"a": 1', '{"a": 1, "a": 2}'])
def test_arguments_that_are_no_object_refuse_the_row(arguments, template, ours):
    template("qwen3/chat_template.jinja")
    got = ours.ask({"row": json.dumps({"messages": [USER, call(arguments), TOOL, ANSWER]})})
    assert got["error"] == "data" and "messages[1].tool_calls[0].arguments" in got["message"], got


def test_a_template_that_prints_arguments_as_they_are_gets_text(ours):
    assert ours.set_template("{% for m in messages %}{{ m.content }}{{ m.tool_calls[0].function.arguments if m.tool_calls }};{% endfor %}", None) == {}
    assert ours.ask({"row": json.dumps({"messages": [USER, call('{"a": 1}'), TOOL, ANSWER]})})["text"].split(";")[1] == '{"a": 1}'


def test_blank_arguments_are_none(template, ours):
    render = template("qwen2.5/chat_template.jinja")
    assert ours.ask({"row": json.dumps({"messages": [USER, call(" "), TOOL, ANSWER]})})["text"] == render({"messages": [USER, call({}), TOOL, ANSWER]})


NULLS = [{"messages": [{**USER, "name": None}, {**call({"city": "Ulm", "at": {"x": None, "y": [{"z": None}]}}), "content": None}, {**TOOL, "tool_calls": None}, ANSWER]},
         {"messages": [{**USER, "tool_calls": None, "reasoning_content": None}, {**ANSWER, "tool_calls": None, "reasoning_content": None}],
          "tools": [{"type": "function", "function": {"name": "f", "description": None, "parameters": {"type": "object", "properties": {"a": {"type": "string", "enum": None}, "b": None}}}}]}]


@pytest.mark.parametrize("name", FILES[:3] + TRL)
def test_null_padding_never_reaches_the_text(name, template, ours):
    render = template(name)
    for row in rows_of("03-arrow-null-padding/rows.jsonl") + rows_of("03-arrow-null-padding/null_keys.jsonl") + NULLS:
        text = render(without_nulls(row))
        got = ours.ask({"row": json.dumps(row)})
        assert got.get("text") == text and got.get("dropped_nulls", True), (row, got)
        assert text is None or "null" not in text and "None" not in text
        kept = ours.ask({"row": json.dumps(row), "null_fields": "keep"})
        assert kept.get("text") == render(row) and not kept.get("dropped_nulls"), (row, kept)


def test_nulls_inside_arguments_that_are_text_stay(template, ours):
    """Arrow pads no text: they are the example's own. Tools as text are schemas, from which they go."""
    render = template("qwen2.5/chat_template.jinja")
    tools = [{"type": "function", "function": {"name": "f", "default": None}}]
    got = ours.ask({"row": json.dumps({"messages": [USER, call('{"a": null}'), TOOL, ANSWER], "tools": json.dumps(tools)})})
    assert got["text"] == render({"messages": [USER, call({"a": None}), TOOL, ANSWER], "tools": without_nulls(tools)}) and got["dropped_nulls"]


def text_parts(*texts):
    return [{"type": "text", "text": text} for text in texts]


PARTS = [{"messages": [{"role": "user", "content": text_parts("Hi, ", "you?")}, {"role": "assistant", "content": text_parts("Hello")}]},
         {"messages": [{"role": "system", "content": text_parts(" Be brief. ")}, USER, {"role": "assistant", "content": text_parts("a", "<think>", "\n b ")},
                       USER, {"role": "assistant", "content": []}]}]
TAKE_LISTS = ["field/09-content-parts/template.jinja", "gemma3", "qwen2_5_vl", "qwen3_5_think", "qwen3_6", "qwen3_8"]


def joined(row):
    row = copy.deepcopy(row)
    for message in row["messages"]:
        if isinstance(message["content"], list):
            message["content"] = "".join(part["text"] for part in message["content"])
    return row


@pytest.mark.parametrize("name", FILES + TRL)
def test_parts_of_text_are_lists_where_the_template_takes_lists_and_else_one_text(name, template, ours):
    render = template(name)
    for row in rows_of("09-content-parts/rows.jsonl") + PARTS:
        text = render(row if name in TAKE_LISTS else joined(row))
        got = ours.ask({"row": json.dumps(row)})
        assert got.get("text") == text, (row, text, got)


def test_parts_in_sharegpt_and_parts_that_are_not_text(template, ours):
    render = template("qwen3/chat_template.jinja")
    row = {"conversations": [{"from": "human", "value": text_parts("Hi")}, {"from": "gpt", "value": text_parts("Ho", "!")}]}
    assert ours.ask({"row": json.dumps(row), "sharegpt": True})["text"] == render(
        {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho!"}]})
    for part, message in (({"type": "image", "image": "a.png"}, 'messages[0].content[1] has the type "image"; only text is trained'),
                          ({"type": "input_audio", "input_audio": {}}, 'has the type "input_audio"'), ({"type": "text"}, "messages[0].content[1].text is null"),
                          ("Hi", "messages[0].content[1] is string, expected a part")):
        got = ours.ask({"row": json.dumps({"messages": [{"role": "user", "content": text_parts("a") + [part]}, ANSWER]})})
        assert got["error"] == "data" and message in got["message"], got


ROLES = [[{"role": "developer", "content": "Be brief."}, USER, ANSWER],
         [USER, call({"city": "Ulm"}), {"role": "ipython", "content": "12"}, ANSWER],
         [{"role": "environment", "content": "Cell 1"}, USER, ANSWER]]


@pytest.mark.parametrize("name", FILES + TRL)
@pytest.mark.parametrize("messages", ROLES, ids=["developer", "ipython", "environment"])
def test_other_roles_are_rendered_where_the_template_takes_them(name, messages, template, ours):
    text = template(name)({"messages": messages})
    assert ours.ask({"row": json.dumps({"messages": messages})}).get("text") == text


DEFAULT, TOOL_USE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}", "{{ tools | tojson }}{% for m in messages %}{{ m.role }}: {{ m.content }};{% endfor %}"


def folder_with_two_templates(form, folder):
    """A copy of the example's model; the template for tools stands where transformers reads it."""
    shutil.copytree(chat_oracle.ROOT / "examples/tiny-math/model", folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["chat_template"] = [{"name": "tool_use", "template": TOOL_USE}, {"name": "default", "template": DEFAULT}] if form == "list" else "unused"
    (folder / "chat_template.jinja").unlink()
    if form == "files":
        (folder / "chat_template.jinja").write_text(DEFAULT)
        (folder / "additional_chat_templates").mkdir()
        (folder / "additional_chat_templates/tool_use.jinja").write_text(TOOL_USE)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("form", ["list", "files"])
def test_the_template_named_tool_use_renders_rows_with_tools_here_and_in_every_copy(form, ours, tmp_path):
    model = folder_with_two_templates(form, tmp_path / "model")
    rows = tmp_path / "rows.jsonl"
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    dialogues = [{"messages": [USER, ANSWER]}, {"messages": [USER, ANSWER], "tools": tools}, {"messages": [USER, ANSWER], "tools": []}]
    rows.write_text("".join(json.dumps(row) + "\n" for row in dialogues))
    good_run("train", "--model", model, "--train-data", rows, "device=cpu", "max_steps=1", "--output-dir", tmp_path / "run", "--quiet")
    good_run("merge", "--model", model, "--adapter", tmp_path / "run/adapter", "--output-dir", tmp_path / "merged", "--quiet")
    good_run("quantize", "--model", model, "--base-precision", "int8", "--output-dir", tmp_path / "int8", "--quiet")
    good_run("init-model", "--config", model / "config.json", "--tokenizer", model, "--output-dir", tmp_path / "new", "--quiet")
    for folder in (model, tmp_path / "run/adapter", tmp_path / "merged", tmp_path / "int8", tmp_path / "new"):
        theirs = transformers.AutoTokenizer.from_pretrained(folder)
        assert ours.use_template("tokenizer", folder) == {}
        for dialogue in dialogues:
            text = theirs.apply_chat_template(dialogue["messages"], tools=dialogue.get("tools") or None, tokenize=False)
            assert ours.ask({"row": json.dumps(dialogue)})["text"] == text, folder
            assert text.startswith("[{") == bool(dialogue.get("tools"))
