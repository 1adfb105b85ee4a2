"""The client against the real server, with the native engine on generated games, and against a server that fails."""

import http.server
import io
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import closing
from functools import partial

import numpy as np
import pytest

from xrl_alignment.client.client import ClientError, Connection, Link, Session, play
from xrl_alignment.client.report import ClientReport
from xrl_alignment.common.errors import EnvironmentFault
from xrl_alignment.common.paths import REPO_ROOT
from xrl_alignment.environments import make_environment
from xrl_alignment.environments.games import find_games
from xrl_alignment.experts import make_expert
from xrl_alignment.wire import v2
from xrl_alignment.wire.http_server import DaggerHTTPServer
from xrl_alignment.wire.messages import Bye, Hello, Next, Observation, md5_hex


@pytest.fixture(scope="module")
def games(household_data):
    return find_games("household_heldout", data=household_data, num=3)


def native():
    return make_environment("native")


class GameMaster(threading.Thread):
    """Hands out every game for `num_rounds` and lets the explorer drive; the smallest stand-in for the DAgger loop."""

    def __init__(self, num_rounds: int = 2, port: int = 0, welcome: dict | None = None, **options) -> None:
        super().__init__(daemon=True)
        self.server = DaggerHTTPServer("127.0.0.1", port, **options)
        self.server.start()
        self.url = f"http://127.0.0.1:{self.server.port}"
        self.num_rounds = num_rounds
        self.welcome = {"kind": "welcome", "num_rounds": num_rounds, "expert": ""} | (welcome or {})
        self.seen: list = []
        self.work: list | None = None
        self.solved: set[str] = set()
        self.held: dict[str, tuple] = {}
        self._experts: dict = {}
        self._over = threading.Event()
        self.start()

    def run(self) -> None:
        while not self._over.is_set():
            for pending in self.server.take(8, timeout_s=0.02):
                self.seen.append(pending.message)
                pending.reply(self._answer(pending.message))

    def end(self) -> "GameMaster":
        self._over.set()
        self.join(60)
        self.server.stop()
        return self

    def observations(self, session: str | None = None) -> list[Observation]:
        return [m for m in self.seen if isinstance(m, Observation) and session in (None, m.session)]

    def _answer(self, message):
        match message:
            case Hello():
                if self.work is None:
                    self.work = [(i, g, r) for r in range(self.num_rounds) for i, g in enumerate(message.games)]
                return self.welcome
            case Next():
                if not self.work:
                    return {"kind": "wait", "seconds": 0.01} if self.held else {"kind": "finished"}
                env, game, number = self.held[message.session] = self.work.pop(0)
                return {"kind": "work", "env": env, "game": game, "round": number}
            case Bye():
                if message.session in self.held:
                    self.work.append(self.held.pop(message.session))
                return {"kind": "bye"}
        return self._act(message)

    def _act(self, observation: Observation):
        if observation.done:
            self.held.pop(observation.session, None)
            return []
        if observation.task_type in self.solved:
            return ["SKIP"]
        if observation.task_type:
            expert = make_expert("explorer")
            expert.begin(observation.text)
        else:
            expert, action = self._experts[observation.session]
            expert.observe(action, observation.text)
        action = expert.act().action or "look"
        self._experts[observation.session] = (expert, action)
        return [action]


@pytest.fixture
def master():
    running = []

    def make(**options) -> GameMaster:
        running.append(GameMaster(**options))
        return running[-1]

    yield make
    for one in running:
        one.end()


def quiet() -> ClientReport:
    return ClientReport(io.StringIO())


def test_workers_that_wait_for_other_clients_games_say_so_once(master, games, monkeypatch):
    monkeypatch.setattr("xrl_alignment.client.client._LONG_WAIT_S", 0.05)
    server = master()
    server.held["a client that died"] = ("0", games[0].id, 0)
    said = io.StringIO()
    playing = threading.Thread(
        target=play, args=(server.url, native, games), kwargs={"num_workers": 3, "report": ClientReport(said)}
    )
    playing.start()
    while "with other clients" not in said.getvalue():
        assert playing.is_alive()
        time.sleep(0.01)
    while not all_wait(server, 3):
        assert playing.is_alive()
        time.sleep(0.01)
    server.held.clear()
    playing.join(60)
    assert not playing.is_alive() and said.getvalue().count("with other clients") == 1


