"""A Hugging Face hub in a process: the parts of its protocol that `download`, `push` and huggingface_hub's own client use, with faults
on demand. `with HubServer(hub) as server` serves what a Hub (hub_store.py) holds at server.url, and large files from another host, as the
hub does from its content network. Faults: hub_faults.py."""

import base64
import contextlib
import hashlib
import json
import re
import ssl
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

from hub_store import LFS_BYTES, PAGE, git_sha1, is_large, sha256


class Answered(Exception):
    """The answer is sent."""


ROUTES = [  # step, method, pattern
    ("revision", "GET", r"/api/(model|dataset)s/([^/]+/[^/]+)(?:/revision/([^/]+))?"),
    ("tree", "GET", r"/api/(model|dataset)s/([^/]+/[^/]+)/tree/([^/]+)(?:/.*)?"),
    ("head", "HEAD", r"/(datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)"),
    ("resolve", "GET", r"/(datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)"),
    ("cdn", "GET", r"/cdn/([0-9a-f]{64})"),
    ("cdn", "HEAD", r"/cdn/([0-9a-f]{64})"),
    ("whoami", "GET", r"/api/whoami-v2"),
    ("card", "POST", r"/api/validate-yaml"),
    ("create", "POST", r"/api/repos/create"),
    ("branch", "POST", r"/api/(model|dataset)s/([^/]+/[^/]+)/branch/([^/]+)"),
    ("preupload", "POST", r"/api/(model|dataset)s/([^/]+/[^/]+)/preupload/([^/]+)"),
    ("batch", "POST", r"/(datasets/)?([^/]+/[^/]+)\.git/info/lfs/objects/batch"),
    ("put", "PUT", r"/upload/([0-9a-f]{64})"),
    ("part", "PUT", r"/upload/([0-9a-f]{64})/(\d+)"),
    ("complete", "POST", r"/complete/([0-9a-f]{64})"),
    ("verify", "POST", r"/verify/([0-9a-f]{64})"),
    ("commit", "POST", r"/api/(model|dataset)s/([^/]+/[^/]+)/commit/([^/]+)"),
]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 30

    def log_message(self, *arguments):
        pass

    @property
    def hub(self):
        return self.server.hub

    def do_any(self):
        self.body = None
        self.cut = None  # how many bytes of a body are sent before the connection is closed
        path = unquote(urlsplit(self.path).path.replace("%2F", "%252F"))
        for step, method, pattern in ROUTES:
            if method == self.command and (match := re.fullmatch(pattern, path)):
                self.step = step
                self.hub.requests.append((step, self.path, dict(self.headers)))
                if self.server.is_storage and "Authorization" in self.headers:
                    self.hub.leaks.append(self.path)
                try:
                    if act := self.hub.fault(step):
                        act(self)
                    groups = [group and unquote(group) for group in match.groups()]
                    getattr(self, "on_" + step)(*groups)
                except Answered:
                    pass
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True
                return
        with contextlib.suppress(Answered):
            self.fail(404, "no such route")

    do_GET = do_HEAD = do_POST = do_PUT = do_any

    def read_body(self):
        if self.body is None:
            self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        return self.body

    def send(self, status, data=b"", headers=(), kind="application/json"):
        self.read_body()
        if isinstance(data, (dict, list)):
            data = json.dumps(data).encode()
        self.send_response(status)
        headers = dict(headers)
        for name, value in {"Content-Type": kind, "Content-Length": len(data), **headers}.items():
            self.send_header(name, str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data if self.cut is None else data[:self.cut])
        if self.cut is not None:
            self.drop()
        raise Answered

    def drop(self):
        """Closes the connection, in the middle of whatever it is."""
        self.wfile.flush()
        self.close_connection = True
        self.connection.close()
        raise Answered

    def fail(self, status, message, code=None, headers=()):
        headers = {"X-Error-Message": message, **({"X-Error-Code": code} if code else {}), **dict(headers)}
        self.send(status, {"error": message}, headers)

    def token(self):
        return self.headers.get("Authorization", "").removeprefix("Bearer ")

    def repository(self, kind, name, needs_write=False):
        token = self.token()
        found = self.hub.repositories.get(("dataset" if kind and kind.startswith("dataset") else "model", name))
        if token and token not in self.hub.tokens:
            self.fail(401, "Invalid credentials in Authorization header")
        if found is None or (found.private and not token):
            self.fail(404 if token else 401, "Repository not found", "RepoNotFound")
        if found.gated and token != "hf_write":
            self.fail(403 if token else 401, "Access to model is restricted.", "GatedRepo")
        if needs_write and (self.hub.tokens.get(token) != "write" or name.split("/")[0] not in (self.hub.user, "org")):
            self.fail(403, "You don't have the rights to write here")
        return found

    def files(self, repository, revision):
        sha = repository.find(revision)
        if sha is None:
            self.fail(404, "Invalid rev id: " + revision, "RevisionNotFound")
        return sha, repository.commits[sha]

    def on_revision(self, kind, name, revision):
        repository = self.repository(kind, name)
        sha, files = self.files(repository, revision or "main")
        self.send(200, {"id": name, "modelId": name, "sha": sha, "private": repository.private, "gated": repository.gated,
                        "siblings": [{"rfilename": path} for path in files], "tags": [], "downloads": 0, "likes": 0})

    def on_tree(self, kind, name, revision):
        _, files = self.files(self.repository(kind, name), revision)
        entries = []
        for path, data in sorted(files.items()):
            entry = {"type": "file", "path": path, "size": len(data), "oid": git_sha1(data)}
            if is_large(path, data):
                entry |= {"oid": git_sha1(b"pointer"), "lfs": {"oid": sha256(data), "size": len(data), "pointerSize": 130}}
            entries.append(entry)
        entries.insert(0, {"type": "directory", "path": "onnx", "size": 0, "oid": "0" * 40})
        cursor = int(parse_qs(urlsplit(self.path).query).get("cursor", ["0"])[0])
        headers = {}
        if cursor + PAGE < len(entries):
            address = f"{self.server.url}{urlsplit(self.path).path}?recursive=true&cursor={cursor + PAGE}"
            headers["Link"] = f'<{address}>; rel="next"'
        self.send(200, entries[cursor:cursor + PAGE], headers)

    def find_file(self, kind, name, revision, path):
        sha, files = self.files(self.repository(kind, name), revision)
        if path not in files:
            self.fail(404, "Entry not found", "EntryNotFound", {"X-Repo-Commit": sha})
        return sha, files[path]

    def on_head(self, kind, name, revision, path):
        sha, data = self.find_file(kind, name, revision, path)
        headers = {"X-Repo-Commit": sha, "ETag": f'"{git_sha1(data)}"', "Content-Length": len(data)}
        if not is_large(path, data):
            self.send(200, data, headers)
        self.hub.large.setdefault(sha256(data), data)
        headers |= {"X-Linked-ETag": f'"{sha256(data)}"', "X-Linked-Size": len(data), "Content-Length": 0,
                    "Location": f"{self.server.storage_url}/cdn/{sha256(data)}?signature=secret"}
        self.send(302, b"", headers)

    def on_resolve(self, kind, name, revision, path):
        sha, data = self.find_file(kind, name, revision, path)
        if not is_large(path, data):
            self.send_part(data, {"X-Repo-Commit": sha, "ETag": f'"{git_sha1(data)}"'})
        self.hub.large.setdefault(sha256(data), data)
        self.send(302, b"", {"X-Repo-Commit": sha, "Location": f"{self.server.storage_url}/cdn/{sha256(data)}?signature=secret"})

    def on_cdn(self, digest):
        self.send_part(self.hub.large[digest], {"ETag": f'"{digest}"'})

    def send_part(self, data, headers):
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if not asked:
            self.send(200, data, headers, "application/octet-stream")
        begin, end = int(asked[1]), int(asked[2] or len(data) - 1) + 1
        if begin >= len(data):
            self.send(416, b"", {"Content-Range": f"bytes */{len(data)}"})
        end = min(end, len(data))
        self.send(206, data[begin:end], {**headers, "Content-Range": f"bytes {begin}-{end - 1}/{len(data)}"}, "application/octet-stream")

    # push

    def on_whoami(self):
        role = self.hub.tokens.get(self.token())
        if role is None:
            self.fail(401, "Invalid username or password.")
        self.send(200, {"type": "user", "name": self.hub.user, "orgs": [{"name": "org"}],
                        "auth": {"accessToken": {"role": role}}})

    def on_card(self):
        self.send(200, {"errors": [], "warnings": []})

    def on_create(self):
        wanted = json.loads(self.read_body())
        owner = wanted.get("organization") or self.hub.user
        name, kind = f"{owner}/{wanted['name']}", wanted.get("type", "model")
        role = self.hub.tokens.get(self.token())
        if role is None:
            self.fail(401, "Invalid username or password.")
        elif role != "write" or owner not in (self.hub.user, "org"):
            self.fail(403, f"You don't have the rights to create a {kind} under the namespace \"{owner}\"")
        elif (kind, name) in self.hub.repositories:
            self.fail(409, "You already created this model repo")
        else:
            private = wanted.get("visibility") == "private" or bool(wanted.get("private"))
            self.hub.add(name, {".gitattributes": b"*.safetensors filter=lfs\n"}, kind, private=private)
            self.send(200, {"url": f"{self.server.url}/{name}", "name": name})

    def on_branch(self, kind, name, branch):
        repository = self.repository(kind, name, True)
        if branch in repository.references:
            self.fail(409, "Reference already exists")
        repository.references[branch] = repository.references["main"]
        self.send(200, {})

    def on_preupload(self, kind, name, revision):
        self.files(self.repository(kind, name, True), revision)
        files = json.loads(self.read_body())["files"]
        for file in files:
            base64.b64decode(file["sample"], validate=True)
        large = lambda file: file["size"] >= LFS_BYTES or file["path"].endswith(".safetensors")
        self.send(200, {"files": [{"path": file["path"], "uploadMode": "lfs" if large(file) else "regular",
                                   "shouldIgnore": False, "oid": None} for file in files]})

    def on_batch(self, kind, name):
        self.repository(kind, name, True)
        wanted = json.loads(self.read_body())
        assert wanted["operation"] == "upload" and wanted["hash_algo"] == "sha256", wanted
        objects, transfer = [], "basic"
        for item in wanted["objects"]:
            oid, size = item["oid"], item["size"]
            if oid in self.hub.large:
                objects.append({"oid": oid, "size": size})
                continue
            verify = {"href": f"{self.server.url}/verify/{oid}", "header": {}}
            upload = {"href": f"{self.server.storage_url}/upload/{oid}?signature=secret", "header": {}}
            if self.hub.multipart_bytes and size >= self.hub.multipart_bytes and "multipart" in wanted["transfers"]:
                transfer = "multipart"
                count = -(-size // self.hub.multipart_bytes)
                upload = {"href": f"{self.server.url}/complete/{oid}", "header": {
                    "chunk_size": str(self.hub.multipart_bytes),
                    **{f"{i + 1:05}": f"{self.server.storage_url}/upload/{oid}/{i + 1}?signature=secret" for i in range(count)}}}
            objects.append({"oid": oid, "size": size, "actions": {"upload": upload, "verify": verify}})
        self.send(200, {"transfer": transfer, "objects": objects})

    def on_put(self, oid):
        data = self.read_body()
        if sha256(data) != oid:
            self.fail(400, "BadDigest")
        self.hub.large[oid] = data
        self.send(200)

    def on_part(self, oid, number):
        data = self.read_body()
        self.hub.parts[oid, int(number)] = data
        self.send(200, b"", {"ETag": f'"{hashlib.md5(data).hexdigest()}"'})

    def on_complete(self, oid):
        wanted = json.loads(self.read_body())
        parts = [self.hub.parts[oid, part["partNumber"]] for part in wanted["parts"]]
        tags = [f'"{hashlib.md5(part).hexdigest()}"' for part in parts]
        if tags != [part["etag"] for part in wanted["parts"]] or sha256(b"".join(parts)) != oid:
            self.fail(400, "parts do not fit")
        self.hub.large[oid] = b"".join(parts)
        self.send(200, {"success": True})

    def on_verify(self, oid):
        wanted = json.loads(self.read_body())
        if oid not in self.hub.large or len(self.hub.large[oid]) != wanted["size"]:
            self.fail(404, "Object does not exist")
        self.send(200, {})

    def on_commit(self, kind, name, revision):
        repository = self.repository(kind, name, True)
        sha, files = self.files(repository, revision)
        lines = [json.loads(line) for line in self.read_body().splitlines()]
        header, files = lines[0]["value"], dict(files)
        if header.get("parentCommit", sha) != sha:
            self.fail(412, "A commit has happened since. Please refresh and try again.")
        for line in lines[1:]:
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"], validate=True)
            elif line["key"] == "lfsFile":
                if value["oid"] not in self.hub.large:
                    self.fail(400, "LFS pointer pointed to a file that does not exist")
                files[value["path"]] = self.hub.large[value["oid"]]
        made = repository.commit(files, revision, header["summary"])
        self.send(200, {"commitUrl": f"{self.server.url}/{name}/commit/{made}", "commitOid": made, "success": True})


class QuietServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request, client_address):
        if not isinstance(sys.exception(), OSError):  # a client that goes away
            super().handle_error(request, client_address)


class HubServer:
    def __init__(self, hub, certificate=None):
        self.hub = hub
        scheme = "https" if certificate else "http"
        self.servers = []
        for is_storage in (False, True):
            server = QuietServer(("127.0.0.1", 0), Handler)
            if certificate:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                context.load_cert_chain(*certificate)
                server.socket = context.wrap_socket(server.socket, server_side=True)
            server.hub, server.is_storage = hub, is_storage
            host = "127.0.0.1" if is_storage else "localhost"  # another host, so that a token must not go there
            server.address = f"{scheme}://{host}:{server.server_address[1]}"
            self.servers.append(server)
        self.url, self.storage_url = (server.address for server in self.servers)
        for server in self.servers:
            server.url, server.storage_url = self.url, self.storage_url

    def __enter__(self):
        for server in self.servers:
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_):
        for server in self.servers:
            server.shutdown()
            server.server_close()
