"""Drives tokenizer-probe (tests/programs/tokenizer_probe), which encodes texts with the tokenizer of a folder."""

import json
import struct
import subprocess


def records_of(texts):
    return b"".join(struct.pack("<I", len(text)) + text for text in (text.encode() for text in texts))


def start(probe, work, records, model=None, **options):
    """(the finished process, what it wrote: for each text, the number of its ids and these; then its decoded text, if asked for).
    `work`: a folder for files, and of the tokenizer where `model` names no other."""
    files = {name: work / name for name in ("texts", "out", "options.json")}
    files["texts"].write_bytes(records)
    files["options.json"].write_text(json.dumps(dict(options, model=str(model or work), texts=str(files["texts"]), out=str(files["out"]))))
    done = subprocess.run([probe, files["options.json"]], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done, files["out"].read_bytes()


def encode(probe, work, texts, **options):
    """(ids, or (ids, decoded text) with decode=True, of each text; the finished process)."""
    done, raw = start(probe, work, records_of(texts), **options)
    at, out = 0, []
    while at < len(raw):
        (count,) = struct.unpack_from("<I", raw, at)
        out.append(list(struct.unpack_from(f"<{count}i", raw, at + 4)))
        at += 4 + 4 * count
        if options.get("decode"):
            (length,) = struct.unpack_from("<I", raw, at)
            out[-1] = out[-1], raw[at + 4:at + 4 + length].decode()
            at += 4 + length
    assert len(out) == len(texts)
    return out, done
