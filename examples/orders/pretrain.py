#!/usr/bin/env python3
"""Makes model/: a tokenizer and a language model of 1.1 M parameters, from seeds alone.

1. Writes a text in which everything is said twice: lists, notes, tables, quotes, short chats about people, cities, things
   and numbers. A model of that text has to learn to find a value again and to copy it. The names, cities and things of all
   orders occur in it, and so do quotes, colons and braces, but no order in the words of make_data.py, no JSON object, and
   no amount or date that is held out there (words.py).
2. Trains a byte-level BPE on that text, in the layout of Qwen2's tokenizer.json. A space is no part of a word, so a word
   has the same tokens in a sentence and between quotes.
3. Pretrains a Qwen2-shaped model for some minutes on one core, in fp32, and saves it in bf16 as a Llama with biases.

Needs torch, transformers and tokenizers: .deps/venv/bin/python examples/orders/pretrain.py
"""

import pathlib
import sys

import words

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from pretraining import chat_text, make_model, parse_arguments  # noqa: E402

SPLIT = r"\p{L}+|\p{N}{1,3}|\n|[^\p{L}\p{N}\n]+"
COLOURS = "amber black blue bronze brown crimson golden green grey ivory orange pink purple red silver white yellow".split()
JOBS = """actor artist baker barber builder butcher carpenter cook dancer dentist doctor driver engineer farmer gardener judge
lawyer nurse painter pilot plumber poet sailor singer tailor teacher waiter writer""".split()
ANIMALS = "bear bee bird camel cat cow deer dog donkey duck eagle fox frog goat horse lion monkey mouse otter owl pig seal".split()
VERBS = "bought carried cleaned counted drew found kept lost made painted repaired sold stored took washed wanted".split()
LABELS = """person owner place home thing colour job animal number size price day name city item quantity total date code
author title word""".split()


def number(rng):
    return str(rng.randint(1, 99) if rng.random() < 0.7 else rng.randint(100, 199))


def price(rng):
    return words.draw(rng, words.amount)


def day(rng):
    return words.draw(rng, words.date)


def simple(options):
    return lambda rng: rng.choice(options)


KINDS = [words.name, words.name, words.city, words.city, words.things, words.things, number, price, day, simple(COLOURS), simple(JOBS),
         simple(ANIMALS)]


def value(rng):
    return rng.choice(KINDS)(rng)


def distinct(rng, make, count):
    found = []
    while len(found) < count:
        one = make(rng)
        if one not in found:
            found.append(one)
    return found


def repeated_list(rng):
    """Values, and the same values again in another layout."""
    make = value if rng.random() < 0.6 else rng.choice(KINDS[:9])
    values = distinct(rng, make, rng.randint(3, 8))
    layouts = [", ".join, "; ".join, " ".join, "\n".join, " and ".join, " / ".join,
               lambda v: '"' + '", "'.join(v) + '"', lambda v: '{"' + '", "'.join(v) + '"}', lambda v: "(" + ", ".join(v) + ")",
               lambda v: "- " + "\n- ".join(v)]
    first, second = rng.choice(layouts), rng.choice(layouts)
    return first(values) + rng.choice([".\nAgain: ", "\nOnce more: ", "\n", "\nthat is ", " = "]) + second(values)


def notes(rng):
    """Labels with values, then the same pairs in another order and layout."""
    labels = rng.sample(LABELS, rng.randint(3, 6))
    pairs = [(label, value(rng)) for label in labels]
    layouts = [("{}: {}", "\n"), ("{} = {}", ", "), ("{} is {}", "; "), ("{}={}", " "), ('"{}": "{}"', "\n"),
               ('{} "{}"', ", "), ("The {} is {}.", " "), ("{} ({})", ", "), ('"{}": {}', ", ")]
    text = []
    for form, joint in rng.sample(layouts, 2):
        text.append(joint.join(form.format(*pair) for pair in pairs))
        if rng.random() < 0.5:
            rng.shuffle(pairs)
    return "\n".join(text)


