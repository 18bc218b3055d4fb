"""Malformed dataset files: each ends the run with exit code 3 and the place of what is wrong, or is accepted on purpose.

A case is (name, file name, bytes, place after the file's name, part of the message). "place" is ":line:byte", ":line" or
"" for the file; None means that the file is good and gives the number of examples in the last column.
"""

import gzip
import json

import pytest

from command import ROOT, lora_train

MODEL = ROOT / "examples/tiny-math/model"
DATA = 3


def chat(*roles_and_contents, **more):
    return json.dumps({"messages": [{"role": role, "content": content} for role, content in roles_and_contents], **more})


OK = '{"text": "good"}'
CHAT = chat(("user", "1 + 1?"), ("assistant", "2"))
WEIGHED = '{"messages": [{"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": "2", "weight": %s}]}'
DEEP = '{"text": "a", "x": ' + "[" * 70 + "]" * 70 + "}"

CASES = [
    # JSON itself
    ("not_json", "r.jsonl", OK + "\nhello\n", ":2:1", "invalid JSON"),
    ("unquoted_key", "r.jsonl", OK + "\n{text: 1}\n", ":2:3", "invalid JSON"),
    ("single_quotes", "r.jsonl", "{'text': 'a'}\n", ":1:2", "invalid JSON"),
    ("trailing_comma", "r.jsonl", '{"text": "a",}\n', ":1:14", "invalid JSON"),
    ("missing_comma", "r.jsonl", '{"text": "a" "b": 1}\n', ":1:16", "invalid JSON"),
    ("missing_colon", "r.jsonl", '{"text" "a"}\n', ":1:11", "invalid JSON"),
    ("two_objects_on_a_line", "r.jsonl", OK + OK + "\n", ":1:17", "invalid JSON"),
    ("comment", "r.jsonl", OK + " // note\n", ":1:18", "invalid JSON"),
    ("unclosed_object", "r.jsonl", '{"text": "a"\n' + OK + "\n", ":1:13", "every line holds one whole object"),
    ("unclosed_string", "r.jsonl", '{"text": "a}\n', ":1:13", "invalid JSON"),
    ("truncated_last_line", "r.jsonl", OK + '\n{"text": "abc', ":2:14", "looks truncated"),
    ("truncated_after_key", "r.jsonl", OK + '\n{"text"', ":2:8", "looks truncated"),
    ("pretty_printed", "r.jsonl", '{\n "text": "a"\n}\n', ":1:2", "one JSON array"),
    ("nan", "r.jsonl", '{"text": NaN}\n', ":1:10", "NaN and Infinity"),
    ("infinity", "r.jsonl", '{"text": "a", "x": Infinity}\n', ":1:20", "NaN and Infinity"),
    ("minus_infinity", "r.jsonl", '{"text": "a", "x": -Infinity}\n', ":1:21", "NaN and Infinity"),
    ("huge_number", "r.jsonl", '{"text": "a", "x": 1e999}\n', ":1:24", "out of range"),
    ("integer_beyond_64_bits", "r.jsonl", '{"text": "a", "x": 9223372036854775808}\n', ":1:39", "beyond 64 bits"),
    ("leading_zero", "r.jsonl", '{"text": "a", "x": 01}\n', ":1:21", "invalid JSON"),
    ("control_character", "r.jsonl", b'{"text": "a\x01b"}\n', ":1:12", "invalid JSON"),
    ("raw_tab", "r.jsonl", '{"text": "a\tb"}\n', ":1:12", "invalid JSON"),
    ("bad_escape", "r.jsonl", '{"text": "a\\x41"}\n', ":1:13", "invalid JSON"),
    ("short_unicode_escape", "r.jsonl", '{"text": "\\u12"}\n', ":1:15", "invalid JSON"),
    ("lone_high_surrogate", "r.jsonl", '{"text": "\\ud83d"}\n', ":1:17", "invalid JSON"),
    ("lone_low_surrogate", "r.jsonl", '{"text": "\\ude00"}\n', ":1:16", "invalid JSON"),
    ("nul_byte", "r.jsonl", b'{"text": "a"}\x00\n', ":1:14", "NUL"),
    ("duplicate_key", "r.jsonl", '{"text": "a", "text": "b"}\n', ":1:20", "duplicate key"),
    ("duplicate_key_inside", "r.jsonl", '{"text": "a", "x": {"k": 1, "k": 2}}\n', ":1:31", "duplicate key"),
    ("too_deep", "r.jsonl", DEEP + "\n", ":1:83", "64 levels"),
    ("array_row", "r.jsonl", OK + "\n[1, 2]\n", ":2:1", "expected an object"),
    ("string_row", "r.jsonl", OK + '\n"text"\n', ":2:6", "expected an object"),
    ("number_row", "r.jsonl", OK + "\n17\n", ":2:2", "expected an object"),
    ("null_row", "r.jsonl", OK + "\nnull\n", ":2:4", "expected an object"),
    # bytes
    ("invalid_utf8", "r.jsonl", b'{"text": "a\xff"}\n', ":1:12", "invalid"),
    ("overlong_utf8", "r.jsonl", b'{"text": "\xc0\xaf"}\n', ":1:11", "invalid"),
    ("surrogate_in_utf8", "r.jsonl", b'{"text": "\xed\xa0\x80"}\n', ":1:12", "invalid"),
    ("cut_utf8", "r.jsonl", b'{"text": "\xe2\x82"}\n', ":1:13", "invalid"),
    ("beyond_unicode", "r.jsonl", b'{"text": "\xf4\x90\x80\x80"}\n', ":1:12", "invalid"),
    ("bom_inside", "r.jsonl", OK + '\n\ufeff{"text": "a"}\n', ":2:1", "byte order mark"),
    ("utf16", "r.jsonl", OK.encode("utf-16"), ":1:1", "UTF-16"),
    ("empty_file", "r.jsonl", b"", "", "no example"),
    ("blank_lines_only", "r.jsonl", "\n \r\n\n", "", "no example"),
    ("empty_array", "r.json", "[]", "", "no example"),
    ("parquet_bytes", "r.jsonl", b"PAR1\x15\x04", ":1:1", "Parquet"),
    ("line_over_64_mib", "r.jsonl", OK + '\n{"text": "' + "x" * (64 << 20) + '"}\n', ":2:67108865", "64 MiB"),
    # JSON arrays
    ("array_missing_bracket", "r.json", "[" + OK + ",", ":1:19", "one JSON array"),
    ("array_missing_comma", "r.json", "[" + OK + "\n" + OK + "]", ":2:1", "one JSON array"),
    ("array_with_number", "r.json", "[" + OK + ", 3]", ":1:21", "expected an object"),
    ("array_then_more", "r.json", "[" + OK + "]\n{}", ":2:1", "one JSON array"),
    ("array_nan", "r.json", '[{"text": NaN}]', ":1:11", "NaN and Infinity"),
    # layouts
    ("no_layout", "r.jsonl", '{"question": "a", "answer": "b"}\n', ":1", "no known layout"),
    ("empty_object", "r.jsonl", "{}\n", ":1", "no known layout"),
    ("text_is_number", "r.jsonl", OK + '\n{"text": 5}\n', ":2", "text is number"),
    ("text_is_null", "r.jsonl", OK + '\n{"text": null}\n', ":2", "is null"),
    ("text_missing", "r.jsonl", OK + '\n{"txt": "a"}\n', ":2", "missing"),
    ("messages_is_string", "r.jsonl", '{"messages": "hi"}\n', ":1", "messages is string"),
    ("messages_empty", "r.jsonl", CHAT + '\n{"messages": []}\n', ":2", "messages is empty"),
    ("message_is_string", "r.jsonl", '{"messages": ["hi"]}\n', ":1", "messages[0]"),
    ("role_missing", "r.jsonl", '{"messages": [{"content": "a"}]}\n', ":1", "messages[0]"),
    ("content_missing", "r.jsonl", '{"messages": [{"role": "user"}]}\n', ":1", "messages[0]"),
    ("role_unknown", "r.jsonl", chat(("user", "a"), ("bot", "b")) + "\n", ":1", "messages[1].role is an unknown role: \"bot\""),
    ("role_is_number", "r.jsonl", chat((1, "a")) + "\n", ":1", "messages[0].role is number"),
    ("content_is_number", "r.jsonl", chat(("user", 3)) + "\n", ":1", "messages[0].content is number"),
    ("content_is_list", "r.jsonl", chat(("user", [{"type": "text"}])) + "\n", ":1", "messages[0].content is array"),
    ("tools_is_number", "r.jsonl", chat(("user", "a"), ("assistant", "b"), tools=5) + "\n", ":1", "tools is number"),
    ("tools_is_no_json", "r.jsonl", chat(("user", "a"), ("assistant", "b"), tools="[{") + "\n", ":1", "tools is a string"),
    ("kwargs_is_list", "r.jsonl", chat(("user", "a"), ("assistant", "b"), chat_template_kwargs=[1]) + "\n", ":1",
     "chat_template_kwargs is array"),
    ("no_assistant_turn", "r.jsonl", chat(("user", "a")) + "\n", ":1", "every example of the training data is masked"),
    *((f"weight_{name}", "r.jsonl", CHAT + "\n" + WEIGHED % weight + "\n", place, message) for name, weight, place, message in [
        ("negative", "-0.5", ":2", "messages[1].weight is -0.5"), ("string", '"2"', ":2", "messages[1].weight is string"),
        ("too_large", "1e39", ":2", "messages[1].weight is 1e+39"), ("nan", "NaN", ":2:102", "NaN and Infinity")]),
    ("sharegpt_role", "r.jsonl", '{"conversations": [{"from": "robot", "value": "a"}]}\n', ":1", "unknown role"),
    ("sharegpt_value", "r.jsonl", '{"conversations": [{"from": "gpt"}]}\n', ":1", "conversations[0]"),
    ("sharegpt_empty", "r.jsonl", '{"conversations": []}\n', ":1", "conversations is empty"),
    ("alpaca_history", "r.jsonl", '{"instruction": "a", "output": "b", "history": [["x"]]}\n', ":1", "history[0]"),
    ("alpaca_output", "r.jsonl", '{"instruction": "a", "output": 1}\n', ":1", "output is number"),
    ("completion_is_list", "r.jsonl", '{"prompt": "a", "completion": []}\n', ":1", "both must be strings, or both lists"),
    ("completion_missing", "r.jsonl", '{"prompt": "a", "completion": "b"}\n{"prompt": "a"}\n', ":2", "missing"),
    # tokens
    ("ids_empty", "r.jsonl", '{"input_ids": [], "labels": []}\n', ":1", "input_ids is empty"),
    ("ids_negative", "r.jsonl", '{"input_ids": [1, -2], "labels": [1, 2]}\n', ":1", "input_ids[1] is -2"),
    ("ids_float", "r.jsonl", '{"input_ids": [1, 2.5], "labels": [1, 2]}\n', ":1", "input_ids[1] is number"),
    ("ids_out_of_vocabulary", "r.jsonl", '{"input_ids": [1, 999999], "labels": [1, 2]}\n', ":1", "tokens (ids 0 to"),
    ("labels_short", "r.jsonl", '{"input_ids": [1, 2], "labels": [1]}\n', ":1", "labels has 1 values"),
    ("labels_missing", "r.jsonl", '{"input_ids": [1, 2]}\n', ":1", '"labels" is missing'),
    ("labels_minus_101", "r.jsonl", '{"input_ids": [1, 2], "labels": [1, -101]}\n', ":1", "labels[1] is -101"),
    ("mask_with_hole", "r.jsonl", '{"input_ids": [1, 2, 3], "labels": [1, 2, 3], "attention_mask": [1, 0, 1]}\n', ":1",
     "attention_mask has a 0"),
    ("all_masked", "r.jsonl", '{"input_ids": [1, 2], "labels": [-100, -100]}\n', ":1", "is masked"),
    # CSV and packed files
    ("csv_fields", "r.csv", "prompt,completion\na,b\nc\n", ":3:1", "1 fields, the header 2"),
    ("csv_open_quote", "r.csv", 'prompt,completion\na,"b\n', ":2:3", "never closed"),
    ("csv_double_column", "r.csv", "text,text\na,b\n", ":1:1", "twice"),
    ("csv_header_only", "r.csv", "text\n", "", "no example"),
    ("txt_utf8", "r.txt", b"good\nbad \xff\n", ":2:5", "UTF-8"),
    ("gzip_cut", "r.jsonl.gz", gzip.compress(OK.encode() * 50)[:-9], "", "ends early"),
    ("gzip_damaged", "r.jsonl.gz", gzip.compress(OK.encode())[:-8] + bytes(8), "", "gzip data is corrupt"),
    ("bad_row_in_gzip", "r.jsonl.gz", gzip.compress((OK + "\n{]\n").encode()), ":2:2", "invalid JSON"),
]

