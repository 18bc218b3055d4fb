"""Weights of turns in the loss: sum of weight * -log p over sum of weights, of the whole global step, against transformers +
PEFT. Examples go through the program as messages; here the tokenizer and the weights of tokens are those of transformers."""

import json
import random

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import engine
import oracle
from random_case import save_adapter
from test_lora_gradients import GRADIENT_TOLERANCE, LOSS_TOLERANCE
from test_step_graphs import GRAPHS

MODEL = engine.ROOT / "examples/tiny-math/model"
WEIGHTS = [None, 0, 0.25, 1, 3.5, 1e-3]
NUM_ROWS = 8
WORDS = "add take away seven marbles books 12 45 larger smaller than how many are left now please".split()

LAYOUTS = {
    "8 x 1": dict(micro_batch_size=1),
    "4 x 2": dict(micro_batch_size=2),
    "one micro-batch": dict(micro_batch_size=8),
    "packed": dict(packing=True, micro_batch_size=1),
    "packed into one bin": dict(packing=True, micro_batch_size=1, global_batch_size=1, max_seq_len=1024),
}


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
        self.data_file = folder / "rows.jsonl"
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

    @staticmethod
    def write(path, dialogues_of_file):
        path.write_text("".join(json.dumps({"messages": messages}) + "\n" for messages in dialogues_of_file))

    def reference(self, rows):
        model = oracle.load_peft(self.model_dir, self.adapter_dir)
        loss = weighted_loss(model, rows, backward=True)
        return loss, {name: p.grad.clone() for name, p in oracle.trainable(model).items()}

    def profile(self, folder, **changes):
        profile = dict(
            model=str(self.model_dir), datasets=[{"path": str(self.data_file)}], device="cpu", precision="fp32",
            base_precision="fp32", init_adapter=str(self.adapter_dir), packing=False, shuffle=False, max_seq_len=256,
            micro_batch_size=2, global_batch_size=NUM_ROWS, max_steps=1, num_epochs=1000, learning_rate=1e-3,
            lr_scheduler_type="constant", warmup_steps=0, weight_decay=0.0, logging_steps=1, report_to="none",
            save_steps=1000000, save_interval=None, dataset_prepared_path=str(folder / "cache"), output_dir=str(folder / "run"))
        return profile | changes


@pytest.fixture(scope="module")
def setup(tmp_path_factory):
    return Setup(tmp_path_factory.mktemp("weights"))


def check(setup, facts, gradients, loss=None, reference=None):
    assert facts["supervised_tokens"] == oracle.count_supervised(setup.rows)
    assert facts["loss"] == pytest.approx(setup.loss if loss is None else loss, rel=LOSS_TOLERANCE)
    errors = oracle.gradient_errors(gradients, reference or setup.gradients)
    assert max(errors.values()) <= GRADIENT_TOLERANCE, oracle.worst(errors)


