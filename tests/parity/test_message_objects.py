"""What a template sees of an example's messages is what jinja2 sees: the example's own objects, in order, with what they lack."""

import json
import random

import chat_oracle
import pytest

TEMPLATES = [
    "{% for m in messages %}{{ m | tojson }}\n{% endfor %}",
    "{{ messages }}",
    "{% for m in messages %}{% for key, value in m.items() %}{{ key }}={{ value }};{% endfor %}{{ m | length }}\n{% endfor %}",
    "{% for m in messages %}{{ m.content is defined }}{{ m['content'] is none }}{{ m.content is string }}{{ 'content' in m }}{{ m.get('content', 7) }}|{% endfor %}",
    "{% for m in messages %}{{ m.content or 'nothing' }}{{ m.tool_calls | tojson if m.tool_calls is defined }}{{ m.name | default('-') }}|{% endfor %}",
    "{% for m in messages %}{% if m.content is defined and m.content is not none %}{{ m.content + '!' }}{% else %}{{ m.tool_calls[0].function.name }}{% endif %}{% endfor %}"]

EXTRAS = {"name": ["f", ""], "train": [True, None], "weight": [1, 1.0, None], "reasoning_content": ["hm", None, ""], "tool_call_id": ["abcDEF123"],
          "x": [{"b": 1, "a": [None, 1.5, -0.0, 1e22, 2**63 - 1]}, [], 0], "tool_calls": [[{"function": {"name": "f", "arguments": {"q": 1, "a": "\u00e9"}}}]]}


def random_message(rng, role):
    fields = {"role": role, "content": rng.choice(["a", "", "b\n", "\u4f60 \"x\""])}
    for name in rng.sample(sorted(EXTRAS), rng.randint(0, 4)):
        if role == "assistant" or name not in ("train", "weight"):
            fields[name] = rng.choice(EXTRAS[name])
    if role == "assistant" and "tool_calls" in fields and rng.random() < 0.7:
        fields["content"] = None
        if rng.random() < 0.5:
            del fields["content"]
    keys = list(fields)
    if rng.random() < 0.6:
        rng.shuffle(keys)
    return {key: fields[key] for key in keys}


@pytest.mark.parametrize("source", TEMPLATES)
@pytest.mark.parametrize("field_map", [{}, {"role": "from", "content": "text"}], ids=["plain", "renamed"])
def test_messages_reach_the_template_as_they_are(source, field_map, ours):
    assert ours.set_template(source, None) == {}
    rng = random.Random(source)
    for _ in range(150):
        messages = [random_message(rng, role) for role in rng.choices(["system", "user", "assistant", "assistant", "tool"], k=rng.randint(1, 4))]
        theirs = chat_oracle.render_with_transformers(source, {"messages": messages, "add_generation_prompt": False}, {})
        row = {"messages": [{field_map.get(key, key): value for key, value in m.items()} for m in messages]}
        got = ours.ask({"row": json.dumps(row), "field_map": field_map, "null_fields": "keep"})
        assert ("error" in got) == (len(theirs) == 1), (row, theirs, got)
        assert got.get("text") == (theirs[0] if len(theirs) > 1 else None), row


CALLS = [{"name": "f", "arguments": {"b": 1, "a": "\u00e9"}}, {"name": "g", "arguments": {}}]


@pytest.mark.parametrize("value", [CALLS[0], CALLS, CALLS[1:]])
def test_function_calls_are_tool_calls(value, ours):
    source = "{% for m in messages %}{{ m | tojson }}{% endfor %}"
    assert ours.set_template(source, None) == {}
    row = {"conversations": [{"from": "human", "value": "q"}, {"from": "function_call", "value": json.dumps(value)},
                             {"from": "observation", "value": "{}"}, {"from": "gpt", "value": "a"}]}
    calls = value if isinstance(value, list) else [value]
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": c} for c in calls]},
                {"role": "tool", "content": "{}"}, {"role": "assistant", "content": "a"}]
    theirs = chat_oracle.render_with_transformers(source, {"messages": messages, "add_generation_prompt": False}, {})
    assert ours.ask({"row": json.dumps(row), "sharegpt": True})["text"] == theirs[0]
