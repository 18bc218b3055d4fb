"""`check` finds what `train` would refuse, all of it in one round, and `train` reports it in the same words.

A mistake is one line: file:line, key, what is wrong and what was expected.
"""

import json

import pytest

from command import ROOT, lora_train

USAGE, DATA, FORMAT = 2, 3, 4
MODEL = ROOT / "examples/tiny-math/model"


class Profile:
    """profile.yaml with one key a line, so that each has a line number."""

    def __init__(self, setup):
        self.folder, self.output_dir = setup.folder, setup.output_dir
        self.file, self.values = setup.folder / "profile.yaml", dict(setup.profile)

    def write(self, **changes):
        values = {key: value for key, value in dict(self.values, **changes).items() if value != "unset"}
        self.lines = [f"{key}:" + (f" {json.dumps(value)}" if value is not None else "") for key, value in values.items()]
        self.file.write_text("".join(line + "\n" for line in self.lines))
        return self.file

    def place(self, key):
        numbers = [number for number, line in enumerate(self.lines, 1) if line.startswith(f"{key}:")]
        return f"{self.file}:{numbers[0]}: {key}"


@pytest.fixture
def profile(setup):
    return Profile(setup)


def mistakes(run):
    """The lines of the error, without what comes before it and the hints after it."""
    text = run.stderr[run.stderr.index("error: ") + len("error: "):]
    return [line for line in text.splitlines() if "profile.yaml:" in line]


def make_adapter(setup, **changes):
    folder = setup.folder / "adapter"
    folder.mkdir()
    config = dict(peft_type="LORA", r=4, lora_alpha=8, target_modules=["q_proj"], base_model_name_or_path="x")
    (folder / "adapter_config.json").write_text(json.dumps(dict(config, **changes)))
    return str(folder)


# What is wrong, the key that is named, a part of the message, the exit code of `train`. What is wrong inside a file or folder that is there
# has its place in that, and names the line of the profile behind it.
KINDS = {
    "a wrong value": (lambda s: dict(lora_r="many"), "lora_r", 'got "many", expected an integer', USAGE),
    "an unknown key": (lambda s: dict(weigth_decay=1), "weigth_decay", 'Did you mean "weight_decay"?', USAGE),
    "a value that is not built": (lambda s: dict(base_precision="bf16"), "base_precision", "is not built yet", USAGE),
    "a contradiction": (lambda s: dict(adapter="none", base_precision="nf4"), "base_precision", "cannot be trained", USAGE),
    "a name that is not in the cache": (lambda s: dict(model="nobody/nothing@v2"), "model",
                                        "lora-train download nobody/nothing@v2", FORMAT),
    "no model folder": (lambda s: dict(model=str(s.folder / "nowhere")), "model", "no such folder", FORMAT),
    "no config.json": (lambda s: (s.model / "config.json").unlink() or {}, "model", "config.json: no such file", FORMAT),
    "no dataset": (lambda s: dict(datasets=[str(s.rows_file), "gone.jsonl"]), "datasets[1].path",
                   "gone.jsonl: no such file", DATA),
    "no file of a glob": (lambda s: dict(eval_datasets=[str(s.folder / "no-*.jsonl")]), "eval_datasets[0].path",
                          "no file matches", DATA),
    "a kind of file that is not read": (lambda s: (s.folder / "a.zip").touch() or dict(datasets=str(s.folder / "a.zip")),
                                        "datasets[0].path", "zip is not supported", DATA),
    "no template": (lambda s: dict(chat_template=str(s.folder / "t.jinja")), "chat_template", "No such file", 5),
    "a broken template": (lambda s: (s.folder / "t.jinja").write_text("{% if %}") and dict(chat_template=str(s.folder / "t.jinja")),
                          "chat_template", "t.jinja:1", FORMAT),
    "no adapter": (lambda s: dict(init_adapter=str(s.folder / "nowhere"), lora_r="unset", lora_alpha="unset"), "init_adapter",
                   "expected a PEFT folder", FORMAT),
    "an adapter that the profile contradicts": (lambda s: dict(init_adapter=make_adapter(s), lora_r=8, lora_alpha="unset"),
                                                "init_adapter", "disagree about lora_r", USAGE),
    "a target that the model lacks": (lambda s: dict(lora_target_modules=["q_proj", "qq_proj"]), "lora_target_modules",
                                      '"qq_proj" matches no linear', USAGE),
    "a pattern without effect": (lambda s: dict(rank_pattern={"kproj": 3}), "rank_pattern", "has no effect", USAGE),
    "a model stored quantised that all of which is to be trained": (
        lambda s: dict(model=s.quantised("nf4"), adapter="none"), "adapter", "full fine-tuning (adapter: none)", FORMAT),
    "another quantisation than the folder's": (lambda s: dict(model=s.quantised("nf4"), base_precision="int8"), "base_precision",
                                               "is quantised already", USAGE),
    "rows too long for the model's positions": (
        lambda s: s.write_config(max_position_embeddings=32, rope_scaling={"rope_type": "dynamic", "factor": 2.0}) or {},
        "max_seq_len", "dynamic", FORMAT),
}


INSIDE = {"no config.json", "a kind of file that is not read", "a broken template",
          "a model stored quantised that all of which is to be trained", "rows too long for the model's positions"}
