"""Text models inside wrappers, and the flat classes that came with them, against transformers' class that config.json names."""

import functools
import json
import re
import shutil

import gguf
import numpy
import pytest
import torch
import transformers
from peft import PeftModel
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import AutoTokenizer

import engine
import family_case
import gguf_case
import oracle
import random_case
from first_step import assert_same, check
from generation import by_transformers, ids_of, load, probe, request_for

WRAPPERS = [name for name in family_case.NAMES if name not in ("ministral", "ministral3_text", "qwen3_5_text", "qwen3_next")]
BESIDE = ("visual.", "vision_tower.", "multi_modal_projector.", "audio_tower.")


@pytest.fixture(scope="module")
def family(tmp_path_factory):
    """family(name) makes a case once."""
    @functools.cache
    def get(name):
        if name not in family_case.OWN and not (family_case.DATA / name).exists():
            pytest.skip(f"no {name} in {family_case.DATA}; set LORA_TRAIN_TEST_DATA")
        return family_case.make(name, tmp_path_factory.mktemp("family"))
    return get


@pytest.fixture(scope="module")
def references(family):
    """references(name): (case, loss, gradients under the names of the text class), made once."""
    @functools.cache
    def get(name):
        case = family(name)
        loss, gradients = oracle.gradients(oracle.load_peft(case.model_dir, case.adapter_dir), case.rows)
        return case, loss, {key.replace(".language_model.", "."): value for key, value in gradients.items()}
    return get


def probe_step(case, tmp_path, **changes):
    return engine.probe(engine.profile_for(case, tmp_path / "run", **changes), tmp_path)


@pytest.mark.parametrize("packing", [False, True])
@pytest.mark.parametrize("name", family_case.NAMES)
def test_step_1(references, tmp_path, name, packing):
    case, loss, reference = references(name)
    layout = dict(packing=True, micro_batch_size=1, global_batch_size=1, max_seq_len=sum(family_case.LENGTHS)) if packing else {}
    check(case, *probe_step(case, tmp_path, **layout), loss, reference)


@pytest.mark.parametrize("name", family_case.NAMES)
def test_the_published_config(references, tmp_path, name):
    """Keys as they were published, where transformers writes them anew, give the same numbers."""
    case, loss, reference = references(name)
    shutil.copytree(case.model_dir, tmp_path / "model")
    family_case.write_config(tmp_path / "model", family_case.published_config(name))
    check(case, *probe_step(case, tmp_path, model=str(tmp_path / "model")), loss, reference)


@pytest.mark.parametrize("name", family_case.NAMES)
def test_bf16(family, tmp_path, name):
    case = family(name)
    loss = oracle.loss(oracle.load_peft(case.model_dir, case.adapter_dir), case.rows)
    facts, _ = probe_step(case, tmp_path, precision="bf16", base_precision="bf16")
    assert facts["loss"] == pytest.approx(loss, rel=0.01)


@pytest.mark.parametrize("name", family_case.NAMES)
def test_greedy_ids(family, tmp_path, name):
    case = family(name)
    model = load(case, adapter=True)
    prompts = [row["input_ids"] for row in case.rows]
    assert ids_of(probe(request_for(case, prompts), tmp_path)) == [by_transformers(model, ids) for ids in prompts]


def raw_tensors(folder):
    tensors = {}
    for path in folder.glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            tensors.update({name: file.get_tensor(name) for name in file.keys()})
    return tensors


@pytest.mark.parametrize("name", family_case.NAMES)
def test_merge(family, tmp_path, name):
    case = family(name)
    out = tmp_path / "merged"
    engine.run("lora-train", "merge", "--model", case.model_dir, "--adapter", case.adapter_dir, "--output-dir", out)
    before, after = raw_tensors(case.model_dir), raw_tensors(out)
    assert before.keys() == after.keys()
    changed = {key for key in before if not torch.equal(before[key], after[key])}
    block = r"attn\." if name == "qwen3_next" else ""
    assert changed == {key for key in before if re.search(block + r"\w+proj(_\w+)?\.weight$", key) and ".layers." in key and
                       not key.removeprefix("model.").startswith(BESIDE)}
    merged = oracle.load_peft(case.model_dir, case.adapter_dir).merge_and_unload()
    ids = torch.tensor([case.rows[0]["input_ids"]])
    with torch.no_grad():
        expected, got = merged(input_ids=ids).logits, oracle.load_base(out)(input_ids=ids).logits
    assert float((got - expected).abs().max() / expected.abs().max()) < 1e-5
    assert json.loads((out / "config.json").read_text()) == json.loads((case.model_dir / "config.json").read_text())


