"""transformers + PEFT as the reference: loss, gradients and training curves, one document per forward call, on the device
that the model is on."""

import contextlib
import json
import math
from pathlib import Path

import torch
import torch.nn.functional as F
import transformers
from peft import PeftModel
from peft.optimizers import create_loraplus_optimizer
from safetensors.torch import load_file
from transformers import Trainer, get_scheduler


def load_base(model_dir, dtype=torch.float32):
    """In the class that config.json names: AutoModelForCausalLM does not know those with towers."""
    of_class = getattr(transformers, json.loads((Path(model_dir) / "config.json").read_text())["architectures"][0])
    return of_class.from_pretrained(model_dir, dtype=dtype, attn_implementation="eager").eval()


def load_peft(model_dir, adapter_dir, dtype=torch.float32):
    """The base with the adapter, trainable, dropout off; adapters are fp32 whatever the base is."""
    model = PeftModel.from_pretrained(load_base(model_dir, dtype), adapter_dir, is_trainable=True)
    return model.eval()


def trainable(model):
    """{file name of the parameter: parameter}: PEFT's and Hugging Face's names as they stand in their files."""
    named = ((name.replace(".default.", ".").removesuffix(".default"), p) for name, p in model.named_parameters())
    return {name: p for name, p in named if p.requires_grad}


def autocast(is_bf16, device="cpu"):
    return torch.autocast(device, torch.bfloat16) if is_bf16 else contextlib.nullcontext()


def token_losses(model, row, is_bf16=False, **forward_args):
    """The cross entropy of each token of one document but the first, in fp32; zero where it is not supervised."""
    ids = torch.tensor([row["input_ids"]], device=model.device)
    targets = torch.tensor(row["labels"][1:], device=model.device)
    with autocast(is_bf16, model.device.type):
        logits = model(input_ids=ids, use_cache=False, **forward_args).logits
    return F.cross_entropy(logits[0, :-1].float(), targets, ignore_index=-100, reduction="none")


def row_loss_sum(model, row, is_bf16=False):
    """Sum over the supervised tokens of one document, in fp64."""
    return token_losses(model, row, is_bf16).double().sum()


def count_supervised(rows):
    return sum(label != -100 for row in rows for label in row["labels"][1:])


def loss(model, rows, is_bf16=False):
    with torch.no_grad():
        return sum(float(row_loss_sum(model, row, is_bf16)) for row in rows) / count_supervised(rows)


def loss_and_backward(model, rows, is_bf16=False):
    """The loss of a global step; adds its gradients to the parameters."""
    total, count = 0.0, count_supervised(rows)
    for row in rows:
        part = row_loss_sum(model, row, is_bf16) / count
        part.backward()
        total += float(part.detach())
    return total


def gradients(model, rows, is_bf16=False):
    """(loss, {name: fp32 gradient}) of a global step."""
    model.zero_grad()
    value = loss_and_backward(model, rows, is_bf16)
    return value, {name: p.grad.float().cpu().clone() for name, p in trainable(model).items()}


def train(model, batches, *, learning_rate, scheduler="constant", warmup_steps=0, weight_decay=0.0, max_grad_norm=1.0,
          is_bf16=False, loraplus_lr_ratio=None, optimizer=torch.optim.AdamW):
    """torch.optim.AdamW, or another optimizer, with the Trainer's decay groups, or PEFT's of LoRA+, Hugging Face's schedule and
    clipping. Returns one dict a step."""
    decayed = set(Trainer.get_decay_parameter_names(None, model))
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    if loraplus_lr_ratio is None:
        optimizer = optimizer(
            [{"params": [p for name, p in named if name in decayed], "weight_decay": weight_decay},
             {"params": [p for name, p in named if name not in decayed], "weight_decay": 0.0}], lr=learning_rate)
    else:
        optimizer = create_loraplus_optimizer(model, optimizer, lr=learning_rate, eps=1e-8, betas=(0.9, 0.999),
                                              loraplus_lr_ratio=loraplus_lr_ratio, loraplus_weight_decay=weight_decay)
    schedule = get_scheduler(scheduler, optimizer, num_warmup_steps=warmup_steps, num_training_steps=len(batches))
    history = []
    for rows in batches:
        optimizer.zero_grad()
        value = loss_and_backward(model, rows, is_bf16)
        norm = torch.nn.utils.clip_grad_norm_([p for _, p in named], max_grad_norm or math.inf)
        history.append({"loss": value, "grad_norm": float(norm), "learning_rate": schedule.get_last_lr()[0]})
        optimizer.step()
        schedule.step()
    return history


def batches_in_order(rows, global_batch_size, num_steps):
    """Rows of each step without shuffling; the last, smaller batch of an epoch is a step of its own."""
    epoch = [rows[at:at + global_batch_size] for at in range(0, len(rows), global_batch_size)]
    return [epoch[step % len(epoch)] for step in range(num_steps)]


def relative_error(got, reference):
    """|got - reference| / |reference|; a reference of norm zero is an error of the test."""
    norm = reference.norm()
    assert norm > 0, "the reference gradient is zero: this case tests nothing"
    assert got.shape == reference.shape, f"shape {tuple(got.shape)}, expected {tuple(reference.shape)}"
    return float((got.double() - reference.double()).norm() / norm.double())


def gradient_errors(got, reference):
    """{name: relative error}; the names must be the same."""
    assert set(got) == set(reference), f"missing {sorted(set(reference) - set(got))}, " \
                                       f"unexpected {sorted(set(got) - set(reference))}"
    return {name: relative_error(got[name], reference[name]) for name in reference}


def worst(errors, count=3):
    return ", ".join(f"{name} {error:.2e}" for name, error in sorted(errors.items(), key=lambda item: -item[1])[:count])


def adapter_keys_match(model_dir, adapter_dir):
    """Asserts that PEFT finds every tensor of the adapter file and nothing else; returns the model."""
    model = load_peft(model_dir, adapter_dir)
    result = model.load_adapter(adapter_dir, adapter_name="default", is_trainable=True)
    assert not result.unexpected_keys, result.unexpected_keys
    missing = [key for key in result.missing_keys if "lora_" in key]
    assert not missing, missing
    in_file = {name: tuple(t.shape) for name, t in load_file(adapter_dir / "adapter_model.safetensors").items()}
    in_model = {name: tuple(p.shape) for name, p in trainable(model).items()}
    assert in_file == in_model, f"file {sorted(in_file)[:4]}..., model {sorted(in_model)[:4]}..."
    return model
