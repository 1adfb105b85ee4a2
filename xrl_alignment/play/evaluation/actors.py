"""Who plays in an evaluation: a policy, which answers for many episodes at once, or an expert alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from alfworld_native.base import Environment
from alfworld_native.experts.base import Expert, ExpertQuestion, Label, act_all
from lavis.common.errors import ConfigError
from xrl_alignment.agents.experts import make_expert
from xrl_alignment.agents.language.prompt import build_prompt
from xrl_alignment.agents.policies.base import Policy, PolicyInput, frames_of
from xrl_alignment.play.evaluation.reads import READS, RestrictedExpert, reads_of


class PolicyQuestion(NamedTuple):
    """What a policy may know of an episode: it travels from where the environment is to where the policy is."""

    opening: str
    memories: Sequence[str]
    steps: Sequence[tuple[str, str]]
    image: np.ndarray  # uint8 (H, W, 3)
    admissible_commands: Sequence[str]
    game: str = ""
    earlier: Sequence[np.ndarray] = ()  # frames of the states right before, oldest first
    may_think: bool = False  # a thought costs no step now


class Actor(Protocol):
    """Who plays: the expert that `make_expert` makes, beside the environment. Without one, `answer` plays."""

    make_expert: Callable[[Environment], Expert] | None
    blank_frames: bool
    frames: int  # how many images it is shown: the current one, and earlier ones
    reads: Sequence[str]  # what the environment shows (`reads.READS`); the rest stays where the game is

    def answer(self, questions: Sequence[Any]) -> Sequence[Any]:
        """Answer in order: an action for each `PolicyQuestion`, a `Label` for each `ExpertQuestion`."""
        ...


class PolicyActor:
    """A policy plays; it sees what `write_prompt` writes and the frame (black with `blank_frames`).

    What the policy does not declare to read (`reads_of`) is withheld: the prompt is empty, the frame black, the list of
    commands empty. An episode has a number instead of its game's id, because an id names the task and is the same in
    every run.
    """

    make_expert: Callable[[Environment], Expert] | None = None

    def __init__(
        self,
        *,
        policy: Policy,
        write_prompt: Callable[..., str] = build_prompt,
        blank_frames: bool = False,
    ) -> None:
        self.policy = policy
        self.write_prompt = write_prompt
        self.reads: Sequence[str] = reads_of(policy, policy=True)
        self.blank_frames = blank_frames or "image" not in self.reads
        self.frames = frames_of(policy)
        self._numbers: dict[str, int] = {}  # game id -> number of the episode

    def answer(self, questions: Sequence[PolicyQuestion]) -> list[str]:
        """Ask the policy once for all episodes."""
        # The prompt is written here, beside the model: its tokenizer says how many steps fit.
        batch = []
        for asked in questions:
            session = f"episode {self._numbers.setdefault(asked.game, len(self._numbers))}"
            reads_text = "text" in self.reads
            prompt = self.write_prompt(asked.opening, asked.memories, asked.steps) if reads_text else ""
            steps = asked.steps if reads_text else ()
            commands = asked.admissible_commands
            batch.append(PolicyInput(prompt, asked.image, commands, session, steps, asked.earlier, asked.may_think))
        said = self.policy.act(batch)
        # A class of somebody's own: a text in place of a list would be played letter by letter, and None ends a game.
        if not isinstance(said, list) or len(said) != len(batch) or not all(isinstance(one, str) for one in said):
            raise ConfigError(
                f"policy {type(self.policy).__name__}: act must return a list with a text for each of the "
                f"{len(batch)} inputs, not {str(said)[:80]!r}"
            )
        return said


class ExpertActor:
    """An expert plays alone; a fresh one for every game. No answer (filtered) becomes `look`."""

    blank_frames = False
    frames = 1

    def __init__(self, make_expert: Callable[[Environment], Expert], reads: Sequence[str] = READS) -> None:
        """`reads` is what the expert says that it reads; `new_expert` withholds the rest."""
        self.make_expert: Callable[[Environment], Expert] | None = make_expert
        self.reads = reads

    def answer(self, questions: Sequence[ExpertQuestion]) -> list[Label]:
        """Ask all experts at once: those that wait for a network wait at the same time."""
        return act_all([asked.expert for asked in questions], [asked.information for asked in questions])


def new_expert(name: str, options: dict[str, Any], environment: Environment) -> Expert:
    """The expert of one episode, told only what it says that it reads.

    It is made in the process where its environment is: workers do not import programs.
    """
    return RestrictedExpert(make_expert(name, environment=environment, **options))
