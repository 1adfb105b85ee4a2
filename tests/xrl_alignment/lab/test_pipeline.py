"""Both phases as processes: the hand-off, a kill in the second phase, and phases that cannot begin."""

import contextlib
import json
import os
import pty
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch
import yaml

import dagger_server
from alfworld_native.errors import EnvironmentFault
from lavis.common.errors import ConfigError
from lavis.common.files import LockedError
from lavis.common.paths import REPO_ROOT
from lavis.models.blip2_models.emac_config import PARTS
from tests import warm
from tests.alfworld_native import recorded_thor
from xrl_alignment.builders.student import load_student
from xrl_alignment.lab.pipeline import (
    VIRTUAL_DISPLAY,
    MissingNeedsError,
    PhaseError,
    _failure,
    client_command,
    find_phase,
    hand_off,
    handed_options,
    main,
    remembered,
    run_phase,
    run_pipeline,
    tail,
    tell_link,
)
from xrl_alignment.runs.checkpoint import load_checkpoint, save_checkpoint
from xrl_alignment.runs.directory import RunDirectory, RunDirectoryError
from xrl_alignment.settings.loading import load_config, to_yaml
from xrl_alignment.settings.resume import saved_settings
from xrl_alignment.settings.schema import DaggerConfig

FROZEN = {"freeze_vit": True, "freeze_qformer": True, "freeze_llm": True, "allow_random": list(PARTS)}


@pytest.fixture
def phases(tmp_path, household_data) -> list[str]:
    """Settings files of a BC and a DPO phase of seconds, their runs under `tmp_path/out/<phase>`."""
    paths = []
    for name, enable_dpo, beta in (("bc", False, [1.0]), ("dpo", True, [0.0])):
        run = {
            "num_rounds": 2, "num_envs": 2, "enable_dpo": enable_dpo, "batch_size": 2, "accum_grad_steps": 1,
            "train_iters_per_epoch": 1, "init_lr": 1e-2, "warmup_steps": 1, "max_steps": 6, "beta": beta,
            "num_threads": 1, "device": "cpu", "output_dir": str(tmp_path / "out" / name),
        }  # fmt: skip
        settings = {
            "run": run,
            "model": FROZEN,
            "environment": {"name": "native", "split": "household_train", "data": str(household_data)},
            "policy": {"num_beams": 1, "max_length": 8},
            "server": {"port": 0},
        }
        paths.append(str(tmp_path / f"{name}.yaml"))
        Path(paths[-1]).write_text(yaml.safe_dump(settings))
    return paths


