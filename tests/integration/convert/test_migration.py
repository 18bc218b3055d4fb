"""What users of Axolotl, TRL and LLaMA-Factory try in their first hour: their files, or single keys of them in a profile."""

import json
import re

import pytest
import yaml

from command import ROOT, lora_train

MODEL = ROOT / "examples/tiny-math/model"
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


def test_a_file_of_another_tool_is_told_once_and_a_typo_in_it_too(tmp_path):
    run = check(tmp_path, MIXED + "lora_rnk: 8\nlearning_rat: 1\n")
    assert run.code == USAGE and "mine.yaml:6: lora_rnk: unknown key. Did you mean" in run.stderr and "learning_rat: unknown key" in run.stderr, run
    assert run.stderr.count("lora-train convert mine.yaml") == 1 and "mine.yaml:3: wandb_project" in run.stderr, run


@pytest.mark.parametrize("text", ["model: m\ndatasets: [d.jsonl]\nlora_r: 8\nwandb_project: p\n", "extends: base.yaml\nlora_r: 8\n", None])
def test_a_profile_is_not_converted_again(text, tmp_path):
    if text is None:
        text = convert(tmp_path, AXOLOTL + f"datasets: [{{path: a.jsonl, {CHAT}}}]\n").stdout
    for more in ([], ["--from", "axolotl"]):
        run = convert(tmp_path, text, *more)
        assert run.code == USAGE and run.stdout == "" and "is already a lora-train profile" in run.stderr and run.stderr.count("\n") == 1, run


def test_a_script_s_configuration_points_to_the_table(tmp_path):
    run = convert(tmp_path, "model: m\nr: 8\ntarget_modules: [q_proj]\ntrain_dataset: d.jsonl\nnum_train_epochs: 1\n")
    assert run.code == USAGE and "is a script's own configuration (r, target_modules, train_dataset)" in run.stderr and "docs/convert.md" in run.stderr, run


ANSWERS = "model_name_or_path: m\nadapter_name_or_path: saves/x\ntemplate: qwen\ninfer_backend: huggingface\ntrust_remote_code: true\n"
PREDICTS = ("model_name_or_path: m\nadapter_name_or_path: saves/x\nstage: sft\ndo_predict: true\nfinetuning_type: lora\neval_dataset: d\ntemplate: qwen\n"
            "output_dir: out\npredict_with_generate: true\n")


@pytest.mark.parametrize("text, adapter", [(ANSWERS, "saves/x"), (ANSWERS.replace("adapter_name_or_path: saves/x\n", ""), "ADAPTER"), (PREDICTS, "saves/x")])
def test_a_file_that_answers_names_the_commands_for_it(text, adapter, tmp_path):
    run = convert(tmp_path, text, "--output", "my.yaml")
    assert run.code == USAGE and "trains nothing. To answer, use lora-train chat, generate or eval" in run.stderr, run
    assert f"to merge: lora-train merge --model m --adapter {adapter} --output-dir" in run.stderr, run
    assert run.stderr.count("\n") == 1 and not (tmp_path / "my.yaml").exists(), run
    run = check(tmp_path, text)
    assert run.code == USAGE and run.stderr.count("run `lora-train convert mine.yaml`") == 1, run


PROFILE = "model: m\ndatasets: [d.jsonl]\n"


@pytest.mark.parametrize("line, tool", [("group_by_length: true", "Axolotl"), ("stage: dpo", "LLaMA-Factory"), ("deepspeed: ds.json", "Axolotl"), ("template: qwen", "LLaMA-Factory"),
                                        ("dataset_train_split: train", "TRL"), ("wandb_project: x", "Axolotl"), ("trust_remote_code: true", "Axolotl"), ("use_dora: true", "")])
def test_a_key_of_another_tool_names_the_tool_and_convert(line, tool, tmp_path):
    run = check(tmp_path, PROFILE + line + "\n")
    key = line.split(":")[0]
    assert run.code == USAGE and f"mine.yaml:3: {key} is a key of {tool}" in run.stderr and "run `lora-train convert mine.yaml`." in run.stderr, run
    assert run.stderr.count("\n") == 1, run


def test_train_dataset_is_datasets_and_a_foreign_flag_names_its_tool(tmp_path):
    assert check(tmp_path, "model: m\ntrain_dataset: d.jsonl\n").code == 0
    run = lora_train("check", "--no-files", "--model", "m", "--train-data", "d.jsonl", "--neftune_noise_alpha", "5", cwd=tmp_path)
    assert run.code == USAGE and "--neftune_noise_alpha: is a key of Axolotl" in run.stderr, run
    run = lora_train("check", "--no-files", "--model", "m", "--train-data", "d.jsonl", "--lora-mlp-kernl", "5", cwd=tmp_path)
    assert run.code and "unknown flag" in run.stderr and "lora-mlp-kernel" not in run.stderr, run


