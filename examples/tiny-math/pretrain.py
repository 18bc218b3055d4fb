#!/usr/bin/env python3
"""Makes model/: a tokenizer and a Qwen2-shaped language model of 1 M parameters, from seeds alone.

1. Writes a text: equations and sentences about numbers, everyday sentences, and a few chats (greetings, counting,
   repeating), so that the model knows numbers, words and the ChatML markers, but none of the questions of make_data.py.
   Problems that are held out there (problems.py) do not occur.
2. Trains a byte-level BPE on that text, in the layout of Qwen2's tokenizer.json.
3. Pretrains the model for a few minutes on one core, in fp32, and saves it in bf16.

Needs torch, transformers and tokenizers: .deps/venv/bin/python examples/tiny-math/pretrain.py
"""

import argparse
import json
import math
import pathlib
import random
import time

import numpy
import tokenizers
import torch
import transformers
from safetensors.torch import save_file

from problems import NAMES, THINGS, draw_problem

VOCAB_SIZE = 2048
CONTEXT = 128
END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
QWEN2_SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
               r"|\s+(?!\S)|\s+")
CHAT_TEMPLATE = (
    "{%- for message in messages %}\n"
    "    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}\n"
    "{%- endfor %}\n"
    "{%- if add_generation_prompt %}\n"
    "    {{- '<|im_start|>assistant\\n' }}\n"
    "{%- endif %}\n")
CONFIG = {
    "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": None, "eos_token_id": None,
    "hidden_act": "silu", "hidden_size": 128, "initializer_range": 0.02, "intermediate_size": 384,
    "max_position_embeddings": 1024, "max_window_layers": 4, "model_type": "qwen2", "num_attention_heads": 4,
    "num_hidden_layers": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 10000.0,
    "sliding_window": None, "tie_word_embeddings": True, "torch_dtype": "bfloat16", "use_cache": True,
    "use_sliding_window": False, "vocab_size": None,
}

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
    return f"{TURN_START}user\n{user}{TURN_END}\n{TURN_START}assistant\n{assistant}{TURN_END}\n"


def document(rng):
    kind = rng.random()
    if kind < 0.25:
        return "\n".join(number_sentence(rng) for _ in range(8))
    if kind < 0.3:
        return " ".join(story(rng) for _ in range(2))
    if kind < 0.4:
        return " ".join(everyday_sentence(rng) for _ in range(3))
    return chat(rng)


def train_tokenizer(texts):
    """A tokenizer.json as Qwen2 writes it: vocabulary and merges of a byte-level BPE, markers as the last ids."""
    markers = [END_OF_TEXT, TURN_START, TURN_END]
    trained = tokenizers.Tokenizer(tokenizers.models.BPE())
    trained.normalizer = tokenizers.normalizers.NFC()
    byte_level = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trained.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [tokenizers.pre_tokenizers.Split(tokenizers.Regex(QWEN2_SPLIT), behavior="isolated"), byte_level])
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(markers), min_frequency=2, initial_alphabet=alphabet, show_progress=False)
    trained.train_from_iterator(texts, trainer)
    model = json.loads(trained.to_str())["model"]
    byte_level_options = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    vocab = dict(sorted(model["vocab"].items(), key=lambda item: item[1]))
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [
            {"id": len(vocab) + i, "content": marker, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": True} for i, marker in enumerate(markers)],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": QWEN2_SPLIT}, "behavior": "Isolated", "invert": False},
            byte_level_options]},
        "post_processor": byte_level_options, "decoder": byte_level_options,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "",
            "end_of_word_suffix": "", "fuse_unk": False, "byte_fallback": False, "vocab": vocab,
            "merges": [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]},
    }


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_tokenizer(folder, tokenizer_json):
    write_json(folder / "tokenizer.json", tokenizer_json)
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    write_json(folder / "tokenizer_config.json", {
        "add_bos_token": False, "add_prefix_space": False,
        "added_tokens_decoder": {
            str(token["id"]): {key: value for key, value in token.items() if key != "id"}
            for token in tokenizer_json["added_tokens"]},
        "additional_special_tokens": [TURN_START, TURN_END],
        "bos_token": None, "chat_template": CHAT_TEMPLATE, "clean_up_tokenization_spaces": False,
        "eos_token": TURN_END, "errors": "replace", "model_max_length": CONFIG["max_position_embeddings"],
        "pad_token": END_OF_TEXT, "split_special_tokens": False, "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None})


def encode_all(tokenizer, texts):
    ids = []
    end = tokenizer.token_to_id(END_OF_TEXT)
    for encoding in tokenizer.encode_batch(texts):
        ids += encoding.ids + [end]
    return torch.from_numpy(numpy.array(ids[: len(ids) // CONTEXT * CONTEXT])).view(-1, CONTEXT)


def pretrain(config, rows, num_steps, batch_size, learning_rate):
    """Plain next-token training on rows [n, CONTEXT], in order and around again. Returns the model in fp32."""
    model = transformers.Qwen2ForCausalLM(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.98), weight_decay=0.01)
    warmup, started = 100, time.time()
    for step in range(num_steps):
        progress = max(0, step - warmup) / (num_steps - warmup)
        rate = learning_rate * min(1, (step + 1) / warmup) * (0.02 + 0.98 * (1 + math.cos(math.pi * progress)) / 2)
        for group in optimizer.param_groups:
            group["lr"] = rate
        batch = rows[torch.arange(step * batch_size, (step + 1) * batch_size) % len(rows)]
        loss = model(input_ids=batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 100 == 0 or step == num_steps - 1:
            print(f"step {step} loss {loss.item():.4f} {time.time() - started:.0f} s", flush=True)
    return model


def save_model(folder, model, config_json):
    write_json(folder / "config.json", config_json)
    write_json(folder / "generation_config.json", {
        "do_sample": False, "eos_token_id": [config_json["eos_token_id"], config_json["bos_token_id"]],
        "pad_token_id": config_json["bos_token_id"]})
    weights = {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in model.state_dict().items()
               if name != "lm_head.weight"}  # tied to the embedding
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output-dir", type=pathlib.Path, default=pathlib.Path(__file__).parent / "model")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--steps", type=int, default=1800)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--documents", type=int, default=90000)
    parser.add_argument("--threads", type=int, default=1, help="one: the same sums on any number of cores")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    rng = random.Random(arguments.seed)
    texts = [document(rng) for _ in range(arguments.documents)]
    tokenizer_json = train_tokenizer([text for text in texts if TURN_START not in text])
    arguments.output_dir.mkdir(parents=True, exist_ok=True)
    write_tokenizer(arguments.output_dir, tokenizer_json)
    tokenizer = tokenizers.Tokenizer.from_file(str(arguments.output_dir / "tokenizer.json"))
    rows = encode_all(tokenizer, texts)
    config_json = dict(CONFIG, vocab_size=tokenizer.get_vocab_size(), bos_token_id=tokenizer.token_to_id(END_OF_TEXT),
                       eos_token_id=tokenizer.token_to_id(TURN_END))
    print(f"{len(texts)} documents, {rows.numel()} tokens, vocabulary of {config_json['vocab_size']}", flush=True)
    model = pretrain(transformers.Qwen2Config(**config_json), rows, arguments.steps, arguments.batch_size,
                     arguments.learning_rate)
    save_model(arguments.output_dir, model, config_json)
    print(f"{arguments.output_dir}: {sum(p.numel() for p in model.parameters())} parameters")


if __name__ == "__main__":
    main()
