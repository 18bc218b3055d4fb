"""Templates that are broken, hostile or refuse a chat: which error, at which line, and never a crash or a hang."""

import pytest

CHAT = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!", "tool_calls": [{"name": "f"}]}]}

# name, template, kind of error (format = exit code 4, the template is at fault; data = 3, the chat does not suit it), line,
# a part of the message
CASES = [
    ("UnclosedFor", "{% for m in messages %}\n\nx\n", "format", 3, "endfor"),
    ("UnclosedMacro", "{% macro f() %}\n{% endfor %}", "format", 2, "endfor"),
    ("UnclosedRaw", "{% raw %}{{ x }}\n", "format", 1, "endraw"),
    ("UnclosedGeneration", "{% generation %}x", "format", 1, "endgeneration"),
    ("StrayElse", "{% else %}", "format", 1, "else"),
    ("UnknownFilterInMap", "{{ messages |\n map('nofilter') | list }}", "format", 2, "nofilter"),
    ("BreakOutOfGeneration", "{% for m in messages %}{% generation %}\n{% break %}{% endgeneration %}{% endfor %}", "format", 2, "outside a loop"),
    ("BadEscape", "{{ '\\u12' }}", "format", 1, "escape"),
    ("AssignToConstant", "{% set none = 1 %}", "format", 1, "cannot assign"),
    ("CallOfNoCall", "{% call x %}{% endcall %}", "format", 1, "call"),
    ("NestedLists", "{{ " + "[" * 5000 + "]" * 5000 + " }}", "format", 1, "64 levels"),
    ("NestedBlocks", "{% if 1 %}\n" * 100 + "{% endif %}" * 100, "format", 64, "64 levels"),
    ("NestedNot", "{{ " + "not " * 9999 + "1 }}", "format", 1, "64 levels"),
    ("LongPostfixChain", "{{ x" + "[0]" * 5000 + " }}", "format", 1, "400 steps"),
    ("EndlessCaller", "{% macro f() %}{{ caller() }}{% call f() %}x{% endcall %}{% endmacro %}{% call f() %}{% endcall %}", "format", 1, "32 levels"),
    ("EndlessRecursiveLoop", "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}", "format", 1, "32 levels"),
    ("DeepMacros", "{% macro f(n) %}" + "{% if 1 %}" * 50 + "{{ " + "(1 + " * 40 + "(f(n)|length)" + ")" * 40 + " }}" + "{% endif %}" * 50 + "{% endmacro %}{{ f(1) }}", "format", 1, "deep"),
    ("GrowingMethods", "{% set ns = namespace(f=[1]) %}{% for i in range(99999) %}{% set ns.f = [ns.f.index] %}{% endfor %}", "format", 1, "100 levels"),
    ("EscapedLoop", "{% set ns = namespace() %}{% for i in [1] %}{% set ns.l = loop %}{% endfor %}{{ ns.l.first }}", "format", 1, "loop"),
    ("RepeatedList", "{{ [1] * 10**9 }}", "format", 1, "1,000,000 items"),
    ("HugePadding", "{{ 'a'.ljust(10**12) }}", "format", 1, "16 MiB"),
    ("HugeIndent", "{{ 'a' | indent(10**12) }}", "format", 1, "256"),
    ("GiantJoin", "{{ range(100000) | join('a' * 10000) }}", "format", 1, "16 MiB"),
    ("GiantReplace", "{{ ('a' * 100000).replace('a', 'b' * 100000) }}", "format", 1, "16 MiB"),
    ("BillionLaughs", "{% set ns = namespace(a=['ha']) %}{% for i in range(60) %}{% set ns.a = [ns.a, ns.a] %}{% endfor %}\n{{ ns.a }}", "format", 2, "16 MiB"),
    ("BillionLaughsInJson", "{% set ns = namespace(a=['ha']) %}{% for i in range(60) %}{% set ns.a = [ns.a, ns.a] %}{% endfor %}\n" "{{ ns.a | tojson | length }}", "format", 2, "MiB"),
    ("BillionLaughsCompared", "{% set ns = namespace(a=[1], b=[1]) %}{% for i in range(60) %}{% set ns.a = [ns.a, ns.a] %}" "{% set ns.b = [ns.b, ns.b] %}{% endfor %}\n{{ ns.a == ns.b }}", "format", 2, "MiB"),
    ("ManyLargeTexts", "{{ (['a' * 10000000] * 100000) | map('upper') | list | length }}", "format", 1, "MiB"),
    ("ManyLists", "{% set ns = namespace(a=[]) %}{% for i in range(99999) %}{% set ns.a = ns.a + [range(100000) | list] %}{% endfor " "%}", "format", 1, "MiB"),
    ("LongCharacters", "{{ ('a' * 16000000) | list | length }}", "format", 1, "MiB"),
    ("SlowSearch", "{{ ('a' * 8000000).find('a' * 4000000 ~ 'b') }}", "format", 1, "MiB"),
    ("SlowUnique", "{{ range(100000) | unique | list | length }}", "format", 1, "MiB"),
    ("NegatedString", "{{ -'a' }}", "data", 1, "unary -"),
    ("UnknownKeyword", "{% macro f(a) %}{% endmacro %}\n{{ f(b=1) }}", "data", 2, "'b'"),
    ("TooManyArguments", "{{ 'a' | upper(1) }}", "data", 1, "at most 0"),
    ("UnbuiltMethod", "{{ 'a'.encode() }}", "format", 1, "str.encode() is not supported"),
    ("GeneratorLength", "{{ messages | map(attribute='role') | length }}", "data", 1, "no len()"),
    ("UndefinedJson", "{{ nothing | tojson }}", "data", 1, "undefined"),
]


@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
def test_malformed_template_names_kind_line_and_reason(case, ours):
    _, source, kind, line, message = case
    answer = ours.set_template(source, None) or ours.ask(CHAT)
    assert (answer.get("error"), answer.get("where")) == (kind, f"t:{line}"), answer
    assert message in answer["message"]
