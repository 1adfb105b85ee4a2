"""alfworld's own handcoded expert beside a game on the native engine; it comes with the extra `textworld`."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from lavis.common.errors import MissingFileError, missing_extra

_UNDECIDED = ["look"]  # alfworld's plan where its expert has none
_MAX_STEPS = 200  # alfworld's limit for this expert


class NamedFact(NamedTuple):
    """A fact as the expert reads it."""

    name: str
    names: tuple[str, ...]


class StateForExpert(NamedTuple):
    """What the expert is told of a state, in the game's own dialect."""

    feedback: str
    facts: Sequence[tuple[str, ...]]  # predicate and names
    commands: list[str]
    won: bool

    def as_game_state(self) -> dict[str, Any]:
        """As TextWorld's `GameState`."""
        facts = [NamedFact(name, tuple(names)) for name, *names in self.facts]
        return {"feedback": self.feedback, "facts": facts, "admissible_commands": self.commands, "won": self.won}


class HandcodedExpert:
    """One expert follows one game: `begin`, then `plan` after each answer of the engine.

    alfworld 0.4.2 uses it whatever `env.expert_type` says. It draws from Python's global random generator. With `apart`
    it leaves that alone and draws from a copy, so that a run can be repeated; in alfworld each of several games has a
    process, whose generator nobody seeds.
    """

    def __init__(self, apart: bool) -> None:
        """Raises MissingExtraError where alfworld is not installed."""
        try:
            from alfworld.agents.expert import HandCodedTWAgent
        except ModuleNotFoundError as error:
            raise missing_extra("textworld", error) from None
        self._agent = HandCodedTWAgent(max_steps=_MAX_STEPS)
        self._draws = random.getstate() if apart else None

    def begin(self, path: str) -> None:
        """Follow the game in file `path`; MissingFileError without the `traj_data.json` beside it."""
        try:
            self._agent.reset(path)
        except FileNotFoundError as error:
            raise MissingFileError(f"alfworld's expert needs {error.filename} beside the game file") from None

    def plan(self, state: StateForExpert, command: str) -> list[str]:
        """The expert's next command as a list of one, after `command` ("" at the beginning) led to `state`."""
        if not command:
            self._agent.observe(state.feedback)
            return list(_UNDECIDED)
        with self._own_draws():
            try:
                action = self._agent.act(state.as_game_state(), 0, state.won, command)
            except Exception:  # whatever it is, it is alfworld's: KeyError, IndexError, its own Timeout and Failed
                action = None
        return [action] if action in state.commands else list(_UNDECIDED)

    @contextmanager
    def _own_draws(self) -> Iterator[None]:
        if self._draws is None:
            yield
            return
        outside = random.getstate()
        random.setstate(self._draws)
        try:
            yield
        finally:
            self._draws = random.getstate()
            random.setstate(outside)
