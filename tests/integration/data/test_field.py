"""Rows as people publish them, from the command line: what is trained, what is said of it, and what is refused."""

import importlib
import json
import os
from pathlib import Path

import pytest
from command import ROOT, expect_end, good_run, lora_train

MODEL = ROOT / "examples/tiny-math/model"
FIELD = Path(os.environ.get("LORA_TRAIN_TEST_DATA", ROOT / "../shared/data")) / "field"
CHAT = {"messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]}


@pytest.fixture
def tokenize(tmp_path):
    """tokenize(rows, ...): rows as JSON Lines, or the text of a file named `name`; the run of `tokenize --show 9 --json`."""
    def run(rows, *settings, name="rows.jsonl", runner=good_run):
        file = rows if isinstance(rows, Path) else tmp_path / name
        if not isinstance(rows, Path):
            file.write_text(rows if isinstance(rows, str) else "".join(json.dumps(row) + "\n" for row in rows))
        return runner("tokenize", "--model", MODEL, "--train-data", file, "device=cpu", f"dataset_prepared_path={tmp_path / 'cache'}", "--show", "9", "--json", *settings)
    return run


def refused(tokenize, rows, *words, **options):
    expect_end(tokenize(rows, runner=lora_train, **options), 3, *words)


def trained(line):
    """The trained texts of a row, without the template's."""
    parts, is_on = [], False
    for token, label in zip(line["input_ids"], line["labels"]):
        if label != -100:
            parts = parts + [[]] if not is_on else parts
            parts[-1].append(token)
        is_on = label != -100
    return parts


def field(name):
    if not (FIELD / name).exists():
        pytest.skip(f"no {FIELD / name}; set LORA_TRAIN_TEST_DATA to the test data's folder")
    return FIELD / name


def test_every_mark_of_another_trainer_leaves_the_turn_out(tokenize):
    for file in ("rows.jsonl", "sharegpt.jsonl"):
        lines = tokenize(field(f"04-marks-of-other-trainers/{file}")).json_lines()
        assert len(lines) == (6 if file == "rows.jsonl" else 1)
        assert all(len(trained(line)) == 1 and "4<|im_end|>" in line["text"] for line in lines)
        plain = tokenize([CHAT | {"messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "5"}] + [{"role": "user", "content": "No."}, CHAT["messages"][1]]}])
        assert len(trained(plain.json_lines()[0])) == 2


def test_rows_with_media_are_refused_by_row(tokenize):
    refused(tokenize, field("05-media-columns/alpaca.jsonl"), 'alpaca.jsonl:1: "images" is not empty; only text is trained')
    for row in range(1, 5):
        refused(tokenize, field("05-media-columns/rows.jsonl"), f"rows.jsonl:{row}:")
    kept = tokenize(field("05-media-columns/rows.jsonl"), "on_bad_row=drop", "max_drop_fraction=0.9")
    assert len(kept.json_lines()) == 1 and "columns not read: images" in kept.stderr, kept


@pytest.mark.parametrize("file, columns", [("nan.jsonl", "score"), ("bigint.jsonl", "id"), ("index.csv", "Unnamed: 0")])
def test_columns_that_nobody_reads_stop_nothing_and_are_named(file, columns, tokenize):
    for _ in range(2):  # the second time from the token cache
        run = tokenize(field(f"13-unused-columns/{file}"))
        assert len(run.json_lines()) == 1 and run.stderr.count(f"columns not read: {columns}\n") == 1, run


def test_columns_are_named_once_per_dataset_in_order(tokenize):
    run = tokenize([CHAT | {"source": "x", "score": 1}, CHAT | {"images": []}, CHAT | {"source": None}])
    assert run.stderr.count("columns not read: images, score, source\n") == 1, run
    assert "columns not read" not in tokenize([CHAT | {"tools": None}]).stderr


@pytest.mark.parametrize("row, words", [
    ({"messages": CHAT["messages"], "tools": [{"name": "f", "x": 10**30}]}, "tools has NaN, Infinity or an integer beyond 64 bits; write a string or null"),
    ({"messages": [CHAT["messages"][0] | {"x": float("nan")}, CHAT["messages"][1]]}, "messages[0] has NaN, Infinity or an integer beyond 64 bits; write a string or null"),
    ({"text": 10**30}, "text is NaN, Infinity or an integer beyond 64 bits, expected a string"), ({"input_ids": [1], "labels": [float("nan")]}, "labels[0] is NaN, Infinity or an integer beyond 64 bits, expected an integer"),
    ({"input_ids": [10**20], "labels": [1]}, "input_ids[0] is NaN, Infinity or an integer beyond 64 bits")])
def test_numbers_that_no_template_can_write_are_refused_where_they_are_read(row, words, tokenize):
    refused(tokenize, [row], words)


def test_bytes_in_a_table_stop_only_who_reads_them(tokenize, tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = importlib.import_module("pyarrow.parquet")
    file = tmp_path / "rows.parquet"
    parquet.write_table(pyarrow.Table.from_pylist([{"text": b"a", "raw": b"\xff\xd8"}, {"text": b"\xc3\xa9", "raw": None}]), file)
    run = tokenize(file)
    assert len(run.json_lines()) == 2 and "columns not read: raw\n" in run.stderr, run
    expect_end(tokenize(file, "datasets[0].field_map.text=raw", runner=lora_train), 3, "text is bytes that are not UTF-8, expected a string")
    parquet.write_table(pyarrow.Table.from_pylist([{"text": "a", "image": {"bytes": b"\xff\xd8", "path": None}}]), file)
    expect_end(tokenize(file, runner=lora_train), 3, 'rows.parquet:1: "image" is not empty')


def test_packed_rows_become_their_documents(tokenize):
    ids = [5, 6, 7, 8, 9]
    for packed in ({"position_ids": [0, 1, 0, 1, 2]}, {"seq_lengths": [2, 3]}, {"seq_idx": [0, 0, 1, 1, 1]}, {"cu_seq_lens_q": [0, 2, 5]}):
        run = tokenize([{"input_ids": ids, "labels": ids} | packed])
        assert [line["input_ids"] for line in run.json_lines()] == [[5, 6], [7, 8, 9]], run
        assert [line["source"].split(":")[-1] for line in run.json_lines()] == ["1", "1"] and "examples: 2 read, 2 kept" in run.stderr, run
    assert [line["input_ids"] for line in tokenize([{"input_ids": ids, "labels": ids}]).json_lines()] == [ids]


def test_null_members_and_json_arguments_are_counted(tokenize):
    rows, template = field("03-arrow-null-padding/rows.jsonl"), f"chat_template={field('../qwen2.5/chat_template.jinja')}"
    run = tokenize(rows, template)
    assert "2 (100.00%) null members of messages or tools, left out (null_fields: keep keeps them); first: " in run.stderr, run
    assert all("null" not in line["text"] for line in run.json_lines())
    kept = tokenize(rows, template, "datasets[0].null_fields=keep")
    assert "left out" not in kept.stderr and any("null" in line["text"] for line in kept.json_lines()), kept
    run = tokenize(field("02-tool-arguments-as-string/rows.jsonl"), template)
    assert run.stderr.count("3 (100.00%) arguments of tool calls are JSON text, decoded for the template; first: ") == 1, run
    assert all('"{' not in line["text"] for line in run.json_lines())


def test_a_turn_with_a_role_that_the_template_leaves_out_is_refused_with_the_way_on(tokenize, tmp_path):
    template = tmp_path / "known.jinja"
    template.write_text("{% for m in messages %}{% if m.role in ['system', 'user', 'assistant'] %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}")
    rows = [{"messages": [{"role": "developer", "content": "Be brief."}] + CHAT["messages"]}]
    assert "<|im_start|>developer\nBe brief.<|im_end|>" in tokenize(rows).json_lines()[0]["text"]
    expect_end(tokenize(rows, f"chat_template={template}", runner=lora_train), 3, "messages[0] has the role developer", "field_map: {system: developer}")
    run = tokenize(rows, f"chat_template={template}", "datasets[0].field_map.system=developer")
    assert "<|im_start|>system\nBe brief.<|im_end|>" in run.json_lines()[0]["text"], run


@pytest.mark.parametrize("rows, name, words", [
    ("instruction;output\na;b\n", "rows.csv", ["rows.csv:1:1: the columns are separated by semicolons, expected commas"]),
    ([{"prompt": "a", "completion": "b", "label": True}], "rows.jsonl", ["rows.jsonl:1:", 'boolean "label", as for KTO', "preference training is not supported"]),
    ([{"chosen": "\n\nHuman: a\n\nAssistant: b", "rejected": "c"}], "rows.jsonl", ["field_map: {text: chosen}"]),
    ([{"messages": [{"role": "User", "content": "a"}, {"role": "Assistant", "content": "b"}]}], "rows.jsonl", ["field_map: {user: User, assistant: Assistant}"])])
def test_what_cannot_be_trained_is_named_with_the_way_on(rows, name, words, tokenize):
    refused(tokenize, rows, *words, name=name)


def test_the_advice_for_answers_in_pairs_works(tokenize):
    for row, field_map in (({"chosen": "\n\nHuman: a\n\nAssistant: b", "rejected": "c"}, "text"), ({"prompt": "q", "chosen": "a", "rejected": "b"}, "completion"),
                           ({"prompt": "q", "chosen": CHAT["messages"], "rejected": []}, "messages"), ({"prompt": CHAT["messages"][:1], "chosen": CHAT["messages"][1:], "rejected": []}, "completion")):
        run = tokenize([row], f"datasets[0].field_map.{field_map}=chosen")
        assert len(run.json_lines()) == 1 and "rejected" in run.stderr, run


def test_the_layouts_are_listed_once_for_a_file(tokenize):
    run = tokenize([{f"a{i}": "b"} for i in range(5)], runner=lora_train)
    assert run.code == 3 and run.stderr.count("pretokenized: input_ids") == 1 and "rows.jsonl:5: no known layout has the keys of this example (a4)" in run.stderr, run
