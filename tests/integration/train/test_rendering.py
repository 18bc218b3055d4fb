"""How a run rendered its prompts, and which day its template wrote: lora_train.json beside the adapter, and who follows it."""

import datetime
import json
import shlex
import shutil

import pytest
from command import Setup, expect_end, good_run, lora_train
from tiny_math import FP32, MODEL, completions, generate, write_rows

ROWS = [{"prompt": f"{i} plus {i} is", "completion": f" {2 * i}."} for i in range(8)]
TEMPLATE = ("{{ '<|im_start|>system\\nIt is ' + strftime_now('%Y-%m-%d %H:%M') + '.<|im_end|>\\n' }}{% for m in messages %}"
            "{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
            "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")
DRAW = ("--temperature", "3", "--seed", "1", "--max-new-tokens", "8")  # another prompt is another draw


def rendering(folder):
    trained_with = json.loads((folder / "lora_train.json").read_text())
    return {key: value for key, value in trained_with.items() if key in ("prompts", "template_date")}


def ids(*arguments):
    return [line["completion_ids"] for line in completions(*DRAW, *arguments)]


def train(setup, rows, runner=good_run, **changes):
    dataset = {"path": str(write_rows(setup.folder / "text.jsonl", rows)), **changes.pop("dataset", {})}
    profile = setup.write_profile(**{"model": str(MODEL), "datasets": [dataset], "max_steps": 2, **changes})
    return runner("train", "--profile", profile)


def next_command(run):
    return shlex.split(next(line for line in run.stderr.splitlines() if line.startswith("next: lora-train generate")))[3:]


@pytest.fixture(scope="module")
def raw_run(tmp_path_factory):
    """(the folder of a run on prompts and completions of text, what it said). No test changes it."""
    setup = Setup(tmp_path_factory.mktemp("raw"))
    return setup.output_dir, train(setup, ROWS)


def test_a_run_on_text_says_so_and_its_adapter_takes_prompts_as_they_are(raw_run, tmp_path):
    folder, run = raw_run
    assert run.stderr.count("joined as they are, without the chat template; for chats: type: alpaca, "
                            "field_map: {instruction: prompt, output: completion}\n") == 1, run
    assert rendering(folder / "adapter") == rendering(folder / "checkpoint-2") == {"prompts": "raw"}
    assert next_command(run) == ["--adapter", str(folder), "--prompt", "0 plus 0 is"], run
    prompt = ("--adapter", folder, "--prompt", "0 plus 0 is")
    assert ids(*prompt) == ids(*prompt, "--raw") != ids(*prompt, "--raw=false")
    assert ids("--adapter", folder / "checkpoint-2", *prompt[2:]) == ids(*prompt)
    assert generate(*prompt, "--max-new-tokens", "1").stderr.count("adapter was trained on raw prompts") == 1
    assert "raw prompts" not in generate(*prompt, "--max-new-tokens", "1", "--raw=false").stderr
    (tmp_path / "p.txt").write_text("0 plus 0 is\n\n1 plus 1 is\n")
    assert ids("--adapter", folder, "--prompts", tmp_path / "p.txt")[:1] == ids(*prompt)
    chats = write_rows(tmp_path / "chats.jsonl", [{"messages": [{"role": "user", "content": "Hi"}]}])
    expect_end(generate("--adapter", folder, "--prompts", chats), 3, "chats.jsonl:1: a list of messages", "--raw=false")
    expect_end(generate(*prompt, "--system", "Be brief."), 2, "--system", "raw prompts")


def test_chat_with_such_an_adapter_takes_each_line_for_itself(raw_run):
    lines = ["0 plus 0 is", "1 plus 1 is"]
    chat = ("chat", "--model", MODEL, *FP32, "--json", "--max-new-tokens", "6", "--adapter", raw_run[0])
    run = good_run(*chat, data="".join(line + "\n" for line in lines).encode())
    asked = [arg for line in lines for arg in ("--prompt", line)]
    raw = completions("--adapter", raw_run[0], "--raw", "--max-new-tokens", "6", *asked)
    assert [line["completion_ids"] for line in run.json_lines()] == [line["completion_ids"] for line in raw]
    expect_end(lora_train(*chat, data=b"/system Be brief.\n"), 3, "stdin:1: raw prompts have no system message")


def test_the_merged_model_keeps_it(raw_run, tmp_path):
    good_run("merge", "--model", MODEL, "--adapter", raw_run[0], "--output-dir", tmp_path / "merged", "--no-check")
    assert rendering(tmp_path / "merged") == {"prompts": "raw"}
    prompt = ("--set", "precision=fp32", "--set", "device=cpu", "--prompt", "0 plus 0 is", "--json", *DRAW)
    asked = good_run("generate", "--model", tmp_path / "merged", *prompt)
    assert "merged was trained on raw prompts" in asked.stderr, asked
    assert asked.stdout == good_run("generate", "--model", tmp_path / "merged", *prompt, "--raw").stdout


