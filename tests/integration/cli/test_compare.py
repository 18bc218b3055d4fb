"""compare: runs side by side from their folders, on a terminal, as CSV, JSON and a page; report.html of a run."""

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


@pytest.mark.parametrize("flag", ["--csv", "--html"])
def test_a_stop_ends_it_at_once_and_leaves_the_older_file(runs, tmp_path, flag):
    file = tmp_path / "result"
    assert lora_train("compare", runs, flag, file).code == 0
    before = file.read_bytes()
    slow_disk = dict(ENVIRONMENT, LD_PRELOAD=str(BINARY.parent / "lib/libslow_sync.so"), SLOW_SYNC_MS="600000")
    process = subprocess.Popen(list(map(str, [BINARY, "compare", runs / "typo", flag, file])), env=slow_disk, stderr=subprocess.DEVNULL)
    wait_for(lambda: any(tmp_path.glob(".tmp-*")), "the new file", process)
    process.terminate()
    assert process.wait(timeout=30) == -signal.SIGTERM
    assert file.read_bytes() == before
    assert lora_train("compare", runs / "typo", flag, file).code == 0 and file.read_bytes() != before


def test_sort(runs):
    def order(*arguments):
        run = lora_train("compare", runs, runs / "typo", "--json", *arguments)
        assert run.code == 0, run
        return [line["eval_loss"] for line in run.json_lines()]
    losses = sorted(loss for loss in order() if loss is not None)
    assert order("--sort", "eval_loss") == losses + [None]
    assert order("--sort", "-eval_loss") == order("--sort", "eval_loss", "--reverse") == losses[::-1] + [None]
    run = lora_train("compare", runs, "--sort", "evalloss")
    assert run.code == 2 and 'Did you mean "eval_loss"' in run.stderr, run


def test_columns_are_chosen(runs, tmp_path):
    run = lora_train("compare", runs, "--columns", "lora_r,eval_loss,seed")
    assert run.code == 0 and run.stdout.splitlines()[0].split() == ["run", "lora_r", "eval_loss", "seed"], run
    csv_file = tmp_path / "runs.csv"
    for _ in range(2):  # a file of compare is replaced
        assert lora_train("compare", runs, "--columns", "eval_mean_token_accuracy,train_loss", "--csv", csv_file).code == 0
    rows = list(csv.DictReader(csv_file.open()))
    assert list(rows[0]) == ["run", "folder", "status", "token_accuracy", "train_loss"], rows
    for row in rows:
        summary = json.loads((runs / os.path.basename(row["folder"]) / "summary.json").read_text())
        evals = [json.loads(line) for line in (runs / os.path.basename(row["folder"]) / "metrics.jsonl").open() if '"eval"' in line]
        assert float(row["train_loss"]) == summary["train_loss"] and float(row["token_accuracy"]) == pytest.approx(evals[-1]["token_accuracy"])
    objects = lora_train("compare", runs, "--json", "--columns", "learning_rate,perplexity").json_lines()
    assert all(set(found) == {"run", "folder", "status", "reason", "profile", "perplexity"} for found in objects), objects
    assert all(set(found["profile"]) == {"learning_rate"} for found in objects), objects
    run = lora_train("compare", runs, "--columns", "evalloss,step")
    assert run.code == 2 and '--columns: no column "evalloss". Did you mean "eval_loss"' in run.stderr, run


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


def test_a_csv_folder_is_a_folder_and_a_file_is_written(runs, tmp_path):
    assert lora_train("compare", "--csv", runs).stdout.startswith("run,folder,status,")
    run = lora_train("compare", runs, "--csv", tmp_path / "runs.csv")
    assert run.code == 0 and not run.stdout.startswith("run,folder"), run
    assert (tmp_path / "runs.csv").read_text() == lora_train("compare", runs, "--csv").stdout
    assert lora_train("compare", runs, "--csv", "--json").code == 2


@pytest.mark.parametrize("flag", ["--csv", "--html"])
def test_a_file_that_cannot_be_written_is_named(runs, tmp_path, flag):
    file = tmp_path / "none/runs.out"
    run = lora_train("compare", runs, flag, file)
    assert run.code == 5 and f"error: {file}: cannot create: its folder does not exist" in run.stderr, run
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("nothing")
    for name in ("pipe", "link"):
        run = lora_train("compare", runs, flag, tmp_path / name)
        assert run.code == 2 and f"{flag}: {tmp_path / name} is a link, a pipe or a device" in run.stderr, run
    command = f"ulimit -f 1; exec {BINARY} compare {runs} {flag} {tmp_path / 'large.out'} --quiet"  # as a full disk
    done = subprocess.run(["bash", "-c", command], env=ENVIRONMENT, capture_output=True, text=True)
    if flag == "--html":  # larger than that
        assert done.returncode == 5 and f"error: {tmp_path / 'large.out'}: cannot " in done.stderr, done
        assert sorted(os.listdir(tmp_path)) == ["link", "pipe"]


@pytest.mark.parametrize("flag", ["--csv", "--html"])
def test_only_a_file_of_compare_is_replaced(runs, tmp_path, flag):
    file, done = tmp_path / "runs.out", runs / "run-4"
    file.write_text("")
    for _ in range(2):
        assert lora_train("compare", runs, flag, file).code == 0
    (tmp_path / "notes").write_text("run,mine\n")
    for theirs in (done / "metrics.jsonl", done / "report.html", done / "summary.json", tmp_path / "notes"):
        before = theirs.read_bytes()
        run = lora_train("compare", runs, flag, theirs)
        assert run.code == 2 and f"{theirs}: was not written by compare" in run.stderr, run
        assert theirs.read_bytes() == before


def test_no_run_is_a_mistake_that_says_what_was_looked_for(tmp_path):
    for folder, what in [(tmp_path, "metrics.jsonl"), (tmp_path / "gone", "does not exist")]:
        run = lora_train("compare", folder)
        assert run.code == 2 and str(folder) in run.stderr and what in run.stderr, run
    assert lora_train("compare").code == 2


def test_a_folder_without_a_run_among_others_is_warned_of(runs, tmp_path):
    run = lora_train("compare", runs, tmp_path / "gone", runs / "typo")
    assert run.code == 0 and "gone: does not exist" in run.stderr, run
    assert run.stdout.count("typo: failed") == 1, run


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
    for columns in (60, 100):
        table = on_a_terminal(columns, runs, runs / "typo", NO_COLOR="1").split("\n\n")[:-2]  # what follows are sentences: losses and reasons
        lines = "\n".join(table).splitlines()
        assert "\x1b" not in "".join(lines) and max(map(len, lines)) <= columns, lines
    assert "\x1b[32mdone\x1b[0m" in on_a_terminal(400, runs)


def test_the_table_keeps_to_columns_in_a_pipe(runs):
    wide = lora_train("compare", runs).stdout
    narrow = lora_train("compare", runs, environment={"COLUMNS": "60"}).stdout
    assert max(map(len, wide.splitlines())) > 60 >= max(map(len, narrow.split("\n\n")[0].splitlines())), narrow


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
