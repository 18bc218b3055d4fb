#!/usr/bin/env python3
"""Holds the module table: says of every #include in src/ and include/ whether cmake/module_deps.txt allows it.

  - "lora_train/<module>/..." only of the module itself and of those in its row of the table, and that holds for what a
    header brings in as well: a row names all that its sources come to see;
  - core modules never see LibTorch (ATen, torch, c10), neither directly nor through a lora_train header;
  - public headers hide nlohmann/json, yaml-cpp, torch/torch.h and CUDA;
  - .cu files, *_parts.h and native_kernels.h never see LibTorch, so that nvcc does not parse it;
  - headers that are private to a module (src/<module>/*.h) stay in it;
  - include/ holds exactly the headers that another module sees, directly or through a header there (tests do not count), and each
    that has a source lies where its source lies;
  - the folders of a module in LAYERED include each other one way only.
And of every tests/unit/.../*_test.cpp whether the nearest CMakeLists.txt names it: a test that is not built proves nothing.

Prints file:line for each violation and exits 1 when there are any. --self-test plants violations and expects them.
"""

import argparse
import pathlib
import re
import sys
import tempfile

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
TORCH = re.compile(r"^(ATen|torch|c10|caffe2)/")
HIDDEN_IN_PUBLIC_HEADERS = re.compile(r"^(nlohmann/|yaml-cpp/|torch/(torch|all)\.h$|cuda|cublas|cudnn|nccl)")
LAYERED = ["cli", "config", "data"]
SOURCE_SUFFIXES = {".h", ".cpp", ".cu", ".cuh"}


class Module:
    def __init__(self, name, is_core, may_include):
        self.name, self.is_core, self.may_include = name, is_core, may_include


def read_table(path):
    """module_deps.txt as {name: Module}."""
    modules = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        row = re.fullmatch(r"([a-z_]+)\s+(core|torch)\s*:(.*)", line)
        if not row:
            sys.exit(f"{path}:{number}: expected `module core|torch : modules`, found `{line}`")
        modules[row[1]] = Module(row[1], row[2] == "core", set(row[3].split()))
    return modules


def includes_of(path):
    """[(line, is_quoted, name)] of a file."""
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        match = INCLUDE.match(line)
        if match:
            found.append((number, match[1] == '"', match[2]))
    return found


def seen_through(root, header, visited=None):
    """[(lora_train header or LibTorch header, the header that includes it)]: all that a lora_train header brings in."""
    visited = {header} if visited is None else visited
    path = root / "include" / header
    found = []
    for _, _, name in includes_of(path) if path.is_file() else []:
        if name in visited or not (name.startswith("lora_train/") or TORCH.match(name)):
            continue
        visited.add(name)
        found.append((name, header))
        found += seen_through(root, name, visited)
    return found


def wrong_module(module, modules, name):
    other = name.split("/")[1]
    if other not in modules:
        return f"no module `{other}` in cmake/module_deps.txt"
    if other != module.name and other not in module.may_include:
        allowed = " ".join(sorted(module.may_include)) or "nothing but the standard library"
        return f"module {module.name} may not include {other} (allowed: {allowed})"
    return None


def check_lora_train_include(root, module, modules, name):
    wrong = wrong_module(module, modules, name)
    if wrong:
        return wrong
    for seen, through in seen_through(root, name):
        if TORCH.match(seen):
            if module.is_core:
                return f"core module {module.name} sees <{seen}> through {through}"
            continue
        wrong = wrong_module(module, modules, seen)
        if wrong:
            return f"{wrong}; {through} includes {seen}"
    return None


def check_include(root, path, module, modules, is_quoted, name):
    """What is wrong with one #include of a file in `module`, or None."""
    if name.startswith("lora_train/"):
        return check_lora_train_include(root, module, modules, name)
    if TORCH.match(name):
        if module.is_core:
            return f"core module {module.name} may not see LibTorch"
        if path.suffix in {".cu", ".cuh"} or path.name.endswith(("_parts.h", "_kernels.h")):
            return "nvcc must not parse LibTorch; pass pointers, sizes and a stream"
    if "include" in path.relative_to(root).parts and HIDDEN_IN_PUBLIC_HEADERS.match(name):
        return "public headers hide this; include it in the .cpp"
    first = name.split("/")[0]
    leaves = first == ".." and (root / "src" / module.name).resolve() not in (path.parent / name).resolve().parents
    is_folder = (root / "src" / module.name / first).is_dir()  # a folder of this module, whatever its name
    if is_quoted and (leaves or "/" in name and first in modules and first != module.name and not is_folder):
        return "headers under src/ are private to their module"
    return None