def test_merge_in_another_dtype_leaves_the_tower(family, tmp_path):
    case = family("mistral3")
    engine.run("lora-train", "merge", "--model", case.model_dir, "--adapter", case.adapter_dir, "--output-dir", tmp_path / "out",
               "--dtype", "bf16")
    before, after = raw_tensors(case.model_dir), raw_tensors(tmp_path / "out")
    for key, tensor in before.items():
        assert torch.equal(after[key], tensor) if key.startswith(BESIDE) else after[key].dtype == torch.bfloat16, key


@pytest.mark.parametrize("name", family_case.NAMES)
def test_peft_loads_the_adapter_of_a_run_on_the_class(family, tmp_path, name):
    """Every tensor has its module and every module its tensor, none beside the text; the loss is ours."""
    case = family(name)
    run = tmp_path / "run"
    profile = engine.profile_for(case, run, init_adapter="unset", lora_r=4, max_steps=2, micro_batch_size=2, global_batch_size=4,
                                 learning_rate=1e-2, lora_target_modules=family_case.ATTENTION if name == "qwen3_next" else "all-linear")
    engine.train(profile, tmp_path)
    adapter = run / "adapter"
    model = PeftModel.from_pretrained(oracle.load_base(case.model_dir), adapter, is_trainable=True).eval()
    in_model = {key: value.detach() for key, value in oracle.trainable(model).items()}
    in_file = load_file(adapter / "adapter_model.safetensors")
    assert in_file.keys() == in_model.keys()
    assert all(torch.equal(in_file[key], in_model[key]) for key in in_file)
    is_wrapper = name in WRAPPERS
    assert all(key.startswith("base_model.model.model.language_model.layers.") == is_wrapper for key in in_file)
    ours = engine.evaluate(dict(profile, eval_datasets=profile["datasets"]), tmp_path, adapter=adapter)
    assert ours[0]["loss"] == pytest.approx(oracle.loss(model, case.rows), rel=1e-6)
    base = oracle.loss(oracle.load_base(case.model_dir), case.rows)
    assert abs(base - ours[0]["loss"]) > 1e-3, "the adapter changes nothing: this test tests nothing"


def test_patterns_in_other_spellings_mean_the_same_in_peft(family, tmp_path):
    """PEFT matches none of them on the class: the result names the linears as the class does."""
    case = family("mistral3")
    patterns = {"rank_pattern": {r"model.layers.0.self_attn.q_proj": 2, "down_proj": 3},
                "alpha_pattern": {r"language_model.model.layers.1.*up_proj": 64}}
    profile = engine.profile_for(case, tmp_path / "run", init_adapter="unset", lora_r=4, max_steps=2, learning_rate=1e-2, **patterns)
    engine.train(profile, tmp_path)
    adapter = tmp_path / "run/adapter"
    model = PeftModel.from_pretrained(oracle.load_base(case.model_dir), adapter).eval()
    ours = engine.evaluate(dict(profile, eval_datasets=profile["datasets"]), tmp_path, adapter=adapter)
    assert ours[0]["loss"] == pytest.approx(oracle.loss(model, case.rows), rel=1e-6)
    config = json.loads((adapter / "adapter_config.json").read_text())
    assert len(config["rank_pattern"]) == 1 + 3 and len(config["alpha_pattern"]) == 1, config


