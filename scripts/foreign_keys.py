#!/usr/bin/env python3
"""Lists the keys and defaults of Axolotl, LLaMA-Factory and TRL, as their own classes declare them.

    pip download --no-deps -d WHEELS axolotl==0.19.0 llamafactory==0.9.5 trl==1.16.0 transformers==4.57.6
    pip download --no-deps -d WHEELS transformers==5.6.0
    scripts/foreign_keys.py WHEELS            # writes tests/unit/convert/foreign_keys/*.yaml
    scripts/foreign_keys.py WHEELS --check    # exits with 1 where they differ

An entry is `key` or `key: default`; a default that is no constant is left out. Only names and constants are read, from the syntax
tree; nothing is imported. What lora-train convert knows of each key is in src/convert/keys, and convert_test compares.
"""

import argparse
import ast
import json
import sys
import zipfile
from pathlib import Path

LISTS = Path(__file__).resolve().parent.parent / "tests/unit/convert/foreign_keys"

TRAINER = ["transformers/training_args.py", "transformers/training_args_seq2seq.py"]
TOOLS = {
    "axolotl": [("axolotl", ["axolotl/utils/schemas/"], ["AxolotlInputConfig"])],
    "llamafactory": [("transformers", TRAINER, ["Seq2SeqTrainingArguments"]),
                     ("llamafactory", ["llamafactory/hparams/"],
                      ["ModelArguments", "DataArguments", "TrainingArguments", "FinetuningArguments", "GeneratingArguments"])],
    "trl": [("transformers", TRAINER, ["TrainingArguments"]),
            ("trl", ["trl/scripts/utils.py", "trl/trainer/base_config.py", "trl/trainer/sft_config.py", "trl/trainer/model_config.py"],
             ["ScriptArguments", "SFTConfig", "ModelConfig", "DatasetMixtureConfig"])],
}


def classes_of(wheel, places):
    """The classes of the wheel's files under `places`, by name."""
    found = {}
    with zipfile.ZipFile(wheel) as archive:
        for name in sorted(archive.namelist()):
            if name.endswith(".py") and any(name.startswith(place) for place in places):
                for node in ast.walk(ast.parse(archive.read(name))):
                    if isinstance(node, ast.ClassDef):
                        found[node.name] = node
    return found


def name_of(node):
    return getattr(node, "id", getattr(node, "attr", ""))


def declared(value):
    """The default and the alias of a field's declaration; the default is an AST node or None."""
    if not (isinstance(value, ast.Call) and name_of(value.func) in ("Field", "field")):
        return value, None
    words = {word.arg: word.value for word in value.keywords}
    alias = words.get("alias")
    return words.get("default", value.args[0] if value.args else None), alias and ast.literal_eval(alias)


def is_internal(value):
    return isinstance(value, ast.Call) and any(word.arg == "init" for word in value.keywords)


def keys_of(classes, name):
    """The fields of a class and its bases: {key: default node or None}."""
    node, keys = classes.get(name), {}
    if node is None:
        return keys
    for base in reversed(node.bases):
        keys.update(keys_of(classes, name_of(base)))
    for field in node.body:
        if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)):
            continue
        key = field.target.id
        if "ClassVar" in ast.unparse(field.annotation) or key.startswith("_") or key == "model_config" or is_internal(field.value):
            continue
        default, alias = declared(field.value)
        keys[key] = default
        if alias:
            keys[alias] = default
    return keys


def constant(node):
    """The default as YAML, or None."""
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError):
        return None
    return json.dumps(value) if isinstance(value, (str, int, float, bool)) else None


def list_of(tool, wheels):
    keys = {}
    for package, places, names in TOOLS[tool]:
        found = [wheel for wheel in wheels if wheel.name.split("-")[0] == package]
        if not found:
            sys.exit(f"foreign_keys.py: no wheel of {package}; how to get it stands at the top of this script")
        for wheel in found:  # later versions win
            classes = classes_of(wheel, places)
            for name in names:
                assert name in classes, f"{wheel.name} has no class {name}"
                keys.update(keys_of(classes, name))
    defaults = {key: None if node is None else constant(node) for key, node in keys.items()}
    return [key + (f": {defaults[key]}" if defaults[key] is not None else "") for key in sorted(defaults)]


def map_of(entries):
    """A YAML map with a new line at each first letter, so that a new key moves few others."""
    lines = []
    for entry in entries:
        if lines and entry[0] == lines[-1][2] and len(lines[-1]) + len(entry) < 148:
            lines[-1] += f" {entry},"
        else:
            lines.append(f"  {entry},")
    return "\n".join(["{", *lines, "}"]) + "\n"


def version(wheel):
    return [int(part) if part.isdigit() else 0 for part in wheel.name.split("-")[1].split(".")]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("wheels", type=Path, help="folder with the wheels")
    parser.add_argument("--check", action="store_true", help="compare with what is committed instead of writing it")
    arguments = parser.parse_args()
    wheels = sorted(arguments.wheels.glob("*.whl"), key=version)
    LISTS.mkdir(exist_ok=True)
    differ = False
    for tool in TOOLS:
        entries, file = list_of(tool, wheels), LISTS / f"{tool}.yaml"
        text = map_of(entries)
        if not arguments.check:
            file.write_text(text)
        elif file.read_text() != text:
            differ = True
            print(f"{file}: not what the wheels say", file=sys.stderr)
        print(f"{tool}: {len(entries)} keys")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
