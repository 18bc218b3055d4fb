"""Generated ids, logits, draws and scores against transformers' generate, its logits processors and PEFT."""

import copy
import functools
import json
import random
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LogitsProcessorList, MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

import oracle
from generation import (NEW_TOKENS, by_transformers, check_logits, ids_of, load, log_probability, logits_by_transformers, probe,
                        prompts_of, request_for, start)


@pytest.fixture(scope="module")
def oracles(cases):
    """oracles(number, adapter) is (case, model, greedy continuations of all prompts), made once."""
    @functools.cache
    def get(number, adapter):
        case = cases(number)
        model = load(case, adapter)
        return case, model, [by_transformers(model, ids) for ids in prompts_of(case)]
    return get


@pytest.mark.parametrize("number, adapter", [*((number, True) for number in (0, 1, 2, 3, 5, 8, 100, 101)),
                                             *((number, False) for number in (0, 1, 3, 100))])
def test_greedy_ids_are_those_of_transformers(oracles, tmp_path, number, adapter):
    case, _, want = oracles(number, adapter)
    prompts = prompts_of(case)
    together = probe(request_for(case, prompts, adapter), tmp_path)
    assert ids_of(together) == want, case.description
    assert together["streamed"] == want and sorted(together["done"]) == list(range(len(prompts)))
    # Few at a time, prompts cut into parts of 5 tokens, room for three of the longest: the others wait.
    tight = {"max_sequences": 3, "max_pass_tokens": 5, "cache_bytes": 1}
    assert ids_of(probe(request_for(case, prompts, adapter, limits=tight), tmp_path)) == want, case.description
    if adapter:
        assert ids_of(probe(request_for(case, prompts[2:3], adapter), tmp_path)) == want[2:3], case.description


@pytest.mark.parametrize("number", range(4))
def test_logits_of_prompts_and_of_cached_tokens(oracles, tmp_path, number):
    case, model, want = oracles(number, True)
    prompts = prompts_of(case)
    probe(request_for(case, prompts, logits=str(tmp_path / "logits"), limits={"max_pass_tokens": 16}), tmp_path)
    check_logits(tmp_path / "logits", case, model, prompts, want)


@pytest.mark.parametrize("number, adapter", [(0, False), (1, True), (2, True), (3, False)])
def test_a_model_stored_in_bf16_is_computed_in_fp32(cases, tmp_path, number, adapter):
    """Its matrices stay in bf16 in memory then; the numbers are those of fp32."""
    case = copy.copy(cases(number))
    case.model_dir = shutil.copytree(case.model_dir, tmp_path / "model")
    for file in case.model_dir.glob("*.safetensors"):
        save_file({name: tensor.to(torch.bfloat16) for name, tensor in load_file(file).items()}, file)
    model, prompts = load(case, adapter), prompts_of(case)
    want = [by_transformers(model, ids) for ids in prompts]
    for keeps, element_bytes in ((True, 2), (False, 4)):
        result = probe(request_for(case, prompts, adapter, logits=str(tmp_path / "logits"), keeps_bf16=keeps), tmp_path)
        assert result["element_bytes"] == element_bytes and ids_of(result) == want, case.description
        check_logits(tmp_path / "logits", case, model, prompts, want)


