"""Tables of texts for the page: evaluations with their baselines, BC against DPO game by game, runs side by side."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

BASELINES = ("expert", "random", "untrained")
_CONTROL = "_blank_frames"  # how the name of an evaluation without sight ends


class Table(NamedTuple):
    """Rows of texts under a head; all columns but the first `text_columns` are aligned as numbers."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    text_columns: int = 1


def number(value: Any, digits: int = 2) -> str:
    """A figure as the page shows it; – for None."""
    if isinstance(value, float):
        return f"{value:.{digits}f}"
    return "–" if value is None else str(value)


def share(value: float) -> str:
    """A share in per cent."""
    return f"{100 * value:.0f} %"


def between(interval: Sequence[float] | None) -> str:
    """An interval as the page shows it; – for None."""
    return f"{interval[0]:.2f} to {interval[1]:.2f}" if interval else "–"


def probability(p: float) -> str:
    """A p value: two digits, more if these would say too little; a p is never 0."""
    if p < 0.001:
        return "< 0.001"
    return f"{p:.3f}" if p < 0.1 else f"{p:.2f}"


def success_table(evaluations: Mapping[str, Mapping[str, Any]]) -> Table:
    """One row for each evaluation, the baselines first."""
    rows = []
    for name, entry in sorted(evaluations.items(), key=lambda item: item[0] not in BASELINES):  # stable: else as given
        free = [number(entry["success"]), between(entry.get("interval"))]
        admissible = [number(entry.get("success_admissible")), between(entry.get("interval_admissible"))]
        rows.append([name, number(entry.get("games")), *free, *admissible, number(entry.get("mean_steps"), 1)])
    head = ["phase", "games", "success, free text", "95 % interval", "success, admissible", "its 95 % interval"]
    head += ["mean steps of won games"]
    return Table(head, rows)


def missing_baselines(evaluations: Mapping[str, Any]) -> list[str]:
    """What a table of success lacks to be read: baselines, and BC wherever DPO is shown.

    An evaluation with blank frames is a control of its own phase, to be compared with that phase, and a loop of EMAC+
    is compared with what it began with.
    """
    if not evaluations or "planner_before" in evaluations:
        return []
    lacking = [name for name in BASELINES if name not in evaluations]
    phases = [name for name in evaluations if name == "dpo" or name.startswith("dpo_")]
    # `dpo_valid_seen` is to be compared with `bc_valid_seen`.
    bc = [f"bc{name.removeprefix('dpo')}" for name in phases if not name.endswith(_CONTROL)]
    return [*lacking, *(name for name in bc if name not in evaluations)]


def task_type_table(evaluations: Mapping[str, Mapping[str, Any]]) -> Table:
    """Rows are task types; each evaluation has a column for each way of decoding in which it was played."""
    by_type = {
        name: {
            # EMAC+'s summary has one number for each type, an evaluation the figures of each way of decoding.
            kind: figures if isinstance(figures, Mapping) else {"success": figures}
            for kind, figures in (entry.get("per_task_type") or {}).items()
        }
        for name, entry in evaluations.items()
    }
    columns = [
        (name, key)
        for name, rows in by_type.items()
        for key in ("success", "success_admissible")
        if any(figures.get(key) is not None for figures in rows.values())
    ]
    head = [f"{name}, {'free' if key == 'success' else 'admissible'}" for name, key in columns]
    types = sorted({kind for rows in by_type.values() for kind in rows})
    rows = [[kind, *(number(by_type[name].get(kind, {}).get(key)) for name, key in columns)] for kind in types]
    return Table(["task type", *head], rows)


def paired_table(evaluations: Mapping[str, Mapping[str, Any]]) -> Table:
    """BC against DPO on the same games: both, one alone, neither, and McNemar's exact test (McNemar 1947)."""
    rows = []
    for name in evaluations:
        # Game -> solved, of both phases; an evaluation that does not say it has none.
        both_phases = (evaluations.get(f"{phase}{name.removeprefix('dpo')}", {}) for phase in ("bc", "dpo"))
        bc, dpo = (won if isinstance(won := phase.get("won"), dict) else {} for phase in both_phases)
        if name.startswith("dpo") and (cells := game_by_game(bc, dpo)):
            rows.append([name.removeprefix("dpo").strip("_") or "held-out", *cells])
    head = ["games of", "played by both", "both solved", "only BC", "only DPO", "neither", "DPO − BC", "p (McNemar)"]
    return Table(head, rows)


def game_by_game(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """Of two players' results by game: games of both, solved by both, by one alone, by none, difference, McNemar's p.

    Empty if they have no game in common.
    """
    # A table of two by two: each game's result with one and with the other.
    pairs = [(bool(first[game]), bool(second[game])) for game in first.keys() & second.keys()]
    if not pairs:
        return []
    both, only_first, only_second, neither = (
        pairs.count(pair) for pair in ((True, True), (True, False), (False, True), (False, False))
    )
    counts = map(str, (len(pairs), both, only_first, only_second, neither))
    return [*counts, f"{(only_second - only_first) / len(pairs):+.3f}", probability(mcnemar(only_first, only_second))]


def mcnemar(only_first: int, only_second: int) -> float:
    """Two-sided exact p of the hypothesis that both solve a game equally often, from the games that differ."""
    # Under the hypothesis each of the differing games is a fair coin: p is twice the smaller tail of the binomial.
    differing = only_first + only_second
    tail = sum(math.comb(differing, k) for k in range(min(only_first, only_second) + 1)) / 2**differing
    return min(1.0, 2 * tail)


def differing_settings(settings: Mapping[str, Mapping[str, Any]]) -> Table:
    """The settings in which runs differ: a row for each key, a column for each run."""
    # Settings of another version may lack a key: then the row shows that, too.
    # As texts: values of any type are compared as the page shows them.
    flat = {name: {key: str(value) for key, value in _leaves(content)} for name, content in settings.items()}
    keys = sorted({key for values in flat.values() for key in values})
    rows = [[key, *(values.get(key, "–") for values in flat.values())] for key in keys]
    return Table(["setting", *flat], [row for row in rows if len(set(row[1:])) > 1], text_columns=1 + len(flat))


def flatten(facts: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """Nested facts as `a.b` and text."""
    return ((name, number(value, 3)) for name, value in _leaves(facts))


def _leaves(facts: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in facts.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