def running(pid: int) -> bool:
    """Whether a process is there and no zombie (nobody may wait for one whose parent was killed)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def kill_alone(process: warm.Program, children: list[int]) -> None:
    """SIGKILL for the pipeline alone: it cannot stop its server and client, they end by themselves."""
    process.kill()
    process.wait()
    deadline = time.monotonic() + 60
    while any(map(running, children)):
        assert time.monotonic() < deadline, "server or client run on"
        time.sleep(0.1)


def scalars(run: Path, tag: str) -> list[float]:
    lines = map(json.loads, (run / "state" / "metrics.jsonl").read_text().splitlines())
    return [line["value"] for line in lines if line["tag"] == tag]


def test_bc_is_handed_to_dpo_and_a_pipeline_killed_there_goes_on(phases, tmp_path):
    with open(tmp_path / "printed", "w") as printed:
        pipeline = warm.Program(["-m", "xrl_alignment.pipeline", "--cfg-path", *phases], stdout=printed)
    deadline = time.monotonic() + 240
    while not (journals := list(tmp_path.glob("out/dpo/*/state/episodes.jsonl"))):
        assert pipeline.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    children = list(map(int, Path(f"/proc/{pipeline.pid}/task/{pipeline.pid}/children").read_text().split()))
    environments = [Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") for pid in children]
    tokens = {line for lines in environments for line in lines if line.startswith(b"EMAC_TOKEN=")}
    assert len(tokens) == 1  # server and client share one that was made for this run
    token = tokens.pop().removeprefix(b"EMAC_TOKEN=").decode()
    assert len(token) > 40
    port = json.loads((journals[0].parent / "server.json").read_text())["port"]
    printed = (tmp_path / "printed").read_text()
    links = [line for line in printed.splitlines() if line.startswith("watch it: ")]
    file = journals[0].parent / "dashboard_link"
    assert len(links) == 2 and links[-1].startswith(f"watch it: http://127.0.0.1:{port}/ ") and str(file) in links[-1]
    assert token not in printed, "the output of a batch job can be read by others"
    assert file.read_text() == f"http://127.0.0.1:{port}/#token={token}\n" and file.stat().st_mode & 0o777 == 0o600
    kill_alone(pipeline, children)
    (bc,), dpo = (tmp_path / "out" / "bc").iterdir(), journals[0].parent.parent
    assert (bc / "DONE").exists() and not (dpo / "DONE").exists()

    assert run_pipeline(phases, [], resume=dpo) == [dpo]

    assert not list(tmp_path.glob("out/*/*/state/dashboard_link")), "no link outlives its token"
    assert (dpo / "DONE").exists() and len(journals[0].read_text().splitlines()) == 4
    first, second = bc / "emma_checkpoint_1.pth", dpo / "emma_checkpoint_1.pth"
    model, _ = load_student(saved_settings(dpo).model, torch.device("cpu"))
    bc_state, dpo_state = (load_checkpoint(path) for path in (first, second))
    assert bc_state["base_hash"] == dpo_state["base_hash"] == model.base_hash()  # what is frozen is bit-equal
    untrained, _ = load_student(FROZEN, torch.device("cpu"))
    for name, value in bc_state["model"].items():
        assert not torch.equal(value, untrained.state_dict()[name]) and not torch.equal(value, dpo_state["model"][name])
        assert torch.equal(value, model.reference.state_dict()[name])  # pi_ref is phase 1's checkpoint,
        assert torch.equal(value, model.state_dict()[name])  # and so is the start
    rewards = scalars(dpo, "train/chosen_reward")
    assert abs(rewards[0]) < 1e-3 < abs(rewards[-1])  # the policy leaves its reference, which stays


def test_a_terminal_gets_the_link_with_the_token(tmp_path):
    ours, theirs = pty.openpty()
    with open(theirs, "w") as terminal, contextlib.redirect_stdout(terminal):
        tell_link(tmp_path, "http://127.0.0.1:7860/", "sesame")
        shown = os.read(ours, 1000).decode()
    os.close(ours)
    assert "watch it: http://127.0.0.1:7860/#token=sesame" in shown and list(tmp_path.iterdir()) == []


def test_a_run_that_a_server_plays_is_left_alone(phases, tmp_path):
    """The port of the server was deleted, and a second server loaded its model before it was refused."""
    live = written(phases[0], tmp_path / "live")
    with contextlib.closing(RunDirectory(live)):
        (live / "state" / "server.json").write_text('{"port": 7860, "pid": 1}')
        with pytest.raises(RunDirectoryError, match=rf"process {os.getpid()} is writing to {live}"):
            run_pipeline(phases[:1], [], resume=live)
        assert (live / "state" / "server.json").read_text() == '{"port": 7860, "pid": 1}'
    assert not (live / "server.log").exists()


@pytest.mark.slow
def test_a_second_pipeline_with_the_same_file_or_directory_is_refused(phases, tmp_path):
    job = tmp_path / "jobs" / "17"
    command = [sys.executable, "-m", "xrl_alignment.pipeline", "--cfg-path", phases[0], "--remember", str(job)]
    first = subprocess.Popen(command, cwd=REPO_ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    run = Path(told(job, 60, first).strip())
    with pytest.raises(LockedError, match=rf"^process {first.pid} is writing to {job}: wait for its end"):
        run_pipeline(phases[:1], [], remember=job)
    told(run / "config.yaml", 60, first)
    with pytest.raises(LockedError, match=rf"^process {first.pid} is writing to {run}: wait for its end"):
        run_pipeline(phases[:1], [], resume=run)
    assert first.wait(240) == 0, first.stdout.read()
    assert list((tmp_path / "out" / "bc").iterdir()) == [run] and job.read_text() == f"{run}\n"
    assert run_pipeline(phases[:1], [], remember=job) == [run], "it is free again"


def test_a_busy_port_ends_in_one_line_and_leaves_nothing(phases, tmp_path):
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(PhaseError) as error:
            run_phase(phases[0], [f"server.port={port}"])
    assert f"port {port} is held by" in str(error.value) and "\n" not in str(error.value)
    assert list((tmp_path / "out" / "bc").iterdir()) == []


def test_a_server_that_ends_late_after_its_run_is_no_failure(phases, monkeypatch):
    """Before, the client was blamed ("ended with code 0") though all was written; a large model may take its time."""
    monkeypatch.setattr("xrl_alignment.lab.pipeline.GOODBYE_S", 0.0)
    assert (run_phase(phases[0], ["run.num_rounds=1"]) / "DONE").exists()


def test_without_games_no_process_starts(phases, tmp_path):
    with pytest.raises(EnvironmentFault, match="no games of split 'nowhere'"):
        run_phase(phases[0], ["environment.split=nowhere"])
    with pytest.raises(EnvironmentFault, match="99 were asked for"):
        run_phase(phases[0], ["run.num_envs=99"])
    assert not (tmp_path / "out").exists()


def test_the_hand_off_takes_the_newest_checkpoint_and_checks_it(tmp_path):
    with pytest.raises(PhaseError, match="holds no emma_checkpoint_<round>.pth: set run.save_ckpt=true"):
        hand_off(tmp_path)
    model, _ = load_student(FROZEN, torch.device("cpu"))
    for round in (0, 11):
        save_checkpoint(tmp_path / f"emma_checkpoint_{round}.pth", model=model)
    assert hand_off(tmp_path).name == "emma_checkpoint_11.pth"
    (tmp_path / "emma_checkpoint_11.pth").write_bytes(b"PK half")
    with pytest.raises(ValueError, match="emma_checkpoint_11.pth cannot be read"):
        hand_off(tmp_path)


def written(cfg_path: str, folder: Path, *options: str) -> Path:
    """A run directory as a phase with these settings leaves it."""
    folder.mkdir()
    (folder / "config.yaml").write_text(to_yaml(load_config(DaggerConfig, cfg_path, options)))
    return folder


def test_a_run_directory_tells_its_phase_and_what_was_handed_to_it(phases, tmp_path):
    handed = handed_options("a.pth", "b.pth")
    one = written(phases[0], tmp_path / "one", "run.seed=5")
    two = written(phases[1], tmp_path / "two", "run.seed=5", *handed)
    assert find_phase(phases, ["run.seed=5"], one) == (0, [])
    assert find_phase(phases, ["run.seed=5"], two) == (1, handed)
    assert find_phase(phases[1:], ["run.seed=5"], two) == (0, handed)  # the second phase alone
    with pytest.raises(ConfigError, match="cannot be resumed with other settings: run.seed: 5 → 6$"):
        find_phase(phases, ["run.seed=6"], two)


def test_a_checkpoint_is_handed_over_whatever_its_folder_is_called(phases):
    """Of `/runs #2/a.pth` yaml reads `/runs`: the next phase began with another file, or with none."""
    model = load_config(DaggerConfig, phases[1], handed_options("/runs #2/a.pth", "/b: c.pth")).model
    assert (model["pretrained"], model["ref_pretrained"]) == ("/runs #2/a.pth", "/b: c.pth")


def test_of_phases_of_one_file_the_noted_number_counts(phases, tmp_path):
    """DPO twice with one file: the second one was taken for the first, and a phase too many was run."""
    handed = handed_options("x.pth", "x.pth")
    third = written(phases[1], tmp_path / "three", *handed)
    with pytest.raises(ConfigError, match="may be each of the phases 2, 3: give the files of the phases to run alone"):
        find_phase([*phases, phases[1]], [], third)
    (third / "state").mkdir(exist_ok=True)
    (third / "state" / "phase").write_text("phase 3 of 3\n")
    assert find_phase([*phases, phases[1]], [], third) == (2, handed)


def test_a_phase_that_is_done_is_not_run_again(phases, tmp_path):
    done = written(phases[0], tmp_path / "done")
    (done / "DONE").touch()
    assert run_pipeline(phases[:1], [], resume=done) == [done]


def test_the_client_is_told_all_that_it_needs():
    options = ["environment.name=household", "environment.split=household_train", "environment.seed=3"]
    options += ["environment.show_ids=false", "run.num_workers=4", "run.max_steps=9"]
    options += ["environment.image_noise=dropped", "environment.image_severity=3", "environment.camera=around"]
    options += ["environment.name_by=type"]
    words = " ".join(client_command(load_config(DaggerConfig, None, options)))
    wanted = "--env household, --split household_train, --seed 3, --num-workers 4, --max-steps 9, --num-envs 3"
    wanted += ", --num-train 2000, --num-heldout 100, --no-show-ids"
    wanted += ", --image-noise dropped --image-severity 3, --camera around, --name-by type"
    assert [part for part in wanted.split(", ") if part not in words] == [] and "--expert" not in words
    options = ["expert.name=planner", "environment.blank_frames=true"]
    words = " ".join(client_command(load_config(DaggerConfig, None, options)))
    assert "--expert planner" in words and "--blank-frames" in words and "--num-train" not in words
    # The client's own default is 127.0.0.1.
    for host, told in (("127.0.0.1", False), ("localhost", False), ("::1", True), ("127.0.0.2", True)):
        words = dagger_server.client_command(load_config(DaggerConfig, None, [f"server.host='{host}'"]), 7860)
        assert (f"--host {host}" in words) == told


def test_the_end_of_a_log(tmp_path):
    log = tmp_path / "log"
    log.write_bytes("\n".join(map(str, range(50))).encode() + b"\n\xff")
    assert tail(log, 2) == "49\n\ufffd"


def test_a_log_that_was_removed_with_its_run_is_said_in_one_line(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(1)"])
    process.wait()
    said = str(_failure("server", process, tmp_path / "run" / "server.log"))
    assert "ended with code 1" in said and "removed or renamed" in said


def test_help_says_how_a_resume_works(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["pipeline", "--help"])
    with pytest.raises(SystemExit) as end:
        main()
    text = " ".join(capsys.readouterr().out.split())
    assert end.value.code == 0 and "RUN_DIR is the directory of the phase that was running" in text


def test_a_folder_to_resume_that_is_not_there_is_named(tmp_path, monkeypatch):
    """Before, `--cfg-path` was asked for, which the folder of EMAC+'s loop does not need."""
    monkeypatch.setattr(sys, "argv", ["pipeline", "--resume", str(tmp_path / "nowhere")])
    with pytest.raises(ConfigError, match="nowhere is not a run directory: it has no config.yaml"):
        main()


