"""Parquet and Arrow files as datasets: the same ids as JSON Lines of the same examples. pyarrow writes the tables."""

import datetime
import decimal
import json
import random
import re

import pytest

from command import BINARY, ROOT, expect_end, lora_train

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
if not (BINARY.parent / "lib/liblora_train_arrow.so").exists():
    pytest.skip("this build has no liblora_train_arrow.so", allow_module_level=True)
from hub_cache import make_hub_cache  # noqa: E402 (needs pyarrow)

MODEL = ROOT / "examples/tiny-math/model"
USAGE, DATA = 2, 3
TEXTS = ["plain", "quotes \" and \\ and /", "line\nfeed\ttab \x01 \x7f", "Grüße, 世界, \U0001f600", "", "null"] * 20

LAYOUTS = {
    "text": [{"text": f"{i} {text}", "n": i} for i, text in enumerate(TEXTS)],
    "messages": [{"messages": [{"role": "user", "content": f"{i} {text}"}, {"role": "assistant", "content": "yes"}] * (1 + i % 3)}
                 for i, text in enumerate(TEXTS)],
    "sharegpt": [{"conversations": [{"from": "human", "value": text or "?"}, {"from": "gpt", "value": "yes"}], "system": None}
                 for text in TEXTS],
    "alpaca": [{"instruction": f"do {i}", "input": text if i % 2 else None, "output": "done"} for i, text in enumerate(TEXTS)],
    "prompt_completion": [{"prompt": text + ":", "completion": "ok"} for text in TEXTS],
    "pretokenized": [{"input_ids": list(range(2, 5 + i)), "labels": [-100] + list(range(3, 5 + i))} for i in range(40)],
}


def tokenize(path, *arguments, **changes):
    profile = path.parent / "profile.json"
    profile.write_text(json.dumps({"model": str(MODEL), "datasets": [{"path": str(path)}], "output_dir": str(path.parent / "run"),
                                   **changes}))
    return lora_train("tokenize", "--json", "--show", "1000", "--profile", profile, *arguments)


def rows_of(run, path):
    assert run.code == 0, run
    rows = run.json_lines()
    assert [row["source"] for row in rows] == [f"{path}:{i + 1}" for i in range(len(rows))]
    return [(row["input_ids"], row["labels"]) for row in rows]


def oracle(folder, rows, **changes):
    path = folder / "oracle.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return rows_of(tokenize(path, **changes), path)


def write_arrow(table, path, make=pa.ipc.new_stream, **options):
    with make(str(path), table.schema, **options) as writer:
        writer.write_table(table, max_chunksize=7)
    return path


def error_of(run):
    assert run.code == DATA, run
    return run.json_lines()[-1]["error"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_ids_of_json_lines(tmp_path, layout):
    rows = LAYOUTS[layout]
    expected, path = oracle(tmp_path, rows), tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=16)
    assert len(expected) == len(rows) and rows_of(tokenize(path), path) == expected


def test_ways_to_write_parquet(tmp_path):
    path, expected = tmp_path / "rows.parquet", oracle(tmp_path, LAYOUTS["messages"])
    for options in ({"compression": "snappy"}, {"compression": "zstd"}, {"compression": "gzip"}, {"compression": "lz4"}, {"compression": "brotli"},
                    {"use_dictionary": False, "data_page_size": 64}, {"version": "1.0", "data_page_version": "2.0", "write_page_checksum": True}):
        pq.write_table(pa.Table.from_pylist(LAYOUTS["messages"]), path, row_group_size=50, **options)
        assert rows_of(tokenize(path), path) == expected, options


def test_ways_to_write_arrow(tmp_path):
    table, expected = pa.Table.from_pylist(LAYOUTS["alpaca"]), oracle(tmp_path, LAYOUTS["alpaca"])
    for make in (pa.ipc.new_stream, pa.ipc.new_file):
        for compression in (None, "zstd", "lz4"):
            path = write_arrow(table, tmp_path / "rows.arrow", make, options=pa.ipc.IpcWriteOptions(compression=compression))
            assert rows_of(tokenize(path), path) == expected, (make, compression)


