#!/usr/bin/env python3
"""Compares the machine code of our CUDA kernels with src/kernels/machine_code.txt, kernel by kernel and architecture.

No kernel uses more local memory (stack, spills, arrays indexed at run time) than the table has, which is 0 for nearly all, and
none loses its 128-bit loads or stores. With the nvcc of the table all numbers are those of the table; with another one, registers
may differ by 8, and of loads and stores only whether there are any of 128 bits has to be the same.

  scripts/checks/check_kernel_code.py [FILE ...]          what holds kernels: liblora_train_cuda.so, or objects of nvcc
                                                          (default: build/ci/bin/lib/liblora_train_cuda.so)
  scripts/checks/check_kernel_code.py --update FILE ...   writes the table; FILE has to hold every architecture:
                                                          cmake --build build/dev --target lt_native_kernels_cuda, then
                                                          build/dev/cuda_objects/*.o
  --allow-local-memory                                    with --update, also where a kernel uses more local memory now
  --architectures                                         prints what FILE has machine code (sm_90) or PTX (compute_90) for

Exit status: 0 as in the table, 1 not, 77 no cuobjdump here (it comes with the CUDA toolkit, and with torch's triton).
"""

import argparse
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "src/kernels/machine_code.txt"
ARCHITECTURES = ROOT / "cmake/cuda_architectures.txt"
COLUMNS = ["registers", "local", "shared", "ld128", "ld", "st128", "st"]
REGISTER_TOLERANCE = 8
HEADER = """\
# Machine code of our CUDA kernels, written by scripts/checks/check_kernel_code.py --update. A cell is one number where all
# architectures agree, else one for each, in the order of the next line.
#   registers      of a thread
#   local          bytes of a thread's stack: spilled registers and arrays indexed at run time
#   shared         bytes of a block, with what the driver reserves
#   ld128, st128   instructions that load or store 128 bits of global memory; ld, st: fewer bits
"""


def tool(name):
    """cuobjdump needs nvdisasm beside it."""
    folders = [Path(found).resolve().parent] if (found := shutil.which(name)) else []
    folders += [Path("/usr/local/cuda/bin"), ROOT / ".deps/cuda/bin"]
    folders += sorted((ROOT / ".deps/venv/lib").glob("python3*/site-packages/triton/backends/nvidia/bin"))
    return next((folder / name for folder in folders if (folder / name).exists()), None)


def cuobjdump(option, file):
    path = tool("cuobjdump")
    if path is None:
        print("check_kernel_code: no cuobjdump here: nothing was checked")
        sys.exit(77)
    return subprocess.run([path, option, file], capture_output=True, text=True, check=True).stdout


def architectures_of(file):
    code = cuobjdump("--list-elf", file) + cuobjdump("--list-ptx", file).replace(".sm_", ".compute_")
    return sorted(set(re.findall(r"\.((?:sm|compute)_\d+a?)\.", code)))


def short_names(mangled):
    """{mangled: rms_norm_forward<float, 4, 1>}"""
    demangled = subprocess.run(["c++filt"], input="\n".join(mangled), capture_output=True, text=True, check=True).stdout
    names = {}
    for symbol, text in zip(mangled, demangled.splitlines()):
        text = text.replace("lora_train::kernels::", "").replace("(anonymous namespace)::", "").removeprefix("void ")
        names[symbol] = re.sub(r"_kernel\b", "", text[:parameters_of(text)])
    return names


def parameters_of(text):
    """Where the list of parameters begins: the last opening parenthesis outside of others."""
    depth = 0
    for i in range(len(text) - 1, -1, -1):
        depth += {")": 1, "(": -1}.get(text[i], 0)
        if text[i] == "(" and depth == 0:
            return i
    return len(text)


def resource_usage(file):
    """{(symbol, sm): {"REG": n, "STACK": n, ...}}"""
    found, arch, symbol = {}, None, None
    for line in cuobjdump("-res-usage", file).splitlines():
        if match := re.match(r"arch = (sm_\d+)", line):
            arch = match[1]
        elif match := re.match(r"\s*Function (\S+):", line):
            symbol = match[1]
        elif " REG:" in f" {line.strip()}":
            found[symbol, arch] = {key: int(value) for key, value in re.findall(r"([A-Z]+)(?:\[\d\])?:(\d+)", line)}
    return found


INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)")


def instructions(file):
    """{(symbol, sm): Counter of LDL, STL, ld128, ld, st128, st}"""
    found, arch, counter = {}, None, None
    for line in cuobjdump("-sass", file).splitlines():
        if match := re.match(r"\s*code for (sm_\d+)", line):
            arch = match[1]
        elif match := re.match(r"\s*Function : (\S+)", line):
            counter = found.setdefault((match[1], arch), Counter())
        elif counter is not None and (match := INSTRUCTION.match(line)):
            name, *parts = match[1].split(".")
            counter["all"] += 1
            if name in ("LDL", "STL"):
                counter[name] += 1
            elif name in ("LDG", "STG"):
                counter[name[:2].lower() + ("128" if "128" in parts else "")] += 1
    return found


