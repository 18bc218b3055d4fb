"""Seeded strings of many kinds for tests/batteries/tokenizer_battery.py: (kind, string) pairs without end or by number."""

import collections
import functools
import json
import random
import re
import sysconfig
import unicodedata
from pathlib import Path

LAST = 0x10FFFF


def is_scalar(code):
    return not 0xD800 <= code <= 0xDFFF


@functools.cache
def by_category():
    found = collections.defaultdict(list)
    for code in range(LAST + 1):
        if is_scalar(code):
            found[unicodedata.category(chr(code))].append(chr(code))
    return found


def code_points(*categories):
    return [c for category in categories for c in by_category()[category]]


# Code points at the edges of UTF-8's lengths, of blocks and of what is assigned, and characters that patterns single out.
EDGES = [chr(code) for code in (
    0x00, 0x01, 0x09, 0x0A, 0x0B, 0x0C, 0x0D, 0x1C, 0x1F, 0x20, 0x7E, 0x7F, 0x80, 0x85, 0xA0, 0xAD, 0xFF, 0x17F, 0x212A, 0x34F,
    0x7FF, 0x800, 0x1680, 0x180E, 0x2000, 0x200B, 0x200D, 0x2028, 0x2029, 0x202E, 0x2060, 0x2581, 0x3000, 0xD7FF, 0xE000,
    0xFDD0, 0xFEFF, 0xFFFC, 0xFFFD, 0xFFFE, 0xFFFF, 0x10000, 0x1F1E6, 0x1F1FF, 0x1F3FB, 0x1FFFE, 0x2FA1D, 0xE0001, 0xE007F,
    0xE0100, 0xF0000, 0xFFFFD, 0x10FFFD, 0x10FFFF)]


class Pools:
    """What the kinds draw from; made once."""

    def __init__(self, data, special):
        self.special = [token for token in special if token] or ["<s>"]
        chats = (data / "datasets/chat/gsm8k-chat.jsonl").read_text().splitlines()
        self.natural = " ".join(message["content"] for line in chats for message in json.loads(line)["messages"])
        self.multilingual = (data / "text/multilingual.txt").read_text()
        stdlib = Path(sysconfig.get_path("stdlib"))
        names = ["argparse.py", "ast.py", "json/decoder.py", "textwrap.py", "typing.py"]
        self.code = "\n".join((stdlib / name).read_text() for name in names)
        self.marks, self.digits = code_points("Mn", "Mc", "Me"), code_points("Nd", "Nl", "No")
        self.spaces = code_points("Zs", "Zl", "Zp") + ["\t", "\n", "\v", "\f", "\r", "\x85"]
        self.punctuation = code_points("Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Sm", "Sc", "Sk", "So")
        self.letters = code_points("Lu", "Ll", "Lt", "Lm", "Lo")
        self.control, self.unassigned = code_points("Cc", "Cf"), code_points("Cn")
        self.rtl = [c for c in self.letters + self.marks if unicodedata.bidirectional(c) in ("R", "AL", "NSM")]
        self.emoji = [chr(code) for code in [*range(0x1F300, 0x1FAFF), *range(0x2600, 0x27BF)]]
        self.jamo = [chr(code) for code in [*range(0x1100, 0x1200), *range(0xAC00, 0xAC40)]]
        self.bases = [c for c in self.letters if ord(c) < 0x3000]
        composed = [c for c in self.letters + self.marks + self.punctuation if unicodedata.decomposition(c)]
        self.forms = composed + self.bases[:200]
        self.rtl += [" ", "1"]
        self.spaces_often = self.spaces + [" "] * 10
        self.digits += list("0123456789") * 20 + [".", ",", " "] * 10
        self.punctuation += list("!?.,;:()[]{}<>/\\|'\"-_=+*&^%$#@~` ") * 20
        self.control += ["a", " "]
        words = re.findall(r"\w+", self.natural)
        self.words = sorted(set(words))


def cut(rng, text, longest=120):
    begin = rng.randrange(len(text))
    return text[begin:begin + rng.randint(1, longest)]


def draw(rng, pool, longest=20):
    return "".join(rng.choices(pool, k=rng.randint(1, longest)))


def nfc(rng, pools):
    parts = [rng.choice(pools.forms) for _ in range(rng.randint(1, 8))]
    form = rng.choice(["NFC", "NFD", "NFKC", "NFKD"])
    return unicodedata.normalize(form, "".join(parts)) + rng.choice(["", draw(rng, pools.jamo, 6)])


def combining(rng, pools):
    return "".join(rng.choice(pools.bases) + draw(rng, pools.marks, 3) for _ in range(rng.randint(1, 8)))


def emoji(rng, pools):
    joined = ["\u200D", "\uFE0F", "\U0001F3FD", "", ""]
    return "".join(rng.choice(pools.emoji) + rng.choice(joined) for _ in range(rng.randint(1, 10)))


