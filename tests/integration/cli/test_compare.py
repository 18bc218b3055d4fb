"""compare: real runs side by side, on a terminal, as CSV, JSON and a page; report.html of a run.

Flags, columns and files that are refused: habits_test and comparison_test.
"""

import csv
import fcntl
import io
import json
import os
import pty
import re
import signal
import struct
import subprocess
import termios

import pytest

from command import BINARY, ENVIRONMENT, Setup, lora_train, wait_for


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Three runs: two that are done, and one that failed. No test changes them."""
    setup = Setup(tmp_path_factory.mktemp("three"))
    folder = setup.folder / "runs"
    evals = [{"path": str(setup.rows_file), "type": "pretokenized", "name": "val"}]
    settings = dict(eval_datasets=evals, eval_steps=2, gpu_price_per_hour=36.0)
    for name, changes in {"slow": dict(learning_rate=1e-3), "<script>alert(1)</script>": dict(lora_r=8)}.items():
        run = setup.train(output_dir=str(folder / f"run-{len(name)}"), run_name=name, **settings, **changes)
        assert run.code == 0, run
    missing = [{"path": str(setup.folder / "gone.jsonl"), "type": "pretokenized"}]
    assert setup.train(output_dir=str(folder / "typo"), datasets=missing).code == 3
    return folder


def page_data(file):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', file.read_text())[1])


def test_table_json_and_csv_say_what_the_runs_say(runs):
    short = lora_train("compare", runs)
    assert short.code == 0 and "typo" not in short.stdout and short.stderr.count(f"left out: {runs}/typo, which ended before step 1;") == 1, short
    runs_and_typo = (runs, runs / "typo")
    table = lora_train("compare", *runs_and_typo)
    assert table.code == 0, table
    assert "typo: failed: " in table.stdout and "gone.jsonl" in table.stdout, table
    header = table.stdout.splitlines()[0].split()
    assert header[:4] == ["run", "lora_r", "learning_rate", "status"] and "eval_loss" in header, table
    objects = lora_train("compare", *runs_and_typo, "--json").json_lines()
    rows = list(csv.DictReader(io.StringIO(lora_train("compare", *runs_and_typo, "--csv").stdout)))
    assert len(objects) == len(rows) == 3
    for found, row in zip(objects, rows):
        summary = json.loads((runs / os.path.basename(found["folder"]) / "summary.json").read_text())
        assert found["status"] == row["status"] == summary["status"]
        if found["status"] == "failed":
            assert "gone.jsonl" in found["reason"] and found["eval_loss"] is None and row["eval_loss"] == ""
            continue
        for key in ("step", "eval_loss", "best_eval_loss", "best_step", "tokens", "tokens_per_s", "peak_host_memory_gib"):
            assert found[key] == summary[key] == float(row[key]), key
        assert found["wall_s"] == pytest.approx(summary["wall_s"], rel=0.2)
        assert found["cost_usd"] == pytest.approx(found["wall_s"] / 100)
        lines = [json.loads(line) for line in (runs / os.path.basename(found["folder"]) / "metrics.jsonl").open()]
        losses = [line["loss_mean"] for line in lines if line["event"] == "train"]
        assert found["last_train_loss"] == pytest.approx(losses[-1]) and found["best_train_loss"] == pytest.approx(min(losses))
    for found in lora_train("compare", runs, "--columns", "eval_mean_token_accuracy,train_loss", "--json").json_lines():
        folder = runs / os.path.basename(found["folder"])
        evals = [json.loads(line) for line in (folder / "metrics.jsonl").open() if '"eval"' in line]
        assert found["train_loss"] == json.loads((folder / "summary.json").read_text())["train_loss"]
        assert found["token_accuracy"] == pytest.approx(evals[-1]["token_accuracy"])


def test_a_stop_ends_it_at_once_and_leaves_the_older_file(runs, tmp_path):
    file = tmp_path / "result"
    assert lora_train("compare", runs, "--html", file).code == 0
    before = file.read_bytes()
    slow_disk = dict(ENVIRONMENT, LD_PRELOAD=str(BINARY.parent / "lib/libslow_sync.so"), SLOW_SYNC_MS="600000")
    process = subprocess.Popen(list(map(str, [BINARY, "compare", runs / "typo", "--html", file])), env=slow_disk, stderr=subprocess.DEVNULL)
    wait_for(lambda: any(tmp_path.glob(".tmp-*")), "the new file", process)
    process.terminate()
    assert process.wait(timeout=30) == -signal.SIGTERM
    assert file.read_bytes() == before


def test_page_holds_every_run_and_no_text_of_theirs_as_markup(runs, tmp_path):
    page = tmp_path / "page.html"
    run = lora_train("compare", runs, runs / "typo", "--html", page)
    assert run.code == 0 and f"{page}: written" in run.stderr and "eval_loss" in run.stdout, run
    text = page.read_text()
    assert "<script>alert" not in text and text.count("<script") == 2
    assert not re.search(r"https?:|src=|url\(", text)
    found = {entry["name"]: entry for entry in page_data(page)["runs"]}
    assert set(found) == {"slow", "<script>alert(1)</script>", "typo"}
    assert found["slow"]["curves"]["step"] == [1, 2, 3] and found["slow"]["eval"]["step"] == [0, 2, 3]


def test_only_a_file_of_compare_is_replaced_and_whole(runs, tmp_path):
    for theirs in (runs / "run-4/report.html", runs / "run-4/summary.json"):
        before = theirs.read_bytes()
        run = lora_train("compare", runs, "--html", theirs)
        assert run.code == 2 and f"{theirs}: was not written by compare" in run.stderr and theirs.read_bytes() == before, run
    file = tmp_path / "large.out"
    command = f"ulimit -f 1; exec {BINARY} compare {runs} --html {file} --quiet"  # as a full disk
    done = subprocess.run(["bash", "-c", command], env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 5 and f"error: {file}: cannot " in done.stderr and not any(tmp_path.iterdir()), done


def test_a_run_that_is_on_and_one_that_was_killed(setup):
    process = setup.start(max_steps=1000000)
    wait_for(lambda: len(setup.events("train")) >= 3, "step 3", process)
    [found] = lora_train("compare", setup.output_dir, "--json").json_lines()
    assert found["status"] == "running" and found["step"] >= 3 and found["last_train_loss"] > 0
    process.kill()
    process.communicate(timeout=300)
    [found] = lora_train("compare", setup.output_dir, "--json").json_lines()
    assert found["status"] == "unfinished" and "no summary.json" in found["reason"], found


def on_a_terminal(columns, *arguments, **environment):
    """What `lora-train compare` writes onto a terminal that is so wide."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    variables = dict({key: value for key, value in ENVIRONMENT.items() if key != "NO_COLOR"}, TERM="xterm", **environment)
    process = subprocess.Popen([str(BINARY), "compare", *map(str, arguments)], stdout=follower, env=variables)
    os.close(follower)
    text = b""
    while True:
        try:
            part = os.read(leader, 65536)
        except OSError:
            break
        text += part
        if not part:
            break
    assert process.wait(timeout=300) == 0
    os.close(leader)
    return text.decode().replace("\r\n", "\n")


