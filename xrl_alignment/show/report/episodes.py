"""What a run's journal tells of its episodes: success by type and round, causes of failures, use of memories.

Files count rounds from 0, pages from 1.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from xrl_alignment.agents.language.history import EpisodeTrace
from xrl_alignment.common.intervals import wilson_interval
from xrl_alignment.show.report.failures import CAUSES, cause
from xrl_alignment.show.report.run_data import ReportError, read_json_lines
from xrl_alignment.show.report.tables import Table, between, number, share

HALF = 0.5  # a round in which the expert drove so many of the episodes is called expert-driven


@dataclass(frozen=True)
class FinishedEpisode:
    """A line of the journal; what it lacks is empty."""

    round: int
    env: int
    game: str
    won: bool
    assisted: bool
    actions: int
    shard: str
    trace: EpisodeTrace

    @property
    def solved(self) -> bool:
        """The policy won by itself."""
        return self.won and not self.assisted


def read_episodes(run: Path) -> list[FinishedEpisode]:
    """The episodes of the journal; [] if there is none, ReportError if a line is no episode."""
    path = run / "state" / "episodes.jsonl"
    episodes = []
    for line in read_json_lines(path):
        try:
            game, won = str(line.get("game", "")), bool(line.get("won", False))
            steps = tuple((str(action), str(feedback)) for action, feedback in line.get("steps", ()))
            trace = EpisodeTrace(game, game.split("-", 1)[0], str(line.get("opening", "")), steps, won)
            round, env, actions = (int(line.get(key, 0)) for key in ("round", "env", "actions"))
            shard, assisted = str(line.get("shard", "")), bool(line.get("assisted"))
        except (TypeError, ValueError, OverflowError) as error:
            raise ReportError(f"{path} is damaged: {error}") from error
        episodes.append(FinishedEpisode(round, env, game, won, assisted, actions, shard, trace))
    return episodes


@dataclass(frozen=True)
class SingleTrial:
    """A round's episodes: how many, how many of them won, played by the policy alone, solved by it."""

    round: int
    played: int
    won: int
    alone: int
    solved: int

    @property
    def helped(self) -> float:
        """The share of the episodes in which the expert drove at least one step."""
        return 1 - self.alone / self.played

    @property
    def driven(self) -> bool:
        """Whether the expert drove in at least half of the episodes."""
        return self.helped >= HALF


def single_trials(episodes: Sequence[FinishedEpisode]) -> list[SingleTrial]:
    """Each round that has episodes."""
    trials = []
    for round, part in _by_round(episodes).items():
        alone = sum(not episode.assisted for episode in part)
        won, solved = (sum(episode.won for episode in part), sum(episode.solved for episode in part))
        trials.append(SingleTrial(round, len(part), won, alone, solved))
    return trials


def rounds_table(episodes: Sequence[FinishedEpisode]) -> Table:
    """Single-trial success of each round, of the policy alone: solved of those that it played alone."""
    rows = []
    for trial in single_trials(episodes):
        mark = "the expert drove" if trial.driven else ""
        counts = [str(trial.round + 1), str(trial.played), share(trial.helped), str(trial.won)]
        rows.append([*counts, *_share_of(trial.solved, trial.alone), mark])
    head = [
        "round",
        "played",
        "with the expert",
        "won",
        "played alone",
        "solved alone",
        "success",
        "95 % interval",
        "note",
    ]
    return Table(head, rows, text_columns=0)


def types_table(episodes: Sequence[FinishedEpisode]) -> Table:
    """Success by task type, over the episodes that the policy played alone."""
    types: dict[str, list[FinishedEpisode]] = {}
    for episode in episodes:
        # Where the expert drove, a success says nothing of the policy.
        if not episode.assisted:
            types.setdefault(episode.game.split("-", 1)[0] or "unknown", []).append(episode)
    rows = [[kind, *_rate(part)] for kind, part in sorted(types.items())]
    return Table(["task type", "episodes", "solved", "success", "95 % interval"], rows)


