"""Expressions and small templates give what jinja2 gives as transformers sets it up, or are refused by name."""

import itertools

import chat_oracle
import pytest

CHAT = {"add_generation_prompt": False, "kwargs": {
    "xs": [1, 2, 3], "pair": [1, 2], "named": {"a": 1, "b": "z"}, "rows": [{"r": "a", "c": 1}, {"r": "B", "c": 2}, {"r": "a", "c": 3}],
    "values": [0, 3, -7, 123456789, True, 2.5, -0.0, 1e22, 1234.5678, "x", "h\u00e9llo", "", None, [1, "a"], {"a": 1}]},
        "messages": [{"role": "user", "content": "Hi \u00e9"}, {"role": "assistant", "content": "Hello!"}]}
MACRO = "{% macro f(a, b=9) %}<{{ a }},{{ b }},{{ varargs }},{{ kwargs }}>{% endmacro %}"

LOOPS = [
    "{% for x in xs %}{% if x == 2 %}{% continue %}{% endif %}{{ x }}{% else %}E{% endfor %}",
    "{% for x in xs %}{% continue %}{{ x }}{% else %}E{% endfor %}",
    "{% for x in xs %}{{ x }}{% break %}{% else %}E{% endfor %}",
    "{% for x in xs %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% else %}E{% endfor %}",
    "{% for x in xs if x > 5 %}{{ x }}{% else %}E{% endfor %}",
    "{% for x in xs if x > 2 %}{% continue %}{% else %}E{% endfor %}",
    "{% for y in xs %}{% for x in [] %}{% else %}E{% continue %}{% endfor %}|{% endfor %}",
    "{% for y in xs %}{% for x in [] %}{% else %}E{{ loop.index }}{% break %}{% endfor %}|{% endfor %}",
    "{% for y in xs %}{% for x in [1] recursive %}{% continue %}{% else %}E{% break %}{% endfor %}|{% endfor %}",
    "{% for x in [] %}{% else %}E{% break %}{% endfor %}",
    "{% for y in xs %}{% for x in xs %}{% if x == y %}{% break %}{% endif %}{% else %}E{{ y }}{% endfor %}{% else %}F{% endfor %}",
    "{% for x in [[1], []] recursive %}{% if x is iterable %}{{ loop(x) }}{% continue %}{% endif %}{{ x }}{% else %}E{% endfor %}",
    "{% set ns = namespace(n=0) %}{% for x in xs %}{% set ns.n = x %}{% continue %}{% else %}{{ ns.n }}{{ x }}{% endfor %}"]

CALLS = [MACRO + "{{ f" + arguments + " }}" for arguments in (
    "(*pair)", "(1, *pair)", "(*xs)", "(*pair, c=3)", "(c=3, *pair)", "(*pair, a=3)", "(**named)", "(**{'c': 1})", "(1, **{'b': 2, 'q': 3})",
    "(*xs, **{'q': 3})", "(a=1, **named)", "(*'xy')", "(*named)", "(*pair | reverse)", "(*5)", "(**5)", "(*nope)", "(**nope)", "(*pair, *pair)",
    "(**named, c=1)", "(**named, *pair)", "(*pair, 1)", "(a=1, a=2)", "(1, a=2)", "(*pair or [])", "(**named if false else {})", "(*xs[1:],)")]
CALLS += ["{{ range(*pair) | list }}", "{{ 'a,b'.split(*[',']) }}", "{{ 4 is divisibleby(*[2]) }}", "{{ dict(c=1, **named) }}",
          "{{ xs | join(**{'d': '-'}) }}", "{{ namespace(**named).b }}", "{{ 'q'|int(*[3]) }}",
          "{% macro g() %}{{ caller(*pair) }}{% endmacro %}{% call(x, y) g() %}{{ x }}-{{ y }}{% endcall %}",
          "{% macro g() %}{{ caller(1, 2, k=3) }}{% endmacro %}{% call(x) g() %}{{ x }}{{ varargs }}{{ kwargs }}{% endcall %}",
          "{% macro g(a) %}{{ a }}{{ varargs }}{{ caller() }}{% endmacro %}{% call g(*xs) %}!{% endcall %}",
          "{% macro g() %}{% endmacro %}{{ g(1) }}", "{% macro g(*a) %}{% endmacro %}"]

GROUPS = ["{% for r, items in rows | groupby('r') %}{{ r }}{{ items }}{% endfor %}",
          "{% for g in rows | groupby('r', case_sensitive=true) %}{{ g.grouper }}{{ g.list }}{{ g[0] }}{{ g }}{% endfor %}",
          "{{ rows | groupby('zz', default='q') }}", "{{ rows | groupby('zz') }}", "{{ rows[:1] | groupby('zz') }}", "{{ [] | groupby('zz') }}",
          "{{ rows | groupby('c') | map('first') | list }}", "{{ rows | groupby('c') | map(attribute='list') | list }}",
          "{{ [[1, 2], [1, 3], [0, 1]] | groupby(0) }}", "{{ [{'a': {'b': 1}}, {'a': {'b': 0}}] | groupby('a.b') }}",
          "{{ rows | groupby(attribute='r') | length }}", "{{ rows | groupby('r') | tojson }}", "{{ rows | groupby('r,c') }}",
          "{{ rows | groupby }}", "{{ 5 | groupby('r') }}", "{{ (rows | groupby('r'))[0] == ('a', [rows[0], rows[2]]) }}",
          "{{ [{'x': 1}, {'x': 'a'}] | groupby('x') }}", "{{ (rows | groupby('r'))[0].count('a') }}{{ (rows | groupby('r'))[0].nothing }}"]

