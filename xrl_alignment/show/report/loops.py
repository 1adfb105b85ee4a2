"""What the page shows of a loop of EMAC+: what planning cost, what learning changed game by game, rounds, plans.

`planning/loop.py` draws the tree of a loop's folder. A loop that has not ended is shown with what it has so far.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from lavis.common.files import read_json
from xrl_alignment.show.report.run_data import ReportError
from xrl_alignment.show.report.tables import Table, between, game_by_game, number, share

_COMPARED = {  # evaluations of the same games, of which the second is to be better, or as good
    "planner: before, after": ("planner_before", "planner_after"),
    "agent: before, after": ("agent_before", "agent_after"),
    "after: planner, agent": ("planner_after", "agent_after"),
}


class PlayedGame(NamedTuple):
    """A game of a round: `plans` are rows (why the planner was asked, its plan, the expert's in that state)."""

    game: str
    task: str
    won: bool
    assisted: bool  # the plan's commands were executed in the agent's place, if it gave another one
    plans: list[tuple[str, str, str]]
    valid: bool  # its first plan
    tokens: int  # that the planner read and wrote


class ShownGame(NamedTuple):
    """A game with its plans, for reading."""

    title: str
    task: str
    plans: Table


class LoopParts(NamedTuple):
    """What the page shows of one loop."""

    name: str
    lead: str  # what was played, a sentence
    notices: list[str]
    planning: Table
    compared: Table
    rounds: Table
    games: list[ShownGame]


def find_loops(folder: Path) -> dict[str, Path]:
    """Every loop's folder (it holds `evaluations/` and `buffer/`) at or below `folder`, by name; an ablation's too."""
    paths = sorted(each.parent for each in folder.rglob("evaluations") if (each.parent / "buffer").is_dir())
    return {path.relative_to(folder).as_posix() if path != folder else path.resolve().name: path for path in paths}


def loop_parts(name: str, loop: Path) -> LoopParts:
    """Everything of a loop; ReportError or FileError for a damaged file."""
    evaluations = {path.stem: read_json(path) for path in sorted((loop / "evaluations").glob("*.json"))}
    rounds = {
        int(path.name.removeprefix("round_")): read_round(path) for path in sorted(loop.glob("round_[0-9][0-9][0-9]"))
    }
    try:
        planning = _planning_table({name: evaluations[name] for name in sorted(evaluations, key=_order)})
        compared = _compared_table(evaluations)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ReportError(f"a file in {loop / 'evaluations'} is damaged: {type(error).__name__} {error}") from error
    notices = []
    # An ablation's figures stand in the summary of the loop that it belongs to.
    if not any((place / "summary.json").is_file() for place in (loop, loop.parent.parent)):
        notices.append("summary.json is missing: the loop has not ended, or was stopped; figures are those so far")
    rounds = {round: games for round, games in rounds.items() if games}
    last = max(rounds, default=-1)
    played = f"{sum(map(len, rounds.values()))} games in {len(rounds)} {'round' if len(rounds) == 1 else 'rounds'}"
    return LoopParts(
        name,
        f"{name}: EMAC+'s loop, in which planner and agent learn from their games; {played}"
        f"{' so far' if notices else ''}.",
        notices,
        planning,
        compared,
        _rounds_table(rounds),
        _shown_games(last, rounds.get(last, [])),
    )


def read_round(folder: Path) -> list[PlayedGame]:
    """The games of a round so far; ReportError if a file lacks what the page needs."""
    games = []
    for path in sorted(folder.glob("game_*.json")):
        record = read_json(path)
        try:
            calls = record["calls"]
            games.append(
                PlayedGame(
                    record["result"]["game"],
                    record["goal"].strip().splitlines()[-1],
                    record["result"]["won"],
                    record["assisted"],
                    [(call["trigger"], call["plan"], call["corrected"]) for call in calls],
                    bool(calls) and calls[0]["valid"],
                    sum(call["tokens"] for call in [*calls, *record.get("feedbacks", ())]),
                )
            )
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            raise ReportError(f"{path} is damaged: {type(error).__name__} {error}") from error
    return games


def _order(name: str) -> tuple[bool, bool, bool, str]:
    """Before learning first, then after it, then what was changed at the end; the planner before the agent."""
    return "before" not in name, "after" not in name, not name.startswith("planner"), name


def _planning_table(evaluations: Mapping[str, Mapping[str, Any]]) -> Table:
    rows = []
    for name, entry in evaluations.items():
        figures = [number(entry.get("success")), between(entry.get("interval")), number(entry.get("games"))]
        figures += [number(entry.get(key)) for key in ("valid_first_plans", "valid_plans")]
        figures += [number(entry.get("calls_per_solved"), 1), number(entry.get("tokens_per_solved"), 0)]
        rows.append([name, _counted(entry.get("replans")), _counted(entry.get("ended")), *figures])
    head = ["evaluation", "asked again, why", "games ended by", "success", "95 % interval", "games"]
    head += ["first plans valid", "plans valid", "calls for each solved game", "tokens for each solved game"]
    return Table(head, rows, text_columns=3)


def _compared_table(evaluations: Mapping[str, Mapping[str, Any]]) -> Table:
    rows = []
    for games_of, ending in (("held-out", ""), ("valid_seen", "_valid_seen")):
        for what, names in _COMPARED.items():
            first, second = (_won(evaluations.get(f"{name}{ending}", {})) for name in names)
            if cells := game_by_game(first, second):
                rows.append([what, games_of, *cells])
    head = ["first, second", "games of", "played by both", "both solved", "only the first", "only the second"]
    return Table([*head, "neither", "second − first", "p (McNemar)"], rows, text_columns=2)


def _won(evaluation: Mapping[str, Any]) -> dict[str, bool]:
    trials = evaluation.get("episodes") or [[]]
    return {episode["game"]: bool(episode["won"]) for episode in trials[0]}


def _rounds_table(rounds: Mapping[int, list[PlayedGame]]) -> Table:
    rows = []
    for round, games in rounds.items():
        alone = [game.won for game in games if not game.assisted]
        plans = [plan for game in games for plan in game.plans]
        again = Counter(trigger for trigger, _, _ in plans if trigger != "start")
        figures = [str(len(games)), str(sum(game.won for game in games)), str(len(alone)), str(sum(alone))]
        figures += [f"{len(plans) / len(games):.1f}", share(sum(game.valid for game in games) / len(games))]
        rows.append([str(round + 1), _counted(again), *figures, str(sum(game.tokens for game in games))])
    head = ["round", "asked again, why", "games", "solved", "the agent alone: games", "solved", "plans a game"]
    return Table([*head, "first plans valid", "tokens of the planner"], rows, text_columns=2)


def _shown_games(round: int, games: list[PlayedGame]) -> list[ShownGame]:
    """Of the round, the solved game and the failed one with most plans: there replanning helped, or did not."""
    shown = []
    for won, how in ((True, "solved"), (False, "failed")):
        found = [game for game in games if game.won == won and game.plans]
        if found:
            game = max(found, key=lambda one: len(one.plans))
            # The explorer may know no plan: then it is no correction.
            rows = [
                (str(n), why, plan, "the same" if right == plan else right or "–")
                for n, (why, plan, right) in enumerate(game.plans, start=1)
            ]
            title = f"round {round + 1}, {how}: {game.game}"
            head = ["plan", "asked, why", "the planner", "the expert"]
            shown.append(ShownGame(title, game.task, Table(head, rows, text_columns=4)))
    return shown


def _counted(counts: Mapping[str, int] | None) -> str:
    return ", ".join(f"{name}: {count}" for name, count in sorted((counts or {}).items())) or "–"
