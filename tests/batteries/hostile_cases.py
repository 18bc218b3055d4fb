"""The cases of tests/batteries/hostile_battery.py: output folders and links here; names, profiles and files in hostile_inputs.py."""

import os
import subprocess
from pathlib import Path

import hostile_inputs
from hostile_battery import SECRET, Case

REFUSED = {2, 3, 4, 5}


# ---- folders of other tools ------------------------------------------------------------------------------------------

FOREIGN = {  # {path: content}
    "hugging_face": {
        **{f"checkpoint-{step}/{name}": content for step in (2, 500) for name, content in [
            ("trainer_state.json", f'{{"global_step": {step}, "log_history": [], "epoch": 1.0}}'), ("adapter_model.safetensors", bytes(range(256))),
            ("optimizer.pt", b"PK\3\4")]},
        "adapter_model.safetensors": bytes(64), "adapter_config.json": '{"peft_type": "LORA", "r": 8}', "training_args.bin": bytes(64),
        "runs/Nov23_host/events.out.tfevents.1.host": bytes(64)},
    "axolotl": {
        **dict.fromkeys(["config.yml", "prepared/data-00000.arrow", "merged/model.safetensors", "checkpoint-7/rng_state.pth", "debug.log"], "mine\n"),
        "README.md": "---\nlibrary_name: peft\n---\n"},
    "wandb": {"run-20261123-abc/files/config.yaml": "mine\n", "run-20261123-abc/run-abc.wandb": bytes(64), "latest-run": Path("run-20261123-abc")},
    "git": {
        **dict.fromkeys(["README.md", "config.json", "src/train.py", "model/weights.txt", "adapter/notes.txt"], "mine\n"),
        ".git/HEAD": "ref: refs/heads/main\n", ".git/objects/ab/cdef": bytes(64)},
    "home": {
        **dict.fromkeys([".bashrc", ".ssh/id_ed25519", "thesis.tex", "run.log", "model/photo.jpg"], "mine\n"),
        ".netrc": f"machine hub login me password {SECRET}\n", ".cache/huggingface/token": SECRET},
    "lightning": dict.fromkeys(["version_0/metrics.csv", "version_0/hparams.yaml", "checkpoints/epoch=1.ckpt", "metrics.jsonl", "summary.json"], "mine\n")}
WRITERS = {
    "train": lambda box, out: box.train(out), "train --overwrite": lambda box, out: box.train(out, "--overwrite"),
    "train --dry-run": lambda box, out: box.train(out, "--dry-run"),
    "merge --overwrite": lambda box, out: box.merge(out, "--overwrite"),
    "merge --portable": lambda box, out: ["merge", "--portable", "--adapter", box.world / "adapter", "--output-dir", out, "--overwrite"],
    "init-model --overwrite": lambda box, out: box.init_model(out, "--overwrite"), "compare": lambda box, out: ["compare", out]}


def put_foreign(box, folder):
    for path, content in FOREIGN[folder].items():
        (box.link if isinstance(content, Path) else box.write)(f"theirs/{path}", content)


def in_foreign(folder, command):
    def make(box):
        put_foreign(box, folder)
        return WRITERS[command](box, box / "theirs")
    # train adds its files beside those that are not in its way
    return Case(f"{command} in a folder of {folder}", make)


def resume_foreign(box):
    put_foreign(box, "hugging_face")
    return box.train("out", "--resume", box / "theirs/checkpoint-500")


# ---- a file, folder or link under a name of ours ---------------------------------------------------------------------

NAMES = ["run.json", "metrics.jsonl", "run.log", "summary.json", "report.html", "profile.yaml", ".lora-train.lock", "adapter",
         "tensorboard", ".lora-train-replaced", "checkpoint-2", ".tmp-checkpoint-2-1", ".tmp-notes"]


def foreign_name(name, *flags):
    def make(box):
        is_folder = not name.endswith((".json", ".jsonl", ".log", ".html", ".yaml", ".lock", "notes"))
        box.write(f"theirs/{name}/mine" if is_folder else f"theirs/{name}", '{"status": "done", "step": 9}\n')
        return box.train(box / "theirs", *flags)
    return Case(" ".join(["train", *flags, "over a foreign", name]), make)


def special(kind, name, *flags):
    """In a finished run, `name` is something else; the file that a link leads to is foreign."""
    def make(box):
        run = box.own_run()
        subprocess.run(["rm", "-rf", str(run / name)], check=True)
        box.put("link to a device" if kind == "device" else kind, run / name)
        return box.train(run, *flags, "--set", "max_steps=3")
    return Case(" ".join(["train", *flags, "where", name, "is a", kind]), make, needs_root=kind == "device")


# ---- output folders that are links or cannot be written --------------------------------------------------------------

def output_is(kind, command):
    def make(box):
        box.write("theirs/precious", "precious\n")
        if kind == "link to a foreign folder":
            out = box.link("out", "theirs")
        elif kind == "folder below a file":
            out = box.put("file", "file") / "out"
        else:
            out = box.put(kind, "out")
        return WRITERS[command](box, out)
    return Case(f"{command} to a {kind}", make, needs_root=kind == "null device")


