"""Hostile inputs without end: valid ones that are damaged, and well-formed ones with content that nobody expects.

Everything is drawn from a `random.Random` that the caller gives, so an input can be made again.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

TEXTS = (
    "",
    " ",
    "\0",
    "\n",
    "\r\n",
    "\t",
    "\ufeff",
    "\u202e",
    "\u2028",
    "\ud800",
    "\U0001f600",
    "e\u0301" * 20,
    "İ",
    "ß",
    "${oc.env:HOME}",
    "${",
    "%s%n",
    "{{7*7}}",
    "../../../etc/passwd",
    "/dev/zero",
    "~",
    "a" * 300,
    "1" * 5000,
    "- " * 200,
    "True",
    "None",
    "NaN",
    "'",
    '"',
    "\\",
    "[#IMAGE]",
    "[#DONE]",
    "<think>",
    "</think>",
    "```",
    "#",
    "---",
    "*",
    "&a",
    "*a",
)
NUMBERS = (
    0,
    -1,
    1,
    255,
    256,
    2**31,
    2**63,
    -(2**63),
    10**40,
    0.1,
    -0.0,
    1e308,
    float("nan"),
    float("inf"),
    -float("inf"),
)
NAMES = (
    "mug",
    "bed",
    "fridge",
    "desklamp",
    "Mug",
    "countertop",
    "soapbottle",
    "of",
    "and",
    "a",
    "",
    "İ",
    "\ud800",
    "x" * 50,
)
VERBS = (
    "go to",
    "take",
    "put",
    "move",
    "open",
    "close",
    "use",
    "heat",
    "cool",
    "clean",
    "slice",
    "examine",
    "look",
    "think:",
)
SENTENCES = (
    "You are in the middle of a room. Looking quickly around you, you see {list}.",
    "Your task is to: {verb} {a} in {b}.",
    "Your task is to: find two {a} and put them in {b}.",
    "Your task is to: examine the {a} with the {b}.",
    "You are carrying: {list}.",
    "You are carrying: nothing.",
    "You are facing the {a}. Next to it, you see {list}.",
    "On the {a}, you see {list}.",
    "On the {a}, you see nothing.",
    "The {a} is closed.",
    "In it, you see {list}.",
    "You open the {a}. The {a} is open. In it, you see {list}.",
    "You arrive at loc {n}. The {a} is open.",
    "You put the {a} in/on the {b}.",
    "You move the {a} to the {b}.",
    "You pick up the {a} from the {b}.",
    "You heat the {a} using the {b}.",
    "You turn on the {a}.",
    "There's nothing special about {a}.",
    "This is a hot and clean {a}.",
    "Nothing happens.",
    "-= Welcome to TextWorld, ALFRED! =-",
    "> {verb} {a}",
    "OK.",
)


def text(rng: random.Random, longest: int = 200) -> str:
    """Characters of all kinds, or words that mean something somewhere."""
    if rng.random() < 0.5:
        return "".join(rng.choices(TEXTS, k=rng.randrange(5)))[:longest]
    alphabet = rng.choice(("ab \n", "0123456789.-+e", "()[]{}:,'\"", "\u0000\u00e9\u4e2d\U0001f600", " \t\n\r\v"))
    return "".join(rng.choices(alphabet, k=rng.randrange(longest)))


def thing(rng: random.Random) -> str:
    """`mug 3`, and what is nearly that."""
    return (
        rng.choice(NAMES)
        + rng.choice((" ", " ", "", "  ", "\t"))
        + rng.choice(("1", "2", "-1", "", "1" * 30, "a", "²"))
    )


def said(rng: random.Random, sentences: int = 4) -> str:
    """What an engine of ALFWorld might say, with names and numbers that it would not."""
    return rng.choice((" ", "\n", "\n\n", "")).join(_sentence(rng) for _ in range(rng.randrange(sentences + 1)))


def _sentence(rng: random.Random) -> str:
    listed = rng.choice((", ", ", and ", " and ", ",")).join(
        f"a {thing(rng)}" for _ in range(rng.choice((0, 1, 3, 30)))
    )
    pattern = rng.choice(SENTENCES) if rng.random() < 0.9 else text(rng).replace("{", "").replace("}", "")
    return pattern.format(a=thing(rng), b=thing(rng), list=listed, verb=rng.choice(VERBS), n=rng.choice(NUMBERS))


def command(rng: random.Random) -> str:
    """A command, nearly a command, or a language model's idea of one."""
    made = f"{rng.choice(VERBS)} {thing(rng)} {rng.choice(('', 'from', 'in/on', 'to', 'with'))} {thing(rng)}"
    frame = rng.choice(
        ("{}", "> {}", "Action: {}", "**{}**", "`{}`", "<think>{}</think>{}", "1. {}", "{}; {}", "{} then {}")
    )
    return frame.format(made, made) if rng.random() < 0.8 else text(rng, 2000)


def value(rng: random.Random, depth: int = 3) -> object:
    """Any JSON value, and numbers that JSON has not."""
    kind = rng.randrange(8)
    if kind < 3:
        return rng.choice((text(rng), said(rng), command(rng)))
    if kind == 3:
        return rng.choice(NUMBERS)
    if kind == 4 or depth == 0:
        return rng.choice((None, True, False))
    if kind == 5:
        return {text(rng, 20): value(rng, depth - 1) for _ in range(rng.randrange(4))}
    if kind == 6:
        return [value(rng, depth - 1) for _ in range(rng.randrange(4))]
    return nested(rng)


def nested(rng: random.Random) -> list:
    """Lists in lists, sometimes deeper than a parser can go."""
    inner: list = []
    for _ in range(rng.choice((2, 30, 90))):
        inner = [inner]
    return inner


def spoilt(rng: random.Random, content: object) -> object:
    """JSON-like `content` with one of its values, somewhere inside, changed or missing."""
    if isinstance(content, dict) and content and rng.random() < 0.8:
        key = rng.choice(list(content))
        changed = {**content, key: spoilt(rng, content[key])}
        if rng.random() < 0.1:
            del changed[key]
        elif rng.random() < 0.1:
            changed[text(rng, 20)] = value(rng)
        return changed
    if isinstance(content, list) and content and rng.random() < 0.7:
        at = rng.randrange(len(content))
        return [*content[:at], spoilt(rng, content[at]), *content[at + rng.randrange(2) :]]
    return value(rng)


def as_json(content: object) -> bytes:
    """Bytes of JSON, half surrogate pairs and infinite numbers included."""
    return json.dumps(content).encode()


def damaged(rng: random.Random, data: bytes, others: Sequence[bytes] = ()) -> bytes:
    """`data` with a few bytes flipped, cut, doubled, put in, or continued with another input's."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5))):
        at, length = rng.randrange(len(changed) + 1), rng.choice((1, 2, 4, 8, rng.randrange(len(changed) + 1)))
        how = rng.randrange(6)
        if how == 0 and at < len(changed):
            changed[at] ^= 1 << rng.randrange(8)
        elif how == 1:
            del changed[at : at + length]
        elif how == 2:
            changed[at:at] = changed[at : at + min(length, 1000)]
        elif how == 3:
            changed[at:at] = rng.choice(TEXTS).encode("utf-8", "surrogatepass")
        elif how == 4:
            changed[at : at + 8] = rng.choice((b"\xff" * 8, bytes(8), b"\x7f" + b"\xff" * 7, rng.randbytes(8)))
        elif others:
            changed[at:] = rng.choice(others)[rng.randrange(at + 1) :]
    return bytes(changed)
