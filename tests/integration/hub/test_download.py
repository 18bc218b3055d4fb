"""`download` against a hub in this process: what it leaves in the cache, what huggingface_hub and transformers read there, and what
happens when something fails. tests/batteries/hub_battery.py has the faults."""

import fcntl
import json
import os
import shutil
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import time

import pytest

from command import BINARY, ROOT, Run, expect_end
from hub_battery import DOWNLOAD_CASES, assert_cache_is_whole, assert_one_sentence, environment_of, run_download_case
from hub_faults import cut, no_ranges, stall, status
from hub_server import HubServer
from hub_store import Fault, Hub, sha256

IO = 5
TINY = {path.name: path.read_bytes() for path in sorted((ROOT / "examples/tiny-math/model").iterdir())}
EXTRA = {"generation_config.json": b"{}", "README.md": b"# a model\n", "additional_chat_templates/tools.jinja": b"{{ messages }}"}
SKIPPED = {"pytorch_model.bin": b"p" * 5000, "onnx/model.onnx": b"o" * 5000, "consolidated.safetensors": b"c" * 5000, ".gitattributes": b""}
MODEL = TINY | EXTRA | SKIPPED


class Setup:
    def __init__(self, folder, server, hub):
        self.folder, self.server, self.hub = folder, server, hub
        self.environment = environment_of(folder, server.url, HF_HUB_DISABLE_XET="1")

    def start(self, *arguments, **environment):
        return subprocess.Popen([BINARY, *map(str, arguments)], env={**self.environment, **environment},
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def run(self, *arguments, **environment):
        process = self.start(*arguments, **environment)
        stdout, stderr = process.communicate(timeout=120)
        return Run(arguments, subprocess.CompletedProcess(arguments, process.returncode, stdout, stderr))

    def python(self, code, **environment):
        return subprocess.run([sys.executable, "-c", code], env={**self.environment, **environment}, stdout=subprocess.PIPE,
                              check=True, text=True).stdout

    def cache(self, name="models--org--model"):
        return self.folder / "hf" / "hub" / name

    def commit(self):
        return self.hub.repositories["model", "org/model"].references["main"]

    def download_big(self, data):
        """Of org/big, whose weights are then there."""
        run = self.run("download", "org/big", "--json")
        assert run.code == 0 and (self.cache("models--org--big") / "blobs" / sha256(data)).read_bytes() == data, run
        return run


@pytest.fixture
def setup(tmp_path):
    hub = Hub()
    hub.add("org/model", MODEL)
    with HubServer(hub) as server:
        yield Setup(tmp_path, server, hub)


def test_a_model_lies_in_the_cache_as_the_client_of_the_hub_leaves_it(setup):
    run = setup.run("download", "org/model")
    assert run.code == 0, run
    snapshot = setup.cache() / "snapshots" / setup.commit()
    assert run.stdout == f"{snapshot}\n" and "pytorch_model.bin" in run.stderr and "--all" in run.stderr
    assert (setup.cache() / "refs/main").read_text() == setup.commit()
    files = {str(path.relative_to(snapshot)): path for path in snapshot.rglob("*") if not path.is_dir()}
    assert set(files) == set(TINY | EXTRA)
    for name, path in files.items():
        assert path.is_symlink() and not os.readlink(path).startswith("/"), name
        assert path.read_bytes() == MODEL[name]
    assert os.readlink(files["model.safetensors"]) == f"../../blobs/{sha256(MODEL['model.safetensors'])}"
    assert os.readlink(files["additional_chat_templates/tools.jinja"]).startswith("../../../blobs/")
    assert_cache_is_whole(setup.folder)
    assert not setup.hub.leaks and "next: lora-train train --model org/model" in run.stderr


def test_the_client_of_the_hub_and_transformers_find_it_and_download_only_what_is_missing(setup):
    assert setup.run("download", "org/model", "--all").code == 0
    found = setup.python("import huggingface_hub as h, transformers as t\n"
                         "print(h.snapshot_download('org/model', local_files_only=True))\n"
                         "print(t.AutoConfig.from_pretrained('org/model').model_type)\n"
                         "print(t.AutoTokenizer.from_pretrained('org/model')('1 + 2').input_ids)\n"
                         "print(len(h.scan_cache_dir().warnings), len(h.scan_cache_dir().repos))", HF_HUB_OFFLINE="1").splitlines()
    assert found == [str(setup.cache() / "snapshots" / setup.commit()), json.loads(TINY["config.json"])["model_type"], found[2], "0 1"]
    run = setup.run("tokenize", "--model", "org/model", "--text", "1 + 2", "--json", HF_HUB_OFFLINE="1")
    assert json.loads(run.stdout)["input_ids"] == json.loads(found[2]), run
    setup.hub.requests.clear()
    setup.python("import huggingface_hub as h\nh.snapshot_download('org/model')")
    assert setup.hub.requests and not {"cdn", "resolve"} & set(setup.hub.steps())


def test_what_the_client_of_the_hub_has_downloaded_is_not_downloaded_again(setup):
    setup.python("import huggingface_hub as h\nh.snapshot_download('org/model')")
    assert "cdn" in setup.hub.steps()
    setup.hub.requests.clear()
    run = setup.run("download", "org/model", "--json")
    assert json.loads(run.stdout)["num_downloaded_bytes"] == 0 and "cdn" not in setup.hub.steps() and "resolve" not in setup.hub.steps()


def test_files_with_the_same_contents_share_a_blob(setup):
    twice = {f"{name}.json": b'{"same": 1}' for name in ("config", "generation_config", "tokenizer", "vocab")}
    setup.hub.add("org/twins", twice)
    assert setup.run("download", "org/twins").code == 0
    assert len(list(setup.cache("models--org--twins").glob("blobs/*"))) == 1
    assert len(list(setup.cache("models--org--twins").glob("snapshots/*/*"))) == 4


def test_branches_tags_and_commits_are_revisions(setup):
    repository = setup.hub.repositories["model", "org/model"]
    commit = repository.commit({"config.json": b'{"model_type": "of a branch"}'}, "refs/pr/1", "second")
    assert setup.run("download", "org/model@refs/pr/1").code == 0
    assert (setup.cache() / "refs/refs/pr/1").read_text() == commit
    assert setup.run("download", f"org/model@{commit}").code == 0
    assert not (setup.cache() / "refs" / commit).exists()
    assert (setup.cache() / "snapshots" / commit / "config.json").read_bytes() == b'{"model_type": "of a branch"}'


def test_datasets_and_adapters(setup):
    setup.hub.add("org/rows", {"data/train.jsonl": b'{"text": "a"}\n' * 500, "README.md": b"---\n---\n"}, "dataset")
    run = setup.run("download", "org/rows", "--dataset")
    assert run.code == 0 and "datasets--org--rows" in run.stdout, run
    assert (setup.cache("datasets--org--rows") / "snapshots").is_dir() and "datasets[0].path=org/rows" in run.stderr
    setup.hub.add("org/adapter", {"adapter_config.json": b"{}", "adapter_model.safetensors": b"a" * 9000, "adapter_model.bin": b"b"})
    expect_end(setup.run("download", "org/adapter"), 0, "--adapter", "skipped")


def test_tokens_come_from_the_variable_or_the_file_and_stay_with_the_hub(setup):
    setup.hub.add("org/secret", MODEL, private=True)
    assert setup.run("download", "org/secret").code == IO
    assert setup.run("download", "org/secret", HF_TOKEN="hf_read").code == 0
    (setup.folder / "hf/token").write_text("hf_read\n")
    assert setup.run("download", "org/secret", "--all").code == 0
    assert not setup.hub.leaks and "cdn" in setup.hub.steps(), "a token went to the content network"


def big(setup, num_bytes=66 << 20):
    """66 MiB in two segments, most of it zeros."""
    files = {"config.json": b"{}", "model.safetensors": bytes(num_bytes - 4) + b"tail"}
    setup.hub.add("org/big", files)
    return files["model.safetensors"]


def test_large_files_come_in_parts_and_resume(setup):
    data = big(setup)
    setup.hub.faults = [Fault("cdn", cut(1 << 20))]
    expect_end(setup.run("download", "org/big", LORA_TRAIN_HTTP_RETRIES="0"), IO, "the connection broke")
    assert_cache_is_whole(setup.folder)
    setup.hub.faults = []
    run = setup.download_big(data)
    assert json.loads(run.stdout)["num_downloaded_bytes"] < len(data), run
    ranges = {headers["Range"] for step, _, headers in setup.hub.requests if step == "cdn"}
    assert {f"bytes=0-{(64 << 20) - 1}", f"bytes={64 << 20}-{(66 << 20) - 1}"} <= ranges, ranges


FULL_DISK = {"LD_PRELOAD": str(BINARY.parent / "lib/libfull_disk.so")}


@pytest.mark.parametrize("room", [1, (1 << 20) + 77])
def test_a_disk_that_fills_up_keeps_what_has_arrived(setup, room):
    data = big(setup, 3 << 20)
    run = setup.run("download", "org/big", **FULL_DISK, FULL_DISK_BYTES=str(room))
    assert run.code == IO and "free some space and run the command again" in assert_one_sentence(run.stderr, "No space left on device"), run
    assert_cache_is_whole(setup.folder)
    [partial] = setup.cache("models--org--big").glob(f"blobs/{sha256(data)}*.incomplete")
    kept = int.from_bytes(partial.read_bytes()[len(data):len(data) + 8], "little")
    assert max(0, room - (64 << 10)) <= kept <= room or kept == 0, f"{kept} of {room} bytes"
    run = setup.download_big(data)
    assert len(data) - kept <= json.loads(run.stdout)["num_downloaded_bytes"] <= len(data) - kept + 2, run


def test_a_disk_that_another_program_has_filled_is_named_before_the_first_byte(setup):
    big(setup, 3 << 20)
    run = setup.run("download", "org/big", **FULL_DISK)
    assert run.code == IO and "Free some space, or set HF_HOME" in assert_one_sentence(run.stderr, "cannot reserve"), run
    assert "No space left on device" in run.stderr and not list(setup.cache("models--org--big").rglob("*.incomplete")), run
    assert_cache_is_whole(setup.folder)


def test_on_disks_of_any_size_the_cache_stays_whole(setup, small_disk):
    """tmpfs: file system, folders and links take room as well."""
    big(setup, 1 << 20)
    ends = []
    for size in range(0, 400 << 10, 16 << 10):
        disk = small_disk((900 << 10) + size)
        run = setup.run("download", "org/big", HF_HOME=str(disk / "hf"))
        ends.append(run.code)
        assert run.code in (0, IO), run
        if run.code == IO:
            assert any(words in assert_one_sentence(run.stderr, "ree some") for words in ("HF_HOME", "run the command again")), run
        assert_cache_is_whole(disk)
        shutil.rmtree(disk / "hf", ignore_errors=True)
    assert ends == sorted(ends, reverse=True) and ends[0] == IO and ends[-1] == 0, ends


def test_a_connection_that_breaks_goes_on_where_it_was(setup):
    data = big(setup, 3 << 20)
    setup.hub.faults = [Fault("cdn", cut(1 << 20), times=2)]  # two failures, but each brought something
    run = setup.download_big(data)
    assert json.loads(run.stdout)["num_downloaded_bytes"] == len(data) + 2, run
    ranges = [headers["Range"] for step, _, headers in setup.hub.requests if step == "cdn"]
    assert [text.split("-")[0] for text in ranges] == ["bytes=0", f"bytes={1 << 20}", f"bytes={2 << 20}"]


def test_what_a_power_loss_damaged_is_downloaded_again(setup):
    data = big(setup, 3 << 20)
    setup.hub.faults = [Fault("cdn", cut(2 << 20))]
    assert setup.run("download", "org/big", LORA_TRAIN_HTTP_RETRIES="0").code == IO
    [partial] = setup.cache("models--org--big").glob(f"blobs/{sha256(data)}*.incomplete")
    with open(partial, "r+b") as file:
        file.write(b"damaged")
    setup.hub.faults = []
    assert "downloading the file again" in setup.download_big(data).stderr


def test_a_server_without_ranges(setup):
    data = big(setup)
    setup.hub.faults = [Fault("cdn", no_ranges)]
    assert "one piece" in setup.download_big(data).stderr


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 75), (signal.SIGKILL, -signal.SIGKILL)])
def test_a_stop_ends_within_a_second_and_the_next_call_resumes(setup, number, code):
    data = big(setup)
    setup.hub.faults = [Fault("cdn", stall(30), skip=1)]
    process = setup.start("download", "org/big")
    while setup.hub.steps().count("cdn") < 2:
        time.sleep(0.02)
    asked = time.monotonic()
    process.send_signal(number)
    _, stderr = process.communicate(timeout=20)
    assert process.returncode == code and time.monotonic() - asked < 1.5, stderr
    assert_cache_is_whole(setup.folder)
    setup.hub.faults = []
    setup.download_big(data)


