"""A tokenizer.json whose tokens are bytes."""

import json


def byte_tokenizer(merges=(), normalizer=None, vocabulary=()):
    """One token a byte, then what merges make; the whole text is one word."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible]
    letters = {byte: chr(byte) for byte in visible} | {byte: chr(0x100 + i) for i, byte in enumerate(hidden)}
    tokens = [letters[byte] for byte in range(256)] + list(vocabulary)
    return {"added_tokens": [], "normalizer": normalizer, "post_processor": None, "decoder": {"type": "ByteLevel"},
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
            "model": {"type": "BPE", "vocab": {token: i for i, token in enumerate(tokens)}, "merges": list(merges)}}


def write_tokenizer(setup, **parts):
    (setup.model / "tokenizer.json").write_text(json.dumps(byte_tokenizer(**parts)))