def unreadable(what, command):
    """As a user without rights."""
    def make(box):
        box.is_nobody = True
        box.write("theirs/precious", "precious\n")
        mode = {"a read-only folder": 0o555, "an unreadable folder": 0o333, "a closed folder": 0}[what]
        os.chmod(box / "theirs", mode)
        return WRITERS[command](box, box / "theirs" / "out" if mode == 0o555 else box / "theirs")
    return Case(f"{command} in {what}", make, REFUSED, needs_root=True)


def immutable(box):
    out = box.own_run()
    done = subprocess.run(["chattr", "+i", str(out / "metrics.jsonl")], capture_output=True)
    if done.returncode != 0:
        os.chmod(out / "metrics.jsonl", 0o444)
    return box.train(out, "--overwrite")


def give_back(folder):
    """Lets immutable files be deleted."""
    subprocess.run(["chattr", "-R", "-f", "-i", str(folder)], capture_output=True)


# ---- single files that commands write --------------------------------------------------------------------------------

FILE_WRITERS = {
    "generate --output": lambda box, file: box.generate("--output", file), "compare --csv": lambda box, file: ["compare", box.world / "run", "--csv", file],
    "compare --html": lambda box, file: ["compare", box.world / "run", "--html", file],
    "bench --profile-trace": lambda box, file: ["bench", "--shape", "tiny-qwen2", "--steps", "1", "--warm-up", "0", "--profile-trace", file,
                                                "device=cpu", "max_seq_len=64"]}


def file_is(kind, command):
    def make(box):
        file = box / "answers.jsonl"
        if kind == "foreign settings file":
            box.write("answers.jsonl.settings.json", '{"theme": "dark"}')
        elif kind == "foreign file":
            file.write_text('{"prompt": "not ours"}\nno json\n')
        elif kind == "file in no folder":
            file = box / "no/such/folder/answers.jsonl"
        else:
            box.put(kind, file)
        return FILE_WRITERS[command](box, file)
    return Case(f"{command} to a {kind}", make, needs_root="device" in kind)


CASES = [
    *(in_foreign(folder, command) for folder in FOREIGN for command in ("train", "train --overwrite", "merge --overwrite", "init-model --overwrite")),
    in_foreign("hugging_face", "train --dry-run"), in_foreign("git", "merge --portable"), in_foreign("home", "compare"), in_foreign("lightning", "compare"),
    Case("train --resume from a checkpoint of Hugging Face", resume_foreign, REFUSED),
    *(foreign_name(name, "--overwrite") for name in NAMES), foreign_name("metrics.jsonl"), foreign_name("adapter"),
    *(special(kind, name, "--overwrite") for kind, name in [
        ("link to a file", "metrics.jsonl"), ("link to a file", ".lora-train.lock"), ("link to a file", "profile.yaml"),
        ("link to a folder", "checkpoint-2"), ("link to a folder", "adapter"), ("link to a folder", "tensorboard"),
        ("link to a folder", ".lora-train-replaced"), ("dangling link", "run.log"), ("loop", "run.json"), ("fifo", "run.log"),
        ("fifo", ".lora-train.lock"), ("socket", "summary.json"), ("device", "report.html")]),
    *(special(kind, name) for kind, name in [("link to a file", "run.log"), ("link to a file", "report.html"), ("fifo", "metrics.jsonl"),
                                             ("link to a folder", "checkpoint-1"), ("dangling link", ".lora-train.lock")]),
    *(output_is(kind, command) for kind, command in [
        ("link to a foreign folder", "train --overwrite"), ("link to a foreign folder", "merge --overwrite"),
        ("link to a foreign folder", "init-model --overwrite"), ("dangling link", "train"), ("dangling link", "merge --overwrite"),
        ("loop", "train"), ("loop", "init-model --overwrite"), ("file", "train --overwrite"), ("file", "merge --overwrite"),
        ("fifo", "train"), ("fifo", "init-model --overwrite"), ("null device", "merge --overwrite"), ("folder below a file", "train")]),
    *(unreadable(what, command) for what, command in [
        ("a read-only folder", "train"), ("a read-only folder", "merge --overwrite"), ("an unreadable folder", "train --overwrite"),
        ("a closed folder", "init-model --overwrite")]),
    Case("train --overwrite over a file that cannot be changed", immutable, needs_root=True),
    *(file_is(kind, command) for kind, command in [
        ("link to a file", "generate --output"), ("folder", "generate --output"), ("fifo", "generate --output"),
        ("null device", "generate --output"), ("foreign file", "generate --output"), ("foreign settings file", "generate --output"), ("file in no folder", "generate --output"),
        ("link to a file", "compare --csv"), ("folder", "compare --csv"), ("null device", "compare --csv"), ("fifo", "compare --html"),
        ("link to a device", "compare --html"), ("file in no folder", "compare --html"), ("link to a file", "bench --profile-trace"),
        ("fifo", "bench --profile-trace"), ("null device", "bench --profile-trace")]),
    *hostile_inputs.CASES,
]
