"""load_best_model_at_end, metric_for_best_model and early stopping, over stops, resumes and ranks."""

import json
import signal
import time

import pytest
from safetensors.numpy import load_file

from command import expect_end


def settings(setup, **changes):
    """A learning rate at which the held-out loss falls and then rises."""
    rows = setup.folder / "val.jsonl"
    rows.write_text("".join(json.dumps({"input_ids": [5 + i, 9, 7, 8 + i], "labels": [-100, 9, 7, 8 + i]}) + "\n" for i in range(6)))
    return dict(dict(eval_datasets=[{"path": str(rows), "type": "pretokenized", "name": "val"}], eval_steps=2, max_steps=24,
                     learning_rate=3e-2, save_steps="off", save_total_limit=1, load_best_model_at_end=True), **changes)


def adapter_of(folder):
    return load_file(folder / "adapter_model.safetensors")


def same(one, other):
    return one.keys() == other.keys() and all((one[name] == other[name]).all() for name in one)


def losses(setup):
    return {line["step"]: line["loss"] for line in setup.events("eval")}


def test_the_result_is_the_best_step(setup):
    run = setup.good_run(**settings(setup))
    summary, found = setup.summary(), losses(setup)
    best = min((step for step in found if step > 0), key=found.get)
    assert 0 < best < 24, f"the case needs a best step in the middle: {found}"
    assert summary["best_step"] == summary["adapter_step"] == best
    assert summary["best_metric"] == summary["best_eval_loss"] == found[best]
    # Only the best and the last checkpoint are left, although save_steps is off.
    assert {path.name for path in setup.output_dir.glob("checkpoint-*")} == {f"checkpoint-{best}", "checkpoint-24"}
    of_best, of_last = (adapter_of(setup.output_dir / f"checkpoint-{step}") for step in (best, 24))
    assert same(adapter_of(setup.output_dir / "adapter"), of_best) and not same(of_best, of_last)
    assert f"{best} steps" in (setup.output_dir / "adapter/README.md").read_text()
    assert f"the result is from step {best}, the best of eval_loss" in run.stderr
    # Without the key, the last step is the result, of the same run.
    run = setup.train(**settings(setup, load_best_model_at_end=False))
    assert run.code == 0 and setup.summary()["adapter_step"] == 24 and same(adapter_of(setup.output_dir / "adapter"), of_last), run
    # Where the best checkpoint is gone, the run goes on only without the key.
    (setup.output_dir / "summary.json").unlink()
    (setup.output_dir / f"checkpoint-{best}/adapter_model.safetensors").unlink()
    expect_end(setup.train(**settings(setup)), 4, f"checkpoint-{best}", "load_best_model_at_end=false")
    run = setup.train(**settings(setup, load_best_model_at_end=False))
    assert run.code == 0 and setup.summary()["adapter_step"] == 24, run


def test_a_patience_ends_the_run(setup):
    changes = settings(setup, early_stopping_patience=2)
    run = setup.good_run(**changes)
    summary, found = setup.summary(), losses(setup)
    best = summary["best_step"]
    assert summary["status"] == "done" and summary["step"] == best + 4 < 24 and max(found) == best + 4
    assert summary["reason"] == f"early stopping: eval_loss did not improve in 2 evaluations; best at step {best}"
    assert "early stopping" in run.stderr.splitlines()[-1], run
    two = setup.good_run("--nproc", "2", **dict(changes, output_dir=str(setup.folder / "two")))  # ranks agree
    of_two = json.loads((setup.folder / "two/summary.json").read_text())
    assert [of_two[key] for key in ("best_step", "step", "adapter_step")] == [summary[key] for key in ("best_step", "step", "adapter_step")]
    assert of_two["best_metric"] == pytest.approx(summary["best_metric"], rel=1e-5)
    again = setup.train(**changes)
    assert again.code == 0 and "already complete" in again.stderr
    longer = setup.train(**dict(changes, early_stopping_patience=3))
    assert longer.code == 0 and setup.summary()["step"] == setup.summary()["best_step"] + 6 and setup.summary()["best_step"] >= best, longer


def test_a_stopped_run_goes_on_bit_for_bit(setup):
    changes = settings(setup, early_stopping_patience=3, metric_for_best_model="val.token_accuracy", max_steps=40)
    setup.good_run(**changes)
    expected = {key: setup.summary()[key] for key in ("step", "reason", "best_step", "best_metric", "adapter_step", "eval_loss")}
    adapter, evals = adapter_of(setup.output_dir / "adapter"), losses(setup)
    pieces = setup.folder / "pieces"
    for _ in range(20):
        process = setup.start(**dict(changes, output_dir=str(pieces)))
        before = len(setup.events("train", pieces))
        while process.poll() is None and len(setup.events("train", pieces)) < before + 3:
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=120)
        assert process.returncode in (0, 75), process.returncode
        if process.returncode == 0:
            break
    summary = json.loads((pieces / "summary.json").read_text())
    assert {key: summary[key] for key in expected} == expected
    assert same(adapter_of(pieces / "adapter"), adapter)
    assert {line["step"]: line["loss"] for line in setup.events("eval", pieces)} == evals


def test_a_run_that_goes_on_without_its_best_checkpoint_begins_to_count_anew(setup):
    """Switched on later, where the best step was not saved; and from a checkpoint of another folder."""
    plain = settings(setup, load_best_model_at_end=False)
    assert setup.train(**plain).code == 0
    best = setup.summary()["best_step"]
    assert best < 24 and not (setup.output_dir / f"checkpoint-{best}").exists()
    run = setup.train(**dict(plain, load_best_model_at_end=True, max_steps=28))
    assert run.code == 0 and f"checkpoint-{best} was the best step so far, but cannot be used" in run.stderr, run
    assert setup.summary()["best_step"] == setup.summary()["adapter_step"] > 24
    other = setup.folder / "other"
    changes = dict(plain, load_best_model_at_end=True, max_steps=34, output_dir=str(other))
    run = setup.train("--resume", str(setup.output_dir / "checkpoint-28"), **changes)
    summary = json.loads((other / "summary.json").read_text())
    assert run.code == 0 and summary["adapter_step"] == summary["best_step"] > 28, run
    assert (other / f"checkpoint-{summary['best_step']}").exists()