@pytest.mark.parametrize("number", [1, 2])
def test_bf16_is_as_near_as_transformers_in_bf16(oracles, tmp_path, number):
    case, _, want = oracles(number, False)
    exact, rounded = load(case, False), load(case, False, torch.bfloat16)
    prompts = prompts_of(case)[:4]
    probe(request_for(case, prompts, adapter=False, new_tokens=1, dtype="bf16", logits=str(tmp_path / "logits")), tmp_path)
    rows = load_file(tmp_path / "logits")
    for index, ids in enumerate(prompts):
        reference = logits_by_transformers(exact, ids)[-1]
        theirs = oracle.relative_error(logits_by_transformers(rounded, ids)[-1], reference)
        ours = oracle.relative_error(rows[f"{index}.0"], reference)
        assert ours < max(1.5 * theirs, 0.01), f"{case.description}: prompt {index}: ours {ours:.2e}, theirs {theirs:.2e}"


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("number", range(4))
def test_a_prompt_has_the_same_bits_alone_and_in_any_company(cases, tmp_path, number, dtype):
    case = cases(number)
    prompts = prompts_of(case)

    def rows_of(some, name, **more):
        probe(request_for(case, some, dtype=dtype, logits=str(tmp_path / name), **more), tmp_path)
        return load_file(tmp_path / name)

    together = rows_of(prompts, "together")
    crowd = rows_of(prompts * 2, "crowd")
    assert 8 < len(prompts * 2) <= 16, "more at a time than kernels take in one go for a handful of rows"
    backwards = rows_of(prompts[::-1], "backwards", limits={"max_sequences": 2})
    alone = rows_of(prompts[1:2], "alone")
    for position in range(NEW_TOKENS):
        assert torch.equal(alone[f"0.{position}"], together[f"1.{position}"]), position
        for index in range(len(prompts)):
            assert torch.equal(crowd[f"{len(prompts) + index}.{position}"], together[f"{index}.{position}"])
            assert torch.equal(backwards[f"{len(prompts) - 1 - index}.{position}"], together[f"{index}.{position}"])


def test_the_base_is_there_without_its_adapter(oracles, tmp_path):
    for number in (0, 1):
        case, _, want = oracles(number, False)
        assert ids_of(probe(request_for(case, prompts_of(case), use_adapter=False), tmp_path)) == want
        assert ids_of(probe(request_for(case, prompts_of(case)), tmp_path)) != want


ON_DEVICE = {"kernels": "cuda-on-cpu", "keeps_bf16": False}  # as on a GPU: tokens are chosen by our kernel, and passes follow one another without the host
FEW_ROWS = {"max_sequences": 3, "max_pass_tokens": 16, "cache_bytes": 1}


@pytest.mark.parametrize("number", [1, 2, 100])
def test_our_cuda_kernels_give_the_same_ids(oracles, tmp_path, number):
    case, _, want = oracles(number, True)
    prompts = prompts_of(case)
    asked = probe(request_for(case, prompts[:4], limits=FEW_ROWS, **ON_DEVICE), tmp_path)
    replayed = probe(request_for(case, prompts[:4], limits=FEW_ROWS, graphs=True, **ON_DEVICE), tmp_path)
    assert ids_of(asked) == ids_of(replayed) == want[:4], case.description
    assert asked["replays"] == 0 and replayed["replays"] >= NEW_TOKENS - 2
    assert asked["new_tokens"] == replayed["new_tokens"] == 4 * NEW_TOKENS


@pytest.mark.parametrize("sampling", [{"temperature": 1, "seed": 1}, {"temperature": 0.9, "top_k": 12, "top_p": 0.9, "min_p": 0.01, "seed": 2}])
def test_tokens_drawn_on_the_device_are_those_of_the_cpu(cases, tmp_path, sampling):
    """Replayed passes read draws, positions and lengths from the device, of rows that end and are taken over."""
    case = cases(0)
    prompts = prompts_of(case)[:5]
    want = ids_of(probe(request_for(case, prompts, sampling=sampling), tmp_path))
    assert len({tuple(ids) for ids in want}) > 1
    for graphs in (False, True):
        request = request_for(case, prompts, sampling=sampling, limits=FEW_ROWS, graphs=graphs, **ON_DEVICE)
        assert ids_of(probe(request, tmp_path)) == want


@pytest.mark.parametrize("graphs", [False, True])
def test_completions_on_the_device_end_where_those_of_the_cpu_do(cases, tmp_path, graphs):
    """The host reads a token when the next pass is under way: what that pass adds to an ended completion is dropped."""
    case = cases(0)
    prompts = prompts_of(case)[:5]
    free = ids_of(probe(request_for(case, prompts), tmp_path))
    stop = {"stop_ids": [free[0][3], free[1][0]]}
    for more in (stop, {"quit_after": 3}):
        want = probe(request_for(case, prompts, **more), tmp_path)
        got = probe(request_for(case, prompts, limits=FEW_ROWS, graphs=graphs, **ON_DEVICE, **more), tmp_path)
        for key in ("completions", "streamed", "new_tokens"):
            assert got[key] == want[key], key
        assert sorted(got["done"]) == list(range(5))