GOOD = [
    ("weights", "r.jsonl", (WEIGHED % "0.5" + "\n" + WEIGHED % "3").encode(), 2),
    ("bom", "r.jsonl", b"\xef\xbb\xbf" + OK.encode() + b"\n", 1),
    ("crlf_and_blank_lines", "r.jsonl", (OK + "\r\n\r\n" + OK + "\r\n").encode(), 2),
    ("no_last_line_end", "r.jsonl", (OK + "\n" + OK).encode(), 2),
    ("surrogate_pair", "r.jsonl", b'{"text": "\\ud83d\\ude00"}\n', 1),
    ("array", "r.json", ("[\n" + OK + ",\n" + OK + "\n]\n").encode(), 2),
    ("csv", "r.csv", b'prompt,completion\r\n"a, ""b""",c\r\n', 1),
    ("txt", "r.txt", b"one\n\ntwo\n", 2),
    ("gzip", "r.jsonl.gz", gzip.compress((OK + "\n").encode()), 1),
]


def tokenize(tmp_path, name, content, **changes):
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    profile = {"model": str(MODEL), "datasets": [{"path": str(path)}], "output_dir": str(tmp_path / "run"), **changes}
    (tmp_path / "profile.json").write_text(json.dumps(profile))
    return path, lora_train("tokenize", "--json", "--show", "100", "--profile", tmp_path / "profile.json")