def test_a_quantised_tower_is_not_merged(family, tmp_path):
    case = family("ministral3")
    coded, _ = store_as_fp8(case, tmp_path, ())

    def parts(key, tensor):
        is_of_tower = key.startswith("vision_tower.") and key.endswith("q_proj.weight")
        return [(key, tensor.to(torch.float8_e4m3fn) if is_of_tower else tensor)]

    family_case.rewrite_file(coded / "model.safetensors", parts)
    done = engine.start("lora-train", "merge", "--model", coded, "--adapter", case.adapter_dir, "--output-dir", tmp_path / "out")
    assert done.returncode == 4 and "a tower that is quantised as well" in done.stderr, done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["mistral3", "qwen3_vl"])
def test_the_adapter_of_the_text_class_is_read_too(references, tmp_path, name):
    """And that of transformers 4, for Mistral 3."""
    case, loss, reference = references(name)
    for form in ("model.", "language_model.model."):
        adapter = tmp_path / form
        shutil.copytree(case.adapter_dir, adapter)
        file = adapter / "adapter_model.safetensors"
        family_case.rewrite_file(file, lambda key, tensor: [(key.replace("model.language_model.", form), tensor)])
        check(case, *probe_step(case, tmp_path, init_adapter=str(adapter)), loss, reference)


@pytest.mark.parametrize("prefix", ["model.language_model.", "language_model.model.model.", ""])
def test_prefixes_of_the_files(references, tmp_path, prefix):
    """A text class whose tensors still have the names of the wrapper, or none."""
    case, loss, reference = references("ministral3_text")
    model = tmp_path / "model"
    shutil.copytree(case.model_dir, model)
    family_case.rewrite_file(model / "model.safetensors", lambda key, tensor: [(key.replace("model.", prefix, 1), tensor)])
    check(case, *probe_step(case, tmp_path, model=str(model)), loss, reference)


@pytest.mark.parametrize("tied", [None, True, False])
def test_a_head_in_the_files_counts(references, tmp_path, tied):
    """Whatever tie_word_embeddings says; Mistral3Config's default is true."""
    case, loss, reference = references("mistral3")
    model = tmp_path / "model"
    shutil.copytree(case.model_dir, model)
    config = {key: value for key, value in family_case.published_config("mistral3").items() if key != "tie_word_embeddings"}
    family_case.write_config(model, config if tied is None else dict(config, tie_word_embeddings=tied))
    check(case, *probe_step(case, tmp_path, model=str(model)), loss, reference)


@pytest.mark.parametrize("name", ["mistral3", "qwen2_5_vl"])
def test_full_finetuning_writes_the_whole_wrapper(family, tmp_path, name):
    case = family(name)
    profile = engine.profile_for(case, tmp_path / "run", init_adapter="unset", adapter="none", max_steps=2, learning_rate=1e-3,
                                 save_dtype="fp32")
    (case.model_dir / "preprocessor_config.json").write_text("{}")
    engine.train(profile, tmp_path)
    out = tmp_path / "run/model"
    assert (out / "preprocessor_config.json").read_text() == "{}"
    before, after = raw_tensors(case.model_dir), raw_tensors(out)
    assert before.keys() == after.keys()
    same = {key for key in before if torch.equal(before[key], after[key])}
    assert same == {key for key in before if key.startswith(BESIDE)} != set()
    ours = engine.evaluate(dict(profile, model=str(out), eval_datasets=profile["datasets"]), tmp_path)
    assert ours[0]["loss"] == pytest.approx(oracle.loss(oracle.load_base(out), case.rows), rel=1e-6)


@pytest.mark.parametrize("name", ["ministral3", "gemma3"])
def test_the_card_names_the_class(family, tmp_path, name):
    case = family(name)
    profile = engine.profile_for(case, tmp_path / "run", init_adapter="unset", use_rslora=True, max_steps=1)
    engine.train(profile, tmp_path)
    engine.run("lora-train", "merge", "--portable", "--adapter", tmp_path / "run/adapter", "--output-dir", tmp_path / "portable")
    of_class = family_case.published_config(name)["architectures"][0]
    for folder in (tmp_path / "run/adapter", tmp_path / "portable"):
        card = (folder / "README.md").read_text()
        assert f"from transformers import {of_class}, AutoTokenizer\n" in card and f"names of {of_class}" in card
        assert json.loads((folder / "adapter_config.json").read_text())["auto_mapping"]["base_model_class"] == of_class
    plain, portable = (load_file(tmp_path / path / "adapter_model.safetensors") for path in ("run/adapter", "portable"))
    assert plain.keys() == portable.keys()


