"""The OpenEnv server with its client: sessions side by side, games by seed and by id, errors, hostile messages."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request

import pytest

from lavis.common.paths import REPO_ROOT
from tests.ports import free_port
from xrl_alignment.agents.experts import make_expert

pytest.importorskip("openenv.core", reason="OpenEnv is not installed: pip install -e '.[openenv]'")
pytestmark = pytest.mark.slow
UV = [sys.executable, "-m", "uv"]
OPENENV = [sys.executable, "-c", "from openenv.cli.__main__ import main; main()"]


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    """The example's server, in a process of its own: its port, and the file of its log."""
    folder = tmp_path_factory.mktemp("openenv")
    with served(folder) as port:
        yield port, folder / "log"


@pytest.fixture(scope="module")
def server(example):
    """The address of the example's server."""
    return f"http://127.0.0.1:{example[0]}"


@contextlib.contextmanager
def served(folder):
    """The port of the example's server; its log is `folder/log`."""
    port = free_port()
    paths = os.pathsep.join([str(REPO_ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, "XDG_CACHE_HOME": str(folder)}
    command = [sys.executable, "-m", "server.app", "--port", str(port)]
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(
            command, cwd=REPO_ROOT / "examples" / "openenv", env=environment, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        for _ in range(240):
            time.sleep(0.5)
            assert process.poll() is None, (folder / "log").read_text()
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
                break
            except OSError:
                continue
        yield port
    finally:
        process.terminate()
        process.wait(30)


def client(server):
    from xrl_alignment.adapters.openenv import HouseholdClient

    return HouseholdClient(base_url=server).sync()


def test_sessions_play_side_by_side_to_the_goal(server):
    from xrl_alignment.adapters.openenv import Command

    with client(server) as first, client(server) as second:
        begun = [session.reset() for session in (first, second)]
        assert begun[0].observation.game != begun[1].observation.game
        result, expert = begun[0], make_expert("explorer")
        expert.begin(result.observation.text, task_type=result.observation.game)
        total = 0.0
        while not result.done:
            action = expert.act({"admissible_commands": result.observation.admissible_commands}).action
            result = first.step(Command(command=action))
            expert.observe(action, result.observation.text)
            total += result.reward
        assert total == 1.0 and result.observation.won and first.state().step_count > 0
        assert second.state().step_count == 0  # the other session has not moved
        assert second.step(Command(command="look")).observation.game == begun[1].observation.game


def test_games_by_seed_and_by_id(server):
    with client(server) as session:
        drawn = [session.reset(seed=seed).observation.game for seed in (3, 3, 4, 5)]
        assert drawn[0] == drawn[1] and len(set(drawn)) > 1
        assert session.reset(game=drawn[0]).observation.game == drawn[0]
        with pytest.raises(RuntimeError, match="unknown game 'pick_nothing'"):
            session.reset(game="pick_nothing")
        with pytest.raises(RuntimeError, match="unknown argument of reset 'sed': did you mean 'seed'"):
            session.reset(sed=3)


def post(port, path, body, **headers):
    """Status and text of the answer to a request."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json", **headers})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


HOSTILE_MESSAGES = [
    "[]",
    "5",
    '{"type": []}',
    "[" * 50_000,
    b"\xff",
    "x" * 100_000,
    '{"type": "reset", "data": {"seed": []}}',
    '{"type": "reset", "data": {"game": {}}}',
    '{"type": "reset", "data": {"game": "\\ud800"}}',
    '{"type": "step", "data": {"command": "look"}}',
    '{"type": "step", "data": {"command": 5}}',
    '{"type": "mcp", "data": {"jsonrpc": "2.0", "method": "openenv/session/create", "id": 1}}',
]


def test_hostile_requests_end_in_a_line_and_others_play_on(example, server):
    """A request for an unknown game had a traceback; 64 requests to /mcp took all places for ever; so did a page."""
    from websockets.exceptions import ConnectionClosed
    from websockets.sync.client import connect

    port, log = example
    assert post(port, "/reset", {"game": "pick_nothing"})[0] == 400
    assert "unknown game 'pick_nothing'" in post(port, "/reset", {"game": "pick_nothing"})[1]
    for body in ({"game": []}, {"game": "\ud800"}):
        assert post(port, "/reset", body)[0] == 400
    assert post(port, "/step", {"action": {"command": "look"}}) == (400, "no game is loaded; call reset(game) first\n")
    assert post(port, "/reset", {}, Host="evil.example")[0] == 403
    assert post(port, "/reset", {}, Origin="http://evil.example")[0] == 403
    create = {"jsonrpc": "2.0", "method": "openenv/session/create", "id": 1, "params": {}}
    answers = {post(port, "/mcp", create) for _ in range(70)}  # more than there are places
    assert [(status, json.loads(text)["error"]["code"]) for status, text in answers] == [(200, -32601)]
    for message in HOSTILE_MESSAGES:
        with connect(f"ws://127.0.0.1:{port}/ws") as hostile, contextlib.suppress(ConnectionClosed):
            hostile.send(message)
            assert json.loads(hostile.recv(timeout=30))["type"] in ("error", "mcp")
    with client(server) as session:
        assert session.reset(seed=3).observation.game
    assert "Traceback" not in log.read_text()


def test_the_folder_passes_openenvs_own_validation(tmp_path):
    """A copy, for uv writes its lock beside the project; the checkout stays as it is."""
    folder = tmp_path / "household"
    shutil.copytree(REPO_ROOT / "examples" / "openenv", folder, ignore=shutil.ignore_patterns("__pycache__", "uv.lock"))
    project = (folder / "pyproject.toml").read_text(encoding="utf-8")
    (folder / "pyproject.toml").write_text(project.replace("../..", str(REPO_ROOT)), encoding="utf-8")
    before = checkout()
    subprocess.run([*UV, "lock"], cwd=folder, check=True)
    done = subprocess.run([*OPENENV, "validate", str(folder)], capture_output=True, text=True)
    assert done.returncode == 0 and "[OK]" in done.stdout, done.stdout
    assert checkout() == before


def test_the_running_server_passes_openenvs_own_validation(server):
    done = subprocess.run([*OPENENV, "validate", "--url", server], capture_output=True, text=True)
    report = json.loads(done.stdout)
    assert done.returncode == 0 and report["passed"], report["summary"]


def checkout() -> str:
    """All files of the checkout that git does not know, ignored ones included."""
    command = ["git", "status", "--porcelain", "--ignored", "examples", "alfworld_native", "xrl_alignment"]
    return subprocess.run(command, cwd=REPO_ROOT, capture_output=True, text=True, check=True).stdout
