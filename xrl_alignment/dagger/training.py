"""The learner's place in a run: when it updates, and what of it survives a crash.

`Trainer` is what the loop asks for. `Training` learns in the loop's own thread, between two batches of the policy
(`run.learner=inline`); `learner.decoupled` in a process of its own.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from lavis.common.dist_utils import get_world_size, is_main_process
from lavis.runners.played import PlayedGames
from xrl_alignment.dagger.learner import Learner, TrainingMetrics
from xrl_alignment.runs.checkpoint import CheckpointError, load_checkpoint, restore_model, save_checkpoint
from xrl_alignment.runs.directory import EpisodeRecord


class TrainingTime(NamedTuple):
    """What training took of a round: seconds of the learner, and seconds in which the games stood still for it.

    `lines` and `scalars` are further facts for `world.log` and the curves (`round/<name>`).
    """

    seconds: float = 0.0
    standstill_s: float = 0.0
    lines: tuple[str, ...] = ()
    scalars: Mapping[str, float] = {}


class Trainer(Protocol):
    """What the loop asks of whoever trains the policy's model; `episodes` is always how many the journal holds."""

    @property
    def training_step(self) -> int:
        """Batches so far."""

    @property
    def staleness(self) -> int | None:
        """Updates that the policy's weights lack for the journal's episodes; None where they never lack any."""

    def status(self) -> dict[str, Any]:
        """Entries for `/status`."""

    def restore(self, journaled: int) -> int | None:
        """Restore the model; how many episodes the saved state has learned from, None without one.

        Raises CheckpointError when the state is damaged, of another frozen base, or has learned from more episodes
        than the `journaled` ones.
        """

    def recount(self, round: int, episodes: int) -> None:
        """Save that the state has learned from `episodes`, for some were cut off the journal."""

    def begin(self, round: int, learned: int | None) -> None:
        """Begin to train, with the state that `restore` has given."""

    def take(self, record: EpisodeRecord) -> None:
        """Learn from a stored episode as well from now on."""

    def update(self, record: EpisodeRecord, episodes: int) -> None:
        """Train if training is due; `record` is the newest episode."""

    def update_rest(self, round: int, episodes: int) -> None:
        """Train once more at the end of the run, in its last `round`, if episodes came after the last turn."""

    def catch_up(self, answers: int, stopped: Callable[[], bool]) -> None:
        """Bring the policy's weights up to date, before it gives so many `answers`; may wait, until `stopped`."""

    def take_time(self, round: int) -> TrainingTime:
        """What training has taken of `round`, which has ended."""

    def end_round(self, round: int, episodes: int) -> None:
        """Write the round's checkpoint."""

    def save(self, round: int, episodes: int) -> None:
        """Save the state at the beginning of `round`."""

    def save_if_due(self, round: int, episodes: int) -> None:
        """Save the state unless that was done a moment ago."""

    def saved_in(self, round: int) -> bool:
        """Whether the state on disk was saved in `round` or later, or will be without the loop."""

    def finish(self, round: int, episodes: int) -> None:
        """All rounds have ended: return when every episode is learned and saved."""


class TrainingFiles(Protocol):
    """Where training reads and writes (`runs.directory.RunDirectory`)."""

    logger: logging.Logger
    buffer: Path
    trainer: Path

    def checkpoint(self, round: int) -> Path:
        """Path of the checkpoint after `round`."""

    def environments(self) -> list[str]:
        """Where the run's games were played so far."""

    def scalar(self, tag: str, value: float, step: int) -> None:
        """Note one point of a curve."""


def load_state(path: Path, journaled: int) -> dict[str, Any]:
    """The saved state (`trainer.pth`); CheckpointError where it knows more episodes than the `journaled` ones."""
    checkpoint = load_checkpoint(path)
    if checkpoint["episodes"] > journaled:
        raise CheckpointError(
            f"{path} has learned from {checkpoint['episodes']} episodes, the journal beside it holds {journaled}: "
            "they are not of one run"
        )
    return checkpoint


