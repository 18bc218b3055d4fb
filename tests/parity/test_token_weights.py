"""Weights of turns in the loss: sum of weight * -log p over sum of weights, of the whole global step, against transformers +
PEFT. Examples go through the program as messages; here the tokenizer and the weights of tokens are those of transformers."""

from types import SimpleNamespace

import pytest

import engine
import oracle
import replayed_steps
from first_step import LOSS_TOLERANCE, assert_same, check
from weighted_dialogues import Setup, dialogues, tokens_of, weighted_loss

LAYOUTS = {
    "8 x 1": dict(micro_batch_size=1),
    "4 x 2": dict(micro_batch_size=2),
    "one micro-batch": dict(micro_batch_size=8),
    "packed": dict(packing=True, micro_batch_size=1),
    "packed into one bin": dict(packing=True, micro_batch_size=1, global_batch_size=1, max_seq_len=1024),
}


@pytest.fixture(scope="module")
def setup(tmp_path_factory):
    return Setup(tmp_path_factory.mktemp("weights"))


def check_rows(setup, rows, profile, folder):
    case = SimpleNamespace(supervised_tokens=oracle.count_supervised(rows), description=setup.description)
    check(case, *engine.probe(profile, folder), *setup.reference(rows))


@pytest.mark.parametrize("kernels", [(), engine.CUDA_ON_CPU], ids=["cpu", "cuda-on-cpu"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_step_1(setup, tmp_path, layout, kernels):
    check(setup, *engine.probe(setup.profile(tmp_path, **LAYOUTS[layout]), tmp_path, kernels=kernels), setup.loss, setup.gradients)


def test_a_second_start_reads_the_weights_from_the_token_cache(setup, tmp_path):
    first = engine.probe(setup.profile(tmp_path), tmp_path)
    assert list((tmp_path / "cache").glob("*.tokens"))
    second = engine.probe(setup.profile(tmp_path), tmp_path)
    assert_same(second, first)
    check(setup, *second, setup.loss, setup.gradients)


def test_examples_without_weights_beside_others(setup, tmp_path):
    """Two datasets, of which one has weights; within it some examples have none."""
    other = tmp_path / "plain.jsonl"
    plain = dialogues(2, weights=[None], count=4)
    for messages in plain:
        messages.pop()
    setup.write(other, plain)
    rows = setup.rows + [tokens_of(setup.tokenizer, messages) for messages in plain]
    profile = setup.profile(tmp_path, datasets=[{"path": str(setup.data_file)}, {"path": str(other)}], global_batch_size=12,
                            micro_batch_size=3)
    check_rows(setup, rows, profile, tmp_path)


def test_examples_that_are_cut_keep_the_weights_of_their_head(setup, tmp_path):
    length = 40
    rows = [{key: values[:length] for key, values in row.items()} for row in setup.rows]
    rows = [row for row in rows if any(label != -100 for label in row["labels"][1:])]
    assert 0 < sum(len(row["input_ids"]) == length for row in rows)
    profile = setup.profile(tmp_path, max_seq_len=length, overlength="truncate", max_drop_fraction=1.0,
                            global_batch_size=len(rows))
    check_rows(setup, rows, profile, tmp_path)


def test_weights_of_one_change_no_bit(setup, tmp_path):
    def with_weight(weight):
        return [[dict(m, weight=weight) if m["role"] == "assistant" else m for m in messages] for messages in dialogues(3)]
    results = {}
    for weight in (1, 2, None):
        path = tmp_path / f"{weight}.jsonl"
        setup.write(path, with_weight(weight))
        results[weight] = engine.probe(setup.profile(tmp_path, datasets=[{"path": str(path)}]), tmp_path)
    assert_same(results[1], results[None])
    assert results[2][0]["loss"] == pytest.approx(results[1][0]["loss"], rel=1e-12)  # 2 is a power of 2: the sums are exact
    assert max(oracle.gradient_errors(results[2][1], results[1][1]).values()) <= 1e-6


def test_recorded_steps(setup, tmp_path):
    curves = {mode: engine.probe_steps(setup.profile(tmp_path, max_steps=3, global_batch_size=4), tmp_path, 3, kernels)
              for mode, kernels in dict(replayed_steps.GRAPHS, alone=engine.CUDA_ON_CPU).items()}
    assert curves["on"]["replays"] > 0 and curves["off"]["replays"] == 0
    replayed_steps.assert_same(curves["on"], curves["off"])
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
