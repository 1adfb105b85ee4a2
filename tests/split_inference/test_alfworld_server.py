"""The server over its socket, with real processes and engines; only AI2-THOR is replaced by a double."""

import base64
import io
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from argparse import Namespace
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from alfworld_native import find_games, make_environment
from alfworld_native.base import Game
from alfworld_native.engine import gamefile
from alfworld_native.language import commands
from split_inference import alfworld_server
from split_inference.socket_connection import FailedRequest, SocketConnection
from tests.alfworld_native import recorded_thor
from tests.split_inference.malformed import malformed
from tests.split_inference.servers import PATIENCE_S, SERVER, RawClient, children, wait_until
from xrl_alignment.agents.experts import make_expert

LIMIT = 1 << 16  # the server's --max-message


def walkthrough(trial):
    return json.loads((trial / "game.tw-pddl").read_text())["walkthrough"]


def decoded(text):
    return Image.open(io.BytesIO(base64.b64decode(text, validate=True)))


# ---- the protocol --------------------------------------------------------------------------------------------------


def test_an_episode_from_init_to_the_goal(client, trials):
    trial = trials[0]
    begin = client.ask("init", traj_file=str(trial / "traj_data.json"))
    assert {"success", "task_desc", "intro", "initial_image"} <= begin.keys() and begin["success"] is True
    assert begin["intro"].endswith(f"Your task is to: {begin['task_desc']}")
    assert (
        begin["game"] == f"{trial.parent.name}/{trial.name}" and begin["task_type"] == trial.parent.name.split("-")[0]
    )
    assert (decoded(begin["initial_image"]).format, decoded(begin["initial_image"]).size) == ("JPEG", (300, 300))
    plan = [commands.canonical(command) for command in walkthrough(trial)]
    trajectory = [begin["intro"]]
    for turn, action in enumerate(plan, start=1):
        assert client.ask("is_goal_satisfied") == {"success": True, "goal_satisfied": False}
        step = client.ask("step", action=action)
        assert step["action"] == action and step["turn_count"] == turn and step["action_success"] is True
        assert step["error_message"] == "" and decoded(step["current_image"]).size == (300, 300)
        trajectory += [action, step["feedback"]]
    assert step["goal_satisfied"] and step["done"] and client.ask("is_goal_satisfied")["goal_satisfied"] is True
    state = client.ask("get_state")
    assert state["turn_count"] == len(plan) and state["images_count"] == len(plan) + 1
    assert state["trajectory"] == trajectory
    assert "episode is over" in client.ask("step", action="look")["error"]
    assert client.ask("reset_task") == {"success": True}
    assert client.ask("get_state") == {"success": True, "turn_count": 0, "trajectory": [], "images_count": 0}
    assert "send init" in client.ask("step", action="look")["error"]


@pytest.mark.parametrize("action", ["fly to the moon", "", "go to nowhere 7\x00\ud800"])
def test_an_action_that_does_nothing_says_so(client, trials, action):
    client.ask("init", traj_file=str(trials[0]))
    step = client.ask("step", action=action)
    assert step["success"] is True and step["action_success"] is False
    assert step["feedback"] == "Nothing happens." and "admissible_commands" in step["error_message"]


def test_an_episode_ends_with_its_steps(start, trials):
    server = start("--max-steps", "2")
    with closing(server.connect()) as client:
        assert client.ask("init", traj_file=str(trials[0]))["max_steps"] == 2
        assert [client.ask("step", action="look")["done"] for _ in range(2)] == [False, True]
        assert "over after 2 actions" in client.ask("step", action="look")["error"]


def test_both_text_engines_say_and_show_the_same(start, client, trials):
    other = start(engine="textworld")
    with closing(other.connect()) as textworld:
        first = [peer.ask("init", traj_file=str(trials[3]), image_format="png") for peer in (client, textworld)]
        assert first[0] == first[1]
        assert decoded(first[0]["initial_image"]).format == "PNG"
        for command in [*walkthrough(trials[3])[:3], "fly", "inventory"]:  # in the game's own dialect
            steps = [peer.ask("step", action=command) for peer in (client, textworld)]
            assert steps[0] == steps[1]


def test_official_games_play(start, alfworld_data):
    server = start("--data-dir", str(alfworld_data / "json_2.1.1" / "valid_seen"))
    with closing(server.connect()) as client:
        games = client.ask("list_games")["games"]
        assert len(games) == 140
        trial = Path(games[7]["traj_file"])
        assert client.ask("init", traj_file=games[7]["game"])["game"] == games[7]["game"]  # relative to --data-dir
        steps = [client.ask("step", action=action) for action in walkthrough(trial)]
        assert steps[-1]["goal_satisfied"] is True


