"""The job scripts without a queue: the test sets the variables of PBS and Slurm; `echo` replaces the interpreter."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

REPO_ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted((REPO_ROOT / "run_scripts").glob("*/*.[ps]b*"))
STORAGE = "datasets.alfworld_cap.build_info.annotations"


def queue(script: Path, tmp_path: Path, **more: str) -> dict[str, str]:
    """The environment of a running job."""
    for name in ("train", "test"):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "a.h5").touch()
    job = {"PYTHON": "echo", "TRAIN_DATA": str(tmp_path / "train"), "TEST_DATA": str(tmp_path / "test"), "NPROC": "1"}
    job |= {"CHECKPOINT": "a.pth"}
    if script.suffix == ".pbs":
        job |= {"PBS_O_WORKDIR": str(REPO_ROOT), "PBS_JOBID": "1234567.queue", "PBS_JOBFS": str(tmp_path / "disk")}
        job |= {"PBS_ARRAY_INDEX": "3"}
    else:
        job |= {"SLURM_SUBMIT_DIR": str(REPO_ROOT), "SLURM_JOB_ID": "1234567", "SLURM_TMPDIR": str(tmp_path / "disk")}
        job |= {"SLURM_ARRAY_TASK_ID": "3", "SLURM_JOB_NUM_NODES": "1"}
    return {"PATH": os.environ["PATH"], "HOME": str(tmp_path), **job, **more}


def run(script: Path, tmp_path: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess:
    command = ["bash", str(script), *arguments]
    environment = queue(script, tmp_path, **more)
    return subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, timeout=120)


def named(name: str) -> list[Path]:
    return [script for script in SCRIPTS if script.stem == name]


def test_both_queues_have_the_same_jobs() -> None:
    jobs = {folder: {s.stem for s in SCRIPTS if s.parent.name == folder} for folder in ("pbs", "slurm")}
    assert jobs["pbs"] == jobs["slurm"] == {"train", "evaluate", "dagger", "pipeline", "seeds"}


def test_shellcheck_finds_nothing() -> None:
    shellcheck = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if shellcheck is None:
        pytest.skip("shellcheck is not installed (extra: dev)")
    others = [path for deep in ("*", "*/*") for path in (REPO_ROOT / "run_scripts").glob(f"{deep}/*.sh")]
    command = [shellcheck, "-x", *SCRIPTS, *others]
    done = subprocess.run(command, cwd=REPO_ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout


def test_a_number_of_processes_that_is_none_is_told(tmp_path: Path) -> None:
    done = run(named("train")[0], tmp_path, NPROC="two")
    assert done.returncode == 1 and "NPROC=two: give the number of processes on each node" in done.stderr


@pytest.mark.parametrize("script", named("train") + named("seeds"), ids=lambda path: path.name)
def test_training_is_staged_named_and_resumes(script: Path, tmp_path: Path) -> None:
    done = run(script, tmp_path, OPTIONS="run.max_epoch=3\nrun.amp=False")
    assert done.returncode == 0, done.stderr
    seed = "run.seed=3 run.job_id=finetune-seed3" if script.stem == "seeds" else "run.job_id=finetune"
    assert re.fullmatch(
        "train.py --cfg-path lavis/projects/instructblip/finetuning/alfworld_ft.yaml "
        rf"--options {STORAGE}.train.storage={tmp_path}/disk/emac-data-1234567\S*/train {seed} "
        "run.resume_ckpt_path=latest run.max_epoch=3 run.amp=False\n",
        done.stdout,
    )


@pytest.mark.parametrize("script", named("train"), ids=lambda path: path.name)
def test_data_that_is_no_folder_is_told_in_one_line(script: Path, tmp_path: Path) -> None:
    file = tmp_path / "annotations.json"
    file.write_text("[]")
    done = run(script, tmp_path, TRAIN_DATA=str(file))
    assert done.returncode and done.stderr == f"{file} is no folder: name the folder that collect has filled\n"


@pytest.mark.parametrize("script", named("evaluate"), ids=lambda path: path.name)
def test_an_evaluation_that_plays_games_stages_no_data(script: Path, tmp_path: Path) -> None:
    done = run(script, tmp_path, TEST_DATA="", CFG="configs/evaluate/episodes.yaml", OPTIONS="run.num_envs=2")
    wanted = "evaluate.py --cfg-path configs/evaluate/episodes.yaml --options model.pretrained=a.pth run.num_envs=2\n"
    assert (done.stdout, done.stderr) == (wanted, "")


@pytest.mark.parametrize(
    "script", named("train") + named("evaluate"), ids=lambda path: f"{path.parent.name}-{path.stem}"
)
def test_a_job_reads_its_own_data_only_and_removes_its_copy(script: Path, tmp_path: Path) -> None:
    """Jobs share the disk; another data set has the same folder name, newer shards, and one more of them."""
    reader = tmp_path / "reader"
    stand_in(
        tmp_path,
        "reader",
        f"""[[ "$*" =~ storage=([^ ]+) ]] && echo $(cd "${{BASH_REMATCH[1]}}" && grep -H . *)
        touch {tmp_path}/reads-$MINE; until [[ -e {tmp_path}/reads-2 ]]; do sleep 0.05; done""",
    )
    jobs = []
    for number, shards in (("1", ["a.h5", "b.h5"]), ("2", ["a.h5"])):
        data = tmp_path / number / "train"
        data.mkdir(parents=True)
        for shard in shards:
            (data / shard).write_text(number)
            os.utime(data / shard, (10**9 - int(number), 10**9 - int(number)))
        more = {"TRAIN_DATA": str(data), "TEST_DATA": str(data), "PYTHON": str(reader), "MINE": number}
        environment = queue(script, tmp_path, **more)
        jobs.append(subprocess.Popen(["bash", str(script)], env=environment, stdout=subprocess.PIPE, text=True))
        deadline = time.monotonic() + 60
        while not (tmp_path / f"reads-{number}").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
    assert [job.communicate(timeout=60)[0] for job in jobs] == ["a.h5:1 b.h5:1\n", "a.h5:2\n"]
    assert list((tmp_path / "disk").iterdir()) == []


def test_a_copy_that_fails_ends_the_job(tmp_path: Path) -> None:
    stand_in(tmp_path / "tools", "cp", "exit 1")
    done = run(named("train")[0], tmp_path, PATH=f"{tmp_path / 'tools'}:{os.environ['PATH']}")
    assert done.returncode != 0 and done.stdout == "" and list((tmp_path / "disk").iterdir()) == []


@pytest.mark.parametrize("script", named("train"), ids=lambda path: path.name)
def test_several_gpus(script: Path, tmp_path: Path) -> None:
    done = run(script, tmp_path, NPROC="4")
    assert done.stdout.startswith("-m torch.distributed.run --nproc_per_node=4 --standalone train.py ")


@pytest.mark.parametrize(
    ("visible", "processes"),
    [(None, 4), ("", 1), ("-1", 1), ("NoDevFiles", 1), ("2", 1), ("0,3", 2), ("GPU-1a, MIG-2b,0", 3), ("1,-1,2", 1)],
)
def test_a_process_for_each_visible_gpu(visible: str | None, processes: int, tmp_path: Path) -> None:
    stand_in(tmp_path / "tools", "nvidia-smi", "printf 'GPU %s\\n' 0 1 2 3")
    more = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    done = run(named("train")[0], tmp_path, NPROC="", PATH=f"{tmp_path / 'tools'}:{os.environ['PATH']}", **more)
    launcher = f"-m torch.distributed.run --nproc_per_node={processes} " if processes > 1 else "train.py "
    assert done.returncode == 0 and done.stdout.startswith(launcher), done.stderr


def test_several_nodes_connect_to_the_first(tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    srun = 'shift; test "$1" = --cpus-per-task=48 && shift && exec "$@"'
    for name, body in (("scontrol", "echo node7; echo node8"), ("srun", srun)):
        (tools / name).write_text(f"#!/bin/sh\n{body}\n")
        (tools / name).chmod(0o755)
    path = f"{tools}:{os.environ['PATH']}"
    more = {"SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "node[7-8]", "PATH": path, "NPROC": "4"}
    more |= {"SLURM_CPUS_PER_TASK": "48"}
    done = run(*named("train")[1:], tmp_path, **more)
    assert done.returncode == 0, done.stderr
    launcher = "--nproc_per_node=4 --nnodes=2 --rdzv_backend=c10d --rdzv_id=27701 --rdzv_endpoint=node7:27701 train.py"
    assert launcher in done.stdout


@pytest.mark.parametrize("script", named("evaluate"), ids=lambda path: path.name)
def test_evaluation(script: Path, tmp_path: Path) -> None:
    done = run(script, tmp_path)
    storage = rf"{STORAGE}.test.storage={tmp_path}/disk/emac-data-1234567\S*/test\n"
    assert re.search(f"model.pretrained=a.pth {storage}", done.stdout)


@pytest.mark.parametrize("script", named("dagger") + named("pipeline"), ids=lambda path: f"{path.name}")
def test_online_jobs_have_a_port_of_their_own(script: Path, tmp_path: Path) -> None:
    done = run(script, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("-m xrl_alignment.pipeline --cfg-path configs/dagger/small_bc.yaml ")
    assert done.stdout.endswith("--options server.port=27701\n")
    number = "1234567.queue" if script.suffix == ".pbs" else "1234567"
    assert f" --remember output/jobs/{number} " in done.stdout  # what the job finds when the queue starts it again


def test_jobs_that_follow_one_another_share_no_port() -> None:
    def ports(**job: str) -> list[int]:
        command = "source run_scripts/common/job.sh; job_port; job_port 1; job_port 2"
        environment = {"PATH": os.environ["PATH"], **job}
        done = subprocess.run(["bash", "-c", command], cwd=REPO_ROOT, env=environment, capture_output=True, check=True)
        return [int(port) for port in done.stdout.split()]

    numbers = range(1234500, 1234650)
    for queue_jobs in (
        [ports(SLURM_JOB_ID=str(number)) for number in numbers],
        [ports(PBS_JOBID=f"{number}.pbs01") for number in numbers],
    ):
        used = [port for job in queue_jobs for port in job]
        assert len(set(used)) == 3 * len(numbers) and min(used) >= 20000 and max(used) < 32768


@pytest.mark.parametrize("script", [*named("dagger"), *named("pipeline")], ids=lambda script: script.name)
def test_a_run_directory_is_resumed(script: Path, tmp_path: Path) -> None:
    done = run(script, tmp_path, RUN_DIR=str(tmp_path))
    assert f"--resume {tmp_path} --options" in done.stdout, done.stderr
    # One that is not there is the pipeline's to refuse: the job began a new run in its place.
    done = run(script, tmp_path, RUN_DIR=str(tmp_path / "no"))
    assert f"--resume {tmp_path / 'no'} --options" in done.stdout


FINE_TUNING = REPO_ROOT / "run_scripts/instructblip/finetuning/ft_caption_alfworld.sh"


@pytest.mark.parametrize("script", [named("train")[0].with_name("x.pbs"), named("train")[1]], ids=["pbs", "slurm"])
def test_the_originals_script_runs_from_the_spool_folder(script: Path, tmp_path: Path) -> None:
    """A queue copies the script elsewhere, without the files around it."""
    copy = tmp_path / "spool" / "12.SC"
    copy.parent.mkdir()
    shutil.copy(FINE_TUNING, copy)
    command, environment = ["bash", str(copy)], queue(script, tmp_path, OPTIONS="run.seed=7")
    done = subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, timeout=120)
    number = "1234567.queue" if script.suffix == ".pbs" else "1234567"
    settings = f"--options run.job_id=finetune-{number} run.resume_ckpt_path=latest run.seed=7\n"
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.endswith(f"alfworld_ft.yaml {settings}")
    lost = {"PATH": os.environ["PATH"], "PBS_O_WORKDIR": str(tmp_path)}
    done = subprocess.run(command, env=lost, cwd="/", capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (2, "error: submit this with qsub, from the repository\n")


def test_the_originals_script_without_a_queue() -> None:
    environment = {"PATH": os.environ["PATH"], "PYTHON": "echo", "NPROC": "1"}
    command = ["bash", str(FINE_TUNING), "--options", "run.seed=7"]
    done = subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, timeout=120)
    assert done.stdout.endswith("alfworld_ft.yaml --options run.seed=7\n"), done.stderr


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_outside_a_queue_they_say_so(script: Path, tmp_path: Path) -> None:
    command = ["bash", str(script)]
    environment = {"PATH": os.environ["PATH"], "CHECKPOINT": "a.pth"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    assert "submit this with" in done.stderr


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("nproc", ["1", "2"])
def test_sigterm_and_ctrl_c_reach_the_training(tmp_path: Path, nproc: str, sent: signal.Signals) -> None:
    """With several processes the signal goes to them, not to their parent; the exit code is the training's."""
    worker = tmp_path / "worker"
    worker.write_text(
        "#!/usr/bin/env bash\ntrap 'echo checkpoint; exit 0' TERM\necho up\nwhile :; do sleep 0.1; done\n"
    )
    launcher = tmp_path / "launcher"
    body = f"trap 'exit 1' TERM\n{worker} & wait $!\n" if nproc == "2" else f"exec {worker}\n"
    launcher.write_text(f"#!/usr/bin/env bash\n{body}")
    for path in (worker, launcher):
        path.chmod(0o755)
    script = named("train")[0]
    environment = queue(script, tmp_path, PYTHON=str(launcher), NPROC=nproc)
    process = subprocess.Popen(
        ["bash", str(script)],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(
            signal.SIGINT, signal.SIG_DFL
        ),  # as in a terminal, also if nobody has one here
    )
    assert process.stdout.readline() == "up\n"
    process.send_signal(sent)
    out, _ = process.communicate(timeout=120)
    assert out == "checkpoint\n"
    assert process.returncode == 0


