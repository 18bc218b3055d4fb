#!/usr/bin/env python3
"""Steps that lora-train bench measures: are they captured, where does their time go, and how fast are they?

  recorded  steps of three bf16 workloads are captured as CUDA graphs; where they are not, bench says why
  classes   a step of Qwen2.5-7B by class of kernel: measured time beside the bound of the class, at rates measured here
  hybrid    the same of Qwen3.5-9B, and what the gated delta rule takes of it
  shapes    tokens/s of Qwen3-8B and Qwen2.5-0.5B
  all_shapes  tokens/s of every shape, the SFT mix of 7B, and its peak memory with full recomputation
  quantised  an nf4 base against bf16, decoded in every pass and once, by tokens a step, where that fits the card; peak memory of QLoRA
  variants  the step of Qwen2.5-7B with one setting changed at a time

Usage: tests/gpu/steps.py CHECK --device cuda|cpu --work DIR [--out DIR] [--limit-s S]. What bench reports goes to steps.jsonl in
--out, a trace of a step to trace.json. The last line is `figure: ...`; exit code 1 = failed.
"""

import json
import time

import goals
from program import DoesNotFit, Failure, bench, checked, expect, measured, run_check

FEW_STEPS = ("--only-steps", "--steps", "4", "--warm-up", "2")
STEPS = ("--steps", "8", "--warm-up", "3")
LARGE, HYBRID = "qwen2.5-7b", "qwen3.5-9b"
TINY, TINY_HYBRID = "tiny-qwen2", "tiny-qwen3.5"
EXPLAINED = (0.8, 1.15)  # sum of the classes / time of a step
DECODE_SHARE = 0.85  # of the copy rate, which the decoding of an nf4 base reaches at least


def bench_step(args, shape, *arguments):
    found = bench(shape, args.device, *arguments, timeout_s=max(10.0, args.deadline - time.monotonic()))
    with open(args.out / "steps.jsonl", "a") as file:
        file.write(json.dumps({**found, "arguments": arguments}) + "\n")
    speed = found["speed"]
    graphs = found.get("cuda_graphs")
    words = "" if graphs is None else "captured" if graphs["recorded"] else f"not captured: {graphs['reason']}"
    rate = speed["gemm_flops_per_s"]
    share = f", {speed['gemm_share']:.1%} of {rate / 1e12:.1f} TFLOP/s" if rate else ""
    print(f"{shape:14s} {' '.join(arguments):44s} {found['tokens']:6d} tokens {speed['step_ms']:9.2f} ms "
          f"{speed['tokens_per_s']:10.0f} tokens/s{share}, {speed['peak_memory_gib']:.1f} GiB, idle {speed['idle_share']}; {words}",
          flush=True)
    return found


def keep_speed(found, name):
    """The speed, and what it has to reach: the bound of the step at this machine's rates, the GEMM rate being that of its own
    products, and what its goal allows beyond that."""
    figure, rates, bound = f"tokens_per_s/{name}", found["rates"], found["bound"]
    measured(figure, found["speed"]["tokens_per_s"])
    allowed, own = goals.over_bound(figure), found["speed"]["gemm_flops_per_s"]
    if rates["source"] == "assumed" or allowed is None or not own:
        return
    seconds = bound["gemm_s"] * rates["gemm_flops_per_s"] / own + bound["attention_s"] + bound["memory_s"]
    measured(f"target/{figure}", found["tokens"] / seconds / allowed)


def expect_recorded(args, name, found):
    expect("cuda_graphs" in found, f"{name}: bench does not say whether the step was captured")
    graphs = found["cuda_graphs"]
    if args.device == "cpu":
        return expect(graphs["reason"], f"{name}: bench does not say why the step was not captured")
    expect(graphs["recorded"] is True, f"{name}: the step was not captured: {graphs['reason']}")


def recorded(args):
    workloads = ([("qwen2.5-0.5b", "--mix"), ("qwen3-0.6b",), ("qwen3.5-0.8b",)] if args.device == "cuda"
                 else [(TINY,), (TINY_HYBRID,)])
    for workload in workloads:
        expect_recorded(args, " ".join(workload), bench_step(args, *workload, *(FEW_STEPS if args.device == "cuda" else ())))
    checked(len(workloads), len(workloads), "workloads")
    return f"{len(workloads)} workloads" + (", all captured" if args.device == "cuda" else ": a CPU captures nothing")


def bounds_of(found):
    """{class: ms}"""
    return {work["name"]: work["bound_ms"] for work in found["classes"]}


