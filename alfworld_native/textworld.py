"""ALFWorld's games in their original engine, TextWorld, through alfworld's own wrappers.

It is slow (0.3 to 1.2 s to load a game, 30 to 45 ms per step, seconds with the planner) and the reference: `native`
must equal it, and so must the handcoded expert beside `native` (`alfworld_native/advice`). TextWorld evaluates
expressions of a game's grammar as Python code, so it gets only games whose texts are known (`engine.gamefile`).
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy as np

from alfworld_native.advice.handcoded import drawing_from, own_draws
from alfworld_native.base import MAX_STEPS, Game, TimeStep, check_count
from alfworld_native.choices import CLIENT_EXPERTS
from alfworld_native.drawing.state import RoomState
from alfworld_native.engine.gamefile import read_known_game
from alfworld_native.errors import EnvironmentFault
from alfworld_native.language.commands import canonical, to_dialect
from lavis.common.errors import MissingFileError, missing_extra, unknown

try:
    import textworld
    from alfworld.agents.environment.alfred_tw_env import AlfredDemangler, AlfredExpert, AlfredInfos
    from textworld.envs.pddl import textgen
except ModuleNotFoundError as error:
    raise missing_extra("textworld", error) from None


def _derive(symbol: textgen.EvalSymbol, context: dict | None = None) -> list[textgen.TerminalSymbol]:
    """The text of `{r.name}` in a game's grammar: an expression about the variables of its rule."""
    variables = (context or symbol.context)["variables"]
    # TextWorld itself does no less in older Pythons. This module gives it known texts alone (`read_known_game`).
    value = eval(symbol.expression, vars(textgen), dict(variables))  # noqa: S307  # nosec B307
    return [textgen.TerminalSymbol(value)]


if sys.version_info >= (3, 13):
    # TextWorld 1.7.0 writes the variables into `locals()`, which has no effect since Python 3.13 (PEP 667): every game
    # ended with NameError.
    textgen.EvalSymbol.derive = _derive

# TextWorld's translator sets sys.argv, swaps sys.stdout and keeps its options in module globals; Python runs one
# thread at a time anyway, so several environments take turns.
_TURN = threading.Lock()
# An engine loads a private copy of the planner's library, and unloading one crashes the process at exit: engines of
# closed environments wait here for the next.
_idle_engines: list[KnownGamesEnv] = []


@contextmanager
def _turn() -> Iterator[None]:
    arguments = sys.argv
    with _TURN:
        try:
            yield
        finally:
            sys.argv = arguments


class _NoHandcodedExpert:
    """Stands in for alfworld's handcoded expert beside the planner, which needs no `traj_data.json`."""

    def reset(self, gamefile: str) -> None:
        """Nothing to prepare."""


class _Expert(AlfredExpert):
    """alfworld's expert, but one that fails gives no plan instead of ending the episode.

    The handcoded one raises KeyError, IndexError, its own Timeout and Failed in some states. It also draws from
    Python's global generator: here it gets one of its own, seeded by the game, so that a run can be repeated.
    """

    def load(self, gamefile: str) -> None:
        super().load(gamefile)
        self._draws = own_draws(gamefile)
        if self.expert_type == "planner":
            # alfworld builds and resets its handcoded expert whichever was asked for.
            self._handcoded_expert = _NoHandcodedExpert()

    def _gather_infos(self) -> None:
        try:
            with drawing_from(self._draws):
                super()._gather_infos()
        except Exception:  # whatever it is, it is alfworld's; the game itself has already moved on
            self.state["extra.expert_plan"] = []


class KnownGamesEnv(textworld.envs.PddlEnv):
    """TextWorld's engine, which loads only game files with known texts; see `read_known_game` for the errors."""

    def load(self, filename: str) -> None:
        """Check and load a game file: the content that was checked is the content that is loaded."""
        super().load(read_known_game(filename))
        self._game_file = filename


