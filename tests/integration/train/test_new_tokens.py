"""Profiles with add_tokens: what is refused before any computing, resume, ranks, other optimizers and bases, and answers."""

import json

import pytest

from command import ROOT, events_of, expect_end, good_run, lora_train
from stand_in_gpu import NEEDS_STAND_IN, TAKES_MEMORY_OR_WAITS, run_on_stand_in

MODEL = ROOT / "examples/tiny-math/model"
TOKENS = ["<conf_0>", "<conf_100>"]


def stand_in_only(test):
    for mark in NEEDS_STAND_IN:
        test = mark(test)
    return test


class Files:
    def __init__(self, folder):
        self.folder = folder
        rows = [json.loads(line) for line in (ROOT / "examples/tiny-math/train.jsonl").read_text().splitlines()[:12]]
        for at, row in enumerate(rows):
            row["messages"][-1]["content"] += TOKENS[at % 2]
        self.rows = folder / "rows.jsonl"
        self.rows.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def profile(self, name="run", add_tokens=str(TOKENS).replace("'", '"'), **changes):
        keys = {"model": MODEL, "datasets": f"[{self.rows}]", "add_tokens": add_tokens, "device": "cpu", "precision": "fp32",
                "global_batch_size": 4, "micro_batch_size": 2, "packing": "false", "max_seq_len": 128, "max_steps": 4, "save_steps": 2, "learning_rate": 3e-3,
                "lora_r": 4, "report_to": "none", "output_dir": self.folder / name, **changes}
        path = self.folder / f"{name}.yaml"
        path.write_text("".join(f"{key}: {value}\n" for key, value in keys.items() if value != "unset"))
        return path

    def train(self, *arguments, **changes):
        return lora_train("train", "--profile", self.profile(**changes), *arguments)

    def losses(self, name):
        return [line["loss"] for line in events_of(self.folder / name, "train")]

    def result(self, name="run"):
        return {path.name: path.read_bytes() for path in (self.folder / name / "adapter").iterdir() if path.name != "README.md"}


@pytest.fixture
def files(tmp_path):
    return Files(tmp_path)


BAD = {
    "one that is there": (dict(add_tokens="[<new>, <|im_end|>]"), 'already has "<|im_end|>" with id 2047: use it as it is'),
    "one of the vocabulary": (dict(add_tokens="[ar]"), 'already has "ar" with id'),
    "a new one as description": (dict(add_tokens='[{token: <a>, init_text: "<b>"}, {token: <b>, init_text: b}]', token_init="description"),
                                 "contains <b>; that is also new"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_added_is_refused_with_its_line(files, case):
    changes, part = BAD[case]
    for command in ("train", "check"):
        run = lora_train(command, "--profile", files.profile(**changes))
        assert run.code == 2 and part in run.stderr and f"{files.folder}/run.yaml:3: add_tokens" in run.stderr, run
        assert run.stderr.count("run.yaml:3: add_tokens") == run.stderr.count(": add_tokens") == 1 and not (files.folder / "run/metrics.jsonl").exists(), run


@pytest.mark.parametrize("changes", [dict(), dict(optim="adamw_8bit", precision="bf16", add_tokens="[<conf_0>, <conf_100>, <a>]"),
                                     dict(base_precision="nf4", gradient_checkpointing="full")], ids=str)
def test_a_resumed_run_ends_in_the_same_bytes(files, changes):
    assert files.train(**changes).code == 0
    assert files.train(name="cut", **dict(changes, max_steps=2)).code == 0
    if not changes:  # other tokens are another run
        for other, said in ((dict(add_tokens="[<conf_0>, <conf_100>, <more>]"), "add_tokens: "), (dict(token_init="zeros"), "token_init: mean -> zeros")):
            expect_end(files.train(name="cut", **other), 2, said, "->")
        run = files.train("--nproc", "2", name="two")
        assert run.code == 0 and files.losses("two") == pytest.approx(files.losses("run"), rel=1e-5), run
    expect_end(files.train(name="cut", **changes), 0, "resumed from")
    assert files.result() == files.result("cut")


def test_a_trained_token_is_answered(files):
    """Every answer ends in a new token: after some steps, greedy answers do so too, and are shown with it."""
    run = files.train(max_steps=60, learning_rate=1e-2)
    assert run.code == 0 and "new tokens: 2, with the ids 2048 to 2049; the embedding is enlarged from 2048 to 2112 rows" in run.stderr, run
    question = json.loads(files.rows.read_text().splitlines()[0])["messages"][0]["content"]
    adapter, checkpoint = files.folder / "run/adapter", files.folder / "run/checkpoint-60"

    def generate(*arguments):
        return good_run("generate", *arguments, "--prompt", question, "--json", "--set", "device=cpu")

    for words in (["--model", MODEL, "--adapter", adapter, "--compare"], ["--profile", files.profile(), "--adapter", checkpoint]):
        assert any(token in generate(*words).json_lines()[0]["completion"] for token in TOKENS), words
    assert "trains the row of id 2048, but the tokenizer has no such token" in generate("--model", MODEL, "--adapter", checkpoint).stderr
    run = lora_train("merge", "--portable", "--adapter", adapter, "--output-dir", files.folder / "out")
    assert run.code == 4 and "trainable_token_indices" in run.stderr and "merge the adapter into the model" in run.stderr, run


@stand_in_only
@pytest.mark.parametrize("changes", [dict(), dict(model="quantised", decoded_layers=1, gradient_checkpointing="full")], ids=str)
def test_steps_on_a_gpu_are_still_copies_and_replays(files, changes):
    """On the stand-in for the CUDA runtime: trained rows are part of the recorded steps, and take no memory and no wait per step."""
    counts = []
    if "model" in changes:  # kernels of the stand-in would quantise to nothing
        changes = dict(changes, model=files.folder / "nf4")
        assert lora_train("quantize", "--model", MODEL, "--output-dir", changes["model"], "--base-precision", "nf4").code == 0
    for steps in (10, 30):
        profile = files.profile(name=f"run-{steps}", device="cuda", precision="bf16", max_steps=steps, save_steps=1000, warmup_steps=0, **changes)
        run, calls = run_on_stand_in(files.folder, ["train", "--profile", profile])
        assert run.code == 0 and "cuda_graphs: captured the steps for micro-batches of" in run.stderr, run
        assert calls["recorded"] > 100 and calls["recordedCold"] == 0, calls
        counts.append(calls)
    more = {name: (counts[1][name] - counts[0][name]) / 20 for name in counts[0]}
    assert more["cudaGraphLaunch"] >= 4 and more["cudaLaunchKernel"] == 1 and more["cublasLtMatmul"] == 0, more
    assert not any(more[name] for name in TAKES_MEMORY_OR_WAITS), more