@pytest.mark.parametrize("kernels", [(), engine.CUDA_ON_CPU], ids=["cpu", "cuda-on-cpu"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_step_1(setup, tmp_path, layout, kernels):
    check(setup, *engine.probe(setup.profile(tmp_path, **LAYOUTS[layout]), tmp_path, kernels=kernels))


def test_a_second_start_reads_the_weights_from_the_token_cache(setup, tmp_path):
    first = engine.probe(setup.profile(tmp_path), tmp_path)
    assert list((tmp_path / "cache").glob("*.tokens"))
    second = engine.probe(setup.profile(tmp_path), tmp_path)
    assert first[0] == second[0]
    check(setup, *second)


def test_examples_without_weights_beside_others(setup, tmp_path):
    """Two datasets, of which one has weights; within it some examples have none."""
    other = tmp_path / "plain.jsonl"
    plain = dialogues(2, weights=[None], count=4)
    for messages in plain:
        messages.pop()
    setup.write(other, plain)
    rows = setup.rows + [tokens_of(setup.tokenizer, messages) for messages in plain]
    loss, reference = setup.reference(rows)
    profile = setup.profile(tmp_path, datasets=[{"path": str(setup.data_file)}, {"path": str(other)}], global_batch_size=12,
                            micro_batch_size=3)
    facts, gradients = engine.probe(profile, tmp_path)
    assert facts["supervised_tokens"] == oracle.count_supervised(rows)
    assert facts["loss"] == pytest.approx(loss, rel=LOSS_TOLERANCE)
    errors = oracle.gradient_errors(gradients, reference)
    assert max(errors.values()) <= GRADIENT_TOLERANCE, oracle.worst(errors)


def test_examples_that_are_cut_keep_the_weights_of_their_head(setup, tmp_path):
    length = 40
    rows = [{key: values[:length] for key, values in row.items()} for row in setup.rows]
    rows = [row for row in rows if any(label != -100 for label in row["labels"][1:])]
    assert 0 < sum(len(row["input_ids"]) == length for row in rows)
    loss, reference = setup.reference(rows)
    profile = setup.profile(tmp_path, max_seq_len=length, overlength="truncate", max_drop_fraction=1.0,
                            global_batch_size=len(rows))
    facts, gradients = engine.probe(profile, tmp_path)
    assert facts["loss"] == pytest.approx(loss, rel=LOSS_TOLERANCE)
    errors = oracle.gradient_errors(gradients, reference)
    assert max(errors.values()) <= GRADIENT_TOLERANCE, oracle.worst(errors)


def test_weights_of_one_change_no_bit(setup, tmp_path):
    def with_weight(weight):
        return [[dict(m, weight=weight) if m["role"] == "assistant" else m for m in messages] for messages in dialogues(3)]
    results = {}
    for weight in (1, 2, None):
        path = tmp_path / f"{weight}.jsonl"
        setup.write(path, with_weight(weight))
        results[weight] = engine.probe(setup.profile(tmp_path, datasets=[{"path": str(path)}]), tmp_path)
    assert results[1][0] == results[None][0]
    assert all(torch.equal(results[1][1][name], gradient) for name, gradient in results[None][1].items())
    assert results[2][0]["loss"] == pytest.approx(results[1][0]["loss"], rel=1e-12)  # 2 is a power of 2: the sums are exact
    assert max(oracle.gradient_errors(results[2][1], results[1][1]).values()) <= 1e-6


def test_recorded_steps(setup, tmp_path):
    curves = {mode: engine.probe_steps(setup.profile(tmp_path, max_steps=3, global_batch_size=4), tmp_path, 3, kernels)
              for mode, kernels in dict(GRAPHS, alone=engine.CUDA_ON_CPU).items()}
    assert curves["on"]["replays"] > 0 and curves["off"]["replays"] == 0
    assert curves["on"]["losses"] == curves["off"]["losses"] and curves["on"]["grad_norms"] == curves["off"]["grad_norms"]
    assert curves["off"]["losses"] == pytest.approx(curves["alone"]["losses"], rel=2e-6)
    assert curves["off"]["losses"][0] == pytest.approx(weighted_loss(oracle.load_peft(setup.model_dir, setup.adapter_dir),
                                                                     setup.rows[:4]), rel=2e-6)
    assert curves["alone"]["allocations"] == 0


def test_evaluation_and_metrics(setup, tmp_path):
    (result,) = engine.evaluate(setup.profile(tmp_path, eval_datasets=[{"path": str(setup.data_file)}]), tmp_path, setup.adapter_dir)
    assert result["loss"] == pytest.approx(setup.loss, rel=LOSS_TOLERANCE)
    assert result["num_tokens"] == oracle.count_supervised(setup.rows)
    profile = setup.profile(tmp_path, max_steps=2, global_batch_size=4, logging_steps=2, learning_rate=1e-9,
                            eval_datasets=[{"path": str(setup.data_file)}])
    (line,) = engine.train(profile, tmp_path)
    assert line["loss_mean"] == pytest.approx(setup.loss, rel=1e-5)  # of both steps, by their weights
    assert line["supervised_tokens"] == oracle.count_supervised(setup.rows[4:])
    evaluation = engine.events(tmp_path / "run", "eval")[-1]
    assert evaluation["loss"] == pytest.approx(setup.loss, rel=1e-5)


def test_an_evaluation_has_weights_where_training_has_none(setup, tmp_path):
    plain = tmp_path / "plain.jsonl"
    setup.write(plain, [messages[:-1] for messages in dialogues(2, weights=[None])])
    profile = setup.profile(tmp_path, datasets=[{"path": str(plain)}], learning_rate=1e-9,
                            eval_datasets=[{"path": str(setup.data_file)}])
    engine.train(profile, tmp_path)
    assert engine.events(tmp_path / "run", "eval")[-1]["loss"] == pytest.approx(setup.loss, rel=1e-5)
