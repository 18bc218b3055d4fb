"""The small world of tiny-math: numbers, people, things, and which problems are held out.

A problem is (kind, a, b). Held-out problems are chosen by a hash, so the training chats, the held-out chats and the
pretraining text agree on them without a list: no held-out problem appears in training or pretraining, in either order.
"""

import zlib

NAMES = ["Ann", "Ben", "Carla", "David", "Eva", "Frank", "Grace", "Hugo", "Ida", "Jon", "Kate", "Leo", "Mia", "Nora"]
THINGS = ["apples", "books", "cards", "coins", "eggs", "flowers", "keys", "marbles", "nuts", "pens", "shells", "stamps"]

MAX_SUMMAND = 49  # a + b stays below 100, and so does a in a - b


def is_held_out(kind, a, b):
    """True for about one problem in ten. kind: "+", "-" or ">"; operands of "+" and ">" may come in either order."""
    if kind in "+>":
        a, b = max(a, b), min(a, b)
    return zlib.crc32(f"{a}{kind}{b}".encode()) % 10 == 0


def draw_problem(rng, kind, held_out):
    """A problem of this kind, held out or not. "-" has a >= b, ">" has a != b."""
    while True:
        if kind == "+":
            a, b = rng.randint(1, MAX_SUMMAND), rng.randint(1, MAX_SUMMAND)
        elif kind == "-":
            b = rng.randint(1, MAX_SUMMAND)
            a = b + rng.randint(0, MAX_SUMMAND)
        else:
            a, b = rng.randint(1, 98), rng.randint(1, 98)
            if a == b:
                continue
        if is_held_out(kind, a, b) == held_out:
            return a, b