def test_strings_of_every_kind(tmp_path):
    texts = [text or "-" for text in TEXTS]
    expected = oracle(tmp_path, [{"text": text} for text in texts])
    for strings in (pa.large_string(), pa.string_view(), pa.binary(), pa.dictionary(pa.int8(), pa.string())):
        table = pa.table({"text": pa.array([t.encode() if strings == pa.binary() else t for t in texts]).cast(strings)})
        path = write_arrow(table, tmp_path / "rows.arrow")
        assert rows_of(tokenize(path), path) == expected, strings


# The JSON text of each value, as datasets.Dataset.to_json() writes it; floating point with all digits.
WHEN = datetime.datetime(1960, 1, 2, 3, 4, 5, 678901)
VALUES = {
    "int8": (pa.array([-7], pa.int8()), "-7"), "uint64": (pa.array([2**63 - 1], pa.uint64()), "9223372036854775807"),
    "float32": (pa.array([0.1], pa.float32()), "0.1"), "float64": (pa.array([0.1234567890123]), "0.1234567890123"),
    "whole": (pa.array([1.0]), "1.0"), "half": (pa.array([0.5], pa.float16()), "0.5"), "nan": (pa.array([float("nan")]), "null"),
    "infinity": (pa.array([float("-inf")]), "null"), "bool": (pa.array([True]), "true"), "null": (pa.array([None]), "null"),
    "timestamp": (pa.array([WHEN], pa.timestamp("us", tz="UTC")), "-315521754322"), "seconds": (pa.array([2], pa.timestamp("s")), "2000"),
    "date": (pa.array([datetime.date(2024, 1, 2)]), "1704153600000"), "time": (pa.array([datetime.time(12, 30)], pa.time32("s")), '"12:30:00"'),
    "duration": (pa.array([datetime.timedelta(seconds=1.5)], pa.duration("us")), "1500"),
    "decimal": (pa.array([decimal.Decimal("1.20")], pa.decimal128(5, 2)), '"1.20"'),
    "list": (pa.array([[[1, None], []]], pa.large_list(pa.list_(pa.int16()))), "[[1, null], []]"),
    "fixed_list": (pa.array([[1, 2]], pa.list_(pa.int64(), 2)), "[1, 2]"),
    "map": (pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())), '[["a", 1]]'),
    "struct": (pa.array([{"b": {"c": "x"}, "a": None}]), '{"b": {"c": "x"}, "a": null}'),
}


def test_values_are_those_of_to_json(tmp_path):
    """The template prints the message, so that the text shows every value."""
    (tmp_path / "print.jinja").write_text("{% for m in messages %}{{ m | tojson }}{% endfor %}")
    columns = {"role": pa.array(["assistant"]), "content": pa.array(["a"]), **{name: values for name, (values, _) in VALUES.items()}}
    turn = pa.StructArray.from_arrays(list(columns.values()), list(columns))
    table = pa.table({"messages": pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), turn)})
    path = write_arrow(table, tmp_path / "rows.arrow")
    run = tokenize(path, chat_template=str(tmp_path / "print.jinja"), loss_on="all", datasets=[{"path": str(path), "null_fields": "keep"}])
    assert run.code == 0, run
    text = run.json_lines()[0]["text"]
    for name, (_, expected) in VALUES.items():
        assert json.loads(text)[name] == json.loads(expected) and f'"{name}": {expected}' in text, text


def test_a_folder_that_datasets_saved_is_its_arrow_files(tmp_path):
    folder = tmp_path / "saved"
    folder.mkdir()
    (folder / "state.json").write_text('{"_data_files": [{"filename": "data-00000-of-00002.arrow"}]}')
    (folder / "dataset_info.json").write_text('{"features": {}}')
    half = len(TEXTS) // 2
    for i, rows in enumerate([LAYOUTS["text"][:half], LAYOUTS["text"][half:]]):
        write_arrow(pa.Table.from_pylist(rows), folder / f"data-0000{i}-of-00002.arrow")
    run = tokenize(folder)
    assert run.code == 0, run
    assert [row["input_ids"] for row in run.json_lines()] == [ids for ids, _ in oracle(tmp_path, LAYOUTS["text"])]


