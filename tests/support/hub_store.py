"""What the hub of hub_server.py holds: repositories, files of the large store, tokens, and the faults that are due."""

import hashlib
import threading

LFS_BYTES = 4096  # files from this size on are in large file storage, and so are all .safetensors
PAGE = 3  # entries in a page of a listing


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def git_sha1(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def is_large(path, data):
    return len(data) >= LFS_BYTES or path.endswith(".safetensors")


class Repository:
    def __init__(self, files, private=False, gated=False):
        self.commits, self.references, self.private, self.gated = {}, {}, private, gated
        self.messages = []
        self.commit(files, "main", "first")

    def commit(self, files, reference, message):
        sha = hashlib.sha1(repr((sorted(files), len(self.commits), message)).encode()).hexdigest()
        self.commits[sha] = dict(files)
        self.references[reference] = sha
        self.messages.append(message)
        return sha

    def find(self, revision):
        return self.references.get(revision, revision if revision in self.commits else None)


class Fault:
    """What happens at a step in place of, or to, the right answer: the first `times` times (None: always), after `skip` right ones."""

    def __init__(self, step, act, times=None, skip=0):
        self.step, self.act, self.times, self.skip = step, act, times, skip

    def is_due(self, step):
        if step != self.step or self.times == 0:
            return False
        if self.skip:
            self.skip -= 1
            return False
        if self.times is not None:
            self.times -= 1
        return True


class Hub:
    def __init__(self):
        self.repositories = {}  # ("model", "org/name")
        self.large = {}  # sha256: bytes, that were uploaded
        self.parts = {}
        self.tokens = {"hf_read": "read", "hf_write": "write"}
        self.user = "tester"
        self.faults, self.requests, self.leaks = [], [], []
        self.multipart_bytes = None  # uploads of at least this size go in parts of it
        self.lock = threading.Lock()

    def add(self, name, files, kind="model", **options):
        self.repositories[kind, name] = Repository(files, **options)
        return self.repositories[kind, name]

    def fault(self, step):
        with self.lock:
            return next((fault.act for fault in self.faults if fault.is_due(step)), None)

    def steps(self):
        return [step for step, _, _ in self.requests]
