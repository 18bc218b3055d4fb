"""Gated delta nets and gated attention (Qwen3.5) beside transformers' torch path, one document at a time: what test_wrappers.py does
not ask of every class. The gated norm of weights drawn at random is ill-conditioned with the eps of 1e-6 that
models have: transformers' own two forms differ by 4e-5 there. Hence an eps of 1e-2, and 1e-6 with a wider bar."""

import functools
import os

import pytest
import torch
from safetensors.torch import load_file, save_file

import engine
import family_case
import oracle
import random_case
from first_step import assert_same, check
from generation import NEW_TOKENS, by_transformers, check_logits, ids_of, load, log_probability, request_for
from generation import probe as probe_generation
from loss_curves import assert_same_curve

FULL = dict(adapter="none", init_adapter="unset")
BF16 = dict(precision="bf16", base_precision="bf16")
TEXT_CLASS = "qwen3_5_text"


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory):
    """hybrid(name, **keys of the text model) makes a case once."""
    @functools.cache
    def get(name, **keys):
        if not (family_case.DATA / name).exists():
            pytest.skip(f"no {name} in {family_case.DATA}; set LORA_TRAIN_TEST_DATA")
        return family_case.make(name, tmp_path_factory.mktemp("hybrid"), **keys)
    return get


def probe(case, tmp_path, **changes):
    return engine.probe(engine.profile_for(case, tmp_path / "run", **changes), tmp_path)


def in_text_class(gradients):
    return {name.replace(".language_model.", "."): gradient for name, gradient in gradients.items()}


@pytest.mark.parametrize("name", [TEXT_CLASS, "qwen3_5-untied", "qwen3_next"])
def test_every_gradient_of_full_finetuning(hybrid, tmp_path, name):
    """A_log, dt_bias, the convolution and the gated norm included."""
    case = hybrid(name)
    model = oracle.load_base(case.model_dir).requires_grad_(True)
    if hasattr(model.model, "visual"):
        model.model.visual.requires_grad_(False)
    loss, reference = oracle.gradients(model, case.rows)
    check(case, *probe(case, tmp_path, micro_batch_size=3, **FULL), loss, in_text_class(reference))


@pytest.mark.parametrize("trained", [{}, FULL], ids=["lora", "full"])
def test_recomputation_and_tiles_give_the_same_bits(hybrid, tmp_path, trained):
    modes = [dict(gradient_checkpointing=mode) for mode in ("off", "cheap", "gate_up", "full")]
    modes += [dict(gradient_checkpointing="full", activation_offload="on"), dict(gradient_checkpointing="full", mlp_tile_tokens=64)]
    off, *others = (probe(hybrid(TEXT_CLASS), tmp_path, micro_batch_size=2, **mode, **trained) for mode in modes)
    *same, tiled = others
    for other in same:
        assert_same(other, off)
    # Tiles sum the gradients of the MLP's weights in another order.
    assert tiled[0]["loss"] == off[0]["loss"]
    for name, gradient in off[1].items():
        if ".mlp." not in name and "lm_head" not in name:
            assert torch.allclose(tiled[1][name], gradient, rtol=0, atol=1e-6 * float(gradient.abs().max())), name


def test_the_published_eps(hybrid, tmp_path):
    """The gated norm of weights drawn at random is ill-conditioned: transformers' own two forms differ by 4e-5."""
    case = hybrid(TEXT_CLASS, rms_norm_eps=1e-6)
    loss, reference = oracle.gradients(oracle.load_peft(case.model_dir, case.adapter_dir), case.rows)
    facts, gradients = probe(case, tmp_path)
    assert facts["loss"] == pytest.approx(loss, rel=1e-5)
    errors = oracle.gradient_errors(gradients, reference)
    assert max(errors.values()) <= 1e-4, oracle.worst(errors)


def test_gradients_in_bf16(hybrid, tmp_path):
    """|g - g_HF,fp32| <= 1.5 |g_HF,bf16 - g_HF,fp32| for each tensor."""
    case = hybrid(TEXT_CLASS)
    loss, exact = oracle.gradients(oracle.load_peft(case.model_dir, case.adapter_dir), case.rows)
    _, rounded = oracle.gradients(oracle.load_peft(case.model_dir, case.adapter_dir, torch.bfloat16), case.rows, is_bf16=True)
    facts, gradients = probe(case, tmp_path, micro_batch_size=2, **BF16)
    assert facts["loss"] == pytest.approx(loss, rel=0.01)
    shares = {name: float((gradients[name] - exact[name]).norm() / (rounded[name] - exact[name]).norm()) for name in exact}
    assert max(shares.values()) <= 1.5, oracle.worst(shares)


@pytest.mark.parametrize("base_precision", ["nf4", "int8", "fp8"])
def test_a_quantised_folder_is_the_base_that_is_quantised_while_it_loads(hybrid, tmp_path, base_precision):
    case = hybrid("qwen3_5")
    folder = tmp_path / base_precision
    engine.run("lora-train", "quantize", "--model", case.model_dir, "--base-precision", base_precision, "--output-dir", folder)
    stored, loaded = (probe(case, tmp_path, **more) for more in (
        {"model": str(folder), "base_precision": "unset"}, {"base_precision": base_precision}))
    assert_same(stored, loaded)
    before, after = (load_file(path / "model.safetensors") for path in (case.model_dir, folder))
    kept = [name for name in before if name.endswith(("A_log", "dt_bias", "conv1d.weight", "norm.weight"))]
    assert kept and all(torch.equal(after[name], before[name]) for name in kept)
    plain = probe(case, tmp_path)[0]["loss"]
    assert loaded[0]["loss"] == pytest.approx(plain, rel=0.05) and loaded[0]["loss"] != plain


