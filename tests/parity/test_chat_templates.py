"""Templates render as transformers renders them, and the same characters are trained. All of it by
scripts/checks/check_chat_templates.py; here a slice."""

import chat_dialogues
import chat_oracle
import pytest

TEMPLATES = chat_oracle.templates()
NUM_DIALOGUES = 60


@pytest.mark.parametrize("name", sorted(set(TEMPLATES) | set(chat_oracle.PUBLISHED)))
def test_dialogues_render_as_transformers_does(name, ours):
    if name not in TEMPLATES:
        pytest.skip(f"no {name}; set LORA_TRAIN_TEST_DATA to the test data's folder")
    assert ours.set_template(TEMPLATES[name][0], TEMPLATES[name][2]) == {}
    dialogues = chat_dialogues.Dialogues(f"{name} slice")
    for _ in range(NUM_DIALOGUES):
        dialogue = dialogues.make()
        assert chat_oracle.difference(TEMPLATES[name], dialogue, ours) == "", dialogue