def test_waits_for_another_process_that_downloads_the_same_file(setup):
    locks = setup.folder / "hf/hub/.locks/models--org--model"
    locks.mkdir(parents=True)
    with open(locks / f"{sha256(MODEL['model.safetensors'])}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process = setup.start("download", "org/model")
        time.sleep(0.7)
        assert process.poll() is None
    _, stderr = process.communicate(timeout=20)
    assert process.returncode == 0 and "waiting for another process" in stderr, stderr


def test_two_at_a_time_download_once(setup):
    big(setup, 20 << 20)
    processes = [setup.start("download", "org/big") for _ in range(3)]
    assert [process.wait(timeout=60) for process in processes] == [0, 0, 0]
    assert setup.hub.steps().count("cdn") == 1
    assert_cache_is_whole(setup.folder)


def test_offline(setup):
    run = setup.run("download", "org/model", HF_HUB_OFFLINE="1")
    assert run.code == IO and "HF_HUB_OFFLINE" in run.stderr and not setup.hub.requests, run
    assert setup.run("download", "org/model").code == 0
    assert setup.run("download", "org/model", HF_HUB_OFFLINE="1").code == 0


def certificate(folder):
    key, file = folder / "key.pem", folder / "certificate.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext",
                    "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", key, "-out", file], check=True, capture_output=True)
    return file, key


