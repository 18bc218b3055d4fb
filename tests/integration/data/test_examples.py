"""The examples beside those of test_confidence.py and test_tiny_math.py: their commands, as their READMEs have them."""

import json

import pytest

from command import BINARY, ROOT, events_of, good_run

EXAMPLES = ROOT / "examples"
SHOP = [{"question": f"Tom has {a} lamps and buys {b} more. How many?", "answer": f"{a} + {b} = {a + b}\n#### {a + b}"}
        for a in range(2, 8) for b in range(2, 8)]
NUMBER = r"#### (-?[0-9.,]+)"


def exact_match(profile, *arguments):
    run = good_run("eval", EXAMPLES / profile, *arguments, "--exact-match", "--max-new-tokens", "64", "--json", cwd=ROOT)
    return run.json_lines()[0]["exact_match"]


def train(name, folder, *arguments):
    good_run("train", EXAMPLES / name / "profile.yaml", "--output-dir", folder, "--quiet", *arguments, cwd=ROOT)


@pytest.mark.long_run
def test_the_adapter_answers_held_out_orders_and_the_base_none(tmp_path):
    train("orders", tmp_path / "run")
    assert exact_match("orders/profile.yaml") <= 0.05
    assert exact_match("orders/profile.yaml", "--adapter", tmp_path / "run") >= 0.95


@pytest.mark.long_run
def test_qlora_learns_the_orders_and_keeps_them_when_merged(tmp_path):
    train("qlora", tmp_path / "run")
    merged = good_run("merge", "--adapter", tmp_path / "run", "--output-dir", tmp_path / "merged", "--quiet", cwd=ROOT)
    assert exact_match("orders/profile.yaml", "--model", tmp_path / "merged") >= 0.95


@pytest.mark.long_run
def test_full_fine_tuning_learns_the_orders(tmp_path):
    train("full", tmp_path / "run")
    assert exact_match("full/profile.yaml", "--model", tmp_path / "run/model") >= 0.95


@pytest.mark.parametrize("name", ["orders", "qlora", "full"])
def test_the_first_steps_lower_the_loss(name, tmp_path):
    train(name, tmp_path / "run", "max_steps=6", "logging_steps=1", "eval_steps=0")
    losses = [event["loss"] for event in events_of(tmp_path / "run", "train")]
    assert len(losses) == 6 and losses[-1] < 0.9 * losses[0], losses


@pytest.fixture
def gsm8k(tmp_path):
    """gsm8k(command, ...): with a cache that holds a small model and made-up examples under the names of the profile."""
    pytest.importorskip("pyarrow")
    if not (BINARY.parent / "lib/liblora_train_arrow.so").exists():
        pytest.skip("this build has no liblora_train_arrow.so")
    from hub_cache import make_hub_cache
    hub = tmp_path / "home/hub"
    model = hub / "models--Qwen--Qwen2.5-0.5B-Instruct"
    (model / "snapshots").mkdir(parents=True)
    (model / "refs").mkdir()
    (model / "refs/main").write_text("abc")
    (model / "snapshots/abc").symlink_to(EXAMPLES / "orders/model")
    card = {"configs": [{"config_name": "main", "data_files": [{"split": split, "path": f"main/{split}-*"} for split in ("train", "test")]}]}
    make_hub_cache(hub, "openai/gsm8k", {f"main/{split}-00000-of-00001.parquet": SHOP for split in ("train", "test")}, card)

    def run(command, *arguments):
        return good_run(command, EXAMPLES / "gsm8k/profile.yaml", "--output-dir", tmp_path / "run", *arguments,
                        environment={"HF_HOME": str(tmp_path / "home")})
    run.folder = tmp_path
    return run


def test_gsm8k_runs_as_its_readme_says(gsm8k):
    gsm8k("check")
    assert "[[" in gsm8k("tokenize", "--show", "1").stdout
    small = ["--device", "cpu", "--precision", "fp32"]
    exact = ["--exact-match", NUMBER, "--max-new-tokens", "24", "--json", *small]
    assert json.loads(gsm8k("eval", *exact).stdout)["num_answers"] == len(SHOP)
    gsm8k("train", "--max-steps", "2", *small)
    assert json.loads(gsm8k("eval", "--adapter", gsm8k.folder / "run", *exact).stdout)["exact_match"] >= 0
