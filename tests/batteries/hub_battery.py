"""Faults of protocol and network, for `download` and `push`: each must end with one clear sentence, the right exit code, and a whole cache
(download) or nothing half-committed (push). A quick slice runs in CI (test_download.py, test_push.py); all of them:

    LORA_TRAIN_BIN=build/dev/bin python tests/batteries/hub_battery.py      writes results/hub_battery.txt
"""

import os
import re
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import huggingface_hub

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/support"))
import fork_server  # noqa: E402
from hub_faults import (  # noqa: E402
    answer, change_bytes, change_json, cut, drop, drop_after_body, garbage, longer, no_ranges, redirect, shorter, stall, status,
    wrong_range)
from hub_server import HubServer  # noqa: E402
from hub_store import Fault, Hub, git_sha1, sha256  # noqa: E402

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
    Case("gated, no token", [], "is gated: request access", prepare=gated),
    Case("gated, token without access", [], "set HF_TOKEN to a token of that account", prepare=gated, environment={"HF_TOKEN": "hf_read"},
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
    Case("nobody there", [], "no server answers there", environment={"HF_ENDPOINT": "http://127.0.0.1:9"}, is_quick=True),
    Case("no such host", [], "has no address", environment={"HF_ENDPOINT": "http://hub.invalid"}),
    Case("no such proxy", [], "proxy name has no address", environment={"http_proxy": "http://proxy.invalid:3128"}),
    Case("plain HTTP where TLS is expected", [], "no secure connection", environment={"HF_ENDPOINT": "https://localhost:{port}"}),
    Case("endpoint is no URL", [], "expected a URL", USAGE, environment={"HF_ENDPOINT": "huggingface.co"}),
    Case("endpoint of another protocol", [], "expected a URL", USAGE, environment={"HF_ENDPOINT": "ftp://huggingface.co"}),
    Case("a login page", [Fault("revision", answer(b"<html>log in</html>", kind="text/html"))], "something that is not JSON", is_quick=True),
    Case("JSON without a commit", [Fault("revision", answer({"id": "org/model"}))], "does not seem to be a Hugging Face hub"),
    Case("commit that is a path", [Fault("revision", answer({"sha": "../../../../etc"}))], "does not seem to be a Hugging Face hub", is_quick=True),
    Case("list that is no list", [Fault("tree", answer({"files": []}))], "in a way that is not the hub's"),
    Case("list with a cut JSON", [Fault("tree", answer(b'[{"type": "file", "pa'))], "something that is not JSON"),
    Case("file without a hash", [Fault("tree", set_entry(oid=7, lfs=None))], "in a way that is not the hub's"),
    Case("file of negative size", [Fault("tree", set_entry(size=-1, lfs=None))], "in a way that is not the hub's"),
    Case("path that leads out", [Fault("tree", set_entry(path="../../../escape.safetensors"))], "in a way that is not the hub's", is_quick=True),
    Case("absolute path", [Fault("tree", set_entry(path="/etc/cron.d/x"))], "in a way that is not the hub's"),
    Case("path twice", [Fault("tree", set_entry(path="config.json"))], "in a way that is not the hub's"),
    Case("list continues elsewhere", [Fault("tree", answer([], headers={"Link": '<http://elsewhere.invalid/x>; rel="next"'}))],
         "continues its list of files on another host"),
    Case("no files", [Fault("tree", answer([]))], "has no files"),
    Case("only other formats", [], "but no .safetensors files", FORMAT, prepare=only_foreign_weights, is_quick=True),
    Case("more space than there is", [Fault("tree", set_entry(lfs={"oid": "a" * 64, "size": 1 << 60}))], "Free some space, or set HF_HOME", is_quick=True),
    Case("other bytes in a large file", [Fault("cdn", change_bytes)], "is not the hub's file", is_quick=True),
    Case("other bytes in a small file", [Fault("resolve", change_bytes)], "is not the hub's file"),
    Case("file gone from the store", [Fault("cdn", status(404, "NoSuchKey"))], "the server that holds its files refuses"),
    Case("file gone from the repository", [Fault("resolve", status(404, "gone", error_code="EntryNotFound"))], "lists a file that it does not have"),
    Case("signature expired", [Fault("cdn", status(403, "Request has expired"))], "The hub says: Request has expired"),
    Case("more bytes than the file has", [Fault("cdn", longer)], "more bytes", is_quick=True),
    Case("fewer bytes than promised", [Fault("cdn", shorter)], "fewer bytes than it promised", is_quick=True),
    Case("another range than asked for", [Fault("cdn", wrong_range)], "", OK),
    Case("no ranges", [Fault("cdn", no_ranges), Fault("resolve", no_ranges)], "", OK),
    Case("redirect to another protocol", [Fault("cdn", redirect("ftp://elsewhere.invalid/x"))], "which lora-train does not follow", is_quick=True),
    Case("redirect to a local file", [Fault("resolve", redirect("file:///etc/passwd"))], "which lora-train does not follow"),
    Case("redirects in a circle", [Fault("revision", redirect(loop))], "more than 10 redirects", is_quick=True),
    Case("redirect without a place", [Fault("revision", answer(b"", 302))], "unexpected answer"),
    Case("no answer", [Fault("revision", stall(20))], "nothing arrived for", environment={"HF_HUB_DOWNLOAD_TIMEOUT": "1", "LORA_TRAIN_HTTP_RETRIES": "0"}),
    Case("cache folder cannot be made", [], "models--org--model", prepare=read_only, is_quick=True),
    Case("teapot", [Fault("cdn", status(418, "short and stout"))], "the server that holds its files refuses"),
]