def causes_table(episodes: Sequence[FinishedEpisode]) -> Table:
    """Why episodes failed, by round: how many of each cause."""
    # The text decides the cause (`failures.cause`); episodes that were won have none.
    by_round = {
        round: Counter(cause(episode.trace) for episode in part if not episode.won)
        for round, part in _by_round(episodes).items()
    }
    total = sum((counts for counts in by_round.values()), Counter[str]())
    if not total:
        return Table([], [])
    rows = [
        [
            name,
            CAUSES[name],
            str(total[name]),
            share(total[name] / total.total()),
            *(str(c[name]) for c in by_round.values()),
        ]
        for name in CAUSES
    ]
    return Table(
        ["cause", "what it means", "failed", "share", *(f"round {n + 1}" for n in by_round)], rows, text_columns=2
    )


def memories_table(run: Path, episodes: Sequence[FinishedEpisode]) -> Table:
    """Games that had failed before, played again: with a memory and without, how many the policy solved this time.

    Games without a memory are not a fair control: both columns are shown so that nobody takes one figure for an effect.
    """
    memories = {round: _memories(run, round) for round in {episode.round for episode in episodes}}
    failed: set[str] = set()
    rows = []
    for round, part in _by_round(episodes).items():
        # Those that begin this round with a memory of an earlier one, and those that do not.
        again = [episode for episode in part if episode.game in failed and not episode.assisted]
        told = memories.get(round - 1, {})
        groups = [[e for e in again if bool(told.get(e.game)) == having] for having in (True, False)]
        if again:
            rows.append([str(round + 1), *(cell for group in groups for cell in _rate(group))])
        # In this order: a game that was both failed and won in one round counts as won.
        failed |= {episode.game for episode in part if not episode.won}
        failed -= {episode.game for episode in part if episode.won}
    figures = ["played again", "solved", "success", "95 % interval"]
    head = ["round", *(f"{figure}, {kind}" for kind in ("with a memory", "without") for figure in figures)]
    return Table(head, rows, text_columns=0)


def best_and_worst(episodes: Sequence[FinishedEpisode], each: int) -> list[tuple[str, FinishedEpisode]]:
    """Up to `each` solved episodes with the fewest actions, then as many failed ones of different causes.

    Of each game the newest episode only; the policy's own if there are any. Only such as have stored frames.
    """
    # A later episode of a game replaces an earlier one: the journal is in the order of time.
    newest = {episode.game: episode for episode in episodes if episode.shard}
    own = [episode for episode in newest.values() if not episode.assisted] or list(newest.values())
    # By name, too: a page that is made again shows the same episodes.
    best = sorted((e for e in own if e.won), key=lambda e: (e.actions, e.game))[:each]
    failed: dict[str, list[FinishedEpisode]] = {}
    for episode in sorted((e for e in own if not e.won), key=lambda e: (-e.actions, e.game)):
        failed.setdefault(cause(episode.trace), []).append(episode)
    # In turn one of each cause, so that the page shows different ones: the longest episode of a cause first.
    turns = [(name, part[turn]) for turn in range(each) for name, part in failed.items() if turn < len(part)]
    return [*((f"solved in {episode.actions} actions", episode) for episode in best), *turns[:each]]


def _memories(run: Path, round: int) -> dict[str, list[str]]:
    """The memories of each game after `round`; {} if they were not written."""
    path = run / "logging_results" / f"env_results_trial_{round}.json"
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
        return {str(result["game"]): list(result["memory"]) for result in results.values()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def _by_round(episodes: Sequence[FinishedEpisode]) -> dict[int, list[FinishedEpisode]]:
    rounds: dict[int, list[FinishedEpisode]] = {}
    for episode in episodes:
        rounds.setdefault(episode.round, []).append(episode)
    return dict(sorted(rounds.items()))


def _rate(episodes: Sequence[FinishedEpisode]) -> list[str]:
    """How many, how many of them solved, the share, its interval."""
    return _share_of(sum(episode.solved for episode in episodes), len(episodes))


def _share_of(solved: int, played: int) -> list[str]:
    known = [number(solved / played), between(wilson_interval(solved, played))] if played else ["–", "–"]
    return [str(played), str(solved), *known]
