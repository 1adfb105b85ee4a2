"""The job scripts on a real scheduler: Slurm with one node on this machine, and its `qsub`.

Needs Debian's slurm-wlm, slurm-wlm-torque and munge. The cluster is started for these tests, in a temporary folder, on
ports of its own, and stopped after them; a Slurm that runs on the machine is not touched. The processors, memory and
GPUs that the scripts ask for are in its node's description only, so the scripts run as they are.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import random
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lavis.common.paths import REPO_ROOT
from tests.ports import free_port
from xrl_alignment.lab.collect import main as collect

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
DAEMONS = ("munged", "slurmctld", "slurmd")
PLACES = os.environ["PATH"] + ":/usr/sbin:/sbin"
CONF = """
ClusterName=emac
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
JobRequeue=1
KillWait=5
ReturnToService=2
FirstJobId={first}
GresTypes=gpu
NodeName={host} NodeAddr=127.0.0.1 CPUs=48 RealMemory=200000 Gres=gpu:4 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
FEW = {
    "model.model_type": "tiny",
    "run.num_envs": 1,
    "run.max_steps": 3,
    "run.batch_size": 2,
    "run.accum_grad_steps": 1,
    "run.train_iters_per_epoch": 1,
    "run.num_threads": 1,
    "run.device": "cpu",
    "policy.num_beams": 1,
    "policy.min_length": 1,
    "policy.max_length": 8,
    "environment.split": "household_train",
}
TRAIN = "run.max_epoch=1 run.num_workers=0 run.num_threads=1 run.batch_size_train=4 run.world_size=1"


def wait_for(what: Callable[[], object], seconds: float = 60, why: Callable[[], str] = str) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, why()
        time.sleep(0.2)


