"""The learner's place in a run: when it updates, and what of it survives a crash.

`Trainer` is what the loop asks for. `Training` learns in the loop's own thread, between two batches of the policy
(`run.learner=inline`); `dagger.decoupled` in a process of its own; `NoTraining` learns nothing (an evaluation).
"""

from __future__ import annotations

import hashlib
import logging
import time
from array import array
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from lavis.common.allocator import give_back_freed_memory
from lavis.common.dist_utils import barrier, get_world_size, is_main_process
from lavis.common.errors import described
from lavis.models.played import PlayedGames, played_in
from xrl_alignment.dagger.episode import LabelledEpisode
from xrl_alignment.dagger.learner import Learner, TrainingMetrics
from xrl_alignment.runs.checkpoint import CheckpointError, load_checkpoint, restore_model, save_checkpoint
from xrl_alignment.runs.directory import EpisodeRecord
from xrl_alignment.runs.transitions import write_episode


class TrainingTime(NamedTuple):
    """What training took of a round: seconds of the learner, and seconds in which the games stood still for it.

    The second is the larger one if the games waited for files, too, and the smaller one if the learner ran beside them.
    `lines` and `scalars` are further facts for `world.log` and the curves (`round/<name>`).
    """

    seconds: float = 0.0
    standstill_s: float = 0.0
    lines: tuple[str, ...] = ()
    scalars: Mapping[str, float] = {}


class Trainer(Protocol):
    """What the loop asks of whoever trains the policy's model: `Training`, `DecoupledTraining`, or `NoTraining`.

    The loop calls `restore` once, then `learn` for each episode of the journal in its order, also for those that were
    there before a resume: the trainer counts them, and so knows which of them its restored state has learned already.

    What the methods do here is all that an evaluation needs (`NoTraining`): nothing is stored, nothing is learned.
    """

    keeps_transitions: bool  # whether finished episodes are stored as shards, and their labels counted

    def status(self) -> dict[str, Any]:
        """Entries for `/status`: `training_step` (batches so far), and others."""
        return {"training_step": 0}

    def restore(self, journaled: int, cut: Collection[int] = ()) -> None:
        """Restore model and learner from the saved state, if there is one, or save the first one.

        `journaled` episodes have been played; those with the numbers `cut` are lost and about to be cut off the
        journal. The saved state counts them no more when this returns: else it would be ahead of its journal.
        Raises CheckpointError if the state is damaged, of another frozen base, or has learned from more episodes
        than the journal holds.
        """
        return  # also below: of a protocol's method without a statement mypy says that it is abstract

    def keep(self, episode: LabelledEpisode) -> str:
        """Store what is to be learned of a finished episode; returns its file's name, or "" if nothing is stored.

        The file is whole and on disk when this returns. Training may read it only after the journal names it.
        """
        return ""

    def learn(self, record: EpisodeRecord) -> None:
        """Take in the next episode of the journal and, if training is due, train; keep the state safe."""
        return

    def before_batch(self, answers: int, stopped: Callable[[], bool]) -> int | None:
        """Bring the policy's weights up to date before it gives so many `answers`; may wait, until `stopped`.

        Returns the staleness of these weights: the updates that they lack for the journal's episodes. None says that
        they can never lack any.
        """
        return None

    def end_round(self, round: int, *, last: bool) -> TrainingTime:
        """All games of `round` are over: write its checkpoint; returns what training has taken of the round.

        In the run's `last` round it first learns what came after the last turn of `train_every` episodes. A run that
        is killed before the round's memories are saved does this again, from the state of before. Memory that the
        round's batches have freed goes back to the system.
        """
        give_back_freed_memory()  # the policy's batches have freed memory even if nobody trains
        return TrainingTime()

    def finish(self, num_rounds: int) -> None:
        """All `num_rounds` have ended: return when every episode is learned and saved."""
        return


class NoTraining(Trainer):
    """The `Trainer` of an evaluation: the policy's weights stay as they are, and no transition is stored."""

    keeps_transitions = False


class TrainingFiles(Protocol):
    """Where training reads and writes (`runs.directory.RunDirectory`)."""

    logger: logging.Logger
    buffer: Path
    journal: Path
    trainer: Path

    def checkpoint(self, round: int) -> Path:
        """Path of the checkpoint after `round`."""

    def environments(self) -> list[str]:
        """Where the run's games were played so far."""

    def scalar(self, tag: str, value: float, step: int) -> None:
        """Note one point of a curve."""


