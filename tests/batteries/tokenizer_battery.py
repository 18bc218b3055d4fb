#!/usr/bin/env python3
"""Encodes random, natural and adversarial Unicode strings with lora-train and with the reference of each tokenizer, and
compares every id and, where it is defined, the text that the ids decode to.

References: Hugging Face `tokenizers` for tokenizer.json, `sentencepiece` for tokenizer.model, `mistral-common` for
tekken.json (special tokens in text are text there; its wheel carries the files, as it carries tokenizer.model v2 and v7).
What is missing on this machine is named and left out. Strings come from a seed: a run can be repeated.

Usage: tests/batteries/tokenizer_battery.py [--strings 1000000] [--adversarial 10000] [--seed 1] [--only NAME,NAME]
       [--probe build/dev/bin/tokenizer-probe] [--data ../shared/data] [--log FILE]
Exit status 1 and the first strings that differ, when any does.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("RAYON_NUM_THREADS", "1")
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/batteries"), str(ROOT / "tests/support")]
import battery_log  # noqa: E402
import battery_strings  # noqa: E402
import tokenizer_probe  # noqa: E402

CHUNK = 50_000
SHOWN = 5  # differing strings that are printed per tokenizer


# ---- references ------------------------------------------------------------------------------------------------------

class HuggingFace:
    kind, special_tokens_in_text = "json", True

    def __init__(self, file):
        import tokenizers
        self.version = f"tokenizers {tokenizers.__version__}"
        self.tokenizer = tokenizers.Tokenizer.from_file(str(file))
        self.tokenizer.no_truncation()
        self.special = [token.content for token in self.tokenizer.get_added_tokens_decoder().values()]
        self.vocabulary = sorted(self.tokenizer.get_vocab())

    def encode(self, texts):
        return [encoding.ids for encoding in self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)]

    def decode(self, ids):
        return self.tokenizer.decode_batch(ids, skip_special_tokens=False)


class SentencePiece:
    kind, special_tokens_in_text = "model", True

    def __init__(self, file):
        import sentencepiece
        self.version = f"sentencepiece {sentencepiece.__version__}"
        self.model = sentencepiece.SentencePieceProcessor(model_file=str(file))
        self.vocabulary = [self.model.id_to_piece(i) for i in range(self.model.vocab_size())]
        self.special = [piece for i, piece in enumerate(self.vocabulary) if self.model.is_control(i)] + ["<unk>"]

    def encode(self, texts):
        return self.model.encode(texts, num_threads=1)

    def decode(self, ids):
        return self.model.decode(ids, num_threads=1)


class MistralCommon:
    kind, special_tokens_in_text = "tekken", False

    def __init__(self, file):
        import importlib.metadata
        from mistral_common.tokens.tokenizers.base import SpecialTokenPolicy
        from mistral_common.tokens.tokenizers.tekken import Tekkenizer
        self.version = f"mistral-common {importlib.metadata.version('mistral-common')}"
        self.tokenizer, self.keep = Tekkenizer.from_file(file), SpecialTokenPolicy.KEEP
        self.vocabulary = self.tokenizer.vocab()
        self.special = self.vocabulary[:20]

    def encode(self, texts):
        return [self.tokenizer.encode(text, bos=False, eos=False) for text in texts]

    def decode(self, ids):
        return [self.tokenizer.decode(each, special_token_policy=self.keep) for each in ids]


def mistral_common_file(pattern):
    """A data file of the installed wheel, or None."""
    import importlib.util
    spec = importlib.util.find_spec("mistral_common")
    found = sorted((Path(spec.origin).parent / "data").glob(pattern)) if spec else []
    return found[0] if found else None


def find_tokenizers(data):
    """name -> (reference, file); the file is None where it is missing."""
    def in_data(relative):
        return data / relative if (data / relative).exists() else None
    return {
        "qwen2.5": (HuggingFace, in_data("qwen2.5/tokenizer.json")),
        "qwen3": (HuggingFace, in_data("qwen3/tokenizer.json")),
        "mistral-v1": (HuggingFace, in_data("mistral/v1/tokenizer.json")),
        "mistral-v3": (HuggingFace, in_data("mistral/v3/tokenizer.json")),
        "mistral-v3-metaspace": (HuggingFace, in_data("mistral/v3/tokenizer-metaspace.json")),
        "mistral-v1-model": (SentencePiece, in_data("mistral/v1/tokenizer.model")),
        "mistral-v2-model": (SentencePiece, mistral_common_file("*model.v2")),
        "mistral-v3-model": (SentencePiece, in_data("mistral/v3/tokenizer.model")),
        "mistral-v7-model": (SentencePiece, mistral_common_file("*model.v7")),
        "tekken-240718": (MistralCommon, mistral_common_file("tekken_240718.json")),
        "tekken-240911": (MistralCommon, mistral_common_file("tekken_240911.json")),
    }


# ---- lora-train ------------------------------------------------------------------------------------------------------

class LoraTrain:
    def __init__(self, probe, file, reference, folder):
        self.probe, self.folder = probe, Path(folder)
        self.options = {"special_tokens_in_text": reference.special_tokens_in_text, "decode": True}
        name = {"json": "tokenizer.json", "model": "tokenizer.model", "tekken": "tekken.json"}[reference.kind]
        shutil.copyfile(file, self.folder / name)

    def run(self, texts):
        """(ids, decoded text) per text, and the seconds that encoding took."""
        out, done = tokenizer_probe.encode(self.probe, self.folder, texts, **self.options)
        return out, json.loads(done.stdout)["encode_s"][0]


# ---- comparison ------------------------------------------------------------------------------------------------------

def compare(name, ours, theirs, numbered, totals):
    texts = [text for _, text in numbered]
    got, seconds = ours.run(texts)
    start = time.process_time()
    want = theirs.encode(texts)
    totals["their_s"] += time.process_time() - start
    totals["our_s"] += seconds
    decoded = theirs.decode(want)
    for (cls, text), (ids, back), want_ids, want_back in zip(numbered, got, want, decoded):
        totals["tokens"] += len(want_ids)
        wrong_ids, wrong_text = ids != list(want_ids), back != want_back
        totals["wrong ids"] += wrong_ids
        totals["wrong texts"] += wrong_text and not wrong_ids
        if (wrong_ids or wrong_text) and totals["shown"] < SHOWN:
            totals["shown"] += 1
            what = f"want {list(want_ids)[:60]}\n  got  {ids[:60]}" if wrong_ids else f"want {want_back!r:.300}\n  got  {back!r:.300}"
            print(f"{name}: {cls} {text!r:.300}\n  {what}", flush=True)


def run_one(name, reference, file, args):
    """Number of differences, and the line of the report."""
    theirs = reference(file)
    totals = {"tokens": 0, "wrong ids": 0, "wrong texts": 0, "shown": 0, "our_s": 0.0, "their_s": 0.0}
    start = time.time()
    natural = battery_strings.strings(args.seed, args.strings, args.data, theirs.special)
    adversarial = battery_strings.adversarial(args.seed, args.adversarial, theirs.vocabulary, theirs.special)
    with tempfile.TemporaryDirectory() as folder:
        ours = LoraTrain(args.probe, file, theirs, folder)
        for source in (natural, adversarial):
            while numbered := [item for item, _ in zip(source, range(CHUNK))]:
                compare(name, ours, theirs, numbered, totals)
    wrong = totals["wrong ids"] + totals["wrong texts"]
    line = (f"{name:<21} {theirs.version:<22} {args.strings:>8} {args.adversarial:>6} {totals['tokens']:>10} "
            f"{totals['wrong ids']:>9} {totals['wrong texts']:>11}   {totals['our_s']:>7.1f} {totals['their_s']:>7.1f} "
            f"{time.time() - start:>7.0f}")
    return wrong, line


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strings", type=int, default=1_000_000)
    parser.add_argument("--adversarial", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="")
    parser.add_argument("--probe", type=Path, default=ROOT / "build/dev/bin/tokenizer-probe")
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("LORA_TRAIN_TEST_DATA", ROOT / "../shared/data")))
    parser.add_argument("--log", type=Path)
    args = parser.parse_args()
    say = battery_log.Log(args.log, ROOT).say
    say("tokenizer             reference               strings advers.     tokens wrong ids wrong texts   ours s theirs s wall s")
    differences = 0
    for name, (reference, file) in find_tokenizers(args.data).items():
        if args.only and name not in args.only.split(","):
            continue
        if file is None:
            say(f"{name:<21} left out: its file is not on this machine")
            continue
        wrong, line = run_one(name, reference, file, args)
        differences += wrong
        say(line)
    sys.exit(1 if differences else 0)


if __name__ == "__main__":
    main()
