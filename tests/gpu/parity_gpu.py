#!/usr/bin/env python3
"""lora-train against transformers + PEFT on one device: loss and gradients of step 1, and curves of 50 steps.

The models are small, random ones of tests/parity/random_case.py, of its first four families; with --hybrid of Qwen3.5, whose
documents end around the ends of chunks. Both sides see the same files.

  fp32   loss and every gradient within 1e-5 of PEFT in fp32; curves within 1e-4 (tests/parity/test_lora_curves.py)
  tf32   tf32: true against PEFT in exact fp32: loss within 2e-3, gradients within 2e-2; curves within 1e-2 (CUDA only)
  bf16   loss within 1% of PEFT in fp32, curves within 1% of PEFT in bf16; the error of the gradients is, in the geometric
         mean over the tensors, at most 1.5 times that of PEFT in bf16, and of no tensor over 4 times

A mode that rounds no more than fp32 does was not looked at, and fails: TF32 whose gradients are as near to PEFT's as those of
fp32, bf16 whose error is far below PEFT's.

Usage: tests/gpu/parity_gpu.py --device cuda|cpu --work DIR [--modes fp32,tf32,bf16] [--cases N] [--curves N]
       [--hybrid] [--set KEY=VALUE]... [--jobs N] [--limit-s S]
--set: a profile key of every run. --limit-s: nothing more is compared after so many seconds. A case that fails does not stop the
others. The last line is `figure: ...`; exit code 1 = failed, 77 = no peft, or no transformers that has the model.
"""

import argparse
import functools
import math
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / name) for name in ("parity", "support")]
sys.modules.update(fla=None, causal_conv1d=None)  # the reference is transformers' own path
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.update(TOKENIZERS_PARALLELISM="false", TQDM_DISABLE="1", HF_HUB_DISABLE_PROGRESS_BARS="1")
try:
    import torch
    import transformers
    import engine
    import family_case
    import oracle
    import random_case
except ImportError as error:
    print(f"figure: not checked: {error}")
    sys.exit(77)

# What the programs of a bundle carry no path to.
os.environ.setdefault("LORA_TRAIN_TORCH", str(Path(torch.__file__).parent))
os.environ["LD_LIBRARY_PATH"] = ":".join(filter(None, [os.environ.get("LD_LIBRARY_PATH"),
                                                       os.environ["LORA_TRAIN_TORCH"] + "/lib"]))

MODES = {"fp32": {}, "tf32": {"tf32": True}, "bf16": {"precision": "bf16", "base_precision": "bf16"}}
# Case number, shape (hidden, heads, kv heads, head size) or None for the drawn one.
STEP_1 = [(0, (128, 4, 2, 32)), (1, (256, 4, 2, 64)), (2, (256, 2, 1, 128)), (3, (160, 5, 1, 32)), (5, None), (7, None),
          (4, (192, 3, 1, 64)), (9, (96, 6, 2, 16))]
# Case number, shape, learning rate: curves that do not amplify rounding, as in tests/parity/test_lora_curves.py.
CURVES = [(4, (192, 3, 1, 64), 4e-4), (8, None, 3e-3), (17, None, 2e-3), (3, None, 1e-3)]
NUM_STEPS, BATCH = 50, 4
# What differs from family_case.SMALL_HYBRID: nothing, and heads as large as those of published models.
HYBRIDS = [{}, {"head_dim": 256, "linear_key_head_dim": 128, "linear_value_head_dim": 128}]
HYBRID_CURVES = [{"learning_rate": 1e-2, "num_steps": 12}]
LEAST_TF32_ERROR, LEAST_SHARE = 3, 0.05  # times the error of fp32; of PEFT's error in bf16
CURVE_TOLERANCE = {"fp32": 1e-4, "tf32": 1e-2, "bf16": 1e-2}


class Report:
    """Lines of a table, and the worst figure of each kind."""

    def __init__(self):
        self.num_passed, self.failed, self.worst = 0, [], {}

    def line(self, name, errors):
        """errors: [(what, value, limit)]."""
        bad = [what for what, value, limit in errors if not value <= limit]  # NaN is bad
        words = ", ".join(f"{what} {value:.1e} (at most {limit:g})" for what, value, limit in errors)
        print(f"{'FAILED' if bad else 'ok    '} {name}: {words}", flush=True)
        self.count(name, not bad)
        for what, value, _ in errors:
            key = f"{name.split()[0]} {what}"
            self.worst[key] = max(self.worst.get(key, 0.0), value)

    def count(self, name, is_passed):
        self.num_passed += is_passed
        if not is_passed:
            self.failed.append(name)


