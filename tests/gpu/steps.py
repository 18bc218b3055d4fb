#!/usr/bin/env python3
"""Steps that lora-train bench measures: are they captured, where does their time go, and how fast are they?

  recorded  steps of two bf16 workloads are captured as CUDA graphs; where they are not, bench says why
  classes   a step of Qwen2.5-7B by class of kernel: measured time beside the bound of the class
  shapes    tokens/s of every shape, the SFT mix of 7B, and its peak memory with full recomputation
  quantised  an nf4 base against bf16, decoded in every pass and once, by tokens a step; peak memory of QLoRA
  variants  the step of Qwen2.5-7B with one setting changed at a time

Usage: tests/gpu/steps.py CHECK --device cuda|cpu --work DIR [--out DIR] [--limit-s S]. What bench reports goes to steps.jsonl in
--out, a trace of a step to trace.json. The last line is `figure: ...`; exit code 1 = failed.
"""

import json
import time

from program import bench, checked, expect, measured, run_check

GRAPH_STEPS = ("--steps", "4", "--warm-up", "2")
LARGE = "qwen2.5-7b"
TINY = "tiny-qwen2"
EXPLAINED = (0.8, 1.15)  # sum of the classes / time of a step


def bench_step(args, shape, *arguments):
    found = bench(shape, args.device, *arguments, timeout_s=max(10.0, args.deadline - time.monotonic()))
    with open(args.out / "steps.jsonl", "a") as file:
        file.write(json.dumps({**found, "arguments": arguments}) + "\n")
    speed = found["speed"]
    graphs = found.get("cuda_graphs")
    words = "" if graphs is None else "captured" if graphs["recorded"] else f"not captured: {graphs['reason']}"
    print(f"{shape:14s} {' '.join(arguments):44s} {found['tokens']:6d} tokens {speed['step_ms']:9.2f} ms "
          f"{speed['tokens_per_s']:10.0f} tokens/s, {speed['gemm_share']:.1%} of {speed['gemm_flops_per_s'] / 1e12:.1f} TFLOP/s, "
          f"{speed['peak_memory_gib']:.1f} GiB, idle {speed['idle_share']}; {words}", flush=True)
    return found


def expect_recorded(args, name, found):
    expect("cuda_graphs" in found, f"{name}: bench does not say whether the step was captured")
    graphs = found["cuda_graphs"]
    if args.device == "cpu":
        return expect(graphs["reason"], f"{name}: bench does not say why the step was not captured")
    expect(graphs["recorded"] is True, f"{name}: the step was not captured: {graphs['reason']}")


def recorded(args):
    workloads = [("qwen2.5-0.5b", "--mix"), ("qwen3-0.6b",)] if args.device == "cuda" else [(TINY,)]
    num_recorded = 0
    for workload in workloads:
        found = bench_step(args, *workload, *(GRAPH_STEPS if args.device == "cuda" else ()))
        expect_recorded(args, " ".join(workload), found)
        num_recorded += 1
    checked(num_recorded, len(workloads), "workloads")
    return f"{num_recorded} workloads" + (", all captured" if args.device == "cuda" else ": a CPU captures nothing")


def bounds_of(found):
    """{class: ms}"""
    return {work["name"]: work["bound_ms"] for work in found["classes"]}


def classes(args):
    shape = LARGE if args.device == "cuda" else TINY
    steps = ("--steps", "8", "--warm-up", "3") if args.device == "cuda" else ()
    found = bench_step(args, shape, *steps, "--profile-trace", str(args.out / "trace.json"))
    expect_recorded(args, shape, found)
    step_ms, bounds = found["speed"]["step_ms"], bounds_of(found)
    ms = {work["name"]: work["ms"] for work in found["classes"]}
    timed = {name: value for name, value in ms.items() if value is not None and value > 0}
    print(f"{'class':14s} {'measured ms':>12s} {'bound ms':>10s} {'over':>10s}")
    for name, value in sorted(timed.items(), key=lambda item: bounds[item[0]] - item[1]):
        print(f"{name:14s} {value:12.3f} {bounds[name]:10.3f} {value - bounds[name]:+10.3f}")
        measured(f"class_ms/{name}", value)
        measured(f"class_bound_ms/{name}", bounds[name])
    explained = sum(timed.values()) / step_ms
    for name, value in (("step_ms", step_ms), ("bench_gemm_tflops", found["speed"]["gemm_flops_per_s"] / 1e12),
                        (f"tokens_per_s/{shape}", found["speed"]["tokens_per_s"])):
        measured(name, value)
    if args.device == "cuda":
        measured("idle_share", found["speed"]["idle_share"])
        expect(EXPLAINED[0] <= explained <= EXPLAINED[1], f"the classes add up to {explained:.0%} of the step")
    worst = max(timed, key=lambda name: timed[name] - bounds[name])
    checked(len(timed), len(ms), "classes with a time")
    return (f"{shape}: {found['speed']['tokens_per_s']:.0f} tokens/s, {step_ms:.1f} ms; most over its bound: {worst}, "
            f"{timed[worst]:.1f} against {bounds[worst]:.1f} ms")


