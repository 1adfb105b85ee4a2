"""The episodes in progress as cards of the page: each session's frame, text, and what agent and expert said.

The training loop is not asked and does not wait: this reads what its episodes hold at the moment, from another thread.
A transition is not changed once it is there, so frame, text and actions of a card belong together.
"""

from __future__ import annotations

import base64
import io
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from PIL import Image

from alfworld_native.language.sentences import untold
from xrl_alignment.runs.transitions import Transition
from xrl_alignment.show.dashboard.board import Board

MOST_CARDS = 48  # sessions that the page shows
STEPS_SHOWN = 12  # of an episode's history
LONGEST_SIDE = 320  # of a live frame, in pixels
KEPT_S = 5.0  # a session that has just ended an episode keeps its place so long
_QUALITY = 80


class TransitionsSoFar(Protocol):
    """The transitions of an episode in progress (`dagger.episode.UnfinishedTransitions`, or a list)."""

    def __len__(self) -> int:
        """How many there are."""

    def __getitem__(self, index: int) -> Transition:
        """One of them."""


class EpisodeInProgress(Protocol):
    """What a card needs of an episode (`dagger.episode.LabelledEpisode` has it)."""

    game: str
    env: int
    round: int
    steps: list[tuple[str, str]]
    labelled: bool

    @property
    def transitions(self) -> TransitionsSoFar:
        """What was decided so far."""

    @property
    def opening(self) -> str:
        """The room and the task sentence."""


class LiveSessions:
    """Puts a card for each session on the board; `in_progress` gives the sessions with their episodes.

    The page shows numbers instead of the sessions' names: who knows a session's name could send messages for it.
    """

    def __init__(
        self,
        in_progress: Callable[[], Sequence[tuple[str, EpisodeInProgress]]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._in_progress = in_progress
        self._clock = clock
        self._slots: dict[str, tuple[int, float]] = {}  # by session: number, when it was seen
        self._shown: dict[int, tuple[int, str, int]] = {}  # by number: episode, its game, and which step its card shows

    def publish(self, board: Board, *, tell_objects: bool = True) -> None:
        """Bring the cards up to date; without `tell_objects` the agent is not told which objects lie where."""
        playing = self._in_progress()
        now = self._clock()
        for session, episode in playing:
            taken = {number for number, _ in self._slots.values()}
            free = next(number for number in range(len(taken) + 1) if number not in taken)
            number = self._slots.get(session, (free, 0.0))[0]
            self._slots[session] = (number, now)
            # A card only if there is a decision to show, and another one than the card shows already.
            count = len(episode.transitions)
            shown = (id(episode), episode.game, count)  # with the object's id: a game may be played again
            if number >= MOST_CARDS or not count or self._shown.get(number) == shown:
                continue
            try:
                transition = episode.transitions[count - 1]
            except (
                OSError,
                LookupError,
                ValueError,
            ):  # the loop has cut it off, or the episode has ended, a moment ago
                continue
            board.put(
                f"session {number}", "session", card(number, episode, transition, count, tell_objects=tell_objects)
            )
            self._shown[number] = shown
        # A session that has been gone for a while gives up its number.
        for session, (number, seen) in list(self._slots.items()):
            if now - seen > KEPT_S:
                del self._slots[session]
                self._shown.pop(number, None)
                board.drop(f"session {number}")
        board.put("sessions", "sessions", {"numbers": sorted(self._shown), "playing": len(playing)})


def card(
    number: int, episode: EpisodeInProgress, transition: Transition, count: int, *, tell_objects: bool = True
) -> dict[str, Any]:
    """What the page shows of a session after its `count`-th decision, which is `transition`.

    `agent` is None if the agent was not asked, `expert` is None if the expert had no label. `untold` are the sentences
    that the agent is not told.
    """
    steps = episode.steps[: count - 1]
    hidden = () if tell_objects else (sentence for _, heard in steps[-STEPS_SHOWN:] for sentence in untold(heard))
    return {
        "number": number,
        "game": episode.game,
        "env": episode.env,
        "round": episode.round,
        "step": count,
        "opening": episode.opening,
        "heard": steps[-1][1] if steps else episode.opening,
        "history": steps[-STEPS_SHOWN:],
        "untold": list(dict.fromkeys(hidden)),
        "earlier": max(0, len(steps) - STEPS_SHOWN),
        "agent": transition.text_output_neg or None,
        "expert": transition.text_output if episode.labelled else None,
        "executed": transition.executed,
        "frame": data_url(transition.image),
    }


def data_url(frame: np.ndarray) -> str:
    """A frame, uint8 (H, W, 3), as a small JPEG in a `data:` URL; empty if the client sent none."""
    height, width = frame.shape[:2]  # one pixel stands for no image (`wire.messages`)
    if height * width <= 1:
        return ""
    image = Image.fromarray(frame)
    if max(height, width) > LONGEST_SIDE:
        image = image.reduce(-(-max(height, width) // LONGEST_SIDE))
    return "data:image/jpeg;base64," + base64.b64encode(jpeg(image, _QUALITY)).decode()


def jpeg(image: Image.Image, quality: int) -> bytes:
    """The image as JPEG."""
    out = io.BytesIO()
    image.save(out, "JPEG", quality=quality)
    return out.getvalue()