def test_a_query_scale_beyond_its_period(tmp_path):
    """At the lengths of the release: the last tokens of a document of 16,500, beside another one in the same row."""
    if not (family_case.DATA / "ministral3_text").exists():
        pytest.skip(f"no ministral3_text in {family_case.DATA}; set LORA_TRAIN_TEST_DATA")
    config = family_case.published_config("ministral3_text")
    config.update(num_hidden_layers=1, max_position_embeddings=262144)
    config["rope_parameters"].update(original_max_position_embeddings=16384)
    torch.manual_seed(0)
    of_class = transformers.Ministral3ForCausalLM
    model = of_class._from_config(transformers.Ministral3Config.from_dict(config), attn_implementation="sdpa").eval()
    family_case.spread(model)
    model.save_pretrained(tmp_path / "model")
    ids = torch.randint(20, 240, (16500 + 300,), generator=torch.Generator().manual_seed(2)).tolist()
    rows = [{"input_ids": ids[16500:], "labels": ids[16500:]},
            {"input_ids": ids[:16500], "labels": [-100] * 16400 + ids[16400:16500]}]
    random_case.write_rows(tmp_path / "rows.jsonl", rows)
    case = family_case.FamilyCase("long", tmp_path / "model", None, tmp_path / "rows.jsonl", rows)
    profile = engine.profile_for(case, tmp_path / "run", init_adapter="unset", packing=True, micro_batch_size=1, global_batch_size=1,
                                 max_seq_len=16800)
    ours = engine.evaluate(dict(profile, eval_datasets=profile["datasets"]), tmp_path)[0]["loss"]
    assert ours == pytest.approx(oracle.loss(model, rows), rel=1e-6)
    config["rope_parameters"].pop("llama_4_scaling_beta")
    family_case.write_config(tmp_path / "model", config)
    without = engine.evaluate(dict(profile, eval_datasets=profile["datasets"]), tmp_path)[0]["loss"]
    assert abs(without - ours) > 1e-4, "the scale changes nothing: this test tests nothing"


