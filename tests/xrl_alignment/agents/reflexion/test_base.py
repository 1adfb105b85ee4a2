"""Memories are never lost or doubled."""

import pytest

from tests.xrl_alignment.agents.reflexion.traces import COUNTER, EMPTY, trace
from xrl_alignment.agents.language.history import EpisodeTrace
from xrl_alignment.agents.reflexion.base import update_memories
from xrl_alignment.agents.reflexion.rule import RuleReflector
from xrl_alignment.common.errors import EndpointFault


class Numbering:
    """A reflector whose texts tell how many memories it saw."""

    def reflect(self, trace, memories):
        return f"{trace.game_id} after {len(memories)}"


def test_memories_grow_by_one_for_each_failed_game_only():
    before = {"lost": ["old"], "won": ["kept"], "absent": ["also kept"]}
    traces = [trace("x", game="lost"), trace("x", game="won", won=True), trace("x", game="new")]
    after = update_memories(traces, before, Numbering())
    assert after == {
        "lost": ["old", "lost after 1"],
        "won": ["kept"],
        "absent": ["also kept"],
        "new": ["new after 0"],
    }
    assert before == {"lost": ["old"], "won": ["kept"], "absent": ["also kept"]}


def test_a_memory_tells_no_more_than_the_agent_was_told():
    opening = "Looking quickly around you, you see a desk 1, a drawer 1, and a shelf 1."
    opening += "\n\nYour task is to: put some mug on shelf."
    seen = ("go to desk 1", "You arrive at desk 1. On the desk 1, you see a mug 3, and a pen 1.")
    took = ("take mug 3 from desk 1", "You pick up the mug 3 from the desk 1.")

    def memory(*steps, told):
        one = EpisodeTrace("g", "pick_and_place_simple", opening, steps, False)
        return update_memories([one], {}, RuleReflector(), tell_objects=told)["g"][0]

    assert memory(seen, told=True).startswith("(by rule) I saw mug 3 at desk 1 but did not take it.")
    assert memory(seen, told=False) == (
        "(by rule) I searched desk 1 and found no mug. Next time I will look for a mug in places that I never saw "
        "inside: drawer 1, shelf 1."
    )
    # What it took it knows, whoever saw it.
    assert memory(seen, took, told=False) == memory(seen, took, told=True) and "take mug 3" in memory(
        seen, took, told=False
    )
    opened = [("go to drawer 1", "You arrive at drawer 1. The drawer 1 is closed.")]
    assert "inside: desk 1, drawer 1, shelf 1" in memory(*opened, told=False)
    opened.append(("open drawer 1", "You open the drawer 1. The drawer 1 is open. In it, you see a mug 2."))
    assert "I searched drawer 1 and found no mug" in memory(*opened, told=False)


class Broken:
    """A reflector whose texts hold half a surrogate pair."""

    name = "broken"

    def reflect(self, trace, memories):
        return "look \ud800\0behind the desk"


def test_a_memory_can_be_written_into_every_file():
    assert update_memories([trace("x")], {}, Broken()) == {"g": ["look ? behind the desk"]}


def test_updating_twice_changes_nothing():
    traces = [
        trace("put a hot tomato in garbagecan", COUNTER),
        trace("put a hot tomato in garbagecan", EMPTY, game="h"),
    ]
    once = update_memories(traces, {}, RuleReflector())
    assert update_memories(traces, once, RuleReflector()) == once == update_memories(traces * 2, {}, RuleReflector())


def test_a_game_that_won_in_the_round_needs_no_memory():
    traces = [trace("x"), trace("x", won=True), trace("x")]
    assert update_memories(traces, {}, Numbering()) == {}


class FailsAt:
    """Cannot read the episodes of one game."""

    name = "fails"

    def __init__(self, game: str, error: Exception) -> None:
        self.game, self.error = game, error

    def reflect(self, trace, memories):
        if trace.game_id == self.game:
            raise self.error
        return "advice"


def test_an_episode_that_cannot_be_read_costs_only_its_own_memory(caplog):
    traces = [trace("x", game=game) for game in ("a", "b")]
    memories = update_memories(traces, {}, FailsAt("a", IndexError("x")), skip_unreadable=True)
    assert memories == {"a": [], "b": ["advice"]} and "an episode gives no memory: IndexError: x" in caplog.text
    for error, skips in ((IndexError("x"), False), (EndpointFault("down"), True), (OSError("full"), True)):
        with pytest.raises(type(error)):
            update_memories(traces, {}, FailsAt("a", error), skip_unreadable=skips)
