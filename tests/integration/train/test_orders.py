"""examples/orders: no training example has a value that is held out (test_examples.py trains it)."""

import importlib.util
import json
import random
import re
import sys

import pytest

from command import ROOT

EXAMPLE = ROOT / "examples/orders"


def orders(name):
    rows = [json.loads(line)["messages"] for line in (EXAMPLE / name).read_text().splitlines()]
    return [json.loads(messages[-1]["content"], parse_float=str) for messages in rows]


@pytest.fixture
def pretrain(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLE))
    spec = importlib.util.spec_from_file_location("orders_pretrain", EXAMPLE / "pretrain.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.modules.pop("words", None)


def test_no_held_out_value_is_trained_on_and_no_order_is_pretrained_on(pretrain):
    trained, held_out = orders("train.jsonl"), orders("heldout.jsonl")
    assert len(trained) == 1000 and len(held_out) == 200
    rng = random.Random(1)
    text = "\n".join(pretrain.document(rng) for _ in range(5000))
    pretrained = set(re.findall(r"\d+\.\d\d", text)) | set(re.findall(r"\d+ [A-Z]\w+", text))
    for key in ("name", "city", "item", "total", "date"):
        values = {order[key] for order in held_out}
        assert len(values) > 10
        assert values.isdisjoint(order[key] for order in trained), key
        assert values.isdisjoint(pretrained), key
    assert not re.search(r'\{"\w+": ', text)