class TextWorldEnvironment:
    """ALFWorld's text games in the original engine, in the canonical dialect; an `Environment`.

    `done` when the goal is reached or after `max_steps` actions; a game of a mixture of levels ends at its own level's
    horizon, if that comes first. With `expert`, `expert_action` gives what alfworld's
    "handcoded" (sees what the agent has seen) or "planner" (knows the hidden state) expert would do now.
    """

    name = "textworld"

    def __init__(self, max_steps: int = MAX_STEPS, expert: str | None = None, show_ids: bool = True) -> None:
        check_count("max_steps", max_steps)
        if expert is not None and expert not in CLIENT_EXPERTS:
            raise EnvironmentFault(unknown("ALFWorld expert", expert, CLIENT_EXPERTS))
        self.max_steps = max_steps
        self.expert = expert
        self.show_ids = show_ids
        self._engine: textworld.core.Wrapper | None = None
        self._state: textworld.core.GameState | None = None
        self._dialect = "move"
        self._limit = max_steps  # of the game that is loaded
        self._steps = 0
        self._done = False

    def reset(self, game: Game) -> TimeStep:
        """Load `game` and return its opening text.

        Raises MissingFileError, or EnvironmentFault if TextWorld (or the expert: it needs `traj_data.json` beside
        the game) cannot read it, or its texts are not ALFWorld's.
        """
        self._state = None  # of the game before
        if not game.path.is_file():
            raise MissingFileError(f"game file {game.path} does not exist")
        try:
            with _turn():
                # Only now, and kept for the next game: an engine loads a private copy of the planner's library.
                self._engine = self._engine or self._start()
                self._engine.load(str(game.path))
                self._state = self._engine.reset()
        except (KeyError, ValueError, TypeError, AssertionError, FileNotFoundError) as error:
            raise EnvironmentFault(f"TextWorld cannot play {game.path}: {type(error).__name__}: {error}") from error
        # What "put" means is a property of the game file (its grammar), not of the installed version.
        self._dialect = "move" if "move {o} to {r}" in self._state["command_templates"] else "put"
        self._limit = min(self.max_steps, game.horizon or self.max_steps)
        self._steps, self._done = 0, False
        return self._time_step()

    def step(self, action: str) -> TimeStep:
        """Carry out `action` (canonical or the game's dialect).

        Raises EnvironmentFault before `reset`, after the end of the episode, or for an action that is no string.
        """
        engine = self._engine
        if engine is None or self._state is None:
            raise EnvironmentFault("no game is loaded; call reset(game) first")
        if self._done:
            raise EnvironmentFault("the episode is over; call reset(game) before the next step")
        if not isinstance(action, str):
            raise EnvironmentFault(f"an action is a string such as 'go to desk 1', not {type(action).__name__}")
        # Score and `done` are TextWorld's own, which knows no step limit of ours; `_time_step` says both.
        self._steps += 1
        with _turn():
            self._state, _, _ = engine.step(to_dialect(action.strip(), self._dialect))
        return self._time_step()

    def expert_action(self) -> str | None:
        """What alfworld's expert would do now (canonical dialect); None if the expert does not know.

        Raises EnvironmentFault if the environment was made without an expert.
        """
        if self.expert is None:
            raise EnvironmentFault("made without an expert: TextWorldEnvironment(expert='handcoded' or 'planner')")
        commands = self._playing()["extra.expert_plan"]
        return canonical(commands[0]) if commands else None

    def room_state(self) -> RoomState:
        """What holds in the room now, by PDDL id (TextWorld writes ids in lower case)."""
        state = self._playing()
        return room_state(
            ((fact.name, *(argument.name for argument in fact.arguments)) for fact in state["_facts"]),
            {id_: info.name for id_, info in state["_entity_infos"].items()},
        )

    def render(self) -> np.ndarray:
        """The agent's view now, rendered from the game's state: uint8, (height, width, 3), RGB."""
        from alfworld_native.drawing import frames

        return frames.render(self.room_state(), show_ids=self.show_ids)

    def view(self, size: int) -> np.ndarray:
        """The agent's view, `size` pixels wide and high, for people."""
        from alfworld_native.drawing import frames

        return frames.render(self.room_state(), size=size, show_ids=self.show_ids)

    def close(self) -> None:
        """Forget the game and leave the engine to the next environment."""
        if self._engine is not None:
            with _turn():
                self._engine.close()
                _idle_engines.append(self._engine.unwrapped)
        self._engine = self._state = None

    def _start(self) -> textworld.core.Wrapper:
        """TextWorld's PDDL engine in alfworld's wrappers, no game loaded."""
        bare = _idle_engines.pop() if _idle_engines else KnownGamesEnv()
        bare.request_infos = textworld.EnvInfos(won=True, admissible_commands=True, extras=["gamefile"])
        engine = AlfredInfos(AlfredDemangler(bare))
        return engine if self.expert is None else _Expert(engine, expert_type=self.expert)

    def _playing(self) -> textworld.core.GameState:
        if self._state is None:
            raise EnvironmentFault("no game is loaded; call reset(game) first")
        return self._state

    def _time_step(self) -> TimeStep:
        state = self._playing()
        won = bool(state["won"])
        self._done = won or self._steps >= self._limit
        commands = sorted(map(canonical, state["admissible_commands"]))
        return TimeStep(state["feedback"], commands, won, self._done)


def room_state(facts: Iterable[tuple[str, ...]], names: dict[str, str]) -> RoomState:
    """A `RoomState` from `facts`, tuples of a predicate and ids in lower case; `names` id -> name in the text."""
    table: dict[str, list[tuple[str, ...]]] = {}
    for predicate, *ids in facts:
        table.setdefault(predicate, []).append(tuple(ids))

    def alone(predicate: str) -> frozenset[str]:
        return frozenset(ids[0] for ids in table.get(predicate, ()))

    # Sorted, here and below: the order of TextWorld's facts has no meaning, and what is drawn or played must not depend
    # on it.
    receptacles = sorted(ids[0] for ids in table.get("receptacletype", ()))
    contents: dict[str, list[str]] = {id_: [] for id_ in receptacles}
    for object_, receptacle in sorted(table.get("inreceptacle", ())):
        contents[receptacle].append(object_)
    things = {*receptacles, *(ids[0] for ids in table.get("objecttype", ()))}
    return RoomState(
        names={id_: names[id_] for id_ in sorted(things) if id_ in names},
        location=next((ids[1] for ids in table.get("atlocation", ())), ""),
        receptacle_locations={ids[0]: ids[1] for ids in sorted(table.get("receptacleatlocation", ()))},
        contents={receptacle: tuple(objects) for receptacle, objects in contents.items()},
        openable=alone("openable"),
        opened=alone("opened"),
        held=next((ids[1] for ids in table.get("holds", ())), None),
        clean=alone("isclean"),
        hot=alone("ishot"),
        cool=alone("iscool"),
        sliced=alone("issliced"),
        toggled=alone("istoggled"),
    )
