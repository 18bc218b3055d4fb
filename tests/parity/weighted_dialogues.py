"""Dialogues whose turns have weights, a model and an adapter for them, and their loss by transformers + PEFT."""

import json
import random

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import engine
import oracle
from random_case import save_adapter

MODEL = engine.ROOT / "examples/tiny-math/model"
WEIGHTS = [None, 0, 0.25, 1, 3.5, 1e-3]
NUM_ROWS = 8
WORDS = "add take away seven marbles books 12 45 larger smaller than how many are left now please".split()


def dialogues(seed, weights=WEIGHTS, count=NUM_ROWS):
    """The first answer of an example has the next of `weights`, so that all occur."""
    rng = random.Random(seed)
    rows = []
    for index in range(count):
        messages = []
        for turn in range(rng.randint(1, 3)):
            messages.append({"role": "user", "content": " ".join(rng.choices(WORDS, k=rng.randint(2, 9)))})
            weight = weights[index % len(weights)] if turn == 0 else rng.choice(weights)
            answer = {"role": "assistant", "content": " ".join(rng.choices(WORDS, k=rng.randint(1, 9)))}
            messages.append(answer if weight is None else dict(answer, weight=weight))
        messages += [{"role": "assistant", "content": "so", "weight": 0.5}]  # no example is left without a trained token
        rows.append(messages)
    return rows


def tokens_of(tokenizer, messages):
    """The example as transformers tokenises it, with labels, and the weight of each token."""
    text, spans = "", []
    for message in messages:
        text += f"<|im_start|>{message['role']}\n"
        begin, text = len(text), text + message["content"] + "<|im_end|>"
        if message["role"] == "assistant":
            spans.append((begin, len(text), message.get("weight", 1.0)))
        text += "\n"
    assert text == tokenizer.apply_chat_template(messages, tokenize=False)
    encoding = tokenizer(text, return_offsets_mapping=True, add_special_tokens=False)
    weights = [next((weight for a, b, weight in spans if a < end and begin < b), 0.0) for begin, end in encoding["offset_mapping"]]
    labels = [token if weight > 0 else -100 for token, weight in zip(encoding["input_ids"], weights)]
    return {"input_ids": encoding["input_ids"], "labels": labels, "weights": weights}


def weighted_loss(model, rows, backward=False):
    weights = [torch.tensor(row["weights"][1:], dtype=torch.float64) for row in rows]
    denominator, total = sum(float(w.sum()) for w in weights), 0.0
    for row, weight in zip(rows, weights):
        part = (weight * oracle.token_losses(model, row).double()).sum() / denominator
        if backward:
            part.backward()
        total += float(part.detach())
    return total


class Setup:
    def __init__(self, folder):
        self.tokenizer = AutoTokenizer.from_pretrained(MODEL)
        self.model_dir, self.adapter_dir = folder / "model", folder / "adapter"
        self.data_file, self.max_seq_len = folder / "rows.jsonl", 256
        base = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
        base.save_pretrained(self.model_dir)
        self.tokenizer.save_pretrained(self.model_dir)
        lora = dict(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM")
        save_adapter(base, lora, torch.Generator().manual_seed(5), self.adapter_dir)
        self.messages = dialogues(1)
        self.write(self.data_file, self.messages)
        self.rows = [tokens_of(self.tokenizer, messages) for messages in self.messages]
        assert {w for row in self.rows for w in row["weights"]} >= {0.0, 0.25, 1.0, 3.5, 1e-3}
        self.loss, self.gradients = self.reference(self.rows)
        self.supervised_tokens, self.description = oracle.count_supervised(self.rows), "weighted dialogues"

    @staticmethod
    def write(path, dialogues_of_file):
        path.write_text("".join(json.dumps({"messages": messages}) + "\n" for messages in dialogues_of_file))

    def reference(self, rows):
        model = oracle.load_peft(self.model_dir, self.adapter_dir)
        loss = weighted_loss(model, rows, backward=True)
        return loss, {name: p.grad.clone() for name, p in oracle.trainable(model).items()}

    def profile(self, folder, **changes):
        chats = dict(datasets=[{"path": str(self.data_file)}], micro_batch_size=2, gradient_checkpointing="unset",
                     dataset_prepared_path=str(folder / "cache"))
        return engine.profile_for(self, folder / "run", **chats | changes)
