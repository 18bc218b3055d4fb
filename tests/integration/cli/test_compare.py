"""compare: real runs side by side, as a table, CSV, JSON and a page; report.html of a run. Flags, columns, widths and files that are
refused: habits_test and comparison_test."""

import csv
import io
import json
import os
import re
import signal
import subprocess

import pytest

import terminals
from command import BINARY, ENVIRONMENT, Setup, good_run, lora_train, stop, wait_for


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Three runs: two that are done, and one that failed. No test changes them."""
    setup = Setup(tmp_path_factory.mktemp("three"))
    folder = setup.folder / "runs"
    evals = [{"path": str(setup.rows_file), "type": "pretokenized", "name": "val"}]
    settings = dict(eval_datasets=evals, eval_steps=2, gpu_price_per_hour=36.0)
    for name, changes in {"slow": dict(learning_rate=1e-3), "wide": dict(lora_r=8)}.items():
        setup.good_run(output_dir=str(folder / name), run_name=name, **settings, **changes)
    missing = [{"path": str(setup.folder / "gone.jsonl"), "type": "pretokenized"}]
    assert setup.train(output_dir=str(folder / "typo"), datasets=missing).code == 3
    return folder


def page_data(file):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', file.read_text())[1])


def test_table_json_and_csv_say_what_the_runs_say(runs):
    """Every figure: test_run_times."""
    short = lora_train("compare", runs)
    assert short.code == 0 and "typo" not in short.stdout and short.stderr.count(f"left out: {runs}/typo, which ended before step 1;") == 1, short
    table, objects, rows = (good_run("compare", runs, runs / "typo", *flags) for flags in ((), ("--json",), ("--csv",)))
    assert "typo: failed: " in table.stdout and "gone.jsonl" in table.stdout, table
    header = table.stdout.splitlines()[0].split()
    assert header[:4] == ["run", "lora_r", "learning_rate", "status"] and "eval_loss" in header, table
    found = {os.path.basename(line["folder"]): line for line in objects.json_lines()}
    of_csv = [row["status"] for row in csv.DictReader(io.StringIO(rows.stdout))]
    assert sorted(of_csv) == sorted(line["status"] for line in found.values()) == ["done", "done", "failed"]
    assert "gone.jsonl" in found["typo"]["reason"] and found["typo"]["eval_loss"] is None
    for line in good_run("compare", runs, "--columns", "eval_mean_token_accuracy,train_loss", "--json").json_lines():
        folder = runs / os.path.basename(line["folder"])
        lines = [json.loads(text) for text in (folder / "metrics.jsonl").open()]
        losses = [event["loss_mean"] for event in lines if event["event"] == "train"]
        of_run = found[folder.name]
        assert of_run["last_train_loss"] == pytest.approx(losses[-1]) and of_run["best_train_loss"] == pytest.approx(min(losses))
        assert line["train_loss"] == json.loads((folder / "summary.json").read_text())["train_loss"]
        assert line["token_accuracy"] == pytest.approx([event for event in lines if event["event"] == "eval"][-1]["token_accuracy"])


def test_the_page_holds_every_run_and_a_stop_leaves_the_older_file(runs, tmp_path):
    file = tmp_path / "result"
    run = lora_train("compare", runs, runs / "typo", "--html", file)
    assert run.code == 0 and f"{file}: written" in run.stderr and "eval_loss" in run.stdout, run
    found = {entry["name"]: entry for entry in page_data(file)["runs"]}
    assert set(found) == {"slow", "wide", "typo"} and found["slow"]["curves"]["step"] == [1, 2, 3] and found["slow"]["eval"]["step"] == [0, 2, 3]
    before = file.read_bytes()
    slow_disk = dict(ENVIRONMENT, LD_PRELOAD=str(BINARY.parent / "lib/libslow_sync.so"), SLOW_SYNC_MS="600000")
    process = subprocess.Popen(list(map(str, [BINARY, "compare", runs / "typo", "--html", file])), env=slow_disk, stderr=subprocess.DEVNULL)
    wait_for(lambda: any(tmp_path.glob(".tmp-*")), "the new file", process)
    stop(process, code=-signal.SIGTERM)
    assert file.read_bytes() == before


def test_only_a_file_of_compare_is_replaced_and_whole(runs, tmp_path):
    for theirs in (runs / "slow/report.html", runs / "slow/summary.json"):
        before = theirs.read_bytes()
        run = lora_train("compare", runs, "--html", theirs)
        assert run.code == 2 and f"{theirs}: was not written by compare" in run.stderr and theirs.read_bytes() == before, run
    file = tmp_path / "large.out"
    command = f"ulimit -f 1; exec {BINARY} compare {runs} --html {file} --quiet"  # as a full disk
    done = subprocess.run(["bash", "-c", command], env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 5 and f"error: {file}: cannot " in done.stderr and not any(tmp_path.iterdir()), done


def test_every_end_of_a_run_leaves_a_report(setup):
    """Done, stopped and failed; --overwrite deletes it."""
    assert setup.train(max_steps=2).code == 0
    report = setup.output_dir / "report.html"
    [run] = page_data(report)["runs"]
    assert run["status"] == "done" and run["curves"]["step"] == [1, 2] and run["summary"]["ledger"]["total"] == len(setup.rows)
    process = setup.start(max_steps=1000000)
    wait_for(lambda: len(setup.events("train")) >= 4, "step 4", process)
    stop(process)
    [run] = page_data(report)["runs"]
    assert run["status"] == "stopped" and run["reason"] == "SIGTERM" and run["figures"]["step"] >= 4
    failing = dict(datasets=[{"path": str(setup.folder / "gone.jsonl"), "type": "pretokenized"}])
    assert setup.train(output_dir=str(setup.folder / "failed"), **failing).code == 3
    [run] = page_data(setup.folder / "failed/report.html")["runs"]
    assert run["status"] == "failed" and "gone.jsonl" in run["reason"]
    before = report.stat().st_ino
    assert setup.train("--overwrite", max_steps=1).code == 0
    assert report.stat().st_ino != before and page_data(report)["runs"][0]["curves"]["step"] == [1]


def on_a_terminal(columns, *arguments, **environment):
    """What `lora-train compare` writes onto a terminal that is so wide."""
    parts = terminals.parts_of([BINARY, "compare", *arguments], columns, dict(terminals.COLOURFUL, **environment))
    return b"".join(parts).decode().replace("\r\n", "\n")


def test_table_fits_the_terminal_and_no_color_is_heeded(runs):
    table = on_a_terminal(60, runs, runs / "typo", NO_COLOR="1").split("\n\n")[:-2]  # what follows are sentences: losses and reasons
    lines = "\n".join(table).splitlines()
    assert "\x1b" not in "".join(lines) and max(map(len, lines)) <= 60, lines
    assert "\x1b[32mdone\x1b[0m" in on_a_terminal(400, runs)
