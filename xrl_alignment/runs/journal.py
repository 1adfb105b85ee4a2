"""Whether a run's journal fits itself and the files beside it: a resume must not continue from state that cannot be."""

from __future__ import annotations

from collections.abc import Sequence

from xrl_alignment.runs.directory import EpisodeRecord, RunDirectory, RunDirectoryError
from xrl_alignment.runs.transitions import shard_name


def check_journal(directory: RunDirectory, records: Sequence[EpisodeRecord], *, num_rounds: int) -> None:
    """RunDirectoryError where `records`, the run's games and its saved memories cannot be of one run.

    Every round but the last holds every game that was not solved before it; no round holds a game twice.
    """
    games, (memories_round, _) = directory.games(), directory.memories()
    try:
        _check_lines(records, games, num_rounds)
        _check_rounds(records, games, memories_round, num_rounds)
    except ValueError as error:
        raise RunDirectoryError(
            f"{directory.journal} and the files beside it are not of one run: {error}; restore {directory.state} from "
            "a copy, or start a new run"
        ) from error


def _check_lines(records: Sequence[EpisodeRecord], games: Sequence[str], num_rounds: int) -> None:
    """ValueError where a line does not fit the run, or the lines before it."""
    environments = {game: env for env, game in enumerate(games)}
    played: set[tuple[int, str]] = set()
    newest = 0
    for number, record in enumerate(records, start=1):
        where = f"line {number} of the journal"
        if environments.get(record.game) != record.env:
            raise ValueError(f"{where} has {record.game} as environment {record.env}, games.json has another one")
        if not newest <= record.round < num_rounds:
            raise ValueError(f"{where} is of round {record.round}, after round {newest} of {num_rounds}")
        if (record.round, record.game) in played:
            raise ValueError(f"{where} is another episode of {record.game} in round {record.round}")
        if record.shard and not record.shard.startswith(shard_name(record.round, record.env, 0).partition("_steps")[0]):
            raise ValueError(f"{where} has another episode's shard, {record.shard}")
        played.add((record.round, record.game))
        newest = record.round


def _check_rounds(records: Sequence[EpisodeRecord], games: Sequence[str], memories_round: int, num_rounds: int) -> None:
    """ValueError where a round that has ended lacks a game, or the memories are of another round."""
    newest = records[-1].round if records else 0
    if not newest <= memories_round <= num_rounds:
        raise ValueError(f"the memories are of round {memories_round}, the journal's last line of round {newest}")
    solved: set[str] = set()
    for round in range(memories_round):
        here = [record for record in records if record.round == round]
        if lost := set(games) - solved - {record.game for record in here}:
            raise ValueError(f"round {round} has ended without {min(lost)}")
        solved |= {record.game for record in here if record.solved}
