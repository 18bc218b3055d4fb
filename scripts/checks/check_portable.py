#!/usr/bin/env python3
"""Says whether the programs and libraries of a folder run on Ubuntu 22.04 and 24.04 with nothing but the torch wheel.

Of every ELF file: no symbol version newer than Ubuntu 22.04 has (glibc 2.35, the libstdc++ of GCC 12, libgomp of the torch
wheel), no run path outside the folder itself, and no library needed but those of Ubuntu's base system, of the torch wheel
and of the folder. Prints the highest versions and the file that asks for them; exits 1 when anything is wrong.

  scripts/checks/check_portable.py FOLDER [--limit GLIBC=2.35]...
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

LIMITS = {"GLIBC": "2.35", "GLIBCXX": "3.4.30", "CXXABI": "1.3.13", "GCC": "12.0.0", "GOMP": "4.5", "OMP": "4.5"}
SYSTEM = {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "ld-linux-x86-64.so.2",
          "libstdc++.so.6", "libgcc_s.so.1"}
WHEEL = {"libtorch_cpu.so", "libc10.so", "libtorch_cuda.so", "libc10_cuda.so", "libgomp.so.1", "libcudart.so.13",
         "libcublasLt.so.13", "libcudnn.so.9", "libnccl.so.2"}
ARROW = {"libarrow.so.2400", "libparquet.so.2400"}  # of the pyarrow wheel, which only liblora_train_arrow.so needs


def number(version):
    return tuple(int(part) for part in version.split("."))


def output_of(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def is_elf(path):
    with open(path, "rb") as file:
        return file.read(4) == b"\x7fELF"


def versions_of(path):
    """{"GLIBC": (version, symbol)}: the highest of each kind that the file asks for."""
    highest = {}
    for line in output_of("objdump", "-T", str(path)).splitlines():
        if "*UND*" not in line:
            continue
        found = re.search(r"\(?\b([A-Z]+)_([0-9]+(?:\.[0-9]+)*)\)?\s+(\S+)$", line)
        if found and (found[1] not in highest or number(found[2]) > number(highest[found[1]][0])):
            highest[found[1]] = (found[2], found[3])
    return highest


def dynamic_section(path):
    """(needed libraries, run paths)"""
    needed, run_paths = [], []
    for line in output_of("readelf", "-d", str(path)).splitlines():
        found = re.search(r"\((NEEDED|RPATH|RUNPATH)\)[^\[]*\[([^\]]*)\]", line)
        if found:
            (needed if found[1] == "NEEDED" else run_paths).append(found[2])
    return needed, [path for entry in run_paths for path in entry.split(":") if path]


def problems_of(path, own, limits, highest):
    for kind, (version, symbol) in versions_of(path).items():
        if kind not in limits:
            yield f"needs {symbol} of {kind}_{version}, a kind of version that is not known here"
            continue
        if number(version) > number(highest.get(kind, ("0", ""))[0]):
            highest[kind] = (version, path.name)
        if number(version) > number(limits[kind]):
            yield f"needs {symbol} of {kind}_{version}; the target has {kind}_{limits[kind]} at most"
    needed, run_paths = dynamic_section(path)
    for library in needed:
        if library not in SYSTEM | WHEEL | own | (ARROW if path.name == "liblora_train_arrow.so" else set()):
            yield f"needs {library}, which neither Ubuntu nor the torch wheel nor the folder brings"
    for run_path in run_paths:
        if not run_path.startswith("$ORIGIN"):
            yield f"has the run path {run_path}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--limit", action="append", default=[], metavar="KIND=VERSION",
                        help="another limit than that of Ubuntu 22.04")
    args = parser.parse_args()
    limits = dict(LIMITS, **dict(limit.split("=", 1) for limit in args.limit))
    files = sorted(path for path in args.folder.rglob("*") if path.is_file() and not path.is_symlink() and is_elf(path))
    if not files:
        sys.exit(f"check_portable: no program or library in {args.folder}")
    own = {path.name for path in files}
    highest, num_problems = {}, 0
    for path in files:
        for problem in problems_of(path, own, limits, highest):
            print(f"{path.relative_to(args.folder)}: {problem}")
            num_problems += 1
    print(f"{len(files)} files; highest: " + ", ".join(f"{kind}_{version} ({name})" for kind, (version, name) in
                                                      sorted(highest.items())))
    sys.exit(1 if num_problems else 0)


if __name__ == "__main__":
    main()
