"""plan: from a profile to a table of GPUs."""

import json

import pytest
from command import ENVIRONMENT, ROOT, lora_train

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


@pytest.mark.parametrize("name, gpus", [("A100", ["A100 40 GB", "A100 80 GB"]), ("rtx4090", ["RTX 4090"]), ("H100-80GB", ["H100"])])
def test_gpus_have_the_names_that_people_write(name, gpus):
    rows = rows_of(lora_train("plan", "--json", "--profile", "h100", *STATED, "--gpu", name, "--count", "1"))
    assert [row["gpu"] for row in rows] == gpus


def test_the_least_memory_stands_beside_the_planned_one():
    plan = ["plan", "--profile", "a10g-4bit", *STATED, "--count", "1"]
    large, = rows_of(lora_train(*plan, "--json", "--gpu", "H200"))
    small, = rows_of(lora_train(*plan, "--json", "--gpu", "4090"))
    assert large["memory_gib"]["total"] > 20, "decoded layers and larger micro-batches take what there is"
    for row in (large, small):
        assert 4 < row["least_memory_gib"] < 8 < row["memory_gib"]["total"], row
    assert f" {large['least_memory_gib']:.1f} " in lora_train(*plan, "--gpu", "H200").stdout


def test_what_is_wrong_with_the_model_is_said_before_the_data_are_read(setup):
    setup.rows_file.unlink()
    setup.rows_file.mkdir()
    (setup.rows_file / "rows.jsonl").write_text("{not json\n")
    run = lora_train("plan", "--profile", setup.write_profile(lora_target_modules=["q_projj"]), "--gpu", "H100")
    assert run.code != 0 and "q_projj" in run.stderr and "rows.jsonl" not in run.stderr, run


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
    (["--gpu", "H300"], 2, 'Did you mean "H100"?'), (["--disk", "0"], 2, "expected GB/s above 0"), (["--count", "0"], 2, "expected a whole number from 1"),
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


CPU = ["--gpu", "cpu"]


