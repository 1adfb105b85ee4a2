"""An endless, repeatable supply of malformed messages."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

COMMANDS = ("init", "step", "reset_task", "get_state", "is_goal_satisfied", "list_games")
GOOD = {"command": "step", "action": "go to desk 1"}  # refused all the same where no game is loaded
WRONG = (None, True, -1, 1e308, 10**40, "", "\x00", "\ud800", "a" * 3000, [], {}, [[]], {"a": {}}, ["go to desk 1"])


def malformed(seed: int, limit: int) -> Iterator[bytes]:
    """Lines without their ends, each of which must get exactly one answer with `success: false`.

    `limit` is the longest line that the server takes.
    """
    rng = random.Random(seed)
    makers = (_truncated, _binary, _wrong_types, _nested, _huge, _constants, _unknown, _not_an_object)
    while True:
        yield rng.choice(makers)(rng, limit).replace(b"\n", b" ")


def _truncated(rng: random.Random, limit: int) -> bytes:
    whole = json.dumps(GOOD | {"padding": "x" * rng.randrange(50)}).encode()
    return whole[: rng.randrange(len(whole))]


def _binary(rng: random.Random, limit: int) -> bytes:
    return b"\xff" + rng.randbytes(rng.randrange(200))


def _wrong_types(rng: random.Random, limit: int) -> bytes:
    command = rng.choice(("init", "step"))
    field = "traj_file" if command == "init" else "action"
    return json.dumps({"command": command, field: rng.choice(WRONG)}).encode()


def _nested(rng: random.Random, limit: int) -> bytes:
    opening, closing = rng.choice(((b"[", b"]"), (b'{"a":', b"}")))
    depth = rng.choice((5, 1500, limit // 8))
    return opening * depth + b"1" + closing * rng.randrange(depth)


def _huge(rng: random.Random, limit: int) -> bytes:
    if rng.random() < 0.9:  # large ones cost time
        return b'{"command": "step", "action": "' + b"y" * rng.randrange(600, 3000) + b'"}'
    return b'{"command": "' + b"z" * rng.choice((limit - 100, limit, 3 * limit)) + b'"}'


def _constants(rng: random.Random, limit: int) -> bytes:
    return b'{"command": "get_state", "x": ' + rng.choice((b"NaN", b"Infinity", b"-Infinity", b"01", b"'a'")) + b"}"


def _unknown(rng: random.Random, limit: int) -> bytes:
    name = "".join(rng.choice("abcdefgh_-. \u00e9\u2028") for _ in range(rng.randrange(1, 20)))
    return json.dumps({"command": rng.choice((name, "__init__", "cmd_step", "close", None, 7, ["step"]))}).encode()


def _not_an_object(rng: random.Random, limit: int) -> bytes:
    return json.dumps(rng.choice((1, "step", None, True, ["step"], 1.5, [GOOD]))).encode()
