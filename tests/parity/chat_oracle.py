"""Chats rendered by transformers, and by lora-train; texts and trained characters of both."""

import json
import os
import subprocess
from pathlib import Path

from transformers.utils import chat_template_utils

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("LORA_TRAIN_TEST_DATA", ROOT / "../shared/data"))
OWN = [ROOT / "tests/fuzz/corpus/jinja" / name for name in ("blocks", "loops", "macros", "strict", "strings", "values")]

HEADER = "{{- '<|im_start|>' + message.role + '\\n' }}"
END_OF_TOOL_TURN = ("{{- '<|im_end|>\\n' }}\n    {%- elif message.role == \"tool\" %}",
                    "{{- '<|im_end|>' }}{% endgeneration %}{{- '\\n' }}\n    {%- elif message.role == \"tool\" %}", 1)
QWEN2 = [("{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}",
          "{{'<|im_start|>' + message['role'] + '\n'}}{% if message['role'] == 'assistant' %}{% generation %}"
          "{{ message['content'] + '<|im_end|>' }}{% endgeneration %}{% else %}{{ message['content'] + '<|im_end|>' }}{% endif %}{{ '\n' }}", 1)]
QWEN25 = [("{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}",
           HEADER + "{%- if message.role == 'assistant' %}{%- generation %}{{- message.content + '<|im_end|>' }}{% endgeneration %}"
           "{%- else %}{{- message.content + '<|im_end|>' }}{%- endif %}{{- '\\n' }}", 1),
          ("{{- '<|im_start|>' + message.role }}", HEADER + "{%- generation %}", 1),
          ("{{- '\\n' + message.content }}", "{{- message.content }}", 1),
          ("{{- '\\n<tool_call>\\n{\"name\": \"' }}",
           "{%- if message.content or not loop.first %}{{- '\\n' }}{%- endif %}{{- '<tool_call>\\n{\"name\": \"' }}", 1),
          END_OF_TOOL_TURN]
QWEN3 = [("{{- '<|im_start|>' + message.role + '\\n' + content }}", HEADER + "{%- generation %}{{- content }}{% endgeneration %}", None),
         ("{%- if message.tool_calls %}", "{%- generation %}{%- if message.tool_calls %}", 1),
         END_OF_TOOL_TURN]
THINKING = [("{{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}",
             HEADER + "{%- generation %}{{- '<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}{% endgeneration %}", 1)]

# Template file -> (tokenizer folder, edits that put {% generation %} around what a model writes).
# An edit is (old, new, how often; None = at least once).
PUBLISHED = {
    "qwen2.5/chat_template-qwen2-instruct.jinja": ("qwen2.5", QWEN2),
    "qwen2.5/chat_template.jinja": ("qwen2.5", QWEN25),
    "qwen2.5/chat_template-double-brace.jinja": ("qwen2.5", QWEN25),
    "qwen3/chat_template.jinja": ("qwen3", QWEN3 + THINKING),
    "qwen3/chat_template-2025-04.jinja": ("qwen3", QWEN3 + THINKING),
    "qwen3/chat_template-thinking-2507.jinja": ("qwen3", QWEN3 + THINKING),
    "qwen3/chat_template-instruct-2507.jinja": ("qwen3", QWEN3),
    "mistral/v1/chat_template-2023.jinja": ("mistral/v1", [
        ("{{ message['content'] + eos_token + ' ' }}",
         "{% generation %}{{ message['content'] + eos_token }}{% endgeneration %}{{ ' ' }}", 1)]),
    "mistral/v1/chat_template.jinja": ("mistral/v1", [
        ("{{- ' ' + message['content'] + eos_token}}",
         "{{- ' ' }}{% generation %}{{- message['content'] + eos_token}}{% endgeneration %}", 1)]),
    "mistral/v3/chat_template.jinja": ("mistral/v3", [
        ("{{- \" \" + message[\"content\"]|trim + eos_token}}",
         "{{- \" \" }}{% generation %}{{- message[\"content\"]|trim + eos_token}}{% endgeneration %}", 1),
        ("{{- \"[TOOL_CALLS] [\" }}", "{% generation %}{{- \"[TOOL_CALLS] [\" }}", 1),
        ("{%- endfor %}\n    {%- elif message[\"role\"] == \"assistant\" %}",
         "{%- endfor %}{% endgeneration %}\n    {%- elif message[\"role\"] == \"assistant\" %}", 1)]),
}