def store_shard(directory: TrainingFiles, episode: LabelledEpisode) -> str:
    """Write an episode's transitions to the run's buffer; returns the shard's name, "" if there is nothing to learn.

    Transitions that no shard can hold are the fault of the episode's data: the log says so, and the run goes on. A full
    disk is an OSError, and ends the run.
    """
    if not episode.transitions:
        return ""
    facts = {name: getattr(episode, name) for name in ("game", "won", "assisted", "opening")}
    of_it = {"steps": episode.steps, "staleness": episode.staleness}
    try:
        return write_episode(directory.buffer, episode.round, episode.env, episode.transitions, facts, **of_it)
    except ValueError as error:
        directory.logger.error(f"Task: [{episode.env}] nothing is learned from it: {described(error)}")
        return ""


def load_state(path: Path, journaled: int) -> dict[str, Any]:
    """The saved state (`trainer.pth`); CheckpointError if it has learned from more episodes than were `journaled`."""
    checkpoint = load_checkpoint(path)
    if checkpoint["episodes"] > journaled:
        raise CheckpointError(
            f"{path} has learned from {checkpoint['episodes']} episodes, the journal beside it holds {journaled}: "
            "they are not of one run"
        )
    return checkpoint


def uncut(state: Mapping[str, Any], journal: Path, cut: Collection[int]) -> tuple[int, dict[str, Any]]:
    """How many of the episodes that the saved `state` has learned stay in `journal`, from which the numbers `cut` go.

    Also returns what the state with this count has to hold as `cut_from`: the journal and the count from which it was
    made. If a kill comes before the journal is cut, the next resume finds that journal again, and counts from the same
    number: with 10 learned episodes and two of them cut it is 8 again, and not 6.
    """
    if not cut:
        return state["episodes"], {}
    content = journal.read_bytes() if journal.exists() else b""
    before = {"journal": hashlib.sha256(content).hexdigest(), "episodes": state["episodes"]}
    noted = state.get("cut_from") or {}
    if noted.get("journal") == before["journal"]:
        before = noted
    return before["episodes"] - sum(number < before["episodes"] for number in cut), before


class Turns:
    """After which episodes of a journal the learner trains: after every `every`-th that was stored.

    An episode of an evaluation, or a lost one, has no shard: it brings nothing new to learn from.
    """

    def __init__(self, every: int) -> None:
        self.every = every
        self.stored = 0
        # For each number of episodes, the turns that they bring: 8 bytes an episode, where a list's would be 40.
        self._after = array("q", [0])

    def add(self, record: EpisodeRecord) -> bool:
        """Whether the learner trains after this episode, the journal's next one."""
        self.stored += bool(record.shard)
        turn = bool(record.shard) and self.stored % self.every == 0
        self._after.append(self._after[-1] + turn)
        return turn

    def since(self, episodes: int) -> int:
        """The turns that came after the first `episodes` of the journal."""
        return self._after[-1] - self._after[min(episodes, len(self._after) - 1)]

    @property
    def rest(self) -> bool:
        """Whether episodes were stored after the last turn."""
        return self.stored % self.every != 0


