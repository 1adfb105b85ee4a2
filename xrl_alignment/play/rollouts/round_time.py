"""How long a round of training takes on machines that one does not have yet: a formula over a few measured times.

    python -m xrl_alignment.rollouts.round_time --environments 64 --call-s 0.2 --train-s 0.1 --learner decoupled

`predict` has the formula and its assumptions. It does not know episodes that end early because a game is solved, an
expert over a network, and lost environments. `benchmarks/round_time.py` compares it with real runs.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
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
    rounds: int = _input(4, "rounds of the run; the result is their mean")
    step_s: float = _input(0.5, "a step of an environment, with its way to the server and back")
    reset_s: float = _input(0.0, "from the end of a game to the first observation of the next")
    call_s: float = _input(0.1, "a call of the policy, without what depends on its batch")
    answer_s: float = _input(0.0, "what each observation of a batch adds to the call")
    observation_s: float = _input(0.0, "the server's own work for an observation")
    episode_s: float = _input(0.0, "the server's own work for an episode that is stored")
    train_s: float = _input(0.0, "training after an episode, with one process")
    max_batch: int = _input(32, "run.max_batch")
    replicas: int = _input(1, "devices that share the policy's batches")
    learner: str = _input("inline", "run.learner", choices=("inline", "decoupled"))
    learner_processes: int = _input(1, "run.learner_processes")
    max_stale_episodes: int = _input(
        1000, "run.max_staleness / run.train_iters_per_epoch: episodes that the policy may lack"
    )


class RoundTime(NamedTuple):
    """What a round takes on average, in seconds: the sum, then its parts as in `TIME SPLIT`."""

    seconds: float
    environment: float
    policy: float
    training: float  # between two batches
    waiting: float  # for a learner of its own
    other: float  # the server's own work
    after_last_round: float  # until a learner of its own has learned the last episode; in no round's time


def predict(model: RoundModel) -> RoundTime:
    """The mean round of a run of `model.rounds` rounds.

    Every episode has `steps` actions, so a round is played in waves: `environments` games begin and end together, the
    last wave of the round has what is left. The games of a wave come to the policy in k batches of equal size, which
    take turns. One action of all games takes max(step + call, k call): either the server waits for the environments,
    or the environments wait for the server. At its end a wave takes min(step, (k - 1) call) more, because the last
    batch began that much later than the first.

    An inline learner adds its time to each wave. A decoupled one learns beside the games; the policy waits before a
    batch while its weights lack more than `max_stale_episodes`.
    """
    full, rest = divmod(model.games, model.environments)
    waves = [model.environments] * full + [rest] * (rest > 0)
    environment = policy = other = 0.0
    for games in waves:
        batches = math.ceil(games / model.max_batch)
        size = games / batches
        call = model.call_s + model.answer_s * math.ceil(size / model.replicas)
        busy = call + model.observation_s * size
        episode = model.steps * max(model.step_s + busy, batches * busy)
        episode += min(model.step_s, (batches - 1) * busy)
        policy += model.steps * batches * call
        environment += model.reset_s + episode - model.steps * batches * busy
        # An episode has one observation more than actions: its last one.
        other += games * ((model.steps + 1) * model.observation_s + model.episode_s)
    played, train_s = environment + policy + other, model.train_s / model.learner_processes
    if model.learner == "inline":
        training = model.games * train_s
        return RoundTime(played + training, environment, policy, training, 0.0, other, 0.0)

    # After each wave but the run's last one, the policy waits for what the wave put above the bound …
    bursts = model.rounds * sum(max(0, games - model.max_stale_episodes) for games in waves)
    bursts -= max(0, waves[-1] - model.max_stale_episodes)
    # … or, if the learner is slower than the games, for all that is above the bound when the last wave begins.
    # The learner begins after the first wave, and is always busy then.
    begins, episodes = played / len(waves), model.rounds * model.games
    slow = begins + (episodes - waves[-1] - model.max_stale_episodes) * train_s
    whole = max(model.rounds * played + bursts * train_s, slow)
    after = max(waves[-1] * train_s, begins + episodes * train_s - whole)
    seconds = whole / model.rounds
    return RoundTime(seconds, environment, policy, 0.0, seconds - played, other, after)


def main() -> None:
    """Print a round's time and its parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for entry in dataclasses.fields(RoundModel):
        option = "--" + entry.name.replace("_", "-")
        parser.add_argument(option, type=type(entry.default), default=entry.default, **entry.metadata)
    given = RoundModel(**vars(parser.parse_args()))
    for name in ("environments", "games", "steps", "rounds", "max_batch", "replicas", "learner_processes"):
        if getattr(given, name) < 1:
            parser.error(f"--{name.replace('_', '-')} {getattr(given, name)}: use at least 1")
    for name, value in vars(given).items():
        if not isinstance(value, str) and not 0 <= value < math.inf:
            parser.error(f"--{name.replace('_', '-')} {value}: use a number of at least 0")
    if given.learner_processes > 1 and given.learner == "inline":
        parser.error("--learner-processes needs --learner decoupled")
    for name, seconds in predict(given)._asdict().items():
        print(f"{name:17} {seconds:.2f} s")


if __name__ == "__main__":
    main()
