"""Workers against a server: asking for work, playing it, and losing an environment or a session."""

import io
import os
import signal
import threading
import time
from collections import Counter
from functools import partial

import numpy as np
import pytest

from alfworld_native.errors import EnvironmentFault
from alfworld_native.games import find_games
from tests.ports import free_port
from tests.xrl_alignment.play.client.playing import SlowEnvironment, native, quiet
from xrl_alignment.play.client.connection import ClientError
from xrl_alignment.play.client.play import play
from xrl_alignment.play.client.report import ClientReport
from xrl_alignment.wire.messages import Bye, Next


def test_workers_that_wait_for_other_clients_games_say_so_once(master, games, monkeypatch):
    monkeypatch.setattr("xrl_alignment.play.client.worker._LONG_WAIT_S", 0.05)
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


def all_wait(server, workers: int) -> bool:
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
    monkeypatch.setattr("xrl_alignment.play.client.worker._V1_PATIENCE_S", 0.3)
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


def test_a_server_that_wants_an_expert_which_is_not_there(master, games):
    server = master(welcome={"expert": "planner"})
    with pytest.raises(ClientError, match=r"expert\.name=planner .*--expert planner"):
        play(server.url, native, games, report=quiet())
    assert not server.observations()


def test_client_starts_a_new_session_when_the_server_was_restarted(master, games):
    port, report, result = free_port(), io.StringIO(), []
    first = master(num_rounds=1, port=port)
    slow = SlowEnvironment(0.02)
    client = threading.Thread(
        target=lambda: result.append(play(first.url, lambda: slow, games, report=ClientReport(report)))
    )
    client.start()
    while len(first.observations()) < 3:
        assert client.is_alive()
        time.sleep(0.005)
    first.end()
    second = master(num_rounds=1, port=port)
    client.join(60)
    second.end()
    assert "starting a new one" in report.getvalue()
    assert [o.task_type for o in second.observations() if o.task_type] == [game.id for game in games]


def test_work_that_was_not_offered_is_refused(master, games):
    server = master()
    server.work = [(0, "pick-unknown/t", 0)]
    with pytest.raises(ClientError, match="not offered: 'pick-unknown/t'"):
        play(server.url, native, games, report=quiet())


def test_v1_and_v2_show_the_server_the_same(master, games):
    servers = [master(num_rounds=1), master(num_rounds=1)]
    for server, wire in zip(servers, ("v1", "v2"), strict=True):
        play(server.url, native, games[:1], wire=wire, num_rounds=1 if wire == "v1" else None, report=quiet())
    for one, other in zip(servers[0].observations(), servers[1].observations(), strict=True):
        assert (one.text, one.information, one.done) == (other.text, other.information, other.done)
        assert np.array_equal(one.image, other.image)


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


def test_v1_cannot_give_a_lost_game_back(master, games):
    server = master(num_rounds=1)
    factory = partial(Hanging, "", 1, "dies")
    with pytest.raises(EnvironmentFault, match="was killed by SIGKILL.*: wire v1 cannot give its game back"):
        play(server.url, factory, games, wire="v1", num_rounds=1, executor="local", report=quiet())


class FailsOnce:
    """A policy that cannot answer its first observation, and looks after that."""

    def __init__(self) -> None:
        self.failed = False

    def act(self, batch):
        if not self.failed and batch[0].session != "harmless":
            self.failed = True
            raise ValueError("bad")
        return ["look"] * len(batch)


def test_a_game_that_the_server_gave_up_is_told_with_the_reason_and_played_again(make_run):
    said = io.StringIO()
    run = make_run(policy=FailsOnce(), num_rounds=1, max_steps=2)
    summary = run.play(report=ClientReport(said))
    assert "the server gave the game up: ValueError: bad" in said.getvalue()
    assert [len(record.steps) for record in run.journal] == [2, 2] and summary["episodes"] == 2