def check_tree(root):
    """(violations as `file:line: what`, number of files read)."""
    modules = read_table(root / "cmake" / "module_deps.txt")
    violations, num_files = [], 0
    for top in [root / "src", root / "include" / "lora_train"]:
        for path in sorted(top.rglob("*")):
            if path.suffix not in SOURCE_SUFFIXES:
                continue
            num_files += 1
            where = path.relative_to(root)
            name = path.relative_to(top).parts[0]
            if name not in modules:
                violations.append(f"{where}:1: no module `{name}` in cmake/module_deps.txt")
                continue
            for line, is_quoted, included in includes_of(path):
                wrong = check_include(root, path, modules[name], modules, is_quoted, included)
                if wrong:
                    violations.append(f"{where}:{line}: #include of {included}: {wrong}")
    return violations, num_files


def users_of_headers(root):
    """{header: paths of the files in src/ and include/ that include it}, by paths below root."""
    users = {}
    for path in sorted([*(root / "src").rglob("*"), *(root / "include").rglob("*")]):
        if path.suffix not in SOURCE_SUFFIXES:
            continue
        for _, is_quoted, name in includes_of(path):
            module = path.relative_to(root).parts[1]
            for place in [path.parent / name, root / "include" / name, root / "src" / module / name] if is_quoted else []:
                if place.is_file():
                    users.setdefault(place.resolve(), set()).add(path)
                    break
    return users


def module_of(root, path):
    parts = path.relative_to(root).parts
    return parts[1] if parts[0] == "src" else parts[2]


def wrong_places(root, users):
    """Public headers that nobody else needs, and headers that lie elsewhere than their source."""
    public = root / "include" / "lora_train"
    headers = sorted(public.rglob("*.h"))
    seen = {header for header in headers
            if any(module_of(root, user) != module_of(root, header) for user in users.get(header, ()))}
    while more := {header for header in headers if header not in seen and users.get(header, set()) & seen}:
        seen |= more
    found = []
    for header in headers:
        where, inside = header.relative_to(root), header.relative_to(public)
        if header not in seen:
            found.append(f"{where}:1: no other module includes it. Move it to src/{inside.parent}")
        sources = sorted((root / "src" / inside.parts[0]).rglob(f"{header.stem}.cpp"))
        if sources and (root / "src" / inside).with_suffix(".cpp") not in sources:
            found.append(f"{where}:1: its source is {sources[0].relative_to(root)}. Move it beside that")
    return found


def cycles_of_folders(root, users):
    """Folders of a layered module that see each other, with one file of each side."""
    found, edges = [], {}
    for header, paths in users.items():
        module = module_of(root, header)
        for path in paths if module in LAYERED else ():
            if module_of(root, path) == module and folder_of(root, path) != folder_of(root, header):
                edges.setdefault((folder_of(root, path), folder_of(root, header)), path)
    below = {}
    for start, end in edges:
        below.setdefault(start, set()).add(end)
    changed = True
    while changed:
        changed = False
        for ends in below.values():
            more = set().union(*(below.get(end, set()) for end in ends)) - ends
            changed |= bool(more)
            ends |= more
    for (start, end), path in sorted(edges.items()):
        if start in below.get(end, ()):
            found.append(f"{path.relative_to(root)}:1: {start} includes {end}, which includes {start}")
    return found


def folder_of(root, path):
    """data/read, for a header in include/ too."""
    parts = path.relative_to(root).parts
    return "/".join(parts[1:-1] if parts[0] == "src" else parts[2:-1])


def tests_not_built(root):
    found = []
    for test in sorted(root.glob("tests/unit/**/*_test.cpp")):
        folder = next(parent for parent in test.parents if (parent / "CMakeLists.txt").exists() or parent == root)
        lists, name = folder / "CMakeLists.txt", test.relative_to(folder).as_posix()
        if not lists.exists() or not re.search(rf"(?<![\w/]){re.escape(name)}(?!\w)", lists.read_text(encoding="utf-8")):
            found.append(f"{test.relative_to(root)}:1: is not named in {lists.relative_to(root)}, so it is never built")
    return found