ADAPTER = {"adapter_config.json": b'{"peft_type": "LORA"}', "adapter_model.safetensors": WEIGHTS, "README.md": b"# mine\n",
           "tokenizer.json": b"t" * 9000}


def exists(public=False, owner="org"):
    def prepare(hub, folder):
        hub.add(f"{owner}/adapter", {"old.txt": b"old"}, private=not public)
    return prepare


def in_parts(hub, folder):
    hub.multipart_bytes = 30000


def without_file(name):
    return lambda hub, folder: (folder / "adapter" / name).unlink()


def first_upload(change):
    """The first object of the batch that is to be uploaded, changed."""
    def act(body):
        done = False
        for item in body["objects"]:
            if "actions" in item and not done:
                change(item)
                done = True
        return body
    return change_json(act)


def somebody_else(handler):
    """Another commit comes between."""
    handler.hub.repositories["model", "org/adapter"].commit({"theirs": b"x"}, "main", "theirs")


def set_upload(**changes):
    return first_upload(lambda item: item["actions"]["upload"].update(changes))


def set_header(**changes):
    return first_upload(lambda item: item["actions"]["upload"]["header"].update(changes))


PUSH_CASES = [
    Case("no token", [], "set HF_TOKEN", environment={"HF_TOKEN": ""}, is_quick=True),
    Case("token unknown", [], "does not accept the token", environment={"HF_TOKEN": "hf_unknown"}, is_quick=True),
    Case("token that may only read", [], "needs write permission", environment={"HF_TOKEN": "hf_read"}, is_quick=True),
    Case("a name of somebody else", [], "needs write permission", arguments=("{folder}/adapter", "stranger/adapter")),
    Case("somebody else's repository", [], "access is denied", arguments=("{folder}/adapter", "stranger/adapter"),
         prepare=exists(owner="stranger"), is_quick=True),
    Case("name taken meanwhile, not to be seen", [Fault("create", status(409, "You already created this model repo"))],
         "the name is taken", is_quick=True),
    Case("public already, without --public", [], "everyone would see", prepare=exists(public=True), is_quick=True),
    Case("created public by an old hub", [Fault("create", lambda handler: handler.hub.add("org/adapter", {}) and handler.send(200, {}))],
         "made the repository public"),
    Case("too many repositories", [Fault("create", status(429, "rate limit for creating"))], "too many requests"),
    Case("quota at creation", [Fault("create", status(402, "Payment required"))], "The hub says: Payment required"),
    Case("server error at creation", [Fault("create", status(500))], "the server has failed"),
    Case("connection lost before creation", [Fault("revision", drop)], "the connection broke"),
    Case("connection lost at creation", [Fault("create", drop)], "the connection broke"),
    Case("answer of the creation lost once", [Fault("create", drop_after_body, times=1)], "", OK, is_quick=True),
    Case("a name that is refused", [Fault("create", status(400, "Invalid repo name"))], "The hub says: Invalid repo name"),
    Case("login page at creation", [Fault("create", answer(b"<html>", kind="text/html"))], "something that is not JSON"),
    Case("branch refused", [Fault("branch", status(403, "no branches"))], "access is denied",
         arguments=("{folder}/adapter", "org/adapter", "--revision", "v1")),
    Case("list is no list", [Fault("tree", answer({"a": 1}))], "in a way that is not the hub's"),
    Case("server error at preupload", [Fault("preupload", status(500))], "the server has failed"),
    Case("connection lost at preupload", [Fault("preupload", drop)], "the connection broke", is_quick=True),
    Case("preupload without modes", [Fault("preupload", answer({"files": []}))], "does not say how to upload"),
    Case("preupload with a mode unknown", [Fault("preupload", change_json(lambda body: {"files": [
        {**file, "uploadMode": "pigeon"} for file in body["files"]]}))], "does not say how to upload"),
    Case("preupload forbidden", [Fault("preupload", status(403, "read only"))], "access is denied"),
    Case("batch refused", [Fault("batch", status(403, "You need write access"))], "access is denied"),
    Case("batch with an error of a file", [Fault("batch", first_upload(lambda item: item.update(
        error={"code": 422, "message": "storage quota exceeded"})))], "storage quota exceeded", is_quick=True),
    Case("batch without objects", [Fault("batch", answer({"transfer": "basic"}))], "gives no valid instructions", is_quick=True),
    Case("batch with other objects", [Fault("batch", answer({"objects": []}))], "gives no valid instructions"),
    Case("batch with an address of another protocol", [Fault("batch", set_upload(href="file:///etc/passwd"))], "gives no valid instructions"),
    Case("batch with an address that is no text", [Fault("batch", set_upload(href=7))], "gives no valid instructions"),
    Case("batch cut", [Fault("batch", cut(40))], "the connection broke"),
    Case("server error at batch", [Fault("batch", status(503))], "the server has failed"),
    Case("store refuses", [Fault("put", status(403, "SignatureDoesNotMatch"))], "the hub's store did not accept", is_quick=True),
    Case("store fails", [Fault("put", status(500))], "the hub's store did not accept"),
    Case("store fails once", [Fault("put", status(500), times=1)], "", OK, is_quick=True),
    Case("connection lost in the upload", [Fault("put", drop)], "the connection broke", is_quick=True),
    Case("connection lost once in the upload", [Fault("put", drop, times=1)], "", OK),
    Case("store is full", [Fault("put", status(507, "Insufficient Storage"))], "answers 507"),
    Case("verification fails", [Fault("verify", status(404, "Object does not exist"))], "the hub's store did not accept"),
    Case("connection lost at verification", [Fault("verify", drop)], "the connection broke"),
    Case("a part is refused", [Fault("part", status(403), skip=1)], "the hub's store did not accept", prepare=in_parts, is_quick=True),
    Case("a part is lost once", [Fault("part", drop, times=1, skip=2)], "", OK, prepare=in_parts, is_quick=True),
    Case("connection lost in a part", [Fault("part", drop, skip=1)], "the connection broke", prepare=in_parts),
    Case("a part without an ETag", [Fault("part", answer(b"", 200))], "gives no valid instructions", prepare=in_parts),
    Case("parts that do not cover the file", [Fault("batch", set_header(chunk_size="7"))], "gives no valid instructions", prepare=in_parts),
    Case("parts of size zero", [Fault("batch", set_header(chunk_size="0"))], "gives no valid instructions", prepare=in_parts),
    Case("completion refused", [Fault("complete", status(400, "parts do not fit"))], "the hub's store did not accept", prepare=in_parts),
    Case("connection lost at completion", [Fault("complete", drop)], "the connection broke", prepare=in_parts),
    Case("commit refused", [Fault("commit", status(403, "no rights"))], "refuses the commit", is_quick=True),
    Case("card with bad metadata", [Fault("commit", status(400, "Invalid metadata in README.md"))], "The hub says: Invalid metadata"),
    Case("quota at the commit", [Fault("commit", status(413, "repository storage limit reached"))], "storage limit reached"),
    Case("somebody else commits meanwhile", [Fault("commit", somebody_else)], "someone else changed", prepare=exists(), is_quick=True),
    Case("connection lost before the commit", [Fault("commit", drop)], "did not make the commit", is_quick=True),
    Case("answer of the commit lost", [Fault("commit", drop_after_body)], "", OK, is_quick=True),
    Case("server error at the commit", [Fault("commit", status(500))], "did not make the commit"),
    Case("hub is gone after the commit", [Fault("commit", drop_after_body), Fault("revision", drop, skip=4)], "which may have worked"),
    Case("no HTTP there", [Fault("revision", garbage)], "does not speak HTTP"),
    Case("nobody there", [], "no server answers there", environment={"HF_ENDPOINT": "http://127.0.0.1:9"}),
    Case("offline", [], "HF_HUB_OFFLINE", environment={"HF_HUB_OFFLINE": "1"}),
    Case("a folder that is nothing", [], "is not an adapter", FORMAT, prepare=without_file("adapter_config.json"), is_quick=True),
    Case("a folder that is not there", [], "no such folder", FORMAT, arguments=("{folder}/nowhere", "org/adapter")),
    Case("a name that is none", [], "expected org/name", USAGE, arguments=("{folder}/adapter", "adapter"), is_quick=True),
]


