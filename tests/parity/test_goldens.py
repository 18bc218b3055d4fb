"""No number changes: a slice of the goldens (scripts/check_goldens.py runs all of them, and compares two programs)."""

import subprocess
import sys

import engine


def test_numbers_are_those_of_the_goldens():
    done = subprocess.run([sys.executable, engine.ROOT / "scripts/check_goldens.py", "--bin", engine.BIN, "--quick"],
                          capture_output=True, text=True, timeout=engine.TIMEOUT_S)
    assert done.returncode == 0, done.stdout + done.stderr
