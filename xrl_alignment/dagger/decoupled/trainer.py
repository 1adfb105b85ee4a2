"""The server's side of `run.learner=decoupled`: swaps in what the learner publishes, and bounds how old it may be."""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lavis.checkpoints import restore_model, write
from lavis.common.allocator import give_back_freed_memory
from lavis.common.errors import FileError
from lavis.models.student import Student
from xrl_alignment.dagger.decoupled.directory import learner_lock
from xrl_alignment.dagger.decoupled.process import LearnerFault, LearnerProcess
from xrl_alignment.dagger.decoupled.published import PublishedError, Version, read_published
from xrl_alignment.dagger.episode import LabelledEpisode
from xrl_alignment.dagger.training import TrainingTime, Turns, load_state, store_shard, uncut
from xrl_alignment.runs.directory import EpisodeRecord, RunDirectory
from xrl_alignment.runs.tail import Tail

LOOK_S = 0.02  # between two looks at what the learner says, while the policy waits
SAY_S = 1.0  # of waiting, before the server says that it waits
MAX_DAMAGED = 3  # publications in a row


class DecoupledTraining:
    """A `Trainer` whose learner runs in `process`; `model` is the policy's.

    An *update* is one step of the optimiser: `updates` of them follow each `train_every`-th stored episode. The
    policy's *staleness* is the number of updates that its weights lack for the episodes of the journal; before a batch,
    the policy waits while it is above `max_staleness`. `say` is told when it waits, and when the learner was killed.
    """

    keeps_transitions = True

    def __init__(
        self,
        model: Student,
        directory: RunDirectory,
        process: LearnerProcess,
        *,
        updates: int,
        train_every: int = 1,
        max_staleness: int = 0,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.model = model
        self.directory = directory
        self.process = process
        self.updates = updates
        self.max_staleness = max_staleness
        self.say = say
        self.version = Version()  # of the policy's weights
        self.learned = Version()  # what the learner has said
        self.waiting = False  # whether the policy waits for the learner now
        self.waited_s = 0.0
        self._turns = Turns(train_every)
        self._seen = (0, 0)  # the published file that was looked at last: inode, time
        self._damaged = 0
        self._unread = ""  # why published weights could not be read the last time
        self._told: list[dict[str, Any]] = []  # by the learner, since the last episode that it has learned
        self._tail = Tail(directory.learned)
        self._in_round = _InRound()
        self._held_back = False  # whether `restore` has left it to a later call to start the learner

    # --- what the loop asks ----------------------------------------------------------------------------------------

    @property
    def staleness(self) -> int:
        """Updates that the policy's weights lack for the journal's episodes."""
        return self._turns.since(self.version.episodes) * self.updates

    def status(self) -> dict[str, Any]:
        """What `/status` shows of the learner."""
        return {
            "training_step": self.learned.training_step,  # as the learner has said
            "learner": {
                "episodes": self.learned.episodes,
                "staleness": self.staleness,
                "max_staleness": self.max_staleness,
                "waiting": self.waiting,
                "waited_s": round(self.waited_s, 3),
                "restarts": self.process.deaths,
            },
        }

    def restore(self, journaled: int, cut: Collection[int] = ()) -> None:
        """Give the policy the saved weights, or the newer published ones; see `Trainer.restore`.

        The learner of a server that was killed may still save: this waits for its end, or the old learner would write
        over the corrected count of episodes. Raises RunDirectoryError if it does not end.
        """
        learner_lock(self.directory).close()
        path = self.directory.trainer
        if path.exists():
            checkpoint = load_state(path, journaled)
            restore_model(self.model, checkpoint, path)
            self.version = self.learned = Version(checkpoint["episodes"], checkpoint["training_step"])
            self._swap()
            if cut:
                # Episodes that are about to be cut off count no more; what was learned from them stays in the weights.
                # Published weights are newer than the saved ones, but count the episodes of the journal as it was. So
                # they count as old as the saved ones: else the policy would not wait for an episode that is played
                # again. The file says another count, which the next resume would believe: the learner publishes anew.
                self.directory.published.unlink(missing_ok=True)
                episodes, cut_from = uncut(checkpoint, self.directory.journal, cut)
                checkpoint |= {"episodes": episodes, "cut_from": cut_from}
                write(path, checkpoint)
                self.learned = self.learned._replace(episodes=episodes)
                self.version = self.version._replace(episodes=episodes)
        self._catch_up()
        self.directory.learned.unlink(missing_ok=True)
        self._held_back = True
        if not journaled:
            self._start()

    def keep(self, episode: LabelledEpisode) -> str:
        """Store a finished episode's transitions; the learner's process reads them when the journal names them."""
        return store_shard(self.directory, episode)

    def learn(self, record: EpisodeRecord) -> None:
        """Count the updates that an episode asks for; the learner finds it in the journal, learns it and saves."""
        self._start()
        self._turns.add(record)

    def before_batch(self, answers: int, stopped: Callable[[], bool]) -> int | None:
        """Swap in the newest weights; wait while they are too old. Returns their staleness.

        Raises LearnerFault if the learner cannot continue, and PublishedError if what it publishes is damaged again
        and again.
        """
        began = time.monotonic()
        self._look()
        if self.staleness > self.max_staleness:
            self._wait(lambda: self.staleness <= self.max_staleness or stopped(), "the policy waits for the learner")
        self._in_round.answers[self.staleness] += answers
        self._in_round.standstill_s += time.monotonic() - began
        return self.staleness

    def end_round(self, round: int, *, last: bool) -> TrainingTime:
        """What the learner did beside the round, how long the policy waited, how stale it was.

        The learner writes the checkpoint when it has learned the round's episodes, and in the last round the rest.
        """
        self._look()
        give_back_freed_memory()  # the server's, for the policy's batches; the learner gives back its own
        taken, self._in_round = self._in_round, _InRound()
        answers = taken.answers
        mean = sum(staleness * count for staleness, count in answers.items()) / max(answers.total(), 1)
        largest, bound = max(answers, default=0), self.max_staleness
        return TrainingTime(
            seconds=taken.trained_s,
            standstill_s=taken.standstill_s,
            lines=(f"STALENESS: {mean:.1f} updates on average, at most {largest} (run.max_staleness={bound})",),
            scalars={"staleness": mean, "max_staleness": largest, "waited_seconds": taken.standstill_s},
        )

    def finish(self, num_rounds: int) -> None:
        """Wait until the learner has learned and saved everything."""
        self._wait(lambda: self.process.finished, "the games are over; the learner is not done")
        self._look()

    # --- the learner -----------------------------------------------------------------------------------------------

    def _start(self) -> None:
        """Start the learner if that is still to be done.

        `restore` does it only in a new run. In a resumed one lost episodes may be cut off the journal after `restore`,
        and the learner must not read the journal before that: the first episode that is taken in, or the first look,
        starts it.
        """
        if self._held_back:
            self._held_back = False
            self.process.start()

    def _wait(self, over: Callable[[], bool], why: str) -> None:
        began = time.monotonic()
        self.waiting = True
        try:
            while not over():
                if why not in self._in_round.told and time.monotonic() - began > SAY_S:
                    self._in_round.told.add(why)
                    self._tell(f"{why}: {self.staleness} updates behind, run.max_staleness={self.max_staleness}")
                time.sleep(LOOK_S)
                self._look()
        finally:
            self.waiting = False
            self.waited_s += time.monotonic() - began

    def _look(self) -> None:
        """Read what the learner says, take what it publishes, see that it lives."""
        self._start()
        self._listen()
        self._swap()
        try:
            if news := self.process.check(self.learned.episodes):
                self._tell(news, logging.ERROR)
        except LearnerFault as error:
            self.directory.logger.error(str(error))
            kept = f"the run is kept: repeat the command with --resume {self.directory.path}"
            raise LearnerFault(f"{error}; {kept}") from error

    def _catch_up(self) -> None:
        """Note what a learner has said and saved, and the server before this one has not read.

        Curves and lines of the log only: if a power failure has damaged some of them, the run goes on without these.
        """
        points = self._readable(self.directory.state / "metrics.jsonl")
        noted = max((point["step"] for point in points if point["tag"].startswith("train/")), default=-1)
        told: list[dict[str, Any]] = []
        for said in self._readable(self.directory.learned):
            if "episodes" not in said:
                told.append(said)
                continue
            # What comes after the saved state is learned, and said, once more.
            if noted < said["training_step"] <= self.learned.training_step:
                self._note(told)
            told = []

    def _readable(self, path: Path) -> Iterator[dict[str, Any]]:
        """The objects in the lines of `path`; the run's log names lines that hold none."""
        for start, line in Tail(path).lines():
            try:
                content = json.loads(line)
            except (ValueError, RecursionError):
                content = None
            if isinstance(content, dict):
                yield content
            else:
                self.directory.logger.warning("%s has a line that cannot be read, at byte %d: left out", path, start)

    def _note(self, told: list[dict[str, Any]]) -> None:
        for said in told:
            if "log" in said:
                self.directory.logger.log(logging.getLevelName(said["level"]), said["log"])
            else:
                self.directory.scalar(said["tag"], said["value"], said["step"])

    def _listen(self) -> None:
        for _, line in self._tail.lines():
            said = json.loads(line)
            if "episodes" not in said:
                self._told.append(said)
                continue
            # Lines before this one belong to the episode that it says is learned.
            now = Version(said["episodes"], said["training_step"])
            if now > self.learned:  # a learner that was killed learns, and says, some of it again
                self.learned = now
                self._in_round.trained_s += said["seconds"]
                self._note(self._told)
            self._told = []

    def _swap(self) -> None:
        """Give the policy the published weights, if they are newer than its own."""
        path = self.directory.published
        try:
            stat = path.stat()  # the file is replaced and never changed: a new inode, or a new time
            if (stat.st_ino, stat.st_mtime_ns) == self._seen:
                return
            version, weights = read_published(path)
            self._seen = (stat.st_ino, stat.st_mtime_ns)
        except FileNotFoundError:
            return  # not published yet
        except FileError as error:  # perhaps for a moment only: it is read again at the next look
            if str(error) != self._unread:
                self._unread = str(error)
                self._tell(f"{error}; the policy keeps its weights, the file is read again", logging.WARNING)
            return
        except PublishedError as error:
            # The policy keeps its weights. Without the file the learner publishes again; a disk that damages every
            # file would have the two do so for ever.
            self._damaged += 1
            self.directory.logger.error(f"{error}; the policy keeps its weights, the learner publishes again")
            if self._damaged >= MAX_DAMAGED:
                raise PublishedError(f"{error}, {MAX_DAMAGED} times in a row: look at the disk") from error
            path.unlink(missing_ok=True)
            return
        self._damaged, self._unread = 0, ""
        # A learner that was killed and started again publishes older weights first.
        if version > self.version:
            self.model.load_trainable(weights)
            self.version = version

    def _tell(self, text: str, level: int = logging.INFO) -> None:
        self.directory.logger.log(level, text)
        self.say(text)


@dataclass
class _InRound:
    """What is counted in a round."""

    trained_s: float = 0.0
    standstill_s: float = 0.0  # waiting, and reading weights
    told: set[str] = field(default_factory=set)  # why the server waits, once a round
    answers: Counter[int] = field(default_factory=Counter)  # of the policy, by its staleness