def test_table_fits_the_terminal_and_no_color_is_heeded(runs):
    table = on_a_terminal(60, runs, runs / "typo", NO_COLOR="1").split("\n\n")[:-2]  # what follows are sentences: losses and reasons
    lines = "\n".join(table).splitlines()
    assert "\x1b" not in "".join(lines) and max(map(len, lines)) <= 60, lines
    assert "\x1b[32mdone\x1b[0m" in on_a_terminal(400, runs)


def test_every_end_of_a_run_leaves_a_report(setup):
    """Done, stopped and failed; --overwrite deletes it."""
    assert setup.train(max_steps=2).code == 0
    report = setup.output_dir / "report.html"
    [run] = page_data(report)["runs"]
    assert run["status"] == "done" and run["curves"]["step"] == [1, 2] and run["summary"]["ledger"]["total"] == len(setup.rows)
    process = setup.start(max_steps=1000000)
    wait_for(lambda: len(setup.events("train")) >= 4, "step 4", process)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=300)
    assert process.returncode == 75
    [run] = page_data(report)["runs"]
    assert run["status"] == "stopped" and run["reason"] == "SIGTERM" and run["figures"]["step"] >= 4
    failing = dict(datasets=[{"path": str(setup.folder / "gone.jsonl"), "type": "pretokenized"}])
    assert setup.train(output_dir=str(setup.folder / "failed"), **failing).code == 3
    [run] = page_data(setup.folder / "failed/report.html")["runs"]
    assert run["status"] == "failed" and "gone.jsonl" in run["reason"]
    before = report.stat().st_ino
    assert setup.train("--overwrite", max_steps=1).code == 0
    assert report.stat().st_ino != before and page_data(report)["runs"][0]["curves"]["step"] == [1]
