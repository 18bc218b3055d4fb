"""Which turns and which end tokens of an Axolotl file are trained, and what is said where lora-train trains others.

Axolotl 0.19 (prompt_strategies/chat_template.py): a message is trained by its role, or by the field that message_field_training names; the
end token behind its content is trained where it is the tokenizer's eos_token or one of eot_tokens.
"""

import json

import pytest
import yaml

from command import ROOT, lora_train

MODEL = ROOT / "examples/tiny-math/model"
USAGE = 2
CHAT = {"path": "rows.jsonl", "type": "chat_template"}


def convert(folder, *arguments, entry=CHAT, turns=None, **keys):
    if turns is not None:
        (folder / "rows.jsonl").write_text(json.dumps({"messages": turns}) + "\n")
    text = {"base_model": str(MODEL), "adapter": "lora", "lora_r": 4, "lora_target_linear": True, "datasets": [entry], **keys}
    (folder / "axolotl.yml").write_text(yaml.safe_dump(text))
    return lora_train("convert", "axolotl.yml", *arguments, cwd=folder)


def profile_of(run):
    assert run.code == 0, run
    return yaml.safe_load(run.stdout)


def turn(role, content, **more):
    return {"role": role, "content": content, **more}


TURNS = [turn("user", "a", weight=1), turn("assistant", "b", train=False), turn("user", "c"), turn("assistant", "d", weight=0, train_detail=[])]


@pytest.mark.parametrize("field, turns, labels", [
    (None, TURNS, 4), ("loss", [*TURNS[:3], turn("assistant", "d", weight=0, loss=False)], 2),
    ("train", [turn("user", "a", weight=1), turn("assistant", "b", train=False, weight=1), turn("user", "c"), turn("assistant", "d")], 2),
    ("weight", [turn("user", "a"), turn("assistant", "b", weight=0, train=True), turn("user", "c"), turn("assistant", "d", weight=1)], 2)])
def test_the_marks_of_messages_are_read_as_axolotl_reads_them(field, turns, labels, tmp_path):
    entry = dict(CHAT, **({"message_field_training": field} if field else {}))
    run = convert(tmp_path, "--output", "my.yaml", entry=entry, turns=turns)
    assert run.code == 0 and "message_field_training: is " + (field or "not set") in run.stderr, run
    run = lora_train("tokenize", "my.yaml", "--show", 1, "--json", "max_seq_len=128", "dataset_prepared_path=null", cwd=tmp_path)
    assert run.code == 0, run
    [line] = run.json_lines()
    assert sum(label != -100 for label in line["labels"]) == labels, line  # b, d, and the end of each


def test_marks_of_examples_that_nobody_sees_are_not_read(tmp_path):
    profile = profile_of(convert(tmp_path, entry=dict(CHAT, path="org/name")))
    assert profile["datasets"][0]["field_map"] == {"user": "human", "assistant": "gpt", "train": None, "weight": None}
    profile = profile_of(convert(tmp_path, turns=[turn("user", "a"), turn("assistant", "b")]))
    assert "field_map" not in profile["datasets"][0], profile


def test_only_fields_that_an_example_can_lack_are_left_unread(tmp_path):
    (tmp_path / "rows.jsonl").write_text(json.dumps({"messages": TURNS}) + "\n")
    for name, said in (("messages", "only these can be left unread"), ("mesages", "is not one of our names")):
        run = lora_train("tokenize", f"model={MODEL}", f"datasets=[{{path: rows.jsonl, field_map: {{{name}: null}}}}]", "dataset_prepared_path=null", cwd=tmp_path)
        assert run.code == USAGE and said in run.stderr, run


def test_modules_to_save_beside_tokens_name_what_is_trained(tmp_path):
    keys = {"tokens": ["<conf>"], "lora_modules_to_save": ["embed_tokens", "lm_head"]}
    run = convert(tmp_path, **keys)
    assert run.code == USAGE and "only the rows of new tokens are trained and saved with it (add_tokens)" in run.stderr, run
    assert "--allow-refused lora_modules_to_save" in run.stderr, run
    assert profile_of(convert(tmp_path, "--allow-refused", "lora_modules_to_save", **keys))["add_tokens"] == [{"token": "<conf>", "normalized": False}]
    run = convert(tmp_path, peft_trainable_token_indices=[1, 2])
    assert run.code == USAGE and "Rows of existing tokens cannot be trained alongside an adapter; only those of new tokens can" in run.stderr, run


@pytest.mark.parametrize("keys, part", [
    ({"eot_tokens": ["<|im_end|>"], "chat_template": "chatml", "base_model": "m"}, "dropped"), ({"eot_tokens": ["<|im_end|>"]}, "dropped"),
    ({"eot_tokens": ["</s>"], "chat_template": "mistral_v1", "base_model": "m"}, "dropped"), ({"eot_tokens": ["<x>"], "base_model": "m"}, "dropped"),
    ({"eot_tokens": ["<x>"], "chat_template": "llama3", "base_model": "m"}, "refused"),
    ({"special_tokens": {"eos_token": "<|im_end|>"}}, "dropped"),  # the tokenizer's own
    ({"special_tokens": {"eos_token": "</s>", "bos_token": "<s>", "pad_token": "x"}, "base_model": "org/Llama-2-7b"}, "dropped"),
    ({"special_tokens": {"eos_token": "<|im_end|>"}, "chat_template": "chatml", "base_model": "m"}, "refused")])
