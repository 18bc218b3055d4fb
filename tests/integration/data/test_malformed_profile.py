"""Malformed profiles: exit code 2, with file:line and words of each, from `lora-train check`."""

import json

import pytest
from malformed import USAGE, Case, assert_enough, assert_refused, fifo, ids, run_quickly

GOOD_LINES = "model: m\ndatasets: [train.jsonl]\n"  # lines 1 and 2 of every YAML case
PROFILE = "profile.yaml"


class Files:
    """Profiles in a folder, and the arguments that name them."""

    def __init__(self, folder):
        self.folder, self.arguments = folder, ["--profile", PROFILE]

    def write(self, content, name=PROFILE):
        (self.folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())

    def json(self, content):
        self.write(content, "profile.json")
        self.arguments = ["--profile", "profile.json"]


def lines(content):
    """These lines after the good ones."""
    return lambda files: files.write(GOOD_LINES + content + "\n")


def whole(content):
    return lambda files: files.write(content)


def text_of_json(content):
    return lambda files: files.json(content)


def settings(*texts):
    def make(files):
        files.write(GOOD_LINES)
        for text in texts:
            files.arguments += ["--set", text]
    return make


def profiles(**contents):
    """Files by name without ending; `profile` is the one that is asked for."""
    def make(files):
        for name, content in contents.items():
            files.write(content, name + ".yaml")
    return make


def refused(name, make, place, *words):
    return Case(name, make, place, words, USAGE)


def value(name, line, *words):
    """One more line, whose key is at fault."""
    return refused(name, lines(line), f"{PROFILE}:3", line.split(":")[0] + ": ", *words)


def bomb():
    levels = ["a: &a [x,x,x,x,x,x,x,x,x]"]
    for level in "bcdefghi":
        before = "*" + chr(ord(level) - 1)
        levels.append(f"{level}: &{level} [{','.join([before] * 9)}]")
    return "\n".join(levels) + "\n"


def doubling(files):
    """Thirty files that name the next one twice: a thousand million readings of the last."""
    for number in range(30):
        files.write(f"extends: [p{number + 1}.yaml, p{number + 1}.yaml]\n", f"p{number}.yaml")
    files.write(GOOD_LINES, "p30.yaml")
    files.write("extends: p0.yaml\n")


def chain(files):
    for number in range(5000):
        files.write(f"extends: p{number + 1}.yaml\n", f"p{number}.yaml")
    files.write("extends: p0.yaml\n")


SYNTAX = [
    refused("missing_file", lambda f: None, PROFILE, "no such file, and no shipped profile of that name"),
    refused("folder", lambda f: (f.folder / PROFILE).mkdir(), PROFILE, "is a folder"),
    refused("pipe", lambda f: fifo(f.folder / PROFILE), PROFILE, "a pipe or a device"),
    refused("near_a_shipped_name", lambda f: f.arguments.__setitem__(1, "tiny_cpy"), "tiny_cpy", 'Did you mean "tiny_cpu"?'),
    refused("list_at_the_top", whole("- model: m\n- datasets: x\n"), f"{PROFILE}:1", "a profile is a map"),
    refused("one_word", whole("hello\n"), f"{PROFILE}:1", "a profile is a map"),
    refused("html_page", whole("<html><body>404 Not Found</body></html>\n"), f"{PROFILE}:1", "a profile is a map"),
    refused("tab_before_a_key", whole("model: m\ndatasets:\n\t- path: x\n"), f"{PROFILE}:3", "a tab in the indentation"),
    refused("bracket_never_closed", whole("model: m\ndatasets: [x\nlora_r: 8\n"), f"{PROFILE}:3", "not valid YAML or JSON"),
    refused("quote_never_closed", lines('run_name: "mine'), f"{PROFILE}:3", "not valid YAML or JSON"),
    refused("two_colons", lines("run_name: a: b"), f"{PROFILE}:3", "not valid YAML or JSON"),
    refused("wrong_indentation", lines("lora_r: 8\n  lora_alpha: 16"), f"{PROFILE}:4", "not valid YAML or JSON"),
    refused("key_twice", lines("lora_r: 8\nlora_r: 16"), f"{PROFILE}:4", "lora_r: occurs twice", f"{PROFILE}:3"),
    refused("key_that_is_a_list", lines("? [a, b]\n: 1"), f"{PROFILE}:3", "a key must be text"),
    refused("two_documents", lines("---\nlora_r: 8"), PROFILE, "more than one YAML document"),
    refused("unknown_alias", lines("add_tokens: *mine"), f"{PROFILE}:3", "anchor is not defined"),
    refused("alias_bomb", whole(bomb()), f"{PROFILE}:5", "more than 10000 values"),
    refused("nesting_without_end", lines("lora_r: " + "[" * 100_000), f"{PROFILE}:3", "nested too deep"),
    refused("many_keys", lines("\n".join(f"key{n}: 1" for n in range(4000))), f"{PROFILE}:3", "and 3950 more mistakes"),
    refused("endless_key", lines("? " + "k" * 2_000_000 + "\n: 1"), f"{PROFILE}:3", "a key of 2000000 characters"),
    refused("endless_value", lines("lora_r: " + "8" * 2_000_000), f"{PROFILE}:3", 'got "888', "expected an integer"),
    refused("ten_megabytes", lines("# " + "x" * 10_000_000), PROFILE, "larger than 4 MiB"),
    refused("latin_1", lambda f: f.write((GOOD_LINES + "run_name: caf\xe9\n").encode("latin-1")), f"{PROFILE}:3", "not valid UTF-8"),
    refused("utf16", lambda f: f.write(GOOD_LINES.encode("utf-16")), PROFILE, "UTF-8"),
    refused("zero_byte_in_a_path", lines('output_dir: "runs/a\\0b"'), f"{PROFILE}:3", "a NUL byte"),
    refused("yaml_of_the_future", whole("%YAML 9.9\n---\n" + GOOD_LINES), f"{PROFILE}:1", "version"),
    refused("python_tag", lines("lora_r: !!python/object/apply:os.system [ls]"), f"{PROFILE}:3", "lora_r: got a list"),
    refused("merge_key_of_a_number", lines("<<: 8"), f"{PROFILE}:3", "<<: expected a map"),
    refused("json_cut_short", text_of_json('{"model": "m",\n"datasets": ["d"]'), "profile.json:2", "not valid YAML or JSON"),
    refused("json_with_more_behind", text_of_json('{"model": "m", "datasets": ["d"]} {"lora_r": 8}'), "profile.json",
            "what follows the last brace"),
    refused("json_key_twice", text_of_json('{"model": "m",\n"datasets": ["d"],\n"model": "n"}'), "profile.json:3",
            "model: occurs twice"),
]