def test_what_is_missing_is_said_before_anything_starts(phases, tmp_path, monkeypatch):
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    options = ["expert.name=openai", "expert.model=some-model", "expert.key_variable=NO_SUCH_KEY"]
    with pytest.raises(MissingNeedsError) as error:
        run_pipeline(phases, options)
    assert str(error.value).count("NO_SUCH_KEY") == 1 and "\n" not in str(error.value)  # once, for both phases
    needs = "(?s)lacks\n  settings: environment.split: unknown .*\n  games: no games of split .*\n  teacher: no key"
    with pytest.raises(MissingNeedsError, match=needs):
        run_pipeline(phases, [*options, "environment.split=nowhere"])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("key", ["run.save_ckpt", "run.run_training"])
def test_a_phase_that_leaves_the_next_one_nothing_is_refused_before_anything_starts(phases, tmp_path, key):
    with pytest.raises(ConfigError, match=rf"bc\.yaml: {key}=false leaves no checkpoint"):
        run_pipeline(phases, [f"{key}=false"])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("adapters", ["model.arch=hf_vlm model.path=nowhere", "model.lora_rank=4"])
def test_dpo_of_adapters_in_shards_is_refused_before_cloning(phases, tmp_path, adapters):
    options = [*adapters.split(), "run.learner=decoupled", "run.learner_processes=2", "run.learner_fsdp=true"]
    with pytest.raises(ConfigError, match=r"dpo\.yaml: run\.learner_fsdp=true cannot shard adapters"):
        run_pipeline(phases, options)
    assert not (tmp_path / "out").exists()