def load(case, device, dtype=torch.float32):
    return oracle.load_peft(case.model_dir, case.adapter_dir, dtype).to(device)


def relative(value, reference):
    return abs(value - reference) / abs(reference)


class StepOne:
    """Loss and gradients of step 1 of one case; the engine runs in threads of `pool`."""

    def __init__(self, args, pool, settings, case):
        self.device, self.settings, self.case = args.device, settings, case
        self.engines = {mode: pool.submit(self.run_engine, mode) for mode in args.modes}

    def run_engine(self, mode):
        folder = self.case.model_dir.parent / mode
        return engine.probe(engine.profile_for(self.case, folder / "run", micro_batch_size=3,
                                               **{**MODES[mode], **self.settings}), folder)

    @functools.cached_property
    def exact(self):
        return oracle.gradients(load(self.case, self.device), self.case.rows)

    def errors(self, mode):
        facts, gradients = self.engines[mode].result()
        exact_loss, exact = self.exact
        loss = relative(facts["loss"], exact_loss)
        if mode != "bf16":
            limits = {"fp32": (1e-5, 1e-5), "tf32": (2e-3, 2e-2)}[mode]
            return [("loss", loss, limits[0]),
                    ("gradient", max(oracle.gradient_errors(gradients, exact).values()), limits[1])]
        _, rounded = oracle.gradients(load(self.case, self.device, torch.bfloat16), self.case.rows, is_bf16=True)
        shares = [float((gradients[name] - exact[name]).norm() / (rounded[name] - exact[name]).norm()) for name in exact]
        mean = math.exp(sum(map(math.log, shares)) / len(shares))
        return [("loss", loss, 1e-2), ("share of PEFT's error", mean, 1.5), ("largest share", max(shares), 4)]


class Curve:
    """The losses of the steps of one case."""

    def __init__(self, args, pool, settings, case, learning_rate, num_steps=NUM_STEPS):
        self.device, self.settings, self.case = args.device, settings, case
        self.learning_rate, self.num_steps = learning_rate, num_steps
        self.engines = {mode: pool.submit(self.run_engine, mode) for mode in args.modes}

    def run_engine(self, mode):
        folder = self.case.model_dir.parent / mode
        return engine.train(engine.profile_for(
            self.case, folder / "run", global_batch_size=BATCH, micro_batch_size=BATCH, max_steps=self.num_steps,
            learning_rate=self.learning_rate, lr_scheduler_type="cosine", warmup_steps=5, weight_decay=0.1,
            **{**MODES[mode], **self.settings}), folder)

    def errors(self, mode):
        is_bf16 = mode == "bf16"
        model = load(self.case, self.device, torch.bfloat16 if is_bf16 else torch.float32)
        history = oracle.train(model, oracle.batches_in_order(self.case.rows, BATCH, self.num_steps), scheduler="cosine",
                               learning_rate=self.learning_rate, warmup_steps=5, weight_decay=0.1, is_bf16=is_bf16)
        losses = [line["loss"] for line in self.engines[mode].result()]
        assert len(losses) == self.num_steps, f"{len(losses)} steps in metrics.jsonl"
        worst = max(relative(loss, expected["loss"]) for loss, expected in zip(losses, history))
        return [("loss", worst, CURVE_TOLERANCE[mode]), ("fall", sum(losses[-2:]) / sum(losses[:2]), 0.75)]


def not_looked_at(worst, modes):
    """Modes whose results are too good to have been computed in them."""
    fp32, tf32, bf16 = (worst.get(key) for key in ("fp32 gradient", "tf32 gradient", "bf16 share of PEFT's error"))
    if "tf32" in modes and tf32 is not None and (fp32 is None or tf32 < LEAST_TF32_ERROR * fp32):
        yield f"TF32 rounds as fp32 does: gradient {tf32:.1e}, fp32 {fp32 or math.nan:.1e}"
    if "bf16" in modes and bf16 is not None and bf16 < LEAST_SHARE:
        yield f"bf16 rounds less than bf16: {bf16:.1e} of PEFT's error"