class Training:
    """A `Trainer` in the loop's thread, whose policy runs the model that `learner` trains.

    It updates after every `train_every` stored episodes and the run's last, and saves its state (`trainer.pth`) at most
    every `state_interval_s` seconds (0: after every episode); a resume repeats the updates since then. A checkpoint is
    written after each round if `save_ckpt`. `config` (plain containers) goes into both, and which games the model
    has trained on: `earlier_games` (of the weights that it began with) and this run's.

    `round` and `episodes` say how far the learner has come: every episode up to number `episodes` of the journal, of
    `round` or earlier, is learned. Both are saved with the weights.
    """

    keeps_transitions = True

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
        self.turns = Turns(train_every)
        self.save_ckpt = save_ckpt
        self.state_interval_s = state_interval_s
        self.config = config or {}
        self.games = earlier_games or PlayedGames()
        self.seconds: dict[int, float] = defaultdict(float)  # of the learner, by round
        self.round = self.episodes = 0
        self.saved: tuple[int, int] | None = None  # round and episodes of the state on disk; None without one
        self._saved_at = time.monotonic()  # a clock that nobody sets
        self._restored = 0  # episodes that the restored state had learned

    def status(self) -> dict[str, Any]:
        """The step of the learner."""
        return {"training_step": self.learner.training_step}

    def restore(self, journaled: int, cut: Collection[int] = ()) -> None:
        """Restore model and learner, or save the first state of a new run; see `Trainer.restore`.

        What was learned from an episode that is cut off stays in the weights: the episode is played again, and then
        learned once more.
        """
        path = self.directory.trainer
        checkpoint = load_state(path, journaled) if path.exists() else None
        cut_from: dict[str, Any] = {}
        barrier()  # every process of a group has read the state before the first one may write another
        if checkpoint:
            restore_model(self.learner.model, checkpoint, path, self.learner.replicas.load_trainable)
            self.learner.restore(checkpoint)
            # The weights have learned from every game of before, also from one whose shard is lost now.
            self.games = self.games.merged(played_in(checkpoint) or PlayedGames())
            self.round = checkpoint["round"]
            self.saved = (self.round, checkpoint["episodes"])
            self._restored, cut_from = uncut(checkpoint, self.directory.journal, cut)
        # A new run has a state before its first episode, so that a resume begins with the very same weights.
        if self.saved != (self.round, self._restored):
            self.save(episodes=self._restored, cut_from=cut_from)

    def keep(self, episode: LabelledEpisode) -> str:
        """Store a finished episode's transitions in the replay buffer's folder."""
        return store_shard(self.directory, episode)

    def learn(self, record: EpisodeRecord) -> None:
        """Train on the newest episode, and save the state if the last save is long enough ago."""
        self.train_on(record)
        # While a resume takes in what the restored state has learned, the older file is the better one.
        if self.save_is_due and self.episodes > self._restored:
            self.save()

    def train_on(self, record: EpisodeRecord) -> None:
        """Let the learner draw from an episode and, if it brings a turn, train."""
        self.episodes += 1
        turn = self.turns.add(record)
        learned = self.episodes <= self._restored  # the updates that followed this episode are in the restored weights
        if record.shard:
            (self.learner.buffer if learned else self.learner).add_shard(record.shard)
            if record.game not in self.games.games:
                self.games = self.games.merged(PlayedGames((record.game,)))
        if learned:
            return
        self.round = record.round
        if turn:
            self._train(record.round)

    def before_batch(self, answers: int, stopped: Callable[[], bool]) -> int | None:
        """None: the policy runs the model that is trained, and every update is made before it is asked again."""
        return None

    def end_round(self, round: int, *, last: bool) -> TrainingTime:
        """Write the round's checkpoint; see `Trainer.end_round`. In a group every process must call it."""
        if last and self.turns.rest:  # the last round's checkpoint is the run's result: it must have learned everything
            self._train(round)
        began = time.monotonic()
        # A run that is killed after this and before its memories are saved writes the same file once more.
        if self.save_ckpt:
            self._write(self.directory.checkpoint(round), round, self.episodes)
        self.round = round + 1
        give_back_freed_memory()  # else the process would hold the most that any of its rounds has needed
        # The games stood still while the learner ran, and while the checkpoint was written.
        return TrainingTime(self.seconds[round], self.seconds[round] + time.monotonic() - began)

    def finish(self, num_rounds: int) -> None:
        """Save the last state, unless it is on disk.

        A kill may have come between the end of the last round and this, so that the restored state is of before it.
        """
        if self.round < num_rounds:  # `end_round` of the last round was in another process
            if self.turns.rest:
                self._train(num_rounds - 1)
            self.round = num_rounds
        if self.saved != (self.round, self.episodes):
            self.save()

    @property
    def save_is_due(self) -> bool:
        """Whether the last save was long enough ago."""
        return time.monotonic() - self._saved_at >= self.state_interval_s

    def save(self, episodes: int | None = None, cut_from: dict[str, Any] | None = None) -> None:
        """Save the state; CheckpointError if it is not finite, and then the older file stays.

        It counts as one that has learned `episodes` (all that were taken in). In a process group every process must
        call this; the first one writes.
        """
        episodes = self.episodes if episodes is None else episodes
        references = self.learner.references
        # What DPO's reference said of the transitions drawn so far: a resume must not compute it once more.
        state = references.shared_state() if get_world_size() > 1 else references.state()
        self._write(self.directory.trainer, self.round, episodes, references=state, cut_from=cut_from)
        self._saved_at = time.monotonic()
        self.saved = (self.round, episodes)

    def _train(self, round: int) -> None:
        """One turn of the learner: all the updates that follow an episode, its figures in log and curves."""
        self.directory.logger.info("*************Start Training*************")  # the original's line
        began = time.monotonic()

        def report(metrics: TrainingMetrics) -> None:
            self.directory.logger.info(metrics.line(round))
            for tag, value in metrics.scalars():
                self.directory.scalar(f"train/{tag}", value, metrics.step)

        self.learner.learn(round, report)
        self.seconds[round] += time.monotonic() - began

    def _write(self, path: Path, round: int, episodes: int, **more: dict[str, Any] | None) -> None:
        replicas = self.learner.replicas
        # All processes of a group gather what each holds a shard of; the first one writes it.
        weights, optimizer = replicas.trainable_state(), replicas.optimizer_state(self.learner.optimizer)
        random = self.learner.random_state()
        if not is_main_process():
            return
        save_checkpoint(
            path,
            model=self.learner.model,
            weights=weights,
            optimizer=optimizer,
            scaler=self.learner.updater.scaler,
            round=round,
            training_step=self.learner.training_step,
            episodes=episodes,
            random=random,
            config=self.config,
            **more,
            played=self.games.merged(PlayedGames(environments=tuple(self.directory.environments()))).as_dict(),
        )