def test_a_dry_run_says_what_there_is_and_starts_nothing(phases, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["pipeline", "--dry-run", "--cfg-path", *phases])
    main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{phases[0]}:" and "  ok    games: 2 of household_train" in lines
    assert any(line.startswith("  ok    model.llm_model: ") for line in lines)
    assert lines[-1] == "nothing is missing; nothing was started" and not (tmp_path / "out").exists()


def test_the_last_directory_with_settings_is_remembered(phases, tmp_path):
    file = tmp_path / "jobs" / "17"
    assert remembered(file) is None
    done = written(phases[0], tmp_path / "done")
    (done / "DONE").touch()
    file.parent.mkdir()
    file.write_text(f"{done}\n{tmp_path / 'killed before it had settings'}\n")
    assert run_pipeline(phases[:1], [], remember=file) == [done]


def test_thor_without_a_display_gets_one(monkeypatch):
    config = load_config(DaggerConfig, None, ["environment.name=thor"])
    monkeypatch.delenv("DISPLAY", raising=False)
    assert client_command(config)[:3] == list(VIRTUAL_DISPLAY)
    assert client_command(load_config(DaggerConfig, None))[0] == sys.executable
    monkeypatch.setenv("DISPLAY", ":0")
    assert client_command(config)[0] == sys.executable


