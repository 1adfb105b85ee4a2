"""Reports and what descriptions are worth."""

from __future__ import annotations

import pytest

from alfworld_native.experts.belief import Belief
from xrl_alignment.planning.reports import Sight, described, in_view, lists_objects, write_report

HEARD = [
    "You arrive at desk 1. On the desk 1, you see a pen 1.",
    "You arrive at fridge 1. The fridge 1 is closed.",
    "You open the fridge 1. The fridge 1 is open. In it, you see a mug 1, and a cup 2.",
]


@pytest.mark.parametrize(
    ("report", "text"),
    [
        ("text", f"{HEARD[0]}\n{HEARD[2]}\nGone."),
        ("image", "I see mug 1.\nGone."),
        ("both", f"{HEARD[0]}\n{HEARD[2]}\nI see mug 1.\nGone."),
        ("none", ""),
    ],
)
def test_each_kind_of_report(report: str, text: str) -> None:
    assert write_report(report, HEARD, ["mug 1"], "Gone.") == text


def test_seeing_nothing_is_a_report_and_no_description_is_none() -> None:
    assert write_report("image", HEARD, []) == "I see nothing."
    assert write_report("image", HEARD, None) == "" and write_report("text", [], None) == ""


def test_a_description_ends_where_the_model_goes_on_to_act() -> None:
    text = "You arrive at desk 1. On the desk 1, you see a pen 1, and a cup 2."
    assert described(f"{text}\n> take pen 1\nOn the bed 1, you see a cd 1.") == ["pen 1", "cup 2"]
    assert described("On the desk 1, you see a 3, a pen 1 1 1, a, and a cup 2, a m") == ["pen 1", "cup 2"]
    assert described("Nothing happens.") == described("") == []


def test_types_without_numbers_are_counted_as_often_as_they_are_named() -> None:
    text = "On the desk 1, you see a mug, a mug, and a pen."
    assert described(text) == [], "names without a number are none"
    assert described(text, by_type=True) == ["mug", "mug", "pen"]
    belief = Belief(["desk 1"])
    belief.observe("go to desk 1", f"You arrive at desk 1. {text}")
    assert sorted(in_view(belief)) == ["mug", "mug", "pen"]
    sight = Sight()
    sight.add(["mug", "mug", "mug", "cup"], in_view(belief))
    assert (sight.named, sight.there, sight.right) == (4, 3, 2)


def test_precision_and_recall_against_the_text_world() -> None:
    belief = Belief(["desk 1", "bed 1"])
    belief.observe("go to bed 1", "You arrive at bed 1. On the bed 1, you see a pillow 1.")
    belief.observe(
        "go to desk 1", "You arrive at desk 1. On the desk 1, you see a pen 1, a mug 1, a cd 1, and a cup 1."
    )
    assert sorted(in_view(belief)) == ["cd 1", "cup 1", "mug 1", "pen 1"]
    sight = Sight()
    assert sight.precision is None and sight.recall is None
    sight.add(["pen 1", "pen 1", "pillow 1"], in_view(belief))
    assert (sight.precision, sight.recall) == (0.5, 0.25)
    sight.merge(Sight(2, 0, 0))
    assert sight.precision == 0.25 and sight.recall == 0.25


def test_only_listings_are_described() -> None:
    assert [lists_objects(text) for text in HEARD] == [True, False, True]
