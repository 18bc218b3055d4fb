"""ablate: the ladder on the model of examples/tiny-math, its table, JSON, page and picture; what compare says of kept losses."""

import json
import signal
import struct
import subprocess

import numpy
import pytest

from command import BINARY, ENVIRONMENT, ROOT, Setup, events_of, expect_end, good_run, lora_train, wait_for

EXAMPLE = ROOT / "examples/tiny-math"
HELD_OUT = (EXAMPLE / "heldout.jsonl").read_text().splitlines(keepends=True)[:20]
STEPS = 3


@pytest.fixture(scope="module")
def ablation(tmp_path_factory):
    """The ladder once, with all outputs, the runs kept."""
    folder = tmp_path_factory.mktemp("ablate")
    (folder / "heldout.jsonl").write_text("".join(HELD_OUT))
    (folder / "profile.yaml").write_text(f"extends: {EXAMPLE}/profile.yaml\nglobal_batch_size: 1\nmicro_batch_size: 1\n"
                                         f"eval_datasets: [{{path: {folder}/heldout.jsonl, name: held-out}}]\n")
    run = good_run("ablate", "--profile", folder / "profile.yaml", "--steps", STEPS, "--json", "--html", folder / "a.html", "--png",
                   folder / "a.png", "--keep", folder / "runs", cwd=ROOT)
    return folder, run


def test_every_setting_trains_on_the_same_documents(ablation):
    folder, run = ablation
    lines = run.json_lines()
    names = [line["setting"] for line in lines]
    assert names == ["your profile", "plain", "+ bf16", "+ recomputation where needed", "+ packing", "+ token cache",
                     "+ data workers", "+ no saves before the end", "8-bit AdamW", "int8 base", "nf4 base"], run
    assert all(line["reason"] is None and line["tokens_per_s"] > 0 for line in lines), run
    assert len({(line["documents"], line["supervised_tokens"]) for line in lines}) == 1, run
    by_name = {line["setting"]: line for line in lines}
    assert by_name["plain"]["speedup"] == 1 and by_name["plain"]["eval_loss_difference"] is None
    assert by_name["your profile"]["loss"] == pytest.approx(by_name["plain"]["loss"], rel=1e-6), "both are fp32"
    assert by_name["+ bf16"]["loss"] != by_name["plain"]["loss"]
    assert by_name["+ packing"]["values"]["packing"] == "true"
    assert "tf32" not in by_name["plain"]["values"]
    # What a run did is what its folder says.
    runs = {json.loads((path / "summary.json").read_text())["run_name"]: path for path in (folder / "runs").glob("[0-9]*")}
    assert "precision: bf16" in (runs["+ bf16"] / "profile.yaml").read_text()
    assert "base_precision: nf4" in (runs["nf4 base"] / "profile.yaml").read_text()
    for name, path in runs.items():
        if name in by_name:
            assert json.loads((path / "summary.json").read_text())["train_loss"] == by_name[name]["loss"]


def losses_of(folder):
    (line,) = [json.loads(line) for line in (folder / "eval_losses.jsonl").open()]
    return numpy.array(line["losses"]), numpy.array(line["weights"])


