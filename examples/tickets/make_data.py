#!/usr/bin/env python3
"""Writes train.jsonl (600 chats) and heldout.jsonl (300 rows with choices): messages to a shop, and the desk that takes them.

Nothing but the Python standard library is needed; the same seed gives the same bytes. One training label in ten is wrong, as
in data that people labelled; those of heldout.jsonl are right. No pair of subject and complaint is in both files.
"""

import argparse
import json
import pathlib
import random
import zlib

NUM_TRAIN = 600
NUM_HELD_OUT = 300
WRONG = 0.1
OPENINGS = ["", "Hello, ", "Good morning, ", "Dear shop, ", "Once again: ", "Please help: "]
CLOSINGS = ["", " What now?", " Please answer soon.", " I have waited for a week.", " Thank you.", " This is the second time."]
DESKS = {
    "delivery": (["my parcel", "the box", "my order", "the second lamp", "the courier", "your van"],
                 ["has not arrived", "is late", "went to the wrong street", "is lost", "was left in the rain", "is still on its way",
                  "went back to you", "stopped in another city"]),
    "payment": (["my card", "the invoice", "the refund", "the discount", "my bank", "the price"],
                ["was charged twice", "shows the wrong sum", "was refused", "is ten euros too high", "is missing", "was not accepted",
                 "has the wrong tax", "differs from the receipt"]),
    "return": (["the chair", "my new coat", "the kettle", "the blue vase", "this clock", "the screen"],
               ["is broken", "is too small", "has a scratch", "has the wrong colour", "does not work", "lacks a screw",
                "makes a noise", "is not what I wanted"]),
    "account": (["my password", "the login", "my address", "the newsletter", "my profile", "the app"],
                ["cannot be changed", "is locked", "belongs to somebody else", "is forgotten", "does not open", "has an old name",
                 "must be deleted", "asks for a code"]),
}


def is_held_out(subject, complaint):
    """True for about one pair in three."""
    return zlib.crc32(f"{subject} {complaint}".encode()) % 3 == 0


def make_ticket(rng, desk, held_out):
    while True:
        subject, complaint = (rng.choice(phrases) for phrases in DESKS[desk])
        if is_held_out(subject, complaint) == held_out:
            break
    text = rng.choice(OPENINGS) + f"{subject} {complaint}." + rng.choice(CLOSINGS)
    return text[0].upper() + text[1:]


def make_row(rng, held_out):
    desk = rng.choice(list(DESKS))
    messages = [{"role": "user", "content": make_ticket(rng, desk, held_out)}]
    if held_out:
        return {"messages": messages, "choices": list(DESKS), "answer": desk}
    label = rng.choice([other for other in DESKS if other != desk]) if rng.random() < WRONG else desk
    return {"messages": messages + [{"role": "assistant", "content": label}]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output-dir", type=pathlib.Path, default=pathlib.Path(__file__).parent)
    parser.add_argument("--seed", type=int, default=42)
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    for name, num_rows, held_out in [("train", NUM_TRAIN, False), ("heldout", NUM_HELD_OUT, True)]:
        path = arguments.output_dir / f"{name}.jsonl"
        rows = [make_row(rng, held_out) for _ in range(num_rows)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        print(f"{path}: {len(rows)} rows")


if __name__ == "__main__":
    main()
