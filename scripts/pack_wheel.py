#!/usr/bin/env python3
"""Packs a program folder (build/release/bin) as a wheel. scripts/make_wheel.sh builds the folder first.

The wheel holds the folder as lora_train/program/, the launcher of packaging/wheel, and a requirement: pip brings torch, whose LibTorch
the program loads. Same input, same bytes. Needs the standard library alone."""

import argparse
import base64
import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHON_SERIES = ("3.10", "3.11", "3.12", "3.13", "3.14")  # what torch has wheels for
PLATFORM = "manylinux_2_35_x86_64"  # Ubuntu 22.04; scripts/checks/check_portable.py
CUDA_LIBRARY = "liblora_train_cuda.so"
LIBRARIES = ("liblora_train_", "libsentencepiece", "libprotobuf", "sweep.sh")  # a build for tests has others too
TIME = (1980, 1, 1, 0, 0, 0)


def pinned(name):
    """The value of a line NAME=VALUE of scripts/dependencies.sh."""
    for line in (ROOT / "scripts/dependencies.sh").read_text().splitlines():
        if line.startswith(name + "="):
            return line.partition("=")[2].split()[0]
    sys.exit(f"pack_wheel: no {name} in scripts/dependencies.sh")


def metadata(version):
    readme = (ROOT / "README.md").read_text()
    lines = ["Metadata-Version: 2.1", "Name: lora-train", f"Version: {version}",
             "Summary: Fine-tunes Hugging Face language models with LoRA and QLoRA. One C++ program, no Python at run time",
             "License: Apache-2.0", f"Requires-Python: >={PYTHON_SERIES[0]}", f"Requires-Dist: torch=={pinned('TORCH_VERSION')}",
             "Provides-Extra: parquet", f"Requires-Dist: pyarrow=={pinned('PYARROW_VERSION')}; extra == 'parquet'",
             "Classifier: Operating System :: POSIX :: Linux",
             *(f"Classifier: Programming Language :: Python :: {series}" for series in PYTHON_SERIES),
             "Description-Content-Type: text/markdown"]
    return "\n".join(lines) + "\n\n" + readme


def files_of(program, with_cuda):
    """Name in the wheel, file; lib/torch_path and lib/arrow_path stay behind, since they name folders of this machine."""
    for file in sorted((ROOT / "packaging/wheel").rglob("*.py")):
        yield str(file.relative_to(ROOT / "packaging/wheel")), file
    yield "lora_train/program/lora-train", program / "lora-train"
    for file in sorted([*(program / "lib").iterdir(), *(program / "configs").iterdir()]):
        if file.name in ("torch_path", "arrow_path") or (file.name == CUDA_LIBRARY and not with_cuda) or not file.is_file():
            continue
        if file.parent.name == "lib" and not file.name.startswith(LIBRARIES):
            continue
        yield f"lora_train/program/{file.relative_to(program)}", file


class Wheel:
    def __init__(self, path):
        self.zip = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED)
        self.record = []

    def add(self, name, data, mode=0o644):
        info = zipfile.ZipInfo(name, TIME)
        info.external_attr = (0o100000 | mode) << 16
        info.compress_type = zipfile.ZIP_DEFLATED
        self.zip.writestr(info, data)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        self.record.append(f"{name},sha256={digest},{len(data)}")

    def close(self, record_name):
        self.record.append(f"{record_name},,")
        self.zip.writestr(zipfile.ZipInfo(record_name, TIME), "\n".join(self.record) + "\n")
        self.zip.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", type=Path, required=True, help="folder of lora-train")
    parser.add_argument("--output-dir", type=Path, required=True)
    parser.add_argument("--without-cuda", action="store_true", help="leave the CUDA library out; version VERSION+cpu")
    args = parser.parse_args()
    version = subprocess.run([args.program / "lora-train", "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
    has_cuda = (args.program / "lib" / CUDA_LIBRARY).exists() and not args.without_cuda
    version += "" if has_cuda else "+cpu"
    tag = f"py3-none-{PLATFORM}"
    args.output_dir.mkdir(parents=True, exist_ok=True)
    path = args.output_dir / f"lora_train-{version}-{tag}.whl"
    info = f"lora_train-{version}.dist-info"
    wheel = Wheel(path)
    for name, file in files_of(args.program, has_cuda):
        wheel.add(name, file.read_bytes(), 0o755 if file.stat().st_mode & 0o100 else 0o644)
    wheel.add(f"{info}/METADATA", metadata(version).encode())
    wheel.add(f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: lora-train\nRoot-Is-Purelib: false\nTag: {tag}\n".encode())
    wheel.add(f"{info}/entry_points.txt", b"[console_scripts]\nlora-train = lora_train:main\n")
    wheel.add(f"{info}/LICENSE", (ROOT / "LICENSE").read_bytes())
    wheel.close(f"{info}/RECORD")
    print(path)


if __name__ == "__main__":
    main()
