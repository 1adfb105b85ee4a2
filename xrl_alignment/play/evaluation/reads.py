"""What a player reads, and how the rest is withheld from it: a card says what a player was given, not what it may be.

A policy or an expert says what it reads in the attribute `reads`, a tuple of names of `READS`. In an evaluation it is
given that and nothing else. A class of somebody's own without the attribute is given the text alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from alfworld_native.experts.base import Expert, Label, checked
from lavis.common.errors import ConfigError

# "state": what is true in the game, also where the player has not been. An expert beside the environment can read it.
READS = ("text", "image", "admissible_commands", "task_type", "state")
UNDECLARED = ("text",)


def reads_of(player: Any, *, policy: bool = False) -> tuple[str, ...]:
    """What `player`, an object or its class, says that it reads; `UNDECLARED` if it says nothing.

    ConfigError for another name, or for something that a policy is never given.
    """
    declared = getattr(player, "reads", UNDECLARED)
    known = READS[:3] if policy else READS
    name = player.__name__ if isinstance(player, type) else type(player).__name__
    if isinstance(declared, str) or not isinstance(declared, Sequence) or not set(declared) <= set(known):
        raise ConfigError(f"{name}.reads is {declared!r}: it must be a tuple of {', '.join(known)}")
    return tuple(each for each in READS if each in declared)


class RestrictedExpert:
    """`expert`, which is told what its `reads` names; it takes the expert's place in an episode."""

    def __init__(self, expert: Expert) -> None:
        self._expert = expert
        self._reads = reads_of(expert)
        self.name = getattr(expert, "name", type(expert).__name__)  # a class of somebody's own may have none

    def __getattr__(self, name: str) -> Any:
        """A `pool`, if the expert has one."""
        if name == "_expert":  # while it is unpickled, before it has one: the look-up would call itself for ever
            raise AttributeError(name)
        return getattr(self._expert, name)

    def begin(self, intro: str, *, task_type: str = "", memories: Sequence[str] = ()) -> None:
        """See `Expert`."""
        # A game's id names task and object, and is the same in every run: it is more than a text tells.
        text, kind = "text" in self._reads, "task_type" in self._reads
        self._expert.begin(intro if text else "", task_type=task_type if kind else "", memories=memories)

    def observe(self, action: str, feedback: str) -> None:
        """See `Expert`."""
        self._expert.observe(action, feedback if "text" in self._reads else "")

    def act(self, information: Mapping[str, Any] | None = None) -> Label:
        """See `Expert`."""
        told = dict(information or {})
        if "admissible_commands" not in self._reads:
            told["admissible_commands"] = []
        return checked(self._expert.act(told), self._expert)  # an error names its class, not this one
