"""Every command that the original's documents print, a row each: it runs here, another test runs it, or it cannot run.

The documents themselves are no part of this project. `FOLDERS` says in which folder a program is called.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import pytest

import alfworld_client
import dagger_server
import evaluate
import train
from lavis.common.paths import REPO_ROOT
from lavis.common.program import run_program
from policy_server import qwen_policy_server
from split_inference import alfworld_server, alfworld_vllm_client, run_split_inference
from xrl_alignment.lab.doctor.__main__ import main as doctor

FOLDERS = {
    "alfworld_server.py": "split_inference",
    "alfworld_vllm_client.py": "split_inference",
    "qwen_policy_client.py": "policy_server",
    "qwen_policy_server.py": "policy_server",
    "run_dagger.sh": "run_scripts",
    "run_full_pipeline.sh": "run_scripts",
    "run_split_inference.py": "split_inference",
}
PATIENCE_S = 240


class Here(NamedTuple):
    """Runs here: the check gets the printed words, and returns what it wrote to stdout and stderr."""

    check: Callable[[list[str]], str | None]
    says: str = ""


class Elsewhere(NamedTuple):
    """Another test runs it; `how` says in which form, where it is not the printed one."""

    test: str
    how: str = ""


class NotHere(NamedTuple):
    """Runs in no test of this project: what it needs, or what takes its place."""

    reason: str


# --- checks -----------------------------------------------------------------------------------------------------------


def understood(parse: Callable[[list[str]], dict[str, object]]) -> Here:
    """The program's own parser takes every printed option, with its value."""

    def check(words: list[str]) -> None:
        parsed = parse(words[2:])
        for option, value in zip(words[2::2], words[3::2], strict=True):
            assert str(parsed[option.removeprefix("--").replace("-", "_")]).rstrip("/") == value.rstrip("/")

    return Here(check)


def refused(main: Callable[[], int | None], says: str) -> Here:
    """As printed it ends with exit code 2 and says what to add, because settings stand in no source file any more."""

    def check(words: list[str]) -> None:
        with patch.object(sys, "argv", words[1:]), pytest.raises(SystemExit) as end:
            run_program(main)
        assert end.value.code == 2

    return Here(check, says)


