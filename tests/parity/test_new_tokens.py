"""New tokens (add_tokens) on a model with a real tokenizer against transformers + PEFT: ids and files as its add_tokens and
save_pretrained leave them, rows that start as token_init says, and an adapter that gives the same losses there. The embedding has
spare rows, or is enlarged."""

import functools
import json
import shutil

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

import engine
import oracle
from engine import ROOT
from random_case import TOKEN_ROWS
from small_tokenizer import tokenizer_json

MODEL = ROOT / "examples/tiny-math/model"  # 2048 rows, all used
TOKENS = [{"token": "<conf_0>", "init_text": "less than"}, {"token": "<conf_50>", "init_text": "more"},
          {"token": "<conf_100>", "init_text": "equals"}]
NAMES = [entry["token"] for entry in TOKENS]
IDS = [2048, 2049, 2050]
ENLARGED = 2112
TEXTS = ["The sum is 12.<conf_100>", "<conf_0> <conf_50><conf_0>", "a<conf_1>b <conf_100", "x<conf_50>\n<|im_end|>"]


def save_model(folder, rows, is_tied):
    """The model with an embedding of so many rows, and its own head if that is not tied."""
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    torch.manual_seed(3)
    model.resize_token_embeddings(rows, mean_resizing=False)
    if not is_tied:
        model.config.tie_word_embeddings = False
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach() + 0.01 * torch.randn(rows, model.config.hidden_size))
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(MODEL / name, folder)
    return folder


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    @functools.cache
    def get(rows, is_tied):
        return save_model(tmp_path_factory.mktemp("model") / "base", rows, is_tied)
    return get


@pytest.fixture(scope="module")
def rows_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "rows.jsonl"
    lines = []
    for at, line in enumerate((ROOT / "examples/tiny-math/train.jsonl").read_text().splitlines()[:12]):
        row = json.loads(line)
        row["messages"][-1]["content"] += NAMES[at % 3]
        lines.append(json.dumps(row))
    path.write_text("\n".join(lines) + "\n")
    return path


def profile(model, rows_file, output_dir, **changes):
    return {"model": str(model), "datasets": [str(rows_file)], "eval_datasets": [{"path": str(rows_file)}], "device": "cpu", "precision": "fp32",
            "add_tokens": NAMES, "packing": False, "shuffle": False, "global_batch_size": 4, "micro_batch_size": 4, "max_steps": 6,
            "max_seq_len": 128, "num_epochs": 100, "learning_rate": 3e-3, "warmup_steps": 0, "lora_r": 4, "report_to": "none", "eval_steps": 1000,
            "save_steps": 3, "save_interval": None, "output_dir": str(output_dir), **changes}


def reference_tokenizer(model):
    tokenizer = AutoTokenizer.from_pretrained(model)
    assert tokenizer.add_tokens(NAMES) == 3
    return tokenizer


def load_result(model, adapter):
    """As the model card says."""
    base = oracle.load_base(model)
    for line in (adapter / "README.md").read_text().splitlines():
        if line.startswith("base.resize_token_embeddings"):
            exec(line, {"base": base})
    return PeftModel.from_pretrained(base, adapter).eval()


def encoded_rows(tokenizer, rows_file):
    """Ids and labels of the examples, with the assistant's turns trained, by `tokenize`'s own masks."""
    return [tokenizer.apply_chat_template(json.loads(line)["messages"], tokenize=True, return_dict=False) for line in rows_file.read_text().splitlines()]


