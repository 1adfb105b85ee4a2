"""Long texts on which a rule that backtracks needs quadratic time or more.

A test that reads them measures no time: with 50,000 characters a quadratic rule takes 2,500,000,000 steps for each of
many texts, so it does not end before the suite's time limit. A linear one takes no time worth speaking of.
"""

from __future__ import annotations

from collections.abc import Iterator

SIZE = 50_000
PIECES = (
    " ",
    "\t",
    "\n",
    "a",
    "1",
    "1. ",
    "*",
    "- ",
    ", ",
    "the next ",
    " and then",
    " and ",
    ";",
    "`",
    '"a',
    "<think>",
    "</think>",
    "think: ",
    "action: ",
    "go to ",
    "you see ",
    "you see a. ",
    "Your task is to: ",
    "Your task is to:\n",
    "On the ",
    "On the a 1, you see ",
    "In it, you see ",
    "The ",
    "The a is open. In it, you see ",
    " is closed",
    " from the ",
    " in the ",
    " in ",
    " using the ",
    "hot ",
    "hot",
)
OF_ANSWERS = ("", "go to x", "Action", "the")
OF_FEEDBACK = (
    "",
    "You pick up the a",
    "You put the a",
    "You heat the a",
    "This is a ",
    "You are facing the ",
    "You are carrying: ",
    "Your task is to: put a",
)
ENDS = ("b", ".")


def hostile_texts(beginnings: tuple[str, ...]) -> Iterator[str]:
    """Every beginning with every piece, repeated, and every end."""
    for beginning in beginnings:
        for piece in PIECES:
            for end in ENDS:
                yield beginning + piece * (SIZE // len(piece)) + end
