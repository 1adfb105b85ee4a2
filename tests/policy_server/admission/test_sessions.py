from __future__ import annotations

from policy_server.admission.sessions import Sessions


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_session_keeps_its_last_steps():
    sessions = Sessions(limit=10, history=2, idle_s=60)
    for step in ("1: forward", "2: jump", "3: use"):
        sessions.add("lab", "a", step)
    assert sessions.steps("lab", "a") == ["2: jump", "3: use"]
    assert sessions.steps("lab", "b") == [] and sessions.steps("home", "a") == []


def test_the_session_that_was_silent_longest_makes_room():
    sessions = Sessions(limit=2, history=1, idle_s=60)
    for name in ("a", "b", "a", "c"):
        sessions.add("lab", name, "x")
    assert [bool(sessions.steps("lab", name)) for name in "abc"] == [True, False, True]


def test_silent_sessions_are_forgotten():
    clock = Clock()
    sessions = Sessions(limit=10, history=1, idle_s=60, clock=clock)
    sessions.add("lab", "a", "x")
    clock.now = 59
    assert sessions.steps("lab", "a")
    clock.now = 61
    assert not sessions.steps("lab", "a") and len(sessions) == 0


def test_a_session_can_be_ended_by_its_caller_alone():
    sessions = Sessions(limit=10, history=1, idle_s=60)
    sessions.add("lab", "a", "x")
    assert not sessions.forget("home", "a")
    assert sessions.forget("lab", "a") and not sessions.forget("lab", "a")


def test_the_empty_name_and_a_history_of_none_keep_nothing():
    sessions = Sessions(limit=10, history=1, idle_s=60)
    sessions.add("lab", "", "x")
    none = Sessions(limit=10, history=0, idle_s=60)
    none.add("lab", "a", "x")
    assert len(sessions) == len(none) == 0


def test_a_caller_with_many_sessions_ends_none_of_the_others():
    sessions = Sessions(limit=3, history=1, idle_s=60)
    sessions.add("home", "mine", "x")
    for number in range(20):
        sessions.add("flood", str(number), "x")
    assert sessions.steps("home", "mine") == ["x"] and len(sessions) == 3
    assert sessions.steps("flood", "19") and not sessions.steps("flood", "17")
