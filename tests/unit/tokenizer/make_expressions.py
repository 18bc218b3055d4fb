"""Writes expressions.inc: what jinja2, set up as transformers does, makes of the expressions below.

Run it with the Python of .deps/venv when an expression is added; chat_template_test.cpp compares.
"""
import pathlib
import json

from jinja2.sandbox import ImmutableSandboxedEnvironment
import jinja2

src=r'''
{{ 1 + 2 * 3 - 4 // 3 }} {{ 7 % 3 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 2 ** 10 }} {{ 7 / 2 }}
{{ 1.0 }} {{ 1e20 }} {{ 0.00001 }} {{ 123456.5 }} {{ 1 / 3 }}
{{ 'a' ~ 1 ~ none ~ true ~ [1, 'x'] }}
{{ 'a' * 3 }}{{ [1] * 2 }}{{ [1] + [2] }}
{{ 1 < 2 < 3 }} {{ 1 == 1.0 }} {{ 'a' in 'cab' }} {{ 'x' not in ['x'] }} {{ not 1 == 2 }} {{ 'role' in messages[0] }}
{{ 'yes' if messages else 'no' }}{{ 'x' if false }}
{{ true and 'b' }} {{ '' or 'c' }} {{ none is none }} {{ x is defined }} {{ x is not defined }} {{ x is undefined and 1 is number }}
{{ messages[1].content[1:3] }} {{ 'abcdef'[::-2] }} {{ 'abc'[-1] }} {{ [1,2,3][1:] }} {{ [1,2,3][::-1] }} {{ 'abc'[5:] }}
{{ messages[1].content | trim }}| {{ ' xaax '.strip().strip('x') }} {{ 'a,b,,c'.split(',') }} {{ ' a  b '.split() }} {{ 'a b c'.split(' ', 1) }} {{ 'a b c'.rsplit(' ', 1) }}
{{ 'a b  c d'.split(none, 1) }}{{ 'a b  c'.split(maxsplit=1) }}
{{ 'Hello'.upper() }} {{ 'hELLO wORLD'.title() }} {{ 'hELLO'.capitalize() }} {{ 'a-b'.replace('-', '+') }} {{ 'abc'.find('c') }} {{ 'abab'.count('ab') }}
{{ 'abc'.startswith('ab') }} {{ 'abc'.endswith(('x', 'c')) }} {{ ', '.join(['a', 'b']) }} {{ 'a\nb\r\nc'.splitlines() }}
{{ messages | length }} {{ messages | map(attribute='role') | list }} {{ messages | selectattr('role', 'equalto', 'user') | list | length }}
{{ messages | rejectattr('role', 'in', ['user', 'system']) | map(attribute='content') | join('|') }}
{{ messages[4].tool_calls | tojson }}
{{ messages[4].tool_calls[0].arguments | tojson(indent=2) }}
{{ {'b': 1, 'a': [1.5, 'q"\\']} | tojson }} {{ {'b': 1, 'a': 2} | dictsort }} {{ [3,1,2] | sort }} {{ ['b','A'] | sort(reverse=true) }}
{{ messages[4].tool_calls[0].items() | list }} {{ messages[0].get('name', 'none') }} {{ messages[0].keys() | list }}
{{ '%r' % nope }}{{ '%11r|' % nope }}{{ '%.3r' % nope }}{{ '%r' % [nope] }}{{ '%%' % () }}{{ 1e-999 }}
{{ none }} {{ true }} {{ [none, false, 'it''s', "it's", 'q"'] }} {{ {'a': none} }}
{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + loop.index %}{% endfor %}{{ ns.n }}
{% set n = 1 %}{% for m in messages %}{% set n = n + 1 %}{% endfor %}{{ n }}
{% for m in messages %}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.revindex }}{{ loop.length }}{% if not loop.last %}{{ loop.nextitem.role }}{% endif %};{% endfor %}
{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}={{ v }} {% endfor %}{% for x in [] %}{% else %}empty{% endfor %}
{% for m in messages if m.role == 'user' %}{{ loop.index }}/{{ loop.length }} {% endfor %}
{% for i in range(5) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}
{% macro tag(x, y='d') %}<{{ x }}:{{ y }}>{% endmacro %}{{ tag(1) }}{{ tag('a', y=2) }}
{% set x %}block {{ 1 + 1 }}{% endset %}{{ x | upper }}
{% set a, b = 1, 'z' %}{{ a }}{{ b }}{{ (1, 2) | length }}
{{ '%s' | default('q') }}{{ nope | default('q') }}{{ '' | default('q', true) }}{{ nope }}{{ none | default('n') }}
{{ '5' | int + 1 }} {{ 'x' | int }} {{ '2.5' | float }} {{ 3.9 | int }} {{ -3 | abs }} {{ [1, 2] | sum }} {{ [1, 3, 2] | max }} {{ ['b', 'a'] | min }}
{{ [1, 2, 3] | first }} {{ [1, 2, 3] | last }} {{ 'abc' | first }} {{ 'abc' | reverse }} {{ [1, 1, 2] | unique | list }} {{ 'a' | string }}
{{ 'a\nb\n\nc' | indent(2) }}|{{ 'a\nb' | indent(2, true) }}
{{ 3 is odd }} {{ 4 is even }} {{ 4 is divisibleby 2 }} {{ 'a' is string }} {{ messages is iterable }} {{ messages[0] is mapping }} {{ 1 is integer }} {{ 1.5 is float }} {{ true is boolean }} {{ 'a' is sequence }} {{ 1 is eq 1 }} {{ 1 is in [1] }} {{ true is true }}
{{ messages[0]['content'] }}{{ messages[0].missing }}{{ messages[99] }}{{ messages[-1].role }}
{{ "tab\t nl\\n \u00e9 \x41" }} {{ 'a' 'b' }}
{{ range(3) | list }} {{ range(2, 8, 3) | list }} {{ range(3, 0, -1) | list }} {{ dict(a=1).a }}
{{ -2 ** 2 }} {{ 2 - 1 - 1 }} {{ 'a' if 1 > 2 else 'b' if 0 else 'c' }} {{ [1, 2][0] }} {{ 10 % 4 ~ 'x' }}
{{ messages == messages[:] }} {{ messages[1] == messages[3] }} {{ {'a': 1} == {'a': 1} }} {{ [1] != [1] }}
{{ '<a:>' | upper }} {{ '<A`>B' | lower }} {{ '<e/>' | length }} {{ 'x' | replace('x', 'y') }} {{ ['a', 'b'] | map('upper') | join(',') }} {{ [0, 1, none, 'a'] | select | list }}
{% for m in messages %}{% continue %}{{ m.role }}{% else %}E{% endfor %}{% for m in messages %}{{ m.role }}{% break %}{% else %}E{% endfor %}{% for m in messages if m.x %}x{% else %}F{% endfor %}
{% macro f(a, b=9) %}<{{ a }},{{ b }},{{ varargs }},{{ kwargs }}>{% endmacro %}{{ f(*[1, 2, 3]) }}{{ f(0, *(1,), **{'k': 2}) }}{{ f(b=1, *[4]) }}
{{ '%s|%-5s|%05.1f|%+d|%#x|%%' % ('a', 'b', 3.14159, 7, 255) }} {{ '%(role)s: %(content)s' % messages[0] }} {{ '%s' | format(none) }}
{{ '{} {}'.format('a', 1) }} {{ '{1}{0}{x}'.format('a', 'b', x=none) }} {{ '{a!r:>10}|{b:*^12.4}'.format(a=messages[0].role, b=messages[0].content) }} {{ '{:,} {:08.3f} {:#x}'.format(1234567, -2.5, 255) }}
{{ '%05s|%+s|%-05s|% .1s' % ('a', 'b', 'c', 'de') }} {{ '%.f|%5.f|%+.e' % (2.5, 3.7, 1.0) }}
{{ '{:05}|{:05}|{:0<5}'.format('ab', 3, 'c') }} {{ '{!s}|{!s:>4}|{!r}'.format('a', 1, 'b') }} {{ "\8\9" }}
{{ [1, 'nan' | float, 2] | max }} {{ ['nan' | float, 1] | max }} {{ [2, 'nan' | float, 1] | min }}
{% for role, group in messages | groupby('role') %}{{ role }}={{ group | length }};{% endfor %}{{ (messages | groupby('role'))[0].grouper }}
'''.strip().replace('<a:>', '\u00e4').replace('<A`>', '\u00c0').replace('<e/>', '\u00e9').split("\n")
def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
env=ImmutableSandboxedEnvironment(trim_blocks=True,lstrip_blocks=True,extensions=["jinja2.ext.loopcontrols"])
env.filters["tojson"]=tojson
chat=[{"role":"system","content":"Be brief."},{"role":"user","content":" Hi \u00e9\n"},{"role":"assistant","content":"Hello!"},{"role":"user","content":"Bye"},{"role":"assistant","content":"","tool_calls":[{"name":"f","arguments":{"x":1,"y":[True,None,2.0,"<\u00e9>"]}}]}]
def c(s):
    out=""
    for b in s.encode():
        ch=chr(b)
        if ch=='"' or ch=="\\": out+="\\"+ch
        elif ch=="\n": out+="\\n"
        elif 32<=b<127 and ch!='?': out+=ch
        else: out+="\\%03o"%b
    return '"'+out+'"'
with open(pathlib.Path(__file__).with_name("expressions.inc"), "w", encoding="ascii") as f:
    f.write("// Template and what jinja2 "+jinja2.__version__+" makes of it on kChat; written by make_expressions.py, not by hand.\n")
    for s in src:
        try: r=env.from_string(s).render(messages=chat)
        except Exception as error: raise SystemExit(f"{s}: {error}")
        f.write("    {"+c(s)+",\n     "+c(r)+"},\n")
