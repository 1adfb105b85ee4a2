"""How long a round of training takes on machines that one does not have yet: a simulation from a few measured times.

    python -m xrl_alignment.rollouts.round_time --environments 64 --call-s 0.2 --train-s 0.1 --learner decoupled

It follows `dagger_server.py` event by event: observations come one step after their answer, the server gathers them as
`wire.admission` does, the policy answers a batch in one call, an episode's training stands between two batches
(`inline`) or runs beside them (`decoupled`). What it does not know: episodes that end early because a game is solved,
an expert over a network, lost environments. `benchmarks/round_time.py` compares it with real runs.
"""

from __future__ import annotations

import argparse
import dataclasses
import heapq
import math
from collections import deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple


def _input(default: Any, text: str, **more: Any) -> Any:
    """A field whose metadata are those of its option on the command line."""
    return field(default=default, metadata={"help": text, **more})


@dataclass(frozen=True)
class RoundModel:
    """What a round's time depends on; all times in seconds."""

    environments: int = _input(64, "environments that play at once")
    games: int = _input(64, "games of a round")
    steps: int = _input(20, "actions of an episode")
    rounds: int = _input(4, "rounds to simulate; the result is their mean")
    step_s: float = _input(0.5, "a step of an environment, with its way to the server and back")
    reset_s: float = _input(0.0, "from the end of a game to the first observation of the next")
    call_s: float = _input(0.1, "a call of the policy, without what depends on its batch")
    answer_s: float = _input(0.0, "what each observation of a batch adds to the call")
    observation_s: float = _input(0.0, "the server's own work for an observation")
    episode_s: float = _input(0.0, "the server's own work for an episode that is stored")
    train_s: float = _input(0.0, "training after an episode, with one process")
    swap_s: float = _input(0.0, "reading the weights of a decoupled learner")
    max_batch: int = _input(32, "run.max_batch")
    window_s: float = _input(0.02, "run.window_ms, in seconds")
    replicas: int = _input(1, "devices that share the policy's batches")
    learner: str = _input("inline", "run.learner", choices=("inline", "decoupled"))
    learner_processes: int = _input(1, "run.learner_processes")
    max_stale_episodes: int = _input(
        1000, "run.max_staleness / run.train_iters_per_epoch: episodes that the policy may lack"
    )

    def call(self, size: int) -> float:
        """Seconds of the policy's call for `size` observations."""
        return self.call_s + self.answer_s * math.ceil(size / self.replicas) if size else 0.0


class RoundTime(NamedTuple):
    """What a simulated round takes, on average, in seconds; and the largest staleness, in episodes."""

    seconds: float
    environment: float
    policy: float
    training: float  # between two batches
    waiting: float  # for a learner of its own
    other: float  # the server's own work
    after_last_round: float  # until a learner of its own has learned the last episode; in no round's time
    stale_episodes: int


def predict(model: RoundModel) -> RoundTime:
    """Simulate `model.rounds` rounds."""
    return _Simulation(model).run()


class _Arrival(NamedTuple):
    """An observation that reaches the server, after so many actions of its episode."""

    at: float
    environment: int
    actions: int


