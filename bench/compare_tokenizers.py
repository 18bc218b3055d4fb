#!/usr/bin/env python3
"""Compares lora-train's encoding with Hugging Face `tokenizers` (Rust) on one thread: the same texts, the same ids.

Both sides encode the same documents in turn (A/B/A/B). Times are CPU seconds of the one thread, so that other work on the
machine does not count; figures are the best of the rounds. Hugging Face runs encode_batch_fast (no offsets, its fastest
way) against ids alone, and encode_batch against ids with offsets. tokenizer.model runs against SentencePiece's library.
Every id is compared, or the script fails.

Texts: English chat (gsm8k-chat: messages rendered as Qwen's template does), code (Python's standard library as found on
this machine), Chinese (Article 1 of the Declaration of Human Rights in Chinese: its phrases in random order, which repeat,
and its characters in random order, which hardly do; seeded), multilingual (all translations of the article).

Usage: bench/compare_tokenizers.py [--probe build/dev/bin/tokenizer-probe] [--data ../shared/data] [--rounds 5]
       [--mib 2] [--only qwen2.5] [--log FILE]
Writes bench/results/<date>-tokenizers-<cpu>.txt.
"""

import argparse
import datetime
import json
import os
import platform
import random
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/support"))
import tokenizer_probe  # noqa: E402

CASES = [  # name, file in the data folder, what lora-train reads
    ("qwen2.5", "qwen2.5/tokenizer.json", "json"),
    ("mistral-v1", "mistral/v1/tokenizer.json", "json"),
    ("mistral-v3", "mistral/v3/tokenizer.json", "json"),
    ("mistral-v3-metaspace", "mistral/v3/tokenizer-metaspace.json", "json"),
    ("mistral-v3-model", "mistral/v3/tokenizer.model", "model"),
]


# ---- texts -----------------------------------------------------------------------------------------------------------

def documents(pieces, document_bytes, total_bytes):
    """Joins pieces to documents of about document_bytes until there are total_bytes; starts over when they run out."""
    out, document, size, total = [], [], 0, 0
    while total < total_bytes:
        for piece in pieces:
            document.append(piece)
            size += len(piece.encode())
            if size < document_bytes:
                continue
            out.append("".join(document))
            total += size
            document, size = [], 0
            if total >= total_bytes:
                break
    return out


def chat_pieces(data):
    for line in (data / "datasets/chat/gsm8k-chat.jsonl").read_text().splitlines():
        for message in json.loads(line)["messages"]:
            yield f"<|im_start|>{message['role']}\n{message['content']}<|im_end|>\n"


def code_pieces():
    folder = Path(sysconfig.get_path("stdlib"))
    for name in sorted(folder.glob("*.py")):
        yield name.read_text(encoding="utf-8", errors="replace")[:3000]


def chinese_pieces(data, by_character):
    lines = (data / "text/multilingual.txt").read_text().splitlines()
    chinese = [line for line in lines if len(re.findall(r"[\u4e00-\u9fff]", line)) > 0.7 * len(line)]
    pieces = [phrase for line in chinese for phrase in re.findall(r"[^，。、；]+[，。、；]?", line)]
    pool = "".join(pieces) if by_character else pieces
    shuffled = random.Random(1)
    while True:
        yield shuffled.choice(pool)


def make_texts(args):
    total = int(args.mib * 2**20)
    pieces = {"chat": list(chat_pieces(args.data)), "code": list(code_pieces()), "chinese": chinese_pieces(args.data, by_character=False),
              "chinese-mixed": chinese_pieces(args.data, by_character=True),
              "multilingual": (args.data / "text/multilingual.txt").read_text().splitlines(keepends=True)}
    return {kind: documents(found, args.document_bytes, total) for kind, found in pieces.items()}


# ---- the two sides ---------------------------------------------------------------------------------------------------

class LoraTrain:
    def __init__(self, args, file, kind, folder):
        self.probe, self.folder = args.probe, folder
        name = {"json": "tokenizer.json", "model": "tokenizer.model", "tekken": "tekken.json"}[kind]
        (folder / "model").mkdir()
        shutil.copyfile(file, folder / "model" / name)

    def encode(self, texts, offsets):
        ids, done = tokenizer_probe.encode(self.probe, self.folder, texts, model=self.folder / "model", offsets=offsets, repeat=2)
        return min(json.loads(done.stdout)["encode_s"]), ids


