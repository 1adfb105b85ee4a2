"""A journal that cannot be is named, whatever it is that does not fit; one that can be is not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from xrl_alignment.runs.directory import EpisodeRecord, RunDirectory, RunDirectoryError
from xrl_alignment.runs.journal import check_journal
from xrl_alignment.runs.transitions import shard_name

GAMES = ["look-a/t", "look-b/t", "look-c/t"]


def record(round: int, env: int, *, won: bool = False, steps: int = 2) -> EpisodeRecord:
    shard = shard_name(round, env, steps)
    return EpisodeRecord(round, env, GAMES[env], won, False, steps, "A room.", [], shard, 1.0)


# Round 0 has ended, with one game solved; round 1 goes on. Several sessions end in an order of their own.
PLAYED = [record(0, 1), record(0, 0, won=True), record(0, 2), record(1, 2)]
Records = list[EpisodeRecord]


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[RunDirectory]:
    made = RunDirectory(tmp_path / "run")
    made.save_games(GAMES)
    made.save_memories(1, {})
    yield made
    made.close()


@pytest.mark.parametrize("lines", range(len(PLAYED) + 1))
def test_a_run_that_was_killed_anywhere_fits(directory: RunDirectory, lines: int) -> None:
    directory.save_memories(int(lines > 3), {})
    check_journal(directory, PLAYED[:lines], num_rounds=2)


def test_rounds_in_which_nothing_is_left_to_play_fit(directory: RunDirectory) -> None:
    directory.save_memories(4, {})
    check_journal(directory, [record(0, env, won=True) for env in range(3)], num_rounds=4)


def test_an_evaluation_without_shards_and_a_run_that_has_not_begun_fit(directory: RunDirectory) -> None:
    check_journal(directory, [replace(line, shard="") for line in PLAYED], num_rounds=2)
    directory.save_games([])
    directory.save_memories(0, {})
    check_journal(directory, [], num_rounds=2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda lines: [*lines, lines[-1]], "line 5 of the journal is another episode of look-c/t in round 1"),
        (lambda lines: lines[1:], "round 0 has ended without look-b/t"),
        (lambda lines: lines[::-1], "line 2 of the journal is of round 0, after round 1 of 2"),
        (lambda lines: [*lines[:3], record(7, 2)], "line 4 of the journal is of round 7"),
        (lambda lines: [*lines[:3], replace(lines[3], env=1)], "has look-c/t as environment 1"),
        (lambda lines: [*lines[:3], replace(lines[3], game="x/y")], "has x/y as environment 2"),
        (lambda lines: [*lines[:3], replace(lines[3], shard=lines[0].shard)], "has another episode's shard, round000"),
    ],
)
def test_lines_that_do_not_fit_are_named(
    directory: RunDirectory, change: Callable[[Records], Records], message: str
) -> None:
    with pytest.raises(RunDirectoryError, match=f"are not of one run: .*{message}.*; restore .*state from a copy"):
        check_journal(directory, change(PLAYED), num_rounds=2)


@pytest.mark.parametrize(
    ("memories", "message"),
    [
        (0, "the memories are of round 0, the journal's last line of round 1"),
        (2, "round 1 has ended without look-b/t"),
        (9, "the memories are of round 9"),
    ],
)
def test_memories_of_another_round_are_named(directory: RunDirectory, memories: int, message: str) -> None:
    directory.save_memories(memories, {})
    with pytest.raises(RunDirectoryError, match=message):
        check_journal(directory, PLAYED, num_rounds=2)


def test_other_games_are_named(directory: RunDirectory) -> None:
    for games in (GAMES[::-1], [GAMES[0], *GAMES[:2]], []):
        directory.save_games(games)
        with pytest.raises(RunDirectoryError, match=r"line \d of the journal has look-./t as environment \d"):
            check_journal(directory, PLAYED, num_rounds=2)
