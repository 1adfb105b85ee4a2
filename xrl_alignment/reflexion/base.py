"""What a reflector is, and the memories of all games after a round.

A reflector turns a failed episode into one paragraph of advice for the next attempt at the same game (Reflexion: Shinn
et al. 2023, arXiv:2303.11366).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor, wait
from typing import Protocol

from xrl_alignment.language.history import EpisodeTrace


class Reflector(Protocol):
    """Turns a failed episode into advice.

    A reflector that waits for a network also has a `pool` (concurrent.futures.Executor), in which its `reflect` runs.
    """

    name: str

    def reflect(self, trace: EpisodeTrace, memories: Sequence[str]) -> str:
        """One paragraph for the next attempt; `memories` are this game's earlier ones, oldest first."""
        ...


def update_memories(
    traces: Iterable[EpisodeTrace], memories: Mapping[str, Sequence[str]], reflector: Reflector
) -> dict[str, list[str]]:
    """Return the memories after a round, by game id: the earlier ones, and one more for each game that failed.

    `memories` are those with which the round began; they are not changed. A game without a trace keeps its memories.
    A game gets at most one new memory in a round: from its last failed trace, and none if one of its traces won. A
    text that the game already has is not added, so a second call (also on the result) adds nothing if the reflector is
    deterministic.
    """
    updated = {game: list(texts) for game, texts in memories.items()}
    last: dict[str, EpisodeTrace] = {}
    for trace in traces:
        if not (trace.game_id in last and last[trace.game_id].won):
            last[trace.game_id] = trace
    failed = [trace for trace in last.values() if not trace.won]
    known = [updated.setdefault(trace.game_id, []) for trace in failed]
    for texts, text in zip(known, _reflect_all(reflector, failed, known), strict=True):
        text = " ".join(text.split())
        if text and text not in texts:
            texts.append(text)
    return updated


def _reflect_all(
    reflector: Reflector, traces: Sequence[EpisodeTrace], memories: Sequence[Sequence[str]]
) -> Iterable[str]:
    """One text for each trace; the calls run at the same time if the reflector has a `pool`."""
    earlier = [tuple(texts) for texts in memories]
    pool: Executor | None = getattr(reflector, "pool", None)
    if pool is None:
        return map(reflector.reflect, traces, earlier)
    futures = [pool.submit(reflector.reflect, trace, texts) for trace, texts in zip(traces, earlier, strict=True)]
    wait(futures)  # also if one fails: the answers that the others paid for are then in the cache
    return [future.result() for future in futures]