def all_wait(server: GameMaster, workers: int) -> bool:
    """Whether so many sessions have asked for work ten times each, and nobody has done anything else."""
    last = server.seen[-30 * workers :]
    asked = Counter(message.session for message in last)
    return all(isinstance(message, Next) for message in last) and [n >= 10 for n in asked.values()] == [True] * workers


def test_v2_plays_every_game_of_every_round(master, games):
    server = master()
    summary = play(server.url, native, games, split="household_heldout", report=quiet())
    hello = server.seen[0]
    assert hello.games == tuple(game.id for game in games) and hello.split == "household_heldout"
    first = [o for o in server.observations() if o.task_type]
    assert [(o.task_type, o.env, o.round) for o in first] == [
        (g.id, i, r) for r in range(2) for i, g in enumerate(games)
    ]
    assert summary["episodes"] == 6 and summary["won"] == sum(bool(o.won) for o in server.observations() if o.done)
    assert summary["steps"] == len(server.observations()) - 6
    assert sum(played for _, played in summary["per_task_type"].values()) == 6
    one = server.observations()[1]
    assert one.image.shape == (224, 224, 3) and one.image.any() and one.history == ""
    assert one.information["engine"] == "native" and "expert_action" not in one.information
    assert one.admissible_commands and one.won is False
    assert isinstance(server.seen[-1], Bye)


def test_v2_frames_arrive_as_they_were_drawn(master, games):
    server = master(num_rounds=1)
    play(server.url, native, games[:1], report=quiet())
    environment = native()
    environment.reset(games[0])
    assert (server.observations()[0].image == environment.render()).all()


def test_v2_workers_share_the_games(master, games):
    server = master(num_rounds=3)
    answer = server._answer

    def when_all_are_there(message):
        if isinstance(message, Next) and len({m.session for m in server.seen}) < 3:
            return {"kind": "wait", "seconds": 0.01}
        return answer(message)

    server._answer = when_all_are_there
    summary = play(server.url, native, games, num_workers=3, report=quiet())
    assert summary["episodes"] == 9
    played = sorted((o.task_type, o.round) for o in server.observations() if o.task_type)
    assert played == sorted((game.id, number) for game in games for number in range(3))
    assert len({o.session for o in server.observations()}) > 1
    assert len({m.session for m in server.seen if isinstance(m, Bye)}) == 3


def test_v1_plays_in_order_writes_the_history_and_skips_solved_games(master, games):
    server = master()
    server.solved.add(games[1].id)
    summary = play(server.url, native, games[:2], wire="v1", num_rounds=2, report=quiet())
    first = [o.task_type for o in server.observations() if o.task_type]
    assert first == [game.id for game in games[:2]] * 2 and summary["episodes"] == 2
    before, after = server.observations()[:2]
    assert before.history.endswith("\n> ") and after.history.startswith(before.history)
    assert after.history.endswith(f"{after.text.strip()}\n> ") and not after.task_type


def test_v1_counts_an_episode_that_the_server_ends_early(master, games, monkeypatch):
    server = master(num_rounds=1)
    answers = iter([["look"], ["inventory"], ["SKIP"]])
    monkeypatch.setattr(server, "_act", lambda observation: next(answers))
    summary = play(server.url, native, games[:1], wire="v1", num_rounds=1, report=quiet())
    assert (summary["episodes"], summary["won"], summary["steps"]) == (1, 0, 2)


def test_v1_ends_when_the_server_has_gone(master, games, monkeypatch):
    monkeypatch.setattr("xrl_alignment.client.client._V1_PATIENCE_S", 0.3)
    server = master()
    report = io.StringIO()

    class Counted:  # ends the server after the first round
        def __init__(self) -> None:
            self.environment, self.resets = native(), 0

        def reset(self, game):
            self.resets += 1
            if self.resets > 2:
                server.end()
            return self.environment.reset(game)

        def __getattr__(self, name):
            return getattr(self.environment, name)

    summary = play(server.url, Counted, games[:2], wire="v1", report=ClientReport(report))
    assert summary["episodes"] == 2 and "the server has gone after 1 whole rounds" in report.getvalue()


def test_blank_frames_are_black_and_of_the_same_size(master, games):
    server = master(num_rounds=1)
    play(server.url, native, games[:1], blank_frames=True, report=quiet())
    assert all(o.image.shape == (224, 224, 3) and not o.image.any() for o in server.observations())


