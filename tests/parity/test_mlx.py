"""`export --mlx` against PEFT: names, shapes, values and scale as mlx-lm's LoRALinear reads them. mlx-lm itself: try_mlx.py."""

import json
import subprocess

import numpy as np
import pytest
from peft import PeftModel
from safetensors import safe_open
from safetensors.numpy import load_file

import engine
import gguf_case
import oracle

NUM_CASES = 6


@pytest.fixture(scope="module")
def case_of(tmp_path_factory):
    made = {}

    def get(number, **lora):
        key = (number, json.dumps(lora, sort_keys=True))
        if key not in made:
            made[key] = gguf_case.make_case(number, tmp_path_factory.mktemp("mlx") / "case", **lora)
        return made[key]
    return get


def export(case, folder, *arguments):
    said = json.loads(engine.run("lora-train", "export", "--json", "--mlx", folder, "--model", case.model_dir, "--adapter", case.adapter_dir,
                                 *arguments))
    assert said["folder"] == str(folder)
    return said, json.loads((folder / "adapter_config.json").read_text()), load_file(folder / "adapters.safetensors")


def adapted_by_mlx(config, num_layers, model):
    """The linears that linear_to_lora_layers() (mlx_lm/tuner/utils.py) wraps: keys within each of the last layers, and keys in the model."""
    keys = config["lora_parameters"]["keys"]
    paths = [path for path, _ in model.named_modules()]
    first = num_layers - config["num_layers"]
    within = {path for path in paths for layer in range(first, num_layers) for key in keys if path == f"model.layers.{layer}.{key}"}
    return within | (set(keys) & set(paths))


@pytest.mark.parametrize("number, lora", [*((number, {}) for number in range(NUM_CASES)),
                                          (0, {"use_rslora": True, "rank_pattern": {}, "alpha_pattern": {}, "target_modules": "all-linear"}),
                                          (1, {"rank_pattern": {"q_proj": 2}, "alpha_pattern": {}, "target_modules": ["q_proj", "o_proj"]}),
                                          (2, {"target_modules": r"model\.layers\.(0\.mlp\.up|1\.self_attn\.q)_proj"})])
def test_adapter_is_that_of_peft(case_of, number, lora, tmp_path):
    case = case_of(number, **lora)
    said, config, tensors = export(case, tmp_path / "out")
    parameters = config["lora_parameters"]
    assert config["fine_tune_type"] == "lora" and parameters["dropout"] == 0 and config["model"] == str(case.model_dir)
    assert said["rank"] == parameters["rank"] and said["scale"] == parameters["scale"] and said["num_layers"] == config["num_layers"]
    base = oracle.load_base(case.model_dir)
    num_layers = case.config["num_hidden_layers"]
    assert {name.rsplit(".", 1)[0] for name in tensors} == adapted_by_mlx(config, num_layers, base)
    model = PeftModel.from_pretrained(base, case.adapter_dir)
    linears = {path: module for path, module in model.base_model.model.named_modules() if hasattr(module, "lora_A")}
    assert 2 * len(linears) == len(tensors) > 0 and said["num_linears"] == len(linears)
    scales = {module.scaling["default"] for module in linears.values()}
    ranks = {module.r["default"] for module in linears.values()}
    assert parameters["rank"] == max(ranks) and parameters["scale"] == (scales.pop() if len(scales) == 1 else 1)
    assert said["num_padded"] == sum(module.r["default"] < max(ranks) for module in linears.values())
    for path, module in linears.items():
        A, B = (side["default"].weight.detach().numpy() for side in (module.lora_A, module.lora_B))
        lora_a, lora_b, rank = tensors[f"{path}.lora_a"], tensors[f"{path}.lora_b"], module.r["default"]
        assert lora_a.dtype == lora_b.dtype == np.float32
        assert lora_a.shape == (A.shape[1], parameters["rank"]) and lora_b.shape == (parameters["rank"], B.shape[0])
        assert np.array_equal(lora_a[:, :rank], A.T) and not lora_a[:, rank:].any() and not lora_b[rank:].any()
        expected = np.float32(module.scaling["default"] / parameters["scale"]) * B.T
        assert np.abs(lora_b[:rank] - expected).max() <= 1e-6 * np.abs(expected).max(), path
        if said["num_rescaled"] == 0:
            assert np.array_equal(lora_b[:rank], B.T)


def refused(code, *arguments):
    done = subprocess.run([engine.BIN / "lora-train", "export", *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    return done.stderr


def test_refusals_and_what_needs_no_export(case_of, tmp_path):
    case, out = case_of(0), tmp_path / "mlx"
    flags = ("--mlx", out, "--model", case.model_dir)
    adapter = ("--adapter", case.adapter_dir)
    assert f"mlx_lm.generate --model {case.model_dir}" in refused(2, *flags)
    assert f"lora-train merge --adapter {case.adapter_dir} --output-dir {out}" in refused(2, *flags, *adapter, "--merge")
    assert "--gguf or --mlx, not both" in refused(2, *flags, *adapter, "--gguf", tmp_path / "x.gguf")
    assert "always f32" in refused(2, *flags, *adapter, "--type", "f16")
    assert not out.exists()
    export(case, out)
    (out / "mine.txt").write_text("mine")
    assert "mine.txt" in refused(2, *flags, *adapter, "--overwrite") and (out / "mine.txt").exists()
    (out / "mine.txt").unlink()
    assert "--overwrite" in refused(2, *flags, *adapter)
    export(case, out, "--overwrite")
    with safe_open(out / "adapters.safetensors", "np") as file:
        assert len(list(file.keys())) > 0


@pytest.mark.parametrize("key, value", [("modules_to_save", ["lm_head"]), ("use_dora", True), ("trainable_token_indices", [3]),
                                        ("bias", "lora_only")])
def test_refuses_by_name_what_mlx_cannot_hold(case_of, key, value, tmp_path):
    case = case_of(0)
    folder = tmp_path / "adapter"
    folder.mkdir()
    for file in case.adapter_dir.iterdir():
        (folder / file.name).symlink_to(file)
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").unlink()
    (folder / "adapter_config.json").write_text(json.dumps({**config, key: value}))
    assert key in refused(4, "--mlx", tmp_path / "mlx", "--model", case.model_dir, "--adapter", folder)
    assert not (tmp_path / "mlx").exists()
