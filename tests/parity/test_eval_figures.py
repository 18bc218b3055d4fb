"""What `eval` and `generate` say of the shipped model, against figures that numpy computes from transformers' logits."""

import json

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import engine
from tiny_math import EXAMPLE, FP32

BINS = 15
TOLERANCE = 1e-6


@pytest.fixture(scope="module")
def model():
    return AutoModelForCausalLM.from_pretrained(EXAMPLE / "model", dtype=torch.float32, attn_implementation="eager").eval()


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(EXAMPLE / "model")


def log_softmax(model, ids):
    """[T, V] in fp64: row t predicts token t + 1."""
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0].double().numpy()
    logits = logits - logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def calibration_error(confidence, correct):
    confidence, correct = np.asarray(confidence), np.asarray(correct, float)
    bins = np.minimum((confidence * BINS).astype(int), BINS - 1)
    return sum(abs(confidence[bins == b].sum() - correct[bins == b].sum()) for b in range(BINS)) / len(correct)


def token_figures(model, rows):
    """rows: (ids, number of prompt tokens)"""
    losses, correct, confidence = [], [], []
    for ids, num_prompt in rows:
        log_p = log_softmax(model, ids)
        for at in range(num_prompt, len(ids)):
            losses.append(-log_p[at - 1, ids[at]])
            correct.append(log_p[at - 1].argmax() == ids[at])
            confidence.append(np.exp(log_p[at - 1].max()))
    return {"loss": np.mean(losses), "perplexity": np.exp(np.mean(losses)), "token_accuracy": np.mean(correct),
            "ece": calibration_error(confidence, correct), "num_tokens": len(losses)}


def evaluate(*arguments):
    out = engine.run("lora-train", "eval", "--model", EXAMPLE / "model", *FP32, "--json", *arguments)
    return json.loads(out)


def assert_close(got, expected):
    for name, value in expected.items():
        assert got[name] == pytest.approx(value, rel=TOLERANCE, abs=TOLERANCE), name


def chats(path, num_rows):
    """Writes the first single-turn chats; returns pairs of question and answer."""
    lines = (EXAMPLE / "heldout.jsonl").read_text().splitlines()
    lines = [line for line in lines if len(json.loads(line)["messages"]) == 2][:num_rows]
    assert len(lines) == num_rows
    path.write_text("\n".join(lines) + "\n")
    return [json.loads(line)["messages"] for line in lines]


def chat_rows(tokenizer, pairs):
    rows = []
    for question, answer in pairs:
        prompt = tokenizer.apply_chat_template([question], add_generation_prompt=True, return_dict=False)
        rows.append((prompt + tokenizer(answer["content"] + "<|im_end|>", add_special_tokens=False).input_ids, len(prompt)))
    return rows


def test_loss_accuracy_and_calibration_of_chats(model, tokenizer, tmp_path):
    pairs = chats(tmp_path / "rows.jsonl", 40)
    got = evaluate("--eval-data", tmp_path / "rows.jsonl")
    assert_close(got, token_figures(model, chat_rows(tokenizer, pairs)))


def quiz(num_rows):
    """Texts and chats, two to four choices of different lengths."""
    rng = np.random.default_rng(3)
    rows = []
    for number in range(num_rows):
        a, b = rng.integers(10, 50, 2)
        results = [int(a + b)] + [int(x) for x in rng.integers(10, 300, rng.integers(1, 4))]
        choices = [f"{a} plus {b} is {value}" + ("." if value % 2 else " in all.") for value in results]
        order = rng.permutation(len(choices))
        row = {"choices": [choices[i] for i in order], "answer": int(np.where(order == 0)[0][0])}
        text = f"What is {a} plus {b}?"
        row.update({"prompt": text + "\n"} if number % 2 else {"messages": [{"role": "user", "content": text}]})
        rows.append(row)
    return rows