def contractions(rng, pools):
    tails = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "'RE", "'vE", "'LL", "'\u017F", "'x", "''s", "\u2019s", "'"]
    return " ".join(rng.choice(pools.words) + rng.choice(tails) + rng.choice(["", "n", "9"]) for _ in range(rng.randint(1, 5)))


def special_in_text(rng, pools):
    parts = rng.choices([*pools.special, " ", "\n", "  "], k=rng.randint(1, 5))
    return "".join(part + rng.choice(["", cut(rng, pools.natural, 15)]) for part in parts)


def lines(rng, pools):
    ends = ["\r\n", "\n", "\r", "\n\n", " \r\n\t", "\r\r\n"]
    return "".join(cut(rng, pools.code, 15) + rng.choice(ends) for _ in range(rng.randint(1, 5)))


KINDS = {
    "natural": lambda rng, p: cut(rng, p.natural),
    "multilingual": lambda rng, p: cut(rng, p.multilingual),
    "code": lambda rng, p: cut(rng, p.code),
    "nfc": nfc,
    "combining": combining,
    "emoji-zwj": emoji,
    "rtl": lambda rng, p: draw(rng, p.rtl),
    "whitespace": lambda rng, p: draw(rng, p.spaces_often, 12) + rng.choice(["", "a", "."]) + draw(rng, p.spaces, 4),
    "crlf": lines,
    "digits": lambda rng, p: draw(rng, p.digits, 15),
    "contractions": contractions,
    "special-in-text": special_in_text,
    "control": lambda rng, p: draw(rng, p.control, 10),
    "long-word": lambda rng, p: "".join(rng.choices(p.words, k=rng.randint(4, 12))),
    "private-use": lambda rng, p: "".join(chr(rng.choice([0xE000, 0xF0000, 0x100000]) + rng.randrange(0x1800))
                                          for _ in range(rng.randint(1, 8))),
    "unassigned": lambda rng, p: draw(rng, p.unassigned, 6) + rng.choice(["", "a"]),
    "scripts": lambda rng, p: draw(rng, p.letters, 15),
    "punct": lambda rng, p: draw(rng, p.punctuation, 15),
    "random": lambda rng, p: "".join(chr(c) for c in (rng.randrange(LAST + 1) for _ in range(rng.randint(1, 8)))
                                     if is_scalar(c)),
    "edges": lambda rng, p: draw(rng, EDGES + ["a", " "], 8),
    "metaspace": lambda rng, p: draw(rng, ["\u2581", " ", "a", "the", "\n", "\u2581the", "."], 12),
}
# Kinds that more of the strings have, as more of the text that people train on is like them.
WEIGHTS = {"natural": 6, "multilingual": 6, "code": 4}


def strings(seed, count, data, special):
    """(kind, string) pairs; a tenth of them are two kinds glued together."""
    rng = random.Random(seed)
    pools = Pools(data, special)
    names = list(KINDS)
    weights = [WEIGHTS.get(name, 1) for name in names]
    for _ in range(count):
        kind = rng.choices(names, weights)[0]
        text = KINDS[kind](rng, pools)
        if rng.random() < 0.1:
            other = rng.choice(names)
            kind, text = f"{kind}+{other}", text + KINDS[other](rng, pools)
        yield kind, text


def adversarial(seed, count, vocabulary, special):
    """(kind, string) pairs made to hurt: long runs, tokens joined at their seams, special tokens half written."""
    rng = random.Random(seed + 1)
    special = [token for token in special if token] or ["<s>"]
    runs = [*" aA1'.\n\r\t<[_-=", "\u2581", "\u00E9", "\u4E2D", "\U0001F642", "\u0301", "\uAC00", "\u1100\u1161", "ab", "\r\n", " a", "a "]

    def half_special():
        token = rng.choice(special)
        return token[:rng.randint(1, len(token))] + rng.choice(special)[rng.randint(0, 2):] + rng.choice(["", " ", "\n"])

    def seams():
        return "".join(rng.choice(vocabulary)[rng.randint(0, 1):] for _ in range(rng.randint(2, 12)))
    makers = {
        "run": lambda: rng.choice(runs) * rng.randint(2, 400),
        "long-run": lambda: rng.choice(runs) * rng.randint(1000, 4000),
        "two-runs": lambda: rng.choice(runs) * rng.randint(1, 100) + rng.choice(runs) * rng.randint(1, 100),
        "seams": seams,
        "half-special": lambda: "".join(half_special() for _ in range(rng.randint(1, 6))),
        "byte-names": lambda: "".join(rng.choice(["<0x", "0A", ">", "<0x0A>", "<0xFF>", "\uFFFD", "<", " "]) for _ in range(9)),
        "edges": lambda: "".join(rng.choices(EDGES, k=rng.randint(1, 60))),
        "two-edges": lambda: rng.choice(EDGES) + rng.choice(EDGES),
        "alternating": lambda: (rng.choice(EDGES) + rng.choice(runs)) * rng.randint(1, 200),
    }
    names = [name for name in makers if name != "long-run"] * 10 + ["long-run"]
    for _ in range(count):
        kind = rng.choice(names)
        yield kind, makers[kind]()
