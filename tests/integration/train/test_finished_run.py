"""The same command over a run that is finished."""

import json
import re
import shlex

import pytest

from command import ROOT, lora_train

USAGE = 2


def test_data_that_changed_since_are_named(setup):
    assert setup.train(max_steps=2).code == 0
    run = setup.train(max_steps=2)
    assert run.code == 0 and "already complete" in run.stderr, run
    rows = setup.rows_file.read_text()
    first = json.loads(rows.splitlines()[0])
    setup.rows_file.write_text(rows + json.dumps(first) + "\n")
    before = setup.summary()
    run = setup.train(max_steps=2)
    assert run.code == USAGE and "is complete, but was trained with different data" in run.stderr and "--overwrite" in run.stderr, run
    assert setup.summary() == before
    run = setup.train("--allow-changed", "datasets", max_steps=2)
    assert run.code == 0 and "already complete" in run.stderr, run
    setup.rows_file.write_text(rows)
    assert setup.train(max_steps=2).code == 0
    setup.rows_file.unlink()
    run = setup.train(max_steps=2)
    assert run.code == 0 and "already complete" in run.stderr, run


def test_check_misses_a_checkpoint_that_is_not_there(setup):
    for folder in (setup.output_dir, setup.folder / "other"):
        run = lora_train("check", setup.write_profile(resume_from_checkpoint=str(folder / "checkpoint-7")))
        assert run.code and "checkpoint-7: no such folder" in run.stderr, run


@pytest.mark.parametrize("data, said", [({}, "try it with "), ({"val_set_size": 4}, "measure it with ")])
def test_the_line_after_a_merge_of_a_quantised_run_works(data, said, tmp_path):
    example = ROOT / "examples/tiny-math"
    settings = [f"{key}={value}" for key, value in data.items()]
    run = lora_train("train", "--model", example / "model", "--train-data", example / "heldout.jsonl", "--output-dir", tmp_path / "run", "device=cpu",
                     "base_precision=nf4", "max_steps=1", "global_batch_size=1", "micro_batch_size=1", "max_seq_len=256", "report_to=none", *settings)
    assert run.code == 0, run
    merged = lora_train("merge", "--adapter", tmp_path / "run", "--output-dir", tmp_path / "merged")
    [line] = re.findall(f"{said}(lora-train .*)", merged.stderr)
    done = lora_train(*shlex.split(line)[1:], data=b"1 + 1\n")
    assert done.code == 0, done


def test_examples_of_an_array_on_one_line_have_their_number(tmp_path):
    (tmp_path / "rows.json").write_text(json.dumps([{"prompt": f"{i} + 1", "completion": "2"} for i in range(3)]))
    run = lora_train("tokenize", f"model={ROOT / 'examples/tiny-math/model'}", "datasets=[rows.json]", "max_seq_len=64", "dataset_prepared_path=null",
                     "--show", "3", "--json", cwd=tmp_path)
    assert [line["source"] for line in run.json_lines()] == ["rows.json:1", "rows.json:1, element 2", "rows.json:1, element 3"], run


def test_an_adapter_is_no_teacher_and_an_input_is_prompts(tmp_path):
    folder = tmp_path / "run"
    (folder / "adapter").mkdir(parents=True)
    (folder / "adapter/adapter_config.json").write_text("{}")
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "1 + 1"}\n' * 8)
    run = lora_train("distill", "--teacher", folder, f"model={ROOT / 'examples/tiny-math/model'}", "datasets=[prompts.jsonl]", "output_dir=out", cwd=tmp_path)
    assert run.code == USAGE and f"lora-train merge --adapter {folder} --output-dir {folder}-merged" in run.stderr, run
    run = lora_train("generate", "--model", "m", "--input", "prompts.jsonl", cwd=tmp_path)
    assert run.code == USAGE and '--input: unknown flag. Did you mean "--prompts"?' in run.stderr, run
