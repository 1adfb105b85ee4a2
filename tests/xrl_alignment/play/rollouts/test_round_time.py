"""The predicted time of a round: by hand where that is possible, and against a real run."""

import sys
import time
from dataclasses import replace
from functools import partial

import pytest

from alfworld_native import make_environment
from alfworld_native.games import find_games
from xrl_alignment.play.rollouts import round_time
from xrl_alignment.play.rollouts.round_time import RoundModel, predict
from xrl_alignment.show.report.run_data import read_metrics

ONE = RoundModel(environments=1, games=2, steps=3, rounds=2, step_s=0.5, call_s=0.1)
MANY = RoundModel(environments=8, games=8, steps=5, rounds=3, step_s=0.5, call_s=0.1, answer_s=0.01)


@pytest.mark.parametrize(
    ("model", "seconds"),
    [
        (ONE, 2 * 3 * 0.6),
        (replace(ONE, reset_s=1.0), 2 * (1.0 + 3 * 0.6)),
        (MANY, 5 * (0.5 + 0.18)),
        (replace(MANY, replicas=4), 5 * (0.5 + 0.12)),
        (replace(MANY, replicas=3), 5 * (0.5 + 0.13)),  # 3, 3 and 2 observations
        (replace(MANY, games=16), 2 * 5 * (0.5 + 0.18)),  # two after each other in each environment
        (replace(MANY, observation_s=0.01, episode_s=0.1), 5 * (0.5 + 0.18) + 8 * (6 * 0.01 + 0.1)),
        (replace(MANY, train_s=0.2), 5 * (0.5 + 0.18) + 8 * 0.2),
        (replace(MANY, train_s=0.2, learner="decoupled"), 5 * (0.5 + 0.18)),
        (replace(MANY, max_batch=4, step_s=0.14, call_s=0.1), 0.14 + 10 * 0.14),  # the halves take turns
    ],
)
def test_what_can_be_computed_by_hand(model, seconds):
    assert predict(model).seconds == pytest.approx(seconds, rel=0.03)


def test_the_parts_add_up():
    for learner in ("inline", "decoupled"):
        found = predict(replace(MANY, games=20, train_s=1.0, learner=learner, max_stale_episodes=4))
        parts = found.environment + found.policy + found.training + found.waiting + found.other
        assert parts == pytest.approx(found.seconds)
        assert (found.training > 0) == (learner == "inline") and (found.waiting > 0) == (learner == "decoupled")


def test_a_slow_learner_is_waited_for_at_the_bound_and_at_the_end():
    slow = replace(MANY, rounds=10, train_s=1.0, learner="decoupled", max_stale_episodes=8)
    found = predict(slow)
    assert found.seconds * 10 + found.after_last_round == pytest.approx(3.4 + 80)  # the learner is always busy
    assert found.after_last_round == pytest.approx(16)  # the eight that the policy may lack, and the last wave's
    assert predict(replace(slow, learner_processes=4)).waiting == 0  # two seconds of training beside 3.4 of games
    # Three seconds for six of a wave's eight episodes, before each wave but the first.
    assert predict(replace(slow, train_s=0.5, max_stale_episodes=2)).waiting == pytest.approx(3.0 * 9 / 10)


def test_its_command(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["round_time", "--environments", "1", "--games", "2", "--steps", "3"])
    round_time.main()
    assert capsys.readouterr().out.splitlines()[0].split() == ["seconds", "3.60", "s"]


@pytest.mark.parametrize("seconds", ["nan", "inf", "-1"])
def test_a_time_that_is_none_is_refused(monkeypatch, capsys, seconds):
    monkeypatch.setattr(sys, "argv", ["round_time", "--step-s", seconds])
    with pytest.raises(SystemExit):
        round_time.main()
    assert f"--step-s {float(seconds)}: use a number of at least 0" in capsys.readouterr().err


class _Slow:
    """Waits `seconds` before each call of `method` of another object."""

    def __init__(self, inner, method: str, seconds: float) -> None:
        self._inner, self._method, self._seconds = inner, method, seconds

    def __getattr__(self, name):
        found = getattr(self._inner, name)
        return partial(self._slowly, found) if name == self._method else found

    def _slowly(self, call, *arguments):
        time.sleep(self._seconds)
        return call(*arguments)


@pytest.mark.slow
@pytest.mark.parametrize(
    "model",
    [
        RoundModel(environments=8, games=8, steps=5, step_s=0.4, call_s=0.2),
        RoundModel(environments=3, games=8, steps=5, step_s=0.4, call_s=0.2),
        RoundModel(environments=8, games=8, steps=5, step_s=0.4, call_s=0.3, max_batch=4),
        RoundModel(environments=4, games=10, steps=4, step_s=0.8, call_s=0.05),
    ],
)
def test_a_real_run_takes_what_was_predicted(make_run, household_data, scripted, model):
    games = find_games("household_train", data=household_data, num=model.games)
    policy = _Slow(scripted("look"), "act", model.call_s)
    run = make_run(
        games=games, policy=policy, train=False, max_steps=model.steps, max_batch=model.max_batch, num_rounds=3
    )
    factory = partial(make_environment, "native", max_steps=model.steps)
    run.play(factory=lambda: _Slow(factory(), "step", model.step_s), num_workers=model.environments)
    rounds = [seconds for _, seconds in read_metrics(run.directory.path)["round/seconds"]]
    measured = sum(rounds[1:]) / 2  # the first one begins before the client has come
    print(f"predicted {predict(model).seconds:.2f} s, measured {measured:.2f} s")
    assert predict(model).seconds == pytest.approx(measured, rel=0.15)


def test_a_run_without_environments_is_refused(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["round_time", "--environments", "0"])
    with pytest.raises(SystemExit):
        round_time.main()
    assert "--environments 0: use at least 1" in capsys.readouterr().err
