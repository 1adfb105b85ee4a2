"""A teacher's endpoint that bills every attempt before it answers, a byte in a file for each."""

from __future__ import annotations

import os
import random
import re
import zlib
from pathlib import Path

from benchmarks._endpoint import FAULTS, FakeEndpoint

_PLACES = re.compile(r"\ba ([a-z]+ \d+)")


def place_named(prompt: str) -> str:
    """A command that depends on nothing but the prompt."""
    places = sorted(set(_PLACES.findall(prompt))) or ["desk 1"]
    return f"go to {places[zlib.crc32(prompt.encode()) % len(places)]}"


def bill_every_attempt(port: int, bill: Path, faulty: float = 0.0, seed: int = 0) -> None:
    """Serve until killed; a share of `faulty` attempts fails in one of `FAULTS`, and is billed like the others."""
    rng = random.Random(seed)
    account = os.open(bill, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def fault(number: int) -> str | None:
        os.write(account, b"$")
        return rng.choice(FAULTS) if rng.random() < faulty else None

    FakeEndpoint(place_named, fault, port=port).serve_forever(poll_interval=0.05)
