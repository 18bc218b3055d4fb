"""`check` finds what `train` would refuse, all of it in one round, and `train` reports it in the same words.

A mistake is one line: file:line, key, what is wrong and what was expected.
"""

import json

import pytest

from command import BINARY, ROOT, expect_end, good_run, lora_train

USAGE, FORMAT = 2, 4
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
    text = run.stderr[run.stderr.index("error: ") + len("error: "):]
    return [line for line in text.splitlines() if "profile.yaml:" in line]


def make_adapter(setup, **changes):
    folder = setup.folder / "adapter"
    folder.mkdir()
    config = dict(peft_type="LORA", r=4, lora_alpha=8, target_modules=["q_proj"], base_model_name_or_path="x")
    (folder / "adapter_config.json").write_text(json.dumps(dict(config, **changes)))
    return str(folder)


# What is wrong, the key that is named, a part of the message, the exit code. What is wrong inside a file or folder that is there has its
# place in that, and names the line of the profile behind it.
KINDS = {
    "no config.json": (lambda s: (s.model / "config.json").unlink() or {}, "model", "config.json: no such file", FORMAT),
    "a broken template": (lambda s: (s.folder / "t.jinja").write_text("{% if %}") and dict(chat_template=str(s.folder / "t.jinja")),
                          "chat_template", "t.jinja:1", FORMAT),
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


INSIDE = {"no config.json", "a broken template", "a model stored quantised that all of which is to be trained",
          "rows too long for the model's positions"}


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_found_with_its_line(setup, profile, kind):
    change, key, part, code = KINDS[kind]
    file = profile.write(**change(setup))
    name = key.split("[")[0]
    check = lora_train("check", "--profile", file)
    assert check.code == code and len(mistakes(check)) == 1 and part in mistakes(check)[0], check
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
    wrong = {"model": "lora-train download nobody/nothing", "learning_rate": "", "weigth_decay": 'Did you mean "weight_decay"?', "confidence_tokens": "",
             "add_tokens[1]": "", "datasets[1].path": "gone.jsonl: no such file", "chat_template": "No such file", "init_adapter": "expected a PEFT folder",
             "lr_scaling": "", "packing": 'got "perhaps"', "eval_datasets[0].weight": "", "eval_datasets[1].path": "no-eval.jsonl: no such file"}
    places = {profile.place(key.split("[")[0]) + key.removeprefix(key.split("[")[0]) for key in wrong}
    for command in ("check", "train"):
        run = lora_train(command, "--profile", file)
        found = mistakes(run)
        assert all(part in run.stderr for part in wrong.values()), run
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


def test_shipped_profiles_are_found_from_any_folder_and_their_model_may_be_on_another_machine(tmp_path):
    """By name, from the copy beside the binary. Their relative paths start in the working directory, as all do."""
    for file in [*(ROOT / "configs").glob("*.yaml"), *(ROOT / "configs").glob("*.json")]:
        assert (BINARY.parent / "configs" / file.name).read_bytes() == file.read_bytes()
    expect_end(lora_train("check", "--profile", "tiny_cpu.yaml", cwd=tmp_path), USAGE, "examples/tiny-math/train.jsonl", str(tmp_path))
    expect_end(lora_train("train", "--profile", "h100", cwd=tmp_path), USAGE, "datasets: missing")
    run = lora_train("check", "--profile", "h100", cwd=tmp_path)
    assert run.code == 0 and "--train-data FILE" in run.stderr and "warning: model: " in run.stderr and "lora-train download Qwen/Qwen2.5-7B-Instruct" in run.stderr, run
    expect_end(lora_train("check", "--profile", "h100", "model=nobody/nothing", cwd=tmp_path), FORMAT, "lora-train download nobody/nothing")


def test_the_first_examples_are_read(setup, profile):
    good = '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}'
    data = setup.folder / "chats.jsonl"

    def check(text, name="chats.jsonl", **changes):
        (setup.folder / name).write_text(text)
        return lora_train("check", "--profile", profile.write(**{"datasets": [str(setup.folder / name)], "model": str(MODEL), **changes}))

    expect_end(check(f"{good}\n" * 30), 0, f"datasets[0] {data}: messages (the first example has messages), 20 examples checked")
    bad = '{"messages": []}\n' + f"{good}\n" * 30
    expect_end(check(bad), 3, f"{data}:1: messages is empty", "(datasets[0] at ")
    assert check(bad, on_bad_row="drop").code == 0
    for on_bad_row in ("drop", "error"):
        expect_end(check('{"question": 1}\n', on_bad_row=on_bad_row), 3, "no known layout has the keys of this example (question)")
    assert lora_train("check", "--no-files", "--profile", profile.file).code == 0
    expect_end(check(f"{good}\n", model=str(setup.model)), 4, "messages examples need a tokenizer, and the model folder has none")
    # Examples on one line are told by their number.
    expect_end(check(f"[{good}, {good},\n" + '{"messages": []}]', "array.json"), 3, f"{setup.folder}/array.json:2: messages is empty")
    check(f"[{good}, {good}]", "array.json")
    shown = lora_train("tokenize", "--profile", profile.file, "--show", "2", "--json").json_lines()
    assert [line["source"].rsplit("/", 1)[1] for line in shown] == ["array.json:1", "array.json:1, element 2"]
    run = check(f"[{good}, {good}, " + '{"messages": []}]', "array.json")
    for run in (run, lora_train("tokenize", "--profile", profile.file)):
        assert run.code == 3 and f"{setup.folder}/array.json:1: element 3: messages is empty" in run.stderr, run


def test_a_high_rate_and_a_length_beyond_the_model_are_warned_of(setup, profile):
    run = good_run("check", "--profile", profile.write(learning_rate=0.011, max_seq_len=129))
    assert "warning: learning_rate: 0.011 is far above" in run.stderr and "warning: max_seq_len: 129 is more than the 128 positions" in run.stderr, run
    run = good_run("check", "--profile", profile.write(learning_rate=0.01, max_seq_len=128))
    assert "learning_rate:" not in run.stderr and "max_seq_len:" not in run.stderr, run


def test_a_loss_that_is_not_finite_names_the_rate_first(setup):
    expect_end(setup.train(learning_rate=1e30, max_steps=4), 7, "not finite. Nothing was updated. Lower learning_rate first (here ",
               "base weights. Examples of this step: ")
