from __future__ import annotations

import json
import subprocess
import time

import numpy as np
import pytest

from lavis.common.errors import ConfigError
from policy_server.models.loading import load_model
from policy_server.models.student import StudentModel
from policy_server.settings import ModelSettings
from tests import warm
from tests.hostile_endpoint import ANSWERED, MODES, SLOW, HostileEndpoint, Peak, wrong_documents
from tests.policy_server.servers import ROOM, TINY, ServerProcess, start_in_thread
from xrl_alignment.agents.policies.base import PolicyInput
from xrl_alignment.agents.policies.http import HttpPolicy
from xrl_alignment.common.errors import InferenceEngineFault
from xrl_alignment.settings.loading import load_config
from xrl_alignment.settings.schema import EvaluateConfig


@pytest.fixture(scope="module")
def model() -> StudentModel:
    return load_model(ModelSettings(path=TINY))


@pytest.fixture
def server(model: StudentModel):
    running = start_in_thread([], {}, model)
    yield running
    running.http.close()
    running.stop()


def inputs() -> list[PolicyInput]:
    rng = np.random.default_rng(0)
    commands = ("go to cabinet 1", "open fridge 1", "look")
    return [
        PolicyInput(ROOM.replace("mug", name), rng.integers(0, 256, (80, 80, 3), np.uint8), commands)
        for name in ("mug", "plate", "apple")
    ]


def test_it_answers_as_the_model_in_this_process(server, model: StudentModel):
    policy = HttpPolicy(server.url)
    try:
        assert policy.act(inputs()) == model.policy.act(inputs())
        assert policy.act([]) == []
    finally:
        policy.close()


def test_admissible_commands_are_kept(server):
    policy = HttpPolicy(server.url, decode="admissible")
    try:
        assert set(policy.act(inputs())) <= set(inputs()[0].admissible_commands)
        with pytest.raises(ValueError, match="without admissible_commands"):
            policy.act([inputs()[0]._replace(admissible_commands=())])
    finally:
        policy.close()


def test_a_server_that_refuses_is_named(model: StudentModel):
    running = start_in_thread([], {"lab": "k" * 20}, model)
    policy = HttpPolicy(running.url)
    try:
        with pytest.raises(InferenceEngineFault, match="policy.base_urls: .* answers 401"):
            policy.act(inputs())
    finally:
        policy.close()
        running.http.close()
        running.stop()


SEVERAL = {"wrong_types": len(wrong_documents()), "wrong_error": 12, "wrong_length": 5, "no_http": 3}


@pytest.mark.parametrize("mode", MODES)
def test_whatever_a_server_sends_is_a_command_or_one_error(mode: str, monkeypatch):
    monkeypatch.setattr("policy_server.qwen_policy_client.MAX_PAUSE_S", 0.01)
    item, commands = inputs()[0], []
    with HostileEndpoint(mode) as server:
        policy = HttpPolicy(server.url, timeout_s=0.3 if mode in SLOW else 60.0)
        peak, began = Peak(), time.monotonic()
        for _ in range(SEVERAL.get(mode, 1)):
            try:
                commands += policy.act([item])
            except InferenceEngineFault as error:
                assert "\n" not in str(error) and str(error).isprintable() and len(str(error)) < 500
        policy.close()
        assert time.monotonic() - began < 60 and peak() < 160 << 20
        assert server.requests <= 5 * SEVERAL.get(mode, 1)
        assert server.elsewhere is None or not server.elsewhere.requests
    assert all(command.encode() is not None for command in commands)
    if mode in ANSWERED:
        assert commands[0].startswith("go to desk 1")
    else:
        assert not commands or mode == "wrong_types"


@pytest.mark.parametrize("options", [["policy.name=http"], ["policy.base_urls=[http://localhost:8001]"]])
def test_the_address_belongs_to_the_name(options):
    with pytest.raises(ConfigError, match="policy.base_urls"):
        load_config(EvaluateConfig, None, options)


@pytest.mark.slow
def test_the_server_plays_games_through_the_client(household_data, tmp_path):
    """A policy server, `dagger_server.py` without training and `alfworld_client.py`; and `evaluate.py`."""
    policy_server = ServerProcess("--model", TINY)
    address = f"policy.base_urls=[{policy_server.url}]"
    common = ["policy.name=http", address, "environment.name=household", f"environment.data={household_data}"]
    common += ["environment.num_train=12", "environment.num_heldout=6", "model.model_type=tiny"]
    result = tmp_path / "result.json"
    evaluate = ["evaluate.py", "--cfg-path", "configs/evaluate/episodes.yaml", "--options", *common, "run.max_steps=4"]
    try:
        evaluate += ["environment.split=household_heldout", "run.num_envs=2", f"run.output={result}"]
        played = warm.run(evaluate)
        assert played.returncode == 0, played.stderr
        assert len(json.loads(result.read_text())["episodes"][0]) == 2
        server = warm.Program(
            ["dagger_server.py", "--cfg-path", "configs/dagger/small_bc.yaml", "--options", *common]
            + ["environment.split=household_train", "run.num_rounds=1", "run.num_envs=2", "run.max_steps=4"]
            + ["run.run_training=false", "server.port=0", f"run.output_dir={tmp_path}"],
            stdout=subprocess.PIPE,
        )
        port = server.stdout.readline().split("port ")[1].split(",")[0]
        games = ["--env", "household", "--data", str(household_data), "--num-envs", "2"]
        games += ["--num-train", "12", "--num-heldout", "6"]
        client = warm.run(["alfworld_client.py", "--port", port, *games, "--max-steps", "4"])
        assert client.returncode == 0, client.stderr
        assert json.loads(client.stdout.splitlines()[-1])["episodes"] == 2
        assert server.wait(120) == 0
    finally:
        assert policy_server.end() == 0
