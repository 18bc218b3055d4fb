"""The parts of gpu_check, the calls that they make up, and the time that each needs by count. docs/gpu.md says what each proves.

Usage: tests/gpu/parts.py: the tables of calls and parts for docs/gpu.md.
"""

import sys
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
END_S = 5  # what a part that watches its own time leaves of it
BUDGET_S = 570  # of a call, whose machine is taken away after 600 s
SPARE = 1.2  # limit / need, at least

# Seconds of what parts consist of, on one H100 or H200 with 16 cores and the libraries in the page cache. Counted, or guessed on
# the safe side; not measured. gpu_check prints what each part took, so that a visit can correct them.
UNITS = {
    "second": 1.0,
    "gigabyte": 1.0,  # read from a cold disk
    "start": 5.0,  # a process on CUDA: libraries, context, cuBLASLt, cuDNN
    "python": 10.0,  # torch, transformers and peft on CUDA
    "plan": 1.0,  # cuDNN compiles attention of a shape, forward and backward
    "product": 0.25,  # autotuning of a product of 7B: 12 candidates
    "small_product": 0.05,
    "pitch": 7.0,  # autotuning of the row pitch of 7B: its products in two layouts
    "load": 2.0,  # random weights of 7B on the device; as nf4: 3
    "step": 0.9,  # of 7B, 16k tokens; usual transformers + PEFT: 2, compiled: 1.4
    "profile": 9.0,  # of bench after the steps: idle, classes, rate of GEMMs
    "rates": 6.0,  # bench --measure-rates: attention and copies
    "compare": 2.3,  # compare() of gpu_bench: 1 s to warm up, 7 rounds of 3 turns of 60 ms
    "test": 0.06,  # a unit test on CUDA
    "hf_load": 8.0,  # transformers reads 7B from the page cache
    "hf_model": 35.0,  # 7B with random weights, written to disk
    "compile": 60.0,  # torch.compile of 7B; again from its cache: 20
}


@dataclass
class Part:
    help: str
    limit_s: int
    file: str = ""  # a file of this folder with a check of that name
    check: str = ""
    arguments: tuple = ()
    needs_gpu: bool = False
    at_least: tuple = (1, 1)  # how much it has to look at, on a GPU and on a CPU
    need: dict = field(default_factory=dict)  # how much of each of UNITS, on a GPU

    def __post_init__(self):
        self.at_least = dict(zip(("cuda", "cpu"), self.at_least))

    def need_s(self):
        return sum(UNITS[unit] * count for unit, count in self.need.items())

    def command(self, device, work, out, limit_s):
        return [sys.executable, HERE / self.file, self.check, "--device", device, "--work", work, "--out", out,
                "--limit-s", max(1, int(limit_s) - END_S)]


@dataclass
class Script(Part):
    """A script that names its check by flags, or by nothing."""
    on_cpu: tuple = ()  # instead of `arguments`
    takes_work: bool = True

    def command(self, device, work, out, limit_s):
        arguments = self.arguments if device == "cuda" or not self.on_cpu else self.on_cpu
        folder = ["--work", work] if self.takes_work else []
        return [sys.executable, HERE / self.file, *arguments, *folder, "--device", device, "--limit-s",
                max(1, int(limit_s) - END_S)]


# Runs of the engine, 3 of 4 at a time, each with a few plans and small products, beside PEFT; half of them without tuning.
def parity(help, limit_s, num_cases, *settings, flags=()):
    changes = (*flags, *(word for setting in settings for word in ("--set", setting)))
    runs = 3 * (num_cases + 1)
    return Script(help, limit_s, "parity_gpu.py", at_least=(runs, 2),
                  arguments=("--cases", str(num_cases), "--curves", "1", *changes),
                  on_cpu=("--cases", "1", "--curves", "0", *changes),
                  need=dict(python=1, start=runs / 3, plan=2 * runs / 3, small_product=30 * runs / 3, second=2 * runs))


def bench_7b(count, steps, second=0, **more):
    """The units of `count` processes of lora-train bench with `steps` steps in all: `more` is what they tune and profile."""
    return dict(start=count, load=count, plan=count, step=steps, second=3 * count + second, **more)


