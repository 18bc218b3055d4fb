"""Folders with tekken.json alone, and what mistral-common makes of dialogues there."""

import json
from pathlib import Path

import mistral_common
from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.protocol.instruct.validator import ValidationMode
from mistral_common.tokens.tokenizers.base import SpecialTokens
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

VERSIONS = ["v7", "v11", "v13", "v15"]
NUM_SPECIAL = 64
SETTINGS = {"reasoning_effort": {"values": ["none", "high"], "default": "none"}}


def tekken_json(version, num_tokens=4000):
    """A tekken.json of a version, with the first tokens of one that the wheel of mistral-common carries."""
    file = json.loads((Path(mistral_common.__file__).parent / "data/tekken_240911.json").read_text(encoding="utf-8"))
    names = [token.value for token in SpecialTokens]
    file["config"].update(version=version, num_vocab_tokens=num_tokens, default_vocab_size=NUM_SPECIAL + num_tokens,
                          default_num_special_tokens=NUM_SPECIAL)
    made = {"config": file["config"], "vocab": file["vocab"][:num_tokens],
            "special_tokens": [{"rank": rank, "token_str": name, "is_control": True} for rank, name in enumerate(names)]}
    if version == "v15":
        made["model_settings_builder"] = SETTINGS
    return made


def make_folder(folder, version, num_tokens=4000):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tekken.json").write_text(json.dumps(tekken_json(version, num_tokens)), encoding="utf-8")
    return folder


class MistralCommon:
    """The tokenizer of a folder, for whole chats (which end with an answer) and for prompts (which do not)."""

    def __init__(self, folder):
        self.chats, self.prompts = (MistralTokenizer.from_file(str(folder / "tekken.json"), mode=mode)
                                    for mode in (ValidationMode.finetuning, ValidationMode.test))

    def encode(self, dialogue):
        """(text, ids), or the exception's message in a one-tuple."""
        ends = dialogue["messages"] and dialogue["messages"][-1]["role"] == "assistant"
        try:
            request = ChatCompletionRequest.from_openai(messages=dialogue["messages"], tools=dialogue.get("tools"), **dialogue.get("kwargs", {}))
            encoded = (self.chats if ends else self.prompts).encode_chat_completion(request)
        except Exception as error:  # whatever it raises refuses the chat
            return (f"{type(error).__name__}: {error}",)
        return encoded._text, encoded.tokens
