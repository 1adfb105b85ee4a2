"""Players that know little: what they solve shows what a benchmark gives away for nothing.

Each says in `reads` what it uses, and an evaluation withholds the rest (`play.evaluation.reads`). They are experts, so
`expert.name=xrl_alignment.lab.audit.players:RandomWords` plays one.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from alfworld_native.experts.base import Label
from alfworld_native.experts.explorer import APPLIANCES, Explorer
from alfworld_native.language.sentences import Task, parse_opening, parse_task

# Each object is number 1 here: the opening text does not say which numbers there are.
_VERBS = ("go to {place}", "open {place}", "take {thing} 1 from {place}", "put {thing} 1 in/on {place}", "use {lamp} 1")


class RandomWords:
    """Writes well-formed commands with words of the opening text, at random: no list of commands, no plan."""

    name = "random words"
    reads = ("text",)

    def begin(self, intro: str, *, task_type: str = "", memories: Sequence[str] = ()) -> None:
        """Note which words there are."""
        self._places, sentence = parse_opening(intro)
        self._task = parse_task(sentence) or Task("", "")
        self._random = random.Random(intro)  # by the game: an audit that is run again finds the same figures
        self._command = self._draw()

    def observe(self, action: str, feedback: str) -> None:
        """Draw the next command; the answer is not read."""
        self._command = self._draw()

    def act(self, information: Mapping[str, Any] | None = None) -> Label:
        """The command that was drawn."""
        return Label(self._command)

    def _draw(self) -> str:
        place = self._random.choice(self._places or ["desk 1"])
        words = {"place": place, "thing": self._task.object_type, "lamp": self._task.target_type}
        return self._random.choice(_VERBS).format(**words)


class ListAlone:
    """Reads nothing but the list of admissible commands: neither the task nor any answer.

    It takes what can be taken, treats it, and puts it down, each command at most once, and else goes on.
    """

    name = "the list alone"
    reads = ("admissible_commands",)
    _ORDER = ("use ", "heat ", "cool ", "clean ", "put ", "take ", "open ", "go to ")

    def begin(self, intro: str, *, task_type: str = "", memories: Sequence[str] = ()) -> None:
        """Forget what was tried."""
        self._tried: list[str] = []

    def observe(self, action: str, feedback: str) -> None:
        """Note the command; the answer is not read."""
        self._tried.append(action)

    def act(self, information: Mapping[str, Any] | None = None) -> Label:
        """The first kind of command that has one which was never tried; of that kind the first one."""
        commands = (information or {}).get("admissible_commands") or ["look"]
        new = [command for command in commands if command not in self._tried]
        for verb in self._ORDER:
            if fitting := [command for command in new if command.startswith(verb)]:
                return Label(fitting[0])
        # All were tried: the one that was tried least often.
        return Label(min(commands, key=self._tried.count))


class ListAndTask:
    """Reads the task sentence and the list of admissible commands, and no answer of the environment.

    What lies at a place it reads off the list: only what is there can be taken.
    """

    name = "the task and the list"
    reads = ("text", "admissible_commands")

    def begin(self, intro: str, *, task_type: str = "", memories: Sequence[str] = ()) -> None:
        """Read the task; where the room's places are, the list says."""
        self._task = parse_task(parse_opening(intro)[1]) or Task("", "")
        self._held, self._treated, self._brought = "", False, set[str]()
        self._done: list[str] = []

    def observe(self, action: str, feedback: str) -> None:
        """Believe that the command was carried out, for it was admissible; the answer is not read."""
        verb, _, rest = action.partition(" ")
        self._done.append(action)
        if verb == "take":
            self._held, self._treated = rest.partition(" from ")[0], False
        elif verb == "put":
            self._brought.add(self._held)
            self._held = ""
        elif verb in APPLIANCES and verb == self._task.treatment:
            self._treated = True

    def act(self, information: Mapping[str, Any] | None = None) -> Label:
        """The next command towards the task, else the next place that was not searched."""
        commands = (information or {}).get("admissible_commands") or ["look"]
        task, here = self._task, set(commands)

        def first(*beginnings: str) -> str | None:
            return next((command for command in commands if command.startswith(beginnings)), None)

        if not self._held:
            wanted = [command for command in commands if command.startswith(f"take {task.object_type} ")]
            # What was brought already lies in the target, and could be taken again without end.
            wanted = [command for command in wanted if command[5:].partition(" from ")[0] not in self._brought]
            return Label(wanted[0] if wanted else self._search(commands))
        if task.treatment == "look":
            return Label(first(f"use {task.target_type} ") or self._search(commands))
        if task.treatment and not self._treated:
            appliance = APPLIANCES[task.treatment]
            treating = f"{task.treatment} {self._held} with {appliance}"
            return Label(first(treating) or first(f"go to {appliance} ") or self._search(commands))
        put = first(f"put {self._held} in/on {task.target_type} ")
        at_target = first(f"open {task.target_type} ")  # nothing can be put into what is closed
        return Label(put or at_target or first(f"go to {task.target_type} ") or self._search(sorted(here)))

    def _search(self, commands: Sequence[str]) -> str:
        """Open what is closed here, else go where it has not been; when it was everywhere, again to the first."""
        closed = [command for command in commands if command.startswith("open ") and command not in self._done]
        places = [command for command in commands if command.startswith("go to ")]
        # Sorted: of places that were visited equally often, it is always the same one.
        return closed[0] if closed else min(sorted(places), key=self._done.count, default="look")


class WithoutTable(Explorer):
    """The explorer that searches in the order of the opening text, without its table of likely places."""

    name = "explorer, no table"

    def __init__(self) -> None:
        super().__init__(order="listing")
