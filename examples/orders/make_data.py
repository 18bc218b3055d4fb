#!/usr/bin/env python3
"""Writes train.jsonl and heldout.jsonl: orders in free words, and the same orders as JSON. The same bytes from the same seed.

No held-out order (name, count, item, day) is in the training data."""

import argparse
import json
import pathlib
import random
import zlib

NAMES = ["Ann", "Ben", "Carla", "David", "Eva", "Frank", "Grace", "Hugo", "Ida", "Jon", "Kate", "Leo", "Mia", "Nora"]
ITEMS = ["apples", "books", "cards", "coins", "eggs", "flowers", "keys", "marbles", "nuts", "pens", "shells", "stamps"]
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
FORMS = [
    "{name} needs {count} {item} on {day}.",
    "On {day}, please send {count} {item} to {name}.",
    "{count} {item} for {name}, to arrive on {day}.",
    "Hello, this is {name}. I would like {count} {item} by {day}.",
    "Could {name} have {count} {item} on {day}?",
    "For {name}: {item}, {count} of them, {day}.",
    "{day} is the day that {name} wants {count} {item}.",
    "Dear shop, I want {count} {item}, not later than {day}. Yours, {name}",
]


def draw_order(rng, held_out):
    while True:
        order = {"name": rng.choice(NAMES), "item": rng.choice(ITEMS), "count": rng.randint(1, 99), "day": rng.choice(DAYS)}
        if (zlib.crc32(json.dumps(order).encode()) % 10 == 0) == held_out:
            return order


def write(path, rng, num_rows, held_out):
    with open(path, "w", encoding="utf-8") as file:
        for _ in range(num_rows):
            order = draw_order(rng, held_out)
            messages = [{"role": "user", "content": rng.choice(FORMS).format(**order)},
                        {"role": "assistant", "content": json.dumps(order)}]
            file.write(json.dumps({"messages": messages}) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output-dir", type=pathlib.Path, default=pathlib.Path(__file__).parent)
    parser.add_argument("--seed", type=int, default=11)
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    write(arguments.output_dir / "train.jsonl", rng, 1000, held_out=False)
    write(arguments.output_dir / "heldout.jsonl", rng, 100, held_out=True)


if __name__ == "__main__":
    main()
