"""What every expert gives: a `Label` for each state, from what the agent has seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import wait
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Label:
    """The expert's answer for one state.

    `action` is in the canonical dialect, `None` where the expert gave no usable answer (filtered, over budget): then
    the policy's own action becomes the label. `thought` is one line without the `think:` prefix, or empty.
    """

    action: str | None
    thought: str = ""


class Expert(Protocol):
    """One expert follows one episode: `begin` with the opening text, then `act` / `observe` in turn.

    The executed action may differ from the one the expert advised (the policy drives): `observe` says which it was. An
    expert whose `act` waits for a network has a `pool` (concurrent.futures.Executor) in which it wants to be asked.
    """

    name: str

    def begin(self, intro: str, *, task_type: str = "", memories: Sequence[str] = ()) -> None:
        """Start an episode; `intro` is the environment's text after reset (room and task sentence).

        `task_type` is ALFWorld's (a game id, which begins with it, will do), `memories` are this game's, oldest first.
        """
        ...

    def observe(self, action: str, feedback: str) -> None:
        """Tell the expert which action was executed and what the environment answered."""
        ...

    def act(self, information: Mapping[str, Any] | None = None) -> Label:
        """The expert's advice for the current state; asking twice gives the same answer.

        `information` is what came with the observation over the wire: experts that run beside the environment speak
        through it (`expert_action`), all others do without.
        """
        ...


def act_all(experts: Sequence[Expert], informations: Sequence[Mapping[str, Any] | None]) -> list[Label]:
    """Every expert's advice, asking those that have a `pool` all at once.

    What one of them raises is raised after all have answered: an answer that was paid for is not thrown away.
    """
    pools = [getattr(expert, "pool", None) for expert in experts]
    asked = [
        pool.submit(expert.act, information) if pool else None
        for expert, information, pool in zip(experts, informations, pools, strict=True)
    ]
    wait([future for future in asked if future])
    return [
        future.result() if future else expert.act(information)
        for expert, information, future in zip(experts, informations, asked, strict=True)
    ]