class HuggingFace:
    def __init__(self, file):
        from tokenizers import Tokenizer
        self.tokenizer = Tokenizer.from_file(str(file))

    def encode(self, texts, offsets):
        run = self.tokenizer.encode_batch if offsets else self.tokenizer.encode_batch_fast
        start = time.process_time()
        encodings = run(texts, add_special_tokens=False)
        return time.process_time() - start, [encoding.ids for encoding in encodings]


class SentencePiece:
    def __init__(self, file):
        import sentencepiece
        self.model = sentencepiece.SentencePieceProcessor(model_file=str(file))

    def encode(self, texts, offsets):
        start = time.process_time()
        ids = self.model.encode(texts, num_threads=1)
        return time.process_time() - start, ids


def compare(args, case, kind, texts, offsets, folder):
    name, file, reads = case
    ours = LoraTrain(args, args.data / file, reads, folder)
    theirs = SentencePiece(args.data / file) if reads == "model" else HuggingFace(args.data / file)
    size = sum(len(text.encode()) for text in texts) / 1e6
    seconds = {"ours": [], "theirs": []}
    for _ in range(args.rounds):
        their_s, their_ids = theirs.encode(texts, offsets)
        our_s, our_ids = ours.encode(texts, offsets)
        if our_ids != their_ids:
            wrong = next(i for i, (a, b) in enumerate(zip(our_ids, their_ids)) if a != b)
            sys.exit(f"{name} {kind}: document {wrong} has other ids: {texts[wrong][:200]!r}")
        seconds["ours"].append(our_s)
        seconds["theirs"].append(their_s)
    ours_rate, theirs_rate = (size / min(seconds[side]) for side in ("ours", "theirs"))
    tokens = sum(map(len, our_ids))
    rounds = ", ".join(f"{t / o:.1f}" for o, t in zip(seconds["ours"], seconds["theirs"]))
    return (f"{name:<21} {kind:<13} {'offsets' if offsets else 'ids':<8} {tokens:>8} | {ours_rate:>8.1f} {theirs_rate:>8.2f}"
            f" | {ours_rate / theirs_rate:>6.1f} | {rounds}")


# ---- report ----------------------------------------------------------------------------------------------------------

def cpu_name():
    found = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    return found.group(1).strip() if found else platform.machine()


def header(args, texts):
    import sentencepiece
    import tokenizers
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True).stdout
    sizes = ", ".join(f"{kind} {len(found)} documents, {sum(len(t.encode()) for t in found) / 1e6:.2f} MB"
                      for kind, found in texts.items())
    return [f"date {datetime.datetime.now():%Y-%m-%d %H:%M}, commit {commit.strip()}, command: {' '.join(sys.argv)}",
            f"cpu {cpu_name()}, {os.cpu_count()} cores; {platform.platform()}; load before {os.getloadavg()[0]:.2f}",
            f"tokenizers {tokenizers.__version__} (RAYON_NUM_THREADS=1), sentencepiece {sentencepiece.__version__}, one thread",
            sizes, "",
            "tokenizer             text          output     tokens | ours MB/s their MB/s |  ratio | ratio by round"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--probe", type=Path, default=ROOT / "build/dev/bin/tokenizer-probe")
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("LORA_TRAIN_TEST_DATA", ROOT / "../shared/data")))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mib", type=float, default=2.0)
    parser.add_argument("--document-bytes", type=int, default=4000)
    parser.add_argument("--only", default="")
    parser.add_argument("--log", type=Path)
    args = parser.parse_args()
    texts = make_texts(args)
    cpu = re.sub(r"[^a-z0-9]+", "-", cpu_name().lower()).strip("-")
    log = args.log or ROOT / f"bench/results/{datetime.date.today()}-tokenizers-{cpu}.txt"
    lines = header(args, texts)
    print("\n".join(lines), flush=True)
    for case in CASES:
        if args.only not in case[0]:
            continue
        for kind, found in texts.items():
            for offsets in (False, True) if case[2] == "json" else (False,):
                with tempfile.TemporaryDirectory() as folder:
                    lines.append(compare(args, case, kind, found, offsets, Path(folder)))
                print(lines[-1], flush=True)
    log.write_text("\n".join(lines) + f"\nload after {os.getloadavg()[0]:.2f}\n")


if __name__ == "__main__":
    main()
