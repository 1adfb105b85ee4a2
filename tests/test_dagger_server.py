"""`dagger_server.py` as a terminal starts it: two processes on official games, a kill and a resume, and mistakes."""

import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from pathlib import Path

import pytest
import torch
import yaml

import dagger_server
from lavis.common.errors import ConfigError
from lavis.common.program import run_program
from lavis.models.blip2_models import adapters, weights
from lavis.models.blip2_models.emac_config import PARTS
from lavis.models.hf_vlm import tiny
from tests import warm
from tests.ports import free_port
from tests.xrl_alignment.agents.policies.vllm.small_engine import SmallEngine
from xrl_alignment.builders import named
from xrl_alignment.builders.student import load_student
from xrl_alignment.dagger.building import build_learner
from xrl_alignment.runs.checkpoint import load_checkpoint, save_checkpoint
from xrl_alignment.runs.directory import RunDirectory
from xrl_alignment.settings.loading import load_config
from xrl_alignment.settings.schema import DaggerConfig

ROOT = Path(__file__).resolve().parent.parent
SMALL = {
    "run": {
        "num_rounds": 2, "num_envs": 3, "batch_size": 2, "accum_grad_steps": 1, "train_iters_per_epoch": 1,
        "warmup_steps": 2, "init_lr": 1e-3, "max_steps": 4, "beta": [1.0, 0.0], "num_threads": 1,
        "state_interval_s": 0.0, "device": "cpu",
    },
    "policy": {"num_beams": 1, "max_length": 8},
    "server": {"session_timeout_s": 600.0},  # a busy machine is no silent client
}  # fmt: skip


@pytest.fixture
def settings(tmp_path) -> Path:
    """A settings file for a run of seconds, its output under `tmp_path/out`."""
    path = tmp_path / "settings.yaml"
    path.write_text(yaml.safe_dump(SMALL | {"run": SMALL["run"] | {"output_dir": str(tmp_path / "out")}}))
    return path


@pytest.fixture
def start(tmp_path):
    """Starts root programs as processes, their output in a file; kills what is left at the end."""
    running = []

    def starter(program: str, *arguments: object) -> warm.Program:
        log = open(tmp_path / f"{program}.log", "a")
        running.append(warm.Program([ROOT / program, *arguments], stdout=log, stderr=subprocess.STDOUT))
        return running[-1]

    yield starter
    for process in running:
        if process.poll() is None:
            process.kill()
        process.wait()


