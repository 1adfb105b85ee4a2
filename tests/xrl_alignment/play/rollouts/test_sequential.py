"""The executor without workers."""

from __future__ import annotations

import pytest

from lavis.common.errors import ConfigError
from xrl_alignment.play.rollouts.sequential import SequentialExecutor


def test_interleaved_episodes_share_an_answer(plays):
    asked = []

    def count(questions):
        asked.append(len(questions))
        return plays.answer(questions)

    list(SequentialExecutor(interleave=3).run(plays.Asking(), range(6), answer=count))
    assert asked == [3, 3, 3, 3]


def test_no_episode_at_once_is_refused():
    with pytest.raises(ConfigError, match="0 episodes at once"):
        SequentialExecutor(0)
