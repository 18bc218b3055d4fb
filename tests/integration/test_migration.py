"""What users of Axolotl, TRL and LLaMA-Factory try in their first hour: their files, or single keys of them in a profile."""

import json

import pytest

from conftest import ROOT, lora_train

USAGE = 2


def convert(folder, text, *arguments, name="theirs.yaml"):
    (folder / name).write_text(text)
    return lora_train("convert", name, *arguments, cwd=folder)


def check(folder, text):
    (folder / "mine.yaml").write_text(text)
    return lora_train("check", "--no-files", "mine.yaml", cwd=folder)


AXOLOTL = "base_model: m\nadapter: lora\nlora_r: 8\nlora_alpha: 16\nlora_target_linear: true\n"
CHAT = "type: chat_template"


@pytest.mark.parametrize("datasets", [
    f"datasets:\n- {{path: a.jsonl, {CHAT}, chat_template: chatml}}\n- {{path: b.jsonl, {CHAT}}}\n",
    f"datasets:\n- {{path: b.jsonl, {CHAT}}}\n- {{path: a.jsonl, {CHAT}, chat_template: chatml}}\n",
    f"datasets: [{{path: a.jsonl, {CHAT}, chat_template: chatml}}]\ntest_datasets: [{{path: b.jsonl, {CHAT}}}]\n"])
def test_a_template_of_some_datasets_is_not_that_of_all(datasets, tmp_path):
    run = convert(tmp_path, AXOLOTL + datasets)
    assert run.code == USAGE and "A run has one template for all data" in run.stderr, run
    assert "datasets[" in run.stderr and "names none" in run.stderr, run


def test_a_template_that_all_datasets_name_is_the_run_s(tmp_path):
    entries = "".join(f"- {{path: {name}.jsonl, {CHAT}, chat_template: chatml}}\n" for name in "ab")
    for more in ("", "- {path: c.txt, type: completion}\n"):
        run = convert(tmp_path, AXOLOTL + "datasets:\n" + entries + more)
        assert run.code == 0 and "chat_template: chatml" in run.stdout, run


def test_trl_s_false_for_assistant_only_loss_is_no_default(tmp_path):
    run = check(tmp_path, "model: m\ndatasets: [d.jsonl]\nassistant_only_loss: false\n")
    assert run.code == USAGE and "mine.yaml:3: assistant_only_loss: " in run.stderr and "loss_on: all" in run.stderr, run
    assert check(tmp_path, "model: m\ndatasets: [d.jsonl]\nassistant_only_loss: true\n").code == 0


@pytest.mark.parametrize("row, loss_on", [({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}, "all"),
                                          ({"prompt": "a", "completion": "b"}, "completion")])
def test_completion_only_loss_says_nothing_of_chats(row, loss_on, tmp_path):
    (tmp_path / "d.jsonl").write_text(json.dumps(row) + "\n")
    run = convert(tmp_path, "model_name_or_path: m\ndataset_name: d.jsonl\nuse_peft: true\ncompletion_only_loss: true\nassistant_only_loss: false\n")
    assert run.code == 0 and f"\nloss_on: {loss_on}" in run.stdout, run


MIXED = "base_model: m\nsequence_len: 512\nwandb_project: p\nflash_attention: true\ndatasets: [d.jsonl]\n"


def test_a_typo_among_other_tools_names_is_named(tmp_path):
    run = check(tmp_path, MIXED + "lora_rnk: 8\nlearning_rat: 1\n")
    assert run.code == USAGE and "mine.yaml:6: lora_rnk: unknown key. Did you mean" in run.stderr and "learning_rat: unknown key" in run.stderr, run
    assert run.stderr.rstrip().splitlines()[-1].startswith("lora-train convert mine.yaml makes a profile"), run


