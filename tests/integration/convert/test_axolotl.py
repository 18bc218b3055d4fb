"""Examples of Axolotl, written and tokenised as the converted profile says, and which of their tokens are trained. What becomes of each key is in tests/unit/convert/tables.

Axolotl 0.19 (prompt_strategies/chat_template.py): a message is trained by its role, or by the field that message_field_training names; the
end token behind its content is trained where it is the tokenizer's eos_token or one of eot_tokens.
"""

import json
import shutil

import yaml

from command import good_run, lora_train
from tiny_math import MODEL


def convert(folder, datasets, **keys):
    """Converts a file with datasets of these examples, each with the keys of its entry, into my.yaml."""
    entries = []
    for i, (entry, rows) in enumerate(datasets):
        (folder / f"rows{i}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        entries.append({"path": f"rows{i}.jsonl", "type": "chat_template", **entry})
    text = {"base_model": str(MODEL), "adapter": "lora", "lora_r": 4, "lora_target_linear": True, "datasets": entries, **keys}
    (folder / "axolotl.yml").write_text(yaml.safe_dump(text))
    good_run("convert", "axolotl.yml", "--output", "my.yaml", cwd=folder)


def shown(folder, *settings):
    run = lora_train("tokenize", "my.yaml", "--show", 9, "--json", "max_seq_len=512", "dataset_prepared_path=null", *settings, cwd=folder)
    assert run.code == 0 and "not_rendered" not in run.stderr, run
    return run.json_lines()


def label_counts(folder):
    return [sum(label != -100 for label in line["labels"]) for line in shown(folder)]


def turn(role, content, **more):
    return {"role": role, "content": content, **more}


def test_parts_and_speakers_of_each_name_are_rendered(tmp_path):
    def chat(role, content, *turns, messages="messages", **more):
        return {messages: [{role: who, content: text} for who, text in turns], **more}

    names = {"message_property_mappings": {"role": "who", "content": "text"}, "field_messages": "turns", "roles": {"user": ["client"], "assistant": ["model"]}}
    instruction = {"type": {"field_instruction": "q", "field_output": "a", "format": "{instruction}", "no_input_format": "{instruction}"}}
    convert(tmp_path, [
        ({}, [chat("role", "content", ("human", "1"), ("gpt", "2")), chat("role", "content", ("system", "s"), ("user", "1"), ("assistant", "2"))]),
        ({"message_property_mappings": {"role": "from", "content": "value"}}, [chat("from", "value", ("human", "1"), ("gpt", "2"))]),
        (names, [chat("who", "text", ("client", "1"), ("model", "2"), messages="turns")]),
        ({}, [chat("role", "content", ("user", "1"), ("assistant", "2"), system="s")]),
        ({"field_system": "sys"}, [chat("role", "content", ("user", "1"), ("assistant", "2"), sys="s")]),
        (instruction, [{"q": "1", "a": "2"}])], chat_template="chatml")
    turns, system = "<|im_start|>user\n1<|im_end|>\n<|im_start|>assistant\n2<|im_end|>\n", "<|im_start|>system\ns<|im_end|>\n"
    texts = [line["text"] for line in shown(tmp_path)]
    assert [text.rstrip("\n") + "\n" for text in texts[:6]] == [turns, system + turns, turns, turns, system + turns, system + turns] and texts[6].startswith("12"), texts


def test_tokens_are_found_as_they_are_written(tmp_path):
    model = tmp_path / "model"
    shutil.copytree(MODEL, model)
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    tokenizer["normalizer"] = {"type": "Prepend", "prepend": "\u2581"}
    (model / "tokenizer.json").write_text(json.dumps(tokenizer))
    convert(tmp_path, [({}, [{"messages": [turn("user", "a"), turn("assistant", "b<conf>")]}])], base_model=str(model), tokens=["<conf>"])
    new = max([token["id"] for token in tokenizer["added_tokens"]] + list(tokenizer["model"]["vocab"].values())) + 1
    assert new in shown(tmp_path)[0]["input_ids"]
    assert new not in shown(tmp_path, "add_tokens=[<conf>]")[0]["input_ids"]


def test_the_marks_of_messages_are_read_as_axolotl_reads_them(tmp_path):
    turns = [turn("user", "a", weight=1), turn("assistant", "b", train=False), turn("user", "c"), turn("assistant", "d", weight=0, train_detail=[])]
    marked = {
        None: turns, "loss": [*turns[:3], turn("assistant", "d", weight=0, loss=False)],
        "train": [turn("user", "a", weight=1), turn("assistant", "b", train=False, weight=1), turn("user", "c"), turn("assistant", "d")],
        "weight": [turn("user", "a"), turn("assistant", "b", weight=0, train=True), turn("user", "c"), turn("assistant", "d", weight=1)]}
    convert(tmp_path, [({"message_field_training": field} if field else {}, [{"messages": rows}]) for field, rows in marked.items()])
    assert label_counts(tmp_path) == [4, 2, 2, 2]  # b, d, and the end of each


def test_marks_in_a_template_train_what_axolotl_trains(tmp_path):
    mark, end = "{% generation %}", "{% endgeneration %}"
    jinja = "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% else %}\n[" + mark + "{{ m.content }}" + end + "]" + mark + "{{ eos_token }}" + end
    jinja += "{% endif %}\n{% endfor %}\n"
    convert(tmp_path, [({}, [{"messages": [turn("user", "a"), turn("assistant", "b"), turn("user", "c"), turn("assistant", "d")]}])],
            chat_template="jinja", chat_template_jinja="mine.jinja")
    (tmp_path / "mine.jinja").write_text(jinja)
    assert label_counts(tmp_path) == [4]
    (tmp_path / "mine.jinja").write_text(jinja.replace(mark, "").replace(end, ""))
    assert label_counts(tmp_path)[0] > 4
