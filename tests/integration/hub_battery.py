"""Faults of protocol and network, for `download` and `push`: each must end with one clear sentence, the right exit code, and a whole cache
(download) or nothing half-committed (push). A quick slice runs in CI (test_download.py, test_push.py); all of them:

    LORA_TRAIN_BIN=build/dev/bin python tests/integration/hub_battery.py      writes hub_battery_results.txt
"""

import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import huggingface_hub

from hub_server import (Fault, Hub, HubServer, answer, change_bytes, change_json, cut, drop, garbage, git_sha1, longer, no_ranges,
                        redirect, sha256, shorter, stall, status, wrong_range)

ROOT = Path(__file__).resolve().parents[2]
BINARY = Path(os.environ.get("LORA_TRAIN_BIN", ROOT / "build/dev/bin")) / "lora-train"
OK, USAGE, FORMAT, IO = 0, 2, 4, 5
WEIGHTS = bytes(range(256)) * 400
MODEL = {"config.json": b'{"model_type": "qwen2"}', "tokenizer.json": b"{}", "model.safetensors": WEIGHTS}


@dataclass
class Case:
    name: str
    faults: list
    words: str  # in the sentence
    code: int = IO
    arguments: tuple = ("org/model",)
    environment: dict = field(default_factory=dict)
    prepare: object = None  # gets the hub and the folder
    is_quick: bool = False


def environment_of(folder, url, **more):
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "TRANSFORMERS_"))}
    return clean | {"HF_HOME": str(folder / "hf"), "HF_ENDPOINT": url, "LORA_TRAIN_HTTP_RETRIES": "1", "NO_COLOR": "1"} | more


def assert_cache_is_whole(folder):
    """Every blob is what its name says, every link leads to one, every reference to a snapshot; and huggingface_hub reads it."""
    cache = folder / "hf" / "hub"
    if not cache.is_dir():
        return
    for repository in (path for path in cache.iterdir() if path.is_dir()):
        for blob in repository.glob("blobs/*"):
            if not blob.name.endswith(".incomplete"):
                data = blob.read_bytes()
                assert blob.name in (sha256(data), git_sha1(data)), f"{blob} holds other bytes"
        for path in repository.glob("snapshots/**/*"):
            assert path.is_dir() or (path.is_symlink() and path.exists()), f"{path} leads nowhere"
        for reference in (path for path in repository.glob("refs/**/*") if path.is_file()):
            assert (repository / "snapshots" / reference.read_text()).is_dir(), f"{reference} leads nowhere"
    for warning in huggingface_hub.scan_cache_dir(cache).warnings:
        assert "Snapshots dir doesn't exist" in str(warning) or "not a directory" in str(warning), warning  # nothing has arrived


