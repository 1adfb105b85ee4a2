"""Fixtures: servers of generated games and of a model, connections, a player that knows the games."""

from __future__ import annotations

import pytest

from split_inference.alfworld_vllm_client import draw_games
from split_inference.socket_connection import SocketConnection
from tests.split_inference.players import Planner
from tests.split_inference.servers import PATIENCE_S, RunningServer, ServedModel
from tests.tiny_checkpoints import write_llava


@pytest.fixture
def start(household_data):
    """`start(*options)`: a server of generated games (or what the options say), stopped after the test."""
    servers = []

    def start(*options: str, engine: str = "household", **keywords) -> RunningServer:
        where = () if "--data-dir" in options else ("--data-dir", str(household_data))
        servers.append(RunningServer("--env", engine, *where, *options, **keywords))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


@pytest.fixture(scope="session")
def server(household_data):
    """One server of generated games for all tests that leave it as it is."""
    server = RunningServer("--env", "household", "--data-dir", str(household_data))
    yield server
    server.stop()


@pytest.fixture
def client(server):
    client = server.connect()
    yield client
    client.close()


@pytest.fixture(scope="session")
def trials(household_data):
    """The folders of the generated games."""
    return sorted(path.parent for path in household_data.glob("json_2.1.1/*/*/*/game.tw-pddl"))


@pytest.fixture(scope="session")
def served(tmp_path_factory):
    """Address and name of a tiny random LLaVA behind `transformers serve`, a real OpenAI-compatible server."""
    pytest.importorskip("uvicorn", reason="transformers serve needs the dev extra")
    folder = tmp_path_factory.mktemp("served")
    with ServedModel(write_llava(folder / "model"), folder / "serve.log") as address:
        yield address, str(folder / "model")


@pytest.fixture
def connections(server):
    opened = [SocketConnection("localhost", server.port, PATIENCE_S) for _ in range(3)]
    yield opened
    for connection in opened:
        connection.close()


@pytest.fixture
def games(connections):
    """Five games in the order of a draw."""
    return draw_games(connections[0].send_request({"command": "list_games"})["games"], 5, seed=1)


@pytest.fixture
def planner(household_data, connections, games):
    planner = Planner(household_data)
    planner.learn(connections[0], games)
    return planner
