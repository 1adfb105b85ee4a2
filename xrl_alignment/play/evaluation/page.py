"""Scores as Markdown: the card of one result, and the page of a table.

What cannot be compared is kept apart: another protocol; another split or list of games, another engine or step limit;
free text and admissible commands; a single trial and the best of several.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from xrl_alignment.play.evaluation.protocols import PROTOCOLS, other_decoding
from xrl_alignment.play.evaluation.scores import Row

_HEAD = "| who | sees | games | solved | success | 95 % interval | steps | rejected | cost | held out | date |"
_RULE = "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- | --- |"
_BEST_HEAD = (
    "| who | sees | trials | memories | games | solved | best of them | 95 % interval | by slot | cost | date |"
)
_BEST_RULE = "| --- | --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |"
_DECODING = {
    "free": "Free text: the player writes its command.",
    "admissible": "Admissible commands: the player chooses from the engine's list, an easier task.",
}


def page(rows: Sequence[Row]) -> str:
    """The page of a table: a section for each list of games, every row in it, the best first."""
    # What differs in one of these is another task, so it has a section of its own.
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        key = tuple(row[name] for name in ("protocol", "split", "games_hash", "engine", "max_steps", "repeat_limit"))
        groups.setdefault(key, []).append(row)
    parts = [
        "# Scores",
        f"{len(rows)} {'result' if len(rows) == 1 else 'results'} of `evaluate.py`, none left out. Compare only within "
        "a table. Steps are the mean over solved games; *rejected* is the share of actions that were not admissible.",
    ]
    for (protocol, split, games_hash, engine, max_steps, repeats), group in groups.items():
        stuck = f", over after {repeats} equal actions" if repeats else ""
        played = f"games {cell(games_hash)}, engine {cell(engine)}, {max_steps} steps{stuck}"
        parts.append(f"## {cell(protocol)}, {cell(split)}: {played}")
        if protocol in PROTOCOLS:
            parts.append(f"Rules: {PROTOCOLS[protocol].source}; counted there: {PROTOCOLS[protocol].counted}.")
        if not all(row["protocol_games"] for row in group):
            parts.append(f"**Not the games of the protocol**, which are {_own_games(protocol)}.")
        for decode, meaning in _DECODING.items():
            singles = [row for row in group if row["decode"] == decode]
            if not singles:
                continue
            lines = [_HEAD, _RULE]
            for row in sorted(singles, key=lambda row: -row["first_trial"]["success"]):
                figures = row["first_trial"]
                cells = [
                    _who(row), cell(row["sees"]), figures["games"], figures["solved"], f"{figures['success']:.3f}",
                    _interval(figures), _steps(figures), f"{figures['rejected']:.3f}", _cost(row, "first_trial"),
                    held_out(row), cell(row["date"][:10]),
                ]  # fmt: skip
                lines.append(f"| {' | '.join(map(str, cells))} |")
            parts += [f"{meaning} A single trial:", "\n".join(lines)]

            # The best of k trials is another quantity than a success rate, so it has a table of its own.
            lines = [_BEST_HEAD, _BEST_RULE]
            several = [row for row in singles if row["best_of"]]
            for row in sorted(several, key=lambda row: -row["best_of"]["success"]):
                figures = row["best_of"]
                by_slot = "-" if row["by_slot"] is None else f"{row['by_slot']['success']:.3f}"
                cells = [
                    _who(row), cell(row["sees"]), row["trials"], _memories(row), figures["games"], figures["solved"],
                    f"{figures['success']:.3f}", _interval(figures), by_slot, _cost(row, "total"),
                    cell(row["date"][:10]),
                ]  # fmt: skip
                lines.append(f"| {' | '.join(map(str, cells))} |")
            if several:
                parts += ["The best of several trials (solved once is solved; no success rate):", "\n".join(lines)]
    return "\n\n".join(parts) + "\n"


def card(row: Row) -> str:
    """The card of one result: what was scored, on what, how, and what it cost."""
    figures = row["first_trial"]
    lines = [
        f"# {row['who']} on {row['split']}",
        "",
        f"**{figures['success']:.3f}** ({_interval(figures)}, 95 %): {figures['solved']} of {figures['games']} games "
        f"solved in a single trial, {_DECODING[row['decode']].partition(':')[0].lower()}.",
    ]
    if row["best_of"]:
        best = f"Best of {row['trials']} trials, memories: {_memories(row)}: {row['best_of']['success']:.3f}"
        lines += ["", f"{best} ({_interval(row['best_of'])})."]
    if row["by_slot"]:
        counted = f"{row['by_slot']['solved']} of {row['by_slot']['games']}"
        lines += ["", f"Counted by slot, as EMMA's logs are: {counted}, {row['by_slot']['success']:.3f}."]
    # A table of all that the figures depend on.
    name = row["protocol"]
    protocol = cell(name)
    if name in PROTOCOLS:  # its name, what it counts, and whether these are its games
        other = "" if row["protocol_games"] else f"; NOT its games, which are {_own_games(name)}"
        if own := other_decoding(name, row["decode"]):
            other += f"; NOT its decoding, which is {own}"
        protocol = f"{name}: {PROTOCOLS[name].source}; counted there: {PROTOCOLS[name].counted}{other}"
    facts: dict[str, Any] = {
        "protocol": protocol,
        "who played": f"{_who(row)} ({row['kind']})",
        "what it sees": row["sees"],
        "decoding": _DECODING[row["decode"]],
        "games": f"{figures['games']} of {row['split']}, hash of the list {row['games_hash']}",
        "held out": held_out(row),
        "engine, step limit, seed": f"{row['engine']}, {row['max_steps']}, {row['seed']}",
        "equal actions in a row that end an episode": row["repeat_limit"] or "any number",
        "mean steps of solved games": _steps(figures),
        "rejected actions": f"{figures['rejected']:.3f}",
        "games lost to faults, counted as not solved": row["lost"],
    }
    if row["cost"]:  # a language model was asked
        total, events = row["cost"]["total"], row["calls"]
        facts["calls, tokens read, tokens written"] = (
            f"{total['calls']}, {total['prompt_tokens']} ({total['cached_tokens']} from the endpoint's cache), "
            f"{total['completion_tokens']}"
        )
        facts["cost of the first trial, of all"] = f"{_cost(row, 'first_trial')}, {_cost(row, 'total')}"
        facts["states without a usable answer"] = events["no_label"]
        facts["answers from this machine's cache (not paid again), retries"] = (
            f"{events['cache_hits']}, {events['retries']}"
        )
    versions = ", ".join(f"{package} {version}" for package, version in row["versions"].items())
    facts |= {"seconds": row["seconds"], "made": row["date"], "with": versions}
    lines += ["", "| | |", "| --- | --- |", *(f"| {fact} | {value} |" for fact, value in facts.items())]
    return "\n".join(lines) + "\n"


def _who(row: Row) -> str:
    """The player, and whether it may think: a thought is no step, and moves a score (docs/audit.md)."""
    return cell(row["who"]) + (", with thoughts" if row["thoughts"] else "")


def _memories(row: Row) -> str:
    """Whose memories a failed game was played again with."""
    return "another game's" if row["swap_memories"] and row["reflexion"] else cell(row["reflexion"]) or "none"


def _own_games(name: str) -> str:
    return f"{PROTOCOLS[name].games} of {PROTOCOLS[name].split}" if name in PROTOCOLS else "others"


def held_out(row: Row) -> str:
    """Whether the player has trained on these games, as far as its weights tell."""
    if row["kind"] == "endpoint":
        return "unknown"  # nobody outside knows what a language model was trained on
    if row["trained_on"] is None:  # the weights do not say
        return "unknown"
    return "yes" if not row["trained_on"] else f"NO: trained on {row['trained_on']}"


def cell(text: str) -> str:
    """`text` as the content of a table's cell."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def _cost(row: Row, part: str) -> str:
    if row["cost"] is None:
        return "-"
    usd = row["cost"][part]["cost_usd"]
    return "no prices set" if usd is None else f"{usd:.4f} USD"


def _steps(figures: Mapping[str, Any]) -> str:
    return "-" if figures["mean_steps"] is None else f"{figures['mean_steps']:.1f}"


def _interval(figures: Mapping[str, Any]) -> str:
    low, high = figures["interval"]
    return f"{low:.3f} to {high:.3f}"