class Training:
    """A `Trainer` in the loop's thread, whose policy runs the model that `learner` trains.

    It updates after every `train_every` episodes and the run's last, and saves its state (`trainer.pth`) at most every
    `state_interval_s` seconds (0: after every episode); a resume repeats the updates since then. A checkpoint is
    written after each round where `save_ckpt`. `config` (plain containers) goes into both, and which games the model
    has trained on: `earlier_games` (of the weights that it began with) and this run's.
    """

    def __init__(
        self,
        learner: Learner,
        directory: TrainingFiles,
        *,
        train_every: int = 1,
        save_ckpt: bool = True,
        state_interval_s: float = 30.0,
        config: dict[str, Any] | None = None,
        earlier_games: PlayedGames | None = None,
    ) -> None:
        self.learner = learner
        self.directory = directory
        self.train_every = train_every
        self.save_ckpt = save_ckpt
        self.state_interval_s = state_interval_s
        self.config = config or {}
        self.games = earlier_games or PlayedGames()
        self.seconds: dict[int, float] = defaultdict(float)  # by round
        self._saved_at = time.monotonic()
        self._saved: tuple[int, int] | None = None  # round and episodes of the state on disk

    @property
    def training_step(self) -> int:
        """Batches so far."""
        return self.learner.training_step

    @property
    def staleness(self) -> int | None:
        """None: every update is made before the policy is asked again."""
        return None

    def status(self) -> dict[str, Any]:
        """Nothing beside the step."""
        return {}

    def take(self, record: EpisodeRecord) -> None:
        """Let the learner draw from a stored episode."""
        if record.shard:
            self.learner.buffer.add_shard(record.shard)
            if record.game not in self.games.games:
                self.games = self.games.merged(PlayedGames((record.game,)))

    def update(self, record: EpisodeRecord, episodes: int) -> None:
        """Train if training is due: `episodes` have ended, `record` is the newest."""
        if record.shard and episodes % self.train_every == 0:
            self._learn(record.round)

    def update_rest(self, round: int, episodes: int) -> None:
        """Train once more at the end of the run, in its last `round`, if episodes came after the last turn."""
        if episodes % self.train_every and len(self.learner.buffer):
            self._learn(round)

    @property
    def saved(self) -> tuple[int, int] | None:
        """Round and episodes of the state on disk; None without one."""
        return self._saved

    def saved_in(self, round: int) -> bool:
        """Whether the state on disk was saved in `round` or later."""
        return self._saved is not None and self._saved[0] >= round

    def restore(self, journaled: int) -> int | None:
        """Restore model and learner; returns how many episodes they had learned from, None without a saved state.

        Raises CheckpointError when the state is damaged, of another frozen base, or has learned from more episodes
        than the `journaled` ones.
        """
        path = self.directory.trainer
        if not path.exists():
            return None
        checkpoint = load_state(path, journaled)
        restore_model(self.learner.model, checkpoint, path, self.learner.replicas.load_trainable)
        self.learner.restore(checkpoint)
        self._saved = (checkpoint["round"], checkpoint["episodes"])
        return checkpoint["episodes"]

    def recount(self, round: int, episodes: int) -> None:
        """Save the state as one that has learned from `episodes`."""
        self.save(round, episodes)

    def begin(self, round: int, learned: int | None) -> None:
        """Save the first state of a new run."""
        if learned is None:
            self.save(round, 0)

    def catch_up(self, answers: int, stopped: Callable[[], bool]) -> None:
        """Does nothing: the policy runs the model that is trained."""

    def take_time(self, round: int) -> TrainingTime:
        """The games stood still while the learner ran."""
        return TrainingTime(self.seconds[round], self.seconds[round])

    def save_if_due(self, round: int, episodes: int) -> None:
        """Save the state unless that was done a moment ago."""
        if self.save_is_due:
            self.save(round, episodes)

    @property
    def save_is_due(self) -> bool:
        """Whether the last save was long enough ago."""
        return time.monotonic() - self._saved_at >= self.state_interval_s

    def finish(self, round: int, episodes: int) -> None:
        """Save the state unless the one on disk is that of now: a kill may have come between two writes."""
        if self._saved != (round, episodes):
            self.save(round, episodes)

    def save(self, round: int, episodes: int) -> None:
        """Save the state; CheckpointError where it is not finite, and then the older file stays.

        In a process group every process must call it; the first one writes.
        """
        references = self.learner.references
        state = references.shared_state() if get_world_size() > 1 else references.state()
        self._write(self.directory.trainer, round, episodes, references=state)
        self._saved_at = time.monotonic()
        self._saved = (round, episodes)

    def end_round(self, round: int, episodes: int) -> None:
        """Write the round's checkpoint; in a process group every process must call it, as `save`."""
        if self.save_ckpt:
            self._write(self.directory.checkpoint(round), round, episodes)

    def _learn(self, round: int) -> None:
        self.directory.logger.info("*************Start Training*************")
        began = time.monotonic()
        self.learner.learn(round, lambda metrics: self._log(round, metrics))
        self.seconds[round] += time.monotonic() - began

    def _write(self, path: Path, round: int, episodes: int, references: dict[str, Any] | None = None) -> None:
        replicas = self.learner.replicas
        weights, optimizer = replicas.trainable_state(), replicas.optimizer_state(self.learner.optimizer)
        if not is_main_process():
            return
        save_checkpoint(
            path,
            model=self.learner.model,
            weights=weights,
            optimizer=optimizer,
            scaler=self.learner.scaler,
            round=round,
            training_step=self.learner.training_step,
            episodes=episodes,
            random=self.learner.random_state(),
            config=self.config,
            references=references,
            played=self.games.merged(PlayedGames(environments=tuple(self.directory.environments()))).as_dict(),
        )

    def _log(self, epoch: int, metrics: TrainingMetrics) -> None:
        self.directory.logger.info(metrics.line(epoch))
        for tag, value in metrics.scalars():
            self.directory.scalar(f"train/{tag}", value, metrics.step)