def told(path: Path, seconds: float, process: subprocess.Popen) -> str:
    """The content of a file that will be there."""
    deadline = time.monotonic() + seconds
    while not (path.is_file() and path.read_text()):
        assert process.poll() is None and time.monotonic() < deadline, process.stdout.read()
        time.sleep(0.1)
    return path.read_text()


def own(process: psutil.Process, variable: str) -> str | None:
    """A variable in the environment of a process; None where it cannot be read."""
    try:
        return process.environ().get(variable)
    except psutil.Error:
        return None


@pytest.mark.slow
def test_the_originals_setup_with_a_recorded_simulator(tmp_path, alfworld_data):
    """small_original_bc.yaml with a tiny model and the explorer: display, alfworld's source, kill, clean-up, resume."""
    if shutil.which("xvfb-run") is None:
        pytest.skip("xvfb-run is not installed: apt-get install xvfb xauth")
    recorded_thor.write_packages(tmp_path / "packages")
    (tmp_path / "home/.ai2thor/releases/thor-recorded").mkdir(parents=True)
    environment = {name: value for name, value in os.environ.items() if name != "DISPLAY"}
    environment |= {"HOME": str(tmp_path / "home"), "PYTHONPATH": f"{tmp_path / 'packages'}:{REPO_ROOT}"}
    environment |= {"ALFWORLD_DATA": str(alfworld_data), "OMP_NUM_THREADS": "1"}
    settings = "model.model_type=tiny expert.name=explorer reflexion.reflector=rule run.num_rounds=3 run.num_envs=1 "
    settings += "run.max_steps=4 run.batch_size=2 run.accum_grad_steps=1 run.train_iters_per_epoch=1 run.num_threads=1 "
    settings += f"policy.num_beams=1 policy.max_length=8 server.port=0 run.output_dir={tmp_path / 'out'}"
    command = [sys.executable, "-m", "xrl_alignment.pipeline", "--remember", str(tmp_path / "job")]
    command += ["--cfg-path", "configs/dagger/small_original_bc.yaml", "--options", *settings.split()]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    pipeline = subprocess.Popen(command, cwd=REPO_ROOT, env=environment, **pipes)
    run = Path(told(tmp_path / "job", 60, pipeline).strip())
    told(run / "state/episodes.jsonl", 120, pipeline)
    scratch = Path((run / "state/scratch").read_text())
    (pipe,) = scratch.rglob("server.pipe")
    marked = [process for process in psutil.process_iter() if own(process, "TMPDIR") == str(scratch)]
    displays = {own(process, "DISPLAY") for process in marked if process.name() == "sleep"}
    assert len(displays) == 1 and displays != {None}  # the simulator had one
    programs = [pipeline, *psutil.Process(pipeline.pid).children(recursive=True)]
    for process in programs:  # as a machine that fails would; display and simulator stay
        if process is pipeline or process.name() not in ("sleep", "Xvfb"):
            process.kill()
    pipeline.wait()

    ended = subprocess.run(command, cwd=REPO_ROOT, env=environment, timeout=240, **pipes)

    assert ended.returncode == 0, ended.stdout + (run / "client.log").read_text()
    assert (run / "DONE").is_file() and list((tmp_path / "out").iterdir()) == [run]
    assert "removed what an earlier start of this run had left: process" in ended.stdout and "(sleep)" in ended.stdout
    assert f"1 pipes in {scratch}" in ended.stdout and not pipe.exists()
    assert not any(process.is_running() for process in marked)
    assert not (run / "state/scratch").exists()