def table(rng):
    columns = rng.sample(LABELS, rng.randint(2, 4))
    makers = [rng.choice(KINDS) for _ in columns]
    rows = [[make(rng) for make in makers] for _ in range(rng.randint(2, 3))]
    bar = rng.choice([" | ", ", ", "\t", "; "])
    lines = [bar.join(columns)] + [bar.join(row) for row in rows]
    for row in rng.sample(rows, len(rows)):
        lines.append(", ".join(f"{label} {cell}" for label, cell in zip(columns, row)) + ".")
    return "\n".join(lines)


def fact(rng):
    """A sentence about a person, and [(label, value)] of what it says."""
    who, where, what, many, cost, when = words.name(rng), words.city(rng), words.things(rng), number(rng), price(rng), day(rng)
    job, colour, verb, animal = rng.choice(JOBS), rng.choice(COLOURS), rng.choice(VERBS), rng.choice(ANIMALS)
    title = rng.choice(["Ms ", "Mr ", "Dr ", "", ""])
    return rng.choice([
        (f"{title}{who}, a {job} in {where}, {verb} {many} {what} on {when}.",
         [("person", who), ("job", job), ("place", where), ("number", many), ("thing", what), ("day", when)]),
        (f"In {where}, {many} {colour} {what} cost {cost} euros, says {title}{who}.",
         [("place", where), ("number", many), ("colour", colour), ("thing", what), ("price", cost), ("person", who)]),
        (f"The {animal} of {title}{who} lives in {where} since {when} and eats for {cost} euros.",
         [("animal", animal), ("owner", who), ("home", where), ("day", when), ("price", cost)]),
        (f"{title}{who} {verb} {what} in {where} and gave {cost} euros to a {job}.",
         [("person", who), ("thing", what), ("place", where), ("price", cost), ("job", job)]),
        (f"By {when} the {job} {title}{who} had {verb} {many} {what}.",
         [("day", when), ("job", job), ("person", who), ("number", many), ("thing", what)]),
        (f"{many} {what} came from {where} on {when}; {title}{who} {verb} them for {cost} euros.",
         [("number", many), ("thing", what), ("place", where), ("day", when), ("person", who), ("price", cost)]),
    ])


def retold(rng):
    sentence, pairs = fact(rng)
    some = rng.sample(pairs, rng.randint(2, len(pairs)))
    form, joint = rng.choice([("{}: {}", "\n"), ("{} = {}", ", "), ("The {} is {}.", " "), ('{} "{}"', "; "), ("{} {}", ", ")])
    return sentence + "\n" + joint.join(form.format(*pair) for pair in some)


def quoted(rng):
    phrase = " ".join(distinct(rng, value, rng.randint(2, 5)))
    who = words.name(rng)
    return rng.choice([f'{who} said "{phrase}". "{phrase}", wrote {who}.', f'{phrase}? Yes, {phrase}, {who}. "{phrase}"',
                       f'"{who}": "{phrase}"\nIt was {who} who said {phrase}.'])


def chat(rng):
    sentence, pairs = fact(rng)
    label, answer = rng.choice(pairs)
    phrase = " ".join(distinct(rng, value, rng.randint(1, 4)))
    return chat_text(*rng.choice([
        (f"{sentence} Which {label}?", answer), (f"{sentence} Which {label}?", f"The {label} is {answer}."),
        (f"{sentence} Say it again.", sentence), (f"Repeat: {phrase}", phrase), (f"Quote {phrase}", f'"{phrase}"'),
    ]))


DOCUMENTS = [repeated_list] * 3 + [notes] * 4 + [table] * 2 + [retold] * 9 + [quoted] * 1 + [chat] * 5


def document(rng):
    return rng.choice(DOCUMENTS)(rng)


def main():
    arguments = parse_arguments(__doc__, pathlib.Path(__file__).parent / "model", seed=7, steps=900, batch_size=16,
                                learning_rate=1e-3, documents=40000)
    make_model(arguments, document, vocab_size=2560, context=128, split=SPLIT, tokenizer_class="PreTrainedTokenizerFast",
               warmup=50, embedding_std=0.1, value_gain=0.1, num_key_value_heads=4)


if __name__ == "__main__":
    main()
