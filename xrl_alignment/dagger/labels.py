"""Labels that the expert did not give: too many of them stop a run, for the policy's own action takes their place."""

from __future__ import annotations

from lavis.common.errors import EmacError
from xrl_alignment.runs.directory import EpisodeRecord

ENOUGH = 50  # states of a round from which on its share of missing labels is judged before the round ends


class MissingLabelsError(EmacError, ValueError):
    """Too many states of a run have no label of the expert; the text says how many and what to look at."""


class LabelGuard:
    """Judges the share of missing labels in the round in progress; only what this process has played counts.

    `limit` 1.0 never stops a run. An episode that was journaled before a resume is not judged again.
    """

    def __init__(self, limit: float = 1.0) -> None:
        self.limit = limit
        self._round = -1
        self._states = self._missing = 0

    def judge(self, record: EpisodeRecord, *, round_over: bool) -> None:
        """Take in a finished episode. Raises MissingLabelsError above the limit: at the round's end, or from ENOUGH on.

        A round with few states may miss several by chance, so a round is not judged by its first ones.
        """
        if record.round != self._round:
            self._round, self._states, self._missing = record.round, 0, 0
        self._states += record.states
        self._missing += record.unlabelled
        if self._missing > self.limit * self._states and (round_over or self._states >= ENOUGH):
            raise MissingLabelsError(
                f"the expert gave no label for {self._missing} of {self._states} states of round {self._round + 1}, "
                f"more than expert.max_missing_labels={self.limit:g} allows; the model would learn its own actions. "
                "Look at the expert, or allow more"
            )
