#!/usr/bin/env python3
"""Whole runs of lora-train on one device: what must hold of them, and how fast they are.

  quickstart   the run of examples/tiny-math: loss and token accuracy on held-out chats get better
  resume       with deterministic: true, 20 steps give the bytes of 10 steps, a stop, and 10 more
  steady       a step takes no new device memory and does not wait for the device (CUDA only)
  bench        milliseconds of a step of the shape of Qwen2.5-0.5B, random weights (a small one on a CPU)

Usage: tests/gpu/training.py CHECK --device cuda|cpu --work DIR. The last line is `figure: ...`; exit code 1 = failed.
"""

import argparse
import json
import shutil
import statistics
from pathlib import Path

from program import BIN, EXAMPLE, events, expect, finish, run, train, write_rows

SMALL = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "hidden_size": 256, "intermediate_size": 512,
         "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1000,
         "rms_norm_eps": 1e-6, "max_position_embeddings": 4096, "rope_theta": 1e6, "hidden_act": "silu",
         "tie_word_embeddings": True, "torch_dtype": "bfloat16"}
QWEN_05B = dict(SMALL, hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14,
                vocab_size=151936, max_position_embeddings=32768)
STEPS = dict(report_to="none", save_interval="off", eval_steps="off", eval_on_start="false", warmup_steps=0,
             lr_scheduler_type="constant", logging_steps=1, num_epochs=1000)


def make_model(config, work):
    path = work / "config.json"
    path.write_text(json.dumps(config))
    run("init-model", "--config", path, "--output-dir", work / "model", "--overwrite")
    return work / "model"


def quickstart(args):
    changes = dict(device=args.device, precision="fp32")
    if args.device == "cpu":
        changes.update(num_epochs=1)
    profile = EXAMPLE / "profile.yaml"
    before = json.loads(run("eval", "--profile", profile, "--set", f"device={args.device}", "--json").splitlines()[0])
    summary = train(profile, args.work / "run", "--overwrite", **changes)
    after = json.loads(run("eval", "--profile", profile, "--set", f"device={args.device}", "--json", "--adapter",
                           args.work / "run/adapter").splitlines()[0])
    print(f"loss {before['loss']:.4f} -> {after['loss']:.4f}, token accuracy {before['token_accuracy']:.1%} -> "
          f"{after['token_accuracy']:.1%}, {summary['step']} steps, {summary['steps_per_s']:.2f} steps/s")
    expect(after["loss"] < 0.9 * before["loss"], f"loss {before['loss']:.4f} -> {after['loss']:.4f} only")
    expect(after["token_accuracy"] > before["token_accuracy"],
           f"accuracy {before['token_accuracy']:.3f} -> {after['token_accuracy']:.3f}")
    return f"loss {before['loss']:.3f} -> {after['loss']:.3f}, accuracy {after['token_accuracy']:.1%}"