def test_certificates_are_verified(setup, tmp_path):
    file, key = certificate(tmp_path)
    with HubServer(setup.hub, (file, key)) as server:
        run = setup.run("download", "org/model", HF_ENDPOINT=server.url)
        assert run.code == IO and "certificate is not trusted" in run.stderr and not setup.hub.requests, run
        assert setup.run("download", "org/model", HF_ENDPOINT=server.url, SSL_CERT_FILE=str(file)).code == 0
        address = setup.server.url
        setup.hub.faults = [Fault("revision", lambda handler: handler.send(302, b"", {"Location": address}))]
        expect_end(setup.run("download", "org/model", HF_ENDPOINT=server.url, SSL_CERT_FILE=str(file)), IO, "never from https to http")


def test_a_proxy_of_the_environment_is_used(setup):
    run = setup.run("download", "org/model", HF_ENDPOINT="http://hub.invalid", http_proxy=setup.server.url)
    # Ours is no proxy: it answers itself, with a list that goes on at its own address.
    assert setup.hub.requests[0][1].startswith("http://hub.invalid/api/models/") and run.code == IO, run


def tunnel(reader, writer):
    while data := reader.recv(65536):
        writer.sendall(data)
    writer.shutdown(socket.SHUT_WR)


class TunnelHandler(socketserver.StreamRequestHandler):
    """A proxy that knows CONNECT, as those of companies."""

    def handle(self):
        host, port = self.rfile.readline().split()[1].rsplit(b":", 1)
        self.server.hosts.add(host)
        while self.rfile.readline().strip():
            pass
        with socket.create_connection(("localhost", int(port))) as target:
            self.wfile.write(b"HTTP/1.1 200 Connection established\r\nVia: test\r\n\r\n")
            thread = threading.Thread(target=tunnel, args=(target, self.connection))
            thread.start()
            tunnel(self.connection, target)
            thread.join()


