"""The launcher of the lora-train wheel: starts the program with the LibTorch and Arrow of the same environment. Nothing else is Python."""

import importlib.util
import os
import sys
from pathlib import Path

PROGRAM = Path(__file__).parent / "program" / "lora-train"


def main():
    """Becomes the program; returns only where that fails."""
    for package, variable in (("torch", "LORA_TRAIN_TORCH"), ("pyarrow", "LORA_TRAIN_ARROW")):
        found = None if variable in os.environ else importlib.util.find_spec(package)  # finds it, does not import it
        if found is not None and found.origin:
            os.environ[variable] = str(Path(found.origin).parent)
    os.execv(PROGRAM, [str(PROGRAM), *sys.argv[1:]])
