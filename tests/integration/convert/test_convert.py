"""`convert` makes profiles of other tools' files: TOOL/*.yaml, written after the shapes that their users publish.

One step of each takes long together: CI trains those of TRAINED, and `PYTHONPATH=tests/support python tests/integration/convert/test_convert.py`
all of them (tests/batteries/results/convert.txt is what it printed).

expected.json says which part of the table each key stands in, and what the profile says. After a change on purpose:
LORA_TRAIN_WRITE_EXPECTED=1 pytest tests/integration/convert/test_convert.py -k table, then read the difference.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import yaml

from command import ROOT, lora_train

HERE = ROOT / "tests/integration/convert"
FILES = sorted(path.relative_to(HERE).as_posix() for tool in ("axolotl", "llamafactory", "trl") for path in (HERE / tool).iterdir())
EXPECTED = json.loads((HERE / "expected.json").read_text()) if (HERE / "expected.json").exists() else {}
PARTS = ("kept", "renamed", "dropped", "refused")
TRAINED = ["axolotl/lora_chat.yml", "axolotl/eight_bit.yml", "llamafactory/lora_sft.yaml", "llamafactory/qlora_sft.yaml", "trl/qlora.yaml", "trl/text.yaml"]
MODEL = ROOT / "examples/tiny-math/model"
USAGE = 2


def convert(file, *arguments):
    return lora_train("convert", file, *arguments, cwd=HERE)


def test_there_are_ten_files_of_each_tool():
    assert [sum(file.startswith(tool) for file in FILES) for tool in ("axolotl/", "llamafactory/", "trl/")] == [10, 10, 10]


def test_the_table_and_the_profile_of_each_file():
    found = {}
    for file in FILES:
        run = convert(file, "--json")
        result = json.loads(run.stdout)
        found[file] = {"profile": result["profile"], **{part: list(result[part]) for part in PARTS}}
        assert run.code == (USAGE if result["refused"] else 0), run
        assert result["tool"] == file.split("/")[0], run
    if os.environ.get("LORA_TRAIN_WRITE_EXPECTED"):
        (HERE / "expected.json").write_text(json.dumps(found, indent=1) + "\n")
        EXPECTED.update(found)
    for file in FILES:
        assert found[file] == EXPECTED[file], file


def trainable(file, folder):
    """The profile of a file, written; what the file cannot be checked for (models and data of the hub) is replaced."""
    profile = folder / "my.yaml"
    run = convert(file, "--output", profile, "--allow-refused")
    assert run.code == 0 and f"lora-train check {profile}" in run.stderr, run
    said = EXPECTED[file]["profile"]
    instead = [f"model={MODEL}", "chat_template=tokenizer", "device=cpu", "max_seq_len=128", "overlength=truncate",
               f"output_dir={folder / 'run'}", "dataset_prepared_path=null", "init_adapter=null", "add_tokens=[]"]
    if not said.get("datasets") or any(entry["path"].startswith("example/") for entry in said["datasets"]):
        instead.append("datasets=[{path: data/chat.jsonl}]")
    if any(entry["path"].startswith("example/") for entry in said.get("eval_datasets", [])):
        instead.append("eval_datasets=[{path: data/chat.jsonl}]")
    if said.get("val_set_size", 0) >= 1:
        instead.append("val_set_size=2")
    return ["--profile", profile, *instead]


@pytest.mark.parametrize("file", FILES)
def test_the_profile_is_one(file, tmp_path):
    run = lora_train("check", *trainable(file, tmp_path), cwd=HERE)
    assert run.code == 0, run


def train_a_step(file, folder):
    run = lora_train("train", *trainable(file, folder), "max_steps=1", "num_epochs=null", "--quiet", cwd=HERE)
    assert run.code == 0, run
    summary = json.loads((folder / "run/summary.json").read_text())
    assert summary["status"] == "done" and summary["step"] == 1, run
    return summary


@pytest.mark.parametrize("file", TRAINED)
def test_the_profile_trains_a_step(file, tmp_path):
    train_a_step(file, tmp_path)


@pytest.mark.parametrize("tool", ["axolotl", "llamafactory", "trl"])
def test_any_mix_of_keys_gives_a_profile_without_contradictions(tool, tmp_path):
    random.seed(tool)
    values = {}
    for path in sorted((HERE / tool).iterdir()):
        for key, value in yaml.safe_load(path.read_text()).items():
            values.setdefault(key, []).append(value)
    source, profile = tmp_path / "source.json", tmp_path / "my.yaml"
    for _ in range(25):
        mix = {key: random.choice(given) for key, given in values.items() if random.random() < 0.4}
        source.write_text(json.dumps(mix))
        run = convert(source, "--from", tool, "--allow-refused", "--output", profile)
        assert run.code == 0, (mix, run)
        run = lora_train("check", "--no-files", "--profile", profile, "model=m", "datasets=[d]", cwd=HERE)
        assert run.code == 0, (mix, run)


def test_a_refused_key_ends_with_2_and_without_a_profile(tmp_path):
    output = tmp_path / "my.yaml"
    run = convert("axolotl/dpo.yml", "--output", output)
    assert run.code == USAGE and not output.exists() and run.stdout == "", run
    assert "3 keys are refused" in run.stderr and "rl " in run.stderr, run
    quiet = convert("axolotl/dpo.yml", "--quiet")
    assert quiet.code == USAGE and "rl " in quiet.stderr and "kept" not in quiet.stderr, quiet
    run = convert("axolotl/dpo.yml", "--allow-refused")
    assert run.code == 0 and "# Made by lora-train convert from dpo.yml (Axolotl)." in run.stdout, run
    for names in (",", "rl,"):  # a list, if a short one: not all
        run = convert("axolotl/dpo.yml", "--allow-refused", names)
        assert run.code == USAGE and f"{3 if names == ',' else 2} keys are refused" in run.stderr, run


def factory(folder, rows, columns=None, **keys):
    (folder / "data").mkdir(exist_ok=True)
    (folder / "data/rows.json").write_text(json.dumps(rows))
    entry = dict({"file_name": "rows.json"}, **({"columns": columns} if columns else {}), **keys.pop("entry", {}))
    (folder / "data/dataset_info.json").write_text(json.dumps({"mine": entry}))
    file = folder / "factory.yaml"
    file.write_text(json.dumps({"model_name_or_path": "m", "stage": "sft", "finetuning_type": "lora", "dataset": "mine", **keys}))
    return lora_train("convert", file, "--json", cwd=folder)


ROW = {"instruction": "a", "input": "b", "output": "c"}


def test_a_column_that_llama_factory_does_not_read_stays_unread(tmp_path):
    assert factory(tmp_path, [ROW]).code == 0
    for rows, columns, name in [([dict(ROW, system="s")], None, "system"), ([dict(ROW, history=[])], None, "history"),
                                ([ROW], {"prompt": "instruction", "response": "output"}, "input")]:
        run = factory(tmp_path, rows, columns)
        [dataset] = json.loads(run.stdout)["profile"]["datasets"]
        assert run.code == 0 and dataset["field_map"][name] is None, run
    run = factory(tmp_path, [dict(ROW, system="s")], {"prompt": "instruction", "query": "input", "response": "output", "system": "system"})
    assert run.code == 0, run


def test_llama_factory_s_other_hubs_and_thinking_templates(tmp_path):
    run = factory(tmp_path, [ROW], entry={"ms_hub_url": "org/name", "file_name": ""})
    assert run.code == USAGE and "ms_hub_url" in json.loads(run.stdout)["refused"]["dataset"], run
    run = factory(tmp_path, [ROW], template="qwen3_nothink")
    assert run.code == 0 and json.loads(run.stdout)["profile"]["chat_template"] == "chatml", run
    run = factory(tmp_path, [ROW], template="qwen3", enable_thinking=False)
    assert run.code == USAGE and "enable_thinking" in json.loads(run.stdout)["refused"], run
    assert factory(tmp_path, [ROW], template="qwen3", enable_thinking=True).code == 0


def test_an_end_token_that_is_the_model_s_own_is_no_reason_to_refuse(tmp_path):
    source = tmp_path / "trl.yaml"
    for token, is_refused in ("<|im_end|>", False), ("<|endoftext|>", True):
        source.write_text(yaml.safe_dump({"model_name_or_path": str(MODEL), "dataset_name": "data/texts.jsonl", "eos_token": token}))
        run = convert(source, "--from", "trl", "--json")
        [table] = run.json_lines()
        assert ("eos_token" in table["refused"]) == is_refused and ("eos_token" in table["dropped"]) != is_refused, run


def test_axolotl_s_special_tokens_and_watchdog(tmp_path):
    source = tmp_path / "a.yml"
    text = {"base_model": str(MODEL), "adapter": "lora", "datasets": [{"path": "data/chat.jsonl", "type": "chat_template"}],
            "loss_watchdog_threshold": 5.0, "loss_watchdog_patience": 3}
    for token, is_refused in ("<|im_end|>", False), ("</s>", True):
        source.write_text(yaml.safe_dump(dict(text, special_tokens={"eos_token": token})))
        [table] = convert(source, "--json").json_lines()
        assert ("special_tokens" in table["refused"]) == is_refused, table
        assert {"loss_watchdog_threshold", "loss_watchdog_patience"} <= set(table["dropped"]), table


def test_trl_s_launcher_and_its_other_trainers(tmp_path):
    source = tmp_path / "t.yaml"
    text = {"model_name_or_path": str(MODEL), "dataset_name": "data/chat.jsonl", "accelerate_config": "zero2", "num_processes": 4}
    source.write_text(yaml.safe_dump(text))
    run = convert(source, "--from", "trl", "--json")
    [table] = run.json_lines()
    assert run.code == 0 and {"accelerate_config", "num_processes"} <= set(table["dropped"]), run
    source.write_text(yaml.safe_dump(dict(text, beta=0.1, loss_type="sigmoid", max_prompt_length=64)))
    run = convert(source, "--from", "trl", "--json")
    [table] = run.json_lines()
    assert run.code == USAGE and set(table["refused"]) == {"beta", "loss_type", "max_prompt_length"}, run
    assert all("preference training" in text for text in table["refused"].values()), run


def test_examples_with_tools_take_the_model_s_own_template(tmp_path):
    columns = {"prompt": "instruction", "query": "input", "response": "output"}
    for row, more, ours in (ROW, {}, "qwen2.5"), (dict(ROW, tools="[]"), {"tools": "tools"}, "tokenizer"):
        run = factory(tmp_path, [row], dict(columns, **more), template="qwen")
        assert run.code == 0 and json.loads(run.stdout)["profile"]["chat_template"] == ours, run


def test_a_file_that_exports_is_a_merge(tmp_path):
    file = tmp_path / "merge.yaml"
    file.write_text("model_name_or_path: m\nadapter_name_or_path: saves/x\ntemplate: qwen\nfinetuning_type: lora\nexport_dir: out\n")
    run = lora_train("convert", file, "--from", "llamafactory")
    assert run.code == USAGE and "lora-train merge --model m --adapter saves/x --output-dir out" in run.stderr, run


def test_only_a_profile_of_its_own_is_replaced(tmp_path):
    output = tmp_path / "my.yaml"
    for _ in range(2):
        assert convert("trl/minimal.yaml", "--output", output).code == 0
    written = output.read_text()
    for text, said in (("model: mine\n", "was not written by lora-train convert"), (written + "seed: 7\n", "was edited since"),
                       (written.replace("# Hash", "# hash"), "was edited since"), (written.splitlines()[0], "was edited since")):
        output.write_text(text)
        run = convert("trl/minimal.yaml", "--output", output)
        assert run.code == USAGE and said in run.stderr and "--overwrite" in run.stderr and output.read_text() == text, run
    assert convert("trl/minimal.yaml", "--output", output, "--overwrite").code == 0 and output.read_text() == written
    run = convert("trl/minimal.yaml", "--output", HERE / "trl/minimal.yaml", "--overwrite")
    assert run.code == USAGE and "is the file to convert" in run.stderr, run


def test_bad_calls_say_what_is_expected(tmp_path):
    unclear = tmp_path / "unclear.yaml"
    unclear.write_text("learning_rate: 1.0e-4\n")
    for arguments, said in (((), "missing; expected an Axolotl, LLaMA-Factory or TRL configuration"), (("trl/minimal.yaml", "--from", "mlx"), "expected axolotl, llamafactory, trl"),
                            ((unclear,), "Which tool is it from?"), (("missing.yaml",), "missing.yaml")):
        run = convert(*arguments) if arguments else lora_train("convert")
        assert run.code in (USAGE, 5) and said in run.stderr, run


def test_overrides_are_set_in_the_file_before_it_is_converted(tmp_path):
    run = convert("trl/minimal.yaml", "learning_rate=0.5", "lr_scheduler_type=cosine", "--json")
    profile = json.loads(run.stdout)["profile"]
    assert run.code == 0 and profile["learning_rate"] == 0.5 and profile["lr_scheduler_type"] == "cosine", run
    assert "one file at a time" in convert("trl/minimal.yaml", "trl/text.yaml").stderr
    assert convert("trl/minimal.yaml", "no_such_key=1").code == USAGE


def test_the_table_says_what_is_lost_and_nothing_twice(tmp_path):
    file = tmp_path / "trl.yaml"
    file.write_text("model_name_or_path: m\ndataset_name: org/d\ndataset_train_split: train\nuse_peft: true\nreport_to: wandb\nfsdp: full_shard\n"
                    "fsdp_transformer_layer_cls_to_wrap: X\n")
    said = lora_train("convert", file).stderr
    rows = {line.split()[0]: line for line in said.splitlines() if line.startswith("  ")}
    assert "datasets: [{path: org/d" in rows["dataset_name"] and rows["dataset_train_split"].endswith("datasets, with dataset_name"), said
    assert "no live curves" in rows["report_to"] and "tensorboard --logdir" in said and "wandb sync" in said, said
    assert "must fit on one GPU (QLoRA: base_precision: nf4); several GPUs: --nproc N" in rows["fsdp"], said
    assert rows["fsdp"].index("the model") == rows["fsdp_transformer_layer_cls_to_wrap"].index("the model") == rows["report_to"].index("report_to: ["), said
    file.write_text("base_model: m\ndatasets: [{path: d.jsonl, type: chat_template}]\nadapter: lora\nlr_scheduler: linear\ncosine_min_lr_ratio: 0.2\n")
    run = lora_train("convert", file, "--json", "--allow-refused")
    assert "min_lr_ratio" not in json.loads(run.stdout)["profile"] and "cosine_min_lr_ratio" in json.loads(run.stdout)["dropped"], run


def axolotl(folder, datasets, *arguments, **keys):
    file = folder / "axolotl.yml"
    file.write_text(yaml.safe_dump({"base_model": str(MODEL), "adapter": "lora", "lora_r": 4, "lora_target_linear": True, "datasets": datasets, **keys}))
    return lora_train("convert", file, *arguments, cwd=folder)


def is_readable(folder, profile, *settings):
    run = lora_train("tokenize", profile, "--show", "1", "chat_template=chatml", "max_seq_len=128", "dataset_prepared_path=null", *settings, cwd=folder)
    assert run.code == 0, run
    return run.stdout + run.stderr


def rows(folder, *given):
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in given))


def test_names_of_speakers_go_into_field_map(tmp_path):
    rows(tmp_path, {"turns": [{"who": "client", "text": "1 + 1"}, {"who": "model", "text": "2"}]})
    entry = {"path": "rows.jsonl", "type": "chat_template", "field_messages": "turns", "message_property_mappings": {"role": "who", "content": "text"}}
    run = axolotl(tmp_path, [dict(entry, roles={"user": ["human", "client"], "assistant": ["model"]})], "--output", "my.yaml")
    assert run.code == 0, run
    assert yaml.safe_load((tmp_path / "my.yaml").read_text())["datasets"][0]["field_map"] == {
        "conversations": "turns", "from": "who", "value": "text", "user": "client", "assistant": "model"}
    assert "<|im_start|>assistant" in is_readable(tmp_path, "my.yaml")
    run = axolotl(tmp_path, [dict(entry, roles={"user": ["client", "guest"]})])
    assert run.code == USAGE and "Rename guest in the examples" in run.stderr, run
    tags = {"role_tag": "who", "content_tag": "text", "user_tag": "client", "assistant_tag": "model"}
    run = factory(tmp_path, [{"turns": [{"who": "client", "text": "1 + 1"}, {"who": "model", "text": "2"}]}], {"messages": "turns"},
                  entry={"formatting": "sharegpt", "tags": tags})
    mapped = json.loads(run.stdout)["profile"]["datasets"][0]["field_map"]
    assert run.code == 0 and mapped["user"] == "client" and mapped["assistant"] == "model", run
    run = factory(tmp_path, [{}], {"messages": "turns"}, entry={"formatting": "sharegpt", "tags": dict(tags, system_tag="boss")})
    assert run.code == USAGE and "boss (system_tag)" in run.stdout, run


def test_a_prompt_of_axolotl_s_own_is_converted_exactly_or_left_out(tmp_path):
    rows(tmp_path, {"q": "1 + 1", "a": "2"})
    plain = {"field_instruction": "q", "field_output": "a", "format": "{instruction}", "no_input_format": "{instruction}"}
    run = axolotl(tmp_path, [{"path": "rows.jsonl", "type": plain}], "--output", "my.yaml")
    assert run.code == 0, run
    assert yaml.safe_load((tmp_path / "my.yaml").read_text())["datasets"] == [
        {"path": "rows.jsonl", "type": "prompt_completion", "field_map": {"prompt": "q", "completion": "a"}}]
    is_readable(tmp_path, "my.yaml")
    for changed in ({"format": "[INST] {instruction} [/INST]"}, {"no_input_format": None}, {"system_prompt": "Be brief."}):
        run = axolotl(tmp_path, [{"path": "rows.jsonl", "type": {**plain, **changed}}, {"path": "chat.jsonl", "type": "chat_template"}], "--json")
        assert run.code == USAGE and "a format of its own" in json.loads(run.stdout)["refused"]["datasets[0].type"], run
        assert [entry["path"] for entry in json.loads(run.stdout)["profile"]["datasets"]] == ["chat.jsonl"], run
    run = axolotl(tmp_path, [{"path": "rows.jsonl", "type": {**plain, "format": "Q: {instruction}"}}], "--allow-refused")
    assert run.code == 0 and "datasets:" not in run.stdout and "no dataset is left" in run.stderr, run


def test_a_template_in_the_file_becomes_a_file_by_hand(tmp_path):
    data = [{"path": "rows.jsonl", "type": "chat_template"}]
    run = axolotl(tmp_path, data, chat_template="jinja", chat_template_jinja="{% for m in messages %}\n{{ m.content }}{% endfor %}\n")
    assert run.code == USAGE and "Save the text as a .jinja file, and name that here" in run.stderr, run
    run = axolotl(tmp_path, [dict(data[0], chat_template="llama3"), dict(data[0], chat_template="chatml")])
    assert run.code == USAGE and "datasets[1].chat_template" in run.stderr, run


def test_a_refused_dataset_is_no_reason_to_refuse_max_samples(tmp_path):
    run = factory(tmp_path, [ROW], entry={"ranking": True}, max_samples=5)
    assert list(json.loads(run.stdout)["refused"]) == ["dataset"], run


def test_examples_with_pairs_of_answers_name_the_line_for_the_chosen_ones(tmp_path):
    rows(tmp_path, {"prompt": "q", "chosen": "a", "rejected": "b"})
    run = lora_train("tokenize", f"model={MODEL}", "datasets=[rows.jsonl]", "dataset_prepared_path=null", cwd=tmp_path)
    assert run.code and "field_map: {completion: chosen}" in run.stderr and "layouts and their keys" not in run.stderr, run
    run = lora_train("tokenize", f"model={MODEL}", "datasets=[{path: rows.jsonl, field_map: {completion: chosen}}]", "max_seq_len=64",
                     "dataset_prepared_path=null", cwd=tmp_path)
    assert run.code == 0, run


def test_trl_s_split_name_is_no_flag_and_a_flag_is_named_once(tmp_path):
    (tmp_path / "chats").mkdir()
    for split in ("train", "test"):
        (tmp_path / f"chats/{split}.jsonl").write_text('{"text": "abc"}\n')
    run = lora_train("check", "--dataset_name", "chats", "--dataset_train_split", "train", f"model={MODEL}", cwd=tmp_path)
    assert run.code == USAGE and "--dataset_train_split: is a key of TRL: run `lora-train convert FILE`." in run.stderr, run
    run = lora_train("check", "--lora-r", "x", f"model={MODEL}", cwd=tmp_path)
    assert run.code == USAGE and '--lora-r: got "x"' in run.stderr, run


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
            summary = train_a_step(file, Path(folder))
        refused = EXPECTED[file]["refused"]
        print(f"{file:34} one step, loss {summary['train_loss']:.4f}" + (f", without {', '.join(refused)}" if refused else ""), flush=True)
