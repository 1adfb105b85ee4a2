"""Games side by side in one process, with the methods and answers of TextWorld's batch environment."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from io import StringIO
from numbers import Integral
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from alfworld_native.base import check_commands
from alfworld_native.engine.game import NativeGame
from alfworld_native.errors import EnvironmentFault
from alfworld_native.language.commands import text_in_dialect, to_dialect
from lavis.common.errors import missing_extra, unknown

if TYPE_CHECKING:
    from textworld.logic import Proposition

    from alfworld_native.advice.handcoded import HandcodedExpert

_FIRST_SEED = 1234  # TextWorld's, until `seed` is called
_RENDER_MODES = ("human", "ansi", "text")
_KINDS = {  # PDDL types of the arguments, by predicates that together name each thing; an object may have no other
    "objecttype": ("object", "otype"),
    "receptacletype": ("receptacle", "rtype"),
    "cancontain": ("rtype", "otype"),
    "receptacleatlocation": ("receptacle", "location"),
    "objectatlocation": ("object", "location"),
    "atlocation": ("agent", "location"),
    "not_atlocation": ("agent", "location"),
}
_YELLOW, _PLAIN = "\x1b[33m", "\x1b[0m"

Infos = dict[str, list[Any]]
Experts = Callable[[str, str], "HandcodedExpert"]  # makes the expert of a game from its file and its opening text


class Answer(NamedTuple):
    """What one game answers to a command."""

    text: str
    score: int
    done: bool
    infos: dict[str, Any]


@dataclass
class RequestInfos:
    """What the infos hold, with TextWorld's names (`textworld.EnvInfos`).

    `facts` may be set at any time: then the infos hold all that is true, as TextWorld's propositions (extra
    `textworld`). The others tell what there is.
    """

    won: bool = True
    admissible_commands: bool = True
    facts: bool = False
    extras: list[str] = field(default_factory=lambda: ["gamefile"])


class AlfworldBatch:
    """`batch_size` games at a time from `game_files`, in the order that TextWorld plays them.

    Each `reset` begins the next games; after the last game comes the first, in another order, so a batch may be larger
    than the list. A game that is done stays so until then: its last answer is repeated. `request_infos` says what the
    infos hold. A batch can be pickled and copied (`copy.deepcopy`) at any moment; the copy plays on by itself.
    """

    def __init__(
        self,
        game_files: Sequence[str],
        batch_size: int,
        max_steps: int,
        *,
        expert: bool = False,
        dialect: str | None = None,
    ) -> None:
        """`max_steps` 0 sets no limit; `expert` adds `extra.expert_plan` to the infos; `dialect` as `AlfredTWEnv`."""
        self.gamefiles, self.batch_size = list(game_files), batch_size
        # TextWorld plays a batch of several games in as many processes, each with a random generator of its own.
        experts = [_experts(apart=batch_size > 1) if expert else None for _ in range(batch_size)]
        self.request_infos = RequestInfos(extras=["gamefile", *(["expert_plan"] if expert else [])])
        self._slots = [_Slot(max_steps, dialect, each, self.request_infos) for each in experts]
        self.obs: tuple[str, ...] = ()  # of the last `reset` or `step`
        self.last_commands: Sequence[str | None] = [None] * batch_size
        # Held during each call: two threads in one game would leave it in a state that no play reaches.
        self._lock = threading.Lock()
        self.seed(_FIRST_SEED)

    def __getstate__(self) -> dict[str, Any]:
        """All but the lock, which belongs to this process's threads."""
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()

    def seed(self, seed: int | None = None) -> list[int | None]:
        """Begin the order of the games anew, shuffled by `seed`; EnvironmentFault for one that numpy cannot take."""
        if seed is not None and not (isinstance(seed, Integral) and 0 <= seed < 1 << 32):
            raise EnvironmentFault(f"seed is {seed!r:.60}; give a whole number from 0 to 2**32 - 1")
        self._order = _Shuffled(self.gamefiles, seed)
        return [seed]

    def skip(self, nb_games: int = 1) -> None:
        """Leave out the next games."""
        for _ in range(nb_games):
            next(self._order)

    def reset(self) -> tuple[tuple[str, ...], Infos]:
        """Begin the next games: their opening texts, and infos as lists with one entry for each game.

        Raises MissingFileError, or EnvironmentFault for a game file that is damaged or of an unknown version.
        """
        with self._alone():
            files = [next(self._order) for _ in self._slots]
            answers = [slot.reset(file) for slot, file in zip(self._slots, files, strict=True)]
            self.obs, self.last_commands = tuple(answer.text for answer in answers), [None] * self.batch_size
        return self.obs, _by_key(answers)

    def step(self, commands: Sequence[str]) -> tuple[tuple[str, ...], tuple[int, ...], tuple[bool, ...], Infos]:
        """One command for each game: texts, scores (1 if the goal is reached), whether they are done, infos."""
        check_commands(commands, self.batch_size)
        with self._alone():
            answers = [slot.step(command) for slot, command in zip(self._slots, commands, strict=True)]
            texts, scores, dones, _ = zip(*answers, strict=True)
            self.obs, self.last_commands = texts, commands
        return texts, scores, dones, _by_key(answers)

    def render(self, mode: str = "human") -> StringIO | str | None:
        """The last commands and texts, game after game: printed ("human"), as a string ("text"), or a file ("ansi").

        Raises EnvironmentFault before the first `reset`, and for another mode.
        """
        if mode not in _RENDER_MODES:
            raise EnvironmentFault(f"render: {unknown('mode', mode, _RENDER_MODES)}")
        if not self.obs:
            raise EnvironmentFault("no game is loaded; call reset() first")
        colour, plain = ("", "") if mode == "text" else (_YELLOW, _PLAIN)
        shown = [
            ("" if command is None else f"{colour}> {command}{plain}\n") + text.rstrip() + "\n"
            for command, text in zip(self.last_commands, self.obs, strict=True)
        ]
        whole = "\n-----\n".join(shown) + "\n"
        if mode == "text":
            return whole
        if mode == "ansi":
            return StringIO(whole)
        sys.stdout.write(whole)
        return None

    def close(self) -> None:
        """Forget the games; `reset` begins others."""
        for slot in self._slots:
            slot.forget()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        # Not waiting for the lock: a second thread is a mistake of the program, which would be hidden by waiting.
        if not self._lock.acquire(blocking=False):
            raise EnvironmentFault(
                "two threads use one environment at once: give each thread an environment of its own"
            )
        try:
            yield
        finally:
            self._lock.release()


