"""Random dialogues with odd contents, for the templates."""

import random

WORDS = ["yes", "no", "Paris", "the answer is 42", "x = y * 2", "caf\u00e9", "\u4f60\u597d", "\u0645\u0631\u062d\u0628\u0627", "\U0001f600\U0001f3fd",
         "e\u0301", "\u200d", "\u00a0", "\u2028", "\t", "\n", "\n\n", "  ", "\r\n", "a'b", 'a"b', "\\", "\\n", "\x00", "\x1b", "\x7f", "\ufeff", "\u00df\u0130\u03a3"]
MARKERS = ["<|im_start|>", "<|im_end|>", "<|im_start|>assistant\n", "[INST]", "[/INST]", "</s>", "<s>", "<think>", "</think>", "<think>\nhm\n</think>\n\n",
           "<tool_response>", "</tool_response>", "<tool_call>", "assistant", "user", "system", "{{ 7 * 7 }}", "{% if x %}", "{# c #}", "{%- endfor %}",
           "{{ raise_exception('x') }}", "%s", "{}", "&lt;", "<b>"]


class Dialogues:
    """make() gives a chat, tools, kwargs and add_generation_prompt; the same seed gives the same dialogues."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def chance(self, probability):
        return self.random.random() < probability

    def text(self):
        kind = self.random.random()
        if kind < 0.06:
            return ""
        if kind < 0.12:
            return self.random.choice([" ", "\n", "\t \n", "\u00a0", "\n\n\n", "\u3000"])
        if kind < 0.3:
            return self.random.choice(WORDS + MARKERS)
        parts = self.random.choices(WORDS + (MARKERS if self.chance(0.5) else []), k=self.random.randint(1, 8))
        text = self.random.choice([" ", "", "\n"]).join(parts)
        if self.chance(0.1):
            text = f"<think>\n{self.random.choice(WORDS)}\n</think>\n\n{text}"
        if self.chance(0.05):
            text = f"<tool_response>{text}</tool_response>"
        return text

    def value(self, depth=0):
        kind = self.random.random()
        if depth < 3 and kind < 0.2:
            return {self.random.choice(["a", "b c", "\u00e9", "items", "assistant", '"', ""]): self.value(depth + 1)
                    for _ in range(self.random.randint(0, 3))}
        if depth < 3 and kind < 0.35:
            return [self.value(depth + 1) for _ in range(self.random.randint(0, 3))]
        return self.random.choice([0, -1, 7, 2**53 + 1, -2**63, 2**63 - 1, 0.5, 1.0, -0.0, 1e16, 1e-7, 1e22, 123456789.123, 3.0e-5, True, False, None,
                                   self.text(), self.text()])

    def arguments(self):
        return {self.random.choice(["x", "city", "n", "\u00e9"]): self.value() for _ in range(self.random.randint(0, 3))}

    def tool_calls(self):
        calls = []
        for _ in range(self.random.randint(1, 3)):
            arguments = self.arguments()
            call = {"name": self.random.choice(["f", "ask_assistant", "get \u00e9"]), "arguments": arguments}
            if self.chance(0.1):
                call["arguments"] = '{"as": "text"}'
            if self.chance(0.8):
                call = {"type": "function", "function": call}
            if self.chance(0.8):
                call["id"] = self.random.choice(["abcdefghi", "123456789", "short"]) if self.chance(0.3) else "abcDEF123"
            calls.append(call)
        return calls

    def message(self, role):
        message = {"role": role, "content": self.text()}
        if role == "assistant":
            if self.chance(0.15):
                message["tool_calls"] = self.random.choice([[], None]) if self.chance(0.1) else self.tool_calls()
                if self.chance(0.4):
                    message["content"] = None
            if self.chance(0.15):
                message["reasoning_content"] = None if self.chance(0.2) else self.text()
        elif self.chance(0.01):
            message["content"] = None
        if role == "tool":
            message["tool_call_id"] = "abcDEF123" if self.chance(0.9) else "no"
            if self.chance(0.2):
                message["name"] = "f"
        return message

    def roles(self):
        if self.chance(0.08):  # any order
            return self.random.choices(["system", "user", "assistant", "tool", "critic"], [2, 5, 5, 2, 1], k=self.random.randint(1, 6))
        roles = ["system"] if self.chance(0.4) else []
        for _ in range(self.random.randint(1, 4)):
            roles += ["user", "assistant"]
            while self.chance(0.12):
                roles += ["tool"] * self.random.randint(1, 2) + ["assistant"]
        if self.chance(0.05):
            roles.insert(self.random.randrange(len(roles) + 1), "system")
        if self.chance(0.1):
            roles.append("user")
        return roles

    def tool(self):
        return {"type": "function",
                "function": {"name": self.random.choice(["f", "g"]), "description": self.text(),
                             "parameters": {"type": "object", "properties": {"x": {"type": "integer", "default": self.value()}}, "required": []}}}

    def make(self):
        dialogue = {"messages": [self.message(role) for role in self.roles()], "add_generation_prompt": self.chance(0.15)}
        if self.chance(0.2):
            dialogue["tools"] = [self.tool() for _ in range(self.random.randint(0, 2))]
        if self.chance(0.3):
            dialogue["kwargs"] = {"enable_thinking": self.chance(0.5)}
            if self.chance(0.3):
                dialogue["kwargs"]["extra"] = self.value()
        return dialogue