def run_case(command, case, folder, hub):
    """Runs the case; returns its sentence."""
    with HubServer(hub) as server:
        if case.prepare:
            case.prepare(hub, folder)
        hub.faults = [Fault(fault.step, fault.act, fault.times, fault.skip) for fault in case.faults]
        environment = environment_of(folder, server.url, **case.environment)
        environment["HF_ENDPOINT"] = environment["HF_ENDPOINT"].format(port=server.url.rsplit(":", 1)[1])
        arguments = [str(argument).format(folder=folder) for argument in case.arguments]
        done = fork_server.run(BINARY, command, *arguments, environment=environment)
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


def write_adapter(folder):
    (folder / "adapter").mkdir()
    for name, data in ADAPTER.items():
        (folder / "adapter" / name).write_bytes(data)


def run_push_case(case, folder):
    write_adapter(folder)
    hub = Hub()
    if case.arguments == ("org/model",):
        case = replace(case, arguments=("{folder}/adapter", "org/adapter"))
    case = replace(case, environment={"HF_TOKEN": "hf_write", **case.environment})
    sentence = run_case("push", case, folder, hub)
    repository = hub.repositories.get(("model", "org/adapter"))
    ours = [message for message in repository.messages if "lora-train" in message] if repository else []
    files = repository.commits[repository.references["main"]] if repository else {}
    if case.code == OK:
        assert len(ours) == 1 and ADAPTER.items() <= files.items(), f"{case.name}: {ours}, {sorted(files)}"
        assert repository.private
    elif case.name != "hub is gone after the commit":
        assert not ours and not ADAPTER.keys() & files.keys(), f"{case.name}: half-committed {sorted(files)}"
    return sentence


def run_all(title, cases, run):
    def one(case):
        with tempfile.TemporaryDirectory(prefix="lora-train-hub-") as folder:
            try:
                text = run(case, Path(folder)).replace(folder, "FOLDER")
                return True, re.sub(r", but .* are free there", ", but N GiB are free there", re.sub(r"(localhost|127.0.0.1):\d{4,}", r"\1:PORT", text))
            except AssertionError as error:
                return False, f"FAILED: {error}"

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(one, cases))
    lines = [f"{title}: {sum(good for good, _ in results)} of {len(cases)} cases as they should be"]
    return lines + [f"  {case.name} -> exit {case.code}: {text}" for case, (_, text) in zip(cases, results)]


def main():
    lines = run_all("download", DOWNLOAD_CASES, run_download_case)
    lines += run_all("push", PUSH_CASES, run_push_case)
    text = "\n".join(lines) + "\n"
    (ROOT / "tests/batteries/results/hub_battery.txt").write_text(text)
    print(text)
    return "FAILED" in text


if __name__ == "__main__":
    sys.exit(main())
