#!/usr/bin/env python3
"""Makes model/: a tokenizer and a Qwen2-shaped language model of 1 M parameters, from seeds alone.

1. Writes a text: equations and sentences about numbers, everyday sentences, and a few chats (greetings, counting,
   repeating), so that the model knows numbers, words and the ChatML markers, but none of the questions of make_data.py.
   Problems that are held out there (problems.py) do not occur.
2. Trains a byte-level BPE on that text, in the layout of Qwen2's tokenizer.json.
3. Pretrains the model for a few minutes on one core, in fp32, and saves it in bf16.

Needs torch, transformers and tokenizers: .deps/venv/bin/python examples/tiny-math/pretrain.py
"""

import pathlib
import sys

from problems import NAMES, THINGS, draw_problem

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from pretraining import chat_text, make_model, parse_arguments  # noqa: E402

ANIMALS = """ant bear bee bird butterfly camel cat chicken cow crab deer dog dolphin donkey duck eagle elephant fish fox
frog giraffe goat goose hamster hedgehog horse kangaroo kitten lamb lion lizard monkey mouse octopus otter owl panda
parrot penguin pig pigeon pony puppy rabbit raccoon rat salmon seal shark sheep snail snake spider squirrel swan tiger
turtle whale wolf worm zebra""".split()
FOODS = """almond banana bean bread broccoli butter cabbage cake carrot cheese cherry chocolate cookie cucumber garlic
grape honey lemon lettuce mango melon milk mushroom noodle olive onion orange pancake peach peanut pear pepper pizza
plum potato pumpkin raspberry rice salad sandwich soup spinach strawberry sugar tomato vanilla walnut yoghurt""".split()
PLACES = """airport attic bakery balcony barn beach bridge castle cave cellar church cinema city classroom desert farm
field forest garage garden harbour hill hospital hotel island kitchen lake library lighthouse market meadow mountain
museum office palace park playground river road school shop stadium station street theatre tower valley village
workshop yard""".split()
JOBS = """actor artist baker barber builder butcher captain carpenter cook dancer dentist doctor driver engineer farmer
fisher gardener hunter judge lawyer musician nurse painter pilot plumber poet sailor scientist singer soldier tailor
teacher waiter writer""".split()
COLOURS = """amber black blue bronze brown crimson cyan golden green grey ivory orange pink purple red silver violet
white yellow""".split()
QUALITIES = """bright broken busy calm careful cheerful clean clever cold curious dark deep dry dusty early empty famous
friendly gentle happy heavy honest hungry kind large late lazy light little lonely long loud lucky modern narrow noisy
old patient pretty proud quick quiet rich rough round sharp short silent simple sleepy small smooth soft strange strong
sunny sweet tall thick thin tired warm wide wild wise wonderful young""".split()
VERBS = """admires avoids brings buys carries catches chases cleans collects counts describes discovers draws fears
feeds finds follows forgets guards hears helps hides holds ignores imagines invites keeps knows leaves likes loves
meets misses needs notices offers paints photographs prefers protects remembers rescues sees sells sends shows
studies teaches understands visits wants watches welcomes""".split()
WHEN = """yesterday today tomorrow every_morning in_the_evening at_noon on_Monday on_Tuesday on_Wednesday on_Thursday
on_Friday on_Saturday on_Sunday in_January in_February in_March in_April in_June in_July in_August in_September
in_October in_November in_December in_winter in_spring in_summer in_autumn before_breakfast after_dinner
during_the_night""".replace("_", "\t").split(" ")
WHEN = [phrase.replace("\t", " ") for group in WHEN for phrase in group.split("\n")]
NOUNS = ANIMALS + FOODS + PLACES + JOBS


def number_sentence(rng):
    kind = rng.choice("++--->")
    a, b = draw_problem(rng, kind, held_out=False)
    if kind == "+":
        s = a + b
        return rng.choice([f"{a} + {b} = {s}", f"{s} = {a} + {b}", f"{a} and {b} make {s}",
                           f"{b} more than {a} equals {s}", f"{a} + {b} gives {s}"])
    if kind == "-":
        d = a - b
        return rng.choice([f"{a} - {b} = {d}", f"{d} = {a} - {b}", f"{a} without {b} makes {d}",
                           f"{b} less than {a} equals {d}", f"{a} - {b} gives {d}"])
    low, high = min(a, b), max(a, b)
    return rng.choice([f"{high} > {low}", f"{low} < {high}", f"max( {a} , {b} ) = {high}", f"min( {a} , {b} ) = {low}"])