def self_test():
    """Each planted violation must be reported at its line, and the clean lines must not."""
    clean = {
        "cmake/module_deps.txt": "# a comment\nbase core :\nconfig core : base\nhidden torch : base\nengine torch : base config hidden\n"
                                 "cli core : base engine\n",
        "include/lora_train/base/good.h": "#include <vector>\n",
        "include/lora_train/engine/tensors.h": "#include <ATen/core/Tensor.h>\n",
        "include/lora_train/engine/plain.h": '#include "lora_train/base/good.h"\n',
        "include/lora_train/config/plain.h": "#include <string>\n",
        "include/lora_train/hidden/plain.h": "#include <string>\n",
        "include/lora_train/engine/configured.h": '#include "lora_train/config/plain.h"\n',
        "include/lora_train/engine/around.h": '#include "lora_train/engine/plain.h"\n#include "lora_train/hidden/plain.h"\n',
        "src/engine/all.cpp": '#include "lora_train/engine/around.h"\n#include "lora_train/engine/configured.h"\n',
        "src/engine/good.cpp": '#include "lora_train/engine/tensors.h"\n#include <torch/torch.h>\n#include "own.h"\n',
        "src/base/inner/deep.cpp": '#include "../own.h"\n',
        "src/cli/main.cpp": '#include "lora_train/engine/plain.h"\n#include <nlohmann/json.hpp>\n',
    }
    planted = {
        "src/base/up.cpp": '#include <vector>\n#include "lora_train/engine/plain.h"\n',
        "src/base/torch.cpp": "\n# include <c10/util/Half.h>\n",
        "src/cli/through.cpp": '\n#include "lora_train/engine/tensors.h"\n',
        "src/cli/through_a_module.cpp": '\n#include "lora_train/engine/around.h"\n',  # plain itself, of a module that is not
        "src/cli/through_core.cpp": '\n#include "lora_train/engine/configured.h"\n',
        "src/cli/unknown.cpp": '\n#include "lora_train/helpers/x.h"\n',
        "src/cli/private.cpp": '\n#include "base/private.h"\n',
        "src/cli/sideways.cpp": '\n#include "../base/private.h"\n',
        "src/engine/kernel.cu": "\n#include <ATen/ATen.h>\n",
        "include/lora_train/base/json.h": "\n#include <nlohmann/json.hpp>\n",
        "include/lora_train/engine/all.h": "\n#include <torch/torch.h>\n",
    }
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name, text in clean.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text, encoding="utf-8")
        violations, num_files = check_tree(root)
        assert not violations and num_files == len(clean) - 1, violations
        for name, text in planted.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text, encoding="utf-8")
        violations, _ = check_tree(root)
        got = sorted(violation.split(": ")[0] for violation in violations)
        assert got == sorted(f"{name}:2" for name in planted), violations
        tests = root / "tests/unit/base"
        tests.mkdir(parents=True)
        for name in ("built_test.cpp", "lost_test.cpp"):
            (tests / name).write_text("", encoding="utf-8")
        (tests / "CMakeLists.txt").write_text("lt_add_test(base SOURCES built_test.cpp)\n", encoding="utf-8")
        deeper = tests / "inner"
        deeper.mkdir()
        (deeper / "built_test.cpp").write_text("", encoding="utf-8")
        lost = ["tests/unit/base/inner/built_test.cpp", "tests/unit/base/lost_test.cpp"]
        assert [violation.split(":")[0] for violation in tests_not_built(root)] == lost
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder).resolve()
        for name, text in {
            "include/lora_train/base/shared.h": '#include "lora_train/base/brought.h"\n',
            "include/lora_train/base/brought.h": "",
            "include/lora_train/base/own.h": "",  # planted: base alone includes it
            "include/lora_train/base/astray.h": "",  # planted: its source lies in inner
            "src/base/inner/astray.cpp": '#include "lora_train/base/astray.h"\n#include "lora_train/base/own.h"\n',
            "src/engine/user.cpp": '#include "lora_train/base/shared.h"\n#include "lora_train/base/astray.h"\n',
        }.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text, encoding="utf-8")
        got = [violation.split("/")[-1] for violation in (line.split(":")[0] for line in wrong_places(root, users_of_headers(root)))]
        assert got == ["astray.h", "own.h"], got
        assert not cycles_of_folders(root, users_of_headers(root))
        for name, text in {"src/data/read/up.h": '#include "encode/down.h"\n', "src/data/encode/down.h": '#include "data.h"\n',
                           "src/data/data.h": '#include "read/up.h"\n', "src/data/plan/fine.h": '#include "read/up.h"\n'}.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text, encoding="utf-8")
        assert len(cycles_of_folders(root, users_of_headers(root))) == 3
    print(f"check_includes: self-test: {len(planted) + 7} planted violations found")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--self-test", action="store_true")
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[2])
    arguments = parser.parse_args()
    if arguments.self_test:
        self_test()
        return 0
    violations, num_files = check_tree(arguments.root)
    root = arguments.root.resolve()
    users = users_of_headers(root)
    violations += wrong_places(root, users) + cycles_of_folders(root, users) + tests_not_built(root)
    print(*violations, f"check_includes: {num_files} files, {len(violations)} violations", sep="\n")
    return 1 if violations or num_files == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
