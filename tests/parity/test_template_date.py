"""template_date: a template that writes the date renders what transformers does on that day, at noon."""

import datetime
import importlib.util
import json
from pathlib import Path

import chat_oracle
import pytest
from command import ROOT, good_run
from transformers.utils import chat_template_utils

DAY = datetime.datetime(2024, 2, 29, 12)
CHAT = {"messages": [{"role": "user", "content": "Which day is it?"}, {"role": "assistant", "content": "The 29th."}]}


class Noon(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return DAY


@pytest.mark.parametrize("name", ["llama3_2.jinja", "gptoss.jinja"])
def test_the_text_is_that_of_transformers_on_that_day(name, tmp_path, monkeypatch):
    trl = importlib.util.find_spec("trl")  # found, not imported
    template = Path(trl.submodule_search_locations[0]) / "chat_templates" / name
    monkeypatch.setattr(chat_template_utils, "datetime", Noon)
    model = ROOT / "examples/tiny-math/model"
    tokens = chat_oracle.special_tokens(model)
    [theirs, *_] = chat_oracle.render_with_transformers(template.read_text(), {**CHAT, "add_generation_prompt": False}, tokens)
    assert "29 Feb 2024" in theirs or "2024-02-29" in theirs
    (tmp_path / "rows.jsonl").write_text(json.dumps(CHAT) + "\n")
    run = good_run("tokenize", "--model", model, "--train-data", tmp_path / "rows.jsonl", f"chat_template={template}", "template_date=2024-02-29",
                   f"dataset_prepared_path={tmp_path}", "--show", "1", "--json")
    assert run.json_lines()[0]["text"] == theirs