def cases_of(args, pool):
    """[(what is compared, case)]; the engine runs them while others are made."""
    def drawn(name, number, shape, **more):
        return random_case.make_case(number, args.work / f"{name}-{number}", shape=shape, file_dtype="BF16", **more)

    def hybrid(name, keys):
        case = family_case.make("small hybrid", args.work / f"hybrid-{name}", **keys)
        case.name = f"Qwen3.5 E{keys.get('head_dim', 32)}"
        return case

    def settings(i):
        """Every second case takes its algorithms by rule, which is tested so, and saves most of its time."""
        return dict({"tuning": "off"} if i % 2 else {}, **args.settings)

    if args.hybrid:
        steps = (hybrid(f"case-{i}", keys) for i, keys in enumerate(HYBRIDS[:args.cases]))
        curves = (dict(case=hybrid(f"curve-{i}", {}), **keys) for i, keys in enumerate(HYBRID_CURVES[:args.curves]))
    else:
        steps = (drawn("case", *case, max_len=120) for case in STEP_1[:args.cases])
        curves = (dict(case=drawn("curve", number, shape), learning_rate=rate) for number, shape, rate in CURVES[:args.curves])
    return [*(("step 1", StepOne(args, pool, settings(i), case)) for i, case in enumerate(steps)),
            *(("curve", Curve(args, pool, settings(i), **curve)) for i, curve in enumerate(curves))]


def compare(args):
    """Returns the report, how many comparisons there were, and for how many there was no time."""
    deadline, report, num_left_out = time.monotonic() + args.limit_s, Report(), 0
    with ThreadPoolExecutor(args.jobs) as pool:
        cases = cases_of(args, pool)
        for what, case in cases:
            for mode in args.modes:
                name = f"{mode} {what} of {case.case.description.split(' | ')[0]}"
                if time.monotonic() > deadline:
                    num_left_out += 1
                    case.engines[mode].cancel()
                    continue
                try:
                    report.line(name, case.errors(mode))
                except Exception as error:  # noqa: BLE001: an engine that refuses or crashes fails its case alone
                    print(f"FAILED {name}: {type(error).__name__}: {str(error)[-1500:]}", flush=True)
                    report.count(name, False)
    return report, len(cases) * len(args.modes), num_left_out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--modes", default="fp32,tf32,bf16")
    parser.add_argument("--cases", type=int, default=len(STEP_1))
    parser.add_argument("--curves", type=int, default=len(CURVES))
    parser.add_argument("--hybrid", action="store_true")
    parser.add_argument("--jobs", type=int, default=min(4, max(1, (os.cpu_count() or 1) // 2)), help="engines at a time")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--limit-s", type=float, default=86400)
    args = parser.parse_args()
    args.settings = dict([setting.split("=", 1) for setting in args.set], device=args.device)
    if args.device == "cuda" and not torch.cuda.is_available():
        print("figure: torch sees no GPU")
        sys.exit(1)
    if args.hybrid and not hasattr(transformers, "Qwen3_5ForCausalLM"):
        print(f"figure: not checked: transformers {transformers.__version__} has no qwen3_5")
        sys.exit(77)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False  # the reference is exact
    args.modes = [mode for mode in args.modes.split(",") if args.device == "cuda" or mode != "tf32"]
    report, expected, num_left_out = compare(args)
    worst = ", ".join(f"{key} {value:.1e}" for key, value in sorted(report.worst.items())
                      if key.endswith(("loss", "gradient")))
    left_out = f", {num_left_out} left out for lack of time" if num_left_out else ""
    unseen = list(not_looked_at(report.worst, args.modes))
    print(f"checked: {report.num_passed + len(report.failed)} of {expected} comparisons")
    print(f"figure: {report.num_passed} passed, {len(report.failed)} failed{left_out}{''.join('; ' + text for text in unseen)}; "
          f"worst {worst}")
    sys.exit(1 if report.failed or num_left_out or unseen or not report.num_passed else 0)


if __name__ == "__main__":
    main()
