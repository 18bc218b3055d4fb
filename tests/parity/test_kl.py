"""`loss_type: kl` against transformers + PEFT with the same divergence, made of torch's functions: examples with the log-probabilities of
a teacher, as servers return them."""

import json

import pytest
import torch
import torch.nn.functional as F

import engine
import oracle
from first_step import check

K = 5


def last_run(labels):
    end = max(i for i, label in enumerate(labels) if label != -100) + 1
    begin = end
    while begin > 0 and labels[begin - 1] != -100:
        begin -= 1
    return max(begin, 1), begin, end


def teach(case, folder):
    """The examples with a teacher's tokens beside their last trained ones; the last of them is told otherwise, so that it has none."""
    generator = torch.Generator().manual_seed(1)
    vocab = json.loads((case.model_dir / "config.json").read_text())["vocab_size"]
    rows = []
    for row in case.rows:
        first, begin, end = last_run(row["labels"])
        content, soft = [], {}
        for i in range(begin, end):
            others = torch.randperm(vocab, generator=generator)[:K].tolist()
            values = F.log_softmax(3 * torch.randn(K + 1, generator=generator), 0).tolist()
            chosen = row["input_ids"][i]
            pairs = {chosen: values[0]} | {other: value for other, value in zip(others, values[1:]) if other != chosen}
            is_told_otherwise = i == end - 1 and end - first > 1
            content.append({"id": (chosen + 1) % vocab if is_told_otherwise else chosen, "logprob": values[0],
                            "top_logprobs": [{"id": token, "logprob": value} for token, value in pairs.items()]})
            if i >= first and not is_told_otherwise:
                soft[i] = pairs
        rows.append(row | {"soft": soft, "logprobs": {"content": content}})
    file = folder / "taught.jsonl"
    file.write_text("".join(json.dumps({k: v for k, v in row.items() if k != "soft"}) + "\n" for row in rows))
    return file, rows


def loss_of(alpha, temperature):
    def token_losses(model, row, is_bf16=False):
        logits = model(input_ids=torch.tensor([row["input_ids"]]), use_cache=False).logits[0, :-1].float()
        losses = F.cross_entropy(logits, torch.tensor(row["labels"][1:]), ignore_index=-100, reduction="none")
        parts = list(losses)
        for i, pairs in row["soft"].items():
            log_p = F.log_softmax(torch.tensor(list(pairs.values())) / temperature, 0)
            log_q = F.log_softmax(logits[i - 1] / temperature, 0)[list(pairs)]
            parts[i - 1] = (1 - alpha) * losses[i - 1] + alpha * temperature ** 2 * (log_p.exp() * (log_p - log_q)).sum()
        return torch.stack(parts)
    return token_losses


@pytest.mark.parametrize("alpha, temperature", [(1.0, 1.0), (0.9, 1.0), (0.5, 2.0)])
@pytest.mark.parametrize("number", [0, 2])
def test_step_1(cases, monkeypatch, tmp_path, number, alpha, temperature):
    case = cases(number)
    file, rows = teach(case, tmp_path)
    monkeypatch.setattr(oracle, "token_losses", loss_of(alpha, temperature))
    loss, reference = oracle.gradients(oracle.load_peft(case.model_dir, case.adapter_dir), rows)
    for micro in (2, len(rows)):
        profile = engine.profile_for(case, tmp_path / "run", micro_batch_size=micro, loss_type="kl", kd_alpha=alpha,
                                     kd_temperature=temperature, datasets=[{"path": str(file), "type": "pretokenized"}])
        check(case, *engine.probe(profile, tmp_path), loss, reference)


def test_examples_without_a_teacher_are_refused(cases, tmp_path):
    case = cases(0)
    with pytest.raises(AssertionError, match="no trained token has log-probabilities of a teacher"):
        engine.train(engine.profile_for(case, tmp_path / "run", loss_type="kl"), tmp_path)