def test_choices(model, tokenizer, tmp_path):
    rows, data = quiz(40), tmp_path / "quiz.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    right, right_normalized, confidence, brier, right_rows = [], [], [], [], []
    for row in rows:
        prompt = row.get("prompt") or tokenizer.apply_chat_template(row["messages"], add_generation_prompt=True, tokenize=False)
        scores = []
        for at, choice in enumerate(row["choices"]):
            encoding = tokenizer(prompt + choice, add_special_tokens=False, return_offsets_mapping=True)
            num_prompt = sum(end <= len(prompt) for _, end in encoding.offset_mapping)
            log_p = log_softmax(model, encoding.input_ids)
            scores.append(sum(log_p[t - 1, encoding.input_ids[t]] for t in range(num_prompt, len(encoding.input_ids))))
            if at == row["answer"]:
                right_rows.append((encoding.input_ids, num_prompt))
        scores = np.array(scores)
        shares = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
        right.append(scores.argmax() == row["answer"])
        right_normalized.append((scores / [len(choice) for choice in row["choices"]]).argmax() == row["answer"])
        confidence.append(shares.max())
        brier.append(((shares - np.eye(len(shares))[row["answer"]]) ** 2).sum())
    assert 0 < np.mean(right) < 1 and right != right_normalized  # otherwise nothing is tested
    got = evaluate("--eval-data", data, "--choices")
    assert_close(got, dict(token_figures(model, right_rows), acc=np.mean(right), acc_norm=np.mean(right_normalized),
                           choices_ece=calibration_error(confidence, right), brier=np.mean(brier), num_rows=len(rows)))


def greedy_ids(model, tokenizer, messages):
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=False)
    with torch.no_grad():
        ids = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=40, do_sample=False)
    return ids[0, prompt.shape[1]:].tolist()


def test_every_turn_of_a_chat_is_answered_as_the_whole_of_it(model, tokenizer, tmp_path):
    questions = [question for question, _ in chats(tmp_path / "rows.jsonl", 5)]
    done = engine.start("lora-train", "chat", "--model", EXAMPLE / "model", *FP32, "--json", "--max-new-tokens", "40",
                        data="".join(question["content"] + "\n" for question in questions).encode())
    assert done.returncode == 0, done.stderr
    messages = []
    for question, line in zip(questions, done.stdout.splitlines(), strict=True):
        messages.append(question)
        assert json.loads(line)["completion_ids"] == greedy_ids(model, tokenizer, messages)
        messages.append({"role": "assistant", "content": json.loads(line)["completion"]})


def test_exact_match_and_greedy_answers(model, tokenizer, tmp_path):
    data = tmp_path / "rows.jsonl"
    pairs = chats(data, 30)
    out = engine.run("lora-train", "generate", "--model", EXAMPLE / "model", *FP32, "--prompts", data, "--json",
                     "--max-new-tokens", 40)
    answers = [json.loads(line) for line in out.splitlines()]
    matched = 0
    for (question, answer), got in zip(pairs, answers, strict=True):
        ids = greedy_ids(model, tokenizer, [question])
        assert got["completion_ids"] == ids
        assert got["completion"] == tokenizer.decode(ids, skip_special_tokens=True)
        matched += got["completion"].strip() == answer["content"]
    line = evaluate("--eval-data", data, "--exact-match", "--max-new-tokens", 40)
    assert (line["num_matched"], line["num_answers"]) == (matched, len(pairs))


SIGNS = {"?": 0.0, "!": 1.0, ";": 0.5}  # single tokens of the tokenizer


def signed_rows(num_rows):
    """Sums, a third of them wrong, each with a sign of how sure the answer is; some examples say whether they are right."""
    rng = np.random.default_rng(5)
    rows = []
    for number in range(num_rows):
        a, b = rng.integers(10, 50, 2)
        answer = f"{a} plus {b} is {a + b + (number % 3 == 0)}" + list(SIGNS)[number % 4 % 3]
        rows.append({"messages": [{"role": "user", "content": f"What is {a} plus {b}?"}, {"role": "assistant", "content": answer}],
                     "correct": bool(number % 3)})
    return rows