def templates():
    """{name: (source, source with generation tags or None where the template has its own, folder)}"""
    found = {}
    for name, (folder, edits) in PUBLISHED.items():
        if not (DATA / name).exists():
            continue
        source = marked = (DATA / name).read_text(encoding="utf-8")
        for old, new, count in edits:
            assert marked.count(old) == count or (count is None and old in marked), (name, old)
            marked = marked.replace(old, new)
        found[name] = (source, marked, DATA / folder)
    for path in OWN:
        source = path.read_text(encoding="utf-8")
        found[f"{path.name}.jinja"] = (source, source, None)
    return found


def special_tokens(folder):
    if folder is None:
        return {}
    config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    tokens = {key: config.get(key) for key in ("bos_token", "eos_token", "unk_token", "pad_token")}
    return {key: token["content"] if isinstance(token, dict) else token for key, token in tokens.items() if token}


def render_with_transformers(source, dialogue, tokens):
    """(text, trained characters or None), or an exception's message in a one-tuple."""
    kwargs = {**tokens, **dialogue.get("kwargs", {})}
    try:
        texts, spans = chat_template_utils.render_jinja_template(
            [dialogue["messages"]], tools=dialogue.get("tools"), chat_template=source, return_assistant_tokens_mask=True,
            add_generation_prompt=dialogue["add_generation_prompt"], **kwargs)
    except Exception as error:  # whatever a template raises refuses the chat
        return (f"{type(error).__name__}: {error}",)
    trained = bytearray(len(texts[0]))
    for begin, end in spans[0]:
        trained[begin:end] = b"\1" * (end - begin)
    return texts[0], bytes(trained)


class OurRenderer:
    """lora-train-chats, one process for many chats."""

    def __init__(self):
        program = os.environ.get("LORA_TRAIN_CHATS") or Path(os.environ.get("LORA_TRAIN_BIN", ROOT / "build/dev/bin")) / "lora-train-chats"
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, question):
        self.process.stdin.write(json.dumps(question, ensure_ascii=True).encode() + b"\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"lora-train-chats ended with {self.process.wait()} on {json.dumps(question)}")
        return json.loads(answer)

    def set_template(self, source, folder):
        return self.ask({"template": source, "folder": str(folder or "")})

    def use_template(self, chat_template, folder=None):
        """As the profile's key chat_template."""
        return self.ask({"chat_template": chat_template, "folder": str(folder or "")})

    def render(self, dialogue):
        """As render_with_transformers."""
        answer = self.ask(dialogue)
        if "error" in answer:
            return (f"{answer['error']}: {answer.get('where')}: {answer.get('message')}",)
        raw = answer["text"].encode()
        trained = bytearray(len(raw))
        for begin, end in answer["spans"]:
            trained[begin:end] = b"\1" * (end - begin)
        chars = bytes(trained[i] for i in range(len(raw)) if raw[i] & 0xC0 != 0x80)
        return answer["text"], chars

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def difference(template, dialogue, ours):
    """What differs for one dialogue, "" for nothing. `template` is a value of templates()."""
    source, marked, folder = template
    tokens = special_tokens(folder)
    theirs = render_with_transformers(source, dialogue, tokens)
    got = ours.render(dialogue)
    if len(theirs) == 1 or len(got) == 1:
        return "" if len(theirs) == len(got) else f"transformers: {theirs[0]!r}\nours: {got[0]!r}"
    if theirs[0] != got[0]:
        return f"transformers: {theirs[0]!r}\nours: {got[0]!r}"
    with_tags = render_with_transformers(marked, dialogue, tokens)
    if with_tags[0] != theirs[0]:
        return f"the copy with generation tags renders another text: {with_tags[0]!r}"
    if with_tags[1] != got[1]:
        show = "".join("^" if a != b else "." for a, b in zip(with_tags[1], got[1]))
        return f"trained characters differ where ^:\n{theirs[0]!r}\n{show}"
    return ""
