"""ALFWorld's handcoded expert (Shridhar et al. 2021, arXiv:2010.03768) beside a game of the native engine.

The decisions are those of alfworld's own code, which is asked here as alfworld's wrapper of TextWorld asks it. So it
decides the same as in the original engine, without that engine's time. One case cannot be compared: with two objects of
the wanted type in receptacles of the wanted type (but not in one), alfworld goes by the one whose fact comes first in a
set, and that order changes with each Python process. Here the facts are sorted.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from alfworld_native.engine.game import NativeGame
from alfworld_native.errors import EnvironmentFault
from alfworld_native.language.commands import to_dialect
from lavis.common.errors import MissingFileError, missing_extra

try:
    from alfworld.agents.expert import HandCodedTWAgent
except ModuleNotFoundError as error:
    raise missing_extra("textworld", error) from None

UNDECIDED = "look"  # what it says if it knows nothing to do, and first of all
MAX_STEPS = 200  # alfworld's limit for it
_GLOBAL_DRAWS = threading.Lock()  # held while Python's global generator is that of one expert
_READ = ("holds", "inreceptacle", "isclean", "iscool", "ishot")  # the predicates that it reads


class _Fact(NamedTuple):
    """A fact as TextWorld gives it: the predicate, and the names of its arguments in the text."""

    name: str
    names: tuple[str, ...]


class HandcodedExpert:
    """The expert of one game: asked after every command what it would do next."""

    def __init__(self, game_file: Path | str, opening: str, draws: random.Random | None) -> None:
        """`opening` is the game's first text; random numbers come from `draws`, or with None from Python's generator.

        Raises MissingFileError if no `traj_data.json` is beside the game, EnvironmentFault if that file is of no use.
        """
        self._agent, self._draws = HandCodedTWAgent(max_steps=MAX_STEPS), draws
        try:
            self._agent.reset(str(game_file))
        except FileNotFoundError as error:
            raise MissingFileError(f"ALFWorld's handcoded expert needs {error.filename} beside the game file") from None
        except (KeyError, ValueError, TypeError) as error:
            raise EnvironmentFault(
                f"ALFWorld's handcoded expert cannot play {game_file}: {type(error).__name__}: {error}"
            ) from error
        self._agent.observe(opening)

    def after(self, command: str, feedback: str, game: NativeGame) -> str | None:
        """Its next command in the game's own dialect, `look` if it has no admissible one; None if it fails."""
        own = game.own_dialect
        # alfworld's expert speaks the dialect of the game's file.
        admissible = sorted(to_dialect(each, own) for each in game.admissible_commands())
        facts = [_Fact(name, tuple(names)) for name, *names in game.named_facts() if name in _READ]
        state = {"feedback": feedback, "facts": facts, "admissible_commands": admissible}
        try:
            with drawing_from(self._draws):
                action = self._agent.act(state, 0, game.won, to_dialect(command, own))
        except Exception:  # whatever it is, it is alfworld's: KeyError, IndexError, its own Timeout and Failed
            return None
        return action if action in admissible else UNDECIDED


def own_draws(game_file: Path | str) -> random.Random:
    """Random numbers of a game's expert: the same wherever the data lie."""
    return random.Random(str(game_file).rsplit("json_2.1.1", 1)[-1])


@contextmanager
def drawing_from(draws: random.Random | None) -> Iterator[None]:
    """alfworld's expert draws from Python's global generator. Meanwhile that is `draws`, so that a run can be repeated;
    with None it stays as it is. Experts in other threads wait."""
    if draws is None:
        yield
        return
    with _GLOBAL_DRAWS:
        outside = random.getstate()
        random.setstate(draws.getstate())
        try:
            yield
        finally:
            draws.setstate(random.getstate())
            random.setstate(outside)
