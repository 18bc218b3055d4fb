"""lora-train bench on a CPU: counts, measured steps, JSON and a Chrome trace."""

import json

import pytest
from command import expect_end, good_run, lora_train

TINY = ["--shape", "tiny-qwen3", "device=cpu", "max_seq_len=64", "micro_batch_size=2", "--steps", "3", "--warm-up", "1"]


def bench(*arguments):
    return good_run("bench", *arguments)


def test_counts_a_7b_shape_without_files_memory_or_gpu():
    [found] = bench("--shape", "qwen2.5-7b", "--count", "--json").json_lines()
    assert found["tokens"] == 16384 and found["speed"] is None
    assert found["cuda_graphs"] == {"recorded": False, "reason": "no step was computed"}
    assert abs(found["required_flops"]["total"] / found["tokens"] / 29.76e9 - 1) < 1e-3
    assert 0 < found["bytes"]["counted"] and 500 < found["launches"] < 5000
    assert {work["name"] for work in found["classes"]} >= {"gemm", "attention", "norm", "rope", "swiglu", "lora", "loss"}
    assert all(work["ms"] is None for work in found["classes"])
    table = bench("--shape", "qwen2.5-7b", "--count", "--details").stdout
    assert "29.7" in table and "passes over activations" in table and "tokens/s if nothing overlaps" in table


def test_mlps_in_tiles_multiply_no_more():
    whole, tiled = (bench(*TINY, "--count", "--json", "gradient_checkpointing=full", f"mlp_tile_tokens={tile}").json_lines()[0]
                    for tile in ("off", 50))
    flops = [{work["name"]: work["flops"] for work in found["classes"]} for found in (whole, tiled)]
    assert flops[0] == flops[1] and flops[0]["gemm"] > 0
    assert whole["launches"] < tiled["launches"] < 3 * whole["launches"]


def test_measures_steps_and_writes_a_trace(tmp_path):
    trace = tmp_path / "trace.json"
    found = bench(*TINY, "gradient_accumulation_steps=2", "--json", "--profile-trace", trace).json_lines()[0]
    speed = found["speed"]
    assert found["tokens"] == 2 * 2 * 64 and found["device"] == "cpu"
    assert 0 < speed["step_ms_p10"] <= speed["step_ms"] <= speed["step_ms_p90"]
    assert abs(speed["tokens_per_s"] * speed["step_ms"] / 1e3 / found["tokens"] - 1) < 0.2
    assert speed["gemm_share"] > 0 and speed["peak_host_memory_gib"] > 0 and speed["idle_share"] is None
    assert 4 < speed["first_loss"] < 8
    assert found["cuda_graphs"] == {"recorded": False, "reason": "the run is on a CPU"}
    measured = {work["name"]: work["ms"] for work in found["classes"]}
    assert measured["gemm"] > 0 and measured["attention"] > 0

    events = [event for event in json.loads(trace.read_text())["traceEvents"] if event["ph"] == "X"]
    spans = [event for event in events if event["cat"] == "step"]
    calls = [event for event in events if event["cat"] != "step"]
    assert [span["name"] for span in spans[1:]] == ["micro-batch 1", "micro-batch 2"]

    def holds(outer, inner):
        return outer["ts"] - 1 <= inner["ts"] and inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"] + 1

    assert all(holds(spans[0], event) for event in events)
    assert any(holds(spans[1], call) for call in calls) and any(holds(spans[2], call) for call in calls)
    gemms = [call for call in calls if call["name"] == "gemm"]
    assert gemms and all(call["args"]["flops"] > 0 and "[128, " in call["args"]["sizes"] for call in gemms[:3])
    assert {call["cat"] for call in calls} >= {"gemm", "lora", "attention", "norm", "rope", "swiglu", "loss", "optimizer"}