@pytest.mark.parametrize("script", named("evaluate"), ids=lambda path: path.name)
def test_sigterm_reaches_the_evaluation(script: Path, tmp_path: Path) -> None:
    """The script waits for it, takes its exit code, and then removes the copy of the data."""
    stand_in(
        tmp_path,
        "program",
        "trap 'sleep 0.3; echo interrupted; exit 130' TERM; echo up; for _ in {1..50}; do sleep 0.1; done",
    )
    environment = queue(script, tmp_path, PYTHON=str(tmp_path / "program"))
    process = subprocess.Popen(["bash", str(script)], env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=120)
    finally:
        process.kill()
    assert (out, process.returncode) == ("interrupted\n", 130)
    assert list((tmp_path / "disk").iterdir()) == []


def stand_in(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/usr/bin/env bash\n{text}\n")
    (folder / name).chmod(0o755)


@pytest.mark.parametrize("queue_name", ["slurm", "pbs"])
def test_ray_starts_on_every_node_of_a_job_and_ends_with_the_command(queue_name: str, tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    head = "import socket, sys, time\ns = socket.create_server(('', int(sys.argv[1])))\ntime.sleep(60)"
    (tmp_path / "head.py").write_text(head)
    stand_in(
        tools,
        "python",
        f"""echo "$@, $RAY_AUTH_MODE" >>{tmp_path}/calls
        [[ "$*" =~ --head\\ --port=([0-9]+) ]] || exit 0
        trap 'kill $!; echo "head ended" >>{tmp_path}/calls' TERM
        {sys.executable} {tmp_path}/head.py "${{BASH_REMATCH[1]}}" & wait""",
    )
    stand_in(tools, "scontrol", "printf 'node1\\nnode2\\n'")
    # Both start what stands behind the node; srun hands on its environment, pbs_tmrsh none (in OpenPBS).
    skip = 'while [[ $1 == -* ]]; do shift; done; exec "$@"'
    stand_in(tools, "srun", f'echo "srun $*" >>{tmp_path}/calls; {skip}')
    stand_in(tools, "pbs_tmrsh", f'echo "pbs_tmrsh $*" >>{tmp_path}/calls; shift; exec env -i PATH="$PATH" "$@"')
    (tmp_path / "nodes").write_text("node1\nnode1\nnode2\nnode2\n")
    slurm = {"SLURM_JOB_NODELIST": "node[1-2]", "SLURM_CPUS_PER_TASK": "48"}
    job = {"slurm": slurm, "pbs": {"PBS_NODEFILE": str(tmp_path / "nodes")}}[queue_name]
    environment = {"PATH": f"{tools}:{os.environ['PATH']}", "PYTHON": str(tools / "python"), "NUM_CPUS": "5", **job}
    # The other nodes join in the background.
    wait = f"until grep -qs -- '--address=.*--block, ' {tmp_path}/calls; do sleep 0.05; done"
    script = str(REPO_ROOT / "run_scripts/ray/in_allocation.sh")
    command = ["bash", script, "bash", "-c", f'{wait}; echo "at $RAY_ADDRESS, $RAY_AUTH_MODE"; exit 7']
    done = subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, timeout=120)
    calls = (tmp_path / "calls").read_text()
    said = re.fullmatch(r"at ([\d.]+:(\d+)), token\n", done.stdout)
    assert done.returncode == 7 and said
    client_port = int(said[2]) + 1
    start = f"start --head --port={said[2]} --ray-client-server-port={client_port} --num-cpus=5 --block"
    assert start in calls and calls.endswith("head ended\n")
    assert "scripts stop" not in calls  # it would end the clusters of the user's other jobs on this machine
    assert calls.count("node2") == 1 and f"start --address={said[1]} --num-cpus=5 --block, token\n" in calls
    assert ("--cpus-per-task=48" in calls) == (queue_name == "slurm")
    assert "node1" not in calls


def test_outside_of_a_job_ray_says_what_to_use() -> None:
    command = ["bash", str(REPO_ROOT / "run_scripts/ray/in_allocation.sh"), "true"]
    done = subprocess.run(command, env={"PATH": os.environ["PATH"]}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and "use head.sh and workers.sh" in done.stderr