def test_stops_at_a_stop_token_and_where_the_caller_says(oracles, tmp_path):
    case, _, want = oracles(0, True)
    stop = want[0][4]
    unused = next(token for token in range(100) if not any(token in ids for ids in want))
    result = probe(request_for(case, prompts_of(case), stop_ids=[unused, stop]), tmp_path)
    for completion, ids in zip(result["completions"], want):
        end = ids.index(stop) + 1 if stop in ids else None
        assert completion["ids"] == ids[:end]
        assert completion["reason"] == ("stop" if end else "length")
    quit_early = probe(request_for(case, prompts_of(case), quit_after=3), tmp_path)
    assert ids_of(quit_early) == [ids[:3] for ids in want]
    assert {completion["reason"] for completion in quit_early["completions"]} == {"caller"}


def test_many_prompts_go_through_a_small_cache(oracles, tmp_path):
    case, _, want = oracles(0, True)
    prompts = prompts_of(case)
    result = probe(request_for(case, prompts * 25, limits={"max_sequences": 5, "cache_bytes": 1}), tmp_path)
    assert ids_of(result) == want * 25
    one = probe(request_for(case, [max(prompts, key=len)]), tmp_path)
    assert result["cache_bytes"] == one["cache_bytes"]
    in_turn = request_for(case, prompts, limits={"max_sequences": 1, "max_pass_tokens": 1})  # buffers for one token
    assert ids_of(probe(in_turn, tmp_path)) == want


def test_log_probabilities(oracles, tmp_path):
    case, model, want = oracles(1, True)
    prompts = prompts_of(case)[:3]
    result = probe(request_for(case, prompts, log_probabilities=True), tmp_path)
    for ids, new, completion in zip(prompts, want, result["completions"]):
        assert completion["log_probability"] == pytest.approx(log_probability(model, ids, new), rel=1e-5)


@pytest.mark.parametrize("number", [1, 2])
def test_scores_of_completions(oracles, tmp_path, number):
    case, model, _ = oracles(number, True)
    rng = random.Random(number)
    vocabulary = json.loads((case.model_dir / "config.json").read_text())["vocab_size"]
    scores = [{"prompt": row["input_ids"], "completions": [[rng.randrange(vocabulary) for _ in range(length)]
                                                           for length in (1, 2, 5, 13)]} for row in case.rows[:3]]
    result = probe({**request_for(case, []), "scores": scores, "limits": {"max_sequences": 4, "max_pass_tokens": 9}}, tmp_path)
    for request, got in zip(scores, result["scores"], strict=True):
        for completion, sum_of_logs in zip(request["completions"], got, strict=True):
            assert sum_of_logs == pytest.approx(log_probability(model, request["prompt"], completion), rel=1e-5)


# ---- sampling ------------------------------------------------------------------------------------------------------

SAMPLINGS = [{"temperature": 1.0}, {"temperature": 0.7, "top_k": 12}, {"temperature": 1.3, "top_p": 0.8},
             {"temperature": 1.5, "min_p": 0.08}, {"temperature": 1.2, "top_k": 20, "top_p": 0.9, "min_p": 0.05}]


def processed(logits, sampling):
    """Probabilities after transformers' processors, in the order of its generate."""
    chain = [TemperatureLogitsWarper(sampling["temperature"])]
    if sampling.get("top_k"):
        chain.append(TopKLogitsWarper(sampling["top_k"]))
    if sampling.get("top_p", 1.0) < 1.0:
        chain.append(TopPLogitsWarper(sampling["top_p"]))
    if sampling.get("min_p"):
        chain.append(MinPLogitsWarper(sampling["min_p"]))
    return LogitsProcessorList(chain)(None, logits[None].clone())[0].double().softmax(-1)


