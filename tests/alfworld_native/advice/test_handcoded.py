"""Random numbers of ALFWorld's handcoded expert."""

from __future__ import annotations

import random
import threading
import time

from alfworld_native.advice.handcoded import drawing_from


def drawn(seed: int, times: int, at: threading.Barrier | None = None) -> list[float]:
    """What an expert draws from Python's generator, two numbers each time that it is asked."""
    draws, found = random.Random(seed), []
    for _ in range(times):
        if at is not None:
            at.wait()
        with drawing_from(draws):
            found.append(random.random())
            time.sleep(0.0005)  # the others come on
            found.append(random.random())
    return found


def test_experts_in_several_threads_draw_what_they_draw_alone_and_leave_the_outside_alone() -> None:
    alone, together = [drawn(seed, 40) for seed in range(4)], {}
    outside, at = random.getstate(), threading.Barrier(4)
    threads = [
        threading.Thread(target=lambda seed=seed: together.update({seed: drawn(seed, 40, at)})) for seed in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [together[seed] for seed in range(4)] == alone and random.getstate() == outside