def factory(folder, text, **datasets):
    """Converts a file of LLaMA-Factory with these entries of dataset_info.json, each with its examples."""
    (folder / "data").mkdir(exist_ok=True)
    for name, (entry, rows) in datasets.items():
        (folder / f"data/{name}.json").write_text(json.dumps(rows))
        entry.setdefault("file_name", f"{name}.json")
    (folder / "data/dataset_info.json").write_text(json.dumps({name: entry for name, (entry, rows) in datasets.items()}))
    return convert(folder, f"model_name_or_path: m\nstage: sft\nfinetuning_type: lora\ndataset: {','.join(datasets)}\ntemplate: qwen\n{text}", "--json")


def turns(*given, role="from", content="value"):
    return [{"conversations": [{role: who, content: said} for who, said in given]}]


def test_examples_with_function_calls_take_the_model_s_own_template(tmp_path):
    calls = turns(("human", "a"), ("function_call", "{}"), ("observation", "1"), ("gpt", "b"))
    for rows, ours in ((calls, "tokenizer"), (turns(("human", "a"), ("gpt", "b")), "qwen2.5")):
        run = factory(tmp_path, "", d=({"formatting": "sharegpt"}, rows))
        assert json.loads(run.stdout)["profile"]["chat_template"] == ours, run


def test_all_problems_of_datasets_come_at_once(tmp_path):
    rows = [{"instruction": "a", "output": "b"}]
    run = factory(tmp_path, "", a=({"ranking": True}, rows), b=({"script_url": "b.py"}, rows))
    said = json.loads(run.stdout)["refused"]["dataset"]
    assert run.code == USAGE and "a has pairs of answers" in said and "b is loaded with script_url" in said, run


def test_columns_that_llama_factory_does_not_read_stay_unread(tmp_path):
    run = factory(tmp_path, "", b=({}, [{"instruction": "a", "output": "b", "system": "s", "history": []}]))
    assert json.loads(run.stdout)["profile"]["datasets"][0]["field_map"] == {"history": None, "system": None}, run


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
    assert "applies only with adapter_name_or_path" in result["dropped"]["create_new_adapter"], result
    assert result["refused"]["lora_target"].startswith("lm_head gets no adapter"), result
    assert "set use_rslora" not in result["refused"]["use_dora"] and "embeddings get none" in result["dropped"]["loraplus_lr_embedding"], result
    run = convert(tmp_path, "model_name_or_path: m\nstage: dpo\nfinetuning_type: lora\npref_beta: 0.1\n", "--json")
    assert json.loads(run.stdout)["dropped"]["pref_beta"] == "belongs to stage, which is refused", run


def test_a_misspelt_key_of_a_dataset_and_the_arithmetic_of_evaluations(tmp_path):
    run = convert(tmp_path, AXOLOTL + f"datasets: [{{pth: a.jsonl, {CHAT}, fields_messages: m, temperature: 1}}]\n", "--json")
    refused = json.loads(run.stdout)["refused"]
    assert 'Did you mean "path"?' in refused["datasets[0].pth"] and 'Did you mean "field_messages"?' in refused["datasets[0].fields_messages"], run
    assert "Change the examples instead" in refused["datasets[0].temperature"], run
    run = convert(tmp_path, AXOLOTL + f"datasets: [{{path: a.jsonl, {CHAT}}}]\nval_set_size: 0.1\nevals_per_epoch: 4\nnum_epochs: 3\n")
    assert "# evals_per_epoch: 1 / (4 per epoch x 3 epochs)" in run.stdout, run


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


REFUSED = AXOLOTL + f"datasets: [{{path: a.jsonl, {CHAT}, shards: 2}}]\nneftune_noise_alpha: 5\nrl: dpo\n"


def test_single_keys_are_allowed_to_be_left_out(tmp_path):
    for keys in (["rl", "--allow-refused", "neftune_noise_alpha,datasets[0].shards"], ["rl,neftune_noise_alpha, datasets[0].shards"], []):
        run = convert(tmp_path, REFUSED, "--allow-refused", *keys)
        assert run.code == 0 and "refused, and left out because of --allow-refused\n" in run.stderr and "model: m" in run.stdout, run
    run = convert(tmp_path, REFUSED, "--allow_refused=rl", "--json")
    result = json.loads(run.stdout)
    assert run.code == USAGE and result["allowed"] == ["rl"] and len(result["refused"]) == 3 and "2 keys are refused" in run.stderr, run
    for key, said in (("lora_r", "lora_r is not refused"), ("neftune", "neftune is not refused"), ("nef", "Refused: datasets")):
        run = convert(tmp_path, REFUSED, "--allow-refused", key)
        assert run.code == USAGE and said in run.stderr and run.stdout == "", run
    run = lora_train("convert", "--allow-refused", "theirs.yaml", cwd=tmp_path)
    assert run.code == 0, run


