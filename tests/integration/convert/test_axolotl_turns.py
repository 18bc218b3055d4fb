"""Which turns and which end tokens of an Axolotl file are trained. What is said of them is in tests/unit/convert/tables.

Axolotl 0.19 (prompt_strategies/chat_template.py): a message is trained by its role, or by the field that message_field_training names; the
end token behind its content is trained where it is the tokenizer's eos_token or one of eot_tokens.
"""

import json

import yaml

from command import ROOT, lora_train

MODEL = ROOT / "examples/tiny-math/model"


def turn(role, content, **more):
    return {"role": role, "content": content, **more}


def convert(folder, datasets, **keys):
    """Converts a file with a dataset of each field of training marks and its turns into my.yaml."""
    entries = []
    for i, (field, turns) in enumerate(datasets):
        (folder / f"rows{i}.jsonl").write_text(json.dumps({"messages": turns}) + "\n")
        entries.append({"path": f"rows{i}.jsonl", "type": "chat_template", **({"message_field_training": field} if field else {})})
    text = {"base_model": str(MODEL), "adapter": "lora", "lora_r": 4, "lora_target_linear": True, "datasets": entries, **keys}
    (folder / "axolotl.yml").write_text(yaml.safe_dump(text))
    run = lora_train("convert", "axolotl.yml", "--output", "my.yaml", cwd=folder)
    assert run.code == 0, run


def label_counts(folder):
    run = lora_train("tokenize", "my.yaml", "--show", 9, "--json", "max_seq_len=128", "dataset_prepared_path=null", cwd=folder)
    assert run.code == 0, run
    return [sum(label != -100 for label in line["labels"]) for line in run.json_lines()]


def test_the_marks_of_messages_are_read_as_axolotl_reads_them(tmp_path):
    turns = [turn("user", "a", weight=1), turn("assistant", "b", train=False), turn("user", "c"), turn("assistant", "d", weight=0, train_detail=[])]
    convert(tmp_path, [
        (None, turns), ("loss", [*turns[:3], turn("assistant", "d", weight=0, loss=False)]),
        ("train", [turn("user", "a", weight=1), turn("assistant", "b", train=False, weight=1), turn("user", "c"), turn("assistant", "d")]),
        ("weight", [turn("user", "a"), turn("assistant", "b", weight=0, train=True), turn("user", "c"), turn("assistant", "d", weight=1)])])
    assert label_counts(tmp_path) == [4, 2, 2, 2]  # b, d, and the end of each


def test_marks_in_a_template_train_what_axolotl_trains(tmp_path):
    mark, end = "{% generation %}", "{% endgeneration %}"
    jinja = "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% else %}\n[" + mark + "{{ m.content }}" + end + "]" + mark + "{{ eos_token }}" + end
    jinja += "{% endif %}\n{% endfor %}\n"
    convert(tmp_path, [(None, [turn("user", "a"), turn("assistant", "b"), turn("user", "c"), turn("assistant", "d")])],
            chat_template="jinja", chat_template_jinja="mine.jinja")
    (tmp_path / "mine.jinja").write_text(jinja)
    assert label_counts(tmp_path) == [4]
    (tmp_path / "mine.jinja").write_text(jinja.replace(mark, "").replace(end, ""))
    assert label_counts(tmp_path)[0] > 4
