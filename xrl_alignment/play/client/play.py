"""The client's entry: plays games against a server with any number of workers, and returns the counts.

Below it, from the socket upwards: `connection` (HTTP, retries), `session` (wire v2's numbered messages), `player` (a
game in an environment, here or in a process of its own), `worker` (asks for work and plays it), `report`.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

from alfworld_native.base import Game
from alfworld_native.reuse import ReusedEnvironments
from lavis.common.errors import ConfigError, unknown
from xrl_alignment.common.choices import BACKENDS, STEP_TIMEOUT_S
from xrl_alignment.play.client.connection import ClientStopped, RetryingConnection
from xrl_alignment.play.client.player import ClientPlayer, EnvironmentFactory, ExpertFactory
from xrl_alignment.play.client.report import ClientReport, EpisodeTally
from xrl_alignment.play.client.worker import ClientWorker
from xrl_alignment.play.rollouts.make import make_executor
from xrl_alignment.wire.images import IMAGE_FORMATS

PATIENCE_S = 600.0  # how long a server may be away: it may load a model first, or be restarted with --resume
WIRES = ("v2", "v1")
EXECUTORS = tuple(name for name in BACKENDS if name != "ray")  # on a Ray cluster, `client.cluster` plays with these
_GOODBYE_S = 5.0  # a worker that is asked to stop may be inside a simulator's step, and its server may be busy


def play(
    server_url: str,
    environment_factory: EnvironmentFactory,
    games: Sequence[Game],
    *,
    wire: str = "v2",
    num_workers: int = 1,
    expert: ExpertFactory | None = None,
    token: str = "",
    image_format: str = "auto",
    blank_frames: bool = False,
    num_rounds: int | None = None,
    split: str = "",
    view: str = "",
    patience_s: float = PATIENCE_S,
    executor: str = "sequential",
    step_timeout_s: float = STEP_TIMEOUT_S,
    report: ClientReport | None = None,
) -> dict[str, Any]:
    """Play `games` against the server at `server_url` (`http://host:port`) until it has no more work.

    v2: each of `num_workers` threads holds its own environment and session and asks for work. v1: one worker plays the
    games in order, `num_rounds` times (None: until the server goes away). `expert` makes an expert that runs beside the
    environment and travels as `expert_action`; without it, an environment that offers `expert_action()` is asked.
    `blank_frames` sends black images. `view` says how the games are shown (`wire.expected.view_of`); the server
    compares it with its settings, as it does `split`.

    `executor` says where the environments are: in this process, or (`local`) each in a process of its own. One that is
    lost, or makes no step for `step_timeout_s`, is replaced, and its game is given back to the server, which has it
    played from the start; three losses in a row of one worker raise EnvironmentFault.

    Returns `{"episodes", "won", "success", "solved_by_policy", "steps", "seconds", "bytes_sent", "per_task_type"}`, the
    last one `{type: [won, played]}`. `won` and `success` count this client's episodes, also those that the expert
    drove; `solved_by_policy` counts the run's games that the policy has solved alone (None: the server does not tell).
    Raises ConfigError for arguments that cannot be used, ClientError (server unreachable for `patience_s`, or it
    refuses) and what the environment raises.
    """
    for what, value, known in (
        ("wire", wire, WIRES),
        ("executor", executor, EXECUTORS),
        ("image format", image_format, IMAGE_FORMATS),
    ):
        if value not in known:
            raise ConfigError(unknown(what, value, known))
    if wire == "v1" and num_workers != 1:
        raise ConfigError(f"wire v1 knows one client, not {num_workers} workers: use --wire v2 or --num-workers 1")
    if wire == "v2" and num_rounds is not None:
        raise ConfigError(
            "the number of rounds has no effect with wire v2: the server's settings say it (run.num_rounds)"
        )
    if wire == "v1" and image_format != "auto":
        raise ConfigError(f"image format {image_format} has no effect with wire v1, which sends JSON arrays")
    if num_rounds is not None and num_rounds < 1:
        raise ConfigError(f"the number of rounds must be at least 1, not {num_rounds}")
    if num_workers < 1:
        raise ConfigError(f"the number of workers must be at least 1, not {num_workers}")

    # Each worker has a connection, an environment and a session of its own; they share games, counts and report.
    progress = report or ClientReport()
    with progress:
        tally = EpisodeTally(progress)
        workers = [
            ClientWorker(
                connection=RetryingConnection(server_url, token=token, patience_s=patience_s, report=progress),
                # No retry here: a game that is played again must begin at the server, which hands it out anew.
                executor=make_executor(executor, retries=0, step_timeout_s=step_timeout_s),
                player=ClientPlayer(
                    ReusedEnvironments(environment_factory), expert, blank_frames, write_history=wire == "v1"
                ),
                games=games,
                split=split,
                view=view,
                image_format=image_format,
                tally=tally,
            )
            for _ in range(num_workers)
        ]
        _run_all(workers, (lambda w: w.work_v2()) if wire == "v2" else (lambda w: w.work_v1(num_rounds)))
        return tally.summary(sum(worker.connection.bytes_sent for worker in workers))


def _run_all(workers: Sequence[ClientWorker], work: Callable[[ClientWorker], None]) -> None:
    """Run every worker in its thread; the first failure, or Ctrl-C, ends all of them (each says bye).

    Waits on a queue, not with `Thread.join`: before Python 3.13 a join that Ctrl-C interrupts marks the thread as
    ended (python/cpython#90882), and the goodbyes would be lost.
    """
    ended: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

    def run(worker: ClientWorker) -> None:
        try:
            work(worker)
        except ClientStopped:
            ended.put(None)
        except BaseException as error:  # handed to the caller's thread below
            ended.put(error)
        else:
            ended.put(None)

    running = 0
    try:
        for worker in workers:  # inside `try`: Ctrl-C may come before the last one has started
            running += 1
            threading.Thread(target=run, args=(worker,), daemon=True).start()
        while running:
            error = ended.get()
            running -= 1
            if error is not None:
                raise error
            for worker in workers:  # one whose environment hung may come back after the server has ended
                worker.connection.run_is_over()
    finally:
        for worker in workers:
            worker.connection.stop()
        for _ in range(running):
            with contextlib.suppress(queue.Empty):
                ended.get(timeout=_GOODBYE_S)
