"""Rollouts with the sequential executor against many at once, and the whole cycle of rollout and training.

    python benchmarks/rollouts.py --json rollouts.json            # three minutes

- 64 generated games with every step padded to 0.5 s, like a simulator's: one after the other in this process, and with
  64 workers, as processes and on Ray. The explorer plays the first `--steps` steps of each. The sequential executor
  plays only every `--sample`-th game, and its time is multiplied, as the row says: every game waits equally long.
- Training is the same for all: behavioural cloning of the tiny model on the collected data, `--updates` batches of 8.
- Official games without padding, whole episodes, 2 workers (needs `$ALFWORLD_DATA`): the list is played twice.
  TextWorld computes 30 ms for a step, so processes pay off (`two_worker_speedup`). An episode on the native engine
  takes 2 ms, and a worker's message is a large part of that. There `files_read` counts how often a game was loaded.

Before the clock starts, the workers are started and make one step in each game: a run does that once, for all its
rounds (`start_s`).
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from _bench import Result, run
from _waiting import Waiting, explorer, files_read

from alfworld_native import choose_games
from alfworld_native.base import Game
from alfworld_native.engine.world import forget_worlds
from alfworld_native.games import find_games
from lavis.common.devices import autocast
from xrl_alignment.builders.student import load_student
from xrl_alignment.lab.collect import Plan, collect
from xrl_alignment.play.evaluation.actors import ExpertActor
from xrl_alignment.play.evaluation.metrics import EpisodeResult
from xrl_alignment.play.evaluation.trials import play_games
from xrl_alignment.play.rollouts.make import make_executor
from xrl_alignment.play.rollouts.parallel import ParallelExecutor
from xrl_alignment.runs.replay import ReplayBuffer

GAMES = WORKERS = 64
STEP_S = 0.5
OFFICIAL = {"textworld": 10, "native": 140}  # games: one engine's step takes a hundred times as long as the other's


def measure(steps: int, sample: int, updates: int) -> Result:
    """The cycle with each executor, then two workers on official games."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        games = choose_games("household", "household_train", data=folder, num=GAMES, num_train=GAMES, num_heldout=0)
        training = train(games, Path(folder) / "collected", updates)
        for name in ("sequential", "local", "ray"):
            rows.append(padded(name, games, steps, sample) | {"training_s": training})
    for row in rows:
        row["cycle_s"] = row["rollout_s"] + training
        row["speedup"] = rows[0]["rollout_s"] / row["rollout_s"]
    ratios = {"parallel_speedup": min(row["speedup"] for row in rows[1:])}
    ratios |= {f"{row['executor']}_speedup": row["speedup"] for row in rows[1:]}
    official = []
    for engine, number in OFFICIAL.items():
        official += two_workers(find_games("valid_seen", num=number, seed=0), engine)
        ratios[f"two_worker_speedup_{engine}"] = official[-1]["speedup"]
    ratios["two_worker_speedup"] = ratios["two_worker_speedup_textworld"]
    return Result([*rows, *official], ratios, {"parallel_speedup": 20, "two_worker_speedup": 1.8})


def padded(name: str, games: Sequence[Game], steps: int, sample: int) -> dict:
    """One executor on games whose steps wait."""
    every = sample if name == "sequential" else 1
    with make_executor(name, workers=1 if name == "sequential" else WORKERS) as executor:
        began = time.perf_counter()
        if isinstance(executor, ParallelExecutor):
            executor.warm_up()
        play(executor, games[::every], 0.0, 1)
        ready = time.perf_counter()
        results = play(executor, games[::every], STEP_S, steps)
        seconds = (time.perf_counter() - ready) * every
    text = f"{len(games)} generated games, {STEP_S:g} s a step"
    return {
        "games": f"{text} (every {every}th played)" if every > 1 else text,
        "executor": name,
        "workers": 1 if name == "sequential" else WORKERS,
        "start_s": ready - began,
        "steps": sum(result.actions for result in results) * every,
        "rollout_s": seconds,
    }


def play(
    executor, games: Sequence[Game], seconds: float, steps: int = 50, engine: str = "native"
) -> list[EpisodeResult]:
    """The explorer plays."""
    environment = Waiting(seconds, engine=engine)
    return play_games(ExpertActor(explorer), games, environment, executor=executor, max_steps=steps)


def train(games: Sequence[Game], folder: Path, updates: int) -> float:
    """Seconds of `updates` steps of behavioural cloning on what the explorer shows in `games`."""
    collect(Plan(env="household", max_steps=20, keep_failed=True), games, folder)
    buffer = ReplayBuffer(folder, seed=0)
    for path in sorted(folder.glob("*.h5")):
        buffer.add_shard(path.name)
    model, vis_processor = load_student({}, torch.device("cpu"))
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-4)
    model.train()
    began = time.perf_counter()
    for _ in range(updates):
        samples = buffer.sample(8)
        samples["image"] = torch.stack([vis_processor(image) for image in samples["image"]])
        with autocast(model.device):
            loss = model(samples)["loss"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return time.perf_counter() - began


def two_workers(games: Sequence[Game], engine: str) -> list[dict]:
    """Whole episodes of official games, twice the same list, by one and by two."""
    rows = []
    for name, workers in (("sequential", 1), ("local", 2)):
        forget_worlds()
        with make_executor(name, workers=workers) as executor:
            began = time.perf_counter()
            if isinstance(executor, ParallelExecutor):
                executor.warm_up()
            play(executor, games[:workers], 0.0, 1, engine)
            ready = time.perf_counter()
            results = [play(executor, games, 0.0, engine=engine) for _ in range(2)]
            seconds = time.perf_counter() - ready
            assert results[0] == results[1]
            rows.append(
                {
                    "games": f"{len(games)} official games, {engine}, twice, no padding",
                    "executor": name,
                    "workers": workers,
                    "start_s": ready - began,
                    "steps": 2 * sum(result.actions for result in results[0]),
                    "rollout_s": seconds,
                    "files_read": sum(outcome.value for outcome in executor.run(files_read, range(workers))),
                    "speedup": rows[0]["rollout_s"] / seconds if rows else 1.0,
                }
            )
    return rows


def add_options(parser: argparse.ArgumentParser) -> None:
    """How much is played."""
    parser.add_argument("--steps", type=int, default=5, help="of each padded episode")
    parser.add_argument("--sample", type=int, default=4, help="play every n-th padded game sequentially")
    parser.add_argument("--updates", type=int, default=20, help="of training")


if __name__ == "__main__":
    run("Rollouts: sequential, processes, Ray", measure, add_options)