def test_expert_beside_the_environment_travels_with_the_observation(master, games):
    server = master(num_rounds=1)
    play(server.url, native, games[:1], expert=lambda environment: make_expert("explorer"), report=quiet())
    observations = server.observations()
    advised = [o.information["expert_action"] for o in observations]
    assert all(advised[:-1]) and "expert_thought" in observations[0].information
    executed = [line[2:] for line in observations[-1].history.splitlines() if line.startswith("> ")]
    assert executed == []  # v2 leaves the text to the server


def test_a_server_that_wants_an_expert_which_is_not_there(master, games):
    server = master(welcome={"expert": "planner"})
    with pytest.raises(ClientError, match=r"expert\.name=planner .*--expert planner"):
        play(server.url, native, games, report=quiet())
    assert not server.observations()


def test_client_waits_for_a_server_that_is_late(games):
    with closing(socket.create_server(("127.0.0.1", 0))) as place:
        port = place.getsockname()[1]
    report, result = io.StringIO(), []
    url = f"http://127.0.0.1:{port}"
    client = threading.Thread(target=lambda: result.append(play(url, native, games[:1], report=ClientReport(report))))
    client.start()
    while "waiting for the server" not in report.getvalue():
        assert client.is_alive()
        time.sleep(0.01)
    server = GameMaster(num_rounds=1, port=port)
    client.join(60)
    server.end()
    assert result[0]["episodes"] == 1 and report.getvalue().count("waiting for the server") == 1


def test_client_starts_a_new_session_when_the_server_was_restarted(games):
    first = GameMaster(num_rounds=1)
    port, report, result = first.server.port, io.StringIO(), []
    slow = SlowEnvironment(0.02)
    client = threading.Thread(
        target=lambda: result.append(play(first.url, lambda: slow, games, report=ClientReport(report)))
    )
    client.start()
    while len(first.observations()) < 3:
        assert client.is_alive()
        time.sleep(0.005)
    first.end()
    second = GameMaster(num_rounds=1, port=port)
    client.join(60)
    second.end()
    assert "starting a new one" in report.getvalue()
    assert [o.task_type for o in second.observations() if o.task_type] == [game.id for game in games]


class SlowEnvironment:
    """The native engine with a pause before each step."""

    def __init__(self, pause_s: float) -> None:
        self._environment, self._pause_s = native(), pause_s

    def step(self, action):
        time.sleep(self._pause_s)
        return self._environment.step(action)

    def __getattr__(self, name):
        return getattr(self._environment, name)