@pytest.fixture
def cpu_rates(monkeypatch, tmp_path):
    """A cache with rates of this CPU, as bench --measure-rates leaves them."""
    rates = dict(kind="lora-train rates 1", gpu="cpu", shape="tiny-qwen2", precision="fp32", date="2026-11-24T00:00:00Z",
                 gemm_flops_per_s=1e11, copy_bytes_per_s=1e10, attention_forward_flops_per_s=5e10, attention_backward_flops_per_s=5e10)
    folder = tmp_path / "cache/lora-train"
    folder.mkdir(parents=True)
    (folder / "rates-cpu-fp32.json").write_text(json.dumps(rates))
    monkeypatch.setitem(ENVIRONMENT, "XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_this_cpu_has_a_row_once_its_rates_are_measured(setup, cpu_rates):
    row, = rows_of(lora_train("plan", "--json", "--profile", setup.write_profile(), *CPU))
    assert row["gpu"] == "CPU" and row["num_gpus"] == 1 and row["fits"] and row["rates"] == "measured", row
    assert row["memory_gib"]["program"] > 0.1 and row["hours_low"] < row["hours"] < row["hours_high"], row


def test_a_cpu_without_rates_names_the_command(setup, monkeypatch, tmp_path):
    monkeypatch.setitem(ENVIRONMENT, "XDG_CACHE_HOME", str(tmp_path / "empty"))
    run = lora_train("plan", "--profile", setup.write_profile(), *CPU)
    assert run.code == 2 and "lora-train bench --measure-rates" in run.stderr, run


def test_past_runs_scale_the_times(setup, cpu_rates, tmp_path):
    profile = setup.write_profile(max_steps=6)
    plan = ["plan", "--json", "--profile", profile, *CPU]
    before, = rows_of(lora_train(*plan))
    assert before["past_runs"] == 0
    assert lora_train("train", "--profile", profile).code == 0
    rates = sorted(line["tokens_per_s"] for line in setup.events("train")[2:])
    run = lora_train(*plan, "--calibrate", setup.output_dir)
    after, = rows_of(run)
    assert after["past_runs"] == 1 and after["tokens_per_s"] == pytest.approx(rates[len(rates) // 2], rel=1e-6), (after, rates)
    assert after["hours_low"] == pytest.approx(0.85 * after["hours"]), after
    assert "took" in run.stderr and "without past runs" in run.stderr, run.stderr
    run = lora_train("plan", "--json", "--profile", profile, "--gpu", "H100", "--count", "1", "--calibrate", setup.output_dir.parent)
    row, = rows_of(run)
    assert row["past_runs"] == 0 and "not used: it ran on a CPU" in run.stderr, run.stderr
    run = lora_train(*plan, "--calibrate", tmp_path / "nothing")
    assert run.code == 2 and "does not exist" in run.stderr, run


def test_a_past_run_whose_data_are_gone_is_not_used(setup, cpu_rates):
    profile = setup.write_profile(max_steps=3)
    assert lora_train("train", "--profile", profile).code == 0
    written = setup.output_dir / "profile.yaml"
    written.write_text(written.read_text().replace(str(setup.rows_file), "/no/such/file.jsonl"))
    run = lora_train("plan", "--json", "--profile", profile, *CPU, "--calibrate", setup.output_dir)
    row, = rows_of(run)
    assert row["past_runs"] == 0 and "not used" in run.stderr, run.stderr


def test_a_run_that_fits_nowhere_says_what_to_change():
    run = lora_train("plan", "--profile", "h100", *STATED, "--gpu", "H100", "--count", "1", "--set", "micro_batch_size=16",
                     "batch_unit=rows", "gradient_checkpointing=off", "--deadline", "1h")
    assert run.code == 0 and "fits on none of these GPUs; it would fit on 1 x H100 with micro_batch_size: auto" in run.stdout, run


def pinned(setup, **changes):
    return setup.write_profile(target_gpu="a10g", micro_batch_size=60000, global_batch_size=60000, max_seq_len=128, **changes)


def test_check_and_train_warn_of_what_the_target_gpu_cannot_hold(setup):
    run = lora_train("check", "--profile", pinned(setup))
    assert run.code == 0 and "target_gpu: A10G: the run needs" in run.stderr, run
    assert "one A10G may use 21.0 GiB: use micro_batch_size: auto" in run.stderr, run
    run = lora_train("train", "--dry-run", "--profile", setup.write_profile(target_gpu="H200"))
    assert run.code == 0 and "target_gpu" not in run.stderr, "a run on a CPU says that in its own line"


def test_check_says_nothing_of_memory_where_the_model_is_not_there(setup):
    run = lora_train("check", "--no-files", "--profile", pinned(setup, model="/no/such/model"))
    assert run.code == 0 and "target_gpu:" not in run.stderr, run
    run = lora_train("check", "--profile", pinned(setup, model="nobody/nothing"))
    assert run.code == 4 and "target_gpu:" not in run.stderr, run


def test_check_without_libtorch_says_what_is_not_known(setup, monkeypatch):
    monkeypatch.setitem(ENVIRONMENT, "LORA_TRAIN_TORCH", "/no/such/torch")
    run = lora_train("check", "--profile", pinned(setup))
    assert run.code == 0 and "cannot tell without LibTorch whether the run fits A10G" in run.stderr, run


def test_an_unknown_target_gpu_lists_the_known_ones(setup):
    run = lora_train("check", "--profile", setup.write_profile(target_gpu="H101"))
    assert run.code == 2 and '"H101" is not a GPU of configs/gpus.json; expected one of A10G' in run.stderr, run
    assert 'Did you mean "H100"?' in run.stderr, run
    run = lora_train("check", "--profile", setup.write_profile(target_gpu="A100"))
    assert run.code == 2 and '"A100" may be A100 40 GB or A100 80 GB; expected one of them' in run.stderr, run
    assert lora_train("check", "--profile", setup.write_profile(target_gpu="4090")).code == 0


def test_bench_has_no_documents_to_count():
    run = lora_train("bench", "--shape", "tiny-qwen2", "--count", "batch_unit=documents")
    assert run.code == 2 and "batch_unit has no meaning here" in run.stderr, run


def test_documents_are_assumed_where_there_are_no_data(tmp_path):
    words = ["plan", "--shape", "qwen2.5-0.5b", "--gpu", "h100", "--count", "1"]
    for set_, tokens in (([], 500), (["max_seq_len=128"], 128)):
        run = lora_train(*words, "--documents", "100", *set_, cwd=tmp_path)
        assert run.code == 0 and f"--documents: assuming {tokens} tokens each" in run.stderr, run
    model = ROOT / "examples/tiny-math/model"
    run = lora_train("plan", "--model", model, cwd=tmp_path)
    assert run.code == 2 and "datasets: missing; expected data to count, or --documents N" in run.stderr, run
