"""Random play by numbers in 1, 2 and 4 processes at once: how steps a second grow with processes.

    python benchmarks/engine_scaling.py --json scaling.json

Each process plays 256 games in a `Batch` of its own, from a warm start; all begin at the same moment. Rates are of wall
time, from that moment to the end of the slowest, so use a machine that is otherwise idle. More processes than cores
show what two threads of one core give. It needs the official games: `$ALFWORLD_DATA`, or `alfworld-download`.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from threading import Barrier

import numpy as np
from _bench import Result, run

from xrl_alignment.common.program import run_program
from xrl_alignment.environments.games import find_games
from xrl_alignment.environments.native.batch import Batch

PROCESSES = (1, 2, 4)
GAMES, WARM_STEPS, STEPS, REPEATS = 256, 850, 1000, 3


def measure() -> Result:
    """Steps a second of all processes together."""
    rates = {processes: speed(processes) for processes in PROCESSES}
    alone = rates[1]
    rows = [
        {"processes": processes, "steps/s": round(rate), "times one process": f"{rate / alone:.2f}"}
        for processes, rate in rates.items()
    ]
    return Result(rows, {f"{processes}_over_one": rate / alone for processes, rate in rates.items()})


def speed(processes: int) -> float:
    """Steps a second of so many processes together: the median of REPEATS."""
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager, context.Pool(processes) as pool:
        together = manager.Barrier(processes)
        spans = pool.starmap(play, [(seed, together) for seed in range(processes)], chunksize=1)
    taken = [max(end for _, end in turn) - min(start for start, _ in turn) for turn in zip(*spans, strict=True)]
    return processes * GAMES * STEPS / statistics.median(taken)


def play(seed: int, together: Barrier) -> list[tuple[float, float]]:
    """When each of REPEATS turns of STEPS steps began and ended; all processes begin each at once."""
    rng = np.random.default_rng(seed)
    batch = Batch(find_games("valid_seen"), GAMES)

    def walk(steps: int) -> tuple[float, float]:
        start = time.monotonic()
        for _ in range(steps):
            batch.step((rng.random(GAMES) * batch.sizes).astype(int))
        return start, time.monotonic()

    walk(WARM_STEPS)
    spans = []
    for _ in range(REPEATS):
        together.wait()
        spans.append(walk(STEPS))
    return spans


if __name__ == "__main__":
    run_program(lambda: run("Engine: steps a second over processes", measure))
