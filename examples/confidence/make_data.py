#!/usr/bin/env python3
"""Writes train.jsonl (1200 chats) and heldout.jsonl (300 chats): answers to small problems, each with a confidence token.

The answers are those of a solver that gets 97 of 100 sums right, 80 of 100 differences and 50 of 100 comparisons. Its
wrong answers are wrong numbers, so that anybody can check them; `correct` says which are right. The solver is asked each
question five times: the first answer is written down, and the token says how many of the other four were right
(<conf_75>: three). A model that is trained on such rows learns how often the solver is right on which kind of problem.

Nothing but the Python standard library is needed; the same seed gives the same bytes. Held-out problems are those of
tiny-math (problems.py there), so none stands in train.jsonl.
"""

import argparse
import json
import pathlib
import random
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tiny-math"))
from problems import draw_problem  # noqa: E402

NUM_TRAIN = 1200
NUM_HELD_OUT = 300
NUM_OTHERS = 4  # answers to a question that are not written down
RIGHT = {"+": 0.97, "-": 0.80, ">": 0.50}  # how often it is right
WORDS = {"+": "plus", "-": "minus"}


def ask(kind, a, b):
    return f"Which number is larger, {a} or {b}?" if kind == ">" else f"What is {a} {WORDS[kind]} {b}?"


def answer(rng, kind, a, b, is_right):
    if kind == ">":
        first, second = (a, b) if (a > b) == is_right else (b, a)
        return f"{first} is larger than {second}."
    result = a + b if kind == "+" else a - b
    if not is_right:
        result += rng.choice([offset for offset in (-10, -2, -1, 1, 2, 10) if result + offset >= 0])
    return f"{a} {WORDS[kind]} {b} is {result}."


def make_rows(rng, num_rows, held_out, seen):
    """`seen` holds the questions of all rows so far; a question is never asked twice."""
    rows = []
    while len(rows) < num_rows:
        kind = list(RIGHT)[len(rows) % len(RIGHT)]
        a, b = draw_problem(rng, kind, held_out)
        question = ask(kind, a, b)
        if question in seen:
            continue
        seen.add(question)
        is_right, *others = [rng.random() < RIGHT[kind] for _ in range(1 + NUM_OTHERS)]
        text = answer(rng, kind, a, b, is_right) + f"<conf_{100 * sum(others) // NUM_OTHERS}>"
        messages = [{"role": "user", "content": question}, {"role": "assistant", "content": text}]
        rows.append({"messages": messages, "correct": is_right})
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
        print(f"{path}: {len(rows)} chats, {sum(row['correct'] for row in rows)} of them right")


if __name__ == "__main__":
    main()
