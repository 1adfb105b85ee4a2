"""Several workers and programs at once: arguments, failures, joining in the middle of a round."""

import itertools
import json
import subprocess
import sys
import time

import pytest

from alfworld_native.errors import EnvironmentFault
from alfworld_native.games import find_games
from lavis.common.paths import REPO_ROOT
from tests.xrl_alignment.play.client.playing import SlowEnvironment, native, quiet
from xrl_alignment.play.client.play import play
from xrl_alignment.wire.messages import Bye


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


def test_a_second_program_joins_in_the_middle_of_a_round(make_run, household_data, scripted):
    """Two programs with eight workers each: both play, every game of both rounds is played exactly once."""
    games = find_games("household_train", data=household_data, num=12, seed=0)
    run = make_run(games=games, policy=scripted("look"), train=False, num_rounds=2, max_steps=3)
    handed: list[str] = []  # sessions that were given a game, in order
    first: set[str] = set()  # the sessions of the first program
    hand_out = run.loop.rounds.hand_out

    def hold_the_first_back(session, game=""):
        """After four games the first program waits until the second one plays."""
        if len(programs) < 2:
            first.add(session)
        if not game and len(handed) >= 4 and not set(handed) - first and session in first:
            return -1
        env = hand_out(session, game)
        handed.extend([session] if env >= 0 and not game else [])
        return env

    run.loop.rounds.hand_out = hold_the_first_back
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