def test_errors_name_file_and_example(tmp_path):
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"text": pa.array([b"good", b"\xff\xfe"])}), path)
    error = error_of(tokenize(path))
    assert error["where"] == f"{path}:2" and "UTF-8" in error["message"], error
    pq.write_table(pa.table({"prompt": ["a", "b", None], "completion": ["x"] * 3}), path)
    error = error_of(tokenize(path))
    assert error["where"] == f"{path}:3" and "prompt" in error["message"], error
    run = tokenize(path, on_bad_row="drop", max_drop_fraction=0.5)
    assert run.code == 0 and len(run.json_lines()) == 2 and f"first: {path}:3" in run.stderr, run
    path = write_arrow(pa.table({"text": ["a"], "u": pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])])}), tmp_path / "u.arrow")
    error = error_of(tokenize(path))
    assert error["where"] == str(path) and '"u" is of type sparse_union' in error["message"], error
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), path := tmp_path / "rows.parquet")
    assert "no example" in error_of(tokenize(path))["message"]
    path = write_arrow(pa.Table.from_pylist(LAYOUTS["text"]), tmp_path / "rows.arrow")
    path.write_bytes(path.read_bytes()[:-8])  # whole batches, which Arrow takes for all
    assert "no end mark" in error_of(tokenize(path))["message"]


def damaged(content, number):
    """Copy `number` of a file with some bytes flipped, or its end cut off, or a piece of it doubled."""
    draw = random.Random(number)
    content = bytearray(content)
    if number % 4 == 0:
        return content[:draw.randrange(len(content))]
    if number % 4 == 1:
        at, size = draw.randrange(len(content)), draw.randrange(1, 200)
        return content[:at] + content[at:at + size] + content[at:]
    for _ in range(draw.choice([1, 1, 8, 64])):
        at = draw.randrange(len(content)) if number % 4 == 2 else len(content) - 1 - draw.randrange(min(600, len(content)))
        content[at] = draw.randrange(256)
    return content


@pytest.mark.parametrize("kind", ["parquet", "stream", "file"])
def test_damaged_files_are_errors_and_never_crash(tmp_path, kind):
    table = pa.Table.from_pylist(LAYOUTS["messages"][:30]).append_column("code", pa.array(["a", "b"] * 15).dictionary_encode())
    path = tmp_path / f"rows.{'parquet' if kind == 'parquet' else 'arrow'}"
    if kind == "parquet":
        pq.write_table(table, path, row_group_size=10, compression="none")
    else:
        write_arrow(table, path, pa.ipc.new_stream if kind == "stream" else pa.ipc.new_file)
    whole = path.read_bytes()
    codes = []
    for number in range(40):
        path.write_bytes(damaged(whole, number))
        run = tokenize(path)  # asserts that no signal ended it
        if run.code != 0:
            error = error_of(run)
            assert error["where"].startswith(str(path)) and error["message"], run
        codes.append(run.code)
    assert codes.count(DATA) > 12, codes


