"""A slice of tests/batteries/tokenizer_battery.py: the ids of every tokenizer equal those of its reference."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import tokenizer_battery
from command import BINARY, ROOT

DATA = Path(os.environ.get("LORA_TRAIN_TEST_DATA", ROOT / "../shared/data"))
PROBE = BINARY.parent / "tokenizer-probe"
NAMES = list(tokenizer_battery.find_tokenizers(DATA))


@pytest.mark.parametrize("name", NAMES)
def test_ids_and_texts_equal_the_reference(name, capfd):
    reference, file = tokenizer_battery.find_tokenizers(DATA)[name]
    if file is None:
        pytest.skip(f"the file of {name} is not here: no mistral-common, or LORA_TRAIN_TEST_DATA is not set")
    if not DATA.exists():
        pytest.skip(f"no test data in {DATA}; set LORA_TRAIN_TEST_DATA")
    args = SimpleNamespace(strings=1500, adversarial=300, seed=20, data=DATA, probe=PROBE)
    differences, line = tokenizer_battery.run_one(name, reference, file, args)
    assert differences == 0, capfd.readouterr().out + line
