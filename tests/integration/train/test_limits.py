"""Memory and disks that are too small, under real limits: said before weights are read, and before step 1."""

import contextlib
import json
import math
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from command import BINARY, ENVIRONMENT, ROOT, TIMEOUT_S, Run, expect_end, lora_train
from run_files import adapter_bytes, used_bytes

REFUSED = "out of host memory before the model is read: "


@pytest.fixture
def limited():
    """limited(MiB, *arguments) runs lora-train in a control group that allows so much memory."""
    version_2 = Path("/sys/fs/cgroup/cgroup.controllers").exists()
    group = Path("/sys/fs/cgroup", "" if version_2 else "memory", f"lora-train-test-{os.getpid()}")
    limit = group / ("memory.max" if version_2 else "memory.limit_in_bytes")
    with contextlib.suppress(OSError):
        group.mkdir()
    if not limit.exists() or not os.access(limit, os.W_OK):
        with contextlib.suppress(OSError):
            group.rmdir()
        pytest.skip(f"no control group with a limit of memory can be made here ({group})")

    def run(mebibytes, *arguments):
        limit.write_text(str(mebibytes << 20))
        enter = ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"]
        return Run(arguments, subprocess.run([*enter, str(BINARY), *map(str, arguments)], capture_output=True, text=True, timeout=TIMEOUT_S,
                                             env=ENVIRONMENT, check=False))

    yield run
    group.rmdir()


def write_sparse_model(setup, num_bytes, D=1024, vocab_size=64):
    """A model of at least so many bytes in bf16, all zero, which take no space on the disk."""
    F, K = 4 * D, D // 4
    sizes = {"hidden_size": D, "intermediate_size": F, "num_attention_heads": 32, "num_key_value_heads": 8}
    shapes = {"input_layernorm": [D], "post_attention_layernorm": [D], "self_attn.q_proj": [D, D], "self_attn.k_proj": [K, D],
              "self_attn.v_proj": [K, D], "self_attn.o_proj": [D, D], "mlp.gate_proj": [F, D], "mlp.up_proj": [F, D], "mlp.down_proj": [D, F]}
    layers = 1 + num_bytes // (2 * sum(map(math.prod, shapes.values())))
    tensors = {"model.embed_tokens.weight": [vocab_size, D], "model.norm.weight": [D]}
    for layer in range(layers):
        tensors.update({f"model.layers.{layer}.{name}.weight": shape for name, shape in shapes.items()})
        tensors.update({f"model.layers.{layer}.self_attn.{name}_proj.bias": [size] for name, size in (("q", D), ("k", K), ("v", K))})
    header, end = {}, 0
    for name, shape in tensors.items():
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end := end + 2 * math.prod(shape)]}
    text = json.dumps(header).encode()
    with open(setup.model / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    setup.write_config(num_hidden_layers=layers, vocab_size=vocab_size, **sizes)


def test_a_model_larger_than_the_machine_is_refused_by_every_command_that_would_load_it(setup):
    total = int(re.search(r"MemTotal:\s+(\d+)", Path("/proc/meminfo").read_text())[1]) * 1024
    example = ROOT / "examples/tiny-math"
    write_sparse_model(setup, 2 * total, D=4096, vocab_size=json.loads((example / "model/config.json").read_text())["vocab_size"])
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(example / "model" / name, setup.model)
    setup.profile.update(eval_datasets=setup.profile["datasets"])
    profile = setup.write_profile()
    for command in (["train", "--profile", profile], ["train", "--dry-run", "--profile", profile], ["eval", "--profile", profile],
                    ["generate", "--model", setup.model, "--prompt", "a", "device=cpu"],
                    ["chat", "--model", setup.model, "device=cpu"], ["serve", "--model", setup.model, "--port", "0", "device=cpu"]):
        expect_end(lora_train(*command), 6, REFUSED, "are free for this process", "Needed for: weights")
    assert not list(setup.output_dir.glob("checkpoint-*"))


def test_a_model_larger_than_its_control_group_is_refused_with_the_base_precision_that_fits(setup, limited):
    write_sparse_model(setup, 200 << 20)
    setup.profile.update(max_steps=1, max_seq_len=32)
    train = ["train", "--profile", setup.write_profile()]
    expect_end(limited(400, *train), 6, REFUSED, "base_precision: nf4 (")
    run = limited(400, *train, "base_precision=nf4")
    assert run.code == 0, run
    # What fits with more recomputation is not refused.
    in_one = [*train, "--overwrite", "max_seq_len=64", "micro_batch_size=12", "global_batch_size=12"]
    expect_end(limited(560, *in_one, "gradient_checkpointing=off"), 6, REFUSED)
    run = limited(560, *in_one)
    assert run.code == 0, run


@pytest.fixture
def on_disk(setup, small_disk):
    """on_disk(bytes, *arguments, **changes) trains on a disk of that size, empty but for what an earlier call left with `keep`."""
    setup.output_dir = small_disk(64 << 20) / "run"
    setup.profile.update(lora_r=64, save_steps=2, save_total_limit=2, max_steps=5, output_dir=str(setup.output_dir))

    def run(size, *arguments, keep=False, **changes):
        if not keep:
            shutil.rmtree(setup.output_dir, ignore_errors=True)
        small_disk(size)
        return setup.train(*arguments, **changes)

    return run


LOGS = 200 << 10  # more than every log and page of such a run


def test_a_disk_that_is_too_small_is_said_before_step_1(setup, on_disk):
    run = on_disk(64 << 20)
    assert run.code == 0 and "not even one" not in run.stderr and "will write up to" not in run.stderr, run
    checkpoint, result = (used_bytes(setup.output_dir / name) for name in ("checkpoint-5", "adapter"))
    for arguments in ([], ["--dry-run"]):
        run = on_disk(checkpoint + result * 3 // 4, *arguments)
        expect_end(run, 5, f"{setup.output_dir}: not even one checkpoint (", "No space left on device")
        assert not setup.events("train"), run
    run = on_disk(checkpoint + result + LOGS, max_steps=1)
    assert run.code == 0 and "will write up to" not in run.stderr, run
    # What is there of the run itself counts: of three checkpoints, a resume writes one.
    run = on_disk(3 * checkpoint + result + LOGS, max_steps=4)
    assert run.code == 0 and "will write up to" not in run.stderr, run
    run = on_disk(3 * checkpoint + 2 * result + LOGS, keep=True, max_steps=6)
    assert run.code == 0 and "will write up to" not in run.stderr, run


def test_a_result_is_written_where_its_checkpoint_does_not_fit(setup, on_disk):
    assert on_disk(64 << 20).code == 0
    expected, result = adapter_bytes(setup.output_dir), used_bytes(setup.output_dir / "adapter")
    checkpoint = used_bytes(setup.output_dir / "checkpoint-5")
    run = on_disk(2 * checkpoint + result + LOGS)
    expect_end(run, 5, f"warning: {setup.output_dir}: the run will write up to ", "(3 checkpoints of ", "lower save_total_limit",
               "saving checkpoint-5 failed", f"checkpoint-5 is not written, but the result is: {setup.output_dir / 'adapter'}")
    assert adapter_bytes(setup.output_dir) == expected and setup.summary()["adapter"].endswith("/adapter")
    assert sorted(path.name for path in setup.output_dir.glob("checkpoint-*")) == ["checkpoint-2", "checkpoint-4"]
    run = on_disk(64 << 20, keep=True)
    expect_end(run, 0, "resumed from", "checkpoint-4")
    assert adapter_bytes(setup.output_dir) == expected
