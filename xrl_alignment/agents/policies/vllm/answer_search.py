"""Finds the most probable of several answers by asking for as few log-probabilities as possible."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from heapq import heappop, heappush


def best_answer(answers: Sequence[Sequence[int]]) -> Generator[tuple[list[int], list[int]], list[float], int]:
    """Search for the answer with the highest sum of log-probabilities; returns its index (the first of equal ones).

    Yields `(prefix, tokens)` and is sent the log-probability of each of `tokens` after `prefix`. Best-first search
    over the tree of answers (Dijkstra 1959): it always extends the most probable prefix. A sum of log-probabilities can
    only fall with more tokens, so the first complete answer is the best, and most tokens of the others are never asked
    for.
    """
    # Of equal answers the first one counts.
    complete: dict[tuple[int, ...], int] = {}
    for index, answer in enumerate(answers):
        complete.setdefault(tuple(answer), index)
    heap: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    while True:
        # Costs are negated sums of log-probabilities. No step costs less than 0, which Dijkstra's algorithm needs.
        cost, prefix = heappop(heap)
        if prefix in complete:
            return complete[prefix]
        depth = len(prefix)
        # Sorted: the search and its questions do not depend on the order of a set.
        tokens = sorted({answer[depth] for answer in complete if answer[:depth] == prefix and len(answer) > depth})
        logprobs = yield list(prefix), tokens
        for token, logprob in zip(tokens, logprobs, strict=True):
            heappush(heap, (cost - logprob, (*prefix, token)))
