"""report.html and the page of compare in a browser: they draw, escape what runs say, and fit on a phone."""

import json
import math

import pytest

import browser
from command import good_run, lora_train
from tiny_math import write_rows

pytestmark = pytest.mark.skipif(browser.PROGRAM is None, reason=browser.MISSING)

HOSTILE = "</script><script>window.hacked=1</script><img src=x onerror=window.hacked=2>\u2028\u202e'\"`${window.hacked=3}&amp;<!--"


@pytest.fixture(scope="module")
def chromium():
    with browser.Browser() as opened:
        yield opened


def texts(chromium, selector):
    return chromium.evaluate(f"[...document.querySelectorAll({json.dumps(selector)})].map((node) => node.textContent)")


def bins(accuracy):
    return [[10 * i, 10 * i * (i + 0.5) / 15, round(10 * i * (i + 0.5) / 15 * accuracy)] for i in range(15)]


def write_run(folder, name="run", text="plain", learning_rate=0.001, lora_r=8, num_steps=60):
    """The files of a finished run with everything that a page shows; `text` stands wherever a run has text."""
    folder.mkdir(parents=True)
    (folder / "profile.yaml").write_text(json.dumps({
        "model": "m/" + text, "datasets": [{"path": "d/" + text, "name": text}], "run_name": name, "learning_rate": learning_rate,
        "lora_r": lora_r, "output_dir": str(folder), "base_model_name": text, "lora_target_modules": ["q_proj", text]}))
    lines = [{"event": "start", "step": 0, "total_steps": num_steps, "time": 1.7e9, "num_documents": 900, "elapsed_s": 1, "version": text,
              "environment": {"command": "lora-train " + text, text: text, "cpu": text}, "base_files": ["configs/" + text],
              "set_by": {"lora_r": text + ":3", "learning_rate": "configs/" + text + ":7"}, "base_values": {"lora_r": text},
              "document_lengths": {"bin_width": 5, "counts": [1, 400, 499], "num_tokens": 9000, "longest": 15}}]
    for step in range(num_steps + 1):
        loss = 11 - 2 * step if step < 5 else 1 + 10 * learning_rate + 1 / (step + 1)
        if step > 0:
            lines.append({"event": "train", "step": step, "loss_mean": loss, "supervised_tokens": 10, "tokens": 100, "step_ms": 500,
                          "tokens_per_s": 200, "grad_norm": 1 + step % 3, "learning_rate": learning_rate, "elapsed_s": step,
                          "memory_gib": 70, "host_memory_gib": 2, "gpu_utilization": 97, "gpu_power_w": 600, "gpu_temperature_c": 60,
                          "gpu_clock_mhz": 1900, "cpu_percent": 150, "gpu_throttle": [text]})
        if step % 20 == 0:
            share = step / num_steps
            lines.append({"event": "eval", "step": step, "name": text, "loss": loss + 0.1, "perplexity": math.exp(loss), "ece": 0.3 - 0.2 * share,
                          "token_accuracy": 0.5, "num_tokens": 1, "bins": bins(share)})
            lines.append({"event": "eval", "step": step, "name": "conf " + text, "kind": "confidence", "accuracy": share, "ece": 0.2,
                          "ece_equal_mass": 0.2, "brier": 0.1, "auroc": None, "mean_confidence": 0.5, "over_confidence": 0.1, "num_rows": 1, "bins": bins(share)})
    write_rows(folder / "metrics.jsonl", lines)
    final = 1 + 10 * learning_rate + lora_r / 100
    (folder / "summary.json").write_text(json.dumps({
        "status": "done", "step": num_steps, "total_steps": num_steps, "eval_loss": final, "wall_s": 61.5, "train_s": 60, "tokens_per_s": 200,
        "best_eval_loss": final, "tokens": 6000, "adapter": "out/" + text, "adapter_step": num_steps, "gpu": text, "num_gpus": 1,
        "phases_s": {"train": 60, text: 1.5}, "version": text, "price_source": text, "gpu_price_per_hour": 2, "cost_usd": 0.03,
        "ledger": {"total": 1000, "kept": 950, "held_out": 50, "reasons": {text: {"count": 50, "first": text}}}}))
    write_rows(folder / "eval_answers.jsonl", [
        {"step": step, "name": "conf " + text, "source": text, "prompt": text, "expected": text, "answer": text + str(step), "is_right": step > 0,
         "confidence": 0.5} for step in (0, num_steps)])
    return folder


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """The pages of runs whose every text is hostile."""
    folder = tmp_path_factory.mktemp("hostile")
    for i, name in enumerate((HOSTILE, HOSTILE + "2")):
        write_run(folder / "runs" / f"r{i}", name, HOSTILE + str(i), lora_r=4 + i)
    good_run("compare", folder / "runs", "--report", "--html", folder / "page.html")
    return {"report": folder / "runs/r0/report.html", "comparison": folder / "page.html"}


