"""TensorBoard's own reader, and its plugins, on what a run writes; and the line that takes a run to MLflow."""

import io
import json
import os
import re
import subprocess
import sys

import pytest
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util import tensor_util

from command import BINARY, Setup, expect_end


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    setup = Setup(tmp_path_factory.mktemp("tensorboard"))
    evals = [{"path": str(setup.rows_file), "type": "pretokenized", "name": name} for name in ("val", "hard")]
    for steps in (3, 4):  # a resumed run adds a file
        done = setup.train(report_to="tensorboard", eval_datasets=evals, eval_steps=2, save_steps=2, max_steps=steps)
        assert done.code == 0 and ("resumed from" in done.stderr) == (steps == 4), done
    return setup


def test_scalars_are_those_of_metrics_jsonl(run):
    events = EventAccumulator(str(run.output_dir / "tensorboard"), size_guidance={"scalars": 0, "images": 0, "tensors": 0}).Reload()
    tags = set(events.Tags()["scalars"])
    for line in run.events("train"):
        for key in ("loss", "grad_norm", "learning_rate", "epoch", "tokens_per_s"):
            found = {event.step: event.value for event in events.Scalars(f"train/{key}")}
            assert found[line["step"]] == pytest.approx(line[key], rel=1e-6), key
    for line in run.events("eval"):
        prefix = "eval/" if line["name"] == "val" else f"eval/{line['name']}/"
        found = {event.step: event.value for event in events.Scalars(prefix + "loss")}
        assert found[line["step"]] == pytest.approx(line["loss"], rel=1e-6)
        assert line["num_documents"] == 12
    # As Trainer names the metrics of one set, and those of several.
    for name in ("eval/", "eval/val_", "eval/hard_"):
        assert {name + "loss", name + "runtime", name + "samples_per_second"} <= tags
    last = run.events("eval")[-1]
    assert events.Scalars("eval/hard_samples_per_second")[-1].value == pytest.approx(12 / last["eval_s"], rel=1e-5)
    assert {"train/train_runtime", "train/train_steps_per_second"} <= tags
    assert "    lora_r: 4" in tensor_util.make_ndarray(events.Tensors("args")[-1].tensor_proto).item().decode()
    for name in ("val", "hard"):  # the reliability diagram is a picture
        first = events.Images(f"reliability/{name}")[0]
        assert Image.open(io.BytesIO(first.encoded_image_string)).size == (first.width, first.height) == (444, 599)


def test_steps_that_are_done_again_stand_once(tmp_path):
    setup = Setup(tmp_path)
    keys = dict(report_to="tensorboard", save_steps=2, save_total_limit=None)
    assert setup.train(max_steps=5, **keys).code == 0
    expect_end(setup.train("--resume", setup.output_dir / "checkpoint-2", "--allow-changed", "resume_from_checkpoint", max_steps=6, **keys), 0, "resumed from")
    events = EventAccumulator(str(setup.output_dir / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    assert [event.step for event in events.Scalars("train/loss")] == [1, 2, 3, 4, 5, 6]
    assert len(list((setup.output_dir / "tensorboard").iterdir())) == 2


def test_the_line_for_mlflow_logs_what_metrics_jsonl_has(run, tmp_path):
    refused = run.train(report_to=["tensorboard", "mlflow"], output_dir=str(tmp_path / "other"))
    assert refused.code == 2 and not (tmp_path / "other").exists()
    [program] = re.findall(r'python3 -c "(.*)"', refused.stderr)
    (tmp_path / "mlflow.py").write_text("import json\ndef log_metrics(metrics, step):\n    print(json.dumps([step, metrics]))\n")
    logged = subprocess.run([sys.executable, "-c", program.replace("OUTPUT_DIR", str(run.output_dir))], capture_output=True, text=True, check=True,
                            env=dict(os.environ, PYTHONPATH=str(tmp_path)))
    lines = [json.loads(line) for line in logged.stdout.splitlines()]
    steps = run.events("train")
    assert [step for step, metrics in lines if "train/loss" in metrics] == [line["step"] for line in steps]
    assert lines[-1][1]["eval/hard/loss"] == run.events("eval")[-1]["loss"]


def test_the_start_line_says_where_a_run_came_from(run):
    base = BINARY.parent / "configs/tiny_cpu.yaml"
    done = run.train("--set", "learning_rate=0.02", output_dir=str(run.folder / "based"), extends=str(base), report_to="none",
                     eval_datasets=run.profile["datasets"])
    assert done.code == 0, done
    [start] = run.events("start", run.folder / "based")
    environment = start["environment"]
    assert environment["command"] == f"lora-train train --profile {run.profile_file} --set learning_rate=0.02"
    assert {"working_folder", "commit", "libtorch", "host", "operating_system", "cpu", "host_memory"} <= set(environment)
    assert re.fullmatch(r".*/profile\.json:\d+", start["set_by"]["lora_r"]) and start["set_by"]["learning_rate"] == "--set"
    assert [os.path.realpath(file) for file in start["base_files"]] == [os.path.realpath(base)]
    assert "lora_r" in start["base_values"] or "max_steps" in start["base_values"], start["base_values"]
    assert sum(start["document_lengths"]["counts"]) == 12
