"""Many games side by side in one process, played by the numbers of commands.

    batch = Batch(find_games("train"), size=256)
    while training:
        texts, commands = batch.texts(), batch.commands()      # only if the policy reads them
        won, done = batch.step(choices)                        # choices: for each game a number below batch.sizes

A finished game is replaced by the next of the list in the same step: texts and commands are then those of the new one.

Nine of ten commands only move the agent or change nothing. For all games at once these are look-ups in tables. The
others are carried out by the functions of `actions` on a `NativeGame`, and what is admissible in a state is found by
`actions` when it is first needed. So no rule is written twice, and texts and commands are those of `NativeGame`.
The tables are bounded: beyond MAX_NODES for each game of the list they are emptied and filled anew.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from xrl_alignment.common.errors import EnvironmentFault
from xrl_alignment.environments.base import MAX_STEPS, Game
from xrl_alignment.environments.native.game import NativeGame
from xrl_alignment.environments.native.gamefile import read_games
from xrl_alignment.environments.native.state import Menu
from xrl_alignment.environments.native.tables import LAST_BIT, SIZE, START, UNKNOWN, Room, Tables
from xrl_alignment.environments.native.texts import arrival_text
from xrl_alignment.environments.native.world import build_world

MAX_NODES = 100  # for each game of the list, on average
_UNCHANGED = Menu([], {})


class Batch:
    """`size` games at a time out of a list, which is played in order, again and again."""

    def __init__(
        self,
        games: Sequence[Game],
        size: int = 256,
        *,
        max_steps: int = MAX_STEPS,
        dialect: str | None = "put",
        max_nodes: int | None = None,
    ) -> None:
        """`dialect` is that of the commands, "put" or "move"; None: each game's own. `max_nodes` bounds the tables.

        Raises MissingFileError or EnvironmentFault for a game that cannot be played, EnvironmentFault for none.
        """
        if not games or size < 1 or max_steps < 1:
            raise EnvironmentFault(f"{len(games)} games, {size} at a time, {max_steps} steps: each must be at least 1")
        self.max_steps, self._dialect = max_steps, dialect
        self._max_nodes = max_nodes or MAX_NODES * max(len(games), size)
        self._texts = read_games(game.path for game in games)
        self._rooms: dict[Path, Room] = {}
        self._following = itertools.cycle(games)
        self._tables = Tables()
        self._slots = np.arange(size)
        self._places = np.zeros((size, 1), np.int32)  # row of each location's place, as the game stands
        self._log = np.zeros((size, min(max_steps, 64)), np.int16)  # what was chosen
        self._here, self._kind, self._node = (np.zeros(size, np.intp) for _ in range(3))
        self._near = np.zeros(size, bool)  # the goal holds as soon as the agent is at the right location
        self._states: list[NativeGame] = [None] * size  # type: ignore[list-item]  # reset fills it
        self._in: list[Room] = [None] * size  # type: ignore[list-item]
        self._touched: list[set[int]] = [set() for _ in range(size)]  # locations that are not as at the beginning
        self.playing: list[Game] = [games[0]] * size
        self.steps = np.zeros(size, int)  # of each game so far, int64 (size,)
        self.reset()

    def reset(self) -> None:
        """Begin the next game of the list everywhere."""
        self._said: dict[int, str] = {}
        for slot in range(len(self._slots)):
            self._begin(slot)
        self._find_nodes()
        self._last = self._tables, self._node, self._node, self._here

    def step(self, choices: Sequence[int] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Carry out one command in each game: its number in the sorted list of `commands`.

        Returns which games were won by it and which ended (won, or `max_steps` commands), bool (size,). Raises
        EnvironmentFault for a list of another length or a number that no command has; then nothing has happened.
        """
        numbers = np.asarray(choices)
        self._check(numbers)
        self._remember(numbers)
        won = np.zeros(len(numbers), bool)
        acting = self._go(numbers)
        for slot, number in acting:
            won[slot] = self._act(slot, number)
        if self._near.any():
            for slot in np.flatnonzero(self._near).tolist():
                won[slot] = self._in[slot].reached(self._state(slot))
        self.steps += 1
        done = won | (self.steps >= self.max_steps)
        for slot in done.nonzero()[0].tolist():
            self._begin(slot)
        if len(self._tables.offers) > self._max_nodes:
            self._forget()
        self._find_nodes()
        return won, done

    def texts(self) -> list[str]:
        """What the engine answered to each last command; the opening text where a game begins."""
        return [
            self._in[slot].opening if steps == 0 else self._said.get(slot) or self._text(slot)
            for slot, steps in enumerate(self.steps.tolist())
        ]

    def commands(self) -> list[list[str]]:
        """The admissible commands of each game, sorted; the caller may change the lists."""
        return [self._commands(slot, node) for slot, node in enumerate(self._node.tolist())]

    def game(self, slot: int) -> NativeGame:
        """An independent game in the state of that of `slot`: its commands are played again."""
        game = self._in[slot].new_game()
        for number in self._log[slot, : self.steps[slot]].tolist():
            game.step(game.admissible_commands()[number])
        return game

    def _check(self, numbers: np.ndarray) -> None:
        if numbers.shape != self.sizes.shape or numbers.dtype.kind not in "iu":
            raise EnvironmentFault(f"step takes {len(self.sizes)} whole numbers, one for each game")
        wrong = (numbers < 0) | (numbers >= self.sizes)
        if wrong.any():
            slot = int(wrong.argmax())
            raise EnvironmentFault(f"game {slot} has {self.sizes[slot]} commands; {numbers[slot]} is none of them")

    def _remember(self, numbers: np.ndarray) -> None:
        """Note what is chosen: texts and `game` are made of it when they are asked for."""
        if self._log.shape[1] < self.max_steps and self.steps.max() >= self._log.shape[1]:
            self._log = np.concatenate((self._log, np.zeros_like(self._log)), axis=1)
        self._log[self._slots, self.steps] = numbers
        self._said = {}
        self._last = self._tables, self._node, numbers, self._here

    def _go(self, numbers: np.ndarray) -> list[tuple[int, int]]:
        """Carry out all `go to`; returns the games in which something else is done that changes it, and what."""
        tables = self._tables
        start, stop, _, goals, changing = tables.nodes.array[self._node].T
        leading = numbers - start
        going = (leading >= 0) & (numbers < stop)
        goal = tables.goal.array[np.where(going, goals + leading, 0)]
        self._here = np.where(going, goal, self._here)
        number = np.where(leading < 0, numbers, numbers - (stop - start))
        acting = ~going & (changing >> np.minimum(number, LAST_BIT) & 1 == 1)
        slots = acting.nonzero()[0]
        return list(zip(slots.tolist(), number[slots].tolist(), strict=True))

    def _act(self, slot: int, number: int) -> bool:
        """Carry out a command other than `go to`; returns whether the game is won."""
        room, state, tables = self._in[slot], self._state(slot), self._tables
        offer = tables.offers[self._node[slot]][number]
        state.menu = _UNCHANGED
        self._said[slot] = offer.act(state)
        if state.menu is None:
            here = int(self._here[slot])
            self._touched[slot].add(here)
            self._places[slot, here] = room.row(state, tables)
            self._kind[slot] = room.kinds[state.held]
        if not room.counts(offer):
            return False
        self._near[slot] = room.nearly(state)
        return room.reached(state)

    def _state(self, slot: int) -> NativeGame:
        """The game of `slot`, at its location. It lacks what `look` and the like leave in TextWorld's facts."""
        state = self._states[slot]
        state.location = self._in[slot].locations[self._here[slot]]
        return state

    def _begin(self, slot: int) -> None:
        game = self.playing[slot] = next(self._following)
        room = self._rooms.get(game.path)
        if room is None:
            room = self._rooms[game.path] = Room(build_world(self._texts[game.path]), self._dialect)
            missing = len(room.locations) - self._places.shape[1]
            self._places = np.pad(self._places, ((0, 0), (0, max(0, missing))))
        if self._in[slot] is not None:
            self._in[slot].give_back(self._states[slot])
        self._in[slot], self._states[slot] = room, room.lend()
        self._touched[slot] = set()
        self._places[slot, : len(room.first)] = room.first
        self._here[slot] = self._kind[slot] = self.steps[slot] = 0
        self._near[slot] = room.near

    def _find_nodes(self) -> None:
        """Look up what is admissible now."""
        tables = self._tables
        self._node = node = tables.node.array[self._places[self._slots, self._here] + self._kind]
        if node.min() < 0:
            for slot in (node < 0).nonzero()[0].tolist():
                node[slot] = self._find(slot)
        self.sizes = tables.nodes.array[node, SIZE]

    def _find(self, slot: int) -> int:
        room, here, state = self._in[slot], int(self._here[slot]), self._state(slot)
        row = int(self._places[slot, here])
        if row == UNKNOWN:
            row = self._places[slot, here] = room.row(state, self._tables)
            if here not in self._touched[slot]:
                room.first[here] = row
        return room.node(state, row, here, self._tables)

    def _forget(self) -> None:
        self._tables = Tables()
        self._places[:] = UNKNOWN
        for room in self._rooms.values():
            room.forget()

    def _text(self, slot: int) -> str:
        """The answer to the last command, which changed nothing but the location."""
        room, state = self._in[slot], self._state(slot)
        tables, nodes, numbers, here = self._last
        start, stop = tables.nodes.array[nodes[slot], :SIZE].tolist()
        number, receptacles = int(numbers[slot]), room.receptacles[here[slot]]
        if not start <= number < stop:
            return tables.offers[nodes[slot]][number if number < start else number - len(receptacles)].act(state)
        receptacle = receptacles[number - start]
        place = int(self._places[slot, self._here[slot]])
        text = room.texts.get((place, receptacle))
        if text is None:
            text = room.texts[place, receptacle] = arrival_text(state, receptacle)
        return text

    def _commands(self, slot: int, node: int) -> list[str]:
        world, state, start = self._in[slot].world, self._state(slot), self._tables.nodes.array[node, START]
        held = world.names[state.held] if state.held else ""
        others = [offer.named(held) for offer in self._tables.offers[node]]
        return [*others[:start], *world.going_from(state.location), *others[start:]]
