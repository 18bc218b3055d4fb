"""Writes into expressions.inc what jinja2, set up as transformers does, makes of the template of each row.

Add a row with an empty result, `{"TEMPLATE", ""},`, and run this with the Python of .deps/venv; chat_template_test.cpp compares.
"""
import ast
import json
import pathlib
import re

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": " Hi \u00e9\n"},
    {"role": "assistant", "content": "Hello!"},
    {"role": "user", "content": "Bye"},
    {"role": "assistant", "content": "",
     "tool_calls": [{"name": "f", "arguments": {"x": 1, "y": [True, None, 2.0, "<\u00e9>"]}}]}]
ROW = re.compile(r'\{("(?:[^"\\]|\\.)*"), ("(?:[^"\\]|\\.)*")\},')


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def literal(text):
    """As a string of C++, in ASCII and without trigraphs."""
    plain = {ord('"'): '\\"', ord("\\"): "\\\\", ord("\n"): "\\n", ord("?"): "\\077"}
    return '"' + "".join(plain.get(b, chr(b) if 32 <= b < 127 else f"\\{b:03o}") for b in text.encode()) + '"'


def main():
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    environment.filters["tojson"] = tojson
    file = pathlib.Path(__file__).with_name("expressions.inc")
    rows = [f"// Template and what jinja2 {jinja2.__version__} makes of it on kChat; the results are written by make_expressions.py."]
    for line in file.read_text(encoding="ascii").splitlines()[1:]:
        source = ast.literal_eval(ROW.fullmatch(line.strip())[1]).encode("latin1").decode()
        rows.append(f"    {{{literal(source)}, {literal(environment.from_string(source).render(messages=CHAT))}}},")
    file.write_text("\n".join(rows) + "\n", encoding="ascii")


main()
