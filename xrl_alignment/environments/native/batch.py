"""Many games side by side in one process, played by the numbers of commands.

    batch = Batch(find_games("train"), size=256)
    while training:
        texts, commands = batch.texts(), batch.commands()      # only if the policy reads them
        won, done = batch.step(choices)                        # choices: for each game a number below batch.sizes

A finished game is replaced by the next of the list in the same step: texts and commands are then those of the new one.

Nine of ten commands only move the agent or change nothing, and what another one does to a place is the same each time.
For all of these the batch looks up numbers in tables. What is not in the tables yet is found by the functions of
`actions` on a `NativeGame`, which falls behind and catches up when its texts, its goal or a new place are asked for. So
no rule is written twice, and texts and commands are those of `NativeGame`. The tables are bounded: beyond MAX_NODES for
each game of the list they are emptied and filled anew.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from xrl_alignment.common.errors import EnvironmentFault
from xrl_alignment.environments.base import MAX_STEPS, Game
from xrl_alignment.environments.native.choices import Offer
from xrl_alignment.environments.native.game import NativeGame
from xrl_alignment.environments.native.gamefile import read_games
from xrl_alignment.environments.native.tables import UNKNOWN, Room, Tables
from xrl_alignment.environments.native.texts import arrival_text
from xrl_alignment.environments.native.world import build_world

MAX_NODES = 100  # for each game of the list, on average


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
        self._places = np.zeros((size, 1), np.int32)  # row of each location's place, as the game stands
        self._at = np.arange(size)  # where the places of each game begin in it
        self._chosen = np.zeros((min(max_steps, 64), size), np.int16)  # what was chosen in the last steps, a ring
        self._now = 0  # number of steps of the batch
        self._here, self._kind, self._node = (np.zeros(size, np.intp) for _ in range(3))
        self._near = np.zeros(size, bool)  # the goal holds as soon as the agent is at the right location
        self._held = [0] * size  # number of the thing in the hand
        self._pending: list[list[tuple[int, Offer]]] = [[] for _ in range(size)]  # location and what was done there
        self._states: list[NativeGame | None] = [None] * size  # without what is pending; None: as at the beginning
        self._said = [""] * size  # the answer to what was pending last
        self._in: list[Room] = [None] * size  # type: ignore[list-item]  # reset fills it
        self._touched: list[set[int]] = [set() for _ in range(size)]  # locations that are not as at the beginning
        self.playing: list[Game] = [games[0]] * size
        self.steps = np.zeros(size, int)  # of each game so far, int64 (size,)
        self.reset()

    def reset(self) -> None:
        """Begin the next game of the list everywhere."""
        for slot in range(len(self._at)):
            self._begin(slot)
        self._find_nodes()
        self._last = self._tables, self._node, self._node, self._here, self._near

    def step(self, choices: Sequence[int] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Carry out one command in each game: its number in the sorted list of `commands`.

        Returns which games were won by it and which ended (won, or `max_steps` commands), bool (size,). Raises
        EnvironmentFault for a list of another length or a number that no command has; then nothing has happened.
        """
        numbers = self._checked(choices)
        self._remember(numbers)
        won = np.zeros(len(numbers), bool)
        tables, before = self._tables, self._here
        targets = tables.target.array.take(tables.first.array.take(self._node) + numbers)
        acting = targets < 0
        self._here = np.where(acting, before, targets)
        self._last = tables, self._node, numbers, before, acting
        slots = acting.nonzero()[0]
        rows = self._places.take(self._at[slots] + before[slots])
        for slot, row, target in zip(slots.tolist(), rows.tolist(), targets[slots].tolist(), strict=True):
            if self._act(slot, row, -1 - target):
                won[slot] = self._is_won(slot)
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
        return [self._text(slot) if steps else self._in[slot].opening for slot, steps in enumerate(self.steps.tolist())]

    def commands(self) -> list[list[str]]:
        """The admissible commands of each game, sorted; the caller may change the lists."""
        return [self._commands(slot, node) for slot, node in enumerate(self._node.tolist())]

    def game(self, slot: int) -> NativeGame:
        """An independent game in the state of that of `slot`: its commands are played again."""
        game = self._in[slot].new_game()
        for step in range(self._now - int(self.steps[slot]), self._now):
            game.step(game.admissible_commands()[self._chosen[step % len(self._chosen), slot]])
        return game

    def _checked(self, choices: Sequence[int] | np.ndarray) -> np.ndarray:
        numbers = np.asarray(choices)
        if numbers.shape != self.sizes.shape or numbers.dtype.kind not in "iu":
            raise EnvironmentFault(f"step takes {len(self.sizes)} whole numbers, one for each game")
        wrong = (numbers < 0) | (numbers >= self.sizes)
        if wrong.any():
            slot = int(wrong.argmax())
            raise EnvironmentFault(f"game {slot} has {self.sizes[slot]} commands; {numbers[slot]} is none of them")
        return numbers.astype(np.intp, copy=False)

    def _remember(self, numbers: np.ndarray) -> None:
        """Note what is chosen: `game` plays it again."""
        length = len(self._chosen)
        if length < self.max_steps and self.steps.max() >= length:
            oldest_first = np.roll(self._chosen, -self._now, axis=0)
            self._chosen = np.concatenate((oldest_first, np.zeros_like(oldest_first)))
            self._now = length
        self._chosen[self._now % len(self._chosen)] = numbers
        self._now += 1

    def _act(self, slot: int, row: int, number: int) -> bool:
        """Carry out an offer at the place with the row `row`; returns whether the goal may be reached by it."""
        here, held, tables = int(self._here[slot]), self._held[slot], self._tables
        offer = tables.offers[self._node[slot]][number]
        self._pending[slot].append((here, offer))
        effect = tables.effects.get((row, held, number))
        if effect is None:
            effect = self._in[slot].effect(self._state(slot), offer, held, tables)
            tables.effects[row, held, number] = effect
        self._touched[slot].add(here)
        self._places[slot, here], self._held[slot], counts = effect
        self._kind[slot] = self._in[slot].kinds[self._held[slot]]
        return counts

    def _is_won(self, slot: int) -> bool:
        room, state = self._in[slot], self._state(slot)
        self._near[slot] = room.nearly(state)
        return room.reached(state)

    def _state(self, slot: int) -> NativeGame:
        """The game of `slot`, at its location. It lacks what `look` and the like leave in TextWorld's facts."""
        room, state = self._in[slot], self._states[slot]
        if state is None:
            state = self._states[slot] = room.lend()
        for here, offer in self._pending[slot]:
            state.location = room.locations[here]
            self._said[slot] = offer.act(state)
        self._pending[slot].clear()
        state.location = room.locations[self._here[slot]]
        return state

    def _begin(self, slot: int) -> None:
        game = self.playing[slot] = next(self._following)
        room = self._rooms.get(game.path)
        if room is None:
            room = self._rooms[game.path] = Room(build_world(self._texts[game.path]), self._dialect)
            self._widen(len(room.locations))
        state = self._states[slot]
        if state is not None:
            self._in[slot].give_back(state)
        self._in[slot], self._states[slot], self._held[slot] = room, None, 0
        self._pending[slot], self._touched[slot] = [], set()
        self._places[slot, : len(room.first)] = room.first
        self._here[slot] = self._kind[slot] = self.steps[slot] = 0
        self._near[slot] = room.near

    def _widen(self, width: int) -> None:
        """Have space for the places of a game with `width` locations."""
        missing = width - self._places.shape[1]
        if missing > 0:
            self._places = np.pad(self._places, ((0, 0), (0, missing)))
            self._at = np.arange(len(self._places)) * width

    def _find_nodes(self) -> None:
        """Look up what is admissible now."""
        tables = self._tables
        self._node = node = tables.node.array.take(self._places.take(self._at + self._here) + self._kind)
        if node.min() < 0:
            for slot in (node < 0).nonzero()[0].tolist():
                node[slot] = self._find(slot)
        self.sizes = tables.size.array.take(node)

    def _find(self, slot: int) -> int:
        room, here, tables = self._in[slot], int(self._here[slot]), self._tables
        row = int(self._places[slot, here])
        if row == UNKNOWN:
            row = self._places[slot, here] = room.row(self._state(slot), tables)
            if here not in self._touched[slot]:
                room.first[here] = row
        return room.node(row, here, self._held[slot], tables, lambda: self._state(slot))

    def _forget(self) -> None:
        self._tables = Tables()
        self._places[:] = UNKNOWN
        for room in self._rooms.values():
            room.forget()

    def _text(self, slot: int) -> str:
        """The answer to the last command."""
        room, state = self._in[slot], self._state(slot)
        tables, nodes, numbers, before, acting = self._last
        if acting[slot]:
            return self._said[slot]
        node, number, receptacles = nodes[slot], int(numbers[slot]), room.receptacles_from(before[slot])
        start = tables.start[node]
        if not start <= number < start + len(receptacles):
            return tables.offers[node][number if number < start else number - len(receptacles)].act(state)
        receptacle = receptacles[number - start]
        place = int(self._places[slot, self._here[slot]])
        text = room.texts.get((place, receptacle))
        if text is None:
            text = room.texts[place, receptacle] = arrival_text(state, receptacle)
        return text

    def _commands(self, slot: int, node: int) -> list[str]:
        room, start = self._in[slot], self._tables.start[node]
        world, held = room.world, room.things[self._held[slot]]
        others = [offer.named(world.names[held] if held else "") for offer in self._tables.offers[node]]
        return [*others[:start], *world.going_from(room.locations[self._here[slot]]), *others[start:]]
