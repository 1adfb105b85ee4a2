"""The native engine against TextWorld's, on the same official games and the same commands, in one run.

    python benchmarks/engine.py --json engine.json

A step includes the admissible commands and whether the game is won; load + reset goes from the file to the first
observation. Times are processor time. It needs the official games: `$ALFWORLD_DATA`, or `alfworld-download`.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

from _bench import Result, run

from alfworld_native.base import Environment, Game
from alfworld_native.engine.environment import NativeEnvironment
from alfworld_native.engine.game import NativeGame
from alfworld_native.engine.gamefile import read_games
from alfworld_native.engine.world import build_world, forget_worlds
from alfworld_native.games import find_games
from alfworld_native.gym_env import ALFWorldVectorEnv
from alfworld_native.language.sentences import TASK_TYPES
from alfworld_native.textworld import TextWorldEnvironment
from lavis.common.program import run_program

STEPS = 30  # a game, on both engines
NATIVE_REPEATS = 30  # one run of the native engine is too short to time
VECTOR_ENVS, VECTOR_STEPS, VECTOR_REPEATS = 256, 200, 5
RESTORES = 200
SPLITS = ("train", "valid_seen")


def measure() -> Result:
    """Load + reset and steps on both engines; vectorised steps; loading and keeping all games."""
    valid = find_games("valid_seen")
    sample = [next(game for game in valid if game.task_type == task) for task in TASK_TYPES]
    games = [game for split in SPLITS for game in find_games(split)]
    scripts = [script(game) for game in sample]
    slow_load, slow_step = play(TextWorldEnvironment(max_steps=10**9), sample, scripts, repeats=1)
    fast_load, fast_step = play(NativeEnvironment(max_steps=10**9), sample, scripts, repeats=NATIVE_REPEATS)
    vector = vector_rate(valid)
    with tempfile.TemporaryDirectory() as folder:
        cold = seconds(lambda: read_games((game.path for game in games), Path(folder)))
        cached = seconds(lambda: read_games((game.path for game in games), Path(folder)))
        built = seconds(lambda: build_all(games, Path(folder)))
    memory, restore = kilobytes(valid), restore_us(valid)
    rows = [
        {"what": "load + reset, ms", "textworld": slow_load * 1e3, "native": fast_load * 1e3},
        {"what": "step, ms", "textworld": slow_step * 1e3, "native": fast_step * 1e3},
        {"what": f"{VECTOR_ENVS} games side by side, steps/s", "textworld": "", "native": vector},
        {"what": "snapshot + restore, µs", "textworld": "", "native": restore},
        {"what": f"{len(games):,} games from their files, s", "textworld": "", "native": cold},
        {"what": f"{len(games):,} games from the cache, s", "textworld": "", "native": cached},
        {"what": "the same, and made ready to play, s", "textworld": "", "native": built},
        {"what": "memory of a game that is being played, kB", "textworld": "", "native": memory},
    ]
    ratios = {
        "step_speedup": slow_step / fast_step,
        "load_speedup": slow_load / fast_load,
        "vector_steps_per_second": vector,
        "restore_us": restore,
        "cold_load_games_per_second": len(games) / cold,
        "cached_load_games_per_second": len(games) / cached,
        "games_per_200_kB": 200 / memory,
    }
    targets = {
        "step_speedup": 1000,
        "load_speedup": 100,
        "vector_steps_per_second": 50_000,
        "cold_load_games_per_second": len(games) / 10,
        "cached_load_games_per_second": len(games),
        "games_per_200_kB": 1,
    }
    return Result(rows, ratios, targets)


def script(game: Game) -> list[str]:
    """A random walk of STEPS commands, found on the native engine; both engines then play it."""
    rng = random.Random(game.id)
    environment = NativeEnvironment(max_steps=10**9)
    step, commands = environment.reset(game), []
    while len(commands) < STEPS and not step.won:
        commands.append(rng.choice(step.admissible_commands))
        step = environment.step(commands[-1])
    return commands


def play(environment: Environment, games: list[Game], scripts: list[list[str]], repeats: int) -> tuple[float, float]:
    """Mean seconds of a load + reset and of a step."""
    loading = stepping = 0.0
    for _ in range(repeats):
        forget_worlds()
        for game, commands in zip(games, scripts, strict=True):
            start = time.process_time()
            environment.reset(game)
            loaded = time.process_time()
            for command in commands:
                environment.step(command)
            loading += loaded - start
            stepping += time.process_time() - loaded
    environment.close()
    return loading / repeats / len(games), stepping / repeats / sum(map(len, scripts))


def vector_rate(games: list[Game]) -> float:
    """Steps a second of a random policy in VECTOR_ENVS games, resets included; the median of VECTOR_REPEATS runs."""
    envs = ALFWorldVectorEnv(VECTOR_ENVS, games=games, shuffle=False)
    rng = random.Random(0)
    _, infos = envs.reset(seed=0)

    def rollout() -> None:
        nonlocal infos
        for _ in range(VECTOR_STEPS):
            actions = [commands[int(rng.random() * len(commands))] for commands in infos["admissible_commands"]]
            infos = envs.step(actions)[-1]

    return VECTOR_ENVS * VECTOR_STEPS / statistics.median(seconds(rollout) for _ in range(VECTOR_REPEATS))


def restore_us(games: list[Game]) -> float:
    """Microseconds for a snapshot and the way back to it, in the middle of a walk: mean over `games`."""
    spent = 0.0
    for game in games:
        environment = NativeGame.load(game.path, "put")
        for command in script(game)[:-1]:
            environment.step(command)
        start = time.process_time()
        for _ in range(RESTORES):
            environment.restore(environment.snapshot())
        spent += time.process_time() - start
    return spent / RESTORES / len(games) * 1e6


def build_all(games: list[Game], cache: Path) -> None:
    """Read all games and make each ready to play."""
    for text in read_games((game.path for game in games), cache).values():
        build_world(text)


def kilobytes(games: list[Game]) -> float:
    """Memory of a game with its state after a random walk of 50 steps, in kB: mean over `games`."""
    rng = random.Random(0)
    tracemalloc.start()
    forget_worlds()
    environments = []
    for game in games:
        environment = NativeEnvironment()
        step = environment.reset(game)
        while not step.done:
            step = environment.step(rng.choice(step.admissible_commands))
        environments.append(environment)
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return used / len(environments) / 1e3


def seconds(work: Callable[[], object]) -> float:
    """Processor time of `work`."""
    start = time.process_time()
    work()
    return time.process_time() - start


if __name__ == "__main__":
    run_program(lambda: run("Native engine against TextWorld", measure))
