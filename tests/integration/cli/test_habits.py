"""What people type out of habit: a profile as the only word, keys as flags, the folder of a run as its adapter, Ctrl-C."""

import json
import re
import shlex
import signal
import subprocess

import pytest

from command import BINARY, ENVIRONMENT, ROOT, lora_train, wait_for

MODEL = ROOT / "examples/tiny-math/model"


def test_a_profile_is_a_word_and_a_key_is_a_flag(setup):
    for words in (["train", setup.write_profile(), "--lora-r", "2"], ["train", "--config", setup.write_profile(), "--lora_r=2", "--overwrite"]):
        run = lora_train(*words)
        assert run.code == 0, run
        assert json.loads((setup.output_dir / "adapter/adapter_config.json").read_text())["r"] == 2
    wrong = lora_train("train", setup.profile_file, "--lora-r", "x")
    assert wrong.code == 2 and '--lora-r: got "x"' in wrong.stderr, wrong
    assert lora_train("train", "no-such.yaml").code == 2


def test_the_start_says_in_a_line_each_what_runs(setup):
    run = setup.train()
    said = run.stderr.splitlines()
    assert [line for line in said if re.match(r"device: cpu.*, \d+ threads?, precision fp32$", line)], run
    assert [line for line in said if re.match(rf"model: .*, Qwen2ForCausalLM, [\d,]+ parameters$", line)], run
    assert [line for line in said if re.match(r"adapter: LoRA, r \d+, alpha [\d.]+, on \d+ linears; [\d,]+ of [\d,]+ parameters are trained", line)], run
    assert f"output: {setup.output_dir}" in said, run
    log = (setup.output_dir / "run.log").read_text()
    assert "activations: at most" in log and "activations: at most" not in run.stderr, run


def test_the_end_names_report_and_next_commands_which_work(setup):
    run = setup.train()
    said = run.stderr.splitlines()
    assert run.code == 0 and f"report: {setup.output_dir}/report.html" in said, run
    [generate, merge] = [line.removeprefix("next: ").split() for line in said if line.startswith("next: ")]
    assert said[-1].startswith("done: "), run
    assert generate[:4] == ["lora-train", "generate", "--adapter", str(setup.output_dir)]
    merged = lora_train(*merge[1:], "--no-check")
    assert merged.code == 0 and (setup.folder / "run-merged/model.safetensors").exists(), merged


@pytest.fixture
def chat_run(setup):
    """A run on the shipped model, which answers."""
    row = {"messages": [{"role": "user", "content": "What is 3 plus 4?"}, {"role": "assistant", "content": "7"}]}
    setup.write_rows([row] * 4)
    run = setup.train(model=str(MODEL), datasets=[str(setup.rows_file)], max_steps=1)
    assert run.code == 0, run
    return setup.output_dir


