"""Training on quantised bases against transformers + PEFT: step 1 on the decoded weights, and a curve beside bitsandbytes; and
`check` of their folders."""

import json
import shutil

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

import engine
import oracle
import random_case
from first_step import assert_same, check
from loss_curves import assert_same_losses
from quantised_folders import decoded_weights, load_weights, write_quantised

CURVE_TOLERANCE = 1e-3

# name: kind, options, and how `check` counts 14 linears
FOLDERS = {
    "nf4": ("nf4", {}, "14 linears nf4"),
    "nf4 nested": ("nf4", dict(nested=True), "14 linears nf4"),
    "nf4 nested as bf16": ("nf4", dict(nested=True, storage=torch.bfloat16), "14 linears nf4"),
    "nf4 but two linears": ("nf4", dict(nested=True, skip=("layers.0.mlp.up_proj", "layers.1.self_attn.q_proj")), "12 linears nf4, 2 bf16"),
    "fp4": ("fp4", {}, "14 linears fp4"),
    "fp4 nested": ("fp4", dict(nested=True), "14 linears fp4"),
    "int8": ("int8", {}, "14 linears int8"),
    "int8 but one": ("int8", dict(skip=("layers.0.self_attn.k_proj",)), "13 linears int8, 1 bf16"),
    "fp8 blocks, as DeepSeek has it": ("fp8", dict(block=(128, 128)), "14 linears fp8"),
    "fp8 small blocks, scales as Qwen3 has them": ("fp8", dict(block=(16, 32), scale_dtype=torch.bfloat16), "14 linears fp8"),
    "fp8 powers of two": ("fp8", dict(block=(16, 16), scale_dtype=torch.float8_e8m0fnu), "14 linears fp8"),
    "fp8 matrix": ("fp8", dict(scales="matrix", activation_scales=True), "14 linears fp8"),
    "compressed-tensors, rows": ("compressed-tensors", dict(scales="row"), "14 linears fp8"),
    "compressed-tensors, blocks": ("compressed-tensors", dict(scales="block"), "14 linears fp8"),
    "compressed-tensors, static": ("compressed-tensors", dict(scales="matrix", activation_scales=True), "14 linears fp8"),
}


def plain_copy(quantised, folder):
    """The folder with its decoded weights in fp32."""
    folder.mkdir()
    for file in quantised.iterdir():
        if file.suffix in (".json", ".jinja") and "index" not in file.name:
            shutil.copy(file, folder)
    config = json.loads((folder / "config.json").read_text())
    del config["quantization_config"]
    (folder / "config.json").write_text(json.dumps(config | {"dtype": "float32", "torch_dtype": "float32"}))
    save_file({name: value.float().contiguous() for name, value in decoded_weights(quantised).items()},
              folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def probe(case, folder, model, **changes):
    return engine.probe(engine.profile_for(case, folder / "run", model=str(model), base_precision="auto", **changes), folder)


@pytest.mark.parametrize("name", FOLDERS)
def test_step_1_equals_peft_on_the_decoded_weights(cases, tmp_path, name):
    kind, options, _ = FOLDERS[name]
    case = cases([0, 1, 2, 3, 5][list(FOLDERS).index(name) % 5])
    quantised = write_quantised(tmp_path / "quantised", case.model_dir, kind, **options)
    plain = plain_copy(quantised, tmp_path / "plain")
    loss, reference = oracle.gradients(oracle.load_peft(plain, case.adapter_dir), case.rows)
    once = probe(case, tmp_path, quantised)
    check(case, *once, loss, reference)
    for decoded_layers in (0, 1):
        assert_same(probe(case, tmp_path, quantised, decoded_layers=decoded_layers), once)
    full = probe(case, tmp_path, quantised, decoded_layers=0, gradient_checkpointing="full", micro_batch_size=3)
    assert_same(full, probe(case, tmp_path, quantised, micro_batch_size=3))


@pytest.mark.parametrize("kind", ["nf4", "fp8"])
def test_quantising_while_loading_is_the_folder_that_others_write(cases, tmp_path, kind):
    case = cases(2)
    quantised = write_quantised(tmp_path / "quantised", case.model_dir, kind)
    loaded = engine.probe(engine.profile_for(case, tmp_path / "run", base_precision=kind, double_quant=False), tmp_path)
    assert_same(loaded, probe(case, tmp_path, quantised))


@pytest.mark.parametrize("kind", ["nf4", "int8", "fp8"])
def test_quantize_writes_what_others_read(cases, tmp_path, kind):
    """The folder of `quantize` gives the numbers of base_precision, and loads elsewhere with the same weights."""
    case = cases(2)
    engine.run("lora-train", "quantize", "--model", case.model_dir, "--output-dir", tmp_path / "ours", "--base-precision", kind)
    loaded = engine.probe(engine.profile_for(case, tmp_path / "run", base_precision=kind), tmp_path)
    assert_same(probe(case, tmp_path, tmp_path / "ours"), loaded)
    theirs = load_weights(write_quantised(tmp_path / "theirs", case.model_dir, kind,
                                          **(dict(nested=True) if kind == "nf4" else {})))
    ours = load_weights(tmp_path / "ours")
    assert set(ours) == set(theirs)
    for name, expected in theirs.items():
        if expected.dtype in (torch.int8, torch.uint8) and ".quant_state." not in name:
            # int8: bitsandbytes on a CPU multiplies by a rounded 1 / scale. Nested scales: its table rounds otherwise.
            steps = (ours[name].int() - expected.int()).abs()
            assert steps.max() <= 1 and (steps > 0).float().mean() < 0.005, name
    decoded, others = decoded_weights(tmp_path / "ours"), decoded_weights(tmp_path / "theirs")
    for name, expected in others.items():
        assert (decoded[name].float() - expected.float()).norm() <= 3e-3 * expected.float().norm(), name
    AutoModelForCausalLM.from_pretrained(tmp_path / "ours", dtype=torch.float32)


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory):
    """Of two layers in bf16, its linears wider than a block of 128."""
    folder = tmp_path_factory.mktemp("plain") / "model"
    config = Qwen3Config(hidden_size=128, intermediate_size=192, num_hidden_layers=2, num_attention_heads=4,
                         num_key_value_heads=2, head_dim=32, vocab_size=300, max_position_embeddings=128)
    Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("name", [*FOLDERS, "plain"])