def times_by_class(args, found, prefix=""):
    """{class: ms} of the classes with a time, printed and kept beside their bounds. On a GPU, they explain the step."""
    step_ms, bounds = found["speed"]["step_ms"], bounds_of(found)
    timed = {work["name"]: work["ms"] for work in found["classes"] if work["ms"] is not None and work["ms"] > 0}
    print(f"{'class':14s} {'measured ms':>12s} {'bound ms':>10s} {'over':>10s}")
    for name, value in sorted(timed.items(), key=lambda item: bounds[item[0]] - item[1]):
        print(f"{name:14s} {value:12.3f} {bounds[name]:10.3f} {value - bounds[name]:+10.3f}")
        measured(f"{prefix}class_ms/{name}", value)
        measured(f"{prefix}class_bound_ms/{name}", bounds[name])
    measured(f"{prefix}step_ms", step_ms)
    explained = sum(timed.values()) / step_ms
    if args.device == "cuda":
        expect(EXPLAINED[0] <= explained <= EXPLAINED[1], f"the classes add up to {explained:.0%} of the step")
    return timed


def classes(args):
    """The first process tunes and leaves its choices to the second, which measures."""
    shape = LARGE if args.device == "cuda" else TINY
    if args.device == "cuda":
        bench_step(args, shape, "--only-steps", "--steps", "2", "--warm-up", "1")
    found = bench_step(args, shape, *(STEPS if args.device == "cuda" else ()), "--measure-rates", "--profile-trace",
                       str(args.out / "trace.json"))
    expect_recorded(args, shape, found)
    for name in ("gemm", "attention_forward", "attention_backward"):
        measured(f"rate/{name}_tflop_s", found["rates"][f"{name}_flops_per_s"] / 1e12)
    measured("rate/copy_tb_s", found["rates"]["copy_bytes_per_s"] / 1e12)
    keep_speed(found, shape)
    if args.device == "cuda":
        measured("idle_share", found["speed"]["idle_share"])
    timed, step_ms, bounds = times_by_class(args, found), found["speed"]["step_ms"], bounds_of(found)
    worst = max(timed, key=lambda name: timed[name] - bounds[name])
    checked(len(timed), len(bounds), "classes with a time")
    return (f"{shape}: {found['speed']['tokens_per_s']:.0f} tokens/s, {step_ms:.1f} ms; most over its bound: {worst}, "
            f"{timed[worst]:.1f} against {bounds[worst]:.1f} ms")


def hybrid(args):
    """4 rows of 2048, which an H100 has the memory for. Its rates are not those that later runs of bench find."""
    shape, words = (HYBRID, ("micro_batch_size=4", *STEPS)) if args.device == "cuda" else (TINY_HYBRID, ())
    found = bench_step(args, shape, *words, "--measure-rates", "--rates", str(args.work / "rates.json"))
    expect_recorded(args, shape, found)
    keep_speed(found, shape)
    timed, bounds = times_by_class(args, found, "hybrid_"), bounds_of(found)
    rule = {work["name"].split()[1]: work["ms"] for work in found["kernels"]
            if work["name"].startswith("gated_delta gated_delta_")}
    expect(set(rule) == {"gated_delta_forward", "gated_delta_backward"} and all(rule.values()), f"times of the rule: {rule}")
    for name, ms in rule.items():
        measured(f"hybrid_kernel_ms/{name}", ms)
    step_ms, share = found["speed"]["step_ms"], bounds["gated_delta"] / sum(bounds.values())
    measured("hybrid_rule_share", sum(rule.values()) / step_ms)
    checked(len(timed), len(bounds), "classes with a time")
    nets = f"{timed['gated_delta']:.1f} ms ({timed['gated_delta'] / step_ms:.1%}; bound {bounds['gated_delta']:.1f}, {share:.1%})"
    return (f"{shape}: {found['speed']['tokens_per_s']:.0f} tokens/s, {step_ms:.1f} ms; gated delta nets {nets}, their rule "
            f"{sum(rule.values()):.1f}")


def measure_shapes(args, workloads):
    """Measures every workload; one that fails stops none."""
    done, failed = [], []
    for workload in workloads:
        try:
            found = bench_step(args, *workload, *(STEPS if args.device == "cuda" else ()))
            expect_recorded(args, " ".join(workload), found)
            done.append(found)
            if "gradient_checkpointing=full" in workload:
                measured(f"peak_gib/{workload[0]}/full", found["speed"]["peak_memory_gib"])
            else:
                keep_speed(found, workload[0] + ("/mix" if "--mix" in workload else ""))
        except Failure as failure:
            failed.append(f"{' '.join(workload)}: {str(failure).splitlines()[-1][:100]}")
            print(f"FAILED: {failed[-1]}", flush=True)
    expect(not failed, "; ".join(failed))
    checked(len(done), len(workloads), "workloads")
    return "tokens/s: " + ", ".join(f"{found['shape']} {found['speed']['tokens_per_s']:.0f}" for found in done)


def shapes(args):
    return measure_shapes(args, [("qwen3-8b",), ("qwen2.5-0.5b",)] if args.device == "cuda" else [(TINY,), ("tiny-qwen3", "--mix")])


