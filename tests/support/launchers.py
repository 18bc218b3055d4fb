"""Starts the ranks of a run by each launcher: argv and environment. Slurm is one of this machine's own, started once."""

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from command import BINARY, ENVIRONMENT, ROOT

LAUNCHERS = ["nproc", "openmpi", "mpich", "torchrun", "slurm", "variables"]
SLURM = """ClusterName=test
SlurmctldHost={host}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SlurmctldPort={controller}
SlurmdPort={daemon}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
JobAcctGatherType=jobacct_gather/none
JobRequeue=1
KillWait=20
NodeName={host} CPUs={cores} State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:8
"""


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Slurm:
    """munged, slurmctld and slurmd in a folder of their own."""

    def __init__(self):
        if os.geteuid() != 0:
            pytest.skip("Slurm's daemons need root here")
        if not shutil.which("slurmctld", path="/usr/sbin:/usr/bin"):
            pytest.skip("Slurm is not installed (slurm-wlm, munge)")
        self.folder = Path(tempfile.mkdtemp(prefix="lt-slurm-"))
        key = self.folder / "munge/key"
        for name in ("munge", "state", "spool"):
            (self.folder / name).mkdir(mode=0o700)
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        config = self.folder / "slurm.conf"
        config.write_text(SLURM.format(host=socket.gethostname().split(".")[0], folder=self.folder, controller=free_port(),
                                       daemon=free_port(), cores=os.cpu_count()))
        self.environment = dict(ENVIRONMENT, SLURM_CONF=str(config))
        folder = str(self.folder)
        for command in (["munged", "--force", f"--key-file={key}", f"--socket={folder}/munge.socket",
                         f"--pid-file={folder}/munge/pid", f"--log-file={folder}/munge/log",
                         f"--seed-file={folder}/munge/seed"],
                        ["slurmctld", "-f", str(config)], ["slurmd", "-f", str(config)]):
            subprocess.run(["/usr/sbin/" + command[0], *command[1:]], env=self.environment, check=True, capture_output=True)
        self.wait_until_idle()

    def wait_until_idle(self):
        for _ in range(300):
            states = subprocess.run(["sinfo", "-h", "-o", "%T"], env=self.environment, capture_output=True, text=True).stdout
            if "idle" in states:
                return
            time.sleep(0.1)
        pytest.skip(f"Slurm does not start here: {(self.folder / 'slurmd.log').read_text()[-1000:]}")

    def stop(self):
        """Ends the daemons and waits for them: until then they write to the folder."""
        for name in ("slurmd.pid", "slurmctld.pid", "munge/pid"):
            with contextlib.suppress(OSError, ValueError):  # never started
                pid = int((self.folder / name).read_text())
                os.kill(pid, 15)
                for _ in range(100):
                    os.kill(pid, 0)
                    time.sleep(0.1)
        shutil.rmtree(self.folder, ignore_errors=True)


_slurm = None


def slurm():
    global _slurm
    if _slurm is None:
        import atexit
        _slurm = Slurm()
        atexit.register(_slurm.stop)
    return _slurm


class Job:
    """Ranks that a launcher has started, in a session of their own. `process` is the launcher; of "variables", the last rank.
    `grace_s`: so long mpirun waits before it ends the survivors of a failure, and again before it ends itself.
    `of_last_rank`: more variables of "variables"."""

    def __init__(self, launcher, num_ranks, arguments, output, environment=ENVIRONMENT, grace_s=20, of_last_rank={}, command="train",
                 binary=BINARY):
        command = [str(binary), command, *map(str, arguments)]
        Path(output).unlink(missing_ok=True)
        self.output = open(output, "a+")  # the ranks append, wherever this process reads
        environments = [environment]
        if launcher == "nproc":
            command += ["--nproc", str(num_ranks)]
        elif launcher == "openmpi":
            command = ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--mca", "odls_base_sigkill_timeout", str(grace_s),
                       "-n", str(num_ranks), *command]
        elif launcher == "mpich":
            command = ["mpirun.mpich", "-n", str(num_ranks), *command]
        elif launcher == "torchrun":
            command = [str(ROOT / ".deps/venv/bin/torchrun"), "--no-python", f"--rdzv-endpoint=127.0.0.1:{free_port()}",
                       "--rdzv-backend=c10d", "--nproc-per-node", str(num_ranks), *command]
        elif launcher == "slurm":
            environments = [dict(environment, SLURM_CONF=slurm().environment["SLURM_CONF"])]
            command = ["srun", "--overcommit", "-n", str(num_ranks), *command]
        else:
            port = str(free_port())
            environments = [dict(environment, RANK=str(rank), WORLD_SIZE=str(num_ranks), LOCAL_RANK=str(rank),
                                 LOCAL_WORLD_SIZE=str(num_ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
                            for rank in range(num_ranks)]
            environments[-1].update(of_last_rank)
        self.processes = [subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=self.output, text=True, env=each,
                                           start_new_session=True) for each in environments]
        self.process = self.processes[-1]

    def poll(self):
        return self.process.poll()

    def communicate(self):
        return "", self.stderr()

    @property
    def returncode(self):
        return self.process.returncode

    def stderr(self):
        self.output.seek(0)
        return self.output.read()

    def wait(self, seconds=120):
        codes = [process.wait(seconds) for process in self.processes]
        return next((code for code in codes if code), 0)

    @staticmethod
    def ranks(output_dir):
        """Process numbers, by rank, of the run whose command line names this folder."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                words = (folder / "cmdline").read_bytes().split(b"\0")
                variables = dict(entry.split(b"=", 1) for entry in (folder / "environ").read_bytes().split(b"\0") if b"=" in entry)
            except OSError:
                continue  # has ended
            if words[0] != str(BINARY).encode() or not any(str(output_dir).encode() in word for word in words):
                continue
            for name in (b"RANK", b"OMPI_COMM_WORLD_RANK", b"PMI_RANK", b"SLURM_PROCID"):
                if name in variables:
                    found[int(variables[name])] = int(folder.name)
                    break
        return found
