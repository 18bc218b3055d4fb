#!/usr/bin/env python3
"""Says on which of Debian 12, Ubuntu 22.04 and 24.04 programs and libraries run, with nothing but the torch wheel.

Of every ELF file of a folder, wheel or archive: no symbol version newer than these systems have (glibc, libstdc++, and libgomp of the
torch wheel), no run path outside the folder itself, and no library needed but those of their base systems, of the torch wheel and of
the folder. Prints the systems of each file, then the highest versions and the file that asks for them; exits 1 when anything is wrong.

  scripts/checks/check_portable.py FOLDER|WHEEL|ARCHIVE [--limit GLIBC=2.35]
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

WHEEL_LIMITS = {"GOMP": "4.5", "OMP": "4.5"}
SYSTEMS = {
    "Debian 12": {"GLIBC": "2.36", "GLIBCXX": "3.4.30", "CXXABI": "1.3.13", "GCC": "12.0.0"} | WHEEL_LIMITS,
    "Ubuntu 22.04": {"GLIBC": "2.35", "GLIBCXX": "3.4.30", "CXXABI": "1.3.13", "GCC": "12.0.0"} | WHEEL_LIMITS,
    "Ubuntu 24.04": {"GLIBC": "2.39", "GLIBCXX": "3.4.33", "CXXABI": "1.3.15", "GCC": "14.0.0"} | WHEEL_LIMITS,
}
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


def newer_than(versions, system, limits):
    """What a file asks for and the system does not have."""
    for kind, (version, symbol) in versions.items():
        if kind not in limits:
            yield f"needs {symbol} of {kind}_{version}, a kind of version that is not known here"
        elif number(version) > number(limits[kind]):
            yield f"needs {symbol} of {kind}_{version}; {system} has {kind}_{limits[kind]} at most"


def problems_of(path, own):
    needed, run_paths = dynamic_section(path)
    for library in needed:
        if library not in SYSTEM | WHEEL | own | (ARROW if path.name == "liblora_train_arrow.so" else set()):
            yield f"needs {library}, which neither the system nor the torch wheel nor the folder brings"
    for run_path in run_paths:
        if not run_path.startswith("$ORIGIN"):
            yield f"has the run path {run_path}"


def check_folder(folder, limits):
    """Prints the systems of each file; returns the number of problems."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink() and is_elf(path))
    if not files:
        sys.exit(f"check_portable: no program or library in {folder}")
    own = {path.name for path in files}
    highest, num_problems = {}, 0
    for path in files:
        versions = versions_of(path)
        for kind, (version, _) in versions.items():
            if number(version) > number(highest.get(kind, ("0", ""))[0]):
                highest[kind] = (version, path.name)
        own_problems = list(problems_of(path, own))
        problems, systems = list(own_problems), []
        for system, known in SYSTEMS.items():
            newer = list(newer_than(versions, system, known | limits))
            problems += newer
            if not newer and not own_problems:
                systems.append(system)
        for problem in problems:
            print(f"{path.relative_to(folder)}: {problem}")
        print(f"{path.relative_to(folder)}: {', '.join(systems) or 'none of the systems'}")
        num_problems += len(problems)
    print(f"{len(files)} files; highest: " + ", ".join(f"{kind}_{version} ({name})" for kind, (version, name) in
                                                      sorted(highest.items())))
    return num_problems


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, help="a folder, a wheel, or an archive")
    parser.add_argument("--limit", action="append", default=[], metavar="KIND=VERSION",
                        help="another limit than those of the systems")
    args = parser.parse_args()
    limits = dict(limit.split("=", 1) for limit in args.limit)
    if args.path.is_dir():
        sys.exit(1 if check_folder(args.path, limits) else 0)
    with tempfile.TemporaryDirectory() as folder:
        shutil.unpack_archive(args.path, folder, "zip" if args.path.suffix == ".whl" else None)
        sys.exit(1 if check_folder(Path(folder), limits) else 0)


if __name__ == "__main__":
    main()