def script(says: str, **environment: str) -> Here:
    """The shell script ends well; `PYTHON=echo` shows the command that it would start."""

    def check(words: list[str]) -> str:
        path = REPO_ROOT / FOLDERS.get(words[-1], "") / words[-1]
        done = subprocess.run(
            ["bash", str(path)], env={"PATH": "/usr/bin:/bin", **environment}, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return Here(check, says)


def code(words: list[str]) -> None:
    """`python -c CODE`."""
    exec(words[2], {})


def download(_: list[str]) -> None:
    """ALFWorld 0.4 has a program in place of the printed function."""
    assert "alfworld-download" in {path.name for path in importlib.metadata.files("alfworld") or ()}


def thor(_: list[str]) -> None:
    """The diagnosis names the simulator, also where there is none."""
    assert doctor(["--thor"]) in (0, 1)


def policy_settings(words: Sequence[str]) -> dict[str, object]:
    """The policy server's settings as the command line gives them."""
    settings = qwen_policy_server.read_command_line(list(words))
    return {"model": settings.model.path, "host": settings.server.host, "port": settings.server.port}


def qwen(words: list[str]) -> None:
    """The original's model and port are the defaults."""
    assert policy_settings(words[2:]) == {"model": "Qwen/Qwen2-VL-2B-Instruct", "host": "127.0.0.1", "port": 8001}


def manager(words: list[str]) -> dict[str, object]:
    """What the manager takes, and what it gives to the client."""
    own, rest = run_split_inference.parse_arguments(words)
    return {**vars(alfworld_vllm_client.parse_arguments(rest)), **vars(own)}


# --- the rows ---------------------------------------------------------------------------------------------------------

SERVER = understood(lambda words: vars(alfworld_server.parse_arguments(words)))
CLIENT = understood(lambda words: vars(alfworld_vllm_client.parse_arguments(words)))
CLIENT_ASKS = refused(alfworld_vllm_client.main, "--output-dir")
SPLIT = "--model-path /root/checkpoints/global_step_795/ --data-dir /root/data/alfworld/valid_seen/ "
SPLIT += "--traj-dir /root/data/alfworld/valid_seen_v5_high_trajs/ "
SPLIT += "--output-dir /root/data/alfworld/valid_seen_v5_vlm_inference_trajs/"
CONDA = NotHere("needs conda; `conda env create -f environment.yml` or `make install` takes its place")
VENV = NotHere("the machine's own interpreters; docs/split_inference.md has the two environments")
EXTRA = NotHere("an extra: pip install -e '.[policy-server]' (docs/policy_server.md)")
OUR_OWN = "tests/xrl_alignment/wire/test_http_server.py::test_busy_port_names_the_process_and_leaves_it_alone"

LAUNCHED = Elsewhere("tests/policy_server/test_qwen_policy_server.py::test_the_original_commands_start_the_server")

COMMANDS: dict[str, Here | Elsewhere | NotHere] = {
    # set-up
    "git clone <repo-url>": NotHere("no command of this project"),
    "conda create -n emac python=3.9 -y": CONDA,
    "conda activate emac": CONDA,
    "conda install -c conda-forge spacy opencv libtiff libjpeg-turbo libstdcxx-ng -y": CONDA,
    "mkdir -p $CONDA_PREFIX/etc/conda/activate.d": NotHere("environment.yml brings a new libstdc++"),
    "echo 'export LD_PRELOAD=$CONDA_PREFIX/lib/libstdc++.so.6' > $CONDA_PREFIX/etc/conda/activate.d/libstdc++.sh": (
        NotHere("environment.yml brings a new libstdc++")
    ),
    "pip install -e .": Elsewhere("tests/test_requirements.py::test_pip_understands_it"),
    "pip install -r requirements.txt": Elsewhere("tests/test_requirements.py::test_pip_understands_it"),
    'pip install "transformers==4.30.0"': NotHere("an old version; this project needs the one in constraints.txt"),
    'pip install "numpy<2.0"': NotHere("an old version; this project needs the one in constraints.txt"),
    "pip install alfworld": NotHere("a dependency of this project already"),
    "python -c \"from lavis.models import load_model_and_preprocess; print('OK')\"": Here(code, "OK"),
    "python -c \"from huggingface_hub import snapshot_download; snapshot_download('lmsys/vicuna-7b-v1.1', "
    "local_dir='/path/to/vicuna-7b-v1.1')\"": NotHere("13 GB from the network; docs/model.md"),
    'python -c "import alfworld; alfworld.agents.environment.download_data()"': Here(download),
    'os.environ["OPENAI_API_KEY"] = "your-api-key-here"': Elsewhere(
        "tests/xrl_alignment/agents/experts/llm/test_legacy.py::test_no_key",
        "the variable of that name, never in a file",
    ),
    'os.environ["OPENAI_API_BASE"] = "https://api.openai.com/v1"': Elsewhere(
        "tests/xrl_alignment/utils/test_reflections.py::test_a_model_writes_the_memories", "the variable of that name"
    ),
    # training and evaluation; `test_the_four_modes` runs them with small settings
    "python dagger_server.py": refused(dagger_server.main, "give --cfg-path FILE for a new run"),
    "qsub run_scripts/instructblip/finetuning/ft_caption_alfworld.sh": (
        script("train.py --cfg-path lavis/projects/instructblip/finetuning/alfworld_ft.yaml", PYTHON="echo", NPROC="1")
    ),
    "python -m torch.distributed.run --nproc_per_node=4 train.py "
    "--cfg-path lavis/projects/instructblip/finetuning/alfworld_ft.yaml": Elsewhere(
        "tests/test_train.py::test_sigterm_writes_a_checkpoint_and_ends_well", "two processes on a CPU"
    ),
    "python evaluate.py --cfg-path lavis/projects/instructblip/finetuning/alfworld_ft.yaml": Elsewhere(
        "tests/test_original_commands.py::test_the_four_modes", "with a split to evaluate on"
    ),
    "bash run_full_pipeline.sh": script("run_scripts/run_full_pipeline.sh "),
    "bash run_dagger.sh": script("run_scripts/run_dagger.sh "),
    "bash run_dagger.sh --background": Elsewhere(
        "tests/run_scripts/test_run_scripts.py::test_background_says_where_its_log_is"
    ),
    "tmux attach -t emac": Elsewhere("tests/run_scripts/test_run_scripts.py::test_tmux_session_holds_the_run"),
    "tail -f output/dagger_server_human_desc/*/running_nb01.log": Elsewhere(
        "tests/test_original_commands.py::test_the_four_modes", "below run.output_dir"
    ),
    "nvidia-smi": NotHere("needs a GPU; python -m xrl_alignment.doctor shows it"),
    # the simulator and the port
    "python test_thor.py": Here(thor, "thor"),
    "xvfb-run -a": NotHere("needs AI2-THOR; the diagnosis (--thor) says what it lacks"),
    "rm -f /tmp/ai2thor-fifo/*": NotHere("needs AI2-THOR; the diagnosis (--thor) names old pipes"),
    "ss -lptn 'sport = :7860'": Elsewhere(OUR_OWN, "the error names the process"),
    "kill <PID>": Elsewhere(OUR_OWN, "the error names the process; nothing is killed"),
    # the policy server
    "pip install fastapi uvicorn": EXTRA,
    "pip install transformers>=4.37.0": NotHere("a dependency of this project already"),
    "pip install qwen-vl-utils": NotHere("not needed: transformers reads the images"),
    "pip install torch torchvision": NotHere("torch is a dependency of this project; torchvision is not needed"),
    "pip install pillow": NotHere("a dependency of this project already"),
    "pip install accelerate": NotHere("an extra: pip install -e '.[quantization]'"),
    "pip install minerl aicrowd-gym": NotHere("MineRL needs Java and an old Python; a stand-in plays without it"),
    "python qwen_policy_server.py": Here(qwen),
    "uvicorn qwen_policy_server:app --host 0.0.0.0 --port 8001 --reload --log-level info": LAUNCHED,
    "gunicorn qwen_policy_server:app --workers 1 --worker-class uvicorn.workers.UvicornWorker --bind 0.0.0.0:8001 "
    "--timeout 120": LAUNCHED,
    "python qwen_policy_client.py": Elsewhere(
        "tests/policy_server/test_qwen_policy_client.py::test_the_example_runs_from_any_folder"
    ),
    "curl http://localhost:8001/health": Elsewhere(
        "tests/policy_server/web/test_app.py::test_the_published_routes_have_the_published_fields"
    ),
    "lsof -i :8001": Elsewhere(
        "tests/policy_server/test_qwen_policy_server.py::test_a_busy_port_is_named_and_ends_with_two",
        "the error names the process",
    ),
    "kill -9 <PID>": NotHere("the error about a busy port names the process; a signal is the user's decision"),
    "docker build -t qwen-policy-server .": Elsewhere(
        "tests/policy_server/test_deployment.py::test_the_image_copies_files_that_are_there_and_let_through",
        "the build itself needs Docker and the network",
    ),
    "docker run --gpus all -p 8001:8001 qwen-policy-server": Elsewhere(
        "tests/policy_server/test_deployment.py::test_the_commands_of_image_and_unit_are_understood",
        "the container itself needs Docker and a GPU",
    ),
    # split inference
    "python3.6 -m venv venv_py36": VENV,
    "source venv_py36/bin/activate": VENV,
    "pip install alfworld pyyaml pillow": VENV,
    "python3.11 -m venv venv_py311": VENV,
    "source venv_py311/bin/activate": VENV,
    "pip install vllm transformers pyyaml pillow tqdm": VENV,
    "python -c \"from alfworld.env.thor_env import ThorEnv; print('ALFWorld OK')\"": NotHere("needs the extra thor"),
    "python -c \"from vllm import LLM; print('vLLM OK')\"": NotHere("needs the extra vllm; make test-vllm"),
    "python run_split_inference.py --server-python $(pwd)/../venv_py36/bin/python "
    f"--client-python $(pwd)/../venv_py311/bin/python {SPLIT} --num-samples 100": understood(manager),
    "python alfworld_server.py --host localhost --port 5555": SERVER,
    f"python alfworld_vllm_client.py --host localhost --port 5555 {SPLIT}": CLIENT,
    "python alfworld_server.py --port 6000": SERVER,
    "python alfworld_vllm_client.py --port 6000": CLIENT_ASKS,
    "python alfworld_server.py --host 0.0.0.0 --port 5555": SERVER,
    "python alfworld_vllm_client.py --host machine1_ip --port 5555": CLIENT_ASKS,
    # rollouts on a cluster
    "ray start --head": Elsewhere(
        "tests/run_scripts/test_jobs.py::test_ray_starts_on_every_node_of_a_job_and_ends_with_the_command",
        "run_scripts/ray/head.sh",
    ),
    "ray start --address=…": Elsewhere(
        "tests/xrl_alignment/play/rollouts/test_ray.py::test_results_are_the_sequential_ones_and_every_node_plays",
        "run_scripts/ray/workers.sh",
    ),
    "ray job submit": NotHere("needs Ray's dashboard (extra ray); run_scripts/ray/submit.sh calls it"),
}


def rows(kind: type) -> list[str]:
    return [printed for printed, answer in COMMANDS.items() if isinstance(answer, kind)]


@pytest.mark.parametrize("printed", rows(Here))
def test_a_command_as_printed(printed, capsys):
    answer = COMMANDS[printed]
    out = answer.check(shlex.split(printed)) or ""
    captured = capsys.readouterr()
    assert answer.says in out + captured.out + captured.err


@pytest.mark.parametrize("printed", rows(Elsewhere))
def test_a_command_that_another_test_runs(printed):
    path, _, name = COMMANDS[printed].test.partition("::")
    assert re.search(rf"^def {name}\(", (REPO_ROOT / path).read_text(encoding="utf-8"), re.MULTILINE)


def test_every_program_is_where_the_table_says():
    called = {word for printed in COMMANDS for word in printed.split() if re.fullmatch(r"[\w/]+\.(?:py|sh|txt)", word)}
    called -= {"test_thor.py"}  # its place has taken `python -m xrl_alignment.doctor --thor`
    assert [name for name in called if not (REPO_ROOT / FOLDERS.get(name, "") / name).is_file()] == []
    assert all(row.reason for row in COMMANDS.values() if isinstance(row, NotHere))


# --- the four modes of the original's manual, with small settings -----------------------------------------------------

SHORT = ["run.num_rounds=1", "run.num_envs=1", "run.max_steps=3", "run.batch_size=2", "run.accum_grad_steps=1"]
SHORT += ["run.train_iters_per_epoch=1", "run.num_threads=1", "run.device=cpu", "server.port=0"]
SHORT += ["model.model_type=tiny", "policy.num_beams=1", "policy.min_length=1", "policy.max_length=4"]
FINE_TUNING = "lavis/projects/instructblip/finetuning/alfworld_ft.yaml"


def run(main: Callable[[], object], *words: object) -> None:
    with patch.object(sys, "argv", ["program", *map(str, words)]):
        main()


def play(data: Path, out: Path, *options: str) -> Path:
    """Server and client until the run has ended; returns its directory."""
    where = ["environment.name=native", "environment.split=household_train", f"environment.data={data}"]
    config = ["--cfg-path", "configs/dagger/small_bc.yaml", "--run-dir", out]
    server = threading.Thread(
        target=run, args=(dagger_server.main, *config, "--options", *SHORT, *where, *options), daemon=True
    )
    server.start()
    ready, deadline = out / "state" / "server.json", time.monotonic() + PATIENCE_S
    while not ready.exists():
        assert server.is_alive() and time.monotonic() < deadline
        time.sleep(0.02)
    port = json.loads(ready.read_text())["port"]
    games = ["--env", "native", "--split", "household_train", "--data", data, "--num-envs", 1, "--max-steps", 3]
    run(alfworld_client.main, "--port", port, *games)
    server.join(PATIENCE_S)
    assert (out / "DONE").exists()
    return out


def test_the_four_modes(household_data, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(REPO_ROOT)
    # 1: `python dagger_server.py`, and a client
    trained = play(household_data, tmp_path / "trained")
    assert "INFO:dagger_server_running:Task: [0], Iter: [0], Obs:" in (trained / "running_nb01.log").read_text()
    checkpoint, shards = trained / "emma_checkpoint_0.pth", trained / "state" / "buffer"
    # 2: `python train.py --cfg-path …/alfworld_ft.yaml`, on what 1 has stored
    small = [f"run.output_dir={tmp_path}", "run.job_id=tuned", "run.num_workers=0", "run.max_epoch=1"]
    small += ["run.batch_size_train=2", "run.num_threads=1", "run.device=cpu"]
    storage = "datasets.alfworld_cap.build_info.annotations"
    run(train.main, "--cfg-path", FINE_TUNING, "--options", f"{storage}.train.storage={shards}", *small)
    assert list((tmp_path / "tuned").glob("checkpoint_*.pth"))
    # 3: `python evaluate.py --cfg-path …/alfworld_ft.yaml`
    small[1] = "run.job_id=evaluated"
    split = [f"{storage}.val.storage={shards}", "run.valid_splits=[val]", f"model.pretrained={checkpoint}"]
    capsys.readouterr()
    run(evaluate.main, "--cfg-path", FINE_TUNING, "--options", *split, *small)
    assert re.search(r'^val:\n{\n "samples": 3,', capsys.readouterr().out, re.MULTILINE)
    # 4: `dagger_server.py` with `run_training = False`: the success rate of the checkpoint is in world.log
    options = ["run.run_training=false", "model.load_pretrained=true", f"model.pretrained={checkpoint}"]
    played = play(household_data, tmp_path / "played", *options)
    assert re.search(r"SUCCESS: [01]\n", (played / "logging_results" / "world.log").read_text())
    assert not list(played.glob("*.pth"))
