"""PDDL facts and goals."""

from __future__ import annotations

import pytest

from alfworld_native.engine.pddl import parse_facts, parse_goal, prepare_goal, rows, satisfied, sections
from alfworld_native.errors import EnvironmentFault

FACTS = {
    "objecttype": ("apple_1", "appletype", "apple_2", "appletype", "mug_1", "mugtype"),
    "receptacletype": ("box_1", "boxtype", "desk_1", "desktype"),
    "receptacleatlocation": ("box_1", "loc_1", "desk_1", "loc_2"),
}
DOMAINS = {
    "agent": ("agent1",),
    "object": ("apple_1", "apple_2", "mug_1"),
    "receptacle": ("box_1", "desk_1"),
    "location": ("loc_1", "loc_2"),
}
TWO = """(:goal (and (exists (?r - receptacle) (exists (?o1 - object) (and
    (objectType ?o1 AppleType) (receptacleType ?r DeskType) (inReceptacle ?o1 ?r)
    (exists (?o2 - object) (and (not (= ?o1 ?o2)) (objectType ?o2 AppleType) (inReceptacle ?o2 ?r))))))))"""


def holds(goal: str, *true: tuple[str, ...]) -> bool:
    """Whether the goal holds where only `true` does."""
    prepared = prepare_goal(parse_goal(goal.lower()), DOMAINS, FACTS)
    static = {("receptacleatlocation", "box_1", "loc_1"), ("receptacleatlocation", "desk_1", "loc_2")}

    def is_true(predicate, ids):
        return ids[0] == ids[1] if predicate == "=" else (predicate, *ids) in {*true, *static}

    return satisfied(prepared, is_true)


def test_sections_and_facts():
    init, goal = sections("(define (:init (openable Box) (openable Box)\n (inReceptacle  A B)) (:goal (and)))")
    assert parse_facts(init) == {"inreceptacle": ("a", "b"), "openable": ("box",)}
    assert list(rows(parse_facts(init))) == [("inreceptacle", "a", "b"), ("openable", "box")]
    assert goal.startswith("(:goal (and)")


def test_facts_are_sorted_by_their_ids():
    assert parse_facts("(inreceptacle b x) (inreceptacle a z) (inreceptacle a y)")["inreceptacle"] == tuple("ayazbx")


def test_two_different_things():
    assert not holds(TWO, ("inreceptacle", "apple_1", "desk_1"))
    assert not holds(TWO, ("inreceptacle", "apple_1", "desk_1"), ("inreceptacle", "mug_1", "desk_1"))
    assert not holds(TWO, ("inreceptacle", "apple_1", "box_1"), ("inreceptacle", "apple_2", "box_1"))
    assert holds(TWO, ("inreceptacle", "apple_1", "desk_1"), ("inreceptacle", "apple_2", "desk_1"))


def test_a_conjunction_of_two_searches():
    goal = """(:goal (and
        (exists (?r - receptacle ?a - agent ?l - location)
            (and (receptacleAtLocation ?r ?l) (atLocation ?a ?l) (receptacleType ?r BoxType)))
        (exists (?o - object ?a - agent) (and (objectType ?o MugType) (holds ?a ?o)))))"""
    here, mug = ("atlocation", "agent1", "loc_1"), ("holds", "agent1", "mug_1")
    assert holds(goal, here, mug)
    assert not holds(goal, here) and not holds(goal, mug)
    assert not holds(goal, ("atlocation", "agent1", "loc_2"), mug)


@pytest.mark.parametrize(
    ("goal", "message"),
    [
        ("(:goal (and (exists (?o - object) (holds ?a ?o)", "brackets"),
        ("(:goal (and (exists (?o) (isclean ?o))))", "no type"),
        ("(:goal (forall (?o - object) (isclean ?o)))", "not understood"),
        ("(:goal (exists (?o - object) (ison ?o)))", "not understood"),
        ("(:goal (isclean apple_1))", "outside"),
        ("(:goal (exists (?o - object) (isclean ?x)))", "outside"),
        ("(:init)", "not of the form"),
        (f"(:goal {'(and ' * 3000}(isclean ?o){')' * 3000})", "more than 100 brackets"),
        (f"(:goal {'(exists (?o - object) ' * 3000}(isclean ?o){')' * 3000})", "more than 100 brackets"),
        ("(:goal (exists (?o - (either object agent)) (isclean ?o)))", "type .*'either'.* not understood"),
        ("(:goal (exists (?o - otype) (isclean ?o)))", "type 'otype' .* not understood"),
        ("(:goal (exists (?o -) (isclean ?o)))", "type '' .* not understood"),
        ("(:goal (exists ((?o) - object) (isclean ?o)))", "variable .* not understood"),
        ("(:goal (exists ?o (isclean ?o)))", "not understood"),
    ],
)
def test_goals_that_are_not_understood(goal, message):
    with pytest.raises(EnvironmentFault, match=message):
        parse_goal(goal)
