"""Both phases as processes: the hand-off, a kill in the second phase, and phases that cannot begin."""

import json
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml

from lavis.common.errors import ConfigError
from lavis.models.blip2_models.emac_config import PARTS
from xrl_alignment.builders.student import load_student
from xrl_alignment.common.errors import EnvironmentFault
from xrl_alignment.common.paths import REPO_ROOT
from xrl_alignment.config.loading import load_config, to_yaml
from xrl_alignment.config.resume import saved_settings
from xrl_alignment.config.schema import DaggerConfig
from xrl_alignment.pipeline import (
    PhaseError,
    client_command,
    find_phase,
    hand_off,
    handed_options,
    main,
    run_phase,
    run_pipeline,
    tail,
)
from xrl_alignment.runs.checkpoint import load_checkpoint, save_checkpoint

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


def kill_alone(process: subprocess.Popen, children: list[int]) -> None:
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
    command = [sys.executable, "-m", "xrl_alignment.pipeline", "--cfg-path", *phases]
    pipeline = subprocess.Popen(command, cwd=REPO_ROOT, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 240
    while not (journals := list(tmp_path.glob("out/dpo/*/state/episodes.jsonl"))):
        assert pipeline.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    children = list(map(int, Path(f"/proc/{pipeline.pid}/task/{pipeline.pid}/children").read_text().split()))
    environments = [Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") for pid in children]
    tokens = {line for lines in environments for line in lines if line.startswith(b"EMAC_TOKEN=")}
    assert len(tokens) == 1 and len(tokens.pop()) > 40  # server and client share one that was made for this run
    kill_alone(pipeline, children)
    (bc,), dpo = (tmp_path / "out" / "bc").iterdir(), journals[0].parent.parent
    assert (bc / "DONE").exists() and not (dpo / "DONE").exists()

    assert run_pipeline(phases, [], resume=dpo) == [dpo]

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


def test_a_busy_port_ends_in_one_line_and_leaves_nothing(phases, tmp_path):
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(PhaseError) as error:
            run_phase(phases[0], [f"server.port={port}"])
    assert f"port {port} is held by" in str(error.value) and "\n" not in str(error.value)
    assert list((tmp_path / "out" / "bc").iterdir()) == []


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


def test_a_phase_that_is_done_is_not_run_again(phases, tmp_path):
    done = written(phases[0], tmp_path / "done")
    (done / "DONE").touch()
    assert run_pipeline(phases[:1], [], resume=done) == [done]


def test_the_client_is_told_all_that_it_needs():
    options = ["environment.name=household", "environment.split=household_train", "environment.seed=3"]
    options += ["environment.show_ids=false", "environment.blank_frames=true", "run.num_workers=4", "run.max_steps=9"]
    words = " ".join(client_command(load_config(DaggerConfig, None, options)))
    wanted = "--env household, --split household_train, --seed 3, --num-workers 4, --max-steps 9, --num-envs 3"
    wanted += ", --num-train 2000, --num-heldout 100, --no-show-ids, --blank-frames"
    assert [part for part in wanted.split(", ") if part not in words] == [] and "--expert" not in words
    words = " ".join(client_command(load_config(DaggerConfig, None, ["expert.name=planner"])))
    assert "--expert planner" in words and "--num-train" not in words


def test_the_end_of_a_log(tmp_path):
    log = tmp_path / "log"
    log.write_bytes("\n".join(map(str, range(50))).encode() + b"\n\xff")
    assert tail(log, 2) == "49\n\ufffd"


def test_help_says_how_a_resume_works(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["pipeline", "--help"])
    with pytest.raises(SystemExit) as end:
        main()
    text = " ".join(capsys.readouterr().out.split())
    assert end.value.code == 0 and "RUN_DIR is the directory of the phase that was running" in text