def resume(args):
    """The same bytes in adapter and loss, in fp32 and bf16, with dropout and packing."""
    rows = args.work / "rows.jsonl"
    model = make_model(SMALL, args.work)
    write_rows(rows, 96, 64, SMALL["vocab_size"])
    for precision in ("fp32", "bf16"):
        whole, first, second = (args.work / f"{precision}-{name}" for name in ("whole", "first", "second"))
        common = dict(STEPS, device=args.device, precision=precision, deterministic="true", model=str(model), lora_r=8,
                      lora_dropout=0.1, learning_rate=1e-3, packing="true", max_seq_len=256, micro_batch_size=1,
                      global_batch_size=2, datasets=[{"path": str(rows), "type": "pretokenized"}], save_steps=10,
                      save_total_limit="null", max_steps=20)
        train(None, whole, "--overwrite", **common)
        train(None, first, "--overwrite", **dict(common, max_steps=10))
        train(None, second, "--overwrite", "--resume", first / "checkpoint-10", **common)
        curves = [{line["step"]: line["loss"] for line in events(folder, "train")} for folder in (whole, first, second)]
        print(precision, "losses", [round(loss, 6) for loss in curves[0].values()])
        joined = {**curves[1], **curves[2]}
        different = [step for step in curves[0] if joined.get(step) != curves[0][step]]
        expect(not different, f"{precision}: the loss of step {different[:1]} is another after resuming")
        bytes_of = [(folder / "adapter/adapter_model.safetensors").read_bytes() for folder in (whole, second)]
        expect(bytes_of[0] == bytes_of[1], f"{precision}: the adapters of 20 steps and of 10 + 10 differ")
        expect(curves[0][20] < curves[0][1], f"{precision}: the loss does not fall")
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
        train(None, output, "--overwrite", device="cuda", precision="bf16", model=str(model), lora_r=8,
              learning_rate=1e-3, packing="false", max_seq_len=256, micro_batch_size=2, global_batch_size=4,
              datasets=[{"path": str(rows), "type": "pretokenized"}], max_steps=num_steps, save_steps="off", **STEPS,
              environment={"LD_PRELOAD": library, "COUNT_CUDA_CALLS": str(file)})
        counts[num_steps] = json.loads(file.read_text())
        memory = [line["memory_gib"] for line in events(output, "train")]
    in_20_steps = {name: counts[30][name] - counts[10][name] for name in counts[30]}
    print("calls in 20 steps:", in_20_steps)
    print("memory_gib:", memory)
    expect(counts[30]["cudaMalloc"] > 0, "no cudaMalloc was seen at all: the counting library does not work")
    expect(len(set(memory[1:])) == 1, f"memory grows after step 1: {memory}")
    for name in ("cudaMalloc", "cudaFree", "cudaHostAlloc", "cudaMemcpy", "cudaStreamSynchronize", "cudaDeviceSynchronize"):
        expect(in_20_steps[name] <= 0, f"20 steps call {name} {in_20_steps[name]} times")
    return f"no allocation, no wait in 20 steps; {in_20_steps['cudaEventSynchronize']} event waits; {memory[-1]:.2f} GiB"


def bench(args):
    config, tokens, num_steps = (QWEN_05B, 4096, 20) if args.device == "cuda" else (SMALL, 256, 5)
    rows = args.work / "rows.jsonl"
    model = make_model(config, args.work)
    write_rows(rows, 32, tokens, config["vocab_size"])
    figures = []
    for name, changes in (("recompute off", dict(gradient_checkpointing="off")),
                          ("recompute cheap", dict(gradient_checkpointing="cheap")),
                          ("reference kernels", dict(gradient_checkpointing="off", kernels="reference"))):
        output = args.work / "run"
        summary = train(None, output, "--overwrite", device=args.device, precision="bf16", model=str(model), lora_r=16,
                        learning_rate=1e-4, packing="false", max_seq_len=tokens, micro_batch_size=2, global_batch_size=2,
                        datasets=[{"path": str(rows), "type": "pretokenized"}], max_steps=num_steps, save_steps="off",
                        **STEPS, **changes)
        lines = events(output, "train")[len(events(output, "train")) // 4:]
        step_ms = statistics.median(line["step_ms"] for line in lines)
        print(f"{name:18s} {step_ms:9.2f} ms/step, {2000 * tokens / step_ms:10.0f} tokens/s, peak "
              f"{summary['peak_memory_gib']} GiB, losses {lines[0]['loss']:.4f} .. {lines[-1]['loss']:.4f}", flush=True)
        figures.append(f"{name} {2000 * tokens / step_ms:.0f}")
    return "tokens/s: " + ", ".join(figures)


def main():
    checks = {check.__name__: check for check in (quickstart, resume, steady, bench)}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("check", choices=checks)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--work", type=Path, required=True)
    args = parser.parse_args()
    args.work = args.work.resolve()
    args.work.mkdir(parents=True, exist_ok=True)
    finish(checks[args.check], args)


if __name__ == "__main__":
    main()