def all_shapes(args):
    return measure_shapes(args, [
        (LARGE,), (LARGE, "--mix"), ("qwen3-8b",), ("qwen3-4b",), ("qwen3-0.6b",), ("qwen2.5-0.5b",), ("mistral-7b",),
        (LARGE, "micro_batch_size=1", "gradient_checkpointing=full")] if args.device == "cuda" else [(TINY,), ("tiny-qwen3", "--mix")])


class Quantised:
    """Workloads of which none stops the others."""

    def __init__(self, args):
        self.args, self.done, self.failed, self.left_out = args, 0, [], []

    def step(self, shape, *words):
        """None where the step failed. Throws DoesNotFit."""
        steps = FEW_STEPS if self.args.device == "cuda" else ()
        try:
            found = bench_step(self.args, shape, *words, *steps)
            expect_recorded(self.args, " ".join(words), found)
            self.done += 1
            return found
        except DoesNotFit:
            raise
        except Failure as failure:
            self.failed.append(f"{shape} {' '.join(words)}: {str(failure).splitlines()[-1][:100]}")
            print(f"FAILED: {self.failed[-1]}", flush=True)

    def shares(self, shape, rows, bases):
        """nf4 against bf16 at so many rows a step, where both fit."""
        found = {name: self.step(shape, f"micro_batch_size={rows}", "gradient_checkpointing=off", *words.split())
                 for name, words in bases.items()}
        if not found["bf16"]:
            return
        usual, tokens = found["bf16"]["speed"]["step_ms"], f"{found['bf16']['tokens'] // 1024}k"
        for name in filter(found.get, ("nf4_share", "nf4_decoded_share")):
            measured(f"{name}/{tokens}", usual / found[name]["speed"]["step_ms"])
        decode = [work for work in (found["nf4_share"] or {}).get("classes", []) if work["name"] == "decode"]
        if decode and found["nf4_share"]["rates"]["source"] != "assumed":
            measured(f"target/nf4_share/{tokens}", usual / (usual + decode[0]["bound_ms"] / DECODE_SHARE))


def quantised(args):
    """The nf4 base decodes the same weights in every pass, however many tokens a step has."""
    shape, layers = (LARGE, 28) if args.device == "cuda" else (TINY, 2)
    bases = {"bf16": "base_precision=bf16", "nf4_share": "base_precision=nf4 decoded_layers=0",
             "nf4_decoded_share": f"base_precision=nf4 decoded_layers={layers}"}
    steps, all_rows = Quantised(args), (8, 4, 2) if args.device == "cuda" else (2,)
    memory = [(LARGE, 1, "full"), (LARGE, 2, "cheap"), (LARGE, 4, "gate_up"), ("qwen3-8b", 1, "full")] if args.device == "cuda" else [
        (TINY, 1, "full")]
    for rows in all_rows:
        try:
            steps.shares(shape, rows, bases)
        except DoesNotFit:
            steps.left_out.append(f"{rows} rows")
            print(f"left out: {shape} in bf16 with {rows} rows does not fit this GPU", flush=True)
    for name, rows, recompute in memory:
        try:
            found = steps.step(name, f"micro_batch_size={rows}", f"gradient_checkpointing={recompute}", "base_precision=nf4",
                               "decoded_layers=0", "optim=adamw_8bit")
        except DoesNotFit as failure:
            steps.failed.append(str(failure).splitlines()[0])
            continue
        if found:
            measured(f"peak_gib/{name}/nf4/{rows}x{recompute}", found["speed"]["peak_memory_gib"])
    expect(not steps.failed, "; ".join(steps.failed))
    expected = (len(all_rows) - len(steps.left_out)) * len(bases) + len(memory)
    checked(steps.done, expected, "workloads")
    return f"{steps.done} workloads" + (f"; bf16 does not fit with {', '.join(steps.left_out)}" if steps.left_out else "")


def variants(args):
    """Where the time of a slow step goes: what it gains or loses by each setting."""
    shape, steps = (LARGE, FEW_STEPS[1:]) if args.device == "cuda" else (TINY, ())
    changes = ["", "attn_implementation=fa2", "attn_implementation=cudnn", "cuda_graphs=off", "tuning=off",
               "gradient_checkpointing=cheap", "kernels=reference"] if args.device == "cuda" else ["", "kernels=reference"]
    usual, words = None, []
    for change in changes:
        found = bench_step(args, shape, *([change] if change else []), *steps)
        step_ms = found["speed"]["step_ms"]
        usual = usual or step_ms
        ms = {work["name"]: work["ms"] for work in found["classes"] if work["ms"] is not None}
        print(f"    {change or 'as it is'}: " + ", ".join(f"{name} {value:.2f}" for name, value in ms.items()), flush=True)
        words.append(f"{change or 'as it is'} {step_ms:.1f} ms")
    checked(len(words), len(changes), "variants")
    return "; ".join(words)


if __name__ == "__main__":
    run_check([recorded, classes, hybrid, shapes, all_shapes, quantised, variants], __doc__)
