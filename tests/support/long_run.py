"""A 60-step run with everything that carries state (dropout, accumulation, packing, validation, a schedule, rotation), on a
disk that is slow, to be killed and stopped: what it must come to in the end, whatever happened on the way."""

import hashlib
import json
import os
import random
import subprocess

from command import BINARY, ENVIRONMENT, Setup

STEPS = 60
SAVE_STEPS = 4
PERCENT = int(os.environ.get("LORA_TRAIN_TORTURE") or 0)  # of the long version; scripts/torture.sh sets it
SETTINGS = dict(max_steps=STEPS, save_steps=SAVE_STEPS, save_total_limit=2, eval_steps=7, shuffle=True, packing=True,
                lora_dropout=0.1, lr_scheduler_type="cosine", warmup_steps=5, global_batch_size=4, micro_batch_size=1,
                logging_steps=1)
SLOW_DISK = dict(ENVIRONMENT, LD_PRELOAD=str(BINARY.parent / "lib/libslow_sync.so"))


def amount(in_ci, in_torture):
    return max(in_ci, in_torture * PERCENT // 100)


class LongRun(Setup):
    def __init__(self, folder, rows=24):
        super().__init__(folder)
        rng = random.Random(3)
        made = [[rng.randrange(2, 64) for _ in range(rng.randrange(8, 30))] for _ in range(rows)]
        self.write_rows([{"input_ids": ids, "labels": [-100, -100] + ids[2:]} for ids in made])
        self.eval_file = folder / "val.jsonl"
        self.eval_file.write_text("".join(json.dumps({"input_ids": ids, "labels": ids}) + "\n" for ids in made[:12]))
        self.expected = None

    def settings(self, **changes):
        return dict(SETTINGS, eval_datasets=[{"path": str(self.eval_file), "type": "pretokenized", "name": "val"}], **changes)

    def begin(self, output_dir, slow_sync_ms=0):
        profile = self.folder / f"{output_dir.name}.json"
        if not profile.exists():
            settings = dict(self.profile, **self.settings(output_dir=str(output_dir)))
            profile.write_text(json.dumps(settings))
        environment = dict(SLOW_DISK, SLOW_SYNC_MS=str(slow_sync_ms)) if slow_sync_ms else ENVIRONMENT
        return subprocess.Popen([str(BINARY), "train", "--quiet", "--profile", str(profile)], stdout=subprocess.DEVNULL,
                                stderr=subprocess.PIPE, text=True, env=environment)

    def learn_what_to_expect(self):
        """From a run that nobody disturbs."""
        whole = self.folder / "whole"
        process = self.begin(whole)
        _, stderr = process.communicate(timeout=600)
        assert process.returncode == 0, stderr
        self.expected = self.outcome(whole)
        assert len(self.expected["steps"]) == STEPS and len(self.expected["evals"]) == STEPS // 7 + 2
        return self.expected

    def outcome(self, output_dir):
        """Everything that must be equal, bit for bit."""
        def digest(path):
            return hashlib.sha256((output_dir / path).read_bytes()).hexdigest()

        return {"adapter": digest("adapter/adapter_model.safetensors"),
                "optimizer": digest(f"checkpoint-{STEPS}/optimizer.safetensors"),
                "checkpoint": digest(f"checkpoint-{STEPS}/adapter_model.safetensors"),
                "steps": self.values(output_dir, "train", ("loss", "grad_norm", "learning_rate", "loss_mean", "tokens")),
                "evals": self.values(output_dir, "eval", ("loss", "token_accuracy", "num_tokens"))}

    def values(self, output_dir, event, keys):
        """{step: values} of the log; a line that stands twice must say the same."""
        seen = {}
        for line in self.events(event, output_dir):
            value = tuple(line[key] for key in keys)
            assert seen.setdefault(line["step"], value) == value, f"{event} of step {line['step']} stands twice"
        return seen

    def finish(self, output_dir, context):
        """The same command once more, undisturbed: done, with the bits of the run that nobody disturbed."""
        process = self.begin(output_dir)
        _, stderr = process.communicate(timeout=600)
        assert process.returncode == 0, f"{context}: {stderr}"
        assert self.outcome(output_dir) == self.expected, context
        left = [path.name for path in output_dir.iterdir() if path.name.startswith(".tmp-")]
        assert not left, f"{context}: {left}"


def checkpoint_steps(output_dir):
    return sorted(int(path.name.split("-")[1]) for path in output_dir.glob("checkpoint-*"))


def is_saving(output_dir, process):
    """Whether this process is writing a checkpoint, or deleting one; what an earlier one left has another number."""
    return any(output_dir.glob(f".tmp-checkpoint-*-{process.pid}"))