def test_a_broken_connection_is_retried_with_the_same_bytes():
    """A server that cuts the connection after the request, then damages a reply, then answers."""
    received = []
    reply = b'{"kind": "finished"}'
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nMD5: %s\r\n\r\n"
    answers = [
        b"",
        head % (len(reply), b"0" * 32) + reply,
        head % (len(reply), md5_hex(reply).encode()) + reply,
    ]

    def serve(listener: socket.socket) -> None:
        for answer in answers:
            connection, _ = listener.accept()
            with closing(connection):
                connection.settimeout(60)
                data = b""
                while not data.endswith(b"the body"):
                    data += connection.recv(65536)
                received.append(data)
                connection.sendall(answer)

    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        thread = threading.Thread(target=serve, args=(listener,), daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        link = Link(url, token="", patience_s=60, report=quiet())
        assert link.exchange(b"the body", v2.CONTENT_TYPE) == reply
        thread.join(60)
    assert len(received) == 3 and len(set(received)) == 1


def test_refusals_name_the_server_and_the_reason(master, games):
    url = master(token="sesame").url
    with pytest.raises(ClientError, match=r"refuses \(401\).*--token"):
        play(url, native, games, token="wrong", report=quiet())
    with pytest.raises(ClientError, match="the games are too few"):
        play(master(welcome={"kind": "error", "reason": "the games are too few"}).url, native, games, report=quiet())
    with pytest.raises(ClientError, match=r"\(413\)"):
        play(master(max_body=500).url, native, games, report=quiet())


def test_another_kind_of_server_is_told_apart(games):
    with http.server.HTTPServer(("127.0.0.1", 0), Stranger) as stranger:
        threading.Thread(target=stranger.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{stranger.server_port}"
        with pytest.raises(ClientError, match="does not answer like a dagger server"):
            play(url, native, games, report=quiet())
        stranger.shutdown()


class Stranger(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *arguments) -> None:
        pass


def test_work_that_was_not_offered_is_refused(master, games):
    server = master()
    server.work = [(0, "pick-unknown/t", 0)]
    with pytest.raises(ClientError, match="not offered: 'pick-unknown/t'"):
        play(server.url, native, games, report=quiet())


def test_patience_ends(games):
    with closing(socket.create_server(("127.0.0.1", 0))) as place:
        url = f"http://127.0.0.1:{place.getsockname()[1]}"
    for wire in ("v1", "v2"):
        with pytest.raises(ClientError, match=rf"no server at {url} for 0\.2 s .*dagger_server"):
            play(url, native, games, wire=wire, patience_s=0.2, report=quiet())
    with pytest.raises(ClientError, match="no host is called host.invalid"):
        play("http://host.invalid:7860", native, games, report=quiet())


def test_a_failing_environment_ends_all_workers_with_bye(master, games):
    server = master(num_rounds=20)
    numbers = itertools.count()  # atomic: the workers make their environments at once

    class Broken(SlowEnvironment):
        def step(self, action):
            while len({o.session for o in server.observations()}) < 3:  # who has said no hello has no goodbye to say
                time.sleep(0.01)
            raise EnvironmentFault("the simulator is gone")

    with pytest.raises(EnvironmentFault, match="the simulator is gone"):
        play(
            server.url,
            lambda: Broken(0) if next(numbers) == 1 else SlowEnvironment(0.05),
            games,
            num_workers=3,
            report=quiet(),
        )
    assert len({m.session for m in server.seen if isinstance(m, Bye)}) == 3


def test_the_stop_that_asks_for_a_goodbye_does_not_cut_it_off(master, games, monkeypatch):
    """A worker that `stop` has woken may be saying goodbye before `stop` has interrupted what it was doing."""
    server = master()
    link = Link(server.url, token="", patience_s=60, report=quiet())
    session = Session(link, "auto")
    session.send(Hello, games=tuple(game.id for game in games))
    connect = Connection._connect

    def stopped_meanwhile(connection: Connection) -> None:
        connect(connection)
        link.stop()

    monkeypatch.setattr(Connection, "_connect", stopped_meanwhile)
    session.bye()
    assert isinstance(server.seen[-1], Bye)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"wire": "v3"}, "unknown wire 'v3'"),
        ({"wire": "v1", "num_workers": 2}, "v1 knows one client"),
        ({"num_workers": 0}, "workers must be at least 1"),
        ({"wire": "v1", "num_rounds": 0}, "rounds must be at least 1"),
        ({"image_format": "bmp"}, "unknown image format 'bmp'"),
    ],
)
def test_arguments_are_checked_before_anything_starts(options, reason):
    with pytest.raises(ValueError, match=reason):
        play("http://127.0.0.1:1", native, [], **options)


@pytest.mark.parametrize("url", ["127.0.0.1:7860", "https://127.0.0.1", "http://127.0.0.1:99999"])
def test_server_url_is_checked(url):
    with pytest.raises(ValueError, match="server URL"):
        play(url, native, [])


def test_report_draws_a_bar_on_a_terminal_and_writes_lines_elsewhere():
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for stream, expected in ((Terminal(), "2/2"), (io.StringIO(), "1 won, 2 of 2 episodes")):
        with ClientReport(stream) as report:
            report.expect(2)
            report.episode(won=True)
            report.episode(won=False)
            for _ in range(2):
                report.waiting("waiting")
            report.say("[brackets] stay")
        assert expected in stream.getvalue() and "[brackets] stay" in stream.getvalue()
        assert stream.getvalue().count("waiting") == 1


def test_v1_and_v2_show_the_server_the_same(master, games):
    servers = [master(num_rounds=1), master(num_rounds=1)]
    for server, wire in zip(servers, ("v1", "v2"), strict=True):
        play(server.url, native, games[:1], wire=wire, num_rounds=1, report=quiet())
    for one, other in zip(servers[0].observations(), servers[1].observations(), strict=True):
        assert (one.text, one.information, one.done) == (other.text, other.information, other.done)
        assert np.array_equal(one.image, other.image)


