"""The cases of tests/batteries/hostile_battery.py in what a command reads: names, profiles, stored runs, models, adapters and data."""

import gzip
import json
import os
import shutil

from hostile_battery import SECRET, Case

REFUSED = {2, 3, 4, 5}
ESCAPES = "\x1b[31mred\x1b[0m\x1b]0;title\x07\x9b2J\x7f"
GOOD = "model: m\ndatasets: [train.jsonl]\n"


# ---- names -----------------------------------------------------------------------------------------------------------

NAMES = {
    "a newline": "a\nerror: fake", "escapes": "a" + ESCAPES, "quotes": "a'b\"c`touch pwned`$(touch pwned)", "a leading dash": "--overwrite",
    "no UTF-8": b"a\xff\xfe\xc3(", "300 characters": "a" * 300, "5000 characters": "a/" * 2500, "a direction override": "a\u202egpj.exe",
    "dots": "a/../../b", "a brace": "{learning_rate}/{", "a tilde": "~root/x"}


def named(what, command):
    def make(box):
        name = NAMES[what]
        if command == "train --output-dir":
            return box.train(name)
        if command == "merge --adapter":
            try:
                shutil.copytree(os.fsencode(box.world / "adapter"), os.fsencode(box / "sub") + b"/" + os.fsencode(name))
            except OSError:
                pass
            return ["merge", "--model", box.world / "model", b"--adapter=sub/" + os.fsencode(name), "--output-dir", "out", "--no-check"]
        if command == "tokenize --train-data":
            try:
                os.makedirs(os.path.dirname(os.fsencode(box / "data") + b"/" + os.fsencode(name)), exist_ok=True)
                with open(os.fsencode(box / "data") + b"/" + os.fsencode(name), "wb") as file:
                    file.write(b'{"text": 7}\n{"text": "x"}\n')
            except OSError:
                pass
            return ["tokenize", "--model", box.world / "model", b"--train-data=data/" + os.fsencode(name), "--show", "2"]
        return {"check --profile": ["check", b"--profile=" + os.fsencode(name)], "compare": ["compare", b"./" + os.fsencode(name)],
                "generate --prompt": box.generate(b"--prompt=" + os.fsencode(name)), "check --set": ["check", b"--set=" + os.fsencode(name) + b"=1"],
                "init-model --config": ["init-model", b"--config=" + os.fsencode(name), "--tokenizer", "x", "--output-dir", "out"]}[command]
    return Case(f"{command}: a name with {what}", make)


# ---- profiles --------------------------------------------------------------------------------------------------------

def bomb(levels):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    return "\n".join(lines + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, levels)]) + "\n"


PROFILES = {
    "an unknown variable in a path": GOOD + "output_dir: ${NO_SUCH_VARIABLE}\n", "extends of itself": "extends: profile.yaml\n" + GOOD,
    "extends of the password file": "extends: /etc/passwd\n" + GOOD, "extends of a secret": "extends: secret.txt\n" + GOOD,
    "extends of a folder": "extends: .\n" + GOOD, "extends of a pipe": "extends: pipe\n" + GOOD, "extends of 10,000 dots": f"extends: {'../' * 10000}x\n",
    "a YAML bomb": bomb(12), "an alias in itself": "a: &a [*a]\n" + GOOD, "100,000 brackets": "model: " + "[" * 100_000,
    "max_steps 1e300": GOOD + "max_steps: 1e300\n", "max_steps 10^12": GOOD + "max_steps: 1000000000000\n", "a rate that is no number": GOOD + "learning_rate: .nan\n",
    "an infinite rate": GOOD + "learning_rate: .inf\n", "a rank of 10^18": GOOD + "lora_r: 1000000000000000000\n",
    "2^63 tokens": GOOD + "max_seq_len: 9223372036854775808\n", "a Python object": 'model: !!python/object/apply:os.system ["touch pwned"]\n',
    "escapes in a key": GOOD + f'"{ESCAPES}": 1\n'.replace("\x1b", "\\e").replace("\x07", "\\a").replace("\x9b", "\\x9b").replace("\x7f", "\\x7f"),
    "escapes in a value": GOOD + 'optim: "\\e[31mred\\e]0;x\\a"\n', "raw escapes": GOOD + f"optim: {ESCAPES}\n", "NUL bytes": "model: \0\0\n",
    "no UTF-8": b"model: \xff\xfe\n", "a line of 8 MB": GOOD + "run_name: " + "a" * (8 << 20) + "\n", "200,000 datasets": "model: m\ndatasets:\n" + "- x\n" * 200_000,
    "a shell in the name": GOOD + "run_name: '$(touch pwned); touch pwned #'\noutput_dir: out\n"}


