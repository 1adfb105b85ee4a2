"""Worker processes: many at once, and what happens when they die, hang or run out of memory."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time

import pytest

from alfworld_native import make_environment
from xrl_alignment.common.errors import RolloutError
from xrl_alignment.play.evaluation.actors import PolicyActor
from xrl_alignment.play.evaluation.trials import play_games
from xrl_alignment.play.rollouts import local as local_executor
from xrl_alignment.play.rollouts.local import PRELOAD
from xrl_alignment.play.rollouts.make import make_executor
from xrl_alignment.play.rollouts.sequential import SequentialExecutor


def values(outcomes) -> list:
    return [outcome.value for outcome in outcomes]


def wait_for(condition, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it does not happen"
        time.sleep(0.01)


def test_outcomes_come_in_order_while_later_ones_are_played(plays, local, tmp_path):
    log, go = tmp_path / "log", tmp_path / "go"
    outcomes = local.run(plays.Held(log, go), range(12))  # the last two go on when they are told
    assert next(outcomes).job == 0
    assert log.read_text().count("ended") < 12
    go.touch()
    assert [outcome.job for outcome in outcomes] == list(range(1, 12))


def test_no_more_workers_than_jobs(plays):
    with make_executor("local", workers=50) as executor:
        assert values(executor.run(plays.Asking(), range(2), answer=plays.answer))[1][0] == 1
        assert executor.warm_up(2) == 2
        assert list(executor.run(plays.Asking(), [], answer=plays.answer)) == []


def test_a_policy_in_this_process_plays_in_workers(local, games, scripted):
    policy = scripted("look", "inventory", "go to desk 1")
    here, there = (
        play_games(
            PolicyActor(policy=policy),
            games,
            NativeFactory(),
            executor=executor,
            max_steps=5,
            memories={games[0].id: ["M"]},
        )
        for executor in (SequentialExecutor(), local)
    )
    assert here == there and [result.actions for result in here] == [5] * len(games)
    half = len(policy.inputs) // 2
    key = [(item.prompt, item.image.tobytes(), tuple(item.admissible_commands)) for item in policy.inputs]
    assert sorted(key[:half]) == sorted(key[half:])


class NativeFactory:
    """Makes native environments, in any process."""

    def __call__(self):
        return make_environment("native")


def test_a_game_played_twice_loads_once(plays, games):
    with make_executor("local", workers=1) as executor:
        outcomes = [outcome for _ in range(2) for outcome in executor.run(plays.Loading(), [*games, *games])]
    assert outcomes[-1].value[1] == len(games)


LOST = {
    "die": "exit code 3",
    "exhaust": "ran out of memory",
    "hang": "made no step for 5 s",
    "stop": "made no step for 5 s",
    "babble": "said what is no reply: UnpicklingError",
    "lie": "said what is no reply: tuple",
    "repeat": "answered call 1 when call ",
    "cut": "stopped in the middle of a reply",
}


@pytest.mark.parametrize("how", LOST)
def test_a_lost_episode_is_played_again(plays, tmp_path, how, monkeypatch):
    """What a worker said that is no reply ended the run; half a reply was waited for for ever; an old reply that came
    again was taken for the outcome of the next game."""
    monkeypatch.setattr(local_executor, "PIPE_S", 1.0)
    with make_executor("local", workers=2, step_timeout_s=5.0 if how in ("hang", "stop") else 60.0) as executor:
        executor.warm_up()
        list(
            executor.run(plays.Asking(), range(2), answer=plays.answer)
        )  # its first import may take a busy machine a while
        outcomes = list(executor.run(plays.Failing(how, once=tmp_path / "once"), range(5)))
        reasons = executor.replaced
    assert values(outcomes) == list(range(5)) and [o.attempts for o in outcomes] == [1, 1, 2, 1, 1]
    assert len(reasons) == 1 and LOST[how] in reasons[0]


def test_an_episode_that_is_lost_every_time_is_reported(plays):
    with make_executor("local", workers=2, retries=1) as executor:
        outcomes = list(executor.run(plays.Failing("die"), range(4)))
    assert values(outcomes) == [0, 1, None, 3]
    assert outcomes[2].attempts == 2 and outcomes[2].fault == "ended by itself (exit code 3)"


def test_a_lost_game_counts_as_not_won(games, scripted):
    with make_executor("local", workers=1, retries=0) as executor:
        (result,) = play_games(PolicyActor(policy=scripted()), games[:1], Deadly(), executor=executor)
    assert (result.won, result.actions) == (False, 0) and "SIGKILL" in result.fault


class Deadly:
    """Where an environment ought to be made, the process ends as the kernel ends one that takes too much memory."""

    def __call__(self):
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("job", [0, 1])
def test_a_result_that_cannot_be_sent_is_an_error(plays, local, job):
    with pytest.raises(TypeError, match="an episode's done cannot leave its worker"):
        list(local.run(plays.Unsendable(), [job]))


def test_a_third_of_the_workers_is_killed_at_random(plays, tmp_path):
    """Every game is in the results exactly once, whoever died while playing it."""
    log, go = tmp_path / "log", tmp_path / "go"

    def holding() -> list[int]:
        lines = log.read_text().splitlines() if log.exists() else []
        return [int(line.split()[1]) for line in lines if line.startswith("holds")]

    def kill() -> None:
        wait_for(lambda: len(holding()) == 10)
        for pid in random.Random(0).sample(holding(), 3):
            os.kill(pid, signal.SIGKILL)
        go.touch()

    with make_executor("local", workers=10) as executor:
        executor.warm_up()
        killer = threading.Thread(target=kill)
        killer.start()
        outcomes = list(executor.run(plays.Held(log, go), range(40)))
        killer.join(60)
        assert len(executor.replaced) == 3 and all("SIGKILL" in reason for reason in executor.replaced)
    assert [outcome.value[0] for outcome in outcomes] == list(range(40))
    assert sorted(outcome.attempts for outcome in outcomes) == [1] * 37 + [2] * 3


def test_who_wants_no_more_outcomes_gets_a_usable_executor_back(plays, local):
    outcomes = local.run(plays.Walking(steps=1000, step_s=0.01), range(6))
    outcomes.close()
    assert values(local.run(plays.Asking(), [5], answer=plays.answer))[0][0] == 5


def test_workers_end_with_the_executor(plays):
    with make_executor("local", workers=2) as executor:
        pids = {pid for _, pid in values(executor.run(plays.Walking(step_s=0.05), range(4)))}
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_workers_that_never_start_are_an_error(plays, monkeypatch):
    monkeypatch.setattr("xrl_alignment.play.rollouts.local.worker_process", plays.Failing.die)
    with (
        make_executor("local", workers=1) as executor,
        pytest.raises(RolloutError, match="3 workers in a row have ended before they were ready"),
    ):
        list(executor.run(plays.Walking(), [0]))


def test_the_fork_server_imports_modules_that_exist_and_load_fast():
    code = f"import sys, {', '.join(PRELOAD)}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