def test_a_second_program_joins_in_the_middle_of_a_round(make_run, household_data, scripted):
    """Two programs with eight workers each: both play, every game of both rounds is played exactly once."""
    games = find_games("household_train", data=household_data, num=12, seed=0)
    run = make_run(games=games, policy=scripted("look"), train=False, num_rounds=2, max_steps=3)
    handed: list[str] = []  # sessions that were given a game, in order
    first: set[str] = set()  # the sessions of the first program
    next_game = run.loop.schedule.next_game

    def hold_the_first_back(session):
        """After four games the first program waits until the second one plays."""
        if len(programs) < 2:
            first.add(session)
        if len(handed) >= 4 and not set(handed) - first and session in first:
            return None
        game = next_game(session)
        handed.extend([session] if game else [])
        return game

    run.loop.schedule.next_game = hold_the_first_back
    programs: list[subprocess.Popen] = []
    run.start()
    command = [sys.executable, str(REPO_ROOT / "alfworld_client.py"), "--port", str(run.server.port), "--env", "native"]
    command += ["--split", "household_train", "--data", str(household_data), "--num-envs", "12", "--num-workers", "8"]
    programs.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    deadline = time.monotonic() + 100
    while (len(handed) < 4 or len(first) < 8) and time.monotonic() < deadline:
        time.sleep(0.02)
    programs.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    summaries = [json.loads(program.communicate(timeout=120)[0]) for program in programs]
    run.wait()
    played = [(record.round, record.game) for record in run.journal]
    assert sorted(played) == sorted((round, game.id) for round in range(2) for game in games)
    assert all(summary["episodes"] for summary in summaries) and sum(s["episodes"] for s in summaries) == 24


# ---- environments in processes of their own --------------------------------------------------------------------------


class Hanging:
    """The native engine, which at its `at`-th step ends its process or never answers: once, if there is a `mark`."""

    def __init__(self, mark: str, at: int, how: str) -> None:
        self._environment, self._mark, self._at, self._how = native(), mark, at, how

    def step(self, action):
        self._at -= 1
        if self._at == 0 and self._first_to_get_here():
            if self._how == "hangs":
                time.sleep(600)
            os.kill(os.getpid(), signal.SIGKILL)
        return self._environment.step(action)

    def _first_to_get_here(self) -> bool:
        if not self._mark:
            return True
        try:
            os.close(os.open(self._mark, os.O_CREAT | os.O_EXCL))  # two workers may get here at once: one of them does
        except FileExistsError:
            return False
        return True

    def __getattr__(self, name):
        return getattr(self._environment, name)


def test_processes_play_what_threads_play(master, games):
    shown = []
    for executor in ("sequential", "local"):
        server = master(num_rounds=1)
        result = play(server.url, native, games, executor=executor, report=quiet())
        assert result["episodes"] == len(games) and len({o.session for o in server.observations()}) == 1
        shown.append([(o.text, o.information, o.task_type, o.image.tobytes()) for o in server.observations()])
    assert shown[0] == shown[1]


@pytest.mark.parametrize(
    ("how", "step_timeout_s", "session_timeout_s"),
    [
        ("dies", 0.0, 60.0),
        pytest.param("hangs", 10.0, 60.0, marks=pytest.mark.slow),
        pytest.param("hangs", 20.0, 5.0, marks=pytest.mark.slow),  # the run is over before the client notices
    ],
)
def test_a_lost_environment_gives_its_game_back(
    make_run, household_data, scripted, tmp_path, how, step_timeout_s, session_timeout_s
):
    """The run is whole: every game once, and of the lost episode nothing is kept."""
    games = find_games("household_train", data=household_data, num=4, seed=0)
    timeout = {"session_timeout_s": session_timeout_s}
    run = make_run(games=games, policy=scripted("look"), train=False, num_rounds=1, max_steps=5, **timeout)
    run.start()
    report = io.StringIO()
    factory = partial(Hanging, str(tmp_path / "mark"), 3, how)
    url = f"http://127.0.0.1:{run.server.port}"
    options = {
        "executor": "local",
        "num_workers": 2,
        "step_timeout_s": step_timeout_s,
        "report": ClientReport(report),
    }
    result = play(url, factory, games, **options)
    run.wait()
    assert sorted(record.game for record in run.journal) == sorted(game.id for game in games)
    assert all(len(record.steps) == 5 for record in run.journal)
    assert result["episodes"] == 4 and report.getvalue().count("its game goes back to the server") == 1


def test_an_environment_that_is_always_lost_ends_the_client(master, games):
    server = master(num_rounds=9)
    factory = partial(Hanging, "", 1, "dies")
    with pytest.raises(EnvironmentFault, match="lost 3 times in a row: it was killed by SIGKILL"):
        play(server.url, factory, games, executor="local", report=quiet())