@pytest.mark.parametrize("rows, words", [
    ([{"messages": [{"role": "user", "content": "What's 3 plus 4? " + "Think well. " * 9}, {"role": "assistant", "content": "7"}]},
      {"messages": [{"role": "user", "content": "What's 3 plus 4?"}, {"role": "assistant", "content": "7"}]}], ["--prompt", "What's 3 plus 4?"]),
    ([{"prompt": "3 plus 4 is", "completion": " 7"}], ["--raw", "--prompt", "3 plus 4 is"]),
    ([{"messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "3 plus 4?"}, {"role": "assistant", "content": "7"}]}],
     ["--prompt", "Hello!"])])
def test_the_command_that_tries_the_result_asks_what_it_was_trained_for(setup, rows, words):
    setup.write_rows(rows * 4)
    run = setup.train(model=str(MODEL), datasets=[str(setup.rows_file)], max_steps=1, max_seq_len=256)
    generate = next(line for line in run.stderr.splitlines() if line.startswith("next: lora-train generate"))
    assert shlex.split(generate)[5:] == words, generate
    assert lora_train(*shlex.split(generate)[2:], "--max-new-tokens", "1", "--set", "device=cpu").code == 0


def test_a_run_is_an_adapter_that_knows_its_base(chat_run):
    named = lora_train("generate", "--model", MODEL, "--adapter", chat_run / "adapter", "--prompt", "Hi", "--set", "device=cpu", "--json")
    short = subprocess.run([BINARY, "generate", "--adapter", chat_run, "--prompts", "-", "--json", "--set", "device=cpu"], input='{"prompt": "Hi"}\n',
                           capture_output=True, text=True, env=ENVIRONMENT)
    assert named.code == short.returncode == 0, (named, short.stderr)
    assert json.loads(short.stdout)["completion_ids"] == named.json_lines()[0]["completion_ids"]


def test_a_run_that_has_not_ended_names_its_checkpoint(chat_run):
    (chat_run / "adapter").rename(chat_run / "elsewhere")
    run = lora_train("generate", "--adapter", chat_run, "--prompt", "Hi")
    assert run.code == 2 and f"--adapter {chat_run}/checkpoint-1" in run.stderr, run


def test_ctrl_c_is_answered_at_once_and_the_same_command_goes_on(setup):
    process = setup.start(max_steps=100_000, logging_steps=1000, num_epochs="unset")
    wait_for(lambda: (setup.output_dir / "metrics.jsonl").exists() and "start" in (setup.output_dir / "metrics.jsonl").read_text(), "its start", process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 75, err
    lines = err.splitlines()
    assert lines.count("stopping after this step; again to quit now") == 1 and "the same command resumes" in lines[-1], err
    log = (setup.output_dir / "run.log").read_text()
    assert "SIGINT: stopping" in log and "stopped (SIGINT)" in log, log


def test_help_version_completion_schema_and_sweep(setup):
    assert lora_train("help").stdout == lora_train("--help").stdout
    assert lora_train("help", "train").stdout == lora_train("train", "--help").stdout
    assert lora_train("-V").stdout == lora_train("--version").stdout
    words = lora_train("completion", "words").stdout.split()
    assert {"train", "sweep", "help"} <= set(words)
    flags = lora_train("train", "--list-flags").stdout.split()
    assert {"--profile", "--overwrite", "--lora-r"} <= set(flags)
    script = lora_train("completion", "bash").stdout
    asked = f'{script}\nCOMP_WORDS=({BINARY} train --over) COMP_CWORD=2\n_lora_train\necho "${{COMPREPLY[@]}}"'
    assert "--overwrite" in subprocess.run(["bash", "-c", asked], capture_output=True, text=True, check=True, env=ENVIRONMENT).stdout.split()
    schema = json.loads(lora_train("check", "--schema").stdout)
    assert schema["properties"]["lora_r"]["description"] and "weigth_decay" not in schema["properties"]
    dry = lora_train("sweep", "--dry-run", "--profile", setup.write_profile(), "output_dir=" + str(setup.folder / "runs/{lora_r}"), "lora_r=2,4")
    assert dry.code == 0 and dry.stdout.count(" train ") == 2, dry


def test_flags_of_every_command_take_underscores_too(setup):
    words = ["generate", "--model", setup.model, "--prompt", "x"]
    assert lora_train(*words, "--max_new_tokens", "0").stderr == lora_train(*words, "--max-new-tokens", "0").stderr
    assert "--max-new-tokens" in lora_train(*words, "--max_new_tokens=0").stderr
    run = lora_train("generate", "--adapter", setup.folder / "runs/nope", "--prompt", "x")
    assert run.code == 4 and "runs/nope: no such folder; expected a PEFT folder, or the output_dir of a run" in run.stderr, run


def test_keys_are_found_by_the_names_of_other_trainers():
    assert "sequence_len: is read as max_seq_len" in lora_train("check", "--keys", "sequence_len").stdout
    run = lora_train("check", "--keys", "nonsense")
    assert run.code == 2 and "no key contains nonsense" in run.stderr, run


def test_one_name_for_lora_target_modules_says_how_a_list_is_written(setup):
    run = setup.train(lora_target_modules="q_proj")
    assert run.code == 2 and "For a list of names, write [q_proj], or on the command line q_proj," in run.stderr, run


@pytest.fixture
def factory_file(tmp_path):
    file = tmp_path / "merge me.yaml"
    file.write_text("model_name_or_path: org/base\nadapter_name_or_path: saves/x\ntemplate: qwen\ntrust_remote_code: true\nexport_dir: out\n")
    return file


@pytest.mark.parametrize("command, said", [
    ("sft", "lora-train train x.yaml trains; lora-train convert x.yaml --output my.yaml makes a profile from a TRL config"),
    ("dpo", "on the chosen answers"), ("grpo", "lora-train convert x.yaml --allow-refused --output my.yaml"), ("reward", "not supported"), ("vllm-serve", "--lora-modules mine=RUN/adapter"),
    ("api", "vllm serve"), ("webui", "there is no web interface"), ("preprocess", "lora-train tokenize x.yaml"), ("inference", "lora-train generate --adapter RUN"),
    ("fetch", "lora-train check --list"), ("env", "lora-train doctor"), ("merge-lora", "lora-train merge --model MODEL --adapter ADAPTER --output-dir MERGED")])
def test_a_command_of_another_tool_names_ours(command, said):
    run = lora_train(command, "x.yaml")
    assert run.code == 2 and f"error: {command}: is a command of " in run.stderr and said in run.stderr and run.stderr.count("\n") == 1, run


def test_a_file_where_merge_takes_flags_gives_the_line(factory_file):
    line = "lora-train merge --model org/base --adapter saves/x --output-dir out"
    for words in (["merge"], ["export"], ["merge-lora"], ["convert"], ["merge", "--config"]):
        run = lora_train(*words, factory_file)
        assert run.code == 2 and line in run.stderr, run
    run = lora_train("chat", factory_file)
    assert run.code == 2 and f"run `lora-train convert '{factory_file}'`." in run.stderr, run


def test_a_run_is_an_adapter_to_start_from(chat_run, setup):
    again = ["train", "--model", MODEL, "--train-data", setup.rows_file, "device=cpu", "max_steps=1", "max_seq_len=64", f"output_dir={setup.folder}/again"]
    for start in (chat_run, chat_run / "adapter"):  # one run: the second command finds it complete
        run = lora_train(*again, f"init_adapter={start}")
        assert run.code == 0, run
    assert "already complete; nothing to do" in run.stderr, run
    for words in (["generate", "--prompt", "hi", "--adapter"], ["merge", "--output-dir", setup.folder / "m", "--adapter"]):
        run = lora_train(*words, setup.folder / "nope")
        assert run.code == 4 and f"{setup.folder}/nope: no such folder; expected a PEFT folder, or the output_dir of a run" in run.stderr, run
    run = lora_train("check", *again[1:-1], f"init_adapter={setup.folder}/nope")
    assert run.code == 2 and "nope: no such folder; expected a PEFT folder" in run.stderr, run


@pytest.mark.parametrize("words", [["generate", "--max_new_tokens", "x"], ["eval", "--allow_other_base=x"], ["merge", "--output_dir", "o", "--max_shard"],
                                   ["convert", "--allow_refused", "none.yaml"], ["compare", "--log_level", "x"]])
def test_underscores_are_hyphens_in_every_command(words):
    run = lora_train(*words)
    assert run.code != 0 and ("--max_shard: unknown flag" in run.stderr if "--max_shard" in words else "unknown flag" not in run.stderr), run


def test_a_short_run_is_told_how_to_train_longer(setup):
    assert "only 3 steps in total, which may be too few to learn much. Raise max_steps or num_epochs" in setup.train().stderr


def test_a_folder_in_the_way_does_not_hide_a_wrong_path(setup):
    assert setup.train().code == 0
    run = lora_train("train", setup.profile_file, "lora_alpha=3", "datasets=[nope.jsonl]")
    assert run.code == 2 and "lora_alpha: 8 -> 3" in run.stderr and "nope.jsonl: no such file" in run.stderr, run


def test_a_sweep_of_nothing_shows_how(setup):
    run = lora_train("sweep", setup.write_profile())
    assert run.code == 2 and f"nothing to vary; expected KEY=V1,V2, such as: lora-train sweep {setup.profile_file} learning_rate=1e-4,2e-4" in run.stderr, run


def test_check_shows_what_is_set_and_what_comes_next(setup):
    file = setup.write_profile()
    short, whole = lora_train("check", file), lora_train("check", file, "--verbose")
    said = short.stderr.splitlines()
    assert short.code == 0 and said[-1] == f"ok: next lora-train train {file}", short
    assert "lora_r: 4" in short.stdout and "# default" not in short.stdout and "# default" in whole.stdout, short
    left_out = sum(line.endswith("# default") for line in whole.stdout.splitlines())
    assert f"{left_out} other keys at their defaults; --verbose shows them" in said, short
    again = setup.folder / "again.yaml"
    again.write_text(short.stdout)
    assert lora_train("check", again, "--json").stdout == lora_train("check", file, "--json").stdout


def test_plan_ends_with_a_verdict_in_a_line(setup):
    run = lora_train("plan", setup.write_profile())
    assert run.code == 0 and re.search(r"\nVerdict: the run fits in \d+ of \d+ cases; the cheapest is .+; the fastest is .+\n$", run.stdout), run


def test_a_report_without_javascript_has_the_figures(setup):
    assert setup.train().code == 0
    summary = json.loads((setup.output_dir / "summary.json").read_text())
    page = (setup.output_dir / "report.html").read_text()
    plain = page[page.index("<noscript>"):page.index("</noscript>")]
    assert f"<li>steps {summary['step']}</li>" in plain and "final training loss" in plain and "metrics.jsonl" in plain, plain


def test_the_folder_of_a_run_in_place_of_a_profile_is_told_its_flag(chat_run):
    for command in ("chat", "generate", "eval", "serve", "merge"):
        run = lora_train(command, chat_run, *(["--prompt", "Hi"] if command == "generate" else []))
        assert run.code == 2 and f"--adapter {chat_run}." in run.stderr, run
    run = lora_train("train", chat_run)
    assert run.code == 2 and f"The profile of that run: {chat_run}/profile.yaml." in run.stderr, run


def test_a_run_is_evaluated_on_its_own_data(setup):
    run = setup.train(eval_datasets=[{"path": str(setup.rows_file), "name": "own"}], max_steps=1)
    assert run.code == 0, run
    own = lora_train("eval", "--adapter", setup.output_dir, "--json")
    assert own.code == 0 and json.loads(own.stdout)["name"] == "own", own
    assert f"profile: {setup.output_dir}/profile.yaml, the run's own" in own.stderr
    other = lora_train("eval", "--adapter", setup.output_dir, "--eval-data", setup.rows_file, "--json")
    assert other.code == 0 and json.loads(other.stdout)["name"] != "own", other


def test_a_base_that_is_not_there_is_told_with_its_place_and_a_way(chat_run, tmp_path):
    config = chat_run / "adapter/adapter_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"base_model_name_or_path": "models/mine"}))
    output = tmp_path / "merged"
    for words in (["generate", "--prompt", "Hi"], ["merge", "--output-dir", output], ["export", "--gguf", tmp_path / "x.gguf"]):
        run = lora_train(words[0], "--adapter", chat_run, *words[1:], cwd=tmp_path)
        assert run.code == 4 and f'{config}: base_model_name_or_path is "models/mine"' in run.stderr, run
        assert f"(seen from {tmp_path})" in run.stderr and "--model DIR" in run.stderr, run
    assert lora_train("generate", "--adapter", chat_run, "--model", MODEL, "--prompt", "Hi", "--max-new-tokens", "2").code == 0


def test_a_template_is_announced_once(setup):
    setup.write_rows([{"messages": [{"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}]}] * 4)
    run = setup.train(model=str(MODEL), datasets=[{"path": str(setup.rows_file), "weight": 0.5}], max_steps=1, chat_template="chatml")
    assert run.code == 0 and run.stderr.count("replaces the model's own") == 1, run
    assert "of them trained; weight 0.5" in (setup.output_dir / "run.log").read_text()


def chats(answer="7"):
    return [{"messages": [{"role": "user", "content": f"What is {i}?"}, {"role": "assistant", "content": answer}]} for i in range(4)]


def test_no_piece_of_a_foreign_end_becomes_an_end_token(setup):
    setup.write_rows(chats())
    profile = dict(model=str(MODEL), datasets=[str(setup.rows_file)], max_steps=1, chat_template="llama3", max_seq_len="auto")
    check = lora_train("check", setup.write_profile(**profile))
    run = setup.train(**profile)
    for told in (check, run):
        assert told.code == 0 and 'the chat template ends a turn with "<|eot_id|>", which this tokenizer cuts into' in told.stderr, told
    ends = json.loads((setup.output_dir / "adapter/generation_config.json").read_text())["eos_token_id"]
    base = json.loads((MODEL / "generation_config.json").read_text())["eos_token_id"]
    assert (ends if isinstance(ends, list) else [ends]) == (base if isinstance(base, list) else [base])


def test_set_reaches_into_the_data_of_a_flag(setup):
    setup.write_rows([{"question": "a", "answer": "b"}] * 4)
    run = lora_train("tokenize", "--model", MODEL, "--set", "datasets[0].field_map={prompt: question, completion: answer}",
                     "--train-data", setup.rows_file, "--set", "datasets[0].max_samples=3", "--show", "9", "--json")
    assert run.code == 0 and len(run.stdout.splitlines()) == 3, run
    assert "max_samples: 3" in run.stderr, run
    for wrong in ("0", "-1", "x"):
        run = lora_train("check", "--model", MODEL, "--train-data", setup.rows_file, "--set", f"datasets[0].max_samples={wrong}")
        assert run.code == 2 and f'datasets[0].max_samples: got "{wrong}", expected an integer >= 1' in run.stderr, run


def test_eval_takes_the_template_of_the_adapter(setup):
    setup.write_rows(chats())
    run = setup.train(model=str(MODEL), datasets=[str(setup.rows_file)], max_steps=1, chat_template="mistral-v1", eval_datasets=[str(setup.rows_file)])
    assert run.code == 0, run
    words = ["eval", "--adapter", setup.output_dir / "adapter", "--eval-data", setup.rows_file, "--set", "precision=fp32", "--set", "device=cpu", "--json"]
    own, base = lora_train(*words), lora_train(*words, "--set", "chat_template=chatml")
    assert own.code == 0 and base.code == 0, (own, base)
    trained = json.loads(lora_train("eval", "--adapter", setup.output_dir, "--json").stdout)
    assert json.loads(own.stdout)["loss"] == pytest.approx(trained["loss"], rel=1e-5)
    assert json.loads(base.stdout)["loss"] != pytest.approx(trained["loss"], rel=1e-3)


def test_a_result_that_is_older_than_its_run_is_warned_of(chat_run, setup):
    ask = ["generate", "--adapter", chat_run, "--prompt", "Hi", "--max-new-tokens", "1", "--set", "device=cpu"]
    assert "earlier result" not in lora_train(*ask).stderr
    process = setup.start(model=str(MODEL), datasets=[str(setup.rows_file)], max_steps=4000, save_total_limit=1, save_steps=4000)
    wait_for(lambda: len(setup.events("train")) >= 2, "step 2", process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=120) == 75
    [checkpoint] = chat_run.glob("checkpoint-*")
    said = f"{chat_run}/adapter: is an earlier result of the run, from step 1, which has continued since and has not ended. Its newest checkpoint: {checkpoint}."
    assert lora_train(*ask).stderr.count(said) == 1
    start = lora_train("check", setup.profile_file, f"output_dir={setup.folder}/other", f"init_adapter={chat_run}", "lora_r=null", "lora_alpha=null")
    assert start.stderr.count(said) == 1, start


def test_a_refused_resume_says_which_line_goes_on(setup):
    assert setup.train(max_steps=3).code == 0
    run = setup.train(max_steps=2)
    assert run.code == 2 and "max_steps: 3 -> 2  (may be raised, not lowered)" in run.stderr, run
    assert "--allow-changed" not in run.stderr and f"\n  --overwrite  deletes the run in {setup.output_dir}\n" in run.stderr, run
    checkpoint = setup.output_dir / "checkpoint-3"
    run = setup.train("--resume", checkpoint, "--output-dir", setup.folder / "brandnew", max_steps=4, learning_rate=3e-4)
    assert run.code == 2 and f"\n  init_adapter={checkpoint}  starts from its adapter, without --resume\n  --allow-changed learning_rate  continues with" in run.stderr, run
    assert "--overwrite" not in run.stderr and not (setup.folder / "brandnew/adapter").exists(), run


def test_an_allowed_change_is_written_once_a_step_uses_it(setup):
    assert setup.train(max_steps=2).code == 0
    profile = setup.output_dir / "profile.yaml"
    before = profile.read_text()
    run = setup.train("--allow-changed", "learning_rate", max_steps=2, learning_rate=0.02)
    assert run.code == 0 and profile.read_text() == before and "learning_rate: 0.01 -> 0.02: no step is left" in run.stderr, run
    run = setup.train("--allow-changed", "learning_rate", max_steps=3, learning_rate=0.02)
    assert run.code == 0 and run.stderr.count("learning_rate: 0.01 -> 0.02 from step 3\n") == 1 and profile.read_text() != before, run


@pytest.mark.parametrize("words, said", [
    (["export", "--gguf", "--adapter", "x"], "--gguf: has no value; expected --gguf "),
    (["train", "--no-packing"], "--no-packing: unknown flag. Switch it off with --packing false."),
    (["train", "--report_to", "wandb", "tensorboard"], "--report_to wandb,tensorboard."),
    (["train", "--lora_target_modules", "q_proj", "v_proj"], "--lora_target_modules q_proj,v_proj."),
    (["train", "--target-modules=q_proj", "v_proj", "--lora-r", "8"], "--target-modules q_proj,v_proj.")])
def test_a_flag_of_another_habit_gets_its_spelling_here(words, said):
    run = lora_train(*words)
    assert run.code == 2 and said in run.stderr and run.stderr.count("\n") == 1, run


def test_lists_with_commas(setup):
    setup.write_profile()
    run = lora_train("train", setup.profile_file, "--lora_target_modules", "q_proj,", "--report-to", "tensorboard,")
    assert run.code == 0, run
    assert json.loads((setup.output_dir / "adapter/adapter_config.json").read_text())["target_modules"] == ["q_proj"]
    assert "report_to: [tensorboard]" in (setup.output_dir / "profile.yaml").read_text()
    run = lora_train("train", setup.profile_file, "--report_to", "none", "tiny_cpu", "--dry-run")  # a shipped profile is no item
    assert "several words" not in run.stderr, run