@pytest.mark.parametrize("rows, is_tied", [(2048, True), (2048, False), (2070, True), (2070, False)])
def test_a_run_its_result_in_peft_and_a_merge(models, rows_file, tmp_path, rows, is_tied):
    model = models(rows, is_tied)
    lines = engine.train(profile(model, rows_file, tmp_path / "run"), tmp_path)
    assert lines[-1]["loss"] < lines[0]["loss"]
    adapter = tmp_path / "run/adapter"
    config = json.loads((adapter / "adapter_config.json").read_text())
    assert config["trainable_token_indices"] == (IDS if is_tied else {name: IDS for name in TOKEN_ROWS})
    assert config["modules_to_save"] is None
    stored = load_file(adapter / "adapter_model.safetensors")
    assert {name for name in stored if "token_adapter" in name} == set(list(TOKEN_ROWS.values())[:1 if is_tied else 2])

    tokenizer, reference = AutoTokenizer.from_pretrained(adapter), reference_tokenizer(model)
    for text in TEXTS:
        assert tokenizer(text).input_ids == reference(text).input_ids, text
    assert tokenizer.decode(IDS, skip_special_tokens=True) == "".join(NAMES)

    shown = engine.run("lora-train", "tokenize", "--profile", engine.write_profile(profile(model, rows_file, tmp_path / "run"), tmp_path),
                       "--show", 12, "--json")
    shown = [json.loads(line) for line in shown.splitlines()]
    assert [row["input_ids"] for row in shown] == encoded_rows(tokenizer, rows_file)
    assert set(IDS) <= {token for row in shown for token in row["labels"]}
    loaded = load_result(model, adapter)
    size = ENLARGED if rows == 2048 else rows
    assert loaded.get_input_embeddings().weight.shape[0] == size
    expected = oracle.loss(loaded, shown)
    after = engine.events(tmp_path / "run", "eval")[-1]
    assert after["step"] == 6 and after["loss"] == pytest.approx(expected, rel=1e-5)
    said, = engine.evaluate(profile(model, rows_file, tmp_path / "other"), tmp_path, adapter)
    assert said["loss"] == pytest.approx(after["loss"], rel=1e-6)

    merged = tmp_path / "merged"
    said = json.loads(engine.run("lora-train", "merge", "--json", "--model", model, "--adapter", adapter, "--output-dir", merged))
    assert said["max_logit_difference"] < 1e-3
    assert json.loads((merged / "config.json").read_text())["vocab_size"] == size
    ids = torch.tensor([AutoTokenizer.from_pretrained(merged)(TEXTS[0] + TEXTS[1]).input_ids])
    assert set(IDS) <= set(ids[0].tolist())
    with torch.no_grad():
        theirs, ours = loaded(ids).logits, oracle.load_base(merged)(ids).logits
    assert ours.shape[-1] == theirs.shape[-1] == size
    assert torch.allclose(theirs[..., :2051], ours[..., :2051], rtol=0, atol=2e-4)
    assert torch.allclose(theirs, ours, rtol=0, atol=1e-2)  # transformers draws the rows that no token uses around the mean


@pytest.mark.parametrize("rows, is_tied, init", [(2048, True, "mean"), (2070, False, "mean"), (2070, False, "description"), (2048, True, "zeros")])
def test_rows_start_as_token_init_says(models, rows_file, tmp_path, rows, is_tied, init):
    model = models(rows, is_tied)
    tokens = TOKENS if init == "description" else NAMES
    engine.train(profile(model, rows_file, tmp_path / "run", add_tokens=tokens, token_init=init, max_steps=1, learning_rate=1e-12), tmp_path)
    stored, base = load_file(tmp_path / "run/adapter/adapter_model.safetensors"), load_file(model / "model.safetensors")
    tokenizer = AutoTokenizer.from_pretrained(model)
    matrices = [("embed_tokens", "model.embed_tokens.weight"), ("lm_head", "lm_head.weight")]
    for module, name in matrices[:1 if is_tied else 2]:
        used = base[name][:2048].double()
        expected = {"zeros": lambda _: torch.zeros(used.shape[1]).double(), "mean": lambda _: used.mean(0),
                    "description": lambda token: used[tokenizer(token["init_text"]).input_ids].mean(0)}[init]
        for row, token in zip(stored[TOKEN_ROWS[module]], TOKENS):
            assert torch.allclose(row.double(), expected(token), rtol=0, atol=1e-7), (module, token)


