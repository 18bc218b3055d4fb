#!/usr/bin/env python3
"""Writes train.jsonl (1000 chats) and heldout.jsonl (200 chats): an order in a sentence, and the same order as JSON.

Nothing but the Python standard library is needed; the same seed gives the same bytes. No name, city, thing, amount or
date of heldout.jsonl appears in train.jsonl (words.py); the quantities and the wordings do.
"""

import argparse
import json
import pathlib
import random

import words

NUM_TRAIN = 1000
NUM_HELD_OUT = 200
TITLES = ["Ms", "Mr", "Dr"]
WORDINGS = [
    "{title} {name} from {city} ordered {quantity} {item} for {total} euros, delivery on {date}.",
    "{title} {name} from {city} would like {quantity} {item} by {date}. The price is {total} euros.",
    "Please send {quantity} {item} to {title} {name} in {city}. They cost {total} euros and must arrive on {date}.",
    "{quantity} {item} for {title} {name}, {city}: {total} euros in all, due on {date}.",
    "On {date} we deliver {quantity} {item} to {city}, where {title} {name} pays {total} euros.",
    "The order of {date} is for {quantity} {item}. {title} {name} of {city} pays {total} euros.",
    "New order: {quantity} {item}, {total} euros, to {city} on {date}. The customer is {title} {name}.",
    "{title} {name} has paid {total} euros for {quantity} {item}. Ship them to {city} on {date}.",
]


def make_row(rng, held_out):
    order = {
        "name": words.draw(rng, words.name, held_out), "city": words.draw(rng, words.city, held_out),
        "item": words.draw(rng, words.things, held_out), "quantity": str(rng.randint(2, 60)),
        "total": words.draw(rng, words.amount, held_out), "date": words.draw(rng, words.date, held_out)}
    sentence = rng.choice(WORDINGS).format(title=rng.choice(TITLES), **order)
    numbers = ("quantity", "total")
    fields = (f'"{key}": {value}' if key in numbers else f'"{key}": "{value}"' for key, value in order.items())
    answer = "{" + ", ".join(fields) + "}"
    return {"messages": [{"role": "user", "content": sentence}, {"role": "assistant", "content": answer}]}


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
        print(f"{path}: {len(rows)} chats")


if __name__ == "__main__":
    main()
