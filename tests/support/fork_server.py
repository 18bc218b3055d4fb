"""Runs a program of ours to its end as subprocess.run() would, but forks it from one that has loaded its libraries
(tests/programs/fork_server): LibTorch takes longer to load than most tests compute."""

import array
import atexit
import functools
import os
import select
import signal
import socket
import struct
import subprocess
import tempfile
import threading
from pathlib import Path

# What libraries read once, when they are loaded: programs that differ in it have different servers.
READ_AT_START = ("OMP_", "GOMP_", "KMP_", "MKL_")
# What decides on the libraries themselves, or has them print when they are loaded: a program that has such a variable is started.
REAL_START = ("LD_", "LORA_TRAIN_TORCH", "MALLOC_", "GLIBC_TUNABLES", "OMP_DISPLAY_ENV")
# A library that may be preloaded all the same: it reads its own variables after main() has begun.
PRELOADABLE = "libstand_in_runtime.so"


class Server:
    """One process that forks; used by one thread of the caller."""

    def __init__(self, program, variables):
        ours, theirs = socket.socketpair()
        variables = dict(variables)
        libraries = libraries_of(program, "LD_PRELOAD" in variables)
        preloaded = " ".join(filter(None, [str(library_beside(program)), variables.get("LD_PRELOAD")]))
        environment = {name: value for name, value in os.environ.items() if not name.startswith(READ_AT_START + REAL_START)}
        environment.update(variables, LD_PRELOAD=preloaded, FORK_SERVER=":".join([str(theirs.fileno()), *map(str, libraries)]))
        self.socket = ours
        self.process = subprocess.Popen([program], env=environment, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        theirs.close()
        atexit.register(self.close)

    def close(self):
        self.socket.close()
        self.process.wait()

    def run(self, command, environment, cwd, data, timeout, cpu_seconds):
        strings = [*command, *(f"{name}={value}" for name, value in environment.items())]
        payload = b"".join(os.fsencode(string) + b"\0" for string in strings)
        with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
            ours = [pipe_with(data), os.open(cwd or ".", os.O_PATH | os.O_DIRECTORY)]
            descriptors = array.array("i", [ours[0], stdout.fileno(), stderr.fileno(), ours[1]])
            self.socket.sendmsg([struct.pack("III", len(payload), len(command), cpu_seconds)],
                                [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])
            for descriptor in ours:
                os.close(descriptor)
            self.socket.sendall(payload)
            status = self.wait(command, timeout)
            stdout.seek(0), stderr.seek(0)
            return subprocess.CompletedProcess(command, os.waitstatus_to_exitcode(status), stdout.read().decode(), stderr.read().decode())

    def wait(self, command, timeout):
        process = self.answer()
        self.socket.settimeout(timeout)
        try:
            return self.answer()
        except TimeoutError:
            os.kill(process, signal.SIGKILL)
            self.socket.settimeout(None)
            self.answer()
            raise subprocess.TimeoutExpired(command, timeout) from None
        finally:
            self.socket.settimeout(None)

    def answer(self):
        answer = self.socket.recv(4, socket.MSG_WAITALL)
        assert len(answer) == 4, f"the fork server ended with {self.process.wait()}"
        return struct.unpack("i", answer)[0]


def pipe_with(data):
    """The end to read of a pipe that holds all of the data."""
    assert len(data) <= select.PIPE_BUF * 16, "more than a pipe holds"
    to_read, to_write = os.pipe()
    with os.fdopen(to_write, "wb") as pipe:
        pipe.write(data)
    return to_read


def library_beside(program):
    """Not there where the tests are packed for another machine."""
    return Path(program).parent / "lib/libfork_server.so"


def libraries_of(program, has_gpu):
    """What lora-train loads by itself when a command needs it, in its order (src/cli/engine/engine_loader.cpp,
    src/kernels/dispatch/cuda_library.cpp); other programs are linked with LibTorch."""
    torch = program.parent / "lib/torch_path"
    if program.name != "lora-train" or not torch.exists():
        return []
    folder = Path(torch.read_text().strip()) / "lib"
    return [folder / f"lib{name}.so" for name in ["c10", "torch_cpu"] + ["c10_cuda", "torch_cuda"] * has_gpu]


@functools.cache
def server(program, variables, _thread):
    return Server(program, variables)


def run(program, *arguments, environment, cwd=None, data=b"", timeout=600, cpu_seconds=0):
    """A CompletedProcess with stdout and stderr as text. `environment` is all of it; `data` is stdin, as bytes;
    cpu_seconds: limit of the program's CPU time, 0 = none. Killed, and TimeoutExpired, after `timeout` seconds."""
    command = [str(program), *map(str, arguments)]
    is_served = environment.get("LD_PRELOAD", "").endswith(f"/{PRELOADABLE}")
    preload = ("LD_",) * is_served
    if any(name.startswith(REAL_START) and not name.startswith(preload) for name in environment) or not library_beside(program).exists():
        return start(command, environment, cwd, data, timeout, cpu_seconds)
    variables = tuple(sorted((name, value) for name, value in environment.items() if name.startswith(READ_AT_START + preload)))
    return server(Path(program), variables, threading.get_ident()).run(command, environment, cwd, data, timeout, cpu_seconds)


def start(command, environment, cwd, data, timeout, cpu_seconds):
    limited = ["prlimit", f"--cpu={cpu_seconds}", *command] if cpu_seconds else command
    done = subprocess.run(limited, input=data, capture_output=True, env=environment, cwd=cwd, timeout=timeout)
    done.stdout, done.stderr = done.stdout.decode(), done.stderr.decode()
    return done
