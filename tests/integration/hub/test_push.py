"""`push` against a hub in this process: what arrives there, and what happens when something fails (the faults: hub_battery.py)."""

import json
import subprocess
import sys
from pathlib import Path

import fork_server
import pytest

from command import BINARY, Run, train_tiny_math
from hub_battery import ADAPTER, PUSH_CASES, WEIGHTS, environment_of, run_push_case, write_adapter
from hub_server import HubServer
from hub_store import Hub

USAGE, IO = 2, 5


class Setup:
    def __init__(self, folder, server, hub):
        self.folder, self.hub = folder, hub
        self.environment = environment_of(folder, server.url, HF_TOKEN="hf_write", HF_HUB_DISABLE_XET="1")

    def push(self, *arguments, **environment):
        done = fork_server.run(BINARY, "push", *arguments, environment={**self.environment, **environment})
        return Run(("push", *arguments), done)

    def python(self, code):
        return subprocess.run([sys.executable, "-c", code], env=self.environment, check=True, stdout=subprocess.PIPE, text=True).stdout

    def repository(self, name="org/adapter"):
        return self.hub.repositories["model", name]

    def files(self, name="org/adapter", branch="main"):
        return self.repository(name).commits[self.repository(name).references[branch]]


@pytest.fixture
def setup(tmp_path):
    write_adapter(tmp_path)
    hub = Hub()
    with HubServer(hub) as server:
        yield Setup(tmp_path, server, hub)


def test_an_adapter_becomes_a_private_repository_with_one_commit(setup):
    run = setup.push(setup.folder / "adapter", "org/adapter", "--message", "by lora-train")
    assert run.code == 0 and run.stdout.endswith("/org/adapter\n"), run
    assert setup.repository().private and setup.repository().messages == ["first", "by lora-train"]
    assert ADAPTER.items() <= setup.files().items() and not setup.hub.leaks
    assert setup.hub.steps().count("commit") == 1


def test_the_client_of_the_hub_pushes_the_same_and_reads_what_was_pushed(setup):
    """Which shows that this hub speaks the protocol of its client."""
    setup.python("import huggingface_hub as h\napi = h.HfApi()\napi.create_repo('org/theirs', private=True)\n"
                 f"api.upload_folder(repo_id='org/theirs', folder_path={str(setup.folder / 'adapter')!r})")
    assert setup.push(setup.folder / "adapter", "org/adapter").code == 0
    assert setup.files("org/theirs") == setup.files("org/adapter")
    assert setup.push(setup.folder / "adapter", "org/theirs", "--json").json_lines()[0]["num_files"] == 0
    folder = setup.python("import huggingface_hub as h\nprint(h.snapshot_download('org/adapter'), end='')")
    assert ADAPTER.items() <= {path.name: path.read_bytes() for path in Path(folder).iterdir()}.items()


def test_a_second_push_sends_what_changed(setup):
    setup.push(setup.folder / "adapter", "org/adapter")
    assert "no commit was made" in setup.push(setup.folder / "adapter", "org/adapter").stderr
    (setup.folder / "adapter/tokenizer.json").write_bytes(b"changed")
    setup.hub.requests.clear()
    run = setup.push(setup.folder / "adapter", "org/adapter", "--json")
    assert run.json_lines()[0]["num_files"] == 1 and "put" not in setup.hub.steps(), run
    assert setup.files()["tokenizer.json"] == b"changed" and setup.files()["adapter_model.safetensors"] == WEIGHTS


def test_large_files_go_in_parts(setup):
    setup.hub.multipart_bytes = 30000
    assert setup.push(setup.folder / "adapter", "org/adapter").code == 0
    assert setup.hub.steps().count("part") == -(-len(WEIGHTS) // 30000) and setup.files()["adapter_model.safetensors"] == WEIGHTS


def test_public_and_branches_are_asked_for(setup):
    assert setup.push(setup.folder / "adapter", "org/adapter", "--public", "--revision", "v1").code == 0
    assert not setup.repository().private
    assert "README.md" in setup.files(branch="v1") and "README.md" not in setup.files()
    assert setup.push(setup.folder / "adapter", "org/adapter").code == IO, "into a public repository without --public"


def test_a_dry_run_lists_the_files_and_sends_nothing(setup):
    (setup.folder / "adapter/optimizer.safetensors").write_bytes(b"o")
    (setup.folder / "adapter/.hidden").write_bytes(b"h")
    run = setup.push(setup.folder / "adapter", "org/adapter", "--dry-run", "--json", HF_TOKEN="")
    assert run.code == 0 and {line["path"] for line in run.json_lines()} == set(ADAPTER), run
    assert "not uploaded: .hidden, optimizer.safetensors" in run.stderr and not setup.hub.requests


def test_a_run_gives_its_adapter_and_the_card_names_the_repository(setup):
    run_folder = train_tiny_math(setup.folder)
    run = setup.push(run_folder, "org/adapter")
    assert run.code == 0 and "adapter_model.safetensors" in setup.files(), run
    card = setup.files()["README.md"].decode()
    assert 'PeftModel.from_pretrained(base, "org/adapter")' in card and str(setup.folder) not in card.split("## Use")[1]
    assert json.loads(setup.files()["adapter_config.json"])["peft_type"] == "LORA"


def test_usage(setup):
    adapter = setup.folder / "adapter"
    for arguments in ([], [adapter], [adapter, "org/adapter@v1"], [adapter, "org/adapter", "--revision", "../x"]):
        run = setup.push(*arguments)
        assert run.code == USAGE and "expected" in run.stderr and not setup.hub.requests, run


@pytest.mark.parametrize("case", [case for case in PUSH_CASES if case.is_quick], ids=lambda case: case.name)
def test_faults(case, tmp_path):
    run_push_case(case, tmp_path)