def test_going_on_with_an_adapter_and_one_more_token(models, rows_file, tmp_path):
    """The rows of the adapter stay with their tokens; the new one gets the next id."""
    model = models(2048, True)
    engine.train(profile(model, rows_file, tmp_path / "run", max_steps=2), tmp_path)
    first = load_file(tmp_path / "run/adapter/adapter_model.safetensors")[TOKEN_ROWS["embed_tokens"]]
    settings = profile(model, rows_file, tmp_path / "more", init_adapter=str(tmp_path / "run/adapter"), add_tokens=[*NAMES, "<more>"],
                       max_steps=1, learning_rate=1e-12)
    settings.pop("lora_r")
    engine.train(settings, tmp_path)
    adapter = tmp_path / "more/adapter"
    second = load_file(adapter / "adapter_model.safetensors")[TOKEN_ROWS["embed_tokens"]]
    assert second.shape[0] == 4 and torch.allclose(second[:3], first, rtol=0, atol=1e-7)
    assert json.loads((adapter / "adapter_config.json").read_text())["trainable_token_indices"] == [*IDS, 2051]
    assert AutoTokenizer.from_pretrained(adapter).convert_tokens_to_ids([*NAMES, "<more>"]) == [*IDS, 2051]


PIPELINES = {
    "byte-level": None,
    "prepended space": (({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u2581"},
                                                               {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]}), None),
    "metaspace": (None, {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": False}),
    "nfc": ({"type": "NFC"}, None),
    "nfkd": ({"type": "NFKD"}, None),
}
ADDED = ["<conf_0>", "ab", "e\u0301!", "<\u4f60 \"\\\n>", "Aa"]


@pytest.mark.parametrize("name", PIPELINES)
def test_files_are_those_of_hugging_face(tmp_path, name):
    """`tokenize --text` with add_tokens gives the ids of a tokenizer to which tokenizers has added them; so does the file of a run."""
    folder = tmp_path / "model"
    folder.mkdir()
    shutil.copy(MODEL / "config.json", folder)
    if PIPELINES[name] is None:
        shutil.copy(MODEL / "tokenizer.json", folder)
    else:
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json(*PIPELINES[name])))
    reference = Tokenizer.from_file(str(folder / "tokenizer.json"))
    added = [token for token in ADDED if reference.token_to_id(token) is None]
    assert len(added) >= 3 and reference.add_tokens(added) == len(added)
    settings = engine.write_profile({"model": str(folder), "add_tokens": added}, tmp_path)
    for text in ["ab<conf_0> e\u0301! ab", "".join(added), " ".join(added), "AAa a<conf_0>b", "x<\u4f60 \"\\\n>"]:
        said = json.loads(engine.run("lora-train", "tokenize", "--profile", settings, "--text", text, "--json"))
        assert said["input_ids"] == reference.encode(text, add_special_tokens=False).ids, text


@pytest.mark.parametrize("is_tied", [True, False])
def test_an_adapter_that_peft_trained_on_a_resized_model(models, rows_file, tmp_path, is_tied):
    """PEFT saves the whole embedding and head beside the rows then, and the size of the model with it (2053, no multiple of 64)."""
    model, adapter = models(2048, is_tied), tmp_path / "adapter"
    base = oracle.load_base(model)
    base.resize_token_embeddings(2053)
    indices = IDS if is_tied else {name: IDS for name in TOKEN_ROWS}
    theirs = get_peft_model(base, LoraConfig(r=4, target_modules=["q_proj", "v_proj"], trainable_token_indices=indices, task_type="CAUSAL_LM")).eval()
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in theirs.parameters():
            if parameter.requires_grad:
                parameter.copy_(0.1 * torch.randn(parameter.shape))
    theirs.save_pretrained(adapter)
    settings = profile(model, rows_file, tmp_path / "run")
    shown = [json.loads(line) for line in engine.run("lora-train", "tokenize", "--profile", engine.write_profile(settings, tmp_path), "--show", 12,
                                                     "--json").splitlines()]
    for _ in range(2):  # without a tokenizer, and with one
        said, = engine.evaluate(settings, tmp_path, adapter)
        assert said["loss"] == pytest.approx(oracle.loss(theirs, shown), rel=1e-5)
        reference_tokenizer(model).save_pretrained(adapter)
    merged = tmp_path / "merged"
    engine.run("lora-train", "merge", "--model", model, "--adapter", adapter, "--output-dir", merged)
    assert oracle.loss(oracle.load_base(merged), shown) == pytest.approx(said["loss"], rel=1e-5)