def profile(what, is_stopped=False):
    def make(box):
        box.write("secret.txt", f"token: {SECRET}\n{SECRET}\n")
        box.put("fifo", "pipe")
        box.write("profile.yaml", PROFILES[what])
        return box.check("profile.yaml", "--no-files")
    return Case(f"check: {what}", make, {0, *REFUSED}, is_stopped)


def profile_is(kind):
    def make(box):
        if kind == "link to a secret":
            box.link("profile.yaml", box.write("secret.txt", f"{SECRET}: [\n  {SECRET}\n"))
        else:
            box.put("fifo" if kind == "pipe" else kind, "profile.yaml")
        return box.train("out", "--profile", "profile.yaml")
    return Case(f"train: the profile is a {kind}", make, REFUSED)


# ---- stored runs -----------------------------------------------------------------------------------------------------

STORED = {
    "a variable in run_name": ("profile.yaml", "model: m\ndatasets: [x.jsonl]\nrun_name: ${HOSTILE_SECRET}\noutput_dir: out\n"),
    "a variable in model": ("profile.yaml", "model: ${HOSTILE_SECRET}\ndatasets: [x.jsonl]\n"), "extends": ("profile.yaml", "extends: ../secret.txt\nmodel: m\n"),
    "escapes in run_name": ("profile.yaml", 'model: m\ndatasets: [x]\nrun_name: "\\e[31mred\\e]0;x\\a"\n'),
    "escapes in the reason": ("summary.json", json.dumps({"status": "failed" + ESCAPES, "reason": ESCAPES, "run_name": ESCAPES})),
    "no number": ("metrics.jsonl", '{"event": "train", "step": NaN, "loss": 1e999}\n{"event": "train", "step": -1, "loss": "x"}\n'),
    "deep nesting": ("summary.json", "[" * 1_000_000), "a line of 8 MB": ("metrics.jsonl", '{"event": "train", "step": 1, "loss": ' + "1" * (8 << 20) + "}\n"),
    "scripts": ("summary.json", json.dumps({"status": "</script><script>alert(1)</script>", "run_name": "=cmd|'/c calc'!A1"}))}


def stored(what, *flags):
    def make(box):
        run = box.copy("run", "stranger")
        box.write("secret.txt", f"run_name: {SECRET}\n")
        name, content = STORED[what]
        box.write(f"stranger/{name}", content)
        return ["compare", run, *flags]
    return Case(" ".join(["compare", *flags]) + f": a stored run with {what}", make)


def stored_link(kind):
    def make(box):
        run = box.copy("run", "stranger")
        box.write("secret.txt", f"{SECRET}\n")
        for name in ("metrics.jsonl", "summary.json"):
            (run / name).unlink()
            os.mkfifo(run / name) if kind == "pipes" else (run / name).symlink_to(box / "secret.txt")
        return ["compare", run]
    return Case(f"compare: a stored run whose files are {kind}", make)


def stored_in_checkpoint(box):
    """Its profile is read as plain data."""
    run = box.copy("run", "stranger")
    path = run / "checkpoint-2/profile.yaml"
    path.write_text(path.read_text() + "run_name: ${HOSTILE_SECRET}\n")
    return box.train("out", "--resume", run / "checkpoint-2")


# ---- models, adapters, tokenizers ------------------------------------------------------------------------------------

def changed_json(path, **changes):
    path.write_text(json.dumps(dict(json.loads(path.read_text()), **changes)))


def link_to_secret(box, path):
    path.unlink()
    path.symlink_to(box.write("secret.txt", SECRET * 100))


def become(box, kind, path):
    path.unlink()
    box.put(kind, path)


