"""plan: from a profile to a table of GPUs."""

import json

import pytest
from conftest import lora_train

STATED = ["--shape", "qwen2.5-7b", "--documents", "5000", "--tokens-per-document", "400"]
FIELDS = {"weights", "quantization", "adapter", "optimizer", "activations", "workspace", "total"}


def rows_of(run):
    assert run.code == 0, run
    return [json.loads(line) for line in run.stdout.splitlines()]


def test_a_folder_with_data_needs_no_weights_and_no_gpu(setup):
    for weights in setup.model.glob("*.safetensors"):
        weights.unlink()
    rows = rows_of(lora_train("plan", "--json", "--profile", setup.write_profile(precision="bf16", base_precision="bf16")))
    assert len(rows) == 40 and all(row["fits"] for row in rows), rows[:1]
    assert {row["num_gpus"] for row in rows} == {1, 2, 4, 8}
    assert all(set(row["memory_gib"]) == FIELDS and row["tokens_per_s"] > 0 and row["hours"] > 0 and row["cost_usd"] > 0 for row in rows)
    assert not setup.output_dir.exists()


@pytest.mark.parametrize("name, gpu, count", [("A10G-4bit", "a10g", 1), ("h100-bf16.yaml", "H100", 1), ("h100-long", "h100", 1),
                                              ("h200-cot.json", "H200", 1), ("4xH200-DDP", "H200", 4), ("8xh100", "H100", 8)])
def test_named_profiles_plan_from_any_folder(tmp_path, name, gpu, count):
    row, = rows_of(lora_train("plan", "--json", "--profile", name, *STATED, "--gpu", gpu, "--count", str(count), cwd=tmp_path))
    assert row["fits"] and row["num_gpus"] == count, row


def test_what_does_not_fit_has_all_figures_and_exits_with_0():
    row, = rows_of(lora_train("plan", "--json", "--profile", "h100", *STATED, "--gpu", "A10G", "--count", "1",
                               "--set", "precision=fp32", "base_precision=fp32"))
    assert row["fits"] is False and row["memory_gib"]["total"] > row["memory_limit_gib"] and row["hours"] > 0, row


def test_a_deadline_ends_with_a_verdict():
    *rows, verdict = rows_of(lora_train("plan", "--json", "--profile", "h100", *STATED, "--deadline", "20m"))
    met = [row for row in rows if row["fits"] and row["hours"] * 60 <= 20]
    assert verdict["met"] and verdict["cost_usd"] == min(row["cost_usd"] for row in met), verdict
    run = lora_train("plan", "--profile", "h100", *STATED, "--deadline", "1s")
    assert run.code == 0 and "nothing meets the limits; the closest is" in run.stdout, run


def test_prices_of_the_user_replace_ours(tmp_path):
    gpu = dict(name="H100", device_name="NVIDIA H100 80GB HBM3", memory_gib=79.2, num_multiprocessors=132, gemm_tflops=720,
               bandwidth_gb_s=3000, link_gb_s=360, price_per_hour=5.0)
    table = tmp_path / "gpus.json"
    table.write_text(json.dumps([gpu]))
    plan = ["plan", "--json", "--profile", "h100", *STATED, "--gpu", "H100", "--count", "1"]
    (ours,), (yours,) = rows_of(lora_train(*plan)), rows_of(lora_train(*plan, "--gpus", table))
    assert yours["cost_usd"] == pytest.approx(2 * ours["cost_usd"])
    table.write_text(json.dumps([dict(gpu, price_per_hour=-1)]))
    run = lora_train(*plan, "--gpus", table)
    assert run.code == 4 and "price_per_hour: is -1" in run.stderr, run


@pytest.mark.parametrize("flags, code, text", [
    (["--gpu", "H300"], 2, "is not in the table"), (["--count", "0"], 2, "expected a whole number from 1"),
    (["--deadline", "soon"], 2, "expected a time such as 6h"), (["--budget", "-3"], 2, "expected dollars above 0"),
    (["--shape", "gpt-5"], 2, "--shape"), (["--set", "max_seq_len=256"], 2, "more than max_seq_len: 256")])
def test_bad_input_is_named(flags, code, text):
    run = lora_train("plan", "--profile", "h100", *STATED, *flags)
    assert run.code == code and text in run.stderr, run


def test_the_steps_are_those_of_the_run(setup):
    settings = dict(packing=True, batch_unit="documents", global_batch_size=3, max_steps="unset", num_epochs=2)
    profile = setup.write_profile(**settings)
    row = rows_of(lora_train("plan", "--json", "--profile", profile, "--gpu", "H200", "--count", "1"))[0]
    assert lora_train("train", "--profile", profile).code == 0
    assert row["num_steps"] == setup.summary()["total_steps"]


def test_a_quantised_base_that_does_not_fit_is_counted_as_it_is_stored(tmp_path):
    plan = ["plan", "--json", "--profile", "a10g-4bit", *STATED, "--gpu", "A10G", "--count", "1"]
    fitting, = rows_of(lora_train(*plan))
    row, = rows_of(lora_train(*plan, "--set", "micro_batch_size=64", "gradient_checkpointing=off", "batch_unit=rows",
                              "global_batch_size=64"))
    assert not row["fits"] and row["memory_gib"]["quantization"] < 1, row
    assert row["memory_gib"]["weights"] == fitting["memory_gib"]["weights"]


def test_offloading_beyond_the_host_exits_with_0():
    row, = rows_of(lora_train("plan", "--json", "--profile", "4xh200-ddp", "--shape", "qwen2.5-7b", "--documents", "5000",
                              "--tokens-per-document", "32768", "--gpu", "A10G", "--count", "1", "--set", "max_seq_len=32768",
                              "activation_offload=on"))
    assert row["fits"] is False, row


def test_bench_has_no_documents_to_count():
    run = lora_train("bench", "--shape", "tiny-qwen2", "--count", "batch_unit=documents")
    assert run.code == 2 and "batch_unit has no meaning here" in run.stderr, run
