#!/usr/bin/env python3
"""Writes train.jsonl (1000 chats) and heldout.jsonl (100 chats): short questions about sums, differences and sizes.

Nothing but the Python standard library is needed; the same seed gives the same bytes. About one row in eight opens
with a system turn. No question stands twice, and no problem of heldout.jsonl appears in train.jsonl (problems.py).
"""

import argparse
import json
import pathlib
import random

from problems import NAMES, THINGS, draw_problem

NUM_TRAIN = 1000
NUM_HELD_OUT = 100
SYSTEM = "You are a careful calculator. Answer in one sentence."


def addition(rng, a, b):
    name, things = rng.choice(NAMES), rng.choice(THINGS)
    return rng.choice([
        (f"What is {a} plus {b}?", f"{a} plus {b} is {a + b}."),
        (f"Please add {a} and {b}.", f"The sum of {a} and {b} is {a + b}."),
        (f"{name} has {a} {things} and gets {b} more. How many {things} are there now?",
         f"{name} now has {a + b} {things}, because {a} plus {b} is {a + b}."),
    ])


def subtraction(rng, a, b):
    name, things = rng.choice(NAMES), rng.choice(THINGS)
    return rng.choice([
        (f"What is {a} minus {b}?", f"{a} minus {b} is {a - b}."),
        (f"Please take {b} away from {a}.", f"The difference of {a} and {b} is {a - b}."),
        (f"{name} has {a} {things} and loses {b}. How many {things} are left?",
         f"{name} has {a - b} {things} left, because {a} minus {b} is {a - b}."),
    ])


def comparison(rng, a, b):
    larger, smaller = max(a, b), min(a, b)
    return rng.choice([
        (f"Which number is larger, {a} or {b}?", f"{larger} is larger than {smaller}."),
        (f"Which number is smaller, {a} or {b}?", f"{smaller} is smaller than {larger}."),
    ])


KINDS = [("+", addition), ("-", subtraction), (">", comparison)]


def make_rows(rng, num_rows, held_out, seen):
    """`seen` holds the questions of all rows so far; a question is never asked twice."""
    rows = []
    while len(rows) < num_rows:
        kind, ask = KINDS[len(rows) % len(KINDS)]
        question, answer = ask(rng, *draw_problem(rng, kind, held_out))
        if question in seen:
            continue
        seen.add(question)
        messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        if rng.random() < 0.125:
            messages.insert(0, {"role": "system", "content": SYSTEM})
        rows.append({"messages": messages})
    rng.shuffle(rows)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output-dir", type=pathlib.Path, default=pathlib.Path(__file__).parent)
    parser.add_argument("--seed", type=int, default=42)
    arguments = parser.parse_args()
    rng, seen = random.Random(arguments.seed), set()
    for name, num_rows, held_out in [("train", NUM_TRAIN, False), ("heldout", NUM_HELD_OUT, True)]:
        path = arguments.output_dir / f"{name}.jsonl"
        rows = make_rows(rng, num_rows, held_out, seen)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        print(f"{path}: {len(rows)} chats")


if __name__ == "__main__":
    main()