KEYS = [
    refused("nothing_required", whole("lora_r: 8\n"), PROFILE, "model: missing", "datasets: missing"),
    value("typing_mistake", "weigth_decay: 0.1", "unknown key", 'Did you mean "weight_decay"?'),
    value("wrong_case", "Lora_R: 8", "unknown key", '"lora_r"'),
    value("key_of_another_trainer", "zero_stage: 3", "the model is never sharded"),
    value("fp16", "fp16: true", "bf16"),
    refused("two_names_for_one_thing", lines("lr: 1e-4\nlearning_rate: 2e-4"), f"{PROFILE}:4", "means the same as lr"),
    refused("two_kinds_of_batch", lines("global_batch_size: 8\ngradient_accumulation_steps: 2"), f"{PROFILE}:4", "conflicts with"),
    refused("two_kinds_of_warmup", lines("warmup_steps: 10\nwarmup_ratio: 0.1"), f"{PROFILE}:4", "conflicts with warmup_steps"),
    refused("two_kinds_of_evaluation", lines("val_set_size: 0.1\neval_datasets: [x]"), f"{PROFILE}:4", "conflicts with"),
    refused("four_and_eight_bits", lines("load_in_4bit: true\nload_in_8bit: true"), f"{PROFILE}:4", "means the same"),
    refused("member_of_a_dataset", whole("model: m\ndatasets:\n  - path: x\n    tpye: text\n"), f"{PROFILE}:4",
            "datasets[0].tpye: unknown key", '"type"'),
    refused("dataset_without_a_path", whole("model: m\ndatasets:\n  - type: text\n"), f"{PROFILE}:3", "datasets[0]: has no path"),
    refused("dataset_of_lists", whole("model: m\ndatasets: [[x]]\n"), f"{PROFILE}:2", "datasets[0]: got a list"),
    refused("no_dataset", whole("model: m\ndatasets: []\n"), f"{PROFILE}:2", "datasets: missing"),
    refused("dataset_weight", whole("model: m\ndatasets: [{path: x, weight: 0}]\n"), f"{PROFILE}:2", "a number > 0"),
    refused("dataset_type", whole("model: m\ndatasets: [{path: x, type: mesages}]\n"), f"{PROFILE}:2", '"messages"'),
]