class _Simulation:
    def __init__(self, model: RoundModel) -> None:
        self.model = model
        self.now = 0.0
        self.times = dict.fromkeys(("environment", "policy", "training", "waiting", "other"), 0.0)
        self.coming: list[_Arrival] = []  # a heap
        self.last_call = 0.0
        self.learned: deque[float] = deque()  # when the learner has learned each episode that it has not by now
        self.stale = 0

    def run(self) -> RoundTime:
        for _ in range(self.model.rounds):
            self._round()
        rest = max(0.0, self.learned[-1] - self.now) if self.learned else 0.0
        mean = {name: value / self.model.rounds for name, value in self.times.items()}
        return RoundTime(
            seconds=self.now / self.model.rounds,
            environment=mean["environment"],
            policy=mean["policy"],
            training=mean["training"],
            waiting=mean["waiting"],
            other=mean["other"],
            after_last_round=rest,
            stale_episodes=self.stale,
        )

    def _round(self) -> None:
        playing = min(self.model.environments, self.model.games)
        left = self.model.games - playing
        for number in range(playing):
            heapq.heappush(self.coming, _Arrival(self.now + self.model.reset_s, number, 0))
        while self.coming:
            batch = self._gather(idle=self.model.environments - playing)
            ended = [arrival for arrival in batch if arrival.actions == self.model.steps]
            self._answer([arrival for arrival in batch if arrival.actions < self.model.steps], len(batch))
            for _ in ended:
                self._train()
            for arrival in ended[:left]:
                heapq.heappush(self.coming, _Arrival(self.now + self.model.reset_s, arrival.environment, 0))
            playing -= max(0, len(ended) - left)
            left = max(0, left - len(ended))

    def _gather(self, idle: int) -> list[_Arrival]:
        """Wait for a first observation, then for more, as `RequestQueue.take` does."""
        model, began = self.model, self.now
        self.now = max(self.now, self.coming[0].at)
        deadline = self.now + max(model.window_s, self.last_call)
        batch = self._arrived(model.max_batch)
        while len(batch) < model.max_batch and (self.coming or idle):
            until = min(self.now + model.window_s, deadline)
            if not self.coming or self.coming[0].at > until:
                self.now = until
                break
            self.now = max(self.now, self.coming[0].at)
            batch += self._arrived(model.max_batch - len(batch))
        self._spend("environment", self.now - began, moved=True)
        return batch

    def _arrived(self, most: int) -> list[_Arrival]:
        taken: list[_Arrival] = []
        while self.coming and self.coming[0].at <= self.now and len(taken) < most:
            taken.append(heapq.heappop(self.coming))
        return taken

    def _answer(self, asking: list[_Arrival], received: int) -> None:
        model = self.model
        self._spend("other", model.observation_s * received)
        if not asking:
            return
        self._catch_up()
        self.last_call = model.call(len(asking))
        self._spend("policy", self.last_call)
        for arrival in asking:
            heapq.heappush(self.coming, _Arrival(self.now + model.step_s, arrival.environment, arrival.actions + 1))

    def _train(self) -> None:
        """An episode is stored; the learner takes it."""
        self._spend("other", self.model.episode_s)
        seconds = self.model.train_s / self.model.learner_processes
        if self.model.learner == "inline":
            self._spend("training", seconds)
            return
        begins = self.learned[-1] if self.learned else self.now
        self.learned.append(max(begins, self.now) + seconds)

    def _catch_up(self) -> None:
        """Before a batch: wait while the weights lack too many episodes, and read newer ones."""
        news = self._forget_learned()
        if (over := len(self.learned) - self.model.max_stale_episodes) > 0:
            self._spend("waiting", self.learned[over - 1] - self.now)
            news = self._forget_learned() or news
        self.stale = max(self.stale, len(self.learned))
        self._spend("waiting", self.model.swap_s if news else 0.0)

    def _forget_learned(self) -> bool:
        before = len(self.learned)
        while self.learned and self.learned[0] <= self.now:
            self.learned.popleft()
        return len(self.learned) < before

    def _spend(self, part: str, seconds: float, *, moved: bool = False) -> None:
        self.times[part] += seconds
        self.now += 0.0 if moved else seconds


def main() -> None:
    """Print a round's time and its parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for entry in dataclasses.fields(RoundModel):
        option = "--" + entry.name.replace("_", "-")
        parser.add_argument(option, type=type(entry.default), default=entry.default, **entry.metadata)
    model = RoundModel(**vars(parser.parse_args()))
    for name, value in predict(model)._asdict().items():
        print(f"{name:17} {value:.3g}" if isinstance(value, int) else f"{name:17} {value:.2f} s")


if __name__ == "__main__":
    main()