def read_code(files):
    """{kernel: {sm: {column: number}}}, and what is wrong in itself."""
    usage, counts = {}, {}
    for file in files:
        usage.update(resource_usage(file))
        counts.update(instructions(file))
    names, kernels, problems = short_names(sorted({symbol for symbol, _ in usage})), {}, []
    for (symbol, arch), used in usage.items():
        name, counted = names[symbol], counts.get((symbol, arch), Counter())
        if counted["all"] == 0:
            problems.append(f"{name} {arch}: cuobjdump shows no instructions")
        local = used.get("STACK", 0) + used.get("LOCAL", 0) or 4 * (counted["LDL"] + counted["STL"])
        row = dict(registers=used["REG"], local=local, shared=used.get("SHARED", 0),
                   **{column: counted[column] for column in COLUMNS[3:]})
        if arch in kernels.setdefault(name, {}):
            problems.append(f"{name} {arch}: two kernels have this name")
        kernels[name][arch] = row
    return kernels, problems


def architectures():
    return [f"sm_{line.split('-')[0]}" for line in ARCHITECTURES.read_text().splitlines() if line.endswith("-real")]


def nvcc_version():
    """Of the compiler that the build finds (cmake/Cuda.cmake)."""
    nvcc = tool("nvcc")
    said = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout if nvcc else ""
    found = re.search(r"release [0-9.]+, V([0-9.]+)", said)
    return found[1] if found else "unknown"


def write_table(kernels, version):
    order = architectures()
    rows = [["kernel"] + COLUMNS]
    for name in sorted(kernels):
        row = [name]
        for column in COLUMNS:
            values = [str(kernels[name][arch][column]) for arch in order]
            row.append(values[0] if len(set(values)) == 1 else "/".join(values))
        rows.append(row)
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
    TABLE.write_text(HEADER + f"nvcc {version}: {' '.join(order)}\n" + "\n".join(lines) + "\n")


def read_table():
    """The version of nvcc, and what read_code gives."""
    if not TABLE.exists():
        return "unknown", {}
    lines = [line for line in TABLE.read_text().splitlines() if not line.startswith("#")]
    version, order = re.match(r"nvcc (\S+): (.*)", lines[0]).groups()
    kernels = {}
    for line in lines[2:]:
        name, *cells = re.split(r"\s{2,}", line)
        kernels[name] = {}
        for i, arch in enumerate(order.split()):
            values = [cell.split("/") for cell in cells]
            kernels[name][arch] = dict(zip(COLUMNS, (int(value[i % len(value)]) for value in values)))
    return version, kernels


def local_problems(kernels, expected):
    for name in sorted(kernels):
        for arch, row in sorted(kernels[name].items()):
            most = expected.get(name, {}).get(arch, {}).get("local", 0)
            if row["local"] > most:
                yield f"{name} {arch}: uses {row['local']} bytes of local memory, in the table {most}"


def is_as_expected(column, got, want, is_same_nvcc):
    if column == "local":  # more is a problem of its own
        return got >= want or not is_same_nvcc
    if is_same_nvcc:
        return got == want
    if column == "registers":
        return abs(got - want) <= REGISTER_TOLERANCE
    return column not in ("ld128", "st128") or (got > 0) == (want > 0)


def differences(kernels, expected, is_same_nvcc):
    built = {arch for rows in kernels.values() for arch in rows}
    for name in sorted(set(kernels) | set(expected)):
        if name not in kernels or name not in expected:
            yield f"{name}: only in the {'table' if name in expected else 'build'}"
            continue
        for arch in sorted(built):
            got, want = kernels[name].get(arch), expected[name].get(arch)
            if got is None or want is None:
                yield f"{name} {arch}: only in the {'table' if want else 'build'}"
                continue
            for column in COLUMNS:
                if not is_as_expected(column, got[column], want[column], is_same_nvcc):
                    yield f"{name} {arch}: {column} {got[column]}, in the table {want[column]}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", default=[str(ROOT / "build/ci/bin/lib/liblora_train_cuda.so")])
    parser.add_argument("--update", action="store_true")
    parser.add_argument("--allow-local-memory", action="store_true")
    parser.add_argument("--architectures", action="store_true")
    args = parser.parse_args()
    if args.architectures:
        sys.exit(print(*sorted({name for file in args.files for name in architectures_of(file)})))
    kernels, problems = read_code(args.files)
    if not kernels:
        sys.exit(f"check_kernel_code: no kernel in {', '.join(args.files)}")
    version = nvcc_version()
    expected_version, expected = read_table()
    if args.update:
        absent = sorted({f"{arch} of {name}" for name in kernels for arch in architectures() if arch not in kernels[name]})
        if absent:
            sys.exit(f"check_kernel_code: the table needs every architecture; not there: {', '.join(absent[:5])}")
        problems += [] if args.allow_local_memory else local_problems(kernels, expected)
        if not problems:
            write_table(kernels, version)
            expected_version = version
    else:
        problems += [*local_problems(kernels, expected), *differences(kernels, expected, version == expected_version)]
    for problem in problems:
        print(problem)
    archs = sorted({arch for rows in kernels.values() for arch in rows}, key=lambda arch: int(arch[3:]))
    print(f"{len(kernels)} kernels, {' '.join(archs)}, nvcc {version}"
          + ("" if version == expected_version else f" (table: {expected_version})") + f": {len(problems)} problems")
    if problems:
        print("If a change is meant: --update (see --help), and look at what it changes.")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