def store_as_fp8(case, folder, scale_shape):
    """A copy of the model with E4M3 linears of the text as Mistral publishes them, and one whose weights are what these decode to."""
    coded, plain = folder / "fp8", folder / "decoded"
    for copy in (coded, plain):
        shutil.copytree(case.model_dir, copy)

    def parts(key, tensor):
        if not key.endswith("_proj.weight") or key.startswith(BESIDE):
            return [(key, tensor)], [(key, tensor)]
        scale = tensor.abs().max() / 448
        codes = (tensor / scale).to(torch.float8_e4m3fn)
        linear = key.removesuffix("weight")
        return ([(key, codes), (linear + "weight_scale_inv", scale.reshape(scale_shape)),
                 (linear + "activation_scale", torch.tensor(0.5).reshape(scale_shape))], [(key, codes.float() * scale)])

    family_case.rewrite_file(coded / "model.safetensors", lambda key, tensor: parts(key, tensor)[0])
    family_case.rewrite_file(plain / "model.safetensors", lambda key, tensor: parts(key, tensor)[1])
    config = json.loads((coded / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": None,
                                     "dequantize": False, "modules_to_not_convert": ["model.vision_tower", "lm_head"]}
    family_case.write_config(coded, config)
    return coded, plain


@pytest.mark.parametrize("scale_shape", [(), (1,)])
def test_one_fp8_scale_a_matrix(family, tmp_path, scale_shape):
    case = family("ministral3")
    coded, plain = store_as_fp8(case, tmp_path, scale_shape)
    loss, reference = oracle.gradients(oracle.load_peft(plain, case.adapter_dir), case.rows)
    reference = {key.replace(".language_model.", "."): value for key, value in reference.items()}
    check(case, *probe_step(case, tmp_path, model=str(coded), base_precision="unset"), loss, reference)
    said = engine.start("lora-train", "merge", "--model", coded, "--adapter", case.adapter_dir, "--output-dir", tmp_path / "kept",
                        "--keep-quantised", "--no-check")
    assert said.returncode == 0 and "activation_scale is not used" in said.stderr, said.stderr
    before, after = raw_tensors(coded), raw_tensors(tmp_path / "kept")
    tower = [key for key in before if key.startswith(BESIDE)]
    assert tower and all(torch.equal(before[key], after[key]) for key in tower)
    skipped = json.loads((tmp_path / "kept/config.json").read_text())["quantization_config"]["modules_to_not_convert"]
    assert {"model.vision_tower", "model.multi_modal_projector"} <= set(skipped)


@pytest.mark.parametrize("name, rows", [("mistral3", {"embed_tokens": [21, 25], "lm_head": [21, 25]}), ("qwen2_5_vl", [30, 31, 40])])
def test_token_rows(tmp_path, name, rows):
    """Untied with its own rows, and tied."""
    if not (family_case.DATA / name).exists():
        pytest.skip(f"no {name} in {family_case.DATA}; set LORA_TRAIN_TEST_DATA")
    case = family_case.make(name, tmp_path / "case", token_rows=rows)
    loss, reference = oracle.gradients(oracle.load_peft(case.model_dir, case.adapter_dir), case.rows)
    reference = {key.replace(".language_model.", "."): value for key, value in reference.items()}
    assert any("trainable_tokens_delta" in key for key in reference)
    check(case, *probe_step(case, tmp_path), loss, reference)
    out = tmp_path / "merged"
    engine.run("lora-train", "merge", "--model", case.model_dir, "--adapter", case.adapter_dir, "--output-dir", out)
    assert oracle.loss(oracle.load_base(out), case.rows) == pytest.approx(loss, rel=1e-5)
    before, after = raw_tensors(case.model_dir), raw_tensors(out)
    assert all(torch.equal(before[key], after[key]) for key in before if key.startswith(BESIDE))


@pytest.mark.parametrize("name", ["mistral3", "qwen2_5_vl", "qwen3_vl"])
def test_init_model_writes_the_names_of_the_class(family, tmp_path, name):
    case = family(name)
    engine.run("lora-train", "init-model", "--config", case.model_dir / "config.json", "--output-dir", tmp_path / "new")
    names = {key for key in raw_tensors(case.model_dir) if not key.removeprefix("model.").startswith(BESIDE)}
    assert set(raw_tensors(tmp_path / "new")) == names


ARCHITECTURES = {"mistral3": "MISTRAL3", "ministral3-tied": "MISTRAL3", "qwen2_5_vl": "QWEN2VL", "qwen3_vl": "QWEN3VL",
                 "gemma3": "GEMMA3", "voxtral": "LLAMA", "qwen3_5": "QWEN35", "qwen3_5-untied": "QWEN35"}


def gated_delta_gguf(config, key, value):
    """Value heads go from grouped to tiled order, as llama.cpp's converter has them."""
    heads, in_group, size = config.linear_num_key_heads, config.linear_num_value_heads // config.linear_num_key_heads, config.linear_value_head_dim
    kind = key.split("linear_attn.")[1]

    def tiled(values, head_rows):
        return values.reshape(heads, in_group, head_rows, *values.shape[1:]).swapaxes(0, 1).reshape(values.shape)

    if kind.startswith("conv1d"):
        value = value[:, 0]
    if kind.startswith(("conv1d", "in_proj_qkv")):
        keys = 2 * heads * config.linear_key_head_dim
        return key, numpy.concatenate([value[:keys], tiled(value[keys:], size)])
    if kind.startswith("in_proj_z"):
        return key, tiled(value, size)
    if kind.startswith("out_proj"):
        return key, tiled(value.T, size).T
    if kind == "A_log":
        return key + ".weight", tiled(-numpy.exp(value), 1)
    if kind == "dt_bias":
        return key.replace("dt_bias", "dt_proj.bias"), tiled(value, 1)
    return key, tiled(value, 1) if kind.startswith("in_proj_") else value


def expected_gguf(name, case):
    """By GGUF name: the text model with the adapter merged in, rows of q and k in pairs where llama.cpp rotates neighbours."""
    model = oracle.load_peft(case.model_dir, case.adapter_dir).merge_and_unload()
    config = model.config.get_text_config()
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[ARCHITECTURES[name]], config.num_hidden_layers)
    tensors = {}
    for key, tensor in model.state_dict().items():
        is_text = key.startswith("model.language_model.") or key == "lm_head.weight"
        if not is_text or (key == "lm_head.weight" and getattr(model.config, "tie_word_embeddings", False)):
            continue
        has_offset = key.endswith("norm.weight") and not key.endswith("linear_attn.norm.weight")
        value = tensor.numpy() + (ARCHITECTURES[name] in ("GEMMA3", "QWEN35") and has_offset)
        if ".linear_attn." in key:
            key, value = gated_delta_gguf(config, key, value)
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(key.split(".")[-2])
        if heads and ARCHITECTURES[name] in ("MISTRAL3", "LLAMA"):
            value = value.reshape(heads, 2, -1, value.shape[1]).swapaxes(1, 2).reshape(value.shape)
        gguf_name = names.get_name(key.replace(".language_model.", "."), try_suffixes=(".weight", ".bias"))
        tensors[gguf_name.removesuffix(".weight") if key.endswith("A_log.weight") else gguf_name] = value
    return tensors


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_gguf(tmp_path, name):
    if name not in family_case.OWN and not (family_case.DATA / name).exists():
        pytest.skip(f"no {name} in {family_case.DATA}; set LORA_TRAIN_TEST_DATA")
    sizes = {"linear_value_head_dim": 16} if name in family_case.HYBRID else {}  # llama.cpp has one size for keys and values
    case = family_case.make(name, tmp_path / "case", vocab_size=352, **sizes)
    gguf_case.write_tokenizer("qwen35", case.model_dir)
    file = tmp_path / "model.gguf"
    engine.run("lora-train", "export", "--gguf", file, "--model", case.model_dir, "--adapter", case.adapter_dir, "--merge")
    fields, tensors = gguf_case.read(file)
    assert fields["tokenizer.ggml.pre"] == "qwen35"
    assert fields["general.architecture"] == gguf.MODEL_ARCH_NAMES[gguf.MODEL_ARCH[ARCHITECTURES[name]]]
    expected = expected_gguf(name, case)
    assert set(tensors) == set(expected)
    for key, value in expected.items():
        assert numpy.abs(gguf_case.values(tensors[key]) - value).max() <= 2e-6 * numpy.abs(value).max(), key


