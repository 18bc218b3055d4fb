"""Training on quantised bases against transformers + PEFT: step 1 on the decoded weights, and a curve beside bitsandbytes."""

import json
import shutil

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

import engine
import oracle
import random_case
from quantised_folders import decoded_weights, load_weights, write_quantised

LOSS_TOLERANCE = 1e-6
GRADIENT_TOLERANCE = 1e-5
CURVE_TOLERANCE = 1e-3

FOLDERS = {
    "nf4": ("nf4", {}),
    "nf4 nested": ("nf4", dict(nested=True)),
    "nf4 nested as bf16": ("nf4", dict(nested=True, storage=torch.bfloat16)),
    "nf4 but two linears": ("nf4", dict(nested=True, skip=("layers.0.mlp.up_proj", "layers.1.self_attn.q_proj"))),
    "fp4": ("fp4", {}),
    "fp4 nested": ("fp4", dict(nested=True)),
    "int8": ("int8", {}),
    "int8 but one": ("int8", dict(skip=("layers.0.self_attn.k_proj",))),
    "fp8 blocks": ("fp8", dict(block=(128, 128))),
    "fp8 small blocks": ("fp8", dict(block=(16, 32))),
    "fp8 powers of two": ("fp8", dict(block=(16, 16), scale_dtype=torch.float8_e8m0fnu)),
    "fp8 rows": ("compressed-tensors", dict(scales="row")),
    "fp8 matrix": ("compressed-tensors", dict(scales="matrix", activation_scales=True)),
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


def assert_same(got, expected):
    assert got[0]["loss"] == expected[0]["loss"]
    for name, gradient in expected[1].items():
        assert torch.equal(got[1][name], gradient), name


@pytest.mark.parametrize("name", FOLDERS)
def test_step_1_equals_peft_on_the_decoded_weights(cases, tmp_path, name):
    kind, options = FOLDERS[name]
    case = cases([0, 1, 2, 3, 5][list(FOLDERS).index(name) % 5])
    quantised = write_quantised(tmp_path / "quantised", case.model_dir, kind, **options)
    plain = plain_copy(quantised, tmp_path / "plain")
    loss, reference = oracle.gradients(oracle.load_peft(plain, case.adapter_dir), case.rows)
    facts, gradients = probe(case, tmp_path, quantised)
    assert facts["loss"] == pytest.approx(loss, rel=LOSS_TOLERANCE), case.description
    errors = oracle.gradient_errors(gradients, reference)
    assert max(errors.values()) <= GRADIENT_TOLERANCE, f"{oracle.worst(errors)}: {case.description}"

    for decoded_layers in (0, 1):
        assert_same(probe(case, tmp_path, quantised, decoded_layers=decoded_layers), (facts, gradients))
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


@pytest.mark.parametrize("base", ["nf4", "int8", "fp8"])
def test_cuda_kernels_decode_the_same(cases, tmp_path, base):
    """The layers that are decoded when they are acquired, by the CUDA kernels compiled for the CPU."""
    case = cases(1)
    options = dict(base_precision=base, decoded_layers=0)
    loss, reference = engine.probe(engine.profile_for(case, tmp_path / "run", **options), tmp_path)
    got, gradients = engine.probe(engine.profile_for(case, tmp_path / "run", **options), tmp_path,
                                  kernels=engine.CUDA_ON_CPU)
    assert got["loss"] == pytest.approx(loss["loss"], rel=LOSS_TOLERANCE)
    assert max(oracle.gradient_errors(gradients, reference).values()) <= GRADIENT_TOLERANCE


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
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
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
    for line, expected in zip(lines, history, strict=True):
        assert line["loss"] == pytest.approx(expected["loss"], rel=CURVE_TOLERANCE), line["step"]
