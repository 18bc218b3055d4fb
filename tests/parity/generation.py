"""Completions and logits by the program and by transformers."""

import json

import torch
from safetensors.torch import load_file

import engine
import oracle

NEW_TOKENS = 10
PROGRAM = "lora-train-generate-probe"
# Seen in fp32: 2e-6 (prompts) and 3e-6 (cached tokens).
LOGITS_TOLERANCE = 2e-5


def start(request, folder, threads=1):
    path = folder / f"request-{len(list(folder.glob('request-*.json')))}.json"
    path.write_text(json.dumps(request))
    return engine.start(PROGRAM, path, threads=threads)


def probe(request, folder, threads=1):
    done = start(request, folder, threads)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def request_for(case, prompts, adapter=True, new_tokens=NEW_TOKENS, **more):
    return {"model": str(case.model_dir), "adapter": str(case.adapter_dir) if adapter else "",
            "prompts": [{"ids": ids, "max_new_tokens": new_tokens} for ids in prompts], **more}


def ids_of(result):
    return [completion["ids"] for completion in result["completions"]]


def prompts_of(case):
    """Of 1 to 40 tokens; the window of a case with one is 7."""
    prompts = [row["input_ids"] for row in case.rows] + [case.rows[0]["input_ids"][:1], case.rows[0]["input_ids"][:7]]
    assert max(map(len, prompts)) == 40 and min(map(len, prompts)) == 1
    return prompts


def load(case, adapter, dtype=torch.float32):
    return (oracle.load_peft(case.model_dir, case.adapter_dir, dtype) if adapter else oracle.load_base(case.model_dir, dtype))


def by_transformers(model, ids, new_tokens=NEW_TOKENS):
    with torch.no_grad():
        out = model.generate(input_ids=torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long),
                             max_new_tokens=new_tokens, do_sample=False, eos_token_id=None, pad_token_id=0)
    return out[0, len(ids):].tolist()


def log_probability(model, prompt, completion):
    logs = logits_by_transformers(model, prompt + completion)[len(prompt) - 1:-1].double().log_softmax(-1)
    return float(logs.gather(1, torch.tensor(completion)[:, None]).sum())


def check_logits(file, case, model, prompts, completions):
    """The logits that the program wrote for each token of the completions."""
    rows = load_file(file)
    assert len(rows) == len(prompts) * NEW_TOKENS
    for index, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        reference = logits_by_transformers(model, prompt + completion)
        for position in range(NEW_TOKENS):
            error = oracle.relative_error(rows[f"{index}.{position}"], reference[len(prompt) - 1 + position])
            assert error < LOGITS_TOLERANCE, f"{case.description}: prompt {index}, token {position}: {error:.2e}"


def logits_by_transformers(model, ids):
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].float()