NOT_THERE = {"no dataset", "no file of a glob", "no template", "no adapter"}  # `check` ends with 2, whatever a run would


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_found_with_its_line(setup, profile, kind):
    change, key, part, code = KINDS[kind]
    file = profile.write(**change(setup))
    name = key.split("[")[0]
    check = lora_train("check", "--profile", file)
    assert check.code == (USAGE if kind in NOT_THERE else code), check
    assert len(mistakes(check)) == 1 and part in mistakes(check)[0], check
    if kind in INSIDE:
        assert mistakes(check)[0].endswith(f" ({key} at {profile.place(name).rsplit(':', 1)[0]})"), check
    else:
        assert mistakes(check)[0].startswith(f"{profile.place(name)}{key.removeprefix(name)}: "), check
    train = lora_train("train", "--json", "--profile", file)
    assert train.code == code and part in train.stderr, train
    if kind != "another quantisation than the folder's":  # needs the headers of the weights: train reads them once, later
        assert mistakes(train) == mistakes(check), train
    assert train.json_lines()[-1]["error"]["where"], train


def test_one_round_finds_everything(setup, profile):
    file = profile.write(model="nobody/nothing", learning_rate=-1, weigth_decay=1, confidence_tokens=["<a>"], add_tokens=["<a>", "<a>"],
                         datasets=[str(setup.rows_file), str(setup.folder / "gone.jsonl")], chat_template=str(setup.folder / "t.jinja"),
                         init_adapter=str(setup.folder / "nowhere"), lr_scaling="sqrt", lora_r=None, seed=None, packing="perhaps",
                         eval_datasets=[dict(path=str(setup.rows_file), weight=0), str(setup.folder / "no-eval.jsonl")])
    wrong = ["model", "learning_rate", "weigth_decay", "confidence_tokens", "add_tokens[1]", "datasets[1].path", "chat_template",
             "init_adapter", "lr_scaling", "packing", "eval_datasets[0].weight", "eval_datasets[1].path"]
    places = {profile.place(key.split("[")[0]) + key.removeprefix(key.split("[")[0]) for key in wrong}
    for command in ("check", "train"):
        run = lora_train(command, "--profile", file)
        found = mistakes(run)
        assert run.code == USAGE and {line[:line.index(": ", line.index(": ") + 1)] for line in found} == places, run
        assert len(found) == len(wrong) and run.stderr.count("error: ") == 1, run
        numbers = [int(line.split(":")[1]) for line in found]
        assert numbers == sorted(numbers), run
    assert not profile.output_dir.exists()
    run = lora_train("check", "--no-files", "--profile", file)
    assert run.code == USAGE and "gone.jsonl" not in run.stderr and "nobody/nothing" not in run.stderr, run
    assert len(mistakes(run)) == len(wrong) - 5, run


def test_several_ranks_say_it_once(setup, profile):
    file = profile.write(datasets=[str(setup.folder / "gone.jsonl")], model=str(setup.folder / "nowhere"))
    run = lora_train("train", "--nproc", "2", "--profile", file)
    assert run.code == USAGE and run.stderr.count("gone.jsonl: no such file") == 1, run
    assert run.stderr.count("nowhere: no such folder") == 1, run


def test_a_complete_run_needs_its_files_no_more(setup, profile):
    file = profile.write()
    assert lora_train("train", "--profile", file).code == 0
    setup.rows_file.unlink()
    run = lora_train("train", "--profile", file)
    assert run.code == 0 and "already complete" in run.stderr, run
    run = lora_train("train", "--profile", file, "--overwrite")
    assert run.code == DATA and "rows.jsonl: no such file" in run.stderr, run


def test_the_model_of_a_shipped_profile_may_be_on_another_machine(tmp_path):
    run = lora_train("check", "--profile", "h100", cwd=tmp_path)
    assert run.code == 0 and "warning: model: " in run.stderr and "lora-train download Qwen/Qwen2.5-7B-Instruct" in run.stderr, run
    run = lora_train("check", "--profile", "h100", "model=nobody/nothing", cwd=tmp_path)
    assert run.code == FORMAT and "lora-train download nobody/nothing" in run.stderr, run


def test_the_first_examples_are_read(setup, profile):
    data = setup.folder / "chats.jsonl"
    data.write_text('{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n' * 30)
    file = profile.write(datasets=[str(data)], model=str(MODEL))
    run = lora_train("check", "--profile", file)
    assert run.code == 0 and f"datasets[0] {data}: messages (the first example has messages), 20 examples checked" in run.stderr, run
    data.write_text('{"messages": []}\n' + data.read_text())
    run = lora_train("check", "--profile", file)
    assert run.code == 3 and f"{data}:1: messages is empty" in run.stderr and "(datasets[0] at " in run.stderr, run
    assert lora_train("check", "--profile", profile.write(datasets=[str(data)], model=str(MODEL), on_bad_row="drop")).code == 0
    data.write_text('{"question": 1}\n')
    for on_bad_row in ("drop", "error"):
        run = lora_train("check", "--profile", profile.write(datasets=[str(data)], on_bad_row=on_bad_row))
        assert run.code == 3 and "no known layout has the keys of this example (question)" in run.stderr, run
    assert lora_train("check", "--no-files", "--profile", file).code == 0
    data.write_text('{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n')
    run = lora_train("check", "--profile", profile.write(datasets=[str(data)]))
    assert run.code == 4 and "messages examples need a tokenizer, and the model folder has none" in run.stderr, run


def test_examples_on_one_line_are_told_by_their_number(setup, profile):
    good = '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}'
    data = setup.folder / "array.json"
    data.write_text("[" + ", ".join([good, good, '{"messages": []}']) + "]")
    file = profile.write(datasets=[str(data)], model=str(MODEL))
    for command in ("check", "tokenize"):
        run = lora_train(command, "--profile", file)
        assert run.code == 3 and f"{data}:1: element 3: messages is empty" in run.stderr, run
    data.write_text("[" + ",\n".join([good, good, '{"messages": []}']) + "]")
    run = lora_train("check", "--profile", file)
    assert f"{data}:3: messages is empty" in run.stderr, run
