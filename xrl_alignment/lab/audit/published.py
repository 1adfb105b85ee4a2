"""Published success rates with their protocols (`published.json`), and the gaps between them that can be compared."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lavis.common.errors import FileError
from xrl_alignment.lab.audit.power import gap_interval
from xrl_alignment.play.evaluation.protocols import PROTOCOLS

TABLE = Path(__file__).with_name("published.json")


@dataclass(frozen=True)
class Published:
    """A rate that somebody has published.

    `protocol` is None if it is not known; such a rate is listed, and never compared. `against` names the rate that
    it is set beside in its source. `abstract`: seen in an abstract or a summary, not in the source's own table.
    """

    who: str
    success: float
    split: str
    protocol: str | None
    source: str
    games: int | None = None
    seeds: int = 1
    images: bool = False
    abstract: bool = False
    against: str = ""


@dataclass(frozen=True)
class Gap:
    """Two rates of one protocol and split, and the intervals of their difference.

    `interval` counts the games once, `seeds_interval` as often as there are seeds: as if no seed knew of another. The
    truth lies between the two.
    """

    better: Published
    base: Published
    gap: float
    interval: tuple[float, float]
    seeds_interval: tuple[float, float]


def read_published(path: Path = TABLE) -> list[Published]:
    """The rates of the table; FileError for a line without a protocol, or with one that the registry does not know."""
    try:
        listed = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FileError(f"{path} cannot be read: {error}") from error
    rates = []
    for number, entry in enumerate(listed, start=1):
        where = f"{path}, entry {number}"
        if "protocol" not in entry:
            raise FileError(f"{where}: a rate without a protocol cannot be read: name one, or null if it is not known")
        if entry["protocol"] is not None and entry["protocol"] not in PROTOCOLS:
            raise FileError(f"{where}: protocol {entry['protocol']!r} is none of {', '.join(PROTOCOLS)}")
        try:
            rate = Published(**entry)
        except TypeError as error:  # a field that there is not, or one that is missing
            raise FileError(f"{where}: {error}") from error
        if rate.protocol and not rate.games:  # without it, no interval of a difference can be computed
            raise FileError(f"{where}: a rate of a known protocol needs the number of its games")
        rates.append(rate)
    return rates


def gaps(rates: Sequence[Published]) -> tuple[list[Gap], list[Published]]:
    """Every rate beside the one that its source sets it against; and those that cannot be compared so.

    They cannot if a protocol is unknown, or if the two rates are of different protocols, splits or numbers of games.
    """
    comparable, others = [], []
    by_name = {(rate.who, rate.split): rate for rate in rates}
    for rate in rates:
        if not rate.against:
            continue
        base = by_name.get((rate.against, rate.split))
        if base is None or rate.protocol is None or (rate.protocol, rate.games) != (base.protocol, base.games):
            others.append(rate)
            continue
        # Two intervals: with as many trials as games, and with those of all seeds. Trials of one game are not
        # independent, so the interval that is right lies between them.
        games = rate.games or 0
        seeds = min(rate.seeds, base.seeds)
        once, often = (
            gap_interval(round(rate.success * n), n, round(base.success * n), n) for n in (games, games * seeds)
        )
        comparable.append(Gap(rate, base, rate.success - base.success, once, often))
    return comparable, others
