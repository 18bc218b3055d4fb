"""plan: from a profile to a table of GPUs. The figures are in forecast_test, the verdict in plan_report_test, what is refused in
program_test."""

import json

import pytest
from command import ENVIRONMENT, expect_end, good_run, lora_train

STATED = ["--shape", "qwen2.5-7b", "--documents", "5000", "--tokens-per-document", "400"]
FIELDS = {"weights", "quantization", "adapter", "optimizer", "activations", "workspace", "total"}


def test_a_folder_with_data_needs_no_weights_and_no_gpu(setup):
    for weights in setup.model.glob("*.safetensors"):
        weights.unlink()
    rows = good_run("plan", "--json", "--profile", setup.write_profile(precision="bf16", base_precision="bf16")).json_lines()
    assert len(rows) == 40 and all(row["fits"] for row in rows), rows[:1]
    assert {row["num_gpus"] for row in rows} == {1, 2, 4, 8}
    assert all(set(row["memory_gib"]) == FIELDS and row["tokens_per_s"] > 0 and row["hours"] > 0 and row["cost_usd"] > 0 for row in rows)
    assert not setup.output_dir.exists()
    setup.rows_file.write_text("{not json\n")  # what is wrong with the model is said before the data are read
    run = lora_train("plan", "--profile", setup.write_profile(lora_target_modules=["q_projj"]), "--gpu", "H100")
    assert run.code != 0 and "q_projj" in run.stderr and "rows.jsonl" not in run.stderr, run


def test_what_does_not_fit_has_all_figures_and_exits_with_0():
    """A quantised base is counted as it is stored."""
    plan = ["plan", "--json", "--gpu", "A10G", "--count", "1", "--profile"]
    large, small, fitting, rows = (good_run(*plan, *more).json_lines()[0] for more in (
        ["h100", *STATED, "--set", "precision=fp32", "base_precision=fp32"],
        ["4xh200-ddp", "--shape", "qwen2.5-7b", "--documents", "5000", "--tokens-per-document", "32768", "--set", "max_seq_len=32768", "activation_offload=on"],
        ["a10g-4bit", *STATED],
        ["a10g-4bit", *STATED, "--set", "micro_batch_size=64", "gradient_checkpointing=off", "batch_unit=rows", "global_batch_size=64"]))
    for row in (large, small, rows):
        assert row["fits"] is False and row["memory_gib"]["total"] > row["memory_limit_gib"] and row["hours"] > 0, row
    assert rows["memory_gib"]["quantization"] < 1 and rows["memory_gib"]["weights"] == fitting["memory_gib"]["weights"], rows


def test_a_deadline_ends_with_a_verdict_at_the_prices_of_the_user(tmp_path):
    gpu = dict(name="H100", device_name="NVIDIA H100 80GB HBM3", memory_gib=79.2, num_multiprocessors=132, gemm_tflops=720,
               bandwidth_gb_s=3000, link_gb_s=360, price_per_hour=5.0)
    table = tmp_path / "gpus.json"
    table.write_text(json.dumps([gpu]))
    *rows, verdict = good_run("plan", "--json", "--profile", "h100", *STATED, "--deadline", "20m", "--gpus", table).json_lines()
    met = [row for row in rows if row["fits"] and row["hours"] * 60 <= 20]
    assert verdict["met"] and verdict["cost_usd"] == min(row["cost_usd"] for row in met), verdict
    for row in rows:
        assert row["gpu"] != "H100" or row["cost_usd"] == pytest.approx(5 * row["num_gpus"] * row["hours"]), row
    table.write_text(json.dumps([dict(gpu, price_per_hour=-1)]))
    expect_end(lora_train("plan", "--profile", "h100", *STATED, "--gpus", table), 4, "price_per_hour: is -1")