PARTS = {
    "machine": Part("GPU, driver, processor, packages", 10, "device.py", "machine", need=dict(second=5)),
    "load": Part("the libraries are read and load, and a tiny model makes a step", 25, "device.py", "load", at_least=(3, 3),
                 need=dict(gigabyte=3.6, start=1, plan=2, small_product=60, second=2)),
    "cuda_kernels": Script("the native kernels at odd sizes, between guard zones (cuda_kernels_test)", 25, "unit_tests.py",
                           arguments=("--only", "cuda_kernels_test"), needs_gpu=True, at_least=(20, 0), takes_work=False,
                           need=dict(start=2, test=90)),
    "doctor": Part("lora-train doctor: every native kernel against its reference", 45, "device.py", "doctor",
                   at_least=(60, 60), need=dict(start=1, plan=6, test=200, second=10)),
    "attention": Part("every attention backend against the reference; FlashAttention 2 beside cuDNN", 70, "device.py",
                      "attention", at_least=(10, 5), need=dict(start=3, plan=17 + 8, test=60, second=8)),
    "tests": Script("every unit test on CUDA but those of attention and cuda_kernels", 105, "unit_tests.py",
                    arguments=("--skip", r"(^|/)Attention\w*\."), at_least=(150, 300), takes_work=False,
                    need=dict(start=12, plan=10, test=250)),
    "parity": parity("loss, gradients, curves against transformers + PEFT; fp32, TF32, bf16", 100, 4),
    "parity_hybrid": parity("the same for Qwen3.5: gated delta nets, gated attention", 65, 2, flags=("--hybrid",)),
    "recorded": Part("steps are captured as CUDA graphs, three bf16 workloads", 57, "steps.py", "recorded", at_least=(3, 2),
                     need=dict(start=3, plan=9, small_product=7 * 26 + 2 * 48, second=9)),
    "compare_equality": Part("gradients and a curve of Qwen2.5-0.5B against transformers + PEFT", 68, "measure.py",
                             "compare_equality", need=dict(python=1, start=2, plan=4, small_product=60, second=25)),
    # The first process tunes; the second measures.
    "classes": Part("a 7B step by class of kernel, against the bound of each", 115, "steps.py", "classes", at_least=(8, 8),
                    need=bench_7b(2, 3 + 11 + 2, product=30 + 16, pitch=1, profile=1, rates=1, small_product=20)),
    "kernel_names": Part("no large product of a 7B step runs in a kernel of an older generation", 40, "kernel_names.py",
                         "kernel_names", needs_gpu=True, at_least=(100, 0), need=bench_7b(1, 5, second=10)),
    "compare_8": Part("speed of 7B, 8 rows, beside transformers + PEFT: as it comes, and compiled", 325, "measure.py",
                      "compare_8", need=dict(hf_model=1, python=3, hf_load=3, compile=1, start=1, load=3,
                                             step=(8 * 2 + 24 * 1.4) / 0.9 + 16, second=20)),
    "copies": Part("copies on the device, to it and from it", 25, "measure.py", "copies", need=dict(python=1, second=5)),
    "steady": Part("a step allocates nothing and waits for nothing", 40, "training.py", "steady", needs_gpu=True,
                   at_least=(30, 0), need=dict(start=3, plan=2, small_product=60, second=8)),
    "quantised": Part("an nf4 base against bf16, and peak memory of QLoRA", 245, "steps.py", "quantised", at_least=(10, 4),
                      need=bench_7b(13, 4 * (3 * (1 + 0.5 + 0.25) + 2), second=13, product=60)),
    "sanitizer": Part("memcheck, racecheck and synccheck over the native kernels", 110, "sanitizer.py", "sanitizer",
                      needs_gpu=True, at_least=(30, 0), need=dict(second=90)),
    "resume": Part("with deterministic: true, 10 + 10 steps are the bytes of 20", 60, "training.py", "resume",
                   at_least=(80, 80), need=dict(start=7, second=12)),
    "shapes": Part("lora-train bench of Qwen3-8B and Qwen2.5-0.5B", 95, "steps.py", "shapes", at_least=(2, 2),
                   need=bench_7b(2, 11 + 2, pitch=1, product=30, small_product=30, profile=2)),
    "gated_delta": Part("the gated delta rule alone, at the sizes that others publish", 22, "measure.py", "gated_delta",
                        at_least=(3, 3), need=dict(python=0.5, start=1, compare=3)),
    "hybrid": Part("a step of Qwen3.5-9B by class of kernel, and the share of gated delta nets", 60, "steps.py", "hybrid",
                   at_least=(11, 11), need=bench_7b(1, 6, product=40, pitch=1, profile=1, rates=1, small_product=20)),
    "rivals": Part("speed of 7B beside transformers + PEFT: usual, compiled, Liger; the padded SFT mix", 560, "measure.py",
                   "rivals", need=dict(hf_model=1, python=7, hf_load=7, compile=1, start=2, load=5, plan=6, product=60,
                                       step=(8 * 2 + 8 * 1.4 + 24 * 1.2 + 8 * 4.5 + 24 * 1.3) / 0.9 + 32, second=30)),
    "parity_reference": parity("parity with kernels: reference", 105, 3, "kernels=reference"),
    "parity_attention": parity("parity with attn_implementation: reference", 105, 3, "attn_implementation=reference"),
    "parity_plain": parity("parity with cuda_graphs: off and tuning: off", 105, 3, "cuda_graphs=off", "tuning=off"),
    "hybrid_reference": parity("parity_hybrid with kernels: reference", 65, 2, "kernels=reference", flags=("--hybrid",)),
    "variants": Part("a 7B step with one setting changed at a time", 235, "steps.py", "variants", at_least=(6, 2),
                     need=bench_7b(7, 7 * 6 + 12, profile=7, second=5)),
    "measure": Part("attention, linears, products, transformers + PEFT: what bench/gpu_measure.py knows beside the rest", 330,
                    "measure.py", "measure", need=dict(python=1, start=4, plan=16, compare=48, product=150, hf_load=4,
                                                       second=40)),
    "pitch": Part("matrix products at the pitches of the trainer, and rounded up", 75, "measure.py", "pitch",
                  need=dict(python=0.5, start=1, compare=16, product=52)),
    "gate_up": Part("the two forms of gate|up's backward", 40, "measure.py", "gate_up",
                    need=dict(python=0.5, start=1, compare=8, product=16)),
    "all_shapes": Part("lora-train bench of every shape, the SFT mix, and memory of 7B with full recomputation", 450, "steps.py",
                       "all_shapes", at_least=(8, 2), need=bench_7b(8, 8 * 11, pitch=5, product=5 * 30 + 150,
                                                                    small_product=60, profile=8, second=4)),
    "ranks": Part("two ranks give the losses of one; one is killed, both are stopped", 120, "ranks.py", "ranks",
                  at_least=(20, 20), need=dict(start=8, plan=8, second=30)),
    "quickstart": Part("examples/tiny-math learns", 45, "training.py", "quickstart",
                       need=dict(start=3, plan=4, small_product=60, second=12)),
}