@pytest.mark.parametrize("name", ["ministral3", "ministral", "qwen3_5", "qwen3_next"])
def test_cuda_kernels_on_the_cpu(references, tmp_path, name):
    case, loss, reference = references(name)
    for more in ((), engine.OWN_GRADIENTS):
        profile = engine.profile_for(case, tmp_path / "run", micro_batch_size=2)
        check(case, *engine.probe(profile, tmp_path, kernels=(*engine.CUDA_ON_CPU, *more)), loss, reference)


@pytest.mark.parametrize("name, rows", [("mistral3", 352), ("qwen3_vl", 284)])  # untied with spare rows, tied and enlarged
def test_new_tokens_with_the_tokenizer_of_qwen3_5(tmp_path, name, rows):
    if not (family_case.DATA / name).exists():
        pytest.skip(f"no {name} in {family_case.DATA}; set LORA_TRAIN_TEST_DATA")
    case = family_case.make(name, tmp_path / "case", vocab_size=rows)
    gguf_case.write_tokenizer("qwen35", case.model_dir)
    chats = [{"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": f"{text[:9]} <conf_{at % 2}>"}]}
             for at, text in enumerate(gguf_case.TEXT[:6])]
    data = tmp_path / "chats.jsonl"
    random_case.write_rows(data, chats)
    profile = {**engine.profile_for(case, tmp_path / "run", init_adapter="unset", max_steps=4, max_seq_len=256, micro_batch_size=2,
                                    global_batch_size=2, learning_rate=1e-2), "datasets": [str(data)], "add_tokens": ["<conf_0>", "<conf_1>"]}
    engine.train(profile, tmp_path)
    adapter, merged = tmp_path / "run/adapter", tmp_path / "merged"
    shown = engine.run("lora-train", "tokenize", "--profile", engine.write_profile(profile, tmp_path), "--show", 6, "--json")
    examples = [json.loads(line) for line in shown.splitlines()]
    tokenizer = AutoTokenizer.from_pretrained(adapter)
    assert [row["input_ids"] for row in examples] == [
        tokenizer.apply_chat_template(chat["messages"], tokenize=True, return_dict=False) for chat in chats]
    base = oracle.load_base(case.model_dir)
    for line in (adapter / "README.md").read_text().splitlines():
        if line.startswith("base.resize_token_embeddings"):
            exec(line, {"base": base})
    model = PeftModel.from_pretrained(base, adapter).eval()
    ours = engine.evaluate(dict(profile, eval_datasets=[{"path": str(data)}]), tmp_path, adapter=adapter)[0]["loss"]
    assert ours == pytest.approx(oracle.loss(model, examples), rel=1e-5)
    engine.run("lora-train", "merge", "--model", case.model_dir, "--adapter", adapter, "--output-dir", merged)
    assert oracle.loss(oracle.load_base(merged), examples) == pytest.approx(ours, rel=1e-4)
    before, after = raw_tensors(case.model_dir), raw_tensors(merged)
    tower = [key for key in before if key.removeprefix("model.").startswith(BESIDE)]
    assert tower and all(torch.equal(before[key], after[key]) for key in tower)


