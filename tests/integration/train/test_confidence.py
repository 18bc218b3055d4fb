"""examples/confidence: new tokens whose calibration error falls; a short run of it, and (long_run) the run as people have it."""

import json
import signal
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file

from command import BINARY, ENVIRONMENT, ROOT, events_of, good_run, wait_for

EXAMPLE = ROOT / "examples/confidence"
TOKENS = ["<conf_0>", "<conf_25>", "<conf_50>", "<conf_75>", "<conf_100>"]
SHORT = ["max_steps=30", "eval_max_samples=60"]


def train(folder, *arguments):
    return good_run("train", "--profile", EXAMPLE / "profile.yaml", "--output-dir", folder, "--json", *arguments, cwd=ROOT)


def conf_lines(folder):
    return {line["step"]: {key: value for key, value in line.items() if key not in ("eval_s", "spans")}
            for line in events_of(folder, "eval") if line["name"] == "conf"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("confidence") / "run"
    train(folder, *SHORT)
    return folder


def answers_of(folder, path, *arguments):
    """The result of eval, and its answers."""
    run = good_run("eval", "--profile", EXAMPLE / "profile.yaml", "--adapter", folder / "adapter", "--json", "--answers", path, *arguments, cwd=ROOT)
    return next(line for line in run.json_lines() if line["name"] == "conf"), [json.loads(line) for line in path.open()]


def test_the_data_are_those_of_the_generator(tmp_path):
    subprocess.run([sys.executable, EXAMPLE / "make_data.py", "--output-dir", tmp_path], check=True, env=dict(ENVIRONMENT, PYTHONDONTWRITEBYTECODE="1"))
    for name in ("train.jsonl", "heldout.jsonl"):
        assert (tmp_path / name).read_bytes() == (EXAMPLE / name).read_bytes()
    questions = [{json.loads(line)["messages"][0]["content"] for line in (EXAMPLE / name).open()} for name in ("train.jsonl", "heldout.jsonl")]
    assert not questions[0] & questions[1]


@pytest.mark.long_run
def test_the_calibration_error_falls_and_the_best_step_is_kept(tmp_path, record_property):
    folder = tmp_path / "run"
    train(folder)
    lines, summary = conf_lines(folder), json.loads((folder / "summary.json").read_text())
    first, best = lines[0], lines[summary["best_step"]]
    record_property("shown", f"examples/confidence: ece {first['ece']:.3f} before, {best['ece']:.3f} at step {summary['best_step']} "
                             f"of {summary['step']}; auroc {first['auroc']:.3f}, {best['auroc']:.3f}; {summary['wall_s']:.0f} s")
    assert first["ece"] > 0.2 and best["ece"] < 0.1 and best["num_rows"] == 300
    assert first["brier"] > 0.24 and best["brier"] < 0.18 and first["auroc"] < 0.6 and best["auroc"] > 0.65
    assert summary["reason"] == f"early stopping: conf.brier did not improve in 2 evaluations; best at step {summary['best_step']}"
    assert summary["step"] == summary["best_step"] + 30 < summary["total_steps"]
    _, answers = answers_of(folder, tmp_path / "answers.jsonl")
    by_kind = {word: np.mean([a["confidence"] for a in answers if word in a["prompt"]]) for word in ("plus", "minus", "larger")}
    assert all(abs(by_kind[word] - rate) < 0.2 for word, rate in (("plus", 0.97), ("minus", 0.8), ("larger", 0.5))), by_kind


def test_the_best_adapter_is_kept_and_says_the_same_in_eval(trained, tmp_path):
    lines, summary = conf_lines(trained), json.loads((trained / "summary.json").read_text())
    after_step_1 = {step: line["brier"] for step, line in lines.items() if step > 0}
    assert summary["best_step"] == min(after_step_1, key=after_step_1.get) == summary["adapter_step"]
    best = lines[summary["best_step"]]
    assert summary["best_metric"] == best["brier"] < lines[0]["brier"] and best["num_rows"] == 60
    conf, answers = answers_of(trained, tmp_path / "answers.jsonl", "eval_max_samples=60")
    assert conf == {key: value for key, value in best.items() if key not in ("event", "step")}
    confidence, right = np.array([a["confidence"] for a in answers]), np.array([a["is_right"] for a in answers])
    bins = np.minimum((confidence * 15).astype(int), 14)
    assert abs(conf["ece"] - sum(abs((confidence - right)[bins == b].sum()) for b in range(15)) / len(right)) < 1e-9


def test_a_stop_inside_an_evaluation_changes_no_bit(trained, tmp_path):
    pieces = tmp_path / "pieces"
    command = [BINARY, "train", "--profile", EXAMPLE / "profile.yaml", "--output-dir", pieces, *SHORT]
    process = subprocess.Popen(list(map(str, command)), env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    is_inside = lambda: any(line["step"] == 15 for line in events_of(pieces, "eval"))  # noqa: E731  the loss comes before the task
    wait_for(is_inside, "the loss of the evaluation after step 15", process)
    process.send_signal(signal.SIGTERM)
    stderr = process.communicate(timeout=120)[1]
    assert process.returncode == 75 and 15 not in conf_lines(pieces), stderr
    assert "resumed from" in train(pieces, *SHORT).stderr
    assert conf_lines(pieces) == conf_lines(trained)
    ours, theirs = (load_file(at / "adapter/adapter_model.safetensors") for at in (pieces, trained))
    assert ours.keys() == theirs.keys() and all((ours[name] == theirs[name]).all() for name in ours)


def test_peft_loads_the_adapter_with_equal_logits(trained, tmp_path):
    """As a user would: the tokenizer of the adapter, the model resized to it. The engine's logits: those of `eval --answers`."""
    torch, transformers, peft = (pytest.importorskip(name) for name in ("torch", "transformers", "peft"))
    _, answers = answers_of(trained, tmp_path / "answers.jsonl", "--max-samples", 20)
    tokenizer = transformers.AutoTokenizer.from_pretrained(trained / "adapter")
    model = transformers.AutoModelForCausalLM.from_pretrained(ROOT / "examples/tiny-math/model", dtype=torch.float32)
    if len(tokenizer) > model.get_input_embeddings().num_embeddings:
        model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    model = peft.PeftModel.from_pretrained(model, trained / "adapter").eval()
    ids = tokenizer.convert_tokens_to_ids(TOKENS)
    assert len(answers) == 20 and tokenizer.unk_token_id not in ids
    for answer in answers:
        prefix = tokenizer(answer["prompt"] + answer["answer"], add_special_tokens=False, return_tensors="pt").input_ids
        with torch.no_grad():
            logits = model(prefix).logits[0, -1, ids].numpy()
        assert np.allclose(logits, answer["logits"], atol=2e-4), (answer, logits)
