"""Memories are never lost or doubled."""

from tests.xrl_alignment.reflexion.traces import COUNTER, EMPTY, trace
from xrl_alignment.reflexion.base import update_memories
from xrl_alignment.reflexion.rule import RuleReflector


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
