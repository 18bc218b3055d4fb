#!/usr/bin/env python3
"""Moves files by scripts/house/moves.txt and renames by scripts/house/words.txt, so that a layout is a table and not a merge.

moves.txt: `old new` per line, for src/, include/ and tests/unit/. Every #include of a moved file, or in one, is spelt anew: a header
under include/ by its path there, one beside its source by its name, another of the module by its path in the module, and a test
names those of other modules from src/ on. Paths of moved files in comments, documents and scripts follow.
words.txt: `scope<TAB>pattern<TAB>replacement` per line; scope is a comma-separated list of path prefixes.

Usage: scripts/house/move.py [--words]   in a clean checkout; with --words the second table alone
"""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = pathlib.Path(__file__).resolve().parent
INCLUDE = re.compile(r'^(\s*#\s*include\s*)"([^"]+)"', re.MULTILINE)
CODE = {".h", ".cpp", ".cu", ".in"}
TEXT = CODE | {".md", ".txt", ".py", ".sh", ".cmake", ".yaml", ".json", ".js"}
NOT_REWRITTEN = ("scripts/house/", "CHANGELOG.md", "bench/results/", "docs/results/")


def tracked():
    return subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).split("\n")[:-1]


def module_of(path):
    parts = path.split("/")
    return {"src": parts[1], "include": parts[2] if len(parts) > 3 else ""}.get(parts[0], "")


def places(includer, name):
    """Where the compiler looks for a quoted name, first first."""
    folder = includer.rpartition("/")[0]
    yield f"{folder}/{name}"
    if name.startswith("lora_train/"):
        yield f"include/{name}"
    if includer.startswith("src/"):
        yield f"src/{module_of(includer)}/{name}"
    if includer.startswith("tests/unit/"):
        yield f"src/{includer.split('/')[2]}/{name}"
    for top in ("tests", "src", "src/kernels"):
        yield f"{top}/{name}"


def normal(path):
    parts = []
    for part in path.split("/"):
        if part == ".." and parts:
            parts.pop()
        elif part not in ("", "."):
            parts.append(part)
    return "/".join(parts)


def spelling(includer, header):
    """How a file includes a header, by their new paths."""
    if header.startswith("include/"):
        return header.removeprefix("include/")
    if includer.rpartition("/")[0] == header.rpartition("/")[0]:
        return header.rpartition("/")[2]
    if header.startswith("src/"):
        module = module_of(header)
        near = includer.split("/")[2] if includer.startswith("tests/unit/") else module_of(includer)
        return header.removeprefix(f"src/{module}/" if module == near else "src/")
    return header.removeprefix("tests/")


def move(moves):
    files = tracked()
    known = set(files)
    new_path = {path: moves.get(path, path) for path in files}
    text = {}
    for path in files:
        if pathlib.Path(path).suffix not in CODE:
            continue
        content = (ROOT / path).read_text(encoding="utf-8")

        def rewritten(match, path=path):
            for place in places(path, match[2]):
                if normal(place) in known:
                    header = normal(place)
                    if new_path[path] == path and new_path[header] == header:
                        return match[0]
                    return f'{match[1]}"{spelling(new_path[path], new_path[header])}"'
            return match[0]

        text[path] = INCLUDE.sub(rewritten, content)
    for old, new in moves.items():
        (ROOT / new).parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["git", "mv", old, new], cwd=ROOT, check=True)
    for path, content in text.items():
        (ROOT / new_path[path]).write_text(content, encoding="utf-8")
    rename_in_text(moves)


def rename_in_text(moves):
    """Paths of moved files that stand in comments, documents and scripts: whole, or from the module on."""
    table = {}
    for old, new in moves.items():
        table[old] = new
        for top in ("src/", "include/lora_train/"):
            if old.startswith(top) and old.count("/") > top.count("/"):
                table.setdefault(old.removeprefix(top), re.sub(r"^(src|include/lora_train)/", "", new))
    pattern = re.compile(r"(?<![\w/.-])((?:src/|include/lora_train/|tests/unit/)?[a-z_]+(?:/[a-z0-9_]+)*/[a-z0-9_]+\.(?:h|cpp|cu|txt))(?![\w])")
    for path in tracked():
        if pathlib.Path(path).suffix not in TEXT or path.startswith(NOT_REWRITTEN) or not (ROOT / path).is_file():
            continue
        content = (ROOT / path).read_text(encoding="utf-8")
        lines = []
        for line in content.split("\n"):
            if not INCLUDE.match(line):
                line = pattern.sub(lambda match: table.get(match[1], match[1]), line)
            lines.append(line)
        if "\n".join(lines) != content:
            (ROOT / path).write_text("\n".join(lines), encoding="utf-8")


def rename_words():
    rules = []
    for line in (HERE / "words.txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            scope, pattern, replacement = line.split("\t")
            rules.append((tuple(scope.split(",")), re.compile(pattern), replacement))
    for path in tracked():
        if pathlib.Path(path).suffix not in TEXT or path.startswith(NOT_REWRITTEN):
            continue
        content = (ROOT / path).read_text(encoding="utf-8")
        changed = content
        for scope, pattern, replacement in rules:
            if path.startswith(scope):
                changed = pattern.sub(replacement, changed)
        if changed != content:
            (ROOT / path).write_text(changed, encoding="utf-8")


def main():
    if sys.argv[1:] == ["--words"]:
        rename_words()
        return
    move(dict(line.split() for line in (HERE / "moves.txt").read_text(encoding="utf-8").splitlines()))


if __name__ == "__main__":
    main()