def test_keys_of_a_profile_are_flags_of_convert(tmp_path):
    text = AXOLOTL + f"datasets: [{{path: a.jsonl, {CHAT}}}]\ngradient_accumulation_steps: 4\n"
    run = convert(tmp_path, text, "--lora-r", "4", "--global_batch_size=8", "--sequence-len", "64", "--lora-target-modules", "[q_proj, v_proj]", "-o", "my.yaml")
    assert run.code == 0, run
    written = (tmp_path / "my.yaml").read_text()
    profile = yaml.safe_load(written)
    assert (profile["lora_r"], profile["global_batch_size"], profile["max_seq_len"], profile["lora_target_modules"]) == (4, 8, 64, ["q_proj", "v_proj"])
    assert "gradient_accumulation_steps" not in written and "(--lora-r)" in run.stderr, run
    run = convert(tmp_path, text, "--lora-r", "x")
    assert run.code == USAGE and '--lora-r: got "x"' in run.stderr, run
    run = convert(tmp_path, text, "--lora-rr", "4")
    assert run.code == USAGE and "--lora-rr: unknown flag" in run.stderr, run


def test_a_folder_and_a_missing_file_are_named(tmp_path):
    for name, said in ((".", "is a folder; expected an Axolotl, LLaMA-Factory or TRL configuration"), ("nope.yml", "nope.yml: no such file; expected an Axolotl, LLaMA-Factory or TRL configuration")):
        run = lora_train("convert", name, cwd=tmp_path)
        assert run.code == USAGE and said in run.stderr and run.stderr.count("\n") == 1, run


EVALUATED = "model: m\ndatasets: [d.jsonl]\nval_set_size: 0.1\n"


def test_a_strategy_overrules_steps_and_best_is_the_best_step(tmp_path):
    run = check(tmp_path, EVALUATED + "eval_strategy: epoch\neval_steps: 10\nsave_strategy: 'no'\nsave_steps: 5\n")
    assert run.code == 0 and "eval_steps: epoch" in run.stdout and re.search('save_steps: "?off', run.stdout), run
    assert "mine.yaml:5: eval_steps: has no effect with eval_strategy: epoch" in run.stderr, run
    run = check(tmp_path, EVALUATED + "eval_strategy: steps\neval_steps: 10\nsave_strategy: best\n")
    assert run.code == 0 and "eval_steps: 10" in run.stdout and "load_best_model_at_end: true" in run.stdout, run
    assert "load_best_model_at_end: true" in run.stderr and re.search('save_steps: "?off', run.stdout), run
    for text in ("model_name_or_path: m\nstage: sft\nfinetuning_type: lora\nval_size: 0.1\neval_strategy: epoch\nsave_strategy: best\nsave_steps: 5\n",
                 AXOLOTL + f"datasets: [{{path: a.jsonl, {CHAT}}}]\nval_set_size: 0.1\neval_steps: 10\nsave_strategy: best\n"):
        run = convert(tmp_path, text)
        assert run.code == 0 and "load_best_model_at_end: true" in run.stdout and re.search('save_steps: "?off', run.stdout), run
        assert "adapter/ also holds the best step" in run.stderr, run
        run = convert(tmp_path, text.replace("val_size: 0.1", "").replace("val_set_size: 0.1", ""))
        assert run.code == USAGE and "best needs evaluation data" in run.stderr, run


@pytest.mark.parametrize("line, said", [
    ("lora_rank: 8", "Set lora_alpha: 16 for that"), ("lora_rank: 8\nlora_alpha: 32", "lora_rank: is read as lora_r"),
    ("gradient_accumulation_steps: 4\nlora_rank: 16", "lora_rank: is read as lora_r")])
def test_what_a_profile_says_of_other_tools_habits(line, said, tmp_path):
    run = check(tmp_path, PROFILE + line + "\n")
    assert run.code == 0 and said in run.stderr and ("for that" in run.stderr) == ("for that" in said), run


def test_a_logger_s_key_is_dropped_and_no_flag(tmp_path):
    run = convert(tmp_path, AXOLOTL + f"datasets: [{{path: a.jsonl, {CHAT}}}]\nreport_to: wandb\nwandb_project: x\n", "--json")
    result = json.loads(run.stdout)
    assert run.code == 0 and result["profile"]["report_to"] == ["tensorboard"] and "wandb_project" in result["dropped"], run
    run = lora_train("check", "--no-files", "--model", "m", "--train-data", "d.jsonl", "--wandb-project", "x", cwd=tmp_path)
    assert run.code == USAGE and "--wandb-project: is a key of Axolotl: run `lora-train convert FILE`." in run.stderr, run


