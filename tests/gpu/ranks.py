#!/usr/bin/env python3
"""Runs of two ranks: on two GPUs, or on one with an NCCL that allows it (docs/gpu.md, "Two ranks on one GPU").

  ranks   two ranks give the losses of one; a rank that is killed is named, and SIGTERM ends both at one step

Usage: tests/gpu/ranks.py ranks --device cuda|cpu --work DIR. The last line is `figure: ...`; exit code 1 = failed.
"""

import os
import signal
import subprocess
import time
from pathlib import Path

from program import BIN, ROOT, checked, events, expect, run_check, settings, train, write_rows
from training import SMALL, STEPS, expect_device, make_model

STEPS_COMPARED = 20


def wait_for_steps(folder, process, num_steps, deadline):
    while len(events(folder, "train")) < num_steps if (folder / "metrics.jsonl").exists() else True:
        expect(process.poll() is None, f"the ranks ended before step {num_steps}")
        expect(time.monotonic() < deadline, f"step {num_steps} did not come in time")
        time.sleep(0.1)


def process_of_rank(rank, folder):
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command, environment = (entry / "cmdline").read_bytes(), (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue  # has ended
        if str(folder).encode() in command and f"RANK={rank}".encode() in environment:
            return int(entry.name)
    expect(False, f"there is no process of rank {rank}")


def end(folder, common, args, number, target):
    """Starts two ranks, sends a signal after step 5, and returns exit code, stderr and seconds."""
    errors = folder.with_suffix(".err")
    with open(errors, "w") as stderr:
        process = subprocess.Popen([str(BIN / "lora-train"), "train", "--output-dir", str(folder), "--nproc", "2", "--overwrite",
                                    *settings(dict(common, max_steps=1000000))], stdout=subprocess.DEVNULL, stderr=stderr, cwd=ROOT)
        try:
            wait_for_steps(folder, process, 5, args.deadline)
            started = time.monotonic()
            os.kill(process_of_rank(target, folder) if target is not None else process.pid, number)
            code = process.wait(timeout=60)
        finally:
            process.kill()
    return code, errors.read_text(), time.monotonic() - started


def ranks(args):
    model, rows = make_model(SMALL, args.work), args.work / "rows.jsonl"
    write_rows(rows, 96, 64, SMALL["vocab_size"])
    common = dict(STEPS, device=args.device, precision="fp32", deterministic="true", model=str(model), lora_r=8, learning_rate=1e-3,
                  max_seq_len=64, micro_batch_size=2, global_batch_size=8, datasets=[{"path": str(rows), "type": "pretokenized"}],
                  check_ranks="step")
    curves = []
    for num_ranks in (1, 2):
        folder = args.work / f"ranks-{num_ranks}"
        expect_device(train(None, folder, "--overwrite", "--nproc", num_ranks, **common, max_steps=STEPS_COMPARED), args)
        curves.append([line["loss"] for line in events(folder, "train")])
    worst = max(abs(one - two) / one for one, two in zip(*curves))
    print(f"losses of two ranks differ by at most {worst:.2g} from those of one")
    checked(min(map(len, curves)), STEPS_COMPARED, "steps")
    expect(worst < 1e-5, f"losses of two ranks differ by {worst:.2g} from those of one")
    code, stderr, seconds = end(args.work / "killed", common, args, signal.SIGKILL, 1)
    expect(code == 128 + signal.SIGKILL and "rank 1 of 2: process" in stderr, f"rank 1 killed: exit code {code}\n{stderr[-2000:]}")
    print(f"rank 1 killed: rank 0 named it, and the end came {seconds:.1f} s later")
    code, stderr, seconds = end(args.work / "stopped", common, args, signal.SIGTERM, None)
    expect(code == 75 and "error: " not in stderr, f"SIGTERM: exit code {code}\n{stderr[-2000:]}")
    saved = [path.name for path in (args.work / "stopped").glob("checkpoint-*")]
    last = events(args.work / "stopped", "train")[-1]["step"]
    expect(saved == [f"checkpoint-{last}"], f"SIGTERM after step {last}: {saved}")
    return f"losses within {worst:.1g}; killed and stopped as on a CPU"


if __name__ == "__main__":
    run_check([ranks], __doc__)
