"""The interface of policies: a batch of observations in, a batch of action strings out."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from lavis.common.errors import ConfigError

if TYPE_CHECKING:  # imported where it is used: rollout workers import this module and never run a model
    import torch


class PolicyInput(NamedTuple):
    """What the policy observes of one episode: the prompt, the image (uint8, H × W × 3), the admissible commands.

    `session` names the episode: a policy over several servers sends requests of one episode to the same server.
    `steps` are its (action, feedback) pairs so far, `earlier` the images of the states before, the newest last: as many
    as the policy's attribute `frames` asks for, and fewer at an episode's beginning. `may_think`: a thought
    (`think: …`) costs no step now.
    """

    prompt: str
    image: np.ndarray
    admissible_commands: Sequence[str] = ()
    session: str = ""
    steps: Sequence[tuple[str, str]] = ()
    earlier: Sequence[np.ndarray] = ()
    may_think: bool = False


class Policy(Protocol):
    """Answers a batch of observations at once.

    In its attribute `reads` it says what it uses: a tuple of "text" (prompt and steps), "image" and
    "admissible_commands". An evaluation withholds the rest; without the attribute it shows the text alone. In its
    attribute `frames` it says how many images it reads: the current one, and earlier ones; without the attribute, one.
    """

    def act(self, batch: Sequence[PolicyInput]) -> list[str]:
        """One action string for each input, in order."""
        ...

    def close(self) -> None:
        """Close what the policy holds besides its model (connections, processes)."""
        ...


def changes(weights: Iterable[torch.Tensor]) -> list[int]:
    """How often each was changed in place, as torch counts it: by an optimiser's steps, or weights that were loaded.

    A fused optimiser's steps (`AdamW(fused=True)`) are not counted: train without it, as this project does.
    """
    return [weight._version for weight in weights]  # autograd's own counter; comparing values would read them all


def frames_of(policy: object) -> int:
    """How many images `policy` reads: the current one, and earlier ones."""
    return int(getattr(policy, "frames", 1))


def process_images(vis_processor: Callable[[np.ndarray], Any], frames: Sequence[Any]) -> list[Any]:
    """The frames as the student reads them, in threads: Pillow works without Python's lock.

    An item that is a tuple is the frames of several states, and stays one. Frames that are one object, as black frames
    are, become one object, so that the model can encode it once.
    """
    distinct = {id(one): one for frame in frames for one in (frame if isinstance(frame, tuple) else (frame,))}
    read = (_threads().map if len(distinct) > 1 else map)(vis_processor, distinct.values())
    seen = dict(zip(distinct, read, strict=True))
    return [tuple(seen[id(one)] for one in f) if isinstance(f, tuple) else seen[id(f)] for f in frames]


@cache  # made when it is first needed: rollout workers import this module, too, and process no image
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="images")


def model_reads(decode: str) -> tuple[str, ...]:
    """What a model reads that writes its command (`decode` free), or chooses among the admissible ones."""
    return ("text", "image", *(("admissible_commands",) if decode == "admissible" else ()))


def require_commands(batch: Sequence[PolicyInput]) -> None:
    """Raise ConfigError if an input has no admissible commands to choose from."""
    if not all(item.admissible_commands for item in batch):
        raise ConfigError("policy.decode=admissible: an observation came without admissible_commands")