VALUES = [
    value("text_for_a_number", "lora_r: many", 'got "many", expected an integer'),
    value("list_for_a_number", "learning_rate: [1e-4]", "got a list"),
    value("map_for_a_text", "run_name: {a: b}", "got a map"),
    value("zero_rank", "lora_r: 0", "1 <= x <= 65536"),
    value("half_a_rank", "lora_r: 8.5", "expected an integer"),
    value("hexadecimal", "lora_r: 0x10", "expected an integer"),
    value("nan", "learning_rate: .nan", "expected a number > 0"),
    value("infinity", "max_grad_norm: .inf", "expected"),
    value("negative_rate", "learning_rate: -1e-4", "expected a number > 0"),
    value("beyond_64_bits", "max_steps: 99999999999999999999", "expected"),
    value("dropout_of_one", "lora_dropout: 1", "0 <= x < 1"),
    value("warmup_over_one", "warmup_ratio: 1.5", "expected"),
    value("perhaps", "packing: perhaps", "expected true or false"),
    value("unknown_word", "lr_scheduler_type: cosin", 'Did you mean "cosine"?'),
    value("time_without_a_unit_known", "max_time: 2 weeks", "2h30m"),
    value("save_steps", "save_steps: 1.5", "a number of steps"),
    value("no_targets", "lora_target_modules: []", "an empty list"),
    refused("rank_of_a_pattern", lines("rank_pattern: {q_proj: -1}"), f"{PROFILE}:3", "rank_pattern.q_proj: got", "an integer"),
    value("wandb", "report_to: wandb", "wandb sync"),
    value("mlflow", "report_to: [tensorboard, mlflow]", "mlflow.log_metrics("),
    refused("best_without_evaluation", lines("load_best_model_at_end: true"), f"{PROFILE}:3", "needs evaluation data"),
    refused("quantised_and_trained", lines("adapter: none\nbase_precision: nf4"), f"{PROFILE}:4", "cannot be trained"),
]

REFERENCES = [
    value("variable_not_set", "run_name: ${LORA_TRAIN_NO_SUCH}", "LORA_TRAIN_NO_SUCH is not set"),
    value("variable_never_closed", "run_name: ${HOME", "no closing brace"),
    value("variable_with_a_space", "run_name: ${MY NAME}", "is not a variable"),
    value("variable_in_a_default", "run_name: ${LORA_TRAIN_NO_SUCH:-${HOME}}", "has a variable in its default"),
    value("placeholder_unknown", "output_dir: runs/{learning_rat}", 'Did you mean "learning_rate"?'),
    value("placeholder_of_a_list", "output_dir: runs/{datasets}", "is a list or a map"),
    value("placeholder_never_closed", "output_dir: runs/{lora_r", "no closing brace"),
    value("placeholder_of_itself", "output_dir: runs/{output_dir}", "is not a key"),
    refused("placeholder_that_leads_up", lines('output_dir: runs/{run_name}\nrun_name: ".."'), f"{PROFILE}:3", "another folder"),
    refused("extends_itself", lines(f"extends: {PROFILE}"), f"{PROFILE}:3", "forms a cycle: profile.yaml -> profile.yaml"),
    refused("extends_in_a_circle", profiles(profile="extends: a.yaml\n", a="extends: profile.yaml\n"), "a.yaml:1",
            "profile.yaml -> a.yaml -> profile.yaml"),
    refused("extends_nothing", lines("extends: base.yaml"), f"{PROFILE}:3", '"base.yaml": no such file'),
    refused("extends_a_map", lines("extends: {a: b}"), f"{PROFILE}:3", "expected a file name"),
    refused("extends_a_folder", lambda f: [(f.folder / "d").mkdir(), lines("extends: d")(f)], f"{PROFILE}:3", "is a folder"),
    refused("mistake_in_a_base", profiles(profile="extends: a.yaml\n" + GOOD_LINES, a="seed: x\n"), "a.yaml:1", "seed: got"),
    refused("extends_twice_and_twice", doubling, ".yaml", "more than 200 files"),
    refused("extends_without_end", chain, ".yaml", "more than 200 files"),
]

SETTINGS = [
    refused("setting_without_a_value", settings("lora_r"), "--set", '"lora_r" is not a setting'),
    refused("setting_of_an_unknown_key", settings("lora_rnk=8"), "--set", "lora_rnk: unknown key"),
    refused("setting_with_a_bad_value", settings("lora_r=x"), "--set", "lora_r: got"),
    refused("setting_of_no_item", settings("datasets[7].path=x"), "--set", "there is no item 7"),
    refused("setting_of_no_place", settings("datasets[=x"), "--set", "is not a place in a profile"),
    refused("setting_with_an_open_bracket", settings("datasets=[x"), "--set", "not valid YAML or JSON"),
]

CASES = SYNTAX + KEYS + VALUES + REFERENCES + SETTINGS


@pytest.fixture
def files(tmp_path):
    return Files(tmp_path)


def check(files):
    return run_quickly("check", "--json", "--no-files", *files.arguments, cwd=files.folder)


@pytest.mark.parametrize("case", CASES, ids=ids(CASES))
def test_is_refused(files, case):
    case.make(files)
    assert_refused(check(files), case)


def test_the_unbroken_profile_is_accepted(files):
    """With byte order mark, anchors, CRLF and a comment: what is odd but good."""
    files.write("\ufeff" + GOOD_LINES.replace("\n", "\r\n") + "lora_target_modules: &t [a]  # \U0001f642\r\nrun_name: caf\xe9\r\n")
    run = check(files)
    assert run.code == 0, run
    assert json.loads(run.stdout)["run_name"] == "caf\xe9"


def test_what_cannot_be_parsed_is_the_only_mistake(files):
    files.write("model: [m\n")
    run = check(files)
    assert run.code == USAGE and ": missing" not in run.stderr, run


def test_there_are_enough_cases():
    assert_enough(CASES, 40)