def test_the_steps_are_those_of_the_run(setup):
    settings = dict(packing=True, batch_unit="documents", global_batch_size=3, max_steps="unset", num_epochs=2)
    profile = setup.write_profile(**settings)
    row = good_run("plan", "--json", "--profile", profile, "--gpu", "H200", "--count", "1").json_lines()[0]
    run = lora_train("train", "--profile", profile, "target_gpu=H200")
    assert run.code == 0 and "target_gpu" not in run.stderr, "a run on a CPU says that in its own line"
    assert row["num_steps"] == setup.summary()["total_steps"]


@pytest.fixture
def cpu_rates(monkeypatch, tmp_path):
    """A cache with rates of this CPU, as bench --measure-rates leaves them."""
    rates = dict(kind="lora-train rates 1", gpu="cpu", shape="tiny-qwen2", precision="fp32", date="2026-11-24T00:00:00Z",
                 gemm_flops_per_s=1e11, copy_bytes_per_s=1e10, attention_forward_flops_per_s=5e10, attention_backward_flops_per_s=5e10)
    folder = tmp_path / "cache/lora-train"
    folder.mkdir(parents=True)
    (folder / "rates-cpu-fp32.json").write_text(json.dumps(rates))
    monkeypatch.setitem(ENVIRONMENT, "XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_past_runs_scale_the_times(setup, cpu_rates, tmp_path):
    profile = setup.write_profile(max_steps=6)
    plan = ["plan", "--json", "--profile", profile, "--gpu", "cpu"]
    before, = good_run(*plan).json_lines()
    assert before["gpu"] == "CPU" and before["num_gpus"] == 1 and before["fits"] and before["rates"] == "measured", before
    assert before["memory_gib"]["program"] > 0.1 and before["hours_low"] < before["hours"] < before["hours_high"] and before["past_runs"] == 0, before
    assert lora_train("train", "--profile", profile).code == 0
    rates = sorted(line["tokens_per_s"] for line in setup.events("train")[2:])
    run = good_run(*plan, "--gpu", "H100", "--count", "1", "--calibrate", setup.output_dir)
    after, other = run.json_lines()
    assert after["past_runs"] == 1 and after["tokens_per_s"] == pytest.approx(rates[len(rates) // 2], rel=1e-6), (after, rates)
    assert after["hours_low"] == pytest.approx(0.85 * after["hours"]), after
    assert "took" in run.stderr and "without past runs" in run.stderr and other["past_runs"] == 0, (run.stderr, other)
    run = good_run("plan", "--json", "--profile", profile, "--gpu", "H100", "--count", "1", "--calibrate", setup.output_dir.parent)
    assert run.json_lines()[0]["past_runs"] == 0 and "not used: it ran on a CPU" in run.stderr, run.stderr
    expect_end(lora_train(*plan, "--calibrate", tmp_path / "nothing"), 2, "does not exist")
    written = setup.output_dir / "profile.yaml"
    written.write_text(written.read_text().replace(str(setup.rows_file), "/no/such/file.jsonl"))
    run = good_run(*plan, "--calibrate", setup.output_dir)
    assert run.json_lines()[0]["past_runs"] == 0 and "not used" in run.stderr, run.stderr


def test_check_warns_of_what_the_target_gpu_cannot_hold(setup, monkeypatch):
    """Where the model is there, and LibTorch."""
    def pinned(**changes):
        return setup.write_profile(target_gpu="a10g", micro_batch_size=60000, global_batch_size=60000, max_seq_len=128, **changes)

    run = lora_train("check", "--profile", pinned())
    assert run.code == 0 and "target_gpu: A10G: the run needs" in run.stderr, run
    assert "one A10G may use 21.0 GiB: use micro_batch_size: auto" in run.stderr, run
    run = lora_train("check", "--no-files", "--profile", pinned(model="/no/such/model"))
    assert run.code == 0 and "target_gpu:" not in run.stderr, run
    monkeypatch.setitem(ENVIRONMENT, "LORA_TRAIN_TORCH", "/no/such/torch")
    expect_end(lora_train("check", "--profile", pinned()), 0, "cannot tell without LibTorch whether the run fits A10G")
    run = lora_train("check", "--profile", pinned(model="nobody/nothing"))
    assert run.code == 4 and "target_gpu:" not in run.stderr, run
