"""Every command of docs/multi_gpu.md as it stands there, a sweep of runs with two ranks."""

import os
import re
import signal
import subprocess
import time

import pytest
from command import BINARY, ENVIRONMENT, ROOT, TIMEOUT_S, Setup, wait_for
from launchers import free_port, slurm

DOCUMENT = (ROOT / "docs/multi_gpu.md").read_text()
SWEEP = ROOT / "scripts/sweep.sh"
DONE, STOPPED = 0, 75
SHELL = dict(ENVIRONMENT, PATH=f"{BINARY.parent}:{ROOT}/.deps/venv/bin:{os.environ['PATH']}", OMPI_ALLOW_RUN_AS_ROOT="1",
             OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMPI_MCA_rmaps_base_oversubscribe="1")
LAUNCHERS = ("lora-train ", "torchrun ", "mpirun ", "mpirun.mpich ")
# The document's machines have more GPUs and nodes than this one.
HERE = {"node1:4,node2:4": "localhost:2", "node1,node2": "localhost", "node1": "localhost", "-n 8": "-n 2", "-ppn 4": "-ppn 2",
        "--rdzv-id my-run --no-python --nproc-per-node 4": "--rdzv-id my-run --no-python --nproc-per-node 1",
        "#SBATCH --gpus-per-node=4\n": "", "--ntasks-per-node=4": "--ntasks-per-node=2", "--cpus-per-task=8": "--cpus-per-task=1"}


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", DOCUMENT, re.S | re.M)


def commands():
    """Lines that start a launcher; a block that has others too is a script."""
    found = []
    for block in blocks("sh"):
        lines = block.splitlines()
        found += lines if all(line.startswith(LAUNCHERS) for line in lines) else [block]
    return list(dict.fromkeys(found))


def on_this_machine(text):
    for there, here in HERE.items():
        text = text.replace(there, here)
    return text.replace("29500", str(free_port()))


def write_my_yaml(setup, **changes):
    """The profile of the document's commands, in their folder."""
    setup.output_dir = setup.folder / "runs/my-run"
    (setup.folder / "my.yaml").write_text(setup.write_profile(output_dir="runs/my-run", **changes).read_text())


def in_shell(folder, command):
    return subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S, env=SHELL)


def losses(setup):
    return [event["loss"] for event in setup.events("train")]


@pytest.fixture(scope="module")
def losses_of_one_rank(tmp_path_factory):
    setup = Setup(tmp_path_factory.mktemp("one"))
    write_my_yaml(setup, max_steps=2)
    assert in_shell(setup.folder, "lora-train train --profile my.yaml").returncode == DONE
    return losses(setup)


@pytest.mark.parametrize("command", commands(), ids=lambda command: re.sub(r"\W+", " ", command)[:60].strip())
def test_every_command_of_the_document_trains(setup, losses_of_one_rank, command):
    write_my_yaml(setup, max_steps=2)
    here = on_this_machine(command)
    if "--nnodes 2" in here:  # once on each node
        here = f"{here} & {here}; code=$?; wait $! && exit $code"
    done = in_shell(setup.folder, here)
    assert done.returncode == DONE, done.stderr
    num_ranks = re.search(r"training with (\d+) processes", done.stderr)
    assert num_ranks and num_ranks[1] == ("2" if here != command else "4"), done.stderr
    assert losses(setup) == pytest.approx(losses_of_one_rank, abs=1e-6)


class Batch:
    """A job of Slurm, for wait_for()."""

    def __init__(self, environment, job, log):
        self.environment, self.job, self.log, self.returncode = environment, job, log, None

    def state(self):
        text = subprocess.run(["scontrol", "show", "job", self.job], env=self.environment, capture_output=True, text=True, check=True).stdout
        return dict(re.findall(r"(\S+?)=(\S*)", text))

    def poll(self):
        return self.state()["ExitCode"] if self.state()["JobState"] in ("FAILED", "CANCELLED", "TIMEOUT") else None

    def communicate(self):
        return "", self.log.read_text()


def test_the_batch_file_queues_itself_again_after_a_stop(setup):
    environment = dict(SHELL, SLURM_CONF=slurm().environment["SLURM_CONF"])
    write_my_yaml(setup, max_steps=400)
    (setup.folder / "train.sbatch").write_text(on_this_machine(blocks("bash")[0]))

    def run(*command):
        return subprocess.run(command, env=environment, cwd=setup.folder, capture_output=True, text=True, check=True).stdout.strip()

    number = run("sbatch", "--parsable", "train.sbatch")
    job = Batch(environment, number, setup.folder / f"my-run.{number}.log")
    wait_for(lambda: setup.events("train"), "a step", job)
    run("scancel", "--signal=USR1", number)
    wait_for(lambda: job.state()["Restarts"] == "1" and job.state()["Reason"] == "BeginTime", "the job is queued again", job)
    stopped_at = setup.events("train")[-1]["step"]
    assert setup.summary()["exit_code"] == STOPPED and (setup.output_dir / f"checkpoint-{stopped_at}").is_dir()
    queued_at = int(time.time())  # Slurm refuses to start a job again in the second in which it ended
    wait_for(lambda: int(time.time()) > queued_at, "the next second", job)
    run("scontrol", "update", f"JobId={number}", "StartTime=now")  # instead of in two minutes
    wait_for(lambda: job.state()["JobState"] == "COMPLETED", "the end of the job", job)
    assert [event["step"] for event in setup.events("train")] == list(range(1, 401))
    assert f"resumed from runs/my-run/checkpoint-{stopped_at}" in job.log.read_text()
    assert setup.summary()["status"] == "done"


def test_a_sweep_of_two_ranks_stops_with_a_checkpoint(setup):
    setup.output_dir = setup.folder / "runs"
    profile = setup.write_profile(output_dir=str(setup.output_dir / "lr{learning_rate}"), max_steps=100000, save_steps="off")
    command = [SWEEP, "--program", BINARY, "--profile", profile, "learning_rate=1e-2,1e-3", "--", "--nproc", "2"]
    with open(setup.folder / "err", "w") as stderr:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=stderr, env=ENVIRONMENT)
    first = setup.output_dir / "lr0.01"
    wait_for(lambda: setup.events("train", first) or process.poll() is not None, "a step", process)
    process.send_signal(signal.SIGTERM)
    said = setup.folder / "err"
    assert process.wait(TIMEOUT_S) == STOPPED and "training with 2 processes (1 node x 2, --nproc)" in said.read_text(), said.read_text()
    last = setup.events("train", first)[-1]["step"]
    assert [path.name for path in first.glob("checkpoint-*")] == [f"checkpoint-{last}"]
    assert [path.name for path in setup.output_dir.iterdir()] == ["lr0.01"]