def test_games_are_listed(start, household_data, trials, tmp_path):
    with closing(start("--traj-dir", str(tmp_path)).connect()) as client:
        check_lists(client, household_data, trials, tmp_path)


def check_lists(client, household_data, trials, tmp_path):
    games = client.ask("list_games")["games"]
    assert sorted(game["traj_file"] for game in games) == [str(trial) for trial in trials]
    assert games[0]["game"] == "/".join(Path(games[0]["traj_file"]).parts[-2:])
    heldout = client.ask("list_games", data_dir=str(household_data / "json_2.1.1" / "household_heldout"))["games"]
    assert 0 < len(heldout) < len(games)
    (tmp_path / "task_1.json").write_text("{}")
    (tmp_path / "notes.txt").write_text("")
    (tmp_path / "._task_1.json").write_text("")
    listed = client.ask("list_games", traj_dir=str(tmp_path))["games"]
    assert listed == [{"traj_file": str(tmp_path / "task_1.json"), "game": "task_1"}]
    assert "no games for --env household" in client.ask("list_games", data_dir=str(tmp_path))["error"]
    assert "no folder" in client.ask("list_games", traj_dir=str(tmp_path / "none"))["error"]


def test_a_copy_of_a_trajectory_leads_to_its_game(start, trials, tmp_path):
    names = ("task_1.json", "traj_data.json")  # the second one is no trial folder's: no game file lies beside it
    for name in names:
        shutil.copy(trials[5] / "traj_data.json", tmp_path / name)
    with closing(start("--traj-dir", str(tmp_path)).connect()) as client:
        for name in names:
            begin = client.ask("init", traj_file=str(tmp_path / name))
            assert begin["game"] == f"{trials[5].parent.name}/{trials[5].name}"


def test_files_outside_the_servers_folders_are_out_of_reach(start, trials, tmp_path):
    inside, outside = tmp_path / "games", tmp_path / "games-of-others"
    for folder in (inside, outside):
        shutil.copytree(trials[0], folder / trials[0].parent.name / trials[0].name)
    (outside / "keys.json").write_text("{}")
    (inside / "link").symlink_to(outside)
    half = inside / trials[1].parent.name / trials[1].name  # a folder inside, its files links to outside
    half.mkdir(parents=True)
    for name in ("game.tw-pddl", "traj_data.json"):
        (half / name).symlink_to(trials[1] / name)
    trial = f"{trials[0].parent.name}/{trials[0].name}"
    with closing(start("--data-dir", str(inside)).connect()) as client:
        assert client.ask("init", traj_file=trial)["success"] is True
        assert client.ask("init", traj_file=f"{inside}/x/../{trial}")["success"] is True
        paths = [outside / trial, f"../{outside.name}/{trial}", f"link/{trial}", half, outside / "nothing", "~/x", "/"]
        answers = [client.ask("init", traj_file=str(path)) for path in paths]
        for key, folder in itertools.product(
            ("traj_dir", "data_dir"), (outside, inside / "link", "/", "~", "/nothing")
        ):
            answers.append(client.ask("list_games", **{key: str(folder)}))
    for answer in answers:
        assert answer["success"] is False and "outside the server's folders" in answer["error"], answer
        assert "games" not in answer


CODE = "{open('PATH', 'w').close()}"  # TextWorld evaluates what stands in braces


@pytest.mark.parametrize("engine", ["textworld", "household"])
@pytest.mark.parametrize("text", [f"{CODE} Your task is to: ", f"Your task is to: {CODE} "])
def test_code_in_a_game_file_does_not_run(start, trials, tmp_path, engine, text):
    folder = tmp_path / trials[0].parent.name / trials[0].name
    folder.mkdir(parents=True)
    content = json.loads((trials[0] / "game.tw-pddl").read_text())
    code = text.replace("PATH", str(tmp_path / "ran"))
    content["grammar"] = content["grammar"].replace("Your task is to: ", code)
    (folder / "game.tw-pddl").write_text(json.dumps(content))
    with closing(start("--data-dir", str(tmp_path), engine=engine).connect()) as client:
        answer = client.ask("init", traj_file=str(folder))
    assert "could run code" in answer["error"] and not (tmp_path / "ran").exists()


def test_known_texts_are_those_of_the_package():
    known = {"pddl_domain": gamefile.DOMAINS, "grammar": gamefile.GRAMMARS}
    assert {key: set(prints) for key, prints in alfworld_server.KNOWN_TEXTS.items()} == {
        key: set(prints) for key, prints in known.items()
    }
    assert alfworld_server._PLAIN.pattern == gamefile._PLAIN.pattern


def test_what_names_no_game_is_refused(start, tmp_path):
    with closing(start("--traj-dir", str(tmp_path)).connect()) as client:
        check_refusals(client, tmp_path)