@pytest.mark.parametrize("tensor", ["A_log", "dt_bias"])
def test_decays_stay_fp32_in_a_bf16_run(hybrid, tmp_path, tensor):
    """A copy of the model whose decays are rounded to bf16 gives another loss: the run does not round them itself."""
    case = hybrid(TEXT_CLASS)
    exact = probe(case, tmp_path, **BF16)[0]["loss"]
    rounded = tmp_path / "rounded"
    rounded.mkdir()
    for file in case.model_dir.iterdir():
        (rounded / file.name).write_bytes(file.read_bytes())
    tensors = load_file(rounded / "model.safetensors")
    save_file({name: value.bfloat16().float() if name.endswith(tensor) else value for name, value in tensors.items()},
              rounded / "model.safetensors", metadata={"format": "pt"})
    assert probe(case, tmp_path, model=str(rounded), **BF16)[0]["loss"] != exact


def text_rows(count, length):
    """Real text as bytes, which are ids of a vocabulary of 256."""
    text = b"".join(path.read_bytes() for path in sorted((family_case.DATA.parent / "text").iterdir()) if path.is_file())
    pieces = [list(text[at * length:(at + 1) * length]) for at in range(count)]
    return [{"input_ids": ids, "labels": [-100] + ids[1:]} for ids in pieces]


def test_a_curve_on_real_text(hybrid, tmp_path):
    """By packed steps, beside a loop over documents. The battery repeats it with 300 steps (LORA_TRAIN_CURVE_STEPS)."""
    steps = int(os.environ.get("LORA_TRAIN_CURVE_STEPS", "30"))
    case = hybrid(TEXT_CLASS)
    rows = text_rows(4 * steps, 80)
    case = family_case.FamilyCase(case.name, case.model_dir, case.adapter_dir, tmp_path / "rows.jsonl", rows, 320)
    random_case.write_rows(case.data_file, rows)
    model = oracle.load_peft(case.model_dir, case.adapter_dir)
    history = oracle.train(model, oracle.batches_in_order(rows, 4, steps), learning_rate=5e-4, scheduler="cosine", warmup_steps=5,
                           weight_decay=0.1)
    lines = engine.train(engine.profile_for(case, tmp_path / "run", packing=True, global_batch_size=1, micro_batch_size=1,
                                            max_steps=steps, learning_rate=5e-4, lr_scheduler_type="cosine", warmup_steps=5,
                                            weight_decay=0.1), tmp_path)
    assert_same_curve(lines, history, 1e-4)


ON_DEVICE = {"kernels": "cuda-on-cpu", "keeps_bf16": False}
FEW_ROWS = {"max_sequences": 3, "max_pass_tokens": 16, "cache_bytes": 1}


@pytest.fixture(scope="module")
def answers(hybrid):
    """(case, PEFT's model, prompts of 1 to 150 tokens, its greedy answers)."""
    case = hybrid(TEXT_CLASS)
    model = load(case, adapter=True)
    prompts = [row["input_ids"] for row in case.rows] + [case.rows[0]["input_ids"][:1]]
    return case, model, prompts, [by_transformers(model, ids) for ids in prompts]


@pytest.mark.parametrize("limits", [{"max_sequences": 2, "max_pass_tokens": 64}, {"max_sequences": 1, "max_pass_tokens": 1},
                                    {"max_sequences": 3, "max_pass_tokens": 50, "cache_bytes": 1}])
def test_states_take_turns_in_few_rows(answers, tmp_path, limits):
    """Prompts in pieces, and rows that a new sequence takes over, which must not find the old one's state."""
    case, _, prompts, want = answers
    assert ids_of(probe_generation(request_for(case, prompts * 2, limits=limits), tmp_path)) == want * 2


def test_logits_of_cached_tokens(answers, tmp_path):
    case, model, prompts, want = answers
    probe_generation(request_for(case, prompts, logits=str(tmp_path / "logits"), limits={"max_pass_tokens": 40}), tmp_path)
    check_logits(tmp_path / "logits", case, model, prompts, want)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_prompt_has_the_same_bits_alone_and_in_any_company(answers, tmp_path, dtype):
    case, _, prompts, _ = answers

    def rows_of(some, name):
        probe_generation(request_for(case, some, dtype=dtype, logits=str(tmp_path / name)), tmp_path)
        return load_file(tmp_path / name)

    together, alone = rows_of(prompts, "together"), rows_of(prompts[3:4], "alone")
    assert all(torch.equal(alone[f"0.{position}"], together[f"3.{position}"]) for position in range(NEW_TOKENS))


@pytest.mark.parametrize("graphs", [False, True])
def test_our_cuda_kernels_give_the_same_ids(answers, tmp_path, graphs):
    case, _, prompts, want = answers
    result = probe_generation(request_for(case, prompts[:5], limits=FEW_ROWS, graphs=graphs, **ON_DEVICE), tmp_path)
    assert ids_of(result) == want[:5]
    assert (result["replays"] > 0) == graphs


def test_scores_of_completions_begin_with_the_state_of_the_prompt(answers, tmp_path):
    case, model, prompts, _ = answers
    completions = [[20 + (7 * i + length) % 200 for i in range(length)] for length in (1, 2, 5, 13)]
    scores = [{"prompt": prompt, "completions": completions} for prompt in prompts[:3]]
    request = {**request_for(case, []), "scores": scores, "limits": {"max_sequences": 4, "max_pass_tokens": 9}}
    for score, got in zip(scores, probe_generation(request, tmp_path)["scores"], strict=True):
        assert got == [pytest.approx(log_probability(model, score["prompt"], completion), rel=1e-5) for completion in completions]