def hub_rows(folder, dataset, key="datasets"):
    profile = {"model": str(MODEL), "datasets": [{"path": "d.jsonl"}], key: [dataset], "output_dir": "run"}
    (folder / "d.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    (folder / "profile.json").write_text(json.dumps(profile))
    return lora_train("tokenize", "--json", "--show", "9", "--profile", "profile.json", cwd=folder, environment={"HF_HUB_CACHE": str(folder)})


def test_a_dataset_of_the_hub_with_subsets(tmp_path):
    """The layout of openai/gsm8k."""
    subsets, splits = ("main", "socratic"), ("train", "test")
    make_hub_cache(tmp_path, "org/math", {f"{subset}/{split}-00000-of-00001.parquet": [{"question": f"{subset} {split}?", "answer": "4"}]
                                          for subset in subsets for split in splits},
                   {"configs": [{"config_name": subset, "data_files": [{"split": split, "path": f"{subset}/{split}-*"} for split in splits]}
                                for subset in subsets]})
    dataset = {"path": "org/math", "subset": "socratic", "field_map": {"prompt": "question", "completion": "answer"}}
    run = hub_rows(tmp_path, dataset)
    assert run.code == 0 and [row["text"][:15] for row in run.json_lines()] == ["socratic train?"], run
    run = hub_rows(tmp_path, {**dataset, "split": "test"})
    assert run.code == 0 and run.json_lines()[0]["text"].startswith("socratic test?"), run
    for changed, part in [({"subset": None}, "Available: main, socratic"), ({"split": "dev"}, "Available: test, train"),
                          ({"path": "org/other"}, "lora-train download org/other --dataset"), ({"path": "org/math@v1"}, "org/math@v1 --dataset")]:
        run = hub_rows(tmp_path, {**dataset, **changed})
        assert part in error_of(run)["message"], run
        expect_end(lora_train("check", "--profile", "profile.json", cwd=tmp_path, environment={"HF_HUB_CACHE": str(tmp_path)}), USAGE, part)
    hub_rows(tmp_path, dataset, "eval_datasets")
    run = lora_train("check", "--profile", "profile.json", cwd=tmp_path, environment={"HF_HUB_CACHE": str(tmp_path)})
    assert run.code == USAGE and "several splits; name one with `split`" in run.stderr, run


def test_a_dataset_of_the_hub_as_push_to_hub_writes_it(tmp_path):
    """The layout of tatsu-lab/alpaca."""
    make_hub_cache(tmp_path, "org/alpaca", {f"data/train-0000{i}-of-00002-a09b74b3ef9c3b56.parquet": LAYOUTS["alpaca"][2 * i:2 * i + 2] for i in range(2)})
    run = hub_rows(tmp_path, "org/alpaca")
    assert [row["input_ids"] for row in run.json_lines()] == [ids for ids, _ in oracle(tmp_path, LAYOUTS["alpaca"][:4])], run
    assert "datasets--org--alpaca/snapshots/abc123/data/train-00001" in run.json_lines()[2]["source"]


def test_without_pyarrow_the_way_out_is_named(tmp_path):
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"text": ["a"]}), path)
    (tmp_path / "pyarrow").mkdir()
    (tmp_path / "pyarrow/libarrow.so.1").write_text("")
    assert tokenize(path).code == 0
    for command in ("tokenize", "check", "train"):
        run = lora_train(command, "--profile", tmp_path / "profile.json", "--json", environment={"LORA_TRAIN_ARROW": str(tmp_path / "pyarrow")})
        assert run.code != 0, run
        assert "libarrow.so.1 in" in run.stderr and "pip install 'pyarrow==24.*'" in run.stderr, run
        assert f"pandas.read_parquet('{path}').to_json('rows.jsonl'" in run.stderr, run


def test_a_run_trains_on_parquet_as_on_json_lines(setup):
    """LibTorch and Arrow in one process."""
    path = setup.folder / "rows.parquet"
    pq.write_table(pa.Table.from_pylist(setup.rows), path)
    losses = []
    for data in (setup.rows_file, path):
        setup.good_run("--overwrite", datasets=[{"path": str(data)}])
        losses.append([event["loss"] for event in setup.events("train")])
    assert len(losses[0]) == 3 and losses[0] == losses[1]


def test_the_library_is_loaded_only_for_tables(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "profile.json").write_text(json.dumps({"model": str(MODEL), "datasets": ["rows.jsonl"], "output_dir": "run"}))
    run = lora_train("tokenize", "--show", "1", "--profile", "profile.json", cwd=tmp_path, environment={"LD_DEBUG": "files"})
    assert run.code == 0 and "libsentencepiece" in run.stderr and "1 example, " in run.stderr and "token cache" not in run.stderr, run
    assert not re.search("libarrow|lora_train_arrow", run.stderr)