@pytest.mark.parametrize("page", ["report", "comparison"])
@pytest.mark.parametrize("width,theme", [(1280, "light"), (390, "dark")])
def test_hostile_texts_are_shown_and_do_nothing(hostile, chromium, page, width, theme):
    file = hostile[page]
    chromium.open(file, width=width, theme=theme)
    assert chromium.problems == []
    assert chromium.requests == [f"file://{file}"]
    assert chromium.evaluate("window.hacked === undefined && document.images.length === 0 && document.scripts.length === 2")
    assert chromium.evaluate(f"document.body.innerText.includes({json.dumps('window.hacked=1</script><img src=x')})")
    assert chromium.evaluate("document.documentElement.scrollWidth") <= width
    chromium.evaluate("document.querySelectorAll('.plot').forEach((plot) => plot.dispatchEvent(new PointerEvent('pointermove', {clientX: 150, clientY: 50, bubbles: true})))")
    chromium.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    chromium.settle()
    assert chromium.problems == [] and chromium.evaluate("window.hacked === undefined")
    assert chromium.evaluate("document.documentElement.scrollWidth") <= width


def test_the_report_says_what_the_run_was(tmp_path, chromium):
    run = write_run(tmp_path / "run", "my run")
    assert lora_train("compare", run, "--report").code == 0
    assert (run / "curves.png").read_bytes().startswith(b"\x89PNG")
    chromium.open(run / "report.html")
    assert chromium.problems == []
    facts = dict(zip(texts(chromium, ".facts dt"), texts(chromium, ".facts dd")))
    assert facts["model"] == "m/plain" and facts["adapter"] == "out/plain" and facts["duration"] == "1m 02s"
    assert facts["data"] == "d/plain (900 documents an epoch)" and facts["started"].startswith("2023-11-1")
    charts = [title.split("\u25b2")[0] for title in texts(chromium, ".chart h3")]
    assert charts == ["Lossper token", "Accuracy", "Perplexity", "Calibration error", "Gradient normbefore clipping", "Learning rate",
                      "Throughputtokens per second", "MemoryGiB", "CPU use% of one core", "GPU use% of the time", "GPU powerW",
                      "GPU temperature\u00b0C", "GPU clockMHz"]
    page = chromium.evaluate("document.body.innerText")
    assert "900 of 1,000 examples are trained on, 50 are held out for evaluation." in page
    assert "900 documents: 10 tokens on average, 15 at most" in page
    assert len(texts(chromium, "figure circle")) == 4 * 14  # two diagrams, before and after, without the empty bin
    assert texts(chromium, ".sample .said small") == ["expected", "before training \u00b7 wrong \u00b7 confidence 50 %", "step 60 \u00b7 right \u00b7 confidence 50 %"]
    assert ["lora_r", "8", "plain", "16", "plain:3"] in chromium.evaluate(
        "[...document.querySelectorAll('.choices tbody tr')].map((row) => [...row.children].map((cell) => cell.textContent))")


def test_first_points_do_not_squash_the_axis_and_can_be_shown(tmp_path, chromium):
    run = write_run(tmp_path / "run")
    assert lora_train("compare", run, "--report").code == 0
    chromium.open(run / "report.html")
    note = "document.querySelector('.chart .outliers')"
    assert "above, up to 11.1" in chromium.evaluate(note + ".textContent")
    chromium.evaluate(note + ".click()")
    chromium.settle()
    assert chromium.evaluate(note + ".hidden")
    colour = "getComputedStyle(document.body).backgroundColor"
    light = chromium.evaluate(colour)
    chromium.evaluate("document.querySelector('.theme').click()")
    assert chromium.evaluate(colour) != light and chromium.problems == []


def test_twelve_runs_can_be_told_apart_and_nothing_is_cut_off(tmp_path, chromium):
    for i in range(12):
        write_run(tmp_path / "runs" / f"run-{i:02}", f"run {i}", learning_rate=[1e-4, 1e-3, 1e-2][i % 3], lora_r=4 * 2 ** (i // 3))
    page = tmp_path / "page.html"
    assert lora_train("compare", tmp_path / "runs", "--html", page).code == 0
    for width in (1280, 390):
        chromium.open(page, width=width)
        assert chromium.problems == [] and chromium.evaluate("document.documentElement.scrollWidth") <= width
        styles = chromium.evaluate("[...document.querySelectorAll('.legend .swatch line')].map((line) => [line.getAttribute('stroke'), line.getAttribute('stroke-dasharray')])")
        assert len(styles) == 12 and len({colour for colour, _ in styles}) == 12 and {dash for _, dash in styles} == {"none", "7 4"}
        assert texts(chromium, "figure h3") == ["lora_rfinal eval loss", "learning_ratefinal eval loss"]
        assert len(texts(chromium, "figure circle")) == 24
        cut = chromium.evaluate("""[...document.querySelectorAll('svg.drawing text')].filter((text) => {
            const box = text.getBoundingClientRect(), frame = text.closest('svg').getBoundingClientRect();
            return box.left < frame.left - 1 || box.right > frame.right + 1 || box.bottom > frame.bottom + 1;
        }).map((text) => text.textContent)""")
        assert cut == []
    headings = texts(chromium, ".results thead th")
    assert headings == ["run", "lora_r", "learning_rate", "status", "steps", "train loss", "lowest train loss", "eval loss", "lowest eval loss",
                        "tokens per second", "GPU memory, peak (GiB)", "wall time", "cost"]