def assert_one_sentence(stderr, words):
    errors = [line for line in stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and words in errors[0], f"expected one error with {words!r}:\n{stderr}"
    assert "signature" not in stderr and "exception" not in stderr, errors[0]
    return errors[0]


def read_only(hub, folder):
    (folder / "hf" / "hub").mkdir(parents=True)
    (folder / "hf" / "hub" / "models--org--model").write_text("a file in the way")


def private(hub, folder):
    hub.repositories["model", "org/model"].private = True


def gated(hub, folder):
    hub.repositories["model", "org/model"].gated = True


def only_foreign_weights(hub, folder):
    hub.add("org/model", {"config.json": b"{}", "pytorch_model.bin": b"p" * 9000})


def set_entry(**changes):
    """The listed file with weights, changed."""
    def change(entries):
        return [{**entry, **changes} if entry["path"] == "model.safetensors" else entry for entry in entries]
    return change_json(change)


def loop(handler):
    return handler.server.url + handler.path


DOWNLOAD_CASES = [
    Case("no such repository", [], "there is no such model", arguments=("org/none",), environment={"HF_TOKEN": "hf_read"}, is_quick=True),
    Case("no such repository, no token", [], "there is no such model", arguments=("org/none",)),
    Case("no such revision", [], "has no revision v9", arguments=("org/model@v9",), is_quick=True),
    Case("a dataset without --dataset", [], "a dataset needs --dataset", arguments=("org/rows",),
         prepare=lambda hub, _: hub.add("org/rows", {"a.jsonl": b"{}"}, "dataset"), environment={"HF_TOKEN": "hf_read"}),
    Case("private, no token", [], "set HF_TOKEN", prepare=private, is_quick=True),
    Case("gated, no token", [], "is gated: ask for access", prepare=gated),
    Case("gated, token without access", [], "with the account of your token", prepare=gated, environment={"HF_TOKEN": "hf_read"},
         is_quick=True),
    Case("token unknown", [], "does not accept the token", environment={"HF_TOKEN": "hf_unknown"}, is_quick=True),
    Case("token with a line end in it", [], "control character", USAGE, environment={"HF_TOKEN": "hf_bad\x01x"}),
    Case("forbidden", [Fault("revision", status(403, "no"))], "access is denied"),
    Case("access disabled", [Fault("tree", status(403, "Access to this resource is disabled."))], "The hub says: Access to this resource"),
    Case("too many requests", [Fault("revision", status(429, "slow down"))], "too many requests"),
    Case("too many requests, for an hour", [Fault("cdn", status(429, headers={"Retry-After": "3600"}))], "asks to wait 3600 s", is_quick=True),
    Case("server error", [Fault("revision", status(500))], "the server has failed"),
    Case("gateway error at the list", [Fault("tree", answer(b"<html>Bad Gateway</html>", 502, kind="text/html"))], "the server has failed"),
    Case("server error at a file", [Fault("resolve", status(503))], "the server has failed"),
    Case("server error once", [Fault("revision", status(500), times=1), Fault("cdn", status(502), times=1)], "", OK, is_quick=True),
    Case("connection lost before the answer", [Fault("revision", drop)], "the connection broke"),
    Case("connection lost once at every step", [Fault(step, drop, times=1) for step in ("revision", "tree", "cdn")], "", OK, is_quick=True),
    Case("connection lost in the list", [Fault("tree", cut(20))], "the connection broke"),
    Case("connection lost in a small file", [Fault("resolve", cut(1))], "the connection broke",
         environment={"LORA_TRAIN_HTTP_RETRIES": "0"}),
    Case("connection lost in a large file", [Fault("cdn", cut(1000), times=1)], "the connection broke",
         environment={"LORA_TRAIN_HTTP_RETRIES": "0"}),
    Case("no HTTP there", [Fault("revision", garbage)], "does not speak HTTP", is_quick=True),
    Case("nobody there", [], "nobody answers there", environment={"HF_ENDPOINT": "http://127.0.0.1:9"}, is_quick=True),
    Case("no such host", [], "has no address", environment={"HF_ENDPOINT": "http://hub.invalid"}),
    Case("no such proxy", [], "proxy has no address", environment={"http_proxy": "http://proxy.invalid:3128"}),
    Case("plain HTTP where TLS is expected", [], "no secure connection", environment={"HF_ENDPOINT": "https://localhost:{port}"}),
    Case("endpoint is no URL", [], "expected a URL", USAGE, environment={"HF_ENDPOINT": "huggingface.co"}),
    Case("endpoint of another protocol", [], "expected a URL", USAGE, environment={"HF_ENDPOINT": "ftp://huggingface.co"}),
    Case("a login page", [Fault("revision", answer(b"<html>log in</html>", kind="text/html"))], "something that is not JSON", is_quick=True),
    Case("JSON without a commit", [Fault("revision", answer({"id": "org/model"}))], "seems to be no Hugging Face hub"),
    Case("commit that is a path", [Fault("revision", answer({"sha": "../../../../etc"}))], "seems to be no Hugging Face hub", is_quick=True),
    Case("list that is no list", [Fault("tree", answer({"files": []}))], "in a way that is not the hub's"),
    Case("list with a cut JSON", [Fault("tree", answer(b'[{"type": "file", "pa'))], "something that is not JSON"),
    Case("file without a hash", [Fault("tree", set_entry(oid=7, lfs=None))], "in a way that is not the hub's"),
    Case("file of negative size", [Fault("tree", set_entry(size=-1))], "in a way that is not the hub's"),
    Case("path that leads out", [Fault("tree", set_entry(path="../../../escape.safetensors"))], "in a way that is not the hub's", is_quick=True),
    Case("absolute path", [Fault("tree", set_entry(path="/etc/cron.d/x"))], "in a way that is not the hub's"),
    Case("path twice", [Fault("tree", set_entry(path="config.json"))], "in a way that is not the hub's"),
    Case("list continues elsewhere", [Fault("tree", answer([], headers={"Link": '<http://elsewhere.invalid/x>; rel="next"'}))],
         "continues its list of files on another host"),
    Case("no files", [Fault("tree", answer([]))], "has no files"),
    Case("only other formats", [], "has no .safetensors files", FORMAT, prepare=only_foreign_weights, is_quick=True),
    Case("more space than there is", [Fault("tree", set_entry(lfs={"oid": "a" * 64, "size": 1 << 60}))], "Free some, or set HF_HOME", is_quick=True),
    Case("other bytes in a large file", [Fault("cdn", change_bytes)], "is not the file of the hub", is_quick=True),
    Case("other bytes in a small file", [Fault("resolve", change_bytes)], "is not the file of the hub"),
    Case("file gone from the store", [Fault("cdn", status(404, "NoSuchKey"))], "the server that holds its files refuses"),
    Case("file gone from the repository", [Fault("resolve", status(404, "gone", error_code="EntryNotFound"))], "lists a file that it does not have"),
    Case("signature expired", [Fault("cdn", status(403, "Request has expired"))], "The hub says: Request has expired"),
    Case("more bytes than the file has", [Fault("cdn", longer)], "more bytes", is_quick=True),
    Case("fewer bytes than promised", [Fault("cdn", shorter)], "fewer bytes than it promised", is_quick=True),
    Case("another range than asked for", [Fault("cdn", wrong_range)], "", OK),
    Case("no ranges", [Fault("cdn", no_ranges), Fault("resolve", no_ranges)], "", OK),
    Case("redirect to another protocol", [Fault("cdn", redirect("ftp://elsewhere.invalid/x"))], "where lora-train does not go", is_quick=True),
    Case("redirect to a local file", [Fault("resolve", redirect("file:///etc/passwd"))], "where lora-train does not go"),
    Case("redirects in a circle", [Fault("revision", redirect(loop))], "more than 10 redirects", is_quick=True),
    Case("redirect without a place", [Fault("revision", answer(b"", 302))], "unexpected answer"),
    Case("no answer", [Fault("revision", stall(20))], "nothing came for", environment={"HF_HUB_DOWNLOAD_TIMEOUT": "1", "LORA_TRAIN_HTTP_RETRIES": "0"}),
    Case("cache folder cannot be made", [], "models--org--model", prepare=read_only, is_quick=True),
    Case("teapot", [Fault("cdn", status(418, "short and stout"))], "unexpected answer"),
]


def run_case(command, case, folder, hub):
    """Runs the case; returns its sentence."""
    with HubServer(hub) as server:
        if case.prepare:
            case.prepare(hub, folder)
        hub.faults = [Fault(fault.step, fault.act, fault.times, fault.skip) for fault in case.faults]
        environment = environment_of(folder, server.url, **case.environment)
        environment["HF_ENDPOINT"] = environment["HF_ENDPOINT"].format(port=server.url.rsplit(":", 1)[1])
        done = subprocess.run([BINARY, command, *map(str, case.arguments)], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == case.code, f"{case.name}: exit {done.returncode}\n{done.stderr}"
    assert not hub.leaks, f"{case.name}: the token went elsewhere: {hub.leaks}"
    return assert_one_sentence(done.stderr, case.words) if case.code else "done"


def run_download_case(case, folder):
    hub = Hub()
    hub.add("org/model", MODEL)
    sentence = run_case("download", case, folder, hub)
    assert_cache_is_whole(folder)
    snapshots = list((folder / "hf/hub/models--org--model/snapshots").glob("*/*"))
    assert case.code != OK or len(snapshots) == len(MODEL)
    return sentence


def run_all(title, cases, run):
    def one(case):
        with tempfile.TemporaryDirectory(prefix="lora-train-hub-") as folder:
            try:
                return True, run(case, Path(folder)).replace(folder, "FOLDER")
            except AssertionError as error:
                return False, f"FAILED: {error}"

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(one, cases))
    lines = [f"{title}: {sum(good for good, _ in results)} of {len(cases)} cases as they should be"]
    return lines + [f"  {case.name} -> exit {case.code}: {text}" for case, (_, text) in zip(cases, results)]


def main():
    lines = run_all("download", DOWNLOAD_CASES, run_download_case)
    text = "\n".join(lines) + "\n"
    Path(__file__).with_name("hub_battery_results.txt").write_text(text)
    print(text)
    return "FAILED" in text


if __name__ == "__main__":
    sys.exit(main())