def test_losses_of_documents_add_up_and_their_interval_is_numpys(ablation):
    folder, run = ablation
    runs = sorted((folder / "runs").glob("[0-9]*"), key=lambda path: int(path.name.split("-")[0]))
    plain, nf4 = runs[2], runs[-1]
    losses, weights = losses_of(plain)
    evaluation = events_of(plain, "eval")[-1]
    assert losses.sum() / weights.sum() == pytest.approx(evaluation["loss"], rel=1e-12)
    assert weights.sum() == evaluation["num_tokens"] and len(losses) == 20
    # Each document alone has the loss that it has among the others.
    for i in (0, 7, 19):
        (folder / f"row-{i}.jsonl").write_text(HELD_OUT[i])
    sets = ", ".join(f"{{path: {folder}/row-{i}.jsonl}}" for i in (0, 7, 19))
    alone = lora_train("eval", "--profile", EXAMPLE / "profile.yaml", "--adapter", plain / "adapter", "--set", f"eval_datasets=[{sets}]", "--json",
                       cwd=ROOT).json_lines()
    for line, i in zip(alone, (0, 7, 19), strict=True):
        assert losses[i] / weights[i] == pytest.approx(line["loss"], rel=1e-5), i
    difference = losses_of(nf4)[0] - losses
    mean = difference.sum() / weights.sum()
    residual = difference - mean * weights
    margin = 2.0930240544 * numpy.sqrt(20 / 19 * (residual**2).sum()) / weights.sum()  # t of 19 degrees of freedom
    (found,) = [line["eval_loss_difference"] for line in run.json_lines() if line["setting"] == "nf4 base"]
    assert found["mean"] == pytest.approx(mean, rel=1e-9) and found["num_documents"] == 20
    assert found["high"] == pytest.approx(mean + margin, rel=1e-4) and found["low"] == pytest.approx(mean - margin, rel=1e-4)
    compared = lora_train("compare", plain, nf4, "--json").json_lines()
    assert compared[0]["eval_loss_difference"] is None
    assert compared[1]["eval_loss_difference"]["mean"] == found["mean"]
    assert compared[1]["eval_loss_difference"]["verdict"] == found["verdict"]
    table = lora_train("compare", plain, nf4).stdout
    assert "evaluation loss compared with plain" in table and "over 20 documents" in table, table


def test_the_picture_and_the_page_show_every_setting(ablation):
    folder, run = ablation
    picture = (folder / "a.png").read_bytes()
    assert picture[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", picture[16:24])
    assert width >= 1280 and height >= 2 * 30 * 11
    page = (folder / "a.html").read_text()
    for line in run.json_lines():
        assert page.count(f">{line['setting']}</t") == 2, line["setting"]  # in the chart and in the table
    assert "src=" not in page and "url(" not in page and "<link rel=\"icon\" href=\"data:,\">" in page, "the page loads something"


def test_a_file_of_somebody_else_is_not_replaced(tmp_path):
    (tmp_path / "mine.html").write_text("<html>my notes</html>")
    run = lora_train("ablate", "--profile", EXAMPLE / "profile.yaml", "--html", tmp_path / "mine.html", cwd=ROOT)
    assert run.code == 2 and "mine.html" in run.stderr and "not replaced" in run.stderr, run


def test_keys_of_long_runs_do_not_stand_in_the_way_and_a_tokens_folder_stays(tmp_path):
    """A patience, best model and a folder of the user where the runs are kept."""
    setup = Setup(tmp_path)
    profile = setup.write_profile(val_set_size=2, eval_steps=1, early_stopping_patience=1, load_best_model_at_end=True)
    (tmp_path / "tokens").mkdir()
    (tmp_path / "tokens/mine").write_text("mine")
    run = lora_train("ablate", "--profile", profile, "--steps", 3, "--json", "--keep", tmp_path)
    assert run.code == 0 and all(line["reason"] is None for line in run.json_lines()), run
    assert (tmp_path / "tokens/mine").read_text() == "mine"


@pytest.mark.parametrize("num_signals", [1, 2])
def test_signals_end_the_whole_ladder(tmp_path, num_signals):
    setup = Setup(tmp_path)
    command = [str(BINARY), "ablate", "--profile", str(setup.write_profile()), "--steps", "1000000", "--keep", str(tmp_path / "runs")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
    wait_for(lambda: any((path / "metrics.jsonl").exists() for path in (tmp_path / "runs").glob("1-*")), "setting 1", process)
    for _ in range(num_signals):
        process.send_signal(signal.SIGINT)
    errors = process.communicate(timeout=60)[1]
    assert process.returncode in [75, 128 + signal.SIGINT][:num_signals], errors  # the first of two may have ended it already
    assert "setting 2" not in errors


def test_a_profile_that_does_not_train_is_refused_before_the_ladder(tmp_path):
    setup = Setup(tmp_path)
    setup.rows_file.write_text('{"input_ids": "no"}\n')
    setup.write_profile()
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    run = lora_train("ablate", "--profile", setup.profile_file, "--steps", 3, environment={"TMPDIR": str(temporary)})
    assert not list(temporary.glob("*ablate*")), "the folder of the runs stays behind"
    assert run.code == 2 and "setting 1" not in run.stderr and "nothing to compare" in run.stderr, run
    expect_end(lora_train("ablate", "--profile", setup.profile_file, "--steps", 2), 2, "--steps")
