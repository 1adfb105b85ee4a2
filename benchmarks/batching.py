"""Steps per second of sixteen environments that share each call of the policy, against one environment alone.

    python benchmarks/batching.py --json batching.json

Generated games, the tiny model, free text (greedy). The benchmark also counts the games whose actions differ. It
measures both ways in which the project plays: evaluation (`play_games`, one process), and a DAgger server without
training with a client of one or sixteen workers in another process.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from _bench import Result, run
from _waiting import Waiting, client

from alfworld_native import choose_games
from alfworld_native.base import Game
from lavis.common.allocator import bound_kernel_cache, keep_freed_memory
from xrl_alignment.agents.experts import make_expert
from xrl_alignment.agents.policies.base import Policy, PolicyInput
from xrl_alignment.builders.student import load_student, make_policy, prompt_writer
from xrl_alignment.dagger.front import Front
from xrl_alignment.dagger.loop import DaggerLoop
from xrl_alignment.dagger.rounds import Rounds
from xrl_alignment.play.evaluation.actors import PolicyActor
from xrl_alignment.play.evaluation.reads import reads_of
from xrl_alignment.play.evaluation.trials import play_games
from xrl_alignment.play.rollouts.make import make_executor
from xrl_alignment.runs.directory import RunDirectory
from xrl_alignment.settings.policy import PolicyConfig
from xrl_alignment.wire.http_server import DaggerHTTPServer

MANY = 16
MAX_STEPS = 20
Actions = dict[str, list[str]]  # of each game, in order


class Clocked:
    """A policy that notes when it gave its last answer."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.reads = reads_of(policy, policy=True)
        self.answered = 0.0

    def act(self, batch: Sequence[PolicyInput]) -> list[str]:
        """The policy's actions."""
        actions = self.policy.act(batch)
        self.answered = time.perf_counter()
        return actions

    def close(self) -> None:
        """Close the policy."""
        self.policy.close()


class Player:
    """Plays the same games with one model, in both ways."""

    def __init__(self, games: Sequence[Game], folder: Path) -> None:
        self.games = games
        self.folder = folder
        model, vis_processor = load_student({}, torch.device("cpu"))
        self.policy = Clocked(make_policy(PolicyConfig(num_beams=1, max_length=24), model, vis_processor, MANY))
        self.write_prompt = prompt_writer(model, tell_objects=True)
        self.environment = Waiting(0.0, MAX_STEPS)
        self.clients = make_executor("local", workers=1, step_timeout_s=0)
        self.clients.warm_up()

    def evaluate(self, concurrency: int) -> Actions:
        """In this process."""
        actions: Actions = {}
        play_games(
            PolicyActor(policy=self.policy, write_prompt=self.write_prompt),
            self.games,
            self.environment,
            concurrency=concurrency,
            max_steps=MAX_STEPS,
            on_result=lambda result, trace: actions.update({result.game: [action for action, _ in trace.steps]}),
        )
        return actions

    def serve(self, workers: int) -> Actions:
        """With a server and a client of so many workers, over HTTP."""
        directory = RunDirectory(self.folder / f"{workers}-{time.monotonic_ns()}")
        server = DaggerHTTPServer("127.0.0.1", 0).start()
        rounds = Rounds(directory, num_rounds=1, num_envs=len(self.games))
        loop = DaggerLoop(
            front=Front(server, rounds, make_expert=lambda: make_expert("explorer"), max_steps=MAX_STEPS),
            rounds=rounds,
            policy=self.policy,
            write_prompt=self.write_prompt,
        )
        job = {"server_url": f"http://127.0.0.1:{server.port}", "games": self.games, "num_workers": workers}
        jobs = [job | {"environment_factory": self.environment}]
        playing = threading.Thread(target=lambda: list(self.clients.run(client, jobs)))
        playing.start()
        loop.serve()  # in the main thread, as in dagger_server.py
        playing.join()
        server.stop()
        actions = {record.game: [action for action, _ in record.steps] for record in directory.episodes()}
        directory.close()
        return actions


def speed(player: Player, way: Callable[[int], Actions], concurrency: int) -> tuple[float, Actions]:
    """Steps per second from the beginning to the last action, the better of two runs, and the actions.

    The end of the connection between server and clients is not included (0.3 s once a run).
    """
    best, actions = 0.0, {}
    for _ in range(2):
        began = time.perf_counter()
        actions = way(concurrency)
        best = max(best, sum(map(len, actions.values())) / (player.policy.answered - began))
    return best, actions


def measure() -> Result:
    """Both ways with one and with sixteen."""
    bound_kernel_cache()  # memory as in evaluate.py and dagger_server.py
    keep_freed_memory()
    rows, ratios = [], {}
    with tempfile.TemporaryDirectory() as folder:
        games = choose_games("household", "household_train", data=folder, num=MANY, num_train=MANY, num_heldout=0)
        player = Player(games, Path(folder) / "runs")
        for name, way in (("server and client", player.serve), ("evaluation", player.evaluate)):
            (slow, alone), (fast, together) = speed(player, way, 1), speed(player, way, MANY)
            differ = sum(alone[game.id] != together[game.id] for game in games)
            rows.append(
                {"what": name, "1 environment, steps/s": slow, f"{MANY}, steps/s": fast, "games that differ": differ}
            )
            ratios[f"sixteen_over_one_{name.split()[0]}"] = fast / slow
        player.clients.close()
    ratios["sixteen_over_one"] = min(ratios.values())
    return Result(rows, ratios, {"sixteen_over_one": 4})


if __name__ == "__main__":
    run("Sixteen environments against one, tiny policy", measure)
