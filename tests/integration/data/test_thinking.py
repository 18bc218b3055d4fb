"""The key `thinking`, from the command line: the text that is trained, the ledger, and what `keep` refuses."""

import json

import pytest
from command import ROOT, expect_end, good_run, lora_train

MODEL = ROOT / "examples/tiny-math/model"
ROWS = [{"messages": [{"role": "user", "content": "1 + 2"}, {"role": "assistant", "content": "3", "reasoning_content": "2 + 1"}]},
        {"messages": [{"role": "user", "content": "1 + 2"}, {"role": "assistant", "content": "<think>\n2 + 1\n</think>\n\n3"},
                      {"role": "user", "content": "4 + 5"}, {"role": "assistant", "content": "9"}]}]


@pytest.fixture
def command(tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS))

    def arguments(name, *settings):
        return [name, "--model", MODEL, "--train-data", rows, "chat_template=qwen3", "device=cpu", f"output_dir={tmp_path / 'run'}", *settings]
    return arguments


def test_tokenize_shows_what_is_trained_and_counts(command):
    for thinking, first, counts in (("template", "2 + 1", "1 kept, 1 dropped, 0 written empty"), ("drop", "", "0 kept, 1 dropped, 1 written empty"),
                                    ("empty", "", "0 kept, 1 dropped, 1 written empty")):
        run = good_run(*command("tokenize", f"thinking={thinking}", "--show", "2"))
        assert f"2 turns with thoughts: {counts}" in run.stdout and f"{counts} (thinking: {thinking})" in run.stderr, run
        texts = [line["text"] for line in good_run(*command("tokenize", f"thinking={thinking}", "--show", "2", "--json")).json_lines()]
        assert f"<think>\n{first}\n</think>\n\n3<|im_end|>" in texts[0] and "assistant\n3<|im_end|>" in texts[1], texts


@pytest.mark.parametrize("name", ["check", "tokenize", "train"])
def test_keep_refuses_by_line_what_the_template_leaves_out(name, command):
    expect_end(lora_train(*command(name, "thinking=keep")), 3, "rows.jsonl:2: messages[1] has thoughts (content)", "set thinking to template or drop")
