"""Our safetensors reader accepts and refuses what the reference reader does: on valid files with one mistake each, and on those
whose mistakes chance would not find. Their messages are in tests/unit/storage/safetensors_test.cpp."""

import gzip
import json
import pickle
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


def file_of(header, data=bytes(8), length=None):
    header = header.encode() if isinstance(header, str) else header
    return struct.pack("<Q", len(header) if length is None else length) + header + data


def entry(dtype='"F32"', shape="[2]", offsets="[0, 8]", more=""):
    return f'{{"t": {{"dtype": {dtype}, "shape": {shape}, "data_offsets": {offsets}{more}}}}}'


GOOD = entry()
U8 = '{"dtype": "U8", "shape": [4], "data_offsets": [%d, %d]}'
REFUSED = {
    "empty": b"", "seven bytes": b"1234567", "length of 0": file_of(GOOD, length=0), "all zeros": bytes(200),
    "length alone": struct.pack("<Q", 100), "length past the end": file_of(GOOD, length=len(GOOD) + 9),
    "length of -1": file_of(GOOD, length=2**64 - 1), "length of -8": file_of(GOOD, length=2**64 - 8),
    "length in big endian": struct.pack(">Q", len(GOOD)) + file_of(GOOD)[8:], "twice": file_of(GOOD) * 2,
    "length one short": file_of(GOOD, length=len(GOOD) - 1), "length one over": file_of(GOOD, length=len(GOOD) + 1),
    "cut header": file_of(GOOD)[:30], "no data": file_of(GOOD, b""), "a byte less": file_of(GOOD, bytes(7)),
    "a byte more": file_of(GOOD, bytes(9)), "html": b"<!DOCTYPE html><html><title>401 Unauthorized</title></html>",
    "gzip": gzip.compress(file_of(GOOD)), "pickle": pickle.dumps({"a": [1.0] * 99}, protocol=4), "zip": b"PK\3\4\x14\0\0\0zip",
    "gguf": b"GGUF\x03\0\0\0" + file_of(GOOD), "index": b'{"metadata": {}, "weight_map": {}}',
    "name of no UTF-8": file_of(GOOD.encode().replace(b"t", b"\xff", 1)), "utf16": file_of(GOOD.encode("utf-16-le")),
    "byte order mark": file_of("\ufeff" + GOOD), "NUL behind": file_of(GOOD + "\0\0"), "list": file_of("[" + GOOD + "]"),
    "null": file_of("null", b""), "never closed": file_of(GOOD[:-1] + " "), "two objects": file_of(GOOD + GOOD),
    "trailing comma": file_of(GOOD[:-1] + ",}"), "python": file_of(GOOD.replace('"', "'")),
    "half a surrogate": file_of(GOOD.replace("t", "\\ud83d", 1)), "deep": file_of(GOOD[:-1] + ', "x": ' + '{"a":' * 50_000),
    "open lists": file_of("[" * 100_000), "metadata: number": file_of(GOOD[:-1] + ', "__metadata__": {"a": 3}}'),
    "metadata: null inside": file_of(GOOD[:-1] + ', "__metadata__": {"a": null}}'),
    "metadata: list": file_of(GOOD[:-1] + ', "__metadata__": ["a"]}'),
    "metadata twice": file_of('{"__metadata__": {}, "__metadata__": {}}', b""),
    "text": file_of('{"x": "F32"}'), "null entry": file_of('{"x": null}'), "empty entry": file_of('{"x": {}}'),
    "no shape": file_of('{"t": {"dtype": "F32", "data_offsets": [0, 8]}}'), "dtype twice": file_of(entry(more=', "dtype": "F32"')),
    "F33": file_of(entry(dtype='"F33"')), "float32": file_of(entry(dtype='"float32"')), "32": file_of(entry(dtype="32")),
    "nested shape": file_of(entry(shape="[[2]]")), "shape of text": file_of(entry(shape='["2"]')),
    "shape is a number": file_of(entry(shape="2")), "shape beyond 64 bits": file_of(entry(shape="[18446744073709551616]")),
    "one offset": file_of(entry(offsets="[0]")), "three offsets": file_of(entry(offsets="[0, 4, 8]")),
    "negative offset": file_of(entry(offsets="[-8, 0]")), "offsets of floats": file_of(entry(offsets="[0.0, 8.0]")),
    "offsets in an object": file_of(entry(offsets='{"begin": 0, "end": 8}')), "reversed": file_of(entry(offsets="[8, 0]")),
    "hole": file_of(entry(offsets="[4, 12]"), bytes(12)), "near 2^64": file_of(entry(offsets=f"[{2**64 - 16}, {2**64 - 8}]")),
    "past the file": file_of(entry(offsets="[0, 1000000000000000]")), "overflow": file_of(entry(shape="[4294967296, 4294967296, 2]")),
    "bits overflow": file_of(entry(shape=f"[{2**61}]")), "wraps to 8 bytes": file_of(entry(shape=f"[{2**62}, 4, 2]")),
    "half a byte": file_of(entry('"F4"', "[3]", "[0, 2]"), bytes(2)), "scalar of no bytes": file_of(entry(shape="[]", offsets="[0, 0]"), b""),
    "shared bytes": file_of('{"a": %s, "b": %s}' % (U8 % (0, 4), U8 % (0, 4)), bytes(4)),
    "escapes": file_of(entry('"F4"', "[3]", "[0, 2]").replace("t", "\\u001b[2J", 1), bytes(2)),
}
ACCEPTED = {
    "good": file_of(GOOD), "spaces around": file_of("\n" + GOOD + "   "), "no tensors": file_of("{}", b""),
    "unknown keys": file_of(entry(more=', "stride": [1], "note": {"a": [null]}')),
    "empty tensor": file_of(entry(shape="[0, 5]", offsets="[0, 0]"), b""), "sub-byte": file_of(entry('"F6_E2M3"', "[4]", "[0, 3]"), bytes(3))}


def verdicts_of(paths):
    """\"ok\" or our refusal of each."""
    done = subprocess.run([BIN / "safetensors-verdict"], input="\n".join(map(str, paths)), text=True, capture_output=True, check=True)
    return done.stdout.splitlines()


def test_files_made_by_hand(tmp_path):
    """One that lists a tensor twice is refused by us alone, on purpose."""
    twice = file_of('{"t": %s, "t": %s}' % (U8 % (0, 4), U8 % (0, 4)), bytes(4))
    cases = [*REFUSED.items(), *ACCEPTED.items(), ("tensor twice", twice)]
    assert len(REFUSED) > 60
    paths = [tmp_path / f"{number}.safetensors" for number in range(len(cases))]
    for path, (_, content) in zip(paths, cases):
        path.write_bytes(content)
    ours = {name: verdict == "ok" for (name, _), verdict in zip(cases, verdicts_of(paths), strict=True)}
    theirs = {name: reference_accepts(path) for (name, _), path in zip(cases, paths)}
    assert ours == {name: name in ACCEPTED for name, _ in cases}
    assert theirs == ours | {"tensor twice": True}


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
    verdicts = verdicts_of(paths)
    assert len(verdicts) == NUM_FILES
    accepted = [reference_accepts(path) for path in paths]
    assert 0.2 < sum(accepted) / NUM_FILES < 0.8
    differing = [(path.read_bytes()[:300], ours, theirs) for path, ours, theirs in zip(paths, verdicts, accepted)
                 if (ours == "ok") != theirs]
    assert not differing, differing[:3]
