"""An episode whose steps an expert labels: what one session plays. And whose fault it is if it cannot go on.

A client may send anything that the wire format allows, and an expert, a prompt, a policy or the model may fail at it.
If an episode's data is at fault, that episode ends, and not the run. The parts themselves are tested with a harmless
input: if they fail at that too, the fault is theirs.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import struct
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lz4.block
import numpy as np

from alfworld_native.drawing.frames import BLANK_FRAME
from alfworld_native.experts.base import Expert, Label
from alfworld_native.language.commands import normalise
from lavis.common.errors import EmacError, FileError
from lavis.datasets.shards import IMAGE
from xrl_alignment.agents.language.plain import plain
from xrl_alignment.agents.policies.base import Policy, PolicyInput
from xrl_alignment.common.errors import EndpointFault, InferenceEngineFault, PromptTooLong
from xrl_alignment.play.rollouts.episode import Episode
from xrl_alignment.runs.transitions import FIELDS, Transition
from xrl_alignment.wire.messages import Observation

# Bytes for each character of an episode's texts: what the text itself takes, its prompts, and what an expert remembers
# of it (the explorer up to 80 for each character of an opening that lists nothing but receptacles).
HELD_BY_CHARACTER = 64
HARMLESS_TASK = "You are in the middle of a room.\nYour task is to: look."

# The file of an unfinished episode: of each transition a head (bytes of the texts, height and width of the image), its
# texts, and its packed image.
_TEXTS = tuple(name for name in FIELDS if name not in (IMAGE, "feedback"))
_NUMBERS = itertools.count()
_HEAD = struct.Struct("<III")


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


class UnfinishedTransitions(Sequence[Transition]):
    """The transitions of an episode in progress, in a temporary file of `folder`: frames take no memory while it lasts.

    The file is removed with this object, or by `remove`; that of a killed process by the next `RunDirectory`. Feedback
    comes later than the rest of a transition, and is not kept here: the episode has it in its `steps`.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / f".unfinished-{next(_NUMBERS)}.{os.getpid()}.tmp"
        self._path.touch(0o600, exist_ok=False)
        self._remove = weakref.finalize(self, self._path.unlink, missing_ok=True)
        self._ends: list[int] = []  # of each transition in the file

    def __len__(self) -> int:
        return len(self._ends)

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self._ends[-1] if self._ends else 0

    def append(self, transition: Transition) -> None:
        """Add a transition without its feedback. FileError if the disk is full."""
        # JSON with escapes: a text may hold half a surrogate pair, which UTF-8 cannot.
        texts = json.dumps([getattr(transition, name) for name in _TEXTS]).encode()
        height, width, _ = transition.image.shape
        try:
            with open(self._path, "r+b") as file:
                file.seek(self.size)  # a write that failed half-way is overwritten by the next one
                file.write(_HEAD.pack(len(texts), height, width) + texts)
                file.write(lz4.block.compress(np.ascontiguousarray(transition.image).data, store_size=False))
                end = file.tell()
        except OSError as error:  # some of the system's own name no file
            raise FileError(f"{self._path} could not be written: {error.strerror or error}") from error
        self._ends.append(end)  # only now: closing the file writes what its buffer still holds

    def remove(self) -> None:
        """Remove the file: the episode has ended, and its transitions can no longer be read here."""
        self._remove()

    def __getitem__(self, index: Any) -> Any:
        # Negative indices count from the end, as those of a list; IndexError beyond it.
        end = self._ends[index]
        start = self._ends[index - 1] if index % len(self) else 0
        with open(self._path, "rb") as file:  # opened each time: thousands of episodes may be in progress
            file.seek(start)
            data = memoryview(file.read(end - start))
        length, height, width = _HEAD.unpack_from(data)
        texts, packed = data[_HEAD.size : _HEAD.size + length], data[_HEAD.size + length :]
        pixels = lz4.block.decompress(packed, uncompressed_size=height * width * 3)
        image = np.frombuffer(pixels, np.uint8).reshape(height, width, 3)
        return Transition(image, **dict(zip(_TEXTS, json.loads(bytes(texts)), strict=True)), feedback="")


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
        """What the expert is told now: what came with the observation, as `alfworld_native.base.information_of` has it.

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


def works(policy: Policy, write_prompt: Callable[..., str]) -> bool:
    """Whether prompt writer and policy can answer a harmless observation."""
    try:
        policy.act([PolicyInput(write_prompt(HARMLESS_TASK, [], []), BLANK_FRAME, ["look"], "harmless")])
    except Exception:  # whatever it is: the first error tells it
        return False
    return True
