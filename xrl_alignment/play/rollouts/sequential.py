"""An executor without workers: it plays in this process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from lavis.common.errors import ConfigError
from xrl_alignment.play.rollouts.base import (
    AnswerFunction,
    EndFunction,
    JobBoard,
    JobOutcome,
    KeyFunction,
    Rollout,
    RolloutExecutor,
    RolloutFunction,
    answer_all,
    rollout_of,
)


class _Asking(NamedTuple):
    """A rollout that waits for the answer to its question."""

    job: int  # its index
    rollout: Rollout
    question: Any


class SequentialExecutor(RolloutExecutor):
    """Plays in this process: environments step one after the other, and `interleave` rollouts share each answer.

    With `interleave=1` this is the baseline: one episode, one step at a time.
    """

    def __init__(self, interleave: int = 1) -> None:
        if interleave < 1:  # it would wait for ever
            raise ConfigError(f"{interleave} episodes at once: use at least 1")
        self.interleave = interleave
        self._plays: list[RolloutFunction] = []

    def run(
        self,
        play: RolloutFunction,
        jobs: Sequence[Any],
        *,
        answer: AnswerFunction | None = None,
        key: KeyFunction | None = None,
        on_end: EndFunction | None = None,
    ) -> Iterator[JobOutcome]:
        """See `RolloutExecutor.run`."""
        if not any(known is play for known in self._plays):
            self._plays.append(play)
        board = JobBoard(jobs, None, {}, on_end)  # no keys: the one worker has loaded every game that was played before
        asking: list[_Asking] = []
        try:
            while not board.finished:
                while len(asking) < self.interleave and (index := board.pick(0)) is not None:
                    asking += _advance(board, index, rollout_of(play, board.jobs[index]), None)
                    yield from board.take_due()
                answers = answer_all(answer, [one.question for one in asking])
                moved, asking = asking, []
                for one, said in zip(moved, answers, strict=True):
                    asking += _advance(board, one.job, one.rollout, said)
                yield from board.take_due()
        finally:  # also when the caller stops early: a rollout that is closed gives its environment back
            for one in asking:
                one.rollout.close()

    def close(self) -> None:
        """Close the rollout functions that were played, and with them their environments."""
        for play in self._plays:
            if hasattr(play, "close"):
                play.close()
        self._plays.clear()


def _advance(board: JobBoard, index: int, rollout: Rollout, said: Any) -> list[_Asking]:
    """Play until the next question; empty when the rollout has ended."""
    try:
        while (question := rollout.send(said)) is None:
            said = None
    except StopIteration as end:
        board.end(index, end.value)
    except Exception as error:  # raised in its turn, by `take_due`
        board.fail(index, error)
    else:
        return [_Asking(index, rollout, question)]
    return []