@pytest.mark.parametrize("name, content, place, message", [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_is_refused_at_its_place(tmp_path, name, content, place, message):
    path, run = tokenize(tmp_path, name, content)
    assert run.code == DATA, run
    error = run.json_lines()[-1]["error"]
    assert error["kind"] == "data"
    assert error["where"] == f"{path}{place}", error
    assert message in error["message"], error


@pytest.mark.parametrize("name, content, num_rows", [case[1:] for case in GOOD], ids=[case[0] for case in GOOD])
def test_is_read(tmp_path, name, content, num_rows):
    _, run = tokenize(tmp_path, name, content)
    assert run.code == 0, run
    assert len(run.json_lines()) == num_rows


def test_bad_examples_are_dropped_and_counted_when_asked(tmp_path):
    content = "\n".join([OK, "{]", OK, '{"text": 5}']) + "\n"
    path, run = tokenize(tmp_path, "r.jsonl", content, on_bad_row="drop", max_drop_fraction=0.5)
    assert run.code == 0, run
    assert len(run.json_lines()) == 2
    assert f"2 (50.00%) malformed, dropped (on_bad_row: drop); first: {path}:2:2" in run.stderr, run
    _, run = tokenize(tmp_path, "r.jsonl", content, on_bad_row="drop", max_drop_fraction=0.4)
    assert run.code == DATA and "max_drop_fraction" in run.stderr, run
