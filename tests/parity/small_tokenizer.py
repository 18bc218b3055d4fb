"""A small tokenizer.json of any pipeline."""

ALPHABET = list("aaabbcABC  \n\t01239-_.,'xyz") + ["\u00e9", "\u4f60", "\u00b2", "\u0663", "\u2167", "\U0001f600", "e\u0301", "\u00a0", "\r\n", "\u00df", "\u2581", "\u3002", "\ufb06", "st"]
CHARACTERS = sorted(set("".join(ALPHABET)) - set("zx\u00df\u4f60\U0001f600\u00b2"))
FALLBACKS = "\u4f60\u00df"


def model(**flags):
    """A vocabulary of characters, without some, with merges and with the bytes of two of the missing ones."""
    merges = [("a", "b"), ("ab", "c"), ("a", "a"), (" ", "a"), ("1", "2"), ("A", "B"), ("aa", "b"), ("\u00e9", "a"), ("<unk>", "a"), ("<unk>", "<unk>")]
    tokens = ["<unk>", *CHARACTERS]
    tokens += [f"<0x{byte:02X}>" for byte in sorted(set("".join(FALLBACKS + "\u00b2").encode()) - {0xC2})]
    tokens += [left + right for left, right in merges]
    return {"type": "BPE", "vocab": {token: i for i, token in enumerate(dict.fromkeys(tokens))}, "merges": [list(m) for m in merges], **flags}


def tokenizer_json(normalizer=None, pre_tokenizer=None, **flags):
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": normalizer, "pre_tokenizer": pre_tokenizer,
            "post_processor": None, "decoder": None, "model": model(**{"unk_token": "<unk>", **flags})}