class Cluster:
    """A Slurm controller with one node; jobs run in `work`, which looks like the repository."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.work = folder, folder / "work"
        self.work.mkdir(parents=True)
        for entry in REPO_ROOT.iterdir():
            if entry.name not in ("output", ".git"):
                (self.work / entry.name).symlink_to(entry)
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf"), "PYTHON": sys.executable}
        self.environment |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "NPROC": "1", "PATH": PLACES}
        self._daemons: list[subprocess.Popen] = []

    def start(self) -> None:
        """Start munge, controller and node, and wait until the node takes jobs."""
        folder = self.folder
        (folder / "key").write_bytes(secrets.token_bytes(1024))
        (folder / "key").chmod(0o600)
        for name in ("state", "spool"):
            (folder / name).mkdir()
        host = socket.gethostname().partition(".")[0]
        settings = {"host": host, "ports": [free_port(), free_port()], "user": getpass.getuser(), "folder": folder}
        first = random.SystemRandom().randrange(1000, 60_000_000)  # files are named after the numbers of jobs
        (folder / "slurm.conf").write_text(CONF.format(first=first, **settings))
        (folder / "gres.conf").write_text(f"Name=gpu File={folder}/gpu[0-3]\n")
        for number in range(4):
            (folder / f"gpu{number}").touch()
        files = [f"--{name}-file={folder}/munge.{name}" for name in ("pid", "log", "seed")]
        files += [f"--socket={folder}/munge.socket", f"--key-file={folder}/key"]
        self._run("munged", "-F", "--force", *files)
        wait_for((folder / "munge.socket").exists)
        self._run("slurmctld", "-D")
        self._run("slurmd", "-D", "-N", host)
        wait_for(lambda: "idle" in self.ask("sinfo", "-h", "-o", "%T"), 30, why=self.logs)

    def stop(self) -> None:
        """Cancel all jobs and end the daemons."""
        with contextlib.suppress(AssertionError):
            self.ask("scancel", "--user", getpass.getuser())
        for process in reversed(self._daemons):
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            process.kill()
            process.wait()

    def ask(self, *command: str, **more: str) -> str:
        """The output of a Slurm command, called in the repository."""
        environment = {**self.environment, **more}
        done = subprocess.run(command, cwd=self.work, env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout.strip()

    def submit(self, script: str, *options: str, **variables: str) -> str:
        """Submit a script of `run_scripts/slurm`; returns the job's number."""
        return self.ask("sbatch", "--parsable", *options, f"run_scripts/slurm/{script}.sbatch", **variables)

    def state(self, job: str) -> str:
        """The state of a job, COMPLETED for an array whose tasks have all completed."""
        lines = self.ask("scontrol", "show", "job", "-o", job).splitlines()
        states = {word.partition("=")[2] for line in lines for word in line.split() if word.startswith("JobState=")}
        return states.pop() if len(states) == 1 else "MIXED"

    def wait(self, job: str, seconds: float = 240) -> None:
        """Wait until the job has completed; its log is in the message if it fails."""

        def ended() -> bool:
            state = self.state(job)
            assert state not in ("FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"), self.logs()
            return state == "COMPLETED"

        wait_for(ended, seconds, self.logs)

    def logs(self) -> str:
        """The ends of all logs."""
        paths = [*self.folder.glob("*.log"), *self.work.glob("*.o*"), *self.work.glob("output/*.log")]
        paths += self.work.glob("output/*/*/server.log")
        return "\n".join(f"== {path}\n{path.read_text(errors='replace')[-3000:]}" for path in paths if path.is_file())

    def _run(self, name: str, *arguments: str) -> None:
        with open(self.folder / f"{name}.out.log", "wb") as out:
            command = [str(shutil.which(name, path=PLACES)), *arguments]
            self._daemons.append(
                subprocess.Popen(command, env=self.environment, stdout=out, stderr=out, start_new_session=True)
            )


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    missing = [name for name in DAEMONS if shutil.which(name, path=PLACES) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed: apt-get install slurm-wlm slurm-wlm-torque munge")
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="module")
def transitions(household_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("collected")
    collect(["--data", str(household_data), "--split", "household_train", "--num-games", "2", "--out", str(out)])
    return out


def options(household_data: Path, **more: object) -> str:
    named = {key.replace("__", "."): value for key, value in more.items()}
    settings = {**FEW, "environment.data": household_data, **named}
    return " ".join(f"{key}={value}" for key, value in settings.items())


def runs(cluster: Cluster, folder: str) -> list[Path]:
    """The run directories of online training under `output/<folder>`."""
    return sorted((cluster.work / "output" / folder).glob("with_bc_dpo-*"))


def test_train(cluster: Cluster, transitions: Path) -> None:
    job = cluster.submit("train", TRAIN_DATA=str(transitions), NAME="one", OPTIONS=TRAIN)
    cluster.wait(job)
    assert list((cluster.work / "output/finetune/one").glob("checkpoint_*.pth")), cluster.logs()
    assert (cluster.work / f"slurm-emac-train-{job}.log").is_file()


def test_an_array_of_seeds(cluster: Cluster, transitions: Path) -> None:
    job = cluster.submit("seeds", "--array=3-4", TRAIN_DATA=str(transitions), NAME="array", OPTIONS=TRAIN)
    cluster.wait(job)
    for seed in (3, 4):
        log = cluster.work / f"output/finetune/array-seed{seed}/log.txt"
        assert json.loads(log.read_text().splitlines()[0])["config"]["run"]["seed"] == seed


def test_the_original_script_under_qsub(cluster: Cluster, transitions: Path) -> None:
    if shutil.which("qsub") is None:
        pytest.skip("qsub not installed: apt-get install slurm-wlm-torque")
    storage = f"datasets.alfworld_cap.build_info.annotations.train.storage={transitions}"
    script = "run_scripts/instructblip/finetuning/ft_caption_alfworld.sh"
    job = cluster.ask("qsub", "-V", script, OPTIONS=f"{storage} {TRAIN}").partition(".")[0]
    cluster.wait(job)
    (folder,) = (cluster.work / "output/finetune").glob("finetune-*")
    assert list(folder.glob("checkpoint_*.pth")) and job in folder.name


def test_pipeline(cluster: Cluster, household_data: Path) -> None:
    job = cluster.submit("pipeline", SIZE="small", OPTIONS=options(household_data, run__num_rounds=1))
    cluster.wait(job)
    made = [*runs(cluster, "small/bc"), *runs(cluster, "small/dpo")]
    assert [(run / "DONE").is_file() for run in made] == [True, True]


def test_a_requeued_job_continues_its_run(cluster: Cluster, household_data: Path) -> None:
    settings = options(household_data, run__num_rounds=40, run__output_dir="output/requeued", run__state_interval_s=0)
    job = cluster.submit("dagger", OPTIONS=settings)

    def episodes() -> int:
        return sum(len(journal.read_text().splitlines()) for journal in journals())

    def journals() -> list[Path]:
        return [path for run in runs(cluster, "requeued") if (path := run / "state/episodes.jsonl").is_file()]

    wait_for(lambda: episodes() >= 2, 120, cluster.logs)
    cluster.ask("scontrol", "requeue", job)
    before = episodes()
    cluster.wait(job)
    (run,) = runs(cluster, "requeued")
    assert (run / "DONE").is_file() and 2 <= before < 40 == episodes()
    assert "resuming" in (run / "server.log").read_text()