# goals.next_call says which follows. The first three are one visit of thirty minutes.
CALLS = {
    "correct": ["machine", "load", "cuda_kernels", "doctor", "attention", "tests", "parity", "parity_hybrid", "recorded",
                "compare_equality"],
    "speed": ["load", "classes", "kernel_names", "compare_8", "copies", "steady"],
    "rest": ["load", "quantised", "sanitizer", "resume", "shapes", "gated_delta"],
    "rivals": ["rivals"],
    "wrong": ["load", "parity_reference", "parity_attention", "parity_plain", "hybrid_reference", "sanitizer"],
    "slow": ["variants", "measure"],
    "figures": ["all_shapes", "pitch", "quickstart"],
    "hybrid": ["load", "hybrid"],
    "gate_up": ["gate_up"],
    "ranks": ["ranks"],
}
# Where all of these fail, nothing runs on this GPU: the call stops.
FIRST_LIGHT = ("load", "cuda_kernels", "doctor")


def markdown():
    lines = ["| Call | Parts, in this order | Limits | Needs, by count |", "|---|---|---|---|"]
    for name, names in CALLS.items():
        total = sum(PARTS[part].limit_s for part in names), sum(PARTS[part].need_s() for part in names)
        lines.append(f"| `{name}` | {', '.join(names)} | {total[0]} s | {total[1]:.0f} s |")
    lines += ["", "| Part | Limit | Needs, by count |", "|---|---|---|"]
    for name, part in PARTS.items():
        units = ", ".join(f"{count:.3g} {unit}" for unit, count in part.need.items())
        lines.append(f"| {name} | {part.limit_s} s | {part.need_s():.0f} s: {units} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(markdown())