FORMATS = ["{{ '%s and %s' % (1, 'b') }}", "{{ '%s' % xs }}", "{{ '%s%%' % 5 }}", "{{ '%(a)s-%(b)5s|' % named }}", "{{ '%s' % named }}",
           "{{ 'no' % 1 }}", "{{ 'no' % xs }}", "{{ 'no' % named }}", "{{ 'no' % () }}", "{{ 'no' % 'x' }}", "{{ 'no' % none }}", "{{ 'no' % nope }}",
           "{{ '%s' % nope }}", "{{ '%d' % nope }}", "{{ '%s %s' % 1 }}", "{{ '%s' % (1, 2) }}", "{{ '%(a)s' % 1 }}", "{{ '%(q)s' % named }}",
           "{{ '%' % 1 }}", "{{ '%5' % 1 }}", "{{ '100% sure' % () }}", "{{ '%s, %s!' % ('a', messages[1].content) }}", "{{ '%(a)s%%%(a)d' % named }}",
           "{{ '%s' | format(1) }}", "{{ '%(x)s %(y)r' | format(x=1, y='q') }}", "{{ '%s' | format }}", "{{ '%s%(x)s' | format(1, x=2) }}",
           "{{ '{} {}'.format(1, 'b') }}", "{{ '{1} {0}'.format(1, 'b') }}", "{{ '{x}{y!r}'.format(x=1, y='q') }}", "{{ '{0}{0}'.format('ab') }}",
           "{{ '{}{1}'.format(1, 2) }}", "{{ '{0}{}'.format(1, 2) }}", "{{ '{{}}{}'.format(1) }}", "{{ '{'.format() }}", "{{ '}'.format() }}",
           "{{ '{}'.format() }}", "{{ '{x}'.format(y=1) }}", "{{ '{0.role}'.format(messages[0]) }}", "{{ '{m[role]}{m[content]}'.format(m=messages[0]) }}",
           "{{ '{0[1]}{0[0]}'.format(xs) }}", "{{ '{0[role].nothing}|'.format(messages[0]) }}", "{{ '{0[9]}|'.format(xs) }}", "{{ '{!s}'.format(none) }}",
           "{{ '{!x}'.format(1) }}", "{{ '{!r:>9}|'.format('a') }}", "{{ '{:>5}|{:<5}|{:^5}|{:*^7}'.format(1, 2, 'c', 'd') }}", "{{ '{}|{}'.format(nope, none) }}",
           "{{ '{:5}'.format(nope) }}", "{{ '{}'.format(1, 2) }}", "{{ 'a{b'.format(b=1) }}", "{{ '{a b}'.format(**{'a b': 3}) }}", "{{ '{0[a}'.format(named) }}",
           "{{ '{0[a]b}'.format(named) }}", "{{ '{0.}'.format(named) }}", "{{ '{:\u00e9>4}|'.format('\u00df') }}", "{{ '{:04,}'.format(1) }}",
           "{{ '%r|%5r' % (nope, nope) }}", "{{ '%5%' % () }}", "{{ '%5%' % 1 }}", "{{ '%(a)%' % named }}", "{{ '%(q)%' % named }}", "{{ '%.2%' % pair }}", "{{ '%-%' % 1 }}"]

FLAGS = ["", "-", "0", "+", " ", "#", "-0", "0+", "+ "]


def outcome(ours, template, chat):
    """(what differs or "", whether we render it); what we call unbuilt may be anything."""
    theirs = chat_oracle.render_with_transformers(template, chat, {})
    answer = ours.set_template(template, None)
    got = (f"{answer['error']}: {answer['message']}",) if "error" in answer else ours.render(chat)
    if len(got) == 1 and "not supported" in got[0]:
        return "", False
    same = len(theirs) == len(got) and (len(got) == 1 or theirs[0] == got[0])
    return "" if same else f"{template} {chat['kwargs']}\n  transformers: {theirs[0]!r}\n  ours: {got[0]!r}", len(got) == 2


def check_all(ours, cases, least_rendered):
    """cases: pairs of a template and a chat."""
    outcomes = [outcome(ours, *case) for case in cases]
    different = [difference for difference, _ in outcomes if difference]
    assert not different, f"{len(different)} of {len(cases)}:\n" + "\n".join(different[:40])
    assert sum(rendered for _, rendered in outcomes) >= least_rendered


def check_formats(ours, template, patterns, least_rendered):
    """Each pattern with one of the values in turn."""
    values = CHAT["kwargs"]["values"]
    check_all(ours, [(template, CHAT | {"kwargs": {"pattern": f"[{pattern}]", "value": values[i % len(values)]}})
                     for i, pattern in enumerate(patterns)], least_rendered)


@pytest.mark.parametrize("templates", [LOOPS, CALLS, GROUPS, FORMATS], ids=["loops", "calls", "groups", "formats"])
def test_templates_render_as_jinja_does(templates, ours):
    check_all(ours, [(template, CHAT) for template in templates], len(templates) // (5 if templates is FORMATS else 2))


def test_percent_formats_are_pythons(ours):
    directives = ["%" + flags + width + precision + kind for flags in FLAGS for width in ("", "9")
                  for precision in ("", ".3", ".0", ".") for kind in "sdifFeEgGxXor"] * 2
    check_formats(ours, "{{ pattern % value }}", directives, 200)