def test_candidates_are_those_of_the_logits_processors(tmp_path):
    generator = torch.Generator().manual_seed(5)
    asked, wanted = [], []
    for sampling in SAMPLINGS + [{"temperature": 0.01}, {"temperature": 1.0, "top_k": 1}, {"temperature": 1.0, "top_p": 0.01},
                                 {"temperature": 1.0, "min_p": 1.0}, {"temperature": 2.0, "top_k": 500, "top_p": 0.97}]:
        for size in (2, 131, 3000):
            logits = 3 * torch.randn(size, generator=generator)
            asked.append({"logits": logits.tolist(), "sampling": sampling})
            wanted.append(processed(logits, sampling))
    tied = torch.tensor([1.0, 3.0, 2.0, 2.0, 0.0, 2.0])  # top_k keeps what is as likely as the last that it keeps
    asked.append({"logits": tied.tolist(), "sampling": {"temperature": 1.0, "top_k": 2}})
    wanted.append(processed(tied, {"temperature": 1.0, "top_k": 2}))
    assert int((wanted[-1] > 0).sum()) == 4
    done = start({"candidates": asked}, tmp_path)
    assert done.returncode == 0, done.stderr
    for request, list_of_ours, expected in zip(asked, json.loads(done.stdout), wanted, strict=True):
        ours = torch.zeros_like(expected)
        for token, probability in list_of_ours:
            ours[token] = probability
        what = f"{request['sampling']} of {len(expected)}"
        assert torch.equal(ours > 1e-12, expected > 1e-12), what
        assert torch.allclose(ours, expected, rtol=1e-4, atol=1e-9), what
        assert list_of_ours == sorted(list_of_ours, key=lambda pair: (-pair[1], pair[0])), what


def chi_square_p_value(counts, probabilities):
    """Of Pearson's test; cells that are expected less than five times are put together."""
    expected = probabilities * counts.sum()
    rare = expected < 5
    cells = [(float(c), float(e)) for c, e, few in zip(counts, expected, rare) if not few]
    if float(expected[rare].sum()) >= 5:
        cells.append((float(counts[rare].sum()), float(expected[rare].sum())))
    assert len(cells) >= 4, "too few cells: nothing is tested"
    statistic = sum((c - e) ** 2 / e for c, e in cells)
    return float(torch.special.gammaincc(torch.tensor((len(cells) - 1) / 2).double(), torch.tensor(statistic / 2).double()))


@pytest.mark.parametrize("sampling", [SAMPLINGS[0], SAMPLINGS[-1]], ids=["plain", "filtered"])
def test_draws_have_the_distribution_of_the_logits_processors(oracles, tmp_path, sampling):
    case, model, _ = oracles(3, True)
    prompt, num_draws = case.rows[4]["input_ids"], 3000
    probabilities = processed(logits_by_transformers(model, prompt)[-1], sampling)
    result = probe(request_for(case, [prompt] * num_draws, new_tokens=1, sampling={**sampling, "seed": 11},
                               limits={"max_sequences": 64}), tmp_path)
    counts = torch.bincount(torch.tensor([ids[0] for ids in ids_of(result)]), minlength=len(probabilities)).double()
    assert counts.sum() == num_draws and float(counts[probabilities < 1e-12].sum()) == 0
    p_value = chi_square_p_value(counts, probabilities)
    assert p_value > 1e-3, f"{sampling}: p = {p_value:.2e}"
    other = processed(logits_by_transformers(model, prompt)[-1], {"temperature": sampling["temperature"] * 1.25})
    assert chi_square_p_value(counts, other) < 1e-3, "the test would not notice another temperature"


# ---- what cannot be done -------------------------------------------------------------------------------------------

def test_refuses_what_the_model_cannot_take(cases, tmp_path):
    case = cases(0)
    limit = json.loads((case.model_dir / "config.json").read_text())["max_position_embeddings"]
    for ids, new_tokens, code, words in [
            ([1] * limit, 5, 3, [f"{limit} tokens", "5 new ones", "shorten the prompt"]),
            ([1] * (limit - 4), 5, 3, [str(limit - 4), str(limit), "lower max_new_tokens to 4"]),
            ([], 5, 3, ["the prompt is empty"]), ([1, 5000], 5, 3, ["token id 5000", "vocabulary"]), ([1], 0, 3, ["max_new_tokens"])]:
        request = request_for(case, [[1, 2], ids], new_tokens=new_tokens)
        request["prompts"][1]["name"] = "prompts.jsonl:7"
        request["prompts"][0]["max_new_tokens"] = 1
        done = start(request, tmp_path)
        assert done.returncode == code and done.stdout == "", done.stderr
        assert "prompts.jsonl:7" in done.stderr and all(word in done.stderr for word in words), done.stderr
    fits = request_for(case, [[1] * (limit - 4)], new_tokens=4)
    assert start(fits, tmp_path).returncode == 0
