"""The interface of experts: each gives a `Label` for each state, from what the agent has observed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, wait
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from alfworld_native.errors import EnvironmentFault


@dataclass(frozen=True)
class Label:
    """The expert's answer for one state.

    `action` is in the canonical dialect, or None if the expert gave no usable answer (filtered, not a command): then
    the policy's own action becomes the label. `thought` is one line without the `think:` prefix, or empty.
    """

    action: str | None
    thought: str = ""


class Expert(Protocol):
    """One expert follows one episode: `begin` with the opening text, then `act` and `observe` in turn.

    The policy drives, so the executed action may differ from the expert's: `observe` says which one it was (DAgger,
    Ross et al. 2011). An expert whose `act` waits for a network also has a `pool` (concurrent.futures.Executor), in
    which its `act` runs.

    In its attribute `reads` it says what it uses: a tuple of "text" (opening and answers), "admissible_commands",
    "task_type" and "state" (of the game, beside which it runs). An evaluation withholds the rest; without the attribute
    it tells the text alone.
    """

    name: str

    def begin(self, intro: str, *, task_type: str = "", memories: Sequence[str] = ()) -> None:
        """Start an episode; `intro` is the environment's text after reset (room and task sentence).

        `task_type` is ALFWorld's, or a game id, which begins with it. `memories` are this game's, oldest first.
        """
        ...

    def observe(self, action: str, feedback: str) -> None:
        """Tell the expert which action was executed and what the environment answered."""
        ...

    def act(self, information: Mapping[str, Any] | None = None) -> Label:
        """The expert's advice for the current state; asking twice gives the same answer.

        `information` is the same in training, client, evaluation and collection: `admissible_commands` (a list), `won`,
        `engine`. In training it came with the client's observation; an expert that runs beside the environment, in the
        client, sends its label in it (`expert_action`).
        """
        ...


class ExpertQuestion(NamedTuple):
    """An expert that waits for a network, and what it is told: answered with its `Label`, many at once."""

    expert: Expert
    information: dict[str, Any]


def checked(label: Any, expert: Expert) -> Label:
    """What an expert, perhaps a class of one's own, has answered; EnvironmentFault if it is no `Label` of texts."""
    if not isinstance(label, Label):
        raise EnvironmentFault(f"expert {type(expert).__name__}: act must return a Label, not {str(label)[:80]!r}")
    if not isinstance(label.action, str | None) or not isinstance(label.thought, str):
        raise EnvironmentFault(
            f"expert {type(expert).__name__}: a Label's action is a text or None, its thought a text, not {label!s:.80}"
        )
    return label


def act_all(experts: Sequence[Expert], informations: Sequence[Mapping[str, Any] | None]) -> list[Label]:
    """Every expert's advice; experts that have a `pool` run at the same time.

    An exception of one expert is raised after all have answered, so that no answer that was paid for is lost.
    """
    pools: list[Executor | None] = [getattr(expert, "pool", None) for expert in experts]
    asked = [
        pool.submit(expert.act, information) if pool else None
        for expert, information, pool in zip(experts, informations, pools, strict=True)
    ]
    wait([future for future in asked if future])
    labels = [
        future.result() if future else expert.act(information)
        for expert, information, future in zip(experts, informations, asked, strict=True)
    ]
    return [checked(label, expert) for expert, label in zip(experts, labels, strict=True)]