class _Slot:
    """One game of a batch."""

    def __init__(self, max_steps: int, dialect: str | None, experts: Experts | None, request: RequestInfos) -> None:
        self._max_steps, self._dialect, self._experts, self._request = max_steps, dialect, experts, request
        self.forget()

    def forget(self) -> None:
        self._game: NativeGame | None = None
        self._expert: HandcodedExpert | None = None
        self._last: Answer | None = None
        self._steps = 0

    def reset(self, path: str) -> Answer:
        self.forget()
        game = NativeGame.load(path, self._dialect)
        self._path, self._game = path, game
        text = game.reset()
        if self._experts is not None:
            self._expert = self._experts(path, text)
        return self._answer(game, text, "")

    def step(self, command: str) -> Answer:
        game = self._game
        if game is None:
            raise EnvironmentFault("no game is loaded; call reset() first")
        if self._last is None or not self._last.done:
            self._steps += 1
            # Without `dialect` the command goes to the engine as it is: alfworld understands one form only.
            known = to_dialect(command.strip(), self._dialect) if self._dialect else command
            self._last = self._answer(game, game.step(known), command)
        return self._last

    def _answer(self, game: NativeGame, text: str, command: str) -> Answer:
        won, commands = game.won, game.admissible_commands()
        file = None if self._steps else self._path  # alfworld names it at the beginning only
        infos: dict[str, Any] = {"won": won, "admissible_commands": commands, "extra.gamefile": file}
        if self._request.facts:
            infos["facts"] = propositions(game)
        if self._expert is not None:
            action = self._expert.after(command, text, game) if self._steps else None
            # alfworld's plan is `look` if its expert has none.
            infos["extra.expert_plan"] = [to_dialect(action or "look", self._dialect or game.own_dialect)]
        if self._dialect is not None:
            text = text_in_dialect(text, self._dialect)
        # A limit of 0 or less is none.
        return Answer(text, int(won), won or 0 < self._max_steps <= self._steps, infos)


def _experts(apart: bool) -> Experts:
    """alfworld's handcoded experts, one game after the other: alfworld 0.4.2 uses it whatever `env.expert_type` says.

    As in alfworld they draw from Python's global generator; with `apart` from a copy of it. Raises MissingExtraError
    if alfworld is not installed.
    """
    from alfworld_native.advice.handcoded import HandcodedExpert

    draws = None
    if apart:
        draws = random.Random()
        draws.setstate(random.getstate())
    return partial(HandcodedExpert, draws=draws)


class _Shuffled:
    """All files in a random order, then all in another, without end: TextWorld's order for the same seed.

    A generator would say it in four lines, but cannot be copied or pickled.
    """

    def __init__(self, files: Sequence[str], seed: int | None) -> None:
        self._files, self._rng, self._next = list(files), np.random.RandomState(seed), 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        # NumPy's old generator, and the list shuffled in place, again and again: only so it is TextWorld's order.
        if self._next % len(self._files) == 0:
            self._rng.shuffle(self._files)
        file = self._files[self._next % len(self._files)]
        self._next += 1
        return file


def propositions(game: NativeGame) -> list[Proposition]:
    """All that is true now as TextWorld has it: propositions over the names of the text, sorted.

    Raises MissingExtraError if TextWorld is not installed.
    """
    try:
        from textworld.logic import Proposition, Variable
    except ModuleNotFoundError as error:
        raise missing_extra("textworld", error) from None
    facts, names = game.facts(), game.world.names
    kinds: dict[str, str] = {}
    for predicate, *ids in facts:
        kinds |= dict(zip(ids, _KINDS.get(predicate, ()), strict=False))
    # alfworld's Demangler writes a blank between word and number, also if there is no number: "desktype ".
    made = [
        Proposition(predicate, [Variable(names.get(id_, f"{id_} "), kinds.get(id_, "object")) for id_ in ids])
        for predicate, *ids in facts
    ]
    return sorted(made, key=lambda fact: (fact.name, fact.names))


def _by_key(answers: Sequence[Answer]) -> Infos:
    return {key: [answer.infos[key] for answer in answers] for key in answers[0].infos}