def test_one_refused_key_among_other_tools_names_has_its_reason(tmp_path):
    for line, said in (("neftune_noise_alpha: 5", "Noise on embeddings"), ("special_tokens: {eos_token: x}", "eos_token")):
        run = check(tmp_path, MIXED + line + "\n")
        assert run.code == USAGE and f"mine.yaml:6: {line.split(':')[0]}: " in run.stderr and said in run.stderr, run
    run = check(tmp_path, MIXED + "neftune_noise_alpha: 5\nrl: dpo\n")
    assert "is a file of Axolotl" in run.stderr and "lora-train convert mine.yaml --output my.yaml" in run.stderr, run


@pytest.mark.parametrize("text", ["model: m\ndatasets: [d.jsonl]\nlora_r: 8\nwandb_project: p\n", "extends: base.yaml\nlora_r: 8\n", None])
def test_a_profile_is_not_converted_again(text, tmp_path):
    if text is None:
        text = convert(tmp_path, AXOLOTL + f"datasets: [{{path: a.jsonl, {CHAT}}}]\n").stdout
    for more in ([], ["--from", "axolotl"]):
        run = convert(tmp_path, text, *more)
        assert run.code == USAGE and run.stdout == "" and "is a profile of lora-train already" in run.stderr and run.stderr.count("\n") == 1, run


def test_a_script_s_configuration_points_to_the_table(tmp_path):
    run = convert(tmp_path, "model: m\nr: 8\ntarget_modules: [q_proj]\ntrain_dataset: d.jsonl\nnum_train_epochs: 1\n")
    assert run.code == USAGE and "configuration of a script (r, target_modules, train_dataset)" in run.stderr and "docs/convert.md" in run.stderr, run


ANSWERS = "model_name_or_path: m\nadapter_name_or_path: saves/x\ntemplate: qwen\ninfer_backend: huggingface\ntrust_remote_code: true\n"
PREDICTS = ("model_name_or_path: m\nadapter_name_or_path: saves/x\nstage: sft\ndo_predict: true\nfinetuning_type: lora\neval_dataset: d\ntemplate: qwen\n"
            "output_dir: out\npredict_with_generate: true\n")


@pytest.mark.parametrize("text, lines", [
    (ANSWERS, ["lora-train chat --model m --adapter saves/x;", "lora-train generate --model m --adapter saves/x --prompts ROWS.jsonl --output answers.jsonl"]),
    (ANSWERS.replace("adapter_name_or_path: saves/x\n", ""), ["lora-train chat --model m;"]),
    (PREDICTS, ["lora-train generate --model m --adapter saves/x --prompts ROWS.jsonl --output out/answers.jsonl", "lora-train eval --model m --adapter saves/x --eval-data"])])
def test_a_file_that_answers_gives_the_lines_for_it(text, lines, tmp_path):
    for run in (convert(tmp_path, text, "--output", "my.yaml"), check(tmp_path, text)):
        assert run.code == USAGE and "trains nothing" in run.stderr and all(line in run.stderr for line in lines), run
        assert run.stderr.count("\n") == 1 and not (tmp_path / "my.yaml").exists(), run


PROFILE = "model: m\ndatasets: [d.jsonl]\n"


@pytest.mark.parametrize("line", ["group_by_length: false", "stage: sft", "do_train: true", "bias: none", "task_type: CAUSAL_LM", "inference_mode: false",
                                  "dataset_text_field: text", "data_seed: 42", "seed: 7\ndata_seed: 7", "packing_strategy: bfd", "deepspeed: ds_z2.json",
                                  "plugins: [axolotl.integrations.liger.LigerPlugin]", "special_tokens: {pad_token: x}"])
def test_a_foreign_value_that_changes_nothing_is_a_note(line, tmp_path):
    run = check(tmp_path, PROFILE + line + "\n")
    assert run.code == 0 and f"{line.splitlines()[-1].split(':')[0]}: has no effect" in run.stderr, run