def test_end_tokens_that_are_trained_anyway_are_no_reason_to_refuse(keys, part, tmp_path):
    run = convert(tmp_path, "--json", **keys)
    assert next(iter(keys)) in json.loads(run.stdout)[part] and (run.code == USAGE) == (part == "refused"), run


@pytest.mark.parametrize("settings, part, double_quant", [
    ({"bnb_4bit_quant_type": "nf4", "bnb_4bit_compute_dtype": "bfloat16", "bnb_4bit_quant_storage": "uint8", "llm_int8_threshold": 6.0}, "dropped", None),
    ({"bnb_4bit_use_double_quant": False, "bnb_4bit_quant_type": "nf4"}, "renamed", False),
    ({"bnb_4bit_quant_type": "fp4"}, "refused", None), ({"bnb_4bit_compute_dtype": "float32"}, "refused", None), ({"blocksize": 128}, "refused", None)])
def test_quantisation_that_is_done_anyway_is_no_reason_to_refuse(settings, part, double_quant, tmp_path):
    run = convert(tmp_path, "--json", adapter="qlora", load_in_4bit=True, bnb_config_kwargs=settings)
    result = json.loads(run.stdout)
    assert "bnb_config_kwargs" in result[part] and result["profile"].get("double_quant") == double_quant, run
    assert "bnb_config_kwargs" in json.loads(convert(tmp_path, "--json", bnb_config_kwargs=settings).stdout)["dropped"]


def test_settings_of_bitsandbytes_outside_their_map(tmp_path):
    keys = {"adapter": "qlora", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True, "bnb_4bit_compute_dtype": "bfloat16"}
    result = json.loads(convert(tmp_path, "--json", **keys).stdout)
    assert not result["refused"] and "bnb_4bit_quant_type" in result["dropped"], result
    result = json.loads(convert(tmp_path, "--json", **dict(keys, bnb_4bit_quant_type="fp4")).stdout)
    assert "only inside bnb_config_kwargs" in result["refused"]["bnb_4bit_quant_type"], result


def test_an_end_that_axolotl_may_not_train_is_noted(tmp_path):
    differs = "answers end with <|im_end|>, which is trained here"
    for keys, said in (({}, False), ({"chat_template": "chatml"}, True), ({"chat_template": "chatml", "eot_tokens": ["<|im_end|>"]}, False)):
        run = convert(tmp_path, **keys)
        assert run.code == 0 and (differs in run.stderr) == said, run


def test_what_an_own_template_adds_to_answers_is_noted(tmp_path):
    run = convert(tmp_path, chat_template="jinja", chat_template_jinja="mine.jinja")
    assert profile_of(run)["chat_template"] == "mine.jinja" and "the text in {% generation %}. Axolotl trains the content and the end token" in run.stderr, run


def test_marks_in_a_template_train_what_axolotl_trains(tmp_path):
    turns = [turn("user", "a"), turn("assistant", "b"), turn("user", "c"), turn("assistant", "d")]
    mark, end = "{% generation %}", "{% endgeneration %}"
    jinja = "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% else %}\n[" + mark + "{{ m.content }}" + end + "]" + mark + "{{ eos_token }}" + end
    jinja += "{% endif %}\n{% endfor %}\n"
    for text, labels in ((jinja, 4), (jinja.replace(mark, "").replace(end, ""), None)):
        (tmp_path / "mine.jinja").write_text(text)
        run = convert(tmp_path, "--output", "my.yaml", "--overwrite", turns=turns, chat_template="jinja", chat_template_jinja="mine.jinja")
        assert run.code == 0, run
        run = lora_train("tokenize", "my.yaml", "--show", 1, "--json", "max_seq_len=128", "dataset_prepared_path=null", cwd=tmp_path)
        count = sum(label != -100 for label in run.json_lines()[0]["labels"])
        assert count == labels or (labels is None and count > 4), run.stdout


def test_sharegpt_is_said_to_be_read_as_chat_template(tmp_path):
    run = convert(tmp_path, entry={"path": "rows.jsonl", "type": "sharegpt"})
    assert run.code == 0 and "Axolotl 0.19 refuses sharegpt" in run.stderr and "field_messages: conversations" in run.stderr, run


def test_the_profile_of_another_file_is_not_replaced(tmp_path):
    assert convert(tmp_path, "--output", "my.yaml").code == 0
    written = (tmp_path / "my.yaml").read_text()
    assert convert(tmp_path, "--output", "my.yaml", seed=7).code == 0  # the same file, changed
    (tmp_path / "axolotl.yml").rename(tmp_path / "other (1).yml")
    run = lora_train("convert", "other (1).yml", "--output", "my.yaml", cwd=tmp_path)
    assert run.code == USAGE and "was made from axolotl.yml, not from other (1).yml" in run.stderr and "--overwrite" in run.stderr, run
    assert written != (tmp_path / "my.yaml").read_text() and "axolotl.yml" in (tmp_path / "my.yaml").read_text()
    for _ in range(2):
        assert lora_train("convert", "other (1).yml", "--output", "mine.yaml", cwd=tmp_path).code == 0


def test_a_python_script_points_to_the_table(tmp_path):
    (tmp_path / "train.py").write_text("from trl import SFTTrainer\nSFTTrainer(model='m').train()\n")
    run = lora_train("convert", "train.py", cwd=tmp_path)
    assert run.code == USAGE and "is a Python script" in run.stderr and "docs/convert.md" in run.stderr and run.stderr.count("\n") == 1, run
