"""What a run took and cost: sums over all its processes, and the same in summary.json, on stderr, in compare and in the report."""

import csv
import io
import json
import re
import signal

import pytest

from command import lora_train, stop, wait_for

PHASES = ["data", "load", "tune", "train", "evaluate", "save", "result", "other"]
SETTINGS = dict(max_steps=2000, val_set_size=2, eval_steps=200, save_steps=100, save_total_limit=100, gpu_price_per_hour=36.0)


def interrupt(setup, after, number=signal.SIGTERM, code=75):
    """Sends the signal once `after` holds, and waits for the end."""
    process = setup.start(**SETTINGS)
    wait_for(after, "what the signal waits for", process)
    stop(process, number, code)


def seconds_of(line_or_summary):
    return sum(line_or_summary["phases_s"].values())


def check_everywhere(setup, run):
    """All places say what summary.json says."""
    summary = setup.summary()
    assert list(summary["phases_s"]) == PHASES and min(summary["phases_s"].values()) >= 0
    assert seconds_of(summary) == pytest.approx(summary["wall_s"]) and summary["phases_s"]["train"] == summary["train_s"] > 0
    assert summary["tokens_per_s"] == pytest.approx(summary["tokens"] / summary["train_s"])
    assert summary["steps_per_s"] == pytest.approx(summary["step"] / summary["train_s"])
    end = setup.events("end")[-1]
    assert end["phases_s"] == summary["phases_s"] and end["cost_usd"] == summary["cost_usd"]
    assert end["cpu_s"] == summary["cpu_s"] > 0 and end["energy_wh"] is summary["energy_wh"] is summary["mean_gpu_utilization"] is None
    assert all(line["cpu_percent"] > 0 and 0.01 < line["host_memory_gib"] < 2 * summary["peak_host_memory_gib"] for line in setup.events("train"))
    assert not any(key.startswith("gpu_") for line in setup.events("train") for key in line)

    [line] = re.findall(r"^time: (.*)$", run.stderr, re.MULTILINE)
    cost = summary["cost_usd"]
    money = f"${cost:.4f}" if cost < 0.1 else f"${cost:.2f}"
    wall_s = round(summary["wall_s"])
    words = f"{summary['wall_s']:.1f}s" if summary["wall_s"] < 10 else f"{wall_s // 60}m {wall_s % 60:02}s" if wall_s >= 60 else f"{wall_s}s"
    assert line.startswith(f"{words}: "), line
    assert f"; {round(summary['tokens_per_s']):,} tokens a second in steps; {money} at $36.00 an hour (profile)" in line
    assert re.search(rf"\btrain (\d+m )?[\d.]+s \({100 * summary['train_s'] / summary['wall_s']:.0f}%\)", line), line

    [found] = lora_train("compare", setup.output_dir, "--json").json_lines()
    [row] = csv.DictReader(io.StringIO(lora_train("compare", setup.output_dir, "--csv").stdout))
    assert all(summary[key] == float(row[key]) for key in ("wall_s", "train_s", "tokens_per_s", "cost_usd")), row
    assert found["phases_s"] == summary["phases_s"]

    page = (setup.output_dir / "report.html").read_text()
    [shown] = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page)[1])["runs"]
    assert shown["phases_s"] == summary["phases_s"] and shown["summary"]["price_source"] == "profile"
    for key in ("wall_s", "train_s", "tokens_per_s", "cost_usd", "step", "total_steps", "tokens", "eval_loss", "best_eval_loss", "best_step"):
        assert shown["figures"][key] == pytest.approx(summary[key], rel=1e-5) and found[key] == summary[key], key
    last_eval = setup.events("eval")[-1]
    assert summary["eval_loss"] == last_eval["loss"] and shown["evals"][-1]["loss"] == pytest.approx(last_eval["loss"], rel=1e-5)
    ledger, start = shown["summary"]["ledger"], setup.events("start")[-1]
    assert (ledger["total"], ledger["kept"], ledger["held_out"]) == (12, 12, 2) and ledger == summary["ledger"]
    assert shown["start"]["num_documents"] == start["num_documents"] == sum(start["document_lengths"]["counts"]) == 10
    assert len(shown["processes_s"]) == len(setup.events("start"))
    ends = [end for _, _, end in shown["spans"]]
    assert ends == sorted(ends) and ends[-1] <= summary["wall_s"] + 0.002
    drawn = {phase for phase, _, _ in shown["spans"]}  # those that a screen can show: a slow run hides how quickly it loaded
    assert "train" in drawn and drawn >= {phase for phase in ("load", "data") if summary["phases_s"][phase] > 0.01 * summary["wall_s"]}
    return summary


