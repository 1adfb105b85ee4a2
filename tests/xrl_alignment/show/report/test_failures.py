"""Why an episode failed: each cause on an episode that shows it."""

from __future__ import annotations

import pytest

from xrl_alignment.agents.language.history import EpisodeTrace
from xrl_alignment.show.report.failures import CAUSES, cause

ROOM = "You are in the middle of a room. Looking quickly around you, you see a desk 1, a bed 1, and a fridge 1.\n"
SEES = ("go to bed 1", "You arrive at bed 1. On the bed 1, you see a mug 1.")
EMPTY = ("go to desk 1", "You arrive at desk 1. On the desk 1, you see nothing.")
TAKES = ("take mug 1 from bed 1", "You pick up the mug 1 from the bed 1.")
NOTHING = "Nothing happens."


def put(where: str) -> tuple[str, str]:
    return f"put mug 1 in/on {where}", f"You move the mug 1 to the {where}."


@pytest.mark.parametrize(
    ("task", "steps", "expected"),
    [
        ("put a mug in desk", [EMPTY, ("look", "ok")], "never found"),
        ("put a mug in desk", [SEES, EMPTY], "found and lost"),
        ("put a mug in desk", [SEES, (TAKES[0], NOTHING), EMPTY], "found and lost"),  # a rejected command did nothing
        ("put a mug in desk", [SEES, TAKES, put("bed 1")], "wrong receptacle"),
        ("put a mug in desk", [SEES, TAKES, put("bed 1"), TAKES, EMPTY], "out of steps"),
        ("put a hot mug in desk", [SEES, TAKES, EMPTY, put("desk 1"), SEES], "out of steps"),
        ("put a mug in desk", [SEES, *[("look", "You see nothing.")] * 3], "loop"),
        ("put a mug in desk", [SEES, *[EMPTY, ("look", "ok")] * 3], "loop"),
        ("put a mug in desk", [SEES, EMPTY, EMPTY, *[("take mug 9 from bed 1", NOTHING)] * 3], "rejected command"),
        ("put a mug in desk", [SEES, ("fly", NOTHING), ("swim", NOTHING), EMPTY], "rejected command"),
        ("put a mug in desk", [SEES, *[("think: hm", "OK.")] * 4, EMPTY], "found and lost"),
        ("put a mug in desk, and put a book in bed", [SEES, TAKES, EMPTY, put("desk 1")], "never found"),
        ("put a mug in desk", [], "never found"),
        ("<b>no task</b>", [SEES, EMPTY], "never found"),
    ],
)
def test_the_cause(task, steps, expected):
    trace = EpisodeTrace("g", "", f"{ROOM}Your task is to: {task}.", tuple(steps), won=False)
    assert cause(trace) == expected and expected in CAUSES