def story(rng):
    kind = rng.choice("+-")
    a, b = draw_problem(rng, kind, held_out=False)
    name, things, place = rng.choice(NAMES), rng.choice(THINGS), rng.choice(PLACES)
    if kind == "+":
        return f"At the {place} {name} counts {a} {things}. With {b} others the total becomes {a + b} {things}."
    return f"{name} carries {a} {things} to the {place}. After {b} {things} break, {a - b} {things} remain."


def everyday_sentence(rng):
    def thing():
        noun = rng.choice(NOUNS)
        return rng.choice([noun, f"{rng.choice(QUALITIES)} {noun}", f"{rng.choice(COLOURS)} {noun}"])

    def opening(words):
        return rng.choice(words).capitalize()
    return rng.choice([
        lambda: f"The {thing()} {rng.choice(VERBS)} the {thing()}.",
        lambda: f"{rng.choice(NAMES)} {rng.choice(VERBS)} a {thing()} {rng.choice(WHEN)}.",
        lambda: f"{rng.choice(NAMES)} and {rng.choice(NAMES)} went to the {rng.choice(PLACES)} {rng.choice(WHEN)}.",
        lambda: f"There is a {thing()} near the {rng.choice(PLACES)}, and it is {rng.choice(QUALITIES)}.",
        lambda: f"{opening(NOUNS)}, {thing()} and {thing()} belong to the {rng.choice(PLACES)}.",
        lambda: f"{opening(QUALITIES)} is the {thing()} that {rng.choice(VERBS)} the {rng.choice(NOUNS)}.",
        lambda: f"{opening(COLOURS)} or {rng.choice(COLOURS)}? The {rng.choice(JOBS)}s are {rng.choice(QUALITIES)}.",
        lambda: f"What is larger, a {rng.choice(NOUNS)} or a {rng.choice(NOUNS)}? How many {thing()}s are smaller now?",
        lambda: f"The difference and the sum are {rng.choice(QUALITIES)}, minus the {thing()}, plus the {thing()}.",
        lambda: f"Please add the {thing()}, because {rng.choice(NAMES)} has left, and take the number away.",
        lambda: f"My {rng.choice(JOBS)} says that the {thing()} was {rng.choice(QUALITIES)}.",
    ])()


def number_chat(rng):
    """(user, assistant): copying numbers and working out equations, in other words than make_data.py asks."""
    kind = rng.choice("+->")
    a, b = draw_problem(rng, kind, held_out=False)
    name, things = rng.choice(NAMES), rng.choice(THINGS)
    if rng.random() < 0.4:
        return rng.choice([
            (f"Repeat {a} and {b}.", f"{a} and {b}."),
            (f"Say it again: {name}, {a} {things}, {b}.", f"{name}, {a} {things}, {b}."),
            (f"Turn around {a} , {b}.", f"{b} , {a}."),
        ])
    if kind == ">":
        high, low = max(a, b), min(a, b)
        return rng.choice([
            (f"max {a} , {b}", f"max( {a} , {b} ) = {high}"),
            (f"min {a} , {b}", f"min( {a} , {b} ) = {low}"),
            (f"Order {a} , {b}", f"{high} > {low}"),
        ])
    result = a + b if kind == "+" else a - b
    return rng.choice([
        (f"{a} {kind} {b}", f"{a} {kind} {b} = {result}"),
        (f"Compute {a} {kind} {b}", f"{result} = {a} {kind} {b}"),
        (f"{name}: {a} {things} {kind} {b}", f"{name} gets {result} {things}, {a} {kind} {b} = {result}"),
    ])


def word_chat(rng):
    name, noun, start = rng.choice(NAMES), rng.choice(NOUNS), rng.randint(1, 90)
    return rng.choice([
        (f"Say hello to {name}.", f"Hello {name}, nice to meet you!"),
        (f"Repeat the word {noun}.", noun),
        (f"Count from {start}.", ", ".join(str(start + i) for i in range(4))),
        (f"Tell me something about a {noun}.", everyday_sentence(rng)),
    ])


def chat(rng):
    user, assistant = number_chat(rng) if rng.random() < 0.75 else word_chat(rng)
    return chat_text(user, assistant)


def document(rng):
    kind = rng.random()
    if kind < 0.25:
        return "\n".join(number_sentence(rng) for _ in range(8))
    if kind < 0.3:
        return " ".join(story(rng) for _ in range(2))
    if kind < 0.4:
        return " ".join(everyday_sentence(rng) for _ in range(3))
    return chat(rng)


def main():
    arguments = parse_arguments(__doc__, pathlib.Path(__file__).parent / "model", seed=7, steps=1800, batch_size=16,
                                learning_rate=3e-3, documents=90000)
    make_model(arguments, document, vocab_size=2048, context=128)


if __name__ == "__main__":
    main()
