"""The manager with real processes: it runs both, ends in every way, and leaves no process behind."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from lavis.common.paths import REPO_ROOT
from split_inference.run_split_inference import parse_arguments
from tests.split_inference.servers import PATIENCE_S, RawClient, alive, wait_until

MANAGER = REPO_ROOT / "split_inference" / "run_split_inference.py"


class Managed:
    """The manager as a process. `pids` are those of its children, by name, as it announced them."""

    def __init__(self, *options, python=sys.executable):
        command = [python, str(MANAGER), "--server-python", sys.executable, "--client-python", sys.executable]
        command += ["--env", "household", "--port", "0", *map(str, options)]
        environ = os.environ | {"OMP_NUM_THREADS": "1", "OPENAI_API_KEY": "none"}
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environ
        )
        self.lines = []

    def read_until(self, pattern):
        """The first line that matches, reading on."""
        for line in self.process.stdout:
            self.lines.append(line.rstrip())
            if found := re.search(pattern, line):
                return found
        raise AssertionError(f"no line with {pattern!r} in {self.lines}")

    def child(self, name):
        return int(self.read_until(rf"manager \| {name} is process (\d+)")[1])

    def end(self):
        """The exit code, and all output."""
        self.lines += self.process.stdout.read().splitlines()
        self.process.stdout.close()
        return self.process.wait(PATIENCE_S), "\n".join(self.lines)


@pytest.fixture
def hole():
    """Address of a model server that takes every connection and never says anything: a client waits there."""
    with closing(socket.create_server(("localhost", 0))) as listener:
        yield f"http://localhost:{listener.getsockname()[1]}/v1"


@pytest.fixture
def options(household_data, tmp_path):
    return ["--data-dir", household_data, "--output-dir", tmp_path / "out", "--max-retries", "0"]


def gone(pid):
    """Whether the process ends; the kernel, or its new parent, may take a moment."""
    wait_until(lambda: not alive(pid))
    return True


def group_gone(pid):
    """Whether no process of the group is left."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            state, _, group = (process / "stat").read_text().rpartition(")")[2].split()[:3]
        except (FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            continue
        if state != "Z" and group == str(pid):
            return False
    return True


def test_both_run_and_the_clients_exit_code_is_the_managers(options, served):
    address, model = served
    play = ["--num-samples", "2", "--num-envs", "2", "--max-turns", "1", "--max-new-tokens", "4"]
    managed = Managed(*options, *play, "--base-url", address, "--model-name", model)
    pids = [managed.child("server"), managed.child("client")]
    code, output = managed.end()
    assert code == 0, output
    assert "server | [SERVER] ALFWorld server listening on localhost:" in output
    assert re.search(r"client \| all +2 ", output) and "server | [SERVER] ALFWorld server stopped" in output
    assert all(map(gone, pids)) and all(map(group_gone, pids))


def test_a_client_that_fails_says_so_with_its_exit_code(options):
    managed = Managed(*options, "--base-url", "http://localhost:9/v1", "--num-samples", "1000")
    code, output = managed.end()
    assert code == 2 and "client | error: --num-samples 1000: there are 18 games" in output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_both(options, hole, number):
    managed = Managed(*options, "--base-url", hole)
    pids = [managed.child("server"), managed.child("client")]
    managed.read_until("Client connected")
    managed.process.send_signal(number)
    code, output = managed.end()
    assert code == 128 + number and f"manager | stopping: {number.name}" in output
    assert all(map(gone, pids)) and all(map(group_gone, pids))


def test_a_killed_server_stops_the_client(options, hole):
    managed = Managed(*options, "--base-url", hole)
    server, client = managed.child("server"), managed.child("client")
    managed.read_until("Client connected")
    os.kill(server, signal.SIGKILL)
    code, output = managed.end()
    assert code == 1 and "manager | the server ended (SIGKILL) before the client" in output
    assert gone(client) and group_gone(server) and group_gone(client)


def test_a_client_that_ended_because_its_server_died_is_not_blamed(options, hole):
    managed = Managed(*options, "--base-url", hole)
    server, client = managed.child("server"), managed.child("client")
    managed.process.send_signal(signal.SIGSTOP)  # so that both have ended when the manager looks
    os.kill(server, signal.SIGKILL)
    assert gone(client)  # it finds no server
    managed.process.send_signal(signal.SIGCONT)
    code, output = managed.end()
    assert code == 1 and "manager | the server ended (SIGKILL) before the client" in output


def test_a_killed_client_stops_the_server(options, hole):
    managed = Managed(*options, "--base-url", hole)
    server, client = managed.child("server"), managed.child("client")
    os.kill(client, signal.SIGKILL)
    code, _ = managed.end()
    assert code == 128 + signal.SIGKILL and gone(server) and group_gone(server)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel tells children of their parent's death on Linux only")
def test_a_killed_manager_leaves_no_orphan(options, hole):
    managed = Managed(*options, "--base-url", hole)
    pids = [managed.child("server"), managed.child("client")]
    managed.read_until("Client connected")
    managed.process.kill()
    managed.end()
    assert all(map(gone, pids))


def test_a_server_that_does_not_start_ends_the_run(options):
    managed = Managed(*options, "--base-url", "x", "--server-args", "--data-dir", "/nowhere/at/all")
    code, output = managed.end()
    assert code == 1 and "server | error: no games: /nowhere/at/all is no folder" in output
    assert "the server ended (exit code 2) before it listened" in output and "client is process" not in output


def test_server_and_client_share_a_token_that_nobody_else_knows(options, hole):
    managed = Managed(*options, "--base-url", hole)
    server = managed.child("server")
    port = int(managed.read_until(r"listening on localhost:(\d+)")[1])
    managed.read_until("Client connected")
    client = RawClient(port)
    assert "must carry the server's token" in client.ask("shutdown")["error"] and client.closed()
    client.close()
    assert alive(server)
    managed.process.terminate()
    assert managed.end()[0] == 128 + signal.SIGTERM


def test_the_server_takes_the_trajectories_of_the_client(options, trials, served, tmp_path):
    (tmp_path / "trajectories").mkdir()
    shutil.copy(trials[0] / "traj_data.json", tmp_path / "trajectories" / "task_1.json")
    address, model = served
    play = ["--traj-dir", tmp_path / "trajectories", "--max-turns", "1", "--max-new-tokens", "4"]
    code, output = Managed(*options, *play, "--base-url", address, "--model-name", model).end()
    assert code == 0 and (tmp_path / "out" / "task_1").is_dir(), output


@pytest.mark.parametrize("option", ["--server-python", "--client-python"])
def test_an_interpreter_that_does_not_exist_is_named_before_anything_starts(options, option):
    managed = Managed(*options, option, "/no/such/python")
    code, output = managed.end()
    assert code == 2 and f"error: {option} /no/such/python: there is no such program" in output
    assert "is process" not in output and "Traceback" not in output


def test_other_options_go_to_the_client():
    arguments, rest = parse_arguments(["--env", "thor", "--num-samples", "3", "--model-path", "m", "--port", "7"])
    assert rest == ["--num-samples", "3", "--model-path", "m"] and (arguments.env, arguments.port) == ("thor", 7)
    arguments, rest = parse_arguments(["--num-envs", "2", "--server-args", "--max-steps", "9"])
    assert arguments.server_args == ["--max-steps", "9"] and rest == ["--num-envs", "2"]