def check_refusals(client, tmp_path):
    os.mkfifo(tmp_path / "pipe")  # opening it would wait for a writer
    (tmp_path / "text.json").write_text("no json")
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "other.json").write_text('{"task_id": "trial_unknown"}')
    (tmp_path / "nothing").mkdir()
    (tmp_path / "game.tw-pddl").write_text('{"solvable": true}')
    names = ["missing", "pipe", "text.json", "list.json", "other.json", "nothing", "game.tw-pddl", "x" * 5000]
    for name in names:
        answer = client.ask("init", traj_file=str(tmp_path / name))
        assert answer["success"] is False and answer["error"], name
    damaged = tmp_path / "pick_and_place_simple-Mug-None-Desk-1" / "trial_1"
    damaged.mkdir(parents=True)
    (damaged / "game.tw-pddl").write_text('{"solvable": true')
    assert client.ask("init", traj_file=str(damaged))["error"].startswith(f"game file {damaged}/game.tw-pddl ")
    assert "jpeg or png" in client.ask("init", traj_file="x", image_format="gif")["error"]


# ---- the wire ------------------------------------------------------------------------------------------------------


def test_messages_survive_any_split_of_the_stream(client):
    message = json.dumps({"command": "get_state", "note": "é\\n"}, ensure_ascii=False).encode() + b"\n"
    for cut in range(1, len(message)):
        client.send(message[:cut])
        client.send(message[cut:])
    for byte in message:
        client.send(bytes([byte]))
    client.send(message * 3 + b'{"command": "get_')
    assert all(client.answer()["success"] for _ in range(len(message) - 1 + 1 + 3))
    client.send(b'state"}\r\n')
    assert client.answer()["success"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"", "not JSON"),
        (b"hello", "not JSON"),
        (b"\xff\xfe", "not UTF-8"),
        (b"[" * 20000, "nested too deeply" if sys.version_info < (3, 14) else "not JSON"),  # newer parsers go deeper
        (b'["step"]', "JSON object"),
        (b'{"x": 1}', "'command' must be a string"),
        (b'{"command": "fly"}', "unknown command 'fly'"),
        (b'{"command": "process_request"}', "unknown command"),
        (b'{"command": "init"}', "'traj_file' must be a string"),
        (b'{"command": "step", "action": 7}', "'action' must be a string"),
        (b'{"command": "init", "traj_file": "\\ud800"}', "no game '\\ud800'"),
        (b'{"command": "list_games", "traj_dir": "~\\ud800"}', "no folder '~\\ud800'"),
        (b'{"command": "list_games", "data_dir": "~\\ud800"}', "no folder '~\\ud800'"),
        (b'{"command": "init", "traj_file": "a\\u0000"}', "no game 'a\\x00'"),
        (b'{"command": "step", "action": NaN}', "NaN is no JSON"),
        (b'{"command": "' + b"x" * LIMIT + b'"}', f"longer than {LIMIT} bytes"),
    ],
)
def test_bad_messages_get_a_reason(client, line, reason):
    assert client.ask("get_state")["success"] is True  # a bad first message ends the connection
    client.send(line + b"\n")
    answer = client.answer()
    assert answer["success"] is False and reason in answer["error"] and len(answer["error"]) < 500
    assert client.ask("get_state")["success"] is True


@pytest.mark.parametrize("first", [b"", b"hello", b'["step"]', b"\xff", b"x" * (LIMIT + 1)])
def test_a_first_line_that_is_no_object_ends_the_connection(server, first):
    with closing(server.connect()) as client:
        client.send(first + b'\n{"command": "get_state"}\n')
        assert client.answer()["success"] is False and client.closed()


