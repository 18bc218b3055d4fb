"""Where assistant turns begin without {% generation %}, and what a template left out of a chat."""

import chat_oracle
import pytest


@pytest.mark.parametrize("begin, prompt, trained", [
    *((header, header, "Hello!</s>") for header in ("<|Assistant|>", "<start_of_turn>model\n", "### Response:\n", "assistant: ", "<|assistant|>\n")),
    ("GPT4 Correct Assistant: ", "GPT4 Correct Assistant:", " Hello!</s>"),  # a blank behind the prompt is the model's to write
    ("assistant\n<think>\n", "assistant\n<think>\n", "<think>\nHello!</s>")])  # so is what the prompt opens behind the role
def test_a_header_is_what_the_generation_prompt_writes(begin, prompt, trained, ours):
    source = ("{% for m in messages %}{% if m.role == 'assistant' %}" + begin + "{{ m.content }}</s>{% else %}<u>{{ m.content }}"
              "{% endif %}{% endfor %}{% if add_generation_prompt %}" + prompt + "{% endif %}")
    assert ours.set_template(source, None) == {}
    answer = ours.ask({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}]})
    assert [answer["text"].encode()[a:b].decode() for a, b in answer["spans"]] == [trained]


def test_words_inside_data_do_not_move_the_span(ours):
    source = "{% for m in messages if m.tool_calls %}[TOOL_CALLS] {{ m.tool_calls | tojson }}</s>{% endfor %}"
    assert ours.set_template(source, None) == {}
    answer = ours.ask({"messages": [{"role": "assistant", "content": "", "tool_calls": [{"name": "ask_assistant"}]}]})
    assert answer["spans"] == [[0, len(answer["text"])]]


THINK = "<think>\nhm\n</think>\n\nYes."
CHAT = {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": " \n"}, {"role": "assistant", "content": THINK},
                     {"role": "assistant", "content": "No.", "reasoning_content": "so", "tool_calls": [{"name": "f"}]},
                     {"role": "assistant", "content": THINK}]}


@pytest.mark.parametrize("source, omissions", [
    ("{% for m in messages[1:] %}{{ m.content | trim }}{% endfor %}",
     [[0, "content", False], [3, "reasoning_content", False], [3, "tool_calls", False]]),
    ("{% for m in messages %}{{ m.content.split('</think>')[-1] }}{{ m.reasoning_content }}{{ m.tool_calls | tojson if m.tool_calls }}"
     "{% endfor %}", [[2, "content", True], [4, "content", True]]),
    # What the template writes itself around a reasoning is not missed, nor is a content in other clothes.
    ("{% for m in messages %}{% if '</think>' in m.content %}<think>{{ m.content.split('</think>')[0].split('<think>')[1] }}</think>"
     "{{ m.content.split('</think>')[1] }}{% else %}{{ m.content | upper }}{% endif %}{{ m.reasoning_content }}{{ m.tool_calls }}"
     "{% endfor %}", []),
], ids=["dropped", "partly", "complete"])
def test_omissions_are_named(source, omissions, ours):
    assert ours.set_template(source, None) == {}
    assert ours.ask(CHAT)["omissions"] == omissions


def test_published_templates_name_what_they_drop(ours):
    """Mistral v0.3 drops the system prompt of every training example, Qwen3 the reasoning of earlier turns."""
    templates = chat_oracle.templates()
    if "mistral/v3/chat_template.jinja" not in templates:
        pytest.skip("no templates; set LORA_TRAIN_TEST_DATA to the test data's folder")
    chat = {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}
    source, _, folder = templates["mistral/v3/chat_template.jinja"]
    assert ours.set_template(source, folder) == {}
    assert ours.ask(chat)["omissions"] == [[0, "content", False]]
    chat["messages"] += [{"role": "user", "content": "And?"}, {"role": "assistant", "content": "Bye."}]
    chat["messages"][2].update(content=THINK, reasoning_content=None)
    source, _, folder = templates["qwen3/chat_template.jinja"]
    assert ours.set_template(source, folder) == {}
    assert ours.ask(chat)["omissions"] == [[2, "content", True]]
    chat["messages"][2].update(content="Hello", reasoning_content="long thought")
    assert ours.ask(chat)["omissions"] == [[2, "reasoning_content", False]]
