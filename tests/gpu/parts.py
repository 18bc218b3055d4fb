"""The parts of gpu_check and the calls that they make up. docs/gpu.md says what each part proves."""

import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
BENCH = HERE.parents[1] / "bench"
GOLDENS = HERE.parents[1] / "scripts/check_goldens.py"
END_S = 5  # what a part that watches its own time leaves of it


@dataclass
class Part:
    help: str
    limit_s: int
    file: str = ""  # a file of this folder with a check of that name
    check: str = ""
    arguments: tuple = ()
    needs_gpu: bool = False
    at_least: tuple = (1, 1)  # how much it has to look at, on a GPU and on a CPU

    def __post_init__(self):
        self.at_least = dict(zip(("cuda", "cpu"), self.at_least))

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


def parity(help, limit_s, on_cuda, at_least, *settings):
    changes = tuple(word for setting in settings for word in ("--set", setting))
    return Script(help, limit_s, "parity_gpu.py", arguments=(*on_cuda, *changes), at_least=(at_least, 2),
                  on_cpu=("--cases", "1", "--curves", "0", *changes))


def compare(workload):
    return Part(f"speed beside transformers + PEFT: workload {workload}", 560, "measure.py", f"compare_{workload}", at_least=(1, 1))


PARTS = {
    "machine": Part("GPU, driver, processor, packages", 10, "device.py", "machine"),
    "doctor": Part("lora-train doctor: every native kernel against its reference", 40, "device.py", "doctor",
                   at_least=(60, 60)),
    "attention": Part("every attention backend against the reference; FlashAttention 2 beside cuDNN", 40, "device.py",
                      "attention", at_least=(10, 5)),
    "recorded": Part("steps are captured as CUDA graphs, two bf16 workloads", 40, "steps.py", "recorded", at_least=(2, 1)),
    "parity": parity("loss, gradients, curves against transformers + PEFT; fp32, TF32, bf16", 85,
                     ("--cases", "4", "--curves", "1"), 15),
    "kernel_names": Part("no large product of a 7B step runs in a kernel of an older generation", 40, "kernel_names.py",
                         "kernel_names", needs_gpu=True, at_least=(100, 0)),
    "pitch": Part("matrix products at the pitches of the trainer, and rounded up", 60, "measure.py", "pitch"),
    "gate_up": Part("the two forms of gate|up's backward", 25, "measure.py", "gate_up"),
    "classes": Part("a 7B step by class of kernel, against the bound of each", 40, "steps.py", "classes", at_least=(8, 8)),
    "compare_equality": Part("gradients and a curve of Qwen2.5-0.5B against transformers + PEFT", 55, "measure.py",
                             "compare_equality"),
    "resume": Part("with deterministic: true, 10 + 10 steps are the bytes of 20", 40, "training.py", "resume",
                   at_least=(80, 80)),
    "ranks": Part("two ranks give the losses of one; one is killed, both are stopped", 120, "ranks.py", "ranks", at_least=(20, 20)),
    "sanitizer": Part("memcheck, racecheck and synccheck over the native kernels", 95, "sanitizer.py", "sanitizer",
                      needs_gpu=True, at_least=(30, 0)),
    "tests": Script("every unit test that the bundle has", 130, "unit_tests.py", at_least=(500, 500), takes_work=False),
    "steady": Part("a step allocates nothing and waits for nothing", 40, "training.py", "steady", needs_gpu=True,
                   at_least=(30, 0)),
    "quickstart": Part("examples/tiny-math learns", 40, "training.py", "quickstart"),
    "shapes": Part("lora-train bench of every shape, and memory of 7B with full recomputation", 300, "steps.py", "shapes",
                   at_least=(8, 2)),
    "quantised": Part("an nf4 base against bf16, and peak memory of QLoRA", 400, "steps.py", "quantised", at_least=(13, 4)),
    "goldens": Part("the CPU path against the stored goldens", 60, "device.py", "goldens"),
    "variants": Part("a 7B step with one setting changed at a time", 260, "steps.py", "variants", at_least=(6, 2)),
    "measure": Part("copies, attention, products, transformers + PEFT: everything that bench/gpu_measure.py knows", 270,
                    "measure.py", "measure"),
    "parity_reference": parity("parity with kernels: reference", 80, ("--cases", "3", "--curves", "1"), 12, "kernels=reference"),
    "parity_attention": parity("parity with attn_implementation: reference", 80, ("--cases", "3", "--curves", "1"), 12,
                               "attn_implementation=reference"),
    "parity_plain": parity("parity with cuda_graphs: off and tuning: off", 80, ("--cases", "3", "--curves", "1"), 12,
                           "cuda_graphs=off", "tuning=off"),
    "compare_8": compare("8"), "compare_2x4": compare("2x4"), "compare_mix": compare("mix"),
}

# The time limits of a call add up to 570 s at most. goals.next_call says which follows.
CALLS = {
    "first": ["machine", "doctor", "attention", "recorded", "parity", "kernel_names", "pitch", "gate_up", "classes",
              "compare_equality", "resume", "sanitizer"],
    "wrong": ["parity_reference", "parity_attention", "parity_plain", "tests", "steady", "sanitizer"],
    "slow": ["variants", "measure", "steady"],
    "figures": ["shapes", "tests", "goldens", "steady", "quickstart"],
    "quantised": ["quantised"], "ranks": ["ranks"],
    "compare_8": ["compare_8"], "compare_2x4": ["compare_2x4"], "compare_mix": ["compare_mix"],
}
