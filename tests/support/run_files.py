"""What tests look at in the folders of runs: the bytes of an adapter, every file, and what they take of a disk."""

import subprocess


def adapter_bytes(folder):
    return (folder / "adapter/adapter_model.safetensors").read_bytes()


def snapshot(folder):
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in sorted(folder.rglob("*")) if path.is_file()}


def used_bytes(folder):
    return int(subprocess.run(["du", "-s", "-B1", str(folder)], capture_output=True, text=True).stdout.split()[0])
