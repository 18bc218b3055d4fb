"""The launcher of the lora-train wheel: starts the program with the LibTorch of the same environment. Nothing else is Python."""

import importlib.util
import os
import sys
from pathlib import Path

PROGRAM = Path(__file__).parent / "program" / "lora-train"


def main():
    """Becomes the program; returns only where that fails."""
    if "LORA_TRAIN_TORCH" not in os.environ:
        torch = importlib.util.find_spec("torch")  # finds it, does not import it
        if torch is not None and torch.origin:
            os.environ["LORA_TRAIN_TORCH"] = str(Path(torch.origin).parent)
    os.execv(PROGRAM, [str(PROGRAM), *sys.argv[1:]])