@pytest.mark.parametrize("name", ["mistral3", "qwen2_5_vl"])
def test_quantize(references, tmp_path, name):
    """The folder that it writes trains as one that is quantised while it is loaded, and leaves the tower alone."""
    case = references(name)[0]
    engine.run("lora-train", "quantize", "--model", case.model_dir, "--base-precision", "nf4", "--output-dir", tmp_path / "nf4")
    stored, loaded = (probe_step(case, tmp_path, **more) for more in (
        {"model": str(tmp_path / "nf4"), "base_precision": "unset"}, {"base_precision": "nf4"}))
    assert_same(stored, loaded)
    before, after = raw_tensors(case.model_dir), raw_tensors(tmp_path / "nf4")
    tower = [key for key in before if key.startswith(BESIDE)]
    assert tower and all(torch.equal(before[key], after[key]) for key in tower)
    skipped = json.loads((tmp_path / "nf4/config.json").read_text())["quantization_config"]["llm_int8_skip_modules"]
    assert {f"model.{key.split('.')[0]}" for key in tower} <= set(skipped)


def test_an_adapter_becomes_gguf_in_either_form(family, tmp_path):
    case = family("mistral3")
    text_form = tmp_path / "text"
    shutil.copytree(case.adapter_dir, text_form)
    family_case.rewrite_file(text_form / "adapter_model.safetensors",
                             lambda key, tensor: [(key.replace("model.language_model.", "model."), tensor)])
    files = [tmp_path / "one.gguf", tmp_path / "other.gguf"]
    for file, adapter in zip(files, (case.adapter_dir, text_form), strict=True):
        engine.run("lora-train", "export", "--gguf", file, "--model", case.model_dir, "--adapter", adapter)
    fields, tensors = gguf_case.read(files[0])
    assert fields["general.architecture"] == "mistral3" and len(tensors) == 2 * 7 * 3
    assert files[0].read_bytes() == files[1].read_bytes()