def test_a_web_page_cannot_shut_the_server_down(start):
    server = start()
    body = b'{"command": "shutdown"}\n'
    head = f"POST / HTTP/1.1\r\nHost: localhost:{server.port}\r\nOrigin: https://elsewhere.example\r\n"
    with closing(server.connect()) as client:
        client.send(head.encode() + b"Content-Type: text/plain\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        assert "not JSON" in client.answer()["error"] and client.closed()
    with closing(server.connect()) as client:
        assert client.ask("get_state")["success"] is True


TOKEN = "0123456789abcdef"


def test_a_token_is_shown_first(start, trials):
    server = start(env={"ALFWORLD_SERVER_TOKEN": TOKEN})
    for wrong in ({}, {"token": ""}, {"token": TOKEN[:-1]}, {"token": 7}, {"token": None}, {"token": "\ud800" * 16}):
        with closing(server.connect()) as client:
            client.send(json.dumps({"command": "shutdown", **wrong}).encode() + b"\n")
            answer = client.answer()
            assert answer["success"] is False and "ALFWORLD_SERVER_TOKEN" in answer["error"] and client.closed()
            assert TOKEN not in answer["error"]
    with closing(server.connect()) as client:
        assert client.ask("init", traj_file=str(trials[0]), token=TOKEN)["success"] is True
        assert client.ask("step", action="look")["success"] is True  # the first message is enough
    with closing(SocketConnection("localhost", server.port, PATIENCE_S, TOKEN)) as connection:
        assert connection.send_request({"command": "get_state"})["turn_count"] == 0
    with pytest.raises(FailedRequest, match="ALFWORLD_SERVER_TOKEN"):
        SocketConnection("localhost", server.port, PATIENCE_S, "another token than this")
    assert TOKEN not in "\n".join(server.lines)
    assert TOKEN not in Path(f"/proc/{server.process.pid}/cmdline").read_text()


def test_a_client_without_token_plays_on_loopback_as_ever(client, trials):
    """The six commands of the original's guide, each as its messages show them."""
    begin = client.ask("init", traj_file=str(trials[0] / "traj_data.json"))
    assert begin["success"] is True and {"task_desc", "intro", "initial_image"} <= begin.keys()
    step = client.ask("step", action="look")
    keys = {"success", "action", "feedback", "current_image", "action_success", "error_message", "goal_satisfied"}
    assert keys | {"turn_count"} <= step.keys()
    assert client.ask("is_goal_satisfied") == {"success": True, "goal_satisfied": False}
    assert {"turn_count", "trajectory", "images_count"} <= client.ask("get_state").keys()
    assert client.ask("reset_task") == {"success": True}


def test_a_malformed_flood_disturbs_nobody(server, trials):
    flood(server, trials, messages=3000)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_hundred_thousand_malformed_messages(server, trials):
    flood(server, trials, messages=100_000)


def flood(server, trials, messages):
    """Malformed messages over three connections while another plays: one answer each, and memory stays flat."""
    playing, stop = Playing(server.port, trials[0]), threading.Event()
    player = threading.Thread(target=playing.run, args=(stop,))
    player.start()
    clients = [server.connect() for _ in range(3)]
    supplies = [malformed(seed, LIMIT) for seed in range(3)]
    try:
        in_threads(misbehave, clients, supplies, [messages // 12] * 3)
        wait_until(lambda: len(children(server.process.pid)) == 4)  # clients of other tests have gone
        wait_until(lambda: playing.games > 0)  # its process has loaded all that it needs
        before = resident(server.process.pid)
        in_threads(misbehave, clients, supplies, [messages // 4] * 3)
        growth = resident(server.process.pid) - before
    finally:
        stop.set()
        player.join()
        for client in clients:
            client.close()
    assert not playing.faults and playing.steps > 0
    assert growth < 8 << 20, f"{growth} bytes more"
    for _ in range(messages // 100):  # cut off in the middle of a message
        leaving = server.connect()
        leaving.send(next(supplies[0])[:100])
        leaving.close()
    with closing(server.connect()) as client:
        assert client.ask("get_state")["success"] is True


def in_threads(function, *columns):
    """`function` on each row of `columns`, at the same time; the first exception is raised here."""
    with ThreadPoolExecutor(len(columns[0])) as pool:
        list(pool.map(function, *columns))


def misbehave(client, supply, number):
    """Send `number` malformed lines, forty at a time and cut anywhere, and read the refusals."""
    assert client.ask("get_state")["success"] is True  # a bad first message ends the connection
    for _ in range(number // 40 + 1):
        data = b"".join(line + b"\n" for line in itertools.islice(supply, 40))
        cut = len(data) * 2 // 3
        for piece in (data[:cut], data[cut:]):
            client.send(piece)
        for _ in range(40):
            answer = client.answer()
            assert answer["success"] is False and answer["error"]


class Playing:
    """A well-formed client that plays one game again and again."""

    def __init__(self, port, trial):
        self.port, self.trial, self.steps, self.games, self.faults = port, trial, 0, 0, []

    def run(self, stop):
        with closing(RawClient(self.port)) as client:
            while not stop.is_set():
                client.ask("init", traj_file=str(self.trial))
                for action in walkthrough(self.trial):
                    answer = client.ask("step", action=action)
                    self.steps += 1
                    if not (answer["success"] and answer["action_success"]):
                        self.faults.append(answer)
                self.games += 1
                if not answer["goal_satisfied"]:
                    self.faults.append(answer)


def resident(pid):
    """Bytes of memory of a process and of those that it forked."""
    status = Path(f"/proc/{pid}/status").read_text()
    own = int(status.partition("VmRSS:")[2].split()[0]) * 1024
    return own + sum(map(resident, children(pid)))


def test_an_endless_line_is_not_kept(server):
    with closing(server.connect()) as client:
        assert client.ask("get_state")["success"] is True  # a bad first message ends the connection
        client.send(b"x" * (LIMIT + 1))
        assert "longer than" in client.answer()["error"]  # before the line's end
        wait_until(lambda: len(children(server.process.pid)) == 1)  # clients of other tests have gone
        before = resident(server.process.pid)
        for _ in range(64):
            client.send(b"x" * (1 << 20))
        client.send(b'\n{"command": "get_state"}\n')
        assert client.answer()["success"] is True
        assert resident(server.process.pid) - before < 8 << 20


# ---- many clients --------------------------------------------------------------------------------------------------


def test_clients_at_once_have_their_own_games(server, trials):
    clients = [server.connect() for _ in range(8)]
    for client, trial in zip(clients, trials, strict=False):
        client.send(json.dumps({"command": "init", "traj_file": str(trial)}).encode() + b"\n")
    begun = [client.answer() for client in clients]
    assert [answer["game"] for answer in begun] == [f"{t.parent.name}/{t.name}" for t in trials[:8]]
    for client in clients[::2]:
        assert client.ask("step", action="look")["turn_count"] == 1
    assert [client.ask("get_state")["turn_count"] for client in clients] == [1, 0] * 4
    clients[0].close()
    assert clients[1].ask("step", action="look")["success"] is True
    for client in clients[1:]:
        client.close()


def test_too_many_clients_are_turned_away(start):
    server = start("--max-clients", "2")
    with closing(server.connect()) as first:
        assert first.ask("get_state")["success"] is True
        second = server.connect()
        assert second.ask("get_state")["success"] is True
        with closing(server.connect()) as third:
            assert "serves 2 clients" in third.answer()["error"] and third.closed()
        second.close()
        wait_until(lambda: len(children(server.process.pid)) == 1)
        with closing(server.connect()) as again:
            assert again.ask("get_state")["success"] is True


def test_a_silent_client_is_sent_away(start):
    server = start("--idle-timeout", "0.2")
    with closing(server.connect()) as client:
        client.send(b'{"command": ')  # half a message is none
        assert "no message within 0.2 seconds" in client.answer()["error"] and client.closed()


def test_connections_that_send_nothing_take_no_place(start):
    """They had a process each, so 64 of them kept everybody out for an hour."""
    server = start("--max-clients", "1")
    idle = [server.connect() for _ in range(alfworld_server._MAX_WAITING)]
    idle[1].send(b'{"command": ')
    with closing(server.connect()) as client:
        assert client.ask("get_state")["success"] is True
        assert len(children(server.process.pid)) == 1
    assert idle[0].closed()  # it made room
    wait_until(lambda: not children(server.process.pid))
    idle[1].send(b'"get_state"}\n{"command": "get_state"}\n')
    assert idle[1].answer()["success"] is idle[1].answer()["success"] is True
    assert "serves 1 clients" in idle[2].ask("get_state")["error"] and idle[2].closed()
    for client in idle:
        client.close()


def test_one_who_shows_no_token_in_time_is_sent_away(start):
    server = start("--idle-timeout", "0.2", env={"ALFWORLD_SERVER_TOKEN": TOKEN})
    with closing(server.connect()) as client:
        assert "no message within 0.2 seconds" in client.answer()["error"] and client.closed()
    assert children(server.process.pid) == []


# ---- the end -------------------------------------------------------------------------------------------------------


def test_shutdown_ends_everything(start):
    server = start()
    other, client = server.connect(), server.connect()
    assert other.ask("get_state")["success"] is True
    assert client.ask("shutdown") == {"success": True, "message": "Server shutting down"}
    assert server.wait() == 0 and other.closed() and client.closed()
    assert server.lines[-1].strip() == "[SERVER] ALFWorld server stopped"
    for peer in (other, client):
        peer.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_everything(start, number):
    server = start()
    with closing(server.connect()) as client:
        assert client.ask("get_state")["success"] is True
        server.process.send_signal(number)
        assert server.wait() == 128 + number and client.closed()


def test_no_process_outlives_a_killed_server(start):
    server = start()
    with closing(server.connect()) as client:
        assert client.ask("get_state")["success"] is True
        server.process.kill()
        assert client.closed()
    server.wait()


def test_a_client_that_is_killed_takes_nothing_with_it(server, trials):
    program = (
        "import json, os, socket, sys; s = socket.create_connection(('localhost', int(sys.argv[1])));"
        "s.sendall(json.dumps({'command': 'init', 'traj_file': sys.argv[2]}).encode() + b'\\n'); s.recv(1);"
        "os.kill(os.getpid(), 9)"
    )
    before = len(children(server.process.pid))
    subprocess.run([sys.executable, "-c", program, str(server.port), str(trials[0])], timeout=PATIENCE_S)
    wait_until(lambda: len(children(server.process.pid)) <= before)
    with closing(server.connect()) as client:
        assert client.ask("init", traj_file=str(trials[0]))["success"] is True


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--env", "textworld", "--data-dir", "/nowhere/at/all"], "/nowhere/at/all is no folder"),
        (["--env", "thor"], "--env textworld"),
        (["--env", "textworld", "--data-dir", "/tmp", "--port", "{taken}"], "is taken: choose another with --port"),
        (["--env", "textworld", "--data-dir", "/tmp", "--host", "no.such.host.invalid"], "cannot listen on no.such"),
        (["--env", "textworld", "--data-dir", "/tmp", "--host", "0.0.0.0", "--port", "0"], "set ALFWORLD_SERVER_TOKEN"),
    ],
)
def test_what_prevents_a_start_is_said_in_a_line(options, reason):
    with closing(socket.create_server(("localhost", 0))) as taken:
        options = [option.replace("{taken}", str(taken.getsockname()[1])) for option in options]
        environ = {name: value for name, value in os.environ.items() if name != "DISPLAY"}
        command = [sys.executable, str(SERVER), *options]
        ended = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=PATIENCE_S)
    assert ended.returncode == 2 and reason in ended.stderr
    assert ended.stderr.startswith("error: ") and ended.stderr.count("\n") == 1


def test_a_short_token_prevents_the_start(monkeypatch):
    monkeypatch.setenv("ALFWORLD_SERVER_TOKEN", "x" * 15)
    with pytest.raises(ValueError, match="at least 16"):
        alfworld_server.access_token("127.0.0.1")
    monkeypatch.setenv("ALFWORLD_SERVER_TOKEN", "x" * 16)
    assert alfworld_server.access_token("192.0.2.1") == "x" * 16
    assert "ALFWORLD_SERVER_TOKEN" not in os.environ  # the simulator does not inherit it
    assert alfworld_server.access_token("127.0.0.1") == alfworld_server.access_token("::1") == ""


def test_bad_options_are_refused():
    for option in (["--max-clients", "0"], ["--jpeg-quality", "96"], ["--env", "unity"], ["--idle-timeout", "nan"]):
        with pytest.raises(SystemExit) as ended:
            alfworld_server.parse_arguments(option)
        assert ended.value.code == 2


# ---- parts ---------------------------------------------------------------------------------------------------------

words = st.text("abcdefgh 1 put move in/on to", max_size=30)


@given(
    st.one_of(words, st.builds("put {} in/on {}".format, words, words), st.builds("move {} to {}".format, words, words))
)
def test_dialects_agree_with_the_package(command):
    assert alfworld_server.canonical(command) == commands.canonical(command)
    assert alfworld_server.to_move(command) == commands.to_dialect(command, "move")


def test_games_that_alfworld_leaves_out_are_left_out(household_data, trials, tmp_path):
    for name in ("pick_and_place_simple-AppleSliced-None-Desk-1", "pick_two_movable-A-None-B-1", trials[0].parent.name):
        shutil.copytree(trials[0], tmp_path / name / "trial_1")
    text = (trials[0] / "game.tw-pddl").read_text()
    unsolvable = tmp_path / "pick_and_place_simple-Mug-None-Desk-1" / "trial_2" / "game.tw-pddl"
    unsolvable.parent.mkdir(parents=True)
    unsolvable.write_text(text.replace('"solvable": true', '"solvable": false'))
    options = alfworld_server.parse_arguments(["--env", "household", "--data-dir", str(tmp_path)])
    listed = alfworld_server.ClientSession(options).process_request({"command": "list_games"})["games"]
    assert [game["game"] for game in listed] == [f"{trials[0].parent.name}/trial_1"]


def test_a_card_shows_the_text_where_nothing_can_draw(trials, monkeypatch):
    alfworld_server.TextWorldBackend.load()
    monkeypatch.setattr(alfworld_server, "room_renderer", lambda: None)
    backend = alfworld_server.TextWorldBackend(5)
    backend.reset(alfworld_server.find_game(str(trials[0]), ["/"]))
    card = backend.frame(300)
    assert card.size == (300, 300) and card.mode == "RGB"
    other = alfworld_server.text_card("You see a mug.\nÉté ☃", 300)
    assert np.asarray(other).min() < 60 and np.asarray(other).tobytes() != np.asarray(card).tobytes()


def test_frames_are_those_of_the_package(client, trials):
    trial = trials[1]
    environment = make_environment("native")
    environment.reset(Game(f"{trial.parent.name}/{trial.name}", trial / "game.tw-pddl"))
    environment.step("look")
    from alfworld_native.drawing import frames

    client.ask("init", traj_file=str(trial), image_format="png")
    shown = np.asarray(decoded(client.ask("step", action="look")["current_image"]))
    assert (shown == frames.render(environment.room_state(), size=300)).all()


@pytest.mark.parametrize("backend", [alfworld_server.HouseholdBackend, alfworld_server.TextWorldBackend])
def test_a_trajectory_without_a_game_is_named(backend):
    with pytest.raises(alfworld_server.RequestError, match=r"no game file for pick/none: looked for 'game.tw-pddl'"):
        backend(5).reset(alfworld_server.GameFiles("pick/none", "pick", "", ""))


def test_an_engine_that_fails_leaves_the_connection(monkeypatch, trials):
    options = Namespace(env="household", max_steps=5, image_format="jpeg", image_size=64, jpeg_quality=85)
    options.data_dir, options.traj_dir = "/", []
    session = alfworld_server.ClientSession(options)
    session.process_request({"command": "init", "traj_file": str(trials[0])})
    monkeypatch.setattr(session._backend, "step", lambda action: 1 / 0)
    answer = session.process_request({"command": "step", "action": "look"})
    assert answer == {"success": False, "error": "the engine failed: ZeroDivisionError: division by zero"}
    assert "send init" in session.process_request({"command": "is_goal_satisfied"})["error"]


def test_a_game_of_a_mixture_is_over_at_its_levels_horizon(trials, tmp_path):
    """With more --max-steps the next action had failed in the engine, and the game was dropped."""
    trial = tmp_path / trials[0].parent.name / "trial_H0_standard3_000000"
    shutil.copytree(trials[0], trial)
    options = Namespace(env="household", max_steps=9, image_format="jpeg", image_size=64, jpeg_quality=85)
    options.data_dir, options.traj_dir = "/", []
    session = alfworld_server.ClientSession(options)
    session.process_request({"command": "init", "traj_file": str(trial)})
    over = [session.process_request({"command": "step", "action": "look"})["done"] for _ in range(3)]
    assert over == [False, False, True]
    answer = session.process_request({"command": "step", "action": "look"})
    assert answer["error"] == "the episode is over after 3 actions: init the next game"


# ---- AI2-THOR's double: what alfworld's AlfredThorEnv answers, as in its source -------------------------------------


class Alfred:
    """AlfredThorEnv after init_env(1), as far as it is used."""

    def __init__(self, config, train_eval):
        self.config, self.commands, self.closed, self.dies = config, [], False, False
        self.envs = [self]
        self.results = ()

    def init_env(self, batch_size):
        return self

    def is_alive(self):
        return True

    def get_results(self):
        return self.results

    def reset(self):
        self.results = ("begun",)
        return ["You are in the middle of a room. Your task is to: put a mug in desk."], self.infos(False)

    def step(self, commands):
        if not self.dies:
            self.results = ("stepped", len(self.commands))
        self.commands += commands
        return ["You put the mug 1 in/on the desk 1."], None, [True], self.infos(True)

    def infos(self, won):
        return {"admissible_commands": [["look", "move mug 1 to desk 1", "look"]], "won": [won]}

    def get_frames(self):
        frame = np.zeros((1, 300, 300, 3), np.uint8)
        frame[..., 0] = 200  # blue, in OpenCV's order
        return frame

    def close(self):
        self.closed = True


@pytest.fixture
def thor(monkeypatch, tmp_path):
    """A session on the double, and the trajectory file of a game that it can play."""
    name = "alfworld.agents.environment.alfred_thor_env"
    monkeypatch.setitem(sys.modules, name, SimpleNamespace(AlfredThorEnv=Alfred))
    options = Namespace(env="thor", max_steps=5, image_format="png", image_size=300, jpeg_quality=85)
    options.data_dir, options.traj_dir = str(tmp_path), []
    trajectory = tmp_path / "task_1.json"
    trajectory.write_text(json.dumps({"task_id": "trial_1", "task_type": "t", "scene": {"object_poses": []}}))
    return alfworld_server.ClientSession(options), trajectory


def test_thor_plays_a_trajectory_file_without_a_game_file(thor):
    session, trajectory = thor
    begin = session.process_request({"command": "init", "traj_file": str(trajectory)})
    assert begin["task_desc"] == "put a mug in desk." and begin["game"] == "trial_1"
    assert begin["admissible_commands"] == ["look", "put mug 1 in/on desk 1"]
    assert decoded(begin["initial_image"]).getpixel((0, 0)) == (0, 0, 200)
    alfred = session._backend._alfred
    assert alfred.json_file_list == [str(trajectory)] and alfred.train_eval == "eval"
    step = session.process_request({"command": "step", "action": "move mug 1 to desk 1"})
    assert step["goal_satisfied"] and alfred.commands == ["put mug 1 in/on desk 1"]
    session.close()
    assert alfred.closed


def test_thor_that_dies_or_cannot_build_the_room_is_a_fault(thor, trials):
    session, trajectory = thor
    session.process_request({"command": "init", "traj_file": str(trajectory)})
    alfred = session._backend._alfred
    alfred.dies = True
    assert "AI2-THOR stopped" in session.process_request({"command": "step", "action": "look"})["error"]
    assert alfred.closed
    for command in ("step", "is_goal_satisfied"):
        assert "send init" in session.process_request({"command": command, "action": "look"})["error"]
    assert session.process_request({"command": "init", "traj_file": str(trajectory)})["success"] is True
    shutil.copytree(trials[0], trajectory.parent / "task" / "trial")
    assert "no object poses" in session.process_request({"command": "init", "traj_file": "task/trial"})["error"]


def test_thor_that_can_no_longer_be_stopped_is_the_same_fault(thor, monkeypatch):
    session, trajectory = thor
    session.process_request({"command": "init", "traj_file": str(trajectory)})
    session._backend._alfred.dies = True
    monkeypatch.setattr(Alfred, "close", lambda self: 1 / 0)
    assert "AI2-THOR stopped" in session.process_request({"command": "step", "action": "look"})["error"]
    assert session.process_request({"command": "init", "traj_file": str(trajectory)})["success"] is True


def test_thor_over_alfworlds_own_source(alfworld_data, monkeypatch):
    """Only Unity is missing: its room is recorded."""
    game = next(game for game in find_games("valid_seen", alfworld_data) if game.id.startswith("pick_two_obj"))
    monkeypatch.setenv("ALFWORLD_DATA", str(alfworld_data))
    options = Namespace(env="thor", max_steps=50, image_format="png", image_size=300, jpeg_quality=85)
    options.data_dir, options.traj_dir = str(alfworld_data), []
    with recorded_thor.installed(monkeypatch):
        session = alfworld_server.ClientSession(options)
        answer = session.process_request({"command": "init", "traj_file": str(game.path.parent / "traj_data.json")})
        assert decoded(answer["initial_image"]).getpixel((299, 299)) == (200, 0, 0)
        expert = make_expert("explorer")
        expert.begin(answer["intro"], task_type=game.id)
        while not answer["done"]:
            action = expert.act().action or "look"
            answer = session.process_request({"command": "step", "action": action})
            expert.observe(action, answer["feedback"])
        session.close()
    assert answer["goal_satisfied"], answer


# ---- old interpreters ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("program", ["alfworld_server.py", "run_split_inference.py"])
def test_python_3_6_is_enough(program):
    command = [
        sys.executable,
        "-c",
        "import vermin; vermin.main()",
        "-t=3.6-",
        "--no-tips",
        "--violations",
        str(SERVER.with_name(program)),
    ]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert checked.returncode == 0 and "Minimum required versions: 3.6" in checked.stdout, checked.stdout


def python_3_6():
    """A Python 3.6 that starts (a name on the path may only be pyenv's shim); None if there is none."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob("versions/3.6.*/bin/python3.6")
    for name in (os.environ.get("EMAC_PYTHON36"), *map(str, pyenv), shutil.which("python3.6")):
        if name and subprocess.run([name, "-c", ""], capture_output=True, timeout=PATIENCE_S).returncode == 0:
            return name
    return None


OLD_INTERPRETER = """
import socket, sys, threading
sys.path.insert(0, sys.argv[1])
import alfworld_server as server, run_split_inference
options = server.parse_arguments(["--env", "textworld"])
options.data_dir, options.token = sys.argv[2], ""
near, far = socket.socketpair()
serving = threading.Thread(target=server.serve_client, args=(far, options, server.os.pipe()[0]))
serving.start()
for line in sys.stdin.buffer:
    near.sendall(line)
near.shutdown(socket.SHUT_WR)
serving.join()
far.close()
sys.stdout.buffer.write(b"".join(iter(lambda: near.recv(65536), b"")))
"""


def test_an_old_interpreter_answers_like_this_one(client, household_data):
    python = python_3_6()
    if python is None:
        pytest.skip("no Python 3.6 found: neither EMAC_PYTHON36, nor python3.6, nor pyenv's")
    lines = [b'{"command": "list_games"}', b'{"command": "get_state"}', b"hello", b"[" * 20000, b"\xff", b'{"a": NaN}']
    lines += [b'{"command": "fly"}', b'{"command": "step", "action": "look"}', b'{"command": "reset_task"}']
    command = [python, "-c", OLD_INTERPRETER, str(SERVER.parent), str(household_data)]
    sent = b"".join(line + b"\n" for line in lines)
    old = subprocess.run(command, input=sent, capture_output=True, timeout=PATIENCE_S)
    assert old.returncode == 0, old.stderr
    answers = [json.loads(line) for line in old.stdout.splitlines() if line.startswith(b"{")]
    client.send(sent)
    here = [client.answer() for _ in lines]
    assert (
        answers[0]["settings"].pop("server_env") == "textworld" and here[0]["settings"].pop("server_env") == "household"
    )
    assert answers == here
