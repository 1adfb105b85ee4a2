"""What holds for every executor: the same outcomes in the same order, exceptions in their turn, one job, one call."""

from __future__ import annotations

import pytest

from xrl_alignment.play.rollouts.base import JobBoard
from xrl_alignment.play.rollouts.make import make_executor
from xrl_alignment.play.rollouts.sequential import SequentialExecutor


def values(outcomes) -> list:
    return [outcome.value for outcome in outcomes]


def test_results_are_identical_across_backends(plays, local):
    baseline = list(SequentialExecutor().run(plays.Asking(), range(7), answer=plays.answer))
    assert values(baseline)[2] == (2, "first 2", "second first 2")
    assert list(SequentialExecutor(interleave=4).run(plays.Asking(), range(7), answer=plays.answer)) == baseline
    assert list(local.run(plays.Asking(), range(7), answer=plays.answer)) == baseline


@pytest.mark.parametrize("backend", ["sequential", "local"])
@pytest.mark.parametrize(
    ("how", "error", "text"), [("refuse", ValueError, "no such game"), ("be_odd", Exception, "are odd")]
)
def test_what_an_episode_raises_is_raised_in_its_turn(plays, local, backend, how, error, text):
    executor = local if backend == "local" else SequentialExecutor(interleave=4)
    outcomes = executor.run(plays.Failing(how), range(5))
    assert [next(outcomes).value, next(outcomes).value] == [0, 1]
    with pytest.raises(error, match=text):
        next(outcomes)
    assert values(executor.run(plays.Asking(), [0], answer=plays.answer)) == [(0, "first 0", "second first 0")]


@pytest.mark.parametrize("backend", ["sequential", "local"])
def test_one_job(plays, local, backend):
    executor = local if backend == "local" else SequentialExecutor()
    outcome = executor.run_one(plays.Asking(), 3, answer=plays.answer)
    assert (outcome.job, outcome.value, outcome.fault) == (3, (3, "first 3", "second first 3"), "")


@pytest.mark.parametrize("backend", ["sequential", "local"])
def test_a_call_reaches_what_the_worker_plays_with(plays, backend):
    play = plays.Counting()
    with make_executor(backend) as executor:
        assert executor.call(plays.Counting.count, play).value == 0
        list(executor.run(play, range(2)))
        assert executor.call(plays.Counting.count, play).value == 2
        with pytest.raises(ValueError, match="no such game"):
            executor.call(plays.Failing.refuse, plays.Failing("refuse"))


def test_a_call_may_lose_its_worker(plays):
    with make_executor("local", retries=1) as executor:
        outcome = executor.call(plays.Failing.die, plays.Failing("die"))
    assert (outcome.attempts, outcome.fault) == (2, "ended by itself (exit code 3)")


def test_a_question_needs_somebody_to_answer(plays, local):
    for executor in (SequentialExecutor(), local):
        with pytest.raises(ValueError, match="an episode asks, but nobody answers"):
            list(executor.run(plays.Asking(), [0]))


def test_a_free_worker_gets_what_it_has_loaded(plays):
    homes: dict = {}
    first = JobBoard("abcd", key=str, homes=homes)
    assert [first.pick(number) for number in (1, 2, 2, 1)] == [0, 1, 2, 3]
    again = JobBoard("abcde", key=str, homes=homes)
    assert [again.pick(number) for number in (2, 2, 2, 2, 1)] == [1, 2, 4, 0, 3]  # its own, nobody's, another's


def test_an_end_is_told_at_once_and_outcomes_come_in_order(plays, local):
    def play(questions):
        for _ in range(questions):
            yield "?"
        return questions

    ended = []
    outcomes = SequentialExecutor(interleave=3).run(
        play, [3, 1, 2], answer=lambda asked: asked, on_end=lambda outcome: ended.append(outcome.value)
    )
    assert values(outcomes) == [3, 1, 2] and ended == [1, 2, 3]
    ended.clear()
    assert len(list(local.run(plays.Asking(), range(4), answer=plays.answer, on_end=ended.append))) == 4
    assert sorted(outcome.job for outcome in ended) == [0, 1, 2, 3]