def test_check_accepts_the_folder_and_counts_its_formats(qwen3, tmp_path, name):
    kind, options, count = FOLDERS.get(name, (None, {}, "14 linears bf16"))
    folder = write_quantised(tmp_path / "model", qwen3, kind, **options) if kind else qwen3
    done = engine.start("lora-train", "check", f"model={folder}", "datasets=[/dev/null]")
    assert done.returncode == 0 and count + "\n" in done.stderr and "are not part of" not in done.stderr, done.stderr


@pytest.fixture(scope="module")
def wide_case(tmp_path_factory):
    """Sizes at which bitsandbytes' CPU kernels are right: multiples of 64."""
    folder = tmp_path_factory.mktemp("wide")
    config = Qwen2Config(vocab_size=128, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                         intermediate_size=128, max_position_embeddings=128, tie_word_embeddings=True)
    generator = torch.Generator().manual_seed(1)
    model = Qwen2ForCausalLM(config)
    random_case.randomise_weights(model, generator)
    model.save_pretrained(folder / "model")
    adapted = get_peft_model(model, LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "down_proj"],
                                               task_type="CAUSAL_LM", init_lora_weights=False))
    adapted.save_pretrained(folder / "adapter")
    rows = []
    for length in (12, 30, 7, 21):
        ids = torch.randint(0, 128, (length,), generator=generator).tolist()
        rows.append({"input_ids": ids, "labels": [-100] * 3 + ids[3:]})
    data = folder / "rows.jsonl"
    random_case.write_rows(data, rows)
    return random_case.Case(0, "qwen2", folder / "model", folder / "adapter", data, rows, 64, "64 x 128")


@pytest.mark.parametrize("kind, options", [("nf4", {}), ("nf4", dict(nested=True)), ("fp4", dict(nested=True))],
                         ids=lambda value: str(value))
def test_curve_beside_bitsandbytes(wide_case, tmp_path, kind, options):
    steps, rate = 10, 2e-3
    quantised = write_quantised(tmp_path / "quantised", wide_case.model_dir, kind, **options)
    base = AutoModelForCausalLM.from_pretrained(quantised, dtype=torch.float32, attn_implementation="eager")
    # Not in eval mode: bitsandbytes then repacks its weights and computes with other scales on some CPUs.
    model = PeftModel.from_pretrained(base, wide_case.adapter_dir, is_trainable=True).train()
    history = oracle.train(model, oracle.batches_in_order(wide_case.rows, 4, steps), learning_rate=rate)
    assert history[-1]["loss"] < 0.95 * history[0]["loss"]
    lines = engine.train(engine.profile_for(wide_case, tmp_path / "run", model=str(quantised), base_precision="auto",
                                            learning_rate=rate, max_steps=steps, global_batch_size=4), tmp_path)
    assert_same_losses(lines, history, CURVE_TOLERANCE)
