"""The batch against the plain engine: every text, list of commands, result and fact, on the same commands."""

from __future__ import annotations

import random

import numpy as np
import pytest

from xrl_alignment.common.errors import EnvironmentFault
from xrl_alignment.environments.base import Game
from xrl_alignment.environments.games import find_games
from xrl_alignment.environments.native.batch import Batch
from xrl_alignment.environments.native.game import NativeGame
from xrl_alignment.environments.native.gamefile import read_json
from xrl_alignment.environments.native.world import load_world

FEW = 10  # official games in the plain suite; the slow test plays all


@pytest.fixture(scope="module")
def games(household_data) -> list[Game]:
    return find_games("household_train", data=household_data)


class Plain:
    """The same games on `NativeGame`, and the random player: walkthroughs first, later all verbs alike."""

    def __init__(self, batch: Batch, dialect: str | None, rng: random.Random) -> None:
        self.batch, self.dialect, self.rng = batch, dialect, rng
        self.games, self.texts, self.scripts = ([None] * len(batch.playing) for _ in range(3))
        for slot in range(len(batch.playing)):
            self.begin(slot)

    def begin(self, slot: int) -> None:
        game = self.batch.playing[slot]
        self.games[slot] = NativeGame(load_world(game.path), self.dialect)
        self.texts[slot] = self.games[slot].reset()
        self.scripts[slot] = read_json(game.path)["walkthrough"] if self.rng.random() < 0.3 else []

    def choose(self) -> list[int]:
        chosen = []
        for slot, game in enumerate(self.games):
            commands = game.admissible_commands()
            script = self.scripts[slot]
            wanted = script.pop(0).replace("move ", "put ").replace(" to ", " in/on ") if script else ""
            if wanted.startswith("go in/on "):
                wanted = wanted.replace("go in/on ", "go to ")
            likely = [command for command in commands if not command.startswith("go to ") or self.rng.random() < 0.05]
            chosen.append(commands.index(wanted if wanted in commands else self.rng.choice(likely)))
        return chosen

    def step(self, chosen: list[int]) -> list[bool]:
        for slot, (game, number) in enumerate(zip(self.games, chosen, strict=True)):
            self.texts[slot] = game.step(game.admissible_commands()[number])
        return [game.won for game in self.games]


def compare(games: list[Game], dialect: str | None, steps: int, size: int = 6, **options) -> tuple[Batch, int]:
    batch = Batch(games, size, dialect=dialect, max_steps=40, **options)
    plain = Plain(batch, dialect, random.Random(str(dialect)))
    wins = 0
    for step in range(steps):
        assert batch.texts() == plain.texts
        assert batch.commands() == [game.admissible_commands() for game in plain.games]
        assert batch.sizes.tolist() == [len(game.admissible_commands()) for game in plain.games]
        if step % 20 == 0:
            for slot, game in enumerate(plain.games):
                assert batch.game(slot).facts() == game.facts()
        chosen = plain.choose()
        expected = plain.step(chosen)
        won, done = batch.step(chosen if step % 2 else np.array(chosen, np.uint64))
        assert won.tolist() == expected and not (won & ~done).any()
        wins += sum(expected)
        for slot in done.nonzero()[0].tolist():
            plain.begin(slot)
    return batch, wins


@pytest.mark.parametrize("dialect", ["put", "move", None])
def test_a_batch_answers_as_the_plain_engine(games, dialect):
    _, wins = compare(games, dialect, steps=150)
    assert wins >= 1 or dialect != "put"


def test_what_is_kept_is_bounded_and_may_be_forgotten_at_any_step(games):
    batch, _ = compare(games, "put", steps=60, max_nodes=7)
    assert len(batch._tables.offers) <= 7 + len(batch.playing)


def test_official_games_are_played_as_by_the_plain_engine(alfworld_data):
    official = find_games("valid_seen", alfworld_data)
    compare(official[:: len(official) // FEW], "put", steps=80, size=FEW)


@pytest.mark.slow
@pytest.mark.parametrize("dialect", ["put", None])
def test_all_official_games_are_played_as_by_the_plain_engine(alfworld_data, dialect):
    official = find_games("valid_seen", alfworld_data)
    _, wins = compare(official, dialect, steps=400, size=len(official))
    assert wins > 100


def test_steps_are_limited_and_games_follow_in_order(games):
    batch = Batch(games, 2, max_steps=3)
    order = [game.id for game in batch.playing]
    for _ in range(2 * 3):
        _, done = batch.step([0, 0])
        order += [game.id for game in batch.playing] if done.all() else []
    assert order == [game.id for game in games[:6]]
    batch.reset()
    assert [game.id for game in batch.playing] == [game.id for game in games[6:8]] and not batch.steps.any()


def test_what_is_no_choice_is_refused_before_anything_happens(games):
    batch = Batch(games, 2)
    before = batch.commands()
    for wrong, message in (
        ([0], "takes 2 whole numbers"),
        ([0.5, 0.5], "takes 2 whole numbers"),
        ([0, -1], "game 1 has .* -1 is none"),
        ([999, 0], "game 0 has .* 999 is none"),
    ):
        with pytest.raises(EnvironmentFault, match=message):
            batch.step(wrong)
    assert batch.commands() == before and not batch.steps.any()
    for arguments in ({"games": []}, {"games": games, "size": 0}, {"games": games, "max_steps": 0}):
        with pytest.raises(EnvironmentFault, match="must be at least 1"):
            Batch(**arguments)