def test_https_goes_through_the_tunnel_of_a_proxy(setup, tmp_path):
    file, key = certificate(tmp_path)
    with HubServer(setup.hub, (file, key)) as server, socketserver.ThreadingTCPServer(("127.0.0.1", 0), TunnelHandler) as proxy:
        proxy.daemon_threads, proxy.hosts = True, set()
        threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        run = setup.run("download", "org/model", HF_ENDPOINT=server.url, SSL_CERT_FILE=str(file),
                        https_proxy=f"http://127.0.0.1:{proxy.server_address[1]}")
        proxy.shutdown()
    assert run.code == 0 and proxy.hosts == {b"localhost", b"127.0.0.1"} and "one piece" not in run.stderr, run


def test_a_machine_without_libcurl_is_told_what_to_install(setup):
    for name in ("libcurl.so.4", "libcurl-gnutls.so.4"):
        (setup.folder / name).write_text("")  # found before the real one, and no library
    expect_end(setup.run("download", "org/model", LD_LIBRARY_PATH=str(setup.folder)), IO, "apt-get install libcurl4")
    assert setup.run("--help", LD_LIBRARY_PATH=str(setup.folder)).code == 0


def test_retries_obey_the_server(setup):
    setup.hub.faults = [Fault("revision", status(429, "slow down", {"Retry-After": "1"}), times=1)]
    start = time.monotonic()
    assert setup.run("download", "org/model").code == 0 and time.monotonic() - start >= 1


def test_names_that_are_none(setup):
    for name in ("model", "a/b/c", "../x", "org/na me", "org/name@", "org/name@../../x", ""):
        run = setup.run("download", name)
        assert run.code == 2 and not setup.hub.requests, run


@pytest.mark.parametrize("case", [case for case in DOWNLOAD_CASES if case.is_quick], ids=lambda case: case.name)
def test_faults(case, tmp_path):
    run_download_case(case, tmp_path)
