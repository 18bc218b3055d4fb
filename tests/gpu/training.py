#!/usr/bin/env python3
"""Whole runs of lora-train on one device, and what must hold of them.

  quickstart   the run of examples/tiny-math: loss and token accuracy on held-out chats get better
  resume       with deterministic: true, 20 steps give the bytes of 10 steps, a stop, and 10 more
  steady       a step takes no new device memory and does not wait for the device (CUDA only)

Usage: tests/gpu/training.py CHECK --device cuda|cpu --work DIR. The last line is `figure: ...`; exit code 1 = failed.
"""

import json
import math
import shutil

from program import BIN, EXAMPLE, checked, events, expect, json_line, run, run_check, train, write_rows

SMALL = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "hidden_size": 256, "intermediate_size": 512,
         "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1000,
         "rms_norm_eps": 1e-6, "max_position_embeddings": 4096, "rope_theta": 1e6, "hidden_act": "silu",
         "tie_word_embeddings": True, "torch_dtype": "bfloat16"}
STEPS = dict(report_to="none", save_interval="off", eval_steps="off", eval_on_start="false", warmup_steps=0,
             lr_scheduler_type="constant", logging_steps=1, num_epochs=1000)


def make_model(config, work):
    path = work / "config.json"
    path.write_text(json.dumps(config))
    run("init-model", "--config", path, "--output-dir", work / "model", "--overwrite")
    return work / "model"


def expect_device(summary, args):
    """A run that was asked for a GPU and computed elsewhere proves nothing."""
    expect(args.device == "cpu" or summary.get("gpu"), f"the run was not on a GPU: {summary.get('gpu')}")


def quickstart(args):
    changes = dict(device=args.device, precision="fp32")
    if args.device == "cpu":
        changes.update(num_epochs=1)
    profile = EXAMPLE / "profile.yaml"
    before = json_line(run("eval", "--profile", profile, "--set", f"device={args.device}", "--json"), "eval", at=0)
    summary = train(profile, args.work / "run", "--overwrite", **changes)
    after = json_line(run("eval", "--profile", profile, "--set", f"device={args.device}", "--json", "--adapter",
                          args.work / "run/adapter"), "eval", at=0)
    print(f"loss {before['loss']:.4f} -> {after['loss']:.4f}, token accuracy {before['token_accuracy']:.1%} -> "
          f"{after['token_accuracy']:.1%}, {summary['step']} steps, {summary['steps_per_s']:.2f} steps/s")
    expect_device(summary, args)
    expect(summary["step"] > 0 and math.isfinite(before["loss"]), f"{summary['step']} steps, loss {before['loss']}")
    expect(after["loss"] < 0.9 * before["loss"], f"loss {before['loss']:.4f} -> {after['loss']:.4f} only")
    expect(after["token_accuracy"] > before["token_accuracy"],
           f"accuracy {before['token_accuracy']:.3f} -> {after['token_accuracy']:.3f}")
    checked(max(line["step"] for line in events(args.work / "run", "train")), summary["step"], "steps")
    return f"loss {before['loss']:.3f} -> {after['loss']:.3f}, accuracy {after['token_accuracy']:.1%}"


def resume(args):
    """The same bytes in adapter and loss, in fp32 and bf16, with dropout and packing."""
    rows = args.work / "rows.jsonl"
    model = make_model(SMALL, args.work)
    write_rows(rows, 96, 64, SMALL["vocab_size"])
    num_steps = 0
    for precision in ("fp32", "bf16"):
        whole, first, second = (args.work / f"{precision}-{name}" for name in ("whole", "first", "second"))
        common = dict(STEPS, device=args.device, precision=precision, deterministic="true", model=str(model), lora_r=8,
                      lora_dropout=0.1, learning_rate=1e-3, packing="true", max_seq_len=256, micro_batch_size=1,
                      global_batch_size=2, datasets=[{"path": str(rows), "type": "pretokenized"}], save_steps=10,
                      save_total_limit="null", max_steps=20)
        expect_device(train(None, whole, "--overwrite", **common), args)
        train(None, first, "--overwrite", **dict(common, max_steps=10))
        train(None, second, "--overwrite", "--resume", first / "checkpoint-10", **common)
        curves = [{line["step"]: line["loss"] for line in events(folder, "train")} for folder in (whole, first, second)]
        for curve, steps in zip(curves, (range(1, 21), range(1, 11), range(11, 21))):  # a start from scratch is no resumption
            expect(list(curve) == list(steps), f"{precision}: the steps {list(curve)}, expected {list(steps)}")
            num_steps += len(curve)
        print(precision, "losses", [round(loss, 6) for loss in curves[0].values()])
        joined = {**curves[1], **curves[2]}
        different = [step for step in curves[0] if joined.get(step) != curves[0][step]]
        expect(not different, f"{precision}: the loss of step {different[:1]} is another after resuming")
        bytes_of = [(folder / "adapter/adapter_model.safetensors").read_bytes() for folder in (whole, second)]
        expect(bytes_of[0] == bytes_of[1], f"{precision}: the adapters of 20 steps and of 10 + 10 differ")
        expect(curves[0][20] < curves[0][1], f"{precision}: the loss does not fall")
    checked(num_steps, 80, "steps")
    return "adapters and losses are the same bytes, fp32 and bf16"


def steady(args):
    """Calls of the CUDA runtime in a run of 30 steps less those in a run of 10 are those of 20 steps."""
    expect(args.device == "cuda", "steady needs --device cuda")
    rows = args.work / "rows.jsonl"
    model = make_model(SMALL, args.work)
    write_rows(rows, 64, 250, SMALL["vocab_size"])
    library = shutil.copy(BIN / "lib/libcount_cuda_calls.so", args.work)  # LD_PRELOAD takes no path with a space
    counts, memory = {}, []
    for num_steps in (10, 30):
        output, file = args.work / f"steady-{num_steps}", args.work / f"calls-{num_steps}.json"
        summary = train(None, output, "--overwrite", device="cuda", precision="bf16", model=str(model), lora_r=8,
                        learning_rate=1e-3, packing="false", max_seq_len=256, micro_batch_size=2, global_batch_size=4,
                        datasets=[{"path": str(rows), "type": "pretokenized"}], max_steps=num_steps, save_steps="off", **STEPS,
                        environment={"LD_PRELOAD": library, "COUNT_CUDA_CALLS": str(file)})
        expect_device(summary, args)
        counts[num_steps] = json.loads(file.read_text())
        memory = [line["memory_gib"] for line in events(output, "train")]
    in_20_steps = {name: counts[30][name] - counts[10][name] for name in counts[30]}
    print("calls in 20 steps:", in_20_steps)
    print("memory_gib:", memory)
    expect(counts[30]["cudaMalloc"] > 0, "no cudaMalloc was seen at all: the counting library does not work")
    expect(in_20_steps["cudaMemcpyAsync"] > 0, "20 steps copied no batch: the counting library does not see them")
    checked(len(memory), 30, "steps")
    expect(len(set(memory[1:])) == 1, f"memory grows after step 1: {memory}")
    for name in ("cudaMalloc", "cudaFree", "cudaHostAlloc", "cudaMemcpy", "cudaStreamSynchronize", "cudaDeviceSynchronize"):
        expect(in_20_steps[name] <= 0, f"20 steps call {name} {in_20_steps[name]} times")
    return f"no allocation, no wait in 20 steps; {in_20_steps['cudaEventSynchronize']} event waits; {memory[-1]:.2f} GiB"


if __name__ == "__main__":
    run_check([quickstart, resume, steady], __doc__)