@pytest.mark.parametrize("line, said", [
    ("group_by_length: true", "not grouped"), ("stage: dpo", "Preference training"), ("data_seed: 5", "Set seed"), ("bias: lora_only", "biases are not trained"),
    ("packing_strategy: wrapped", "documents stay whole"), ("packing_strategy: bfd_split", "documents stay whole"), ("template: qwen", "chat_template: qwen2.5"),
    ("template: nope", "chat_template: tokenizer"), ("dataset_dir: data", "dataset_info.json"), ("early_stopping_steps: 3", "early_stopping_patience: 3"), ("plugins: [mine.Plugin]", "mine.Plugin changes the training")])
def test_a_foreign_value_that_changes_something_has_its_reason(line, said, tmp_path):
    run = check(tmp_path, PROFILE + line + "\n")
    assert run.code == USAGE and f"mine.yaml:3: {line.split(':')[0]}: " in run.stderr and said in run.stderr and "unknown key" not in run.stderr, run


def test_a_deepspeed_file_is_looked_at(tmp_path):
    run = check(tmp_path, PROFILE + "deepspeed: ds.json\n")
    assert run.code == 0 and "deepspeed: has no effect" in run.stderr and "was not found, so nobody looked for an optimizer" in run.stderr, run
    (tmp_path / "ds.json").write_text('{"optimizer": {"type": "Lion"}}')
    run = check(tmp_path, PROFILE + "deepspeed: ds.json\n")
    assert run.code == USAGE and "mine.yaml:3: deepspeed: its configuration has its own optimizer" in run.stderr, run


def test_train_dataset_is_datasets_and_a_foreign_flag_has_its_reason(tmp_path):
    assert check(tmp_path, "model: m\ntrain_dataset: d.jsonl\n").code == 0
    run = lora_train("check", "--no-files", "--model", "m", "--train-data", "d.jsonl", "--neftune_noise_alpha", "5", cwd=tmp_path)
    assert run.code == USAGE and "--neftune_noise_alpha: Noise on embeddings" in run.stderr, run
    run = lora_train("check", "--no-files", "--model", "m", "--train-data", "d.jsonl", "--lora-mlp-kernl", "5", cwd=tmp_path)
    assert run.code and "unknown flag" in run.stderr and "lora-mlp-kernel" not in run.stderr, run


def factory(folder, text, **datasets):
    """Converts a file of LLaMA-Factory with these entries of dataset_info.json, each with its rows."""
    (folder / "data").mkdir(exist_ok=True)
    for name, (entry, rows) in datasets.items():
        (folder / f"data/{name}.json").write_text(json.dumps(rows))
        entry.setdefault("file_name", f"{name}.json")
    (folder / "data/dataset_info.json").write_text(json.dumps({name: entry for name, (entry, rows) in datasets.items()}))
    return convert(folder, f"model_name_or_path: m\nstage: sft\nfinetuning_type: lora\ndataset: {','.join(datasets)}\ntemplate: qwen\n{text}", "--json")


def turns(*given, role="from", content="value"):
    return [{"conversations": [{role: who, content: said} for who, said in given]}]


def test_rows_with_function_calls_take_the_model_s_own_template(tmp_path):
    calls = turns(("human", "a"), ("function_call", "{}"), ("observation", "1"), ("gpt", "b"))
    for rows, ours in ((calls, "tokenizer"), (turns(("human", "a"), ("gpt", "b")), "qwen2.5")):
        run = factory(tmp_path, "", d=({"formatting": "sharegpt"}, rows))
        assert json.loads(run.stdout)["profile"]["chat_template"] == ours, run


def test_all_problems_of_datasets_come_at_once(tmp_path):
    run = factory(tmp_path, "", a=({"ranking": True}, [{"instruction": "a", "output": "b"}]), b=({}, [{"instruction": "a", "output": "b", "system": "s", "history": []}]),
                  c=({"formatting": "openai", "columns": {"messages": "conversations"}}, turns(("user", "a"), ("assistant", "b"), role="role", content="content")))
    said = json.loads(run.stdout)["refused"]["dataset"]
    assert run.code == USAGE and "a has pairs of answers" in said and "b has columns system, history" in said, run
    assert "c has messages with role and content, where LLaMA-Factory looks for from and value" in said and '"role_tag": "role"' in said, run