def test_a_stop_and_a_resume_add_up(setup):
    interrupt(setup, lambda: len(setup.events("train")) > 150)
    stopped = setup.summary()
    assert stopped["status"] == "stopped" and stopped["wall_s"] == pytest.approx(setup.events("end")[0]["elapsed_s"])
    run = setup.train(**SETTINGS)
    assert run.code == 0 and "resumed from" in run.stderr, run
    summary = check_everywhere(setup, run)
    first_end, last_end = setup.events("end")
    lines = setup.events("train")
    assert [line["step"] for line in lines] == list(range(1, 2001))
    assert summary["wall_s"] == pytest.approx(stopped["wall_s"] + last_end["elapsed_s"])
    assert summary["train_s"] == pytest.approx(sum(line["step_ms"] for line in lines) / 1000)
    assert summary["train_s"] == pytest.approx(lines[-1]["train_s"])
    assert summary["cost_usd"] == pytest.approx(summary["wall_s"] / 100)
    assert first_end["cpu_s"] == stopped["cpu_s"] > 0 and summary["cpu_s"] > 1.2 * stopped["cpu_s"]
    assert summary["train_loss"] == pytest.approx(sum(line["loss"] * line["supervised_tokens"] for line in lines)
                                                  / summary["supervised_tokens"])
    for phase in ("data", "load", "evaluate", "save"):
        assert summary["phases_s"][phase] > stopped["phases_s"][phase] > 0, phase
    evals = setup.events("eval")
    assert summary["phases_s"]["evaluate"] == pytest.approx(sum(line["eval_s"] for line in evals))
    assert all(lines[i]["cost_usd"] < lines[i + 1]["cost_usd"] for i in range(len(lines) - 1))


def test_a_killed_process_counts_up_to_its_last_checkpoint(setup):
    interrupt(setup, lambda: len(setup.events("checkpoint")) > 1, signal.SIGKILL, -signal.SIGKILL)
    assert not (setup.output_dir / "summary.json").exists()
    states = {path.parent.name: json.loads(path.read_text()) for path in setup.output_dir.glob("checkpoint-*/trainer_state.json")}
    [found] = lora_train("compare", setup.output_dir, "--json").json_lines()
    assert found["status"] == "unfinished" and found["train_s"] == setup.events("train")[-1]["train_s"]
    run = setup.good_run(**SETTINGS)
    state = states[re.search(r"resumed from \S*/(checkpoint-\d+)", run.stderr)[1]]
    earlier = state["lora_train"]
    summary = check_everywhere(setup, run)
    [end] = setup.events("end")
    assert summary["wall_s"] == pytest.approx(seconds_of(earlier) + end["elapsed_s"])
    assert summary["cost_usd"] == pytest.approx(earlier["cost_usd"] + end["elapsed_s"] / 100)
    assert summary["cpu_s"] > earlier["cpu_s"] > 0
    later = [line["step_ms"] for line in setup.events("train") if line["step"] > state["global_step"]]
    assert summary["train_s"] == pytest.approx(earlier["phases_s"]["train"] + sum(later) / 1000)


def test_every_process_has_its_own_price(setup):
    """Without a price there is no cost."""
    run = setup.train(output_dir=str(setup.folder / "free"))
    assert run.code == 0 and "$" not in run.stderr, run
    summary = json.loads((setup.folder / "free/summary.json").read_text())
    assert summary["cost_usd"] is summary["gpu_price_per_hour"] is summary["price_source"] is None
    assert all(line["cost_usd"] is None for line in setup.events("train", setup.folder / "free"))
    changes = dict(SETTINGS, max_steps=3)
    run = setup.train(**dict(changes, gpu_price_per_hour=7.2))
    shown = re.findall(r"^step \d/3 .* left, \$([\d.]+)$", run.stderr, re.MULTILINE)
    assert [float(cost) for cost in shown] == pytest.approx([line["cost_usd"] for line in setup.events("train")], abs=1e-4)
    assert "price: $7.20 an hour (profile)" in run.stderr, run
    first = setup.summary()
    assert first["cost_usd"] == pytest.approx(first["wall_s"] / 500)
    assert setup.train(**dict(changes, max_steps=6)).code == 0
    summary = setup.summary()
    assert summary["cost_usd"] == pytest.approx(first["cost_usd"] + (summary["wall_s"] - first["wall_s"]) / 100)
    assert [line["gpu_price_per_hour"] for line in setup.events("start")] == [7.2, 36]


def test_a_resumed_run_that_ends_before_its_first_step_keeps_its_figures(setup):
    """Stopped before it has loaded, or failed."""
    interrupt(setup, lambda: len(setup.events("train")) > 3)
    before = setup.summary()
    for end, arguments, code in (("", ["--max-time", "0.001"], 75), ("no row\n", [], 3)):
        earlier = setup.summary()
        setup.write_rows(setup.rows, more=end)
        run = setup.train(*arguments, **SETTINGS)
        summary = setup.summary()
        assert run.code == code and summary["status"] == ("failed" if code == 3 else "stopped"), run
        assert code == 3 or f"after step {before['step']}; the same command resumes the run" in run.stderr, run
        for key in ("step", "epoch", "tokens", "supervised_tokens", "train_s", "tokens_per_s"):
            assert summary[key] == before[key], key
        assert summary["wall_s"] > earlier["wall_s"] and summary["phases_s"]["other"] > earlier["phases_s"]["other"]
    assert summary["cost_usd"] == pytest.approx(summary["wall_s"] / 100)
