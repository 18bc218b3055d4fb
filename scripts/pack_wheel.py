#!/usr/bin/env python3
"""Packs a tree of scripts/stage_program.sh as a wheel; scripts/make_wheel.sh calls both.

The wheel holds lib/lora-train of the tree as lora_train/program/, the launcher of packaging/wheel, all licences, and a requirement: pip
brings torch, whose LibTorch the program loads. Same input, same bytes. Needs the standard library alone."""

import argparse
import base64
import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PLATFORM = "manylinux_2_35_x86_64"  # Ubuntu 22.04; scripts/checks/check_portable.py
# Of the program and of the libraries in it (docs/dependencies.md).
LICENSES = "Apache-2.0 AND BSD-2-Clause AND BSD-3-Clause AND Bitstream-Vera AND FTL AND libpng-2.0 AND MIT AND Zlib"
TIME = (1980, 1, 1, 0, 0, 0)


def dependency(name):
    """A value of scripts/dependencies.sh."""
    for line in (ROOT / "scripts/dependencies.sh").read_text().splitlines():
        if line.startswith(f"{name}="):
            return line.partition("=")[2].partition("  #")[0].strip('"')
    sys.exit(f"pack_wheel: no {name} in scripts/dependencies.sh")


def metadata(version, licenses):
    pythons = dependency("PYTHON_SERIES").split()
    major, minor = pythons[-1].split(".")
    lines = ["Metadata-Version: 2.4", "Name: lora-train", f"Version: {version}",
             "Summary: Fine-tunes Hugging Face language models with LoRA and QLoRA. One C++ program, no Python at run time",
             f"License-Expression: {LICENSES}", *(f"License-File: {name}" for name in licenses),
             f"Requires-Python: >={pythons[0]},<{major}.{int(minor) + 1}", f"Requires-Dist: torch=={dependency('TORCH_VERSION')}",
             "Provides-Extra: parquet", f"Requires-Dist: pyarrow=={dependency('PYARROW_VERSION')}; extra == 'parquet'",
             "Classifier: Operating System :: POSIX :: Linux",
             *(f"Classifier: Programming Language :: Python :: {series}" for series in pythons),
             "Description-Content-Type: text/markdown"]
    return "\n".join(lines) + "\n\n" + (ROOT / "README.md").read_text()


def files_below(folder):
    """Name relative to the folder, file; in one order everywhere."""
    return [(str(file.relative_to(folder)), file) for file in sorted(folder.rglob("*")) if file.is_file() and file.suffix != ".pyc"]


class Wheel:
    def __init__(self, path):
        self.zip = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED)
        self.record = []

    def write(self, name, data, mode=0o644):
        info = zipfile.ZipInfo(name, TIME)
        info.external_attr = (0o100000 | mode) << 16
        info.compress_type = zipfile.ZIP_DEFLATED
        self.zip.writestr(info, data)

    def add(self, name, data, mode=0o644):
        self.write(name, data, mode)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        self.record.append(f"{name},sha256={digest},{len(data)}")

    def close(self, record_name):
        self.record.append(f"{record_name},,")
        self.write(record_name, "\n".join(self.record) + "\n")
        self.zip.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tree", type=Path, required=True, help="folder of scripts/stage_program.sh")
    parser.add_argument("--output-dir", type=Path, required=True)
    args = parser.parse_args()
    program, documents = args.tree / "lib/lora-train", args.tree / "share/doc/lora-train"
    version = subprocess.run([program / "lora-train", "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
    version += "" if (program / "lib/liblora_train_cuda.so").exists() else "+cpu"
    tag = f"py3-none-{PLATFORM}"
    args.output_dir.mkdir(parents=True, exist_ok=True)
    path = args.output_dir / f"lora_train-{version}-{tag}.whl"
    info = f"lora_train-{version}.dist-info"
    wheel = Wheel(path)
    for name, file in files_below(ROOT / "packaging/wheel"):
        wheel.add(name, file.read_bytes())
    for name, file in files_below(program):
        wheel.add(f"lora_train/program/{name}", file.read_bytes(), 0o755 if file.stat().st_mode & 0o100 else 0o644)
    licenses = files_below(documents)
    for name, file in licenses:
        wheel.add(f"{info}/licenses/{name}", file.read_bytes())
    wheel.add(f"{info}/METADATA", metadata(version, [name for name, _ in licenses]).encode())
    wheel.add(f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: lora-train\nRoot-Is-Purelib: false\nTag: {tag}\n".encode())
    wheel.add(f"{info}/entry_points.txt", b"[console_scripts]\nlora-train = lora_train:main\n")
    wheel.close(f"{info}/RECORD")
    print(path)


if __name__ == "__main__":
    main()