def test_rates_are_measured_kept_and_named(tmp_path):
    """By one process: steps, and then the rates of their bound."""
    rates = tmp_path / "rates.json"
    found = bench(*TINY, "--measure-rates", "--rates", rates, "--json").json_lines()[0]
    written = json.loads(rates.read_text())
    assert found["rates"]["source"] == str(rates) and found["rates"]["gpu"] == written["gpu"] == "cpu", found["rates"]
    assert written["shape"] == "tiny-qwen3" and written["date"].startswith("20") and written["copy_bytes_per_s"] > 1e6
    for rate in ("gemm", "attention_forward", "attention_backward"):
        assert found["rates"][rate + "_flops_per_s"] == written[rate + "_flops_per_s"] > 1e6
    speed, bound = found["speed"], found["bound"]
    assert speed["gemm_flops_per_s"] == written["gemm_flops_per_s"] and speed["gemm_share"] > 0 and speed["linears_share"] > 0 < speed["step_ms"]
    assert all(work["bound_ms"] > 0 and work["ms"] > 0 for work in found["classes"] if work["name"] != "copy"), found["classes"]
    total_ms = 1e3 * sum(bound[part] for part in ("gemm_s", "attention_s", "memory_s"))
    assert [sum(work["bound_ms"] for work in found["classes"]), bound["total_ms"]] == pytest.approx([total_ms] * 2, rel=1e-9)
    assert bound["gemm_s"] * written["gemm_flops_per_s"] == pytest.approx(found["classes"][0]["flops"], rel=1e-9)
    counted = bench(*TINY, "--count", "--rates", rates).stdout
    assert "measured on cpu, tiny-qwen3, 20" in counted and "at measured rates" in counted and "assumed" not in counted, counted
    rates.write_text(rates.read_text()[:-10])
    for command in ([*TINY, "--count"], TINY):
        expect_end(lora_train("bench", *command, "--rates", rates), 4, str(rates), "measured rates")
    alone = bench(*TINY[:5], "--measure-rates", "--rates", tmp_path / "alone.json", "--json").json_lines()[0]
    assert alone["speed"] is None and alone["rates"]["source"] == str(tmp_path / "alone.json")


def test_a_table_of_a_cpu_says_nothing_of_gpus():
    words = [word for word in TINY if not word.startswith("micro")]
    table = bench(*words, "micro_batch_size=20", "gradient_accumulation_steps=1", "--mix", "gradient_checkpointing=full", "precision=fp32").stdout
    assert ", cpu, " in table and "a step of 1,280 tokens" in table and "recompute full" in table and "GEMM rate" in table, table
    assert not [word for word in ("GPU", "H200", "0.00 GFLOP/token required") if word in table], table
    counted = bench(*TINY, "--count").stdout
    assert "assumed for an NVIDIA H200, not measured" in counted and "at assumed rates" in counted and "launches  " in counted, counted


def test_only_steps_are_measured_if_nothing_else_is_wanted():
    found = bench(*TINY, "--only-steps", "--json").json_lines()[0]
    assert found["speed"]["step_ms"] > 0 and found["speed"]["last_loss"] > 0 and found["launches"] > 0
    assert [found["speed"][name] for name in ("idle_share", "gemm_flops_per_s", "gemm_share", "linears_share")] == [None] * 4
    assert all(work["ms"] is None and work["bound_ms"] >= 0 for work in found["classes"])
    assert "GEMM rate    unknown" in bench(*TINY, "--only-steps").stdout


def test_both_row_pitches_train_with_the_same_numbers():
    losses = {}
    for pitch in ("exact", "padded"):
        found = bench(*TINY, "--row-pitch", pitch, "precision=fp32", "--json").json_lines()[0]
        assert found["row_pitch"] == pitch
        losses[pitch] = [found["speed"][loss] for loss in ("first_loss", "last_loss")]
    assert losses["exact"] == losses["padded"]
    assert lora_train("bench", *TINY, "--row-pitch", "wide").code == 2


def test_refuses_what_it_has_no_use_for():
    for arguments, words in [(["--shape", "qwen2.5-8b", "--count"], "qwen2.5-7b"), (["--count"], "--shape"),
                             (["--shape", "tiny-qwen2", "--count", "model=/tmp"], "synthetic"),
                             (["--shape", "tiny-qwen2", "--count", "--profile-trace", "t.json"], "nothing to trace"),
                             (["--shape", "tiny-qwen2", "--only-steps", "--profile-trace", "t.json"], "nothing to trace"),
                             (["--shape", "tiny-qwen2", "--count", "--only-steps"], "no steps"),
                             (["--shape", "tiny-qwen2", "--steps", "0"], "from 1 to")]:
        expect_end(lora_train("bench", *arguments), 2, words)