def test_interleaved_datasets_have_weights(tmp_path):
    rows = [{"instruction": "a", "output": "b"}]
    def result(text, **given):
        return json.loads(factory(tmp_path, text, **given).stdout)
    datasets = {"a": ({}, rows * 10), "b": ({}, rows * 30)}
    for text, weights in (("mix_strategy: interleave_under\ninterleave_probs: 0.5,0.5\n", [None, 0.3333]), ("mix_strategy: interleave_over\n", [3, None]),
                          ("mix_strategy: interleave_under\ninterleave_probs: 0.2,0.8\n", [0.75, None]), ("interleave_probs: 0.5,0.5\n", [None, None])):
        found = result(text, **datasets)
        assert [entry.get("weight") for entry in found["profile"]["datasets"]] == weights, found
    assert "mix_strategy: concat ignores it" in found["dropped"]["interleave_probs"], found
    assert "a share above 0 for each dataset" in result("mix_strategy: interleave_under\ninterleave_probs: '1'\n", **datasets)["refused"]["interleave_probs"]


def test_a_default_system_prompt_stands_in_the_examples(tmp_path):
    factory(tmp_path, "", d=({}, [{"instruction": "a", "output": "b"}]))
    (tmp_path / "t.yaml").write_text("model_name_or_path: m\nstage: sft\nfinetuning_type: lora\ndataset: d\ntemplate: qwen\ndefault_system: ''\n")
    run = lora_train("convert", "t.yaml", cwd=tmp_path)
    assert run.code == 0 and yaml.safe_load(run.stdout)["chat_template"] == "chatml", run  # qwen2.5 writes a system prompt of its own
    (tmp_path / "t.yaml").write_text("model_name_or_path: m\nstage: sft\nfinetuning_type: lora\ndataset: d\ntemplate: llama3\ndefault_system: x\n")
    run = lora_train("convert", "t.yaml", cwd=tmp_path)
    assert run.code == USAGE and "Put the system prompt into the examples" in run.stderr, run


def test_special_tokens_are_added_as_they_are_written(tmp_path):
    rows = ({}, [{"instruction": "a", "output": "b"}])
    for key, expected in (("add_special_tokens", [{"token": "<a>", "normalized": False}, {"token": "<b>", "normalized": False}]), ("add_tokens", ["<a>", "<b>"])):
        result = json.loads(factory(tmp_path, f"{key}: <a>,<b>\n", d=rows).stdout)
        assert result["profile"]["add_tokens"] == expected, result


@pytest.mark.parametrize("size, is_refused", [("1.5", True), ("0.1", False), ("200", False)])
def test_a_held_out_part_is_a_share_or_a_number_of_examples(size, is_refused, tmp_path):
    for text in (AXOLOTL + f"datasets: [{{path: a.jsonl, {CHAT}}}]\nval_set_size: {size}\n", f"model_name_or_path: m\nstage: sft\nfinetuning_type: lora\nval_size: {size}\n"):
        run = convert(tmp_path, text)
        assert (run.code == USAGE) == is_refused == ("expected a share below 1 or a whole number of examples" in run.stderr), run


def test_all_words_of_yaml_for_true_and_false_are_read(tmp_path):
    for word, ours in (("yes", "bf16"), ("on", "bf16"), ("no", "fp32")):
        run = convert(tmp_path, AXOLOTL + f"datasets: [{{path: a.jsonl, {CHAT}}}]\nbf16: {word}\n", "--json")
        assert run.code == 0 and json.loads(run.stdout)["profile"].get("precision", "bf16") == ours, run
        assert check(tmp_path, PROFILE + f"bf16: {word}\n").code == 0
    run = convert(tmp_path, AXOLOTL + f"datasets: [{{path: a.jsonl, {CHAT}}}]\nbf16: maybe\n")
    assert run.code == USAGE and "got maybe, expected true, false, auto or full" in run.stderr, run


def test_what_a_word_leaves_to_another_key_and_what_is_saved_anyway(tmp_path):
    run = check(tmp_path, EVALUATED + "eval_strategy: steps\n")
    assert run.code == 0 and "eval_strategy: steps changes nothing: eval_steps decides" in run.stderr, run
    for text in ("model_name_or_path: m\nstage: sft\nfinetuning_type: lora\nsave_strategy: 'no'\n", AXOLOTL + f"datasets: [{{path: a.jsonl, {CHAT}}}]\nsave_strategy: 'no'\n"):
        run = convert(tmp_path, text)
        assert run.code == 0 and "(the last step is saved" in run.stderr, run
