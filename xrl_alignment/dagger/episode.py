"""An episode whose steps an expert labels: what one session plays. And whose fault it is if it cannot go on.

A client may send anything that the wire format allows, and an expert, a prompt, a policy or the model may fail at it.
If an episode's data is at fault, that episode ends, and not the run. The parts themselves are tested with a harmless
input: if they fail at that too, the fault is theirs.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from alfworld_native.experts.base import Expert, Label
from alfworld_native.language.commands import normalise
from lavis.common.errors import EmacError, first_sentence
from xrl_alignment.agents.language.plain import plain
from xrl_alignment.agents.policies.base import Policy, PolicyInput
from xrl_alignment.common.errors import EndpointFault, InferenceEngineFault, PromptTooLong
from xrl_alignment.play.rollouts.episode import Episode
from xrl_alignment.runs.transitions import Transition, UnfinishedTransitions
from xrl_alignment.wire.messages import Observation

# Bytes for each character of an episode's texts: what the text itself takes, its prompts, and what an expert remembers
# of it (the explorer up to 80 for each character of an opening that lists nothing but receptacles).
HELD_BY_CHARACTER = 64
HARMLESS_TASK = "You are in the middle of a room.\nYour task is to: look."
HARMLESS_IMAGE = np.zeros((224, 224, 3), np.uint8)


class EpisodeFault(EmacError, ValueError):
    """What a client sent for an episode cannot be used; the text says why. Only that episode ends."""


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What is to be done in one state of an episode, and what is to be learned from it."""

    prompt: str  # what the model sees beside the image
    label: str  # the expert's action, or the policy's own if the expert has no label
    own: str | None  # what the policy answered; None: it was not asked
    executed: str  # what is done: the label if the expert drives, else the policy's own action
    expert_drives: bool
    labelled: bool  # whether the expert had a label


@dataclass(kw_only=True)
class LabelledEpisode(Episode):
    """One game in one session's hands, with the expert that labels it and the transitions so far."""

    env: int
    round: int
    beta: float  # probability that the expert's action is executed
    expert: Expert
    observation: Observation  # the newest
    transitions: UnfinishedTransitions
    assisted: bool = False  # the expert drove at least one step
    unlabelled: int = 0  # states for which the expert had no label
    labelled: bool = True  # whether it had one for the newest transition
    staleness: list[int] = field(default_factory=list)  # of the policy at each transition, if it may be stale
    started: float = field(default_factory=time.monotonic)
    held: int = 0  # bytes of memory, about

    def __post_init__(self) -> None:
        """Take the verdict of the first observation: a game may be over before it begins."""
        super().__post_init__()
        self.won, self.done = self.observation.verdict, self.observation.done
        self._shape = self.observation.image.shape
        self.held = HELD_BY_CHARACTER * len(self.text)

    def earlier_images(self, count: int) -> tuple[np.ndarray, ...]:
        """The images of at most `count` states right before the newest one, oldest first, from the file."""
        stored = len(self.transitions)
        return tuple(self.transitions[index].image for index in range(max(0, stored - count), stored))

    def commit(self, decision: Decision, staleness: int | None = None) -> None:
        """Note a decision about the newest observation; `staleness` is the policy's, None if it is never stale."""
        self.labelled = decision.labelled
        image, own = self.observation.image, decision.own or ""
        # What it is answered with is not known yet; `steps` will have it at the transition's number.
        self.transitions.append(Transition(image, decision.prompt, decision.label, own, decision.executed, ""))
        self.assisted |= decision.expert_drives
        self.unlabelled += not decision.labelled
        self.held += HELD_BY_CHARACTER * len(decision.executed)
        if staleness is not None:
            self.staleness.append(staleness)

    def act(self, action: str) -> str:
        """Note that `action` goes to the environment; what was observed before it is not kept any longer."""
        self.observation = self.observation.without_content()
        return super().act(action)

    def receive(self, observation: Observation) -> None:
        """Take in what the environment answered to the action that was sent.

        Raises EpisodeFault for an image of another size than the first; a final observation's image is not used.
        """
        if not observation.done and observation.image.shape != self._shape:
            first, now = (" × ".join(map(str, shape)) for shape in (self._shape, observation.image.shape))
            raise EpisodeFault(f"the image's size changed within the episode, from {first} to {now}")
        self.observation = observation
        feedback = plain(observation.text)
        self.held += HELD_BY_CHARACTER * len(feedback)
        self.expert.observe(self.awaiting, feedback)
        self.hear(feedback, won=observation.verdict, done=observation.done)

    @property
    def information(self) -> dict[str, Any]:
        """What the expert is told now: what came with the observation, as `environments.base.information_of` has it.

        ALFWorld's own infos, which wire v1's clients send, hold a batch of one game.
        """
        seen = self.observation
        return {
            **seen.information,
            "admissible_commands": seen.admissible_commands,
            "won": seen.verdict,
            "engine": seen.information.get("engine", ""),
        }

    def label(self, advice: Label, *, thoughts: bool) -> str | None:
        """The expert's `advice` for now as text; None if it has no answer (filtered).

        With `thoughts`, a thought that this episode has not had comes before the action it explains.
        """
        action = None if advice.action is None else plain(normalise(advice.action))
        return self.answer(action, plain(advice.thought) if thoughts else "")

    def expert_drives(self, seed: int) -> bool:
        """DAgger's coin (Ross et al. 2011): true with probability `beta`.

        A function of (seed, round, game, step): the order in which games are played does not change it.
        """
        return random.Random(f"{seed}/{self.round}/{self.game}/{len(self.steps)}").random() < self.beta


def may_be_the_datas(error: Exception) -> bool:
    """Whether an episode's data may have caused `error`.

    False for what can only be the run's: files, memory, and an endpoint that cannot be asked any more.
    """
    if isinstance(error, EndpointFault):
        return isinstance(error, PromptTooLong | InferenceEngineFault)
    return not isinstance(error, OSError | MemoryError)


def described(error: Exception) -> str:
    """An error in words, with its type."""
    return f"{type(error).__name__}: {first_sentence(error)}"[:500]


def works(policy: Policy, write_prompt: Callable[..., str]) -> bool:
    """Whether prompt writer and policy can answer a harmless observation."""
    try:
        policy.act([PolicyInput(write_prompt(HARMLESS_TASK, [], []), HARMLESS_IMAGE, ["look"], "harmless")])
    except Exception:  # whatever it is: the first error tells it
        return False
    return True
