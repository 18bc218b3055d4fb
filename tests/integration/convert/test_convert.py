"""`convert` as a command: what it prints and writes, its exit codes, that its profiles train, and how users of other tools are led to it.

What becomes of each key is in tests/unit/convert/tables, with the files of TOOL/, written after the shapes that their users
publish. One step of each takes long together: CI trains those of TRAINED, and
`PYTHONPATH=tests/support python tests/integration/convert/test_convert.py` all of them (tests/batteries/results/convert.txt is what
it printed).
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import yaml

from command import ROOT, expect_end, good_run, lora_train

HERE = ROOT / "tests/integration/convert"
FILES = sorted(path.relative_to(HERE).as_posix() for tool in ("axolotl", "llamafactory", "trl") for path in (HERE / tool).iterdir())
TRAINED = ["axolotl/eight_bit.yml", "llamafactory/qlora_sft.yaml", "trl/text.yaml"]
MODEL = ROOT / "examples/tiny-math/model"
USAGE = 2


def convert(file, *arguments):
    return lora_train("convert", file, *arguments, cwd=HERE)


def train_a_step(file, folder):
    """With the profile of a file; what is on the hub (models, data) is replaced. Returns the run's summary, and the keys that were refused."""
    profile = folder / "my.yaml"
    run = convert(file, "--output", profile, "--allow-refused", "--json")
    assert run.code == 0 and f"lora-train check {profile}" in run.stderr, run
    result = json.loads(run.stdout)
    said = result["profile"]
    assert yaml.safe_load(profile.read_text()) == said and result["tool"] == file.split("/")[0], run
    instead = [f"model={MODEL}", "chat_template=tokenizer", "device=cpu", "max_seq_len=128", "overlength=truncate",
               f"output_dir={folder / 'run'}", "dataset_prepared_path=null", "init_adapter=null", "add_tokens=[]", "max_steps=1", "num_epochs=null"]
    if not said.get("datasets") or any(entry["path"].startswith("example/") for entry in said["datasets"]):
        instead.append("datasets=[{path: data/chat.jsonl}]")
    if any(entry["path"].startswith("example/") for entry in said.get("eval_datasets", [])):
        instead.append("eval_datasets=[{path: data/chat.jsonl}]")
    if said.get("val_set_size", 0) >= 1:
        instead.append("val_set_size=2")
    run = good_run("train", "--profile", profile, *instead, "--quiet", cwd=HERE)
    summary = json.loads((folder / "run/summary.json").read_text())
    assert summary["status"] == "done" and summary["step"] == 1, run
    return summary, list(result["refused"])


@pytest.mark.parametrize("file", TRAINED)
def test_the_profile_trains_a_step(file, tmp_path):
    train_a_step(file, tmp_path)


def test_a_refused_key_ends_with_2_and_without_a_profile(tmp_path):
    output = tmp_path / "my.yaml"
    run = convert("axolotl/dpo.yml", "--output", output)
    assert run.code == USAGE and not output.exists() and run.stdout == "", run
    assert "3 keys are refused" in run.stderr and "rl " in run.stderr and "kept\n" in run.stderr, run
    run = convert("axolotl/dpo.yml", "--quiet", "--json", "--allow_refused=rl")
    result = json.loads(run.stdout)
    assert run.code == USAGE and result["allowed"] == ["rl"] and len(result["refused"]) == 3 and "2 keys are refused" in run.stderr, run
    assert "datasets[0].type " in run.stderr and "kept\n" not in run.stderr, run


def test_refused_keys_are_allowed_to_be_left_out(tmp_path):
    for keys in ([], ["rl,datasets[0].type", "--allow-refused", "datasets"]):
        run = convert("axolotl/dpo.yml", "--allow-refused", *keys)
        assert run.code == 0 and "# Made by lora-train convert from dpo.yml (Axolotl)." in run.stdout, run
        assert "refused, and left out because of --allow-refused\n" in run.stderr, run
    for keys, said in ((",", "3 keys are refused"), ("rl,", "2 keys are refused"), ("lora_r", "lora_r is not refused. Refused: rl, datasets"), ("r", "r is not refused.")):
        run = convert("axolotl/dpo.yml", "--allow-refused", keys)  # "," is a list, if a short one: not all
        assert run.code == USAGE and said in run.stderr and run.stdout == "", run


def test_only_a_profile_of_its_own_is_replaced(tmp_path):
    output, other = tmp_path / "my.yaml", tmp_path / "other (1).yml"
    other.write_text((HERE / "trl/minimal.yaml").read_text())
    for _ in range(2):
        assert convert("trl/minimal.yaml", "--output", output).code == 0
    written = output.read_text()
    for source, text, said in (("trl/minimal.yaml", "model: mine\n", "was not written by lora-train convert"),
                               ("trl/minimal.yaml", written + "seed: 7\n", "was edited since"),
                               (other, written, "was made from minimal.yaml, not from")):
        output.write_text(text)
        run = convert(source, "--output", output)
        assert run.code == USAGE and said in run.stderr and "--overwrite" in run.stderr and output.read_text() == text, run
    assert convert("trl/minimal.yaml", "--output", output, "--overwrite").code == 0 and output.read_text() == written
    expect_end(convert("trl/minimal.yaml", "--output", HERE / "trl/minimal.yaml", "--overwrite"), USAGE, "is the file to convert")