@pytest.mark.parametrize("text, said", [
    ("[]", "lora_train.json: is not a JSON object"), ("{", "lora_train.json: is not a JSON object"),
    ('{"prompts": "chats"}', 'lora_train.json: prompts: is "chats"; expected "chat" or "raw"'),
    ('{"prompts": 3}', "lora_train.json: prompts: is 3; expected"),
    ('{"template_date": "2025-02-29"}', 'lora_train.json: template_date: is "2025-02-29"; expected a day such as "2026-12-01"')])
def test_a_malformed_file_is_refused_by_place(raw_run, tmp_path, text, said):
    adapter = shutil.copytree(raw_run[0] / "adapter", tmp_path / "adapter")
    (adapter / "lora_train.json").write_text(text)
    expect_end(generate("--adapter", adapter, "--prompt", "Hi"), 4, said)


def test_what_the_log_advises_makes_chats_of_the_same_rows(setup):
    run = train(setup, ROWS, dataset={"type": "alpaca", "field_map": {"instruction": "prompt", "output": "completion"}})
    assert "joined as they are" not in run.stderr and rendering(setup.output_dir / "adapter") == {"prompts": "chat"}, run
    assert next_command(run) == ["--adapter", str(setup.output_dir), "--prompt", "0 plus 0 is"], run
    prompt = ("--adapter", setup.output_dir, "--prompt", "0 plus 0 is")
    assert ids(*prompt) == ids(*prompt, "--raw=false") != ids(*prompt, "--raw")


def test_of_rows_that_are_tokens_already_it_says_nothing(setup):
    setup.good_run(max_steps=1)
    assert rendering(setup.output_dir / "adapter") == {}


def chats_with_a_date(setup, **changes):
    (setup.folder / "dated.jinja").write_text(TEMPLATE)
    rows = [{"messages": [{"role": "user", "content": row["prompt"]}, {"role": "assistant", "content": row["completion"]}]} for row in ROWS]
    return train(setup, rows, **{"chat_template": str(setup.folder / "dated.jinja"), "max_seq_len": 128, **changes})


def test_the_day_of_the_start_is_fixed_for_a_run_and_its_resumes(setup):
    """A run of another day, which the next command resumes with two ranks, of which one reads the folder."""
    run = chats_with_a_date(setup, template_date="2024-02-29", max_steps=1)
    assert run.stderr.count("chat_template writes the date: 2024-02-29 in every example (template_date)\n") == 1, run
    resumed = chats_with_a_date(setup, runner=lambda *arguments: lora_train(*arguments, "--nproc", "2"))
    expect_end(resumed, 0, "after step 1", "writes the date: 2024-02-29 in every example")
    assert rendering(setup.output_dir / "adapter") == {"prompts": "chat", "template_date": "2024-02-29"}
    profile = setup.output_dir / "profile.yaml"
    assert 'template_date: "2024-02-29"' in profile.read_text()
    expect_end(chats_with_a_date(setup, max_steps=3, template_date="2024-03-01", runner=lora_train), 2, 'template_date: "2024-02-29" -> "2024-03-01"')
    shown = good_run("tokenize", profile, "--step", "1", "--show", "9", "--json").json_lines()
    assert len(shown) == 4 and all("It is 2024-02-29 12:00." in line["text"] for line in shown)

    def spelled(day):
        return ids("--adapter", setup.output_dir, "--raw", "--prompt", f"<|im_start|>system\nIt is {day} 12:00.<|im_end|>\n"
                   "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")

    prompt = ("--adapter", setup.output_dir, "--prompt", "Hi")
    assert ids(*prompt) == spelled("2024-02-29") != spelled("2023-11-13")
    assert ids(*prompt, "--set", "template_date=2023-11-13") == spelled("2023-11-13")
    kept = (*prompt, "--max-new-tokens", "1", "--output", setup.folder / "answers.jsonl")
    assert generate(*kept).code == 0
    expect_end(generate(*kept, "--set", "template_date=2023-11-13"), 2, 'template_date: "2024-02-29" -> "2023-11-13"')


def test_auto_is_the_day_of_the_start(setup):
    before = datetime.date.today()
    run = chats_with_a_date(setup, max_steps=1)
    days = {str(before), str(datetime.date.today())}  # midnight may be between
    day = rendering(setup.output_dir / "adapter")["template_date"]
    assert day in days and f"writes the date: {day} " in run.stderr, run
    assert f'template_date: "{day}"' in (setup.output_dir / "profile.yaml").read_text()


def test_a_date_that_nobody_writes_is_warned_of(setup):
    run = train(setup, ROWS, template_date="2024-02-29", max_steps=1)
    expect_end(run, 0, "template_date: has no effect, because the chat template does not write the date")
    assert rendering(setup.output_dir / "adapter") == {"prompts": "raw"}
