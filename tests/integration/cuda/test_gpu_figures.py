"""What NVML says of a GPU, in the outputs of a run: on the stand-in for the CUDA runtime, with the management library of the fake
driver (tests/programs/fake_driver), which reads what FAKE_SENSORS says."""

import json
import re

import pytest

from command import BINARY
from stand_in_gpu import NEEDS_STAND_IN, STAND_IN, on_stand_in

pytestmark = NEEDS_STAND_IN


def with_nvml(sensors):
    """NVML of the fake driver, which knows the stand-in GPUs, and what it reads of them."""
    return dict(FAKE_UUID="07" * 15 + "00", FAKE_SENSORS=sensors, FAKE_GPUS="Stand-in GPU|8.0|143360|143000|0|",
                LD_LIBRARY_PATH=f"{STAND_IN}:{BINARY.parent / 'fake_driver'}")


ONE_WATT_HOUR = "utilization=97;power=600000;energy=0,3600000;temperature=65;clock=1980;throttle=4"


def test_the_figures_of_the_gpu_are_in_every_output_and_add_up(setup):
    for process in (1, 2):
        run, _ = on_stand_in(setup, with_nvml(ONE_WATT_HOUR), max_steps=3 * process, save_steps=3, report_to=["tensorboard"])
        assert run.code == 0 and ("resumed from" in run.stderr) == (process == 2), run
        summary = setup.summary()
        assert summary["energy_wh"] == pytest.approx(process) and summary["mean_gpu_utilization"] == pytest.approx(97)
        assert summary["cpu_s"] > 0 and f"; {process}.00 Wh; GPU busy 97% of the time" in run.stderr, run
        assert re.search(r"^step \d/\d .* tok/s gpu 97%, ", run.stderr, re.MULTILINE), run
    train = setup.events("train")
    assert [line["step"] for line in train] == [1, 2, 3, 4, 5, 6]
    for line in train:
        found = [line[f"gpu_{name}"] for name in ("utilization", "power_w", "temperature_c", "clock_mhz", "throttle", "memory_used_gib")]
        assert found == [97, 600, 65, 1980, ["power_cap"], 360 / 1024], line
    assert [line["energy_wh"] for line in setup.events("end")] == pytest.approx([1, 2])
    state = json.loads((setup.output_dir / "checkpoint-6/trainer_state.json").read_text())["lora_train"]
    assert 0.9 < state["energy_wh"] <= 2 and state["cpu_s"] > 0
    scalars = b"".join(path.read_bytes() for path in (setup.output_dir / "tensorboard").iterdir())
    for name in ("utilization", "power_w", "temperature_c", "clock_mhz"):
        assert b"train/gpu_" + name.encode() in scalars, name
