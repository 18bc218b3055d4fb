"""Generation on the stand-in for the CUDA runtime (test_cuda_host.py): what a token launches, sends and waits for."""

import json
import re
import subprocess

import pytest

from command import BINARY, ENVIRONMENT, ROOT, TIMEOUT_S
from stand_in_gpu import DEVICE, NEEDS_STAND_IN, environment, run_on_stand_in

pytestmark = NEEDS_STAND_IN


def generate_on_stand_in(folder, num_tokens, *more, settings=()):
    """Answers of num_tokens tokens each, whatever their ids: the stand-in computes nothing."""
    command = ["generate", "--model", ROOT / "examples/tiny-math/model", "--set", "device=cuda", "--prompt", "a", "--prompt", "b",
               "--prompt", "c", "--max-new-tokens", str(num_tokens), "--json", *more]
    run, calls = run_on_stand_in(folder, command, settings)
    assert run.code == 0 and [len(line["completion_ids"]) for line in run.json_lines()] == [num_tokens] * 3, run
    return run, calls


WAITS = ("cudaMemcpy", "cudaStreamSynchronize", "cudaDeviceSynchronize")
SAMPLED = ("--temperature", "1", "--top-k", "20", "--top-p", "0.9")


@pytest.mark.parametrize("sampling", [(), SAMPLED])
def test_a_token_is_one_replay_one_copy_and_one_wait(tmp_path, sampling):
    """30 tokens more: nothing is launched or sent but a graph, and the copy of the tokens of all rows, which is waited for."""
    few, many = (generate_on_stand_in(tmp_path, tokens, "precision=bf16", *sampling)[1] for tokens in (10, 40))
    more = {name: many[name] - few[name] for name in few}
    assert more["cudaGraphLaunch"] == more["cudaMemcpyAsync"] == more["cudaEventSynchronize"] == 30, more
    for name in (*WAITS, "cudaLaunchKernel", "cublasLtMatmul", "cudaMalloc", "cudaHostAlloc", "bytesFromPageLocked"):
        assert more[name] == 0, (name, more)
    assert few["recorded"] > 30 and few["recordedCold"] == 0, few


@pytest.mark.parametrize("settings, more, warning", [
    ({}, ("attn_implementation=reference",), "reads sequence lengths on the host"), (dict(STAND_IN_REFUSE_CAPTURE_AT="1"), (), "could not be captured")])
def test_tokens_without_graphs(tmp_path, settings, more, warning):
    run, calls = generate_on_stand_in(tmp_path, 10, "precision=bf16", *more, settings=settings)
    assert calls["cudaGraphLaunch"] == 0 and calls["cudaEventSynchronize"] <= 10, calls
    [line] = [line for line in run.stderr.splitlines() if line.startswith("warning: cuda_graphs: decoding runs without graphs. ")]
    assert warning in line, run


def test_a_pass_without_graphs_waits_for_nothing(tmp_path):
    (_, few), (run, many) = (generate_on_stand_in(tmp_path, tokens, "precision=bf16", "cuda_graphs=off") for tokens in (10, 40))
    assert many["cudaGraphLaunch"] == 0 and "without graphs" not in run.stderr, run
    for name in (*WAITS, "cudaHostAlloc", "bytesFromPageLocked"):
        assert few[name] == many[name], (name, few, many)
    assert many["cudaMemcpyAsync"] - few["cudaMemcpyAsync"] <= 30 * 9, (few, many)  # attention copies its output, per layer


def test_new_rows_wait_for_nothing(tmp_path):
    """Rows take the place of others that are complete; what the GPU must know of them is sent meanwhile."""
    def calls_of(num_prompts):
        file = tmp_path / "prompts.jsonl"
        file.write_text("".join(json.dumps({"prompt": "a" * (1 + i % 5)}) + "\n" for i in range(num_prompts)))
        command = ["generate", "--model", ROOT / "examples/tiny-math/model", "--set", "device=cuda", "precision=bf16", "--prompts", file,
                   "--max-new-tokens", "6", "--json"]
        run, calls = run_on_stand_in(tmp_path, command)
        assert run.code == 0 and len(run.json_lines()) == num_prompts, run
        return calls
    few, many = calls_of(70), calls_of(140)
    assert many["cudaMemcpyAsync"] > few["cudaMemcpyAsync"]
    for name in WAITS:
        assert few[name] == many[name], (name, few, many)


def test_a_gpu_that_fails_ends_a_generation(tmp_path):
    run, _ = run_on_stand_in(tmp_path, ["generate", "--model", ROOT / "examples/tiny-math/model", "--set", "device=cuda", "precision=bf16",
                                        "--prompt", "a"], dict(STAND_IN_FAIL_AT="5"))
    assert run.code == DEVICE and "CUDA error" in run.stderr, run


def test_a_chat_keeps_its_cache_and_its_graphs(tmp_path):
    def chat(num_turns):
        calls = tmp_path / "calls.txt"
        calls.unlink(missing_ok=True)
        command = [str(BINARY), "chat", "--model", str(ROOT / "examples/tiny-math/model"), "--set", "device=cuda", "precision=bf16",
                   "--max-new-tokens", "6", "--json"]
        done = subprocess.run(command, input="a question\n" * num_turns, capture_output=True, text=True, timeout=TIMEOUT_S,
                              env=dict(ENVIRONMENT, **environment(STAND_IN_CALLS=str(calls))))
        assert done.returncode == 0 and len(done.stdout.splitlines()) == num_turns, done.stderr
        counts = dict(line.split() for line in calls.read_text().splitlines())
        return {name: int(count) for name, count in counts.items()}, int(re.search(r"^(\d+) prompt tokens", done.stderr, re.MULTILINE)[1])

    (one, prompt), (two, both), (three, all_three) = chat(1), chat(2), chat(3)
    assert one["cudaMalloc"] == three["cudaMalloc"] and one["recorded"] == three["recorded"], (one, three)
    assert three["cudaGraphLaunch"] - two["cudaGraphLaunch"] == 5, (two, three)  # the first token is the prefill's
    assert all_three - both == both - prompt < 2 * prompt, (prompt, both, all_three)  # not more with each turn