def task_figures(confidence, correct):
    """By numpy alone; auroc as scikit-learn defines it: over all pairs of a right and a wrong answer, a tie counts as half."""
    order = np.argsort(confidence, kind="stable")
    parts = [part for part in np.array_split(order, BINS) if len(part)]
    gaps = np.subtract.outer(confidence[correct], confidence[~correct])
    return {"accuracy": correct.mean(), "ece": calibration_error(confidence, correct),
            "ece_equal_mass": sum(len(part) * abs(confidence[part].mean() - correct[part].mean()) for part in parts) / len(correct),
            "brier": ((confidence - correct) ** 2).mean(), "auroc": (gaps > 0).mean() + (gaps == 0).mean() / 2,
            "mean_confidence": confidence.mean(), "over_confidence": confidence.mean() - correct.mean(), "num_rows": len(correct)}


def test_confidence(model, tokenizer, tmp_path):
    rows, data, answers = signed_rows(50), tmp_path / "signed.jsonl", tmp_path / "answers.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = [{"name": "conf", "kind": "confidence", "path": str(data)}]
    got = evaluate("--set", f"confidence_tokens={json.dumps(SIGNS)}", "--set", f"eval_tasks={json.dumps(task)}", "--answers", answers)
    lines = [json.loads(line) for line in answers.read_text().splitlines()]
    assert len(lines) == len(rows)
    ids = [tokenizer.convert_tokens_to_ids(sign) for sign in SIGNS]
    for row, line in zip(rows, lines):
        text = tokenizer.apply_chat_template(row["messages"][:1], add_generation_prompt=True, tokenize=False)
        prefix = tokenizer(text + row["messages"][1]["content"][:-1], add_special_tokens=False).input_ids
        with torch.no_grad():
            logits = model(torch.tensor([prefix])).logits[0, -1].double().numpy()[ids]
        assert np.allclose(line["logits"], logits, rtol=TOLERANCE, atol=1e-4), line
        shares = np.exp(np.array(line["logits"]) - max(line["logits"]))
        expected = shares / shares.sum() @ list(SIGNS.values())
        assert abs(line["confidence"] - expected) < 1e-12
        assert line["most_likely"] == list(SIGNS.values())[int(shares.argmax())]
        assert (line["is_right"], line["expected"]) == (row["correct"], None)
        assert line["answer"] == row["messages"][1]["content"][:-1] and line["prompt"] == text
    expected = task_figures(np.array([line["confidence"] for line in lines]), np.array([line["is_right"] for line in lines]))
    for name, value in expected.items():
        assert abs(got[name] - value) < 1e-9, name
    bins = np.array(got["bins"])
    assert bins.shape == (15, 3) and bins[:, 0].sum() == 50 and abs(bins[:, 1].sum() / 50 - got["mean_confidence"]) < 1e-12


def test_tasks_count_what_the_flags_count(tmp_path):
    """kind: choices and exact_match of eval_tasks, against --choices and --exact-match."""
    quiz_file = tmp_path / "quiz.jsonl"
    quiz_file.write_text("".join(json.dumps(row) + "\n" for row in quiz(12)))
    chats(tmp_path / "rows.jsonl", 12)
    tasks = [{"name": "quiz", "kind": "choices", "path": str(quiz_file)},
             {"name": "sums", "kind": "exact_match", "path": str(tmp_path / "rows.jsonl"), "max_samples": 9, "regex": "([0-9]+)",
              "max_new_tokens": 16}]
    run = engine.run("lora-train", "eval", "--model", EXAMPLE / "model", *FP32, "--json", "--set", f"eval_tasks={json.dumps(tasks)}")
    choices, match = map(json.loads, run.splitlines())
    flags = evaluate("--eval-data", quiz_file, "--choices")
    assert (choices["name"], choices["kind"], choices["num_rows"]) == ("quiz", "choices", 12)
    assert_close(choices, {"accuracy": flags["acc"], "ece": flags["choices_ece"], "brier": flags["brier"]})
    flags = evaluate("--eval-data", tmp_path / "rows.jsonl", "--exact-match", "([0-9]+)", "--max-samples", "9", "--max-new-tokens", "16")
    assert (match["accuracy"], match["num_rows"]) == (flags["exact_match"], 9) and "ece" not in match