def test_bad_calls_say_what_is_expected():
    expected = "expected an Axolotl, LLaMA-Factory or TRL configuration"
    for arguments, said in (((), "missing; " + expected), (("trl/minimal.yaml", "--from", "mlx"), "expected axolotl, llamafactory, trl"),
                            (("results.txt",), "results.txt"), (("missing.yaml",), "missing.yaml: no such file; " + expected),
                            ((".",), "is a folder; " + expected), (("trl/minimal.yaml", "trl/text.yaml"), "one file at a time")):
        run = lora_train("convert", *arguments, cwd=HERE)
        assert run.code == USAGE and said in run.stderr and run.stdout == "", run


def test_the_table_says_what_is_lost_and_nothing_twice(tmp_path):
    file = tmp_path / "trl.yaml"
    file.write_text("model_name_or_path: m\ndataset_name: org/d\ndataset_train_split: train\nuse_peft: true\nreport_to: wandb\nfsdp: full_shard\n"
                    "fsdp_transformer_layer_cls_to_wrap: X\n")
    run = lora_train("convert", file, "--json")
    said, result = run.stderr, json.loads(run.stdout)
    assert list(result) == ["tool", "profile", "kept", "renamed", "dropped", "refused", "allowed", "defaults", "notes"], run
    assert result["defaults"]["learning_rate"] == "2.0e-5" and any(note.startswith("report_to: runs work offline") for note in result["notes"]), run
    rows = {line.split()[0]: line for line in said.splitlines() if line.startswith("  ")}
    assert "datasets: [{path: org/d" in rows["dataset_name"] and rows["dataset_train_split"].endswith("datasets, with dataset_name"), said
    assert "no live curves" in rows["report_to"] and "tensorboard --logdir" in said and "(TRL's default)" in said, said
    assert rows["fsdp"].index("the model") == rows["fsdp_transformer_layer_cls_to_wrap"].index("the model") == rows["report_to"].index("report_to: ["), said


def test_keys_of_the_file_are_words_and_keys_of_the_profile_flags(tmp_path):
    output = tmp_path / "my.yaml"
    run = convert("axolotl/lora_chat.yml", "--from", "Axolotl", "learning_rate=0.5", "--lora-r", "4", "--global_batch_size=8", "--sequence-len", "64",
                  "--lora-target-modules", "[q_proj, v_proj]", "-o", output)
    assert run.code == 0 and "(--lora-r)" in run.stderr, run
    profile = yaml.safe_load(output.read_text())
    assert (profile["learning_rate"], profile["lora_r"], profile["global_batch_size"], profile["max_seq_len"]) == (0.5, 4, 8, 64), profile
    assert profile["lora_target_modules"] == ["q_proj", "v_proj"] and "gradient_accumulation_steps" not in profile, profile
    for words, said in ((["--lora-r", "x"], '--lora-r: got "x"'), (["--lora-rr", "4"], "--lora-rr: unknown flag"), (["no_such_key=1"], "no_such_key ")):
        expect_end(convert("axolotl/lora_chat.yml", *words), USAGE, said)


@pytest.mark.parametrize("command", ["train", "check", "tokenize"])
def test_a_file_of_another_tool_says_how_it_becomes_a_profile(command, tmp_path):
    (tmp_path / "theirs.yaml").write_text("base_model: m\nsample_packing: true\nrl: dpo\nlora_rnk: 8\n")
    run = lora_train(command, "theirs.yaml", cwd=tmp_path)
    assert run.code == USAGE and run.stderr.count("convert") == 1 and "run `lora-train convert theirs.yaml`." in run.stderr, run
    assert "theirs.yaml:4: lora_rnk: unknown key" in run.stderr and run.stdout == "", run


def test_trl_s_dpo_file_trains_on_the_chosen_answers(tmp_path):
    (tmp_path / "pairs.jsonl").write_text('{"prompt": "a", "chosen": "b", "rejected": "c"}\n')
    (tmp_path / "f.yaml").write_text("model_name_or_path: m\ndataset_name: pairs.jsonl\nuse_peft: true\nbeta: 0.1\n")
    run = lora_train("dpo", "--config", "f.yaml", cwd=tmp_path)
    line = "lora-train convert f.yaml --allow-refused --output my.yaml"
    assert run.code == USAGE and line in run.stderr, run
    assert lora_train(*line.split()[1:], cwd=tmp_path).code == 0
    run = lora_train("check", "--no-files", "my.yaml", cwd=tmp_path)
    assert run.code == 0 and "completion: chosen" in run.stdout and "loss_on: completion" in run.stdout, run


def test_the_lists_of_keys_are_what_the_tools_declare():
    wheels = os.environ.get("LORA_TRAIN_FOREIGN_WHEELS")
    if not wheels:
        pytest.skip("LORA_TRAIN_FOREIGN_WHEELS names no folder with the wheels; scripts/foreign_keys.py says how to get them")
    done = subprocess.run([sys.executable, ROOT / "scripts/foreign_keys.py", wheels, "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


if __name__ == "__main__":
    commit = subprocess.run(["git", "rev-parse", "--short=8", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    print(f"# python tests/integration/convert/test_convert.py at {commit}, on a CPU: one step of examples/tiny-math/model under each profile")
    for file in FILES:
        with tempfile.TemporaryDirectory() as folder:
            summary, refused = train_a_step(file, Path(folder))
        print(f"{file:34} one step, loss {summary['train_loss']:.4f}" + (f", without {', '.join(refused)}" if refused else ""), flush=True)