def shapes(args):
    if args.device == "cuda":
        workloads = [(LARGE,), (LARGE, "--mix"), ("qwen3-8b",), ("qwen3-4b",), ("qwen3-0.6b",), ("qwen2.5-0.5b",),
                     ("mistral-7b",), (LARGE, "micro_batch_size=1", "gradient_checkpointing=full", *GRAPH_STEPS)]
    else:
        workloads = [(TINY,), ("tiny-qwen3", "--mix")]
    done = []
    for workload in workloads:
        found = bench_step(args, *workload)
        expect_recorded(args, " ".join(workload), found)
        done.append(found)
        name = workload[0] + ("/mix" if "--mix" in workload else "")
        if "gradient_checkpointing=full" in workload:
            measured(f"peak_gib/{name}/full", found["speed"]["peak_memory_gib"])
        else:
            measured(f"tokens_per_s/{name}", found["speed"]["tokens_per_s"])
    measured("bench_gemm_tflops", done[0]["speed"]["gemm_flops_per_s"] / 1e12)
    checked(len(done), len(workloads), "workloads")
    return "tokens/s: " + ", ".join(f"{found['shape']} {found['speed']['tokens_per_s']:.0f}" for found in done)


def quantised(args):
    """The nf4 base decodes the same weights in every pass, however many tokens a step has."""
    shape, layers, steps = (LARGE, 28, GRAPH_STEPS) if args.device == "cuda" else (TINY, 2, ())
    bases = {"": "base_precision=bf16", "nf4_share": "base_precision=nf4 decoded_layers=0",
             "nf4_decoded_share": f"base_precision=nf4 decoded_layers={layers}"}
    done, all_rows = 0, (8, 4, 2) if args.device == "cuda" else (2,)
    for rows in all_rows:
        speed = {}
        for name, words in bases.items():
            found = bench_step(args, shape, f"micro_batch_size={rows}", "gradient_checkpointing=off", *words.split(), *steps)
            expect_recorded(args, words, found)
            speed[name], done = found["speed"]["tokens_per_s"], done + 1
            if name:
                measured(f"{name}/{found['tokens'] // 1024}k", speed[name] / speed[""])
    memory = [(LARGE, 1, "full"), (LARGE, 2, "cheap"), (LARGE, 4, "gate_up"), ("qwen3-8b", 1, "full")] if args.device == "cuda" else [
        (TINY, 1, "full")]
    for name, rows, recompute in memory:
        found = bench_step(args, name, f"micro_batch_size={rows}", f"gradient_checkpointing={recompute}", "base_precision=nf4",
                           "decoded_layers=0", "optim=adamw_8bit", *steps)
        measured(f"peak_gib/{name}/nf4/{rows}x{recompute}", found["speed"]["peak_memory_gib"])
        done += 1
    checked(done, len(all_rows) * len(bases) + len(memory), "workloads")
    return f"nf4 at {100 * speed['nf4_share'] / speed['']:.1f}% of bf16 ({found['speed']['peak_memory_gib']:.1f} GiB for the last)"


def variants(args):
    """Where the time of a slow step goes: what it gains or loses by each setting."""
    shape, steps = (LARGE, GRAPH_STEPS) if args.device == "cuda" else (TINY, ())
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
    run_check([recorded, classes, shapes, quantised, variants], __doc__)