def escaped_name():
    header = json.dumps({ESCAPES: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(4)


ADAPTERS = {
    "a shell in its base": lambda box, config, _: changed_json(config, base_model_name_or_path="org/model; touch pwned #\n$(touch pwned)"),
    "escapes in its base": lambda box, config, _: changed_json(config, base_model_name_or_path=ESCAPES),
    "escapes in a target": lambda box, config, _: changed_json(config, target_modules=[ESCAPES]),
    "escapes in a pattern": lambda box, config, _: changed_json(config, rank_pattern={ESCAPES: 3}),
    "weights that are a link to a secret": lambda box, _, weights: link_to_secret(box, weights),
    "weights that are a pipe": lambda box, _, weights: become(box, "fifo", weights),
    "a header of 2^62 bytes": lambda box, _, weights: weights.write_bytes((1 << 62).to_bytes(8, "little") + b"{}"),
    "escapes in a tensor name": lambda box, _, weights: weights.write_bytes(escaped_name()),
    "a config that is a loop": lambda box, config, _: become(box, "loop", config)}


def with_adapter(what, command):
    def make(box):
        folder = box.copy("adapter", "adapter")
        ADAPTERS[what](box, folder / "adapter_config.json", folder / "adapter_model.safetensors")
        if command == "merge":
            return ["merge", "--model", box.world / "model", "--adapter", folder, "--output-dir", "out", "--no-check"]
        if command == "merge --portable":
            return ["merge", "--portable", "--adapter", folder, "--output-dir", "out"]
        if command == "train":
            return box.train("out", "--set", f"init_adapter={folder}")
        return box.generate(adapter=folder) if command == "generate" else box.evaluate(folder)
    return Case(f"{command}: an adapter with {what}", make)


MODELS = {
    "2^40 dimensions": ("config.json", {"hidden_size": 1 << 40}), "10^9 layers": ("config.json", {"num_hidden_layers": 10**9}),
    "NaN in a number": ("config.json", '{"model_type": "qwen2", "rms_norm_eps": NaN}'), "escapes in its type": ("config.json", {"model_type": ESCAPES}),
    "an index that leads elsewhere": ("model.safetensors.index.json", '{"weight_map": {"a": "../../secret.txt"}}'),
    "a template that loops": ("chat_template.jinja", "{% for a in range(9999999) %}{% for b in range(9999999) %}{% endfor %}{% endfor %}"),
    "a template of a billion letters": ("chat_template.jinja", "{{ 'a' * 1000000000 }}"), "a template that raises escapes": ("chat_template.jinja", "{{ raise_exception('\\x1b[31m' + 'x') }}" + ESCAPES),
    "a template that asks for files": ("chat_template.jinja", "{% include '/etc/passwd' %}{{ ''.__class__.__mro__ }}"),
    "a tokenizer of brackets": ("tokenizer.json", "[" * 500_000), "escapes in a token": ("tokenizer.json", '{"model": {"type": "\\u001b[31m", "vocab": {}}}')}


def with_model(what, command, is_stopped=False):
    def make(box):
        model = box.copy("model", "model")
        box.write("secret.txt", SECRET)
        name, change = MODELS[what]
        if isinstance(change, dict):
            changed_json(model / name, **change)
        else:
            (model / name).write_text(change)
        if name.endswith("index.json"):
            (model / "model.safetensors").unlink()
        return {"generate": box.generate(model=model), "init-model": ["init-model", "--config", model, "--tokenizer", model, "--output-dir", "out"],
                "tokenize": ["tokenize", "--model", model, "--train-data", box.world / "rows.jsonl", "--show", "1"],
                "train": [model if part == box.world / "model" else part for part in box.train("out")]}[command]
    return Case(f"{command}: a model with {what}", make, is_stopped=is_stopped)


# ---- data ------------------------------------------------------------------------------------------------------------

def compressed(content):
    return lambda box: box.write("data.jsonl.gz", gzip.compress(content, 1))


DATA = {
    "escapes in a key": lambda box: box.write("data.jsonl", json.dumps({ESCAPES: ESCAPES}) + "\n"),
    "no UTF-8": lambda box: box.write("data.jsonl", b'{"text": "\xff\xfe\x1b[31m"}\n'), "100,000 brackets": lambda box: box.write("data.jsonl", '{"text": ' + "[" * 100_000),
    "blank lines in gzip": compressed(b"\n" * (256 << 20)), "an example of 64 MB in gzip": compressed(b'{"text": "' + b"a" * (64 << 20) + b'"}\n'),
    "a link to a secret": lambda box: box.link("data.jsonl", box.write("secret.txt", SECRET + "\n")), "a pipe": lambda box: box.put("fifo", "data.jsonl"),
    "a folder of links": lambda box: (box.link("data/a", "../data"), box.link("data/b.jsonl", "b.jsonl"), box.put("fifo", "data/c.jsonl"), box / "data")[-1],
    "numbers in place of text": lambda box: box.write("data.jsonl", '{"text": NaN}\n{"text": 1e999}\n{"text": {}}\n')}


def with_data(what, command, is_stopped=False):
    def make(box):
        data = DATA[what](box)
        if command == "tokenize":
            return box.tokenize(data, "--show", "2")
        if command == "generate --prompts":
            return [*box.generate()[:5], "--prompts", data, "--max-new-tokens", "2"]
        if command == "eval":
            return ["eval", "--model", box.world / "model", "--eval-data", data, "--set", "device=cpu", "--set", "precision=fp32"]
        return [data if part == box.world / "rows.jsonl" else part for part in box.train("out")]
    return Case(f"{command}: data with {what}", make, is_stopped=is_stopped)


CASES = [
    *(named(what, "train --output-dir") for what in NAMES),
    *(named(what, command) for what, command in [
        ("a newline", "compare"), ("escapes", "compare"), ("escapes", "check --profile"), ("a leading dash", "check --profile"), ("no UTF-8", "check --profile"),
        ("escapes", "check --set"), ("escapes", "init-model --config"), ("no UTF-8", "generate --prompt"), ("escapes", "generate --prompt"),
        ("escapes", "tokenize --train-data"), ("a newline", "tokenize --train-data"), ("no UTF-8", "tokenize --train-data"),
        ("quotes", "merge --adapter"), ("escapes", "merge --adapter"), ("a leading dash", "merge --adapter")]),
    *(profile(what, is_stopped="bomb" in what or "8 MB" in what or "200,000" in what) for what in PROFILES),
    *(profile_is(kind) for kind in ("pipe", "folder", "loop", "link to a secret")),
    *(stored(what) for what in STORED), stored("a variable in run_name", "--json"), stored("escapes in the reason", "--csv"),
    stored("scripts", "--html", "page.html"), stored("a variable in run_name", "--html", "page.html"),
    *(stored_link(kind) for kind in ("pipes", "links to a secret")),
    Case("train --resume: a checkpoint with a variable in its profile", stored_in_checkpoint),
    *(with_adapter(what, command) for what, command in [
        ("a shell in its base", "merge --portable"), ("a shell in its base", "train"), ("escapes in its base", "merge"), ("escapes in its base", "generate"),
        ("escapes in a target", "train"), ("escapes in a pattern", "eval"), ("weights that are a link to a secret", "merge"), ("weights that are a pipe", "generate"),
        ("a header of 2^62 bytes", "eval"), ("escapes in a tensor name", "merge"), ("a config that is a loop", "merge --portable")]),
    *(with_model(what, command) for what, command in [
        ("2^40 dimensions", "init-model"), ("2^40 dimensions", "train"), ("10^9 layers", "init-model"), ("NaN in a number", "generate"), ("escapes in its type", "train"),
        ("an index that leads elsewhere", "generate"), ("a template that asks for files", "tokenize"), ("a template that raises escapes", "tokenize"),
        ("a template that raises escapes", "generate"), ("a tokenizer of brackets", "tokenize"), ("escapes in a token", "init-model")]),
    with_model("a template that loops", "tokenize", True), with_model("a template of a billion letters", "train", True),
    *(with_data(what, command, "gzip" in what) for what, command in [
        ("escapes in a key", "train"), ("escapes in a key", "tokenize"), ("no UTF-8", "tokenize"), ("no UTF-8", "generate --prompts"), ("100,000 brackets", "train"),
        ("blank lines in gzip", "tokenize"), ("blank lines in gzip", "eval"), ("an example of 64 MB in gzip", "tokenize"), ("an example of 64 MB in gzip", "generate --prompts"),
        ("a link to a secret", "train"), ("a pipe", "tokenize"), ("a folder of links", "train"), ("numbers in place of text", "eval")]),
]
