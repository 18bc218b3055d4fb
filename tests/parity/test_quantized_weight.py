"""A slice of tests/batteries/quantisation_battery.py: codes, scales and decoded values equal those of bitsandbytes."""

import quantisation_battery

from engine import BIN


def test_codes_and_scales_equal_bitsandbytes():
    counts, messages = quantisation_battery.run(num_tensors=48, seed=2, probe=BIN / "quantization-probe")
    assert not messages, "\n".join(messages)
    for counted in ("nf4 codes, bitsandbytes: elements", "nf4 decoded, bitsandbytes: elements", "nf4 all-zero blocks",
                    "nested: codes of scales, bitsandbytes: elements", "int8 codes, bitsandbytes: elements",
                    "fp8 codes, port: elements"):
        assert counts[counted] > 0, counted