def wait_until(condition, *watched: warm.Program, seconds: float = 150.0):
    """Look every twentieth of a second until `condition()` is true (while `watched` run); returns it."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert all(process.poll() is None for process in watched), "a process ended early"
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)
    return value


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


# The native engine runs two rounds in the test after this one as well, so here it is for the thorough.
@pytest.mark.parametrize(
    ("engine", "expert"), [("textworld", "handcoded"), pytest.param("native", None, marks=pytest.mark.slow)]
)
def test_two_processes_two_rounds_three_official_games(alfworld_data, settings, start, tmp_path, engine, expert):
    run_dir, port = tmp_path / "run", free_port()
    server_options = [f"server.port={port}", *([f"expert.name={expert}"] if expert else [])]
    server_options += [f"environment.name={engine}", f"environment.data={alfworld_data}", "environment.seed=244"]
    games = ["--env", engine, "--data", alfworld_data, "--split", "valid_seen", "--num-envs", 3, "--max-steps", 4]
    games += ["--seed", 244]  # three small rooms: TextWorld loads a kitchen ten times as long
    client = start("alfworld_client.py", "--port", port, *games, *(["--expert", expert] if expert else []))
    wait_until(lambda: "waiting for the server" in (tmp_path / "alfworld_client.py.log").read_text(), client)
    server = start("dagger_server.py", "--cfg-path", settings, "--run-dir", run_dir, "--options", *server_options)
    assert server.wait(200) == 0 and client.wait(60) == 0, (tmp_path / "dagger_server.py.log").read_text()
    directory = RunDirectory(run_dir)
    journal = directory.episodes()
    directory.close()
    assert directory.done and Counter(r.game for r in journal) == dict.fromkeys(directory.games(), 2)
    assert [r.assisted for r in journal] == [True] * 3 + [False] * 3
    assert all(r.steps[0][0].startswith(("go to ", "look", "take ", "open ")) for r in journal[:3])
    assert (run_dir / "logging_results" / "world.log").read_text().count("TOTAL: 3\n") == 2
    assert load_checkpoint(run_dir / "emma_checkpoint_1.pth")["training_step"] == 6
    log = (run_dir / "running_nb01.log").read_text()
    assert "INFO:dagger_server_running:Task: [2], Iter: [3], Obs: " in log and "VLM Action: -, LLM Action: " in log


def test_sigkill_in_mid_episode_loses_that_episode_alone(alfworld_data, settings, start, tmp_path):
    run_dir, port = tmp_path / "run", free_port()
    games = ["--env", "native", "--data", alfworld_data, "--num-envs", 3, "--max-steps", 15]
    client = start("alfworld_client.py", "--port", port, *games)
    options = ["--options", f"server.port={port}", "run.max_steps=15", "run.beta=[0.0]"]
    server = start("dagger_server.py", "--cfg-path", settings, "--run-dir", run_dir, *options)
    journal, log = run_dir / "state" / "episodes.jsonl", run_dir / "running_nb01.log"
    second_episode = "INFO:dagger_server_running:Task: [1], Iter: ["
    wait_until(lambda: any(line.startswith(second_episode) for line in lines(log)), server)
    server.kill()
    server.wait()
    whole = len(lines(journal))
    assert 1 <= whole < 6  # a fast machine may have played on before the signal came
    (run_dir / "state" / "buffer" / "round001_env0002_steps014.h5").write_bytes(b"never finished")
    again = start("dagger_server.py", "--resume", run_dir)
    assert again.wait(200) == 0 and client.wait(60) == 0, (tmp_path / "dagger_server.py.log").read_text()
    played = Counter((r["round"], r["env"], r["game"]) for r in map(json.loads, lines(journal)))
    expected = {
        (round, env, game)
        for round in range(2)
        for env, game in enumerate(json.load(open(run_dir / "state" / "games.json")))
    }
    assert set(played) == expected and set(played.values()) == {1}
    assert f"Resumed after {whole} episodes, in round {whole // 3}" in log.read_text() and (run_dir / "DONE").exists()


def test_sigterm_ends_the_server_in_order(settings, start, tmp_path):
    server = start("dagger_server.py", "--cfg-path", settings, "--options", "server.port=0")
    (announcement,) = wait_until(lambda: list(tmp_path.glob("out/*/state/server.json")), server)
    announced = json.loads(announcement.read_text())
    assert announced["pid"] == server.pid
    with urllib.request.urlopen(f"http://127.0.0.1:{announced['port']}/", timeout=60) as page:
        assert "<title>EMAC+ run</title>" in page.read().decode()
    events = urllib.request.urlopen(f"http://127.0.0.1:{announced['port']}/events", timeout=60)
    assert events.readline().startswith(b"event: "), "a viewer does not keep the server from its end"
    server.send_signal(signal.SIGTERM)
    assert server.wait(120) == 130
    assert "Traceback" not in (tmp_path / "dagger_server.py.log").read_text()


def test_a_run_whose_folder_is_removed_ends_in_one_line(household_data, settings, start, tmp_path):
    run_dir, log = tmp_path / "run", tmp_path / "dagger_server.py.log"
    options = ["server.port=0", "environment.split=household_train", f"environment.data={household_data}"]
    server = start("dagger_server.py", "--cfg-path", settings, "--run-dir", run_dir, "--options", *options)
    wait_until(lambda: "Waiting for a client: " in log.read_text(), server)
    shutil.rmtree(run_dir / "state" / "buffer")  # `rm -r` of the folder is under way
    start(*shlex.split(log.read_text().splitlines()[-1].partition("python ")[2]))
    assert server.wait(100) == 2
    assert f"error: {run_dir} was removed or renamed" in log.read_text() and "Traceback" not in log.read_text()


# --- clients that do not fit ------------------------------------------------------------------------------------------


def test_other_games_are_refused_and_the_printed_command_plays(household_data, settings, start, tmp_path):
    """Wrong split, then no labels, then the command that the server prints while it waits; at last a resume."""
    run_dir, port, log = tmp_path / "run", free_port(), tmp_path / "dagger_server.py.log"
    options = [f"server.port={port}", "environment.split=household_train", f"environment.data={household_data}"]
    options += ["expert.name=client", "run.num_rounds=1", "run.num_envs=2", "run.train_every=4"]
    server = start("dagger_server.py", "--cfg-path", settings, "--run-dir", run_dir, "--options", *options)
    wait_until(lambda: "Waiting for a client: " in log.read_text(), server)
    said = log.read_text()
    assert "run.train_every=4, but the run has at most 2 episodes: the model is updated once, at the end" in said
    games = ["--port", port, "--data", household_data, "--num-envs", 2, "--max-steps", 4]
    client_log = tmp_path / "alfworld_client.py.log"
    for arguments, reason in (
        (["--split", "household_heldout", "--expert", "explorer"], "the client plays native household_heldout, this"),
        (["--split", "household_train", "--seed", 3, "--expert", "explorer"], "are not those of this run's settings"),
        (
            ["--split", "household_train", "--expert", "explorer", "--camera", "close"],
            "shows its games with camera=close",
        ),
        (["--split", "household_train"], "expert.name=client takes the labels from here"),
    ):
        assert start("alfworld_client.py", *games, *arguments).wait(100) == 2
        assert reason in client_log.read_text().splitlines()[-1]
    printed = next(line for line in said.splitlines() if line.startswith("Waiting for a client: "))
    program, *arguments = shlex.split(printed.removeprefix("Waiting for a client: python "))
    assert start(program, *arguments).wait(100) == 0 and server.wait(100) == 0
    assert "refused a client: the client plays native household_heldout" in log.read_text()
    content = load_checkpoint(run_dir / "emma_checkpoint_0.pth")["played"]
    assert content["environments"] == ["native household_train"] and len(content["games"]) == 2
    again = start("dagger_server.py", "--resume", run_dir)
    assert again.wait(100) == 0 and f"{run_dir} has ended (DONE): nothing is left to play" in log.read_text()


def test_an_evaluation_needs_no_key_of_an_expert_that_it_never_asks(household_data, settings, start, tmp_path):
    run_dir, port, log = tmp_path / "run", free_port(), tmp_path / "dagger_server.py.log"
    options = [f"server.port={port}", "environment.split=household_train", f"environment.data={household_data}"]
    options += ["expert.name=openai", "expert.model=m", "expert.key_variable=NO_SUCH_KEY", "expert.cache="]
    options += ["reflexion.reflector=rule", "run.run_training=false", "run.num_rounds=2", "run.num_envs=2"]
    server = start("dagger_server.py", "--cfg-path", settings, "--run-dir", run_dir, "--options", *options)
    wait_until(lambda: "Waiting for a client: " in log.read_text(), server)
    printed = next(line for line in log.read_text().splitlines() if line.startswith("Waiting for a client: "))
    program, *arguments = shlex.split(printed.removeprefix("Waiting for a client: python "))
    assert start(program, *arguments).wait(100) == 0 and server.wait(100) == 0
    assert "(by rule)" in (run_dir / "logging_results" / "env_results_trial_0.json").read_text()


def test_an_expert_of_ones_own_labels_a_run_by_name(household_data, settings, start, tmp_path):
    run_dir, port = tmp_path / "run", free_port()
    options = [f"server.port={port}", "environment.split=household_heldout", f"environment.data={household_data}"]
    options += ["environment.name=examples.custom_environment:OneRoomEnvironment", "run.num_envs=1", "run.num_rounds=1"]
    options += ["expert.name=examples.custom_expert:OrderlyExpert", "run.max_steps=3"]
    options += ["policy.name=examples.custom_policy:WordMatchPolicy"]
    server = start("dagger_server.py", "--cfg-path", settings, "--run-dir", run_dir, "--options", *options)
    games = ["--env", "examples.custom_environment:OneRoomEnvironment", "--split", "household_heldout", "--num-envs", 1]
    client = start("alfworld_client.py", "--port", port, "--data", household_data, *games)
    assert client.wait(150) == 0 and server.wait(60) == 0, (tmp_path / "dagger_server.py.log").read_text()
    content = json.loads((run_dir / "state" / "environment.json").read_text())
    assert content["environments"] == ["one-room household_heldout"]
    (record,) = map(json.loads, lines(run_dir / "state" / "episodes.jsonl"))
    assert record["states"] == 3 and record["actions"] == 3


# --- mistakes: one line, exit code 2, nothing written -----------------------------------------------------------------


def test_adapters_train_while_an_inference_engine_serves_them(household_data, settings, start, tmp_path):
    frozen = {f"freeze_{part}": True for part in ("llm", "vit", "qformer")}
    section = {**frozen, "lora_rank": 2, "allow_random": list(PARTS)}
    model, _ = load_student(section, torch.device("cpu"))
    engine = SmallEngine(adapters.without(model.llm_model))
    try:
        content = yaml.safe_load(settings.read_text()) | {
            "model": section,
            "environment": {"name": "native", "split": "household_train", "data": str(household_data)},
        }
        content["policy"] |= {"name": "vllm", "base_urls": [engine.url], "adapter_folder": str(tmp_path / "adapters")}
        settings.write_text(yaml.safe_dump(content))
        server = start("dagger_server.py", "--cfg-path", settings, "--options", "server.port=0")
        (said,) = wait_until(lambda: list(tmp_path.glob("out/*/state/server.json")), server)
        games = ["--env", "native", "--data", household_data, "--split", "household_train", "--num-envs", 3]
        start("alfworld_client.py", "--port", json.loads(said.read_text())["port"], "--max-steps", 4, *games)
        assert server.wait(150) == 0
    finally:
        engine.close()
    assert len(engine.names) >= 4 and len(engine.loaded) == 1  # the policy saw a round's updates before the next
    assert not list(tmp_path.glob("adapters/*"))


@pytest.fixture
def fails(monkeypatch, capsys):
    """Runs `dagger_server.main` in this process; returns the error line of a run that had to end with code 2."""

    def run(*arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", ["dagger_server.py", *map(str, arguments)])
        monkeypatch.setattr(signal, "signal", lambda *_: None)
        with pytest.raises(SystemExit) as end:
            run_program(dagger_server.main)
        error = capsys.readouterr().err.splitlines()
        assert end.value.code == 2 and len(error) == 1 and error[0].startswith("error: ")
        return error[0]

    return run


RANDOM = f"model.allow_random=[{','.join(PARTS)}]"


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ("run.num_round=3", "unknown key 'run.num_round': did you mean 'run.num_rounds'?"),
        ("run.num_rounds=three", "run.num_rounds: 'three' has the wrong type"),
        ("model.model_type=huge", "unknown model type 'huge'"),
        ("model.freeze_vitt=true", "unknown key 'model.freeze_vitt': did you mean 'model.freeze_vit'?"),
        ("expert.name=oracle", "expert.name: 'oracle' is not one of explorer"),
        ("environment.name=minecraft", "environment.name: 'minecraft' is not one of native"),
        ("environment.split=valid_sen", "environment.split: unknown split 'valid_sen': did you mean 'valid_seen'?"),
        ("expert.name=nowhere_at_all:X", "expert nowhere_at_all:X: there is no module nowhere_at_all"),
        ("expert.max_missing_labels=2", "expert.max_missing_labels: 2.0 is not a number from 0 to 1"),
        ("server.host=0.0.0.0", "set server.token_file (or $EMAC_TOKEN) as well"),
        ("server.token=x", "server.token: a token has at least 16 characters"),
        ("run.enable_dpo=true", "run.enable_dpo needs model.ref_pretrained"),
        ("model.pretrained=nothing.pth", "nothing.pth"),
        ("model.freeze_vit=true", "no file brought the weights of visual_encoder (set model.vit_weights: "),
    ],
)
def test_settings_that_cannot_be_used(settings, fails, tmp_path, option, reason):
    assert reason in fails("--cfg-path", settings, "--options", "server.port=0", option)
    assert not (tmp_path / "out").exists()


def test_alfworlds_experts_read_alfworlds_games(settings, fails):
    own = ["expert.name=planner", "environment.name=examples.custom_environment:OneRoomEnvironment"]
    line = fails("--cfg-path", settings, "--options", "server.port=0", *own)
    assert "expert.name=planner reads the state of ALFWorld's games" in line and "environment.name=native" in line


def test_a_missing_key_is_said_before_the_model_is_loaded(settings, fails, monkeypatch):
    monkeypatch.setattr(dagger_server, "load_student", lambda *_: pytest.fail("the model is loaded first"))
    teacher = ["expert.name=openai", "expert.model=m", "expert.key_variable=NO_SUCH_KEY", "expert.cache="]
    assert "no key: set the environment variable NO_SUCH_KEY" in fails(
        "--cfg-path", settings, "--options", "server.port=0", *teacher
    )


def test_a_folder_that_cannot_be_written_is_said_before_the_model_is_loaded(settings, fails, monkeypatch):
    monkeypatch.setattr(dagger_server, "load_student", lambda *_: pytest.fail("the model is loaded first"))
    below = f"{settings}/runs"  # below a file
    line = fails("--cfg-path", settings, "--options", "server.port=0", f"run.output_dir={below}")
    assert f"run.output_dir={below} cannot be written: give a folder of yours" in line


def test_a_base_file_without_the_vision_encoder(settings, fails, tmp_path):
    model, _ = load_student({}, torch.device("cpu"))
    own = {k: v.clone() for k, v in model.policy_state_dict().items() if not k.startswith(("visual_", "llm_model."))}
    torch.save({"model": weights.to_lavis(own)}, tmp_path / "trimmed.pth")
    options = ("server.port=0", "model.load_basemodel=true", f"model.base_model={tmp_path / 'trimmed.pth'}")
    line = fails("--cfg-path", settings, "--options", *options)
    assert "no file brought the weights of visual_encoder (set model.vit_weights: " in line
    assert not (tmp_path / "out").exists()


def test_dpos_temperature_and_the_mixing_probability_are_two_settings(tmp_path):
    config = load_config(DaggerConfig, None, ["run.dpo_beta=0.3"])
    model, vis_processor = load_student({}, torch.device("cpu"))
    build_learner(config, RunDirectory(tmp_path), model, vis_processor)
    assert model.dpo_beta == 0.3 and config.run.beta == [0.0]
    assert load_config(DaggerConfig, None, []).run.dpo_beta == 0.1
    for value in ("0", "-1", "inf"):
        with pytest.raises(ConfigError, match="run.dpo_beta: .* is not a number above 0"):
            load_config(DaggerConfig, None, [f"run.dpo_beta={value}"])


def test_nothing_to_train_nothing_to_read_and_nothing_given(settings, fails, tmp_path):
    parts = [f"model.freeze_{part}=true" for part in ("vit", "qformer", "proj_layer", "llm")]
    parts.append(RANDOM)
    assert "every part of the model is frozen" in fails("--cfg-path", settings, "--options", "server.port=0", *parts)
    assert "config file not found" in fails("--cfg-path", tmp_path / "none.yaml")
    assert "give --cfg-path FILE for a new run, or --resume RUN_DIR" in fails()
    assert "is not a run directory" in fails("--resume", tmp_path)
    assert not (tmp_path / "out").exists()


def test_a_served_language_model_that_trains(settings, fails):
    served = ("server.port=0", "policy.name=vllm", "policy.base_urls=[http://127.0.0.1:9/v1]", RANDOM)
    assert "the language model that is served must not train" in fails("--cfg-path", settings, "--options", *served)
    merged = (*served, "model.freeze_llm=true", "model.lora_rank=2", "policy.adapters=merged")
    assert "the servers would keep the old adapters" in fails("--cfg-path", settings, "--options", *merged)


def test_a_busy_port_names_its_holder(settings, fails, tmp_path):
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        line = fails("--cfg-path", settings, "--options", f"server.port={port}")
    assert f"port {port} is held by " in line and f"(process {os.getpid()})" in line
    assert not (tmp_path / "out").exists()


def test_a_file_as_run_directory_is_refused(settings, fails, tmp_path):
    (tmp_path / "file").touch()
    line = fails("--cfg-path", settings, "--run-dir", tmp_path / "file", "--options", "server.port=0")
    assert f"--run-dir={tmp_path / 'file'} cannot be written: give a folder of yours" in line


@pytest.mark.parametrize("damage", ["truncated", "another base", "another shape"])
def test_a_checkpoint_that_does_not_fit(settings, fails, tmp_path, damage):
    frozen = {"freeze_vit": True, "freeze_llm": True, "freeze_qformer": True}
    model, _ = load_student(
        frozen | {"allow_random": list(PARTS)} | ({"init_seed": 1} if damage == "another base" else {}),
        torch.device("cpu"),
    )
    path = save_checkpoint(tmp_path / "c.pth", model=model)
    if damage == "truncated":
        path.write_bytes(path.read_bytes()[:3000])
    parts = (
        [*(f"model.{key}=true" for key in frozen), RANDOM]
        if damage != "another shape"
        else ["model.qformer_config.hidden_size=32"]
    )
    line = fails("--cfg-path", settings, "--options", "server.port=0", f"model.pretrained={path}", *parts)
    assert str(path) in line and not (tmp_path / "out").exists()
    assert {"truncated": "not a readable", "another base": "frozen base", "another shape": "does not fit"}[
        damage
    ] in line


def test_gpus_that_a_learner_lacks(settings, fails, tmp_path, monkeypatch):
    options = ["run.learner=decoupled", "run.learner_device=cuda", "run.learner_processes=2", "server.port=0"]
    monkeypatch.setattr(named, "GPU_FILES", (str(tmp_path),))  # as with a driver, but torch sees no GPU, or one
    for gpus, reason in (
        (0, "run.learner_device is cuda, but torch"),
        (1, "2 processes need a GPU each, this machine"),
    ):
        monkeypatch.setattr(torch.cuda, "is_available", lambda gpus=gpus: gpus > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda gpus=gpus: gpus)
        assert reason in fails("--cfg-path", settings, "--options", "run.device=cpu", *options)
    assert not (tmp_path / "out").exists()


def test_a_reference_that_shares_weights_is_not_sharded(settings, fails, tmp_path):
    adapter = {"freeze_vit": True, "freeze_llm": True, "freeze_qformer": True, "lora_rank": 2}
    model, _ = load_student({**adapter, "allow_random": list(PARTS)}, torch.device("cpu"))
    path = save_checkpoint(tmp_path / "c.pth", model=model)
    options = [f"model.{key}={value}" for key, value in adapter.items()]
    options += [RANDOM, f"model.ref_pretrained={path}", "run.enable_dpo=true", "run.learner=decoupled"]
    options += ["run.learner_processes=2", "run.learner_fsdp=true", "server.port=0"]
    line = fails("--cfg-path", settings, "--options", *options)
    assert "run.learner_fsdp=True cannot shard a policy and a reference that share" in line
    assert not (tmp_path / "out").exists()


def test_a_resume_with_other_settings_or_in_use_is_refused(settings, fails, tmp_path):
    run_dir = tmp_path / "run"
    directory = RunDirectory(run_dir)
    (run_dir / "config.yaml").write_text(settings.read_text())
    options = ["--options", "server.port=0"]
    assert "run.seed: 42 → 1" in fails("--resume", run_dir, *options, "run.seed=1")
    assert "run.max_steps: 4 → 5" in fails("--resume", run_dir, "--cfg-path", settings, *options, "run.max_steps=5")
    assert f"process {os.getpid()} is writing to {run_dir}" in fails("--resume", run_dir, *options)
    directory.close()
    assert "leave --run-dir out" in fails("--resume", run_dir, "--run-dir", tmp_path / "other", *options)
    line = fails("--cfg-path", settings, "--run-dir", run_dir, *options)
    assert f"{run_dir} holds a run already: continue it with --resume" in line


def test_help_says_how_to_begin_and_to_resume(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["dagger_server.py", "--help"])
    with pytest.raises(SystemExit) as end:
        dagger_server.main()
    assert end.value.code == 0 and "--resume RUN_DIR" in capsys.readouterr().out


def test_a_model_of_the_hub_learns_in_both_phases(household_data, settings, start, tmp_path):
    """Cloning, then DPO from its checkpoint, with the folder of a vision-language model in Blip2Emac's place."""
    pytest.importorskip("peft")
    vlm = tiny.make("qwen2_5_vl", tmp_path / "vlm")
    before = weights.read_state(vlm)
    hub = ["model.arch=hf_vlm", f"model.path={vlm}", "model.lora_rank=8", "model.dtype=float32", "model.images=2"]
    checkpoint = tmp_path / "bc" / "emma_checkpoint_0.pth"
    phases = {
        "bc": ["run.beta=[1.0]"],
        "dpo": ["run.beta=[0.0]", "run.enable_dpo=true", f"model.pretrained={checkpoint}"]
        + [f"model.ref_pretrained={checkpoint}"],
    }
    for phase, options in phases.items():
        port = free_port()
        games = ["--env", "native", "--data", household_data, "--split", "household_train", "--num-envs", 2]
        client = start("alfworld_client.py", "--port", port, *games, "--max-steps", 3, "--expert", "explorer")
        options += [f"server.port={port}", "environment.name=native", f"environment.data={household_data}"]
        options += ["environment.split=household_train", "expert.name=explorer", "run.num_envs=2", "run.num_rounds=1"]
        given = ["--cfg-path", settings, "--run-dir", tmp_path / phase, "--options", *options, *hub]
        server = start("dagger_server.py", *given)
        assert server.wait(200) == 0 and client.wait(60) == 0, (tmp_path / "dagger_server.py.log").read_text()
        stored = load_checkpoint(tmp_path / phase / "emma_checkpoint_0.pth")["model"]
        assert stored and all(".lora_" in name for name in stored)
        assert any(value.any() for name, value in stored.items() if ".lora_B." in name)
    assert all(torch.equal(value, before[name]) for name, value in weights.read_state(vlm).items())
