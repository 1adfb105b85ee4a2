"""What a reflector is, and the memories of all games after a round.

A reflector turns a failed episode into one paragraph of advice for the next attempt at the same game (Reflexion: Shinn
et al. 2023, arXiv:2303.11366).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor, wait
from dataclasses import replace
from typing import Protocol

from alfworld_native.language.sentences import without_objects
from xrl_alignment.agents.language.history import EpisodeTrace
from xrl_alignment.agents.language.plain import plain
from xrl_alignment.common.errors import EndpointFault, PromptTooLong

logger = logging.getLogger(__name__)


class Reflector(Protocol):
    """Turns a failed episode into advice.

    A reflector that waits for a network also has a `pool` (concurrent.futures.Executor), in which its `reflect` runs.
    """

    name: str

    def reflect(self, trace: EpisodeTrace, memories: Sequence[str]) -> str:
        """One paragraph for the next attempt; `memories` are this game's earlier ones, oldest first."""
        ...


def update_memories(
    traces: Iterable[EpisodeTrace],
    memories: Mapping[str, Sequence[str]],
    reflector: Reflector,
    *,
    skip_unreadable: bool = False,
    tell_objects: bool = True,
) -> dict[str, list[str]]:
    """Return the memories after a round, by game id: the earlier ones, and one more for each game that failed.

    `memories` are those with which the round began; they are not changed. A game without a trace keeps its memories.
    A game gets at most one new memory in a round: from its last failed trace, and none if one of its traces won. A
    text that the game already has is not added, so a second call (also on the result) adds nothing if the reflector is
    deterministic.

    Without `tell_objects` the reflector reads what an agent was told that has to see what lies where: else a memory
    would tell it in the next attempt.

    With `skip_unreadable` a trace that the reflector cannot read (a client may send any text) gives no memory, and a
    warning. What is not the trace's fault is raised: an endpoint that cannot be asked any more, a full disk.
    """
    updated = {game: list(texts) for game, texts in memories.items()}
    # One trace for each game: its last one, or the first that won, after which it needs no advice.
    last: dict[str, EpisodeTrace] = {}
    for trace in traces:
        if not (trace.game_id in last and last[trace.game_id].won):
            last[trace.game_id] = trace
    failed = [trace for trace in last.values() if not trace.won]
    if not tell_objects:
        told = (tuple((action, without_objects(heard)) for action, heard in trace.steps) for trace in failed)
        failed = [replace(trace, steps=steps) for trace, steps in zip(failed, told, strict=True)]

    # Reflections on several games run at the same time if the reflector has a `pool`. They are waited for also if one
    # of them fails: the answers that the others paid for are then in the cache.
    earlier = [tuple(updated.setdefault(trace.game_id, [])) for trace in failed]
    pool: Executor | None = getattr(reflector, "pool", None)
    asked = [pool.submit(reflector.reflect, *each) for each in zip(failed, earlier, strict=True)] if pool else []
    wait(asked)
    for number, trace in enumerate(failed):
        try:
            text = asked[number].result() if pool else reflector.reflect(trace, earlier[number])
        except Exception as error:
            # A prompt that is too long is the trace's fault; an endpoint, a disk or memory that fails is not.
            endpoints = isinstance(error, EndpointFault) and not isinstance(error, PromptTooLong)
            if not skip_unreadable or endpoints or isinstance(error, OSError | MemoryError):
                raise
            logger.warning("an episode gives no memory: %s: %s", type(error).__name__, error)
            continue
        # One line, for a prompt shows a memory in one; a text that the game has already would only repeat itself.
        text = " ".join(plain(text).split())
        if text and text not in updated[trace.game_id]:
            updated[trace.game_id].append(text)
    return updated
