#!/usr/bin/env python3
"""Renders random dialogues with every template and compares text and trained characters with transformers.

  LORA_TRAIN_BIN=build/dev/bin .deps/venv/bin/python scripts/checks/check_chat_templates.py [--dialogues 2000] [--only NAME]

Prints a table and the first differences of each template;
exits 1 when there are any. A dialogue counts as refused when both refuse it.
"""

import argparse
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests/parity"))
import chat_dialogues  # noqa: E402
import chat_oracle  # noqa: E402


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dialogues", type=int, default=2000)
    parser.add_argument("--only", default="")
    parser.add_argument("--show", type=int, default=2, help="differences to print per template")
    arguments = parser.parse_args()
    ours = chat_oracle.OurRenderer()
    started, total = time.time(), 0
    print(f"{'template':45} {'dialogues':>9} {'refused':>8} {'trained chars':>14} {'different':>10}")
    for name, template in chat_oracle.templates().items():
        if arguments.only not in name:
            continue
        problem = ours.set_template(template[0], template[2])
        if problem:
            raise SystemExit(f"{name}: {problem}")
        dialogues, refused, trained, different = chat_dialogues.Dialogues(name), 0, 0, 0
        for _ in range(arguments.dialogues):
            dialogue = dialogues.make()
            found = chat_oracle.difference(template, dialogue, ours)
            got = ours.render(dialogue)
            refused += len(got) == 1
            trained += sum(got[1]) if len(got) == 2 else 0
            different += found != ""
            if found and different <= arguments.show:
                print(f"{name}: {json.dumps(dialogue)}\n{found}")
        print(f"{name:45} {arguments.dialogues:9} {refused:8} {trained:14} {different:10}", flush=True)
        total += different
    ours.close()
    print(f"{total} different, {time.time() - started:.0f} s")
    return 1 if total else 0


if __name__ == "__main__":
    sys.exit(main())