def test_max_samples_is_that_of_each_dataset(tmp_path):
    rows = [{"instruction": "a", "output": "b"}] * 3
    result = json.loads(factory(tmp_path, "max_samples: 2\n", a=({}, rows), b=({}, rows[:2])).stdout)
    assert [entry.get("max_samples") for entry in result["profile"]["datasets"]] == [2, None] and "max_samples" in result["renamed"], result
    result = json.loads(factory(tmp_path, "", a=({"num_samples": 2}, rows)).stdout)
    assert "jq '.[:2]'" in result["refused"]["dataset[a].num_samples"], result


def test_what_is_refused_is_said_truly(tmp_path):
    rows = ({}, [{"instruction": "a", "output": "b"}])
    result = json.loads(factory(tmp_path, "pref_beta: 0.1\ncreate_new_adapter: true\nlora_target: q_proj,v_proj,lm_head\nuse_rslora: true\nuse_dora: true\n"
                                          "loraplus_lr_embedding: 1e-6\n", a=rows).stdout)
    assert "says nothing without adapter_name_or_path" in result["dropped"]["create_new_adapter"], result
    assert result["refused"]["lora_target"].startswith("lm_head gets no adapter"), result
    assert "set use_rslora" not in result["refused"]["use_dora"] and "which get none" in result["dropped"]["loraplus_lr_embedding"], result
    run = convert(tmp_path, "model_name_or_path: m\nstage: dpo\nfinetuning_type: lora\npref_beta: 0.1\n", "--json")
    assert json.loads(run.stdout)["dropped"]["pref_beta"] == "belongs to stage, which is refused", run


def test_a_misspelt_key_of_a_dataset_and_the_arithmetic_of_evaluations(tmp_path):
    run = convert(tmp_path, AXOLOTL + f"datasets: [{{pth: a.jsonl, {CHAT}, fields_messages: m, temperature: 1}}]\n", "--json")
    refused = json.loads(run.stdout)["refused"]
    assert 'Did you mean "path"?' in refused["datasets[0].pth"] and 'Did you mean "field_messages"?' in refused["datasets[0].fields_messages"], run
    assert "Change the rows instead" in refused["datasets[0].temperature"], run
    run = convert(tmp_path, AXOLOTL + f"datasets: [{{path: a.jsonl, {CHAT}}}]\nval_set_size: 0.1\nevals_per_epoch: 4\nnum_epochs: 3\n")
    assert "# evals_per_epoch: 1 / (4 an epoch x 3 epochs)" in run.stdout, run


def test_trl_s_dpo_file_trains_on_the_chosen_answers(tmp_path):
    (tmp_path / "pairs.jsonl").write_text('{"prompt": "a", "chosen": "b", "rejected": "c"}\n')
    text = "model_name_or_path: m\ndataset_name: pairs.jsonl\nuse_peft: true\nbeta: 0.1\n"
    (tmp_path / "f.yaml").write_text(text)
    run = lora_train("dpo", "--config", "f.yaml", cwd=tmp_path)
    line = "lora-train convert f.yaml --allow-refused --output my.yaml"
    assert run.code == USAGE and line in run.stderr, run
    assert lora_train(*line.split()[1:], cwd=tmp_path).code == 0
    assert "completion: chosen" in (tmp_path / "my.yaml").read_text() and "loss_on: completion" in (tmp_path / "my.yaml").read_text()
    assert lora_train("check", "--no-files", "my.yaml", cwd=tmp_path).code == 0


def test_a_folder_of_splits_names_train(tmp_path):
    (tmp_path / "chats").mkdir()
    for split in ("dev", "test", "train"):
        (tmp_path / f"chats/{split}.jsonl").write_text('{"text": "abc"}\n')
    run = lora_train("tokenize", f"model={ROOT / 'examples/tiny-math/model'}", "datasets=[chats]", "max_seq_len=64", cwd=tmp_path)
    assert run.code and "split: train}]" in run.stderr, run
