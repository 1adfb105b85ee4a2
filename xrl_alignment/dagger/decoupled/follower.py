"""The learner's side: follows a run's journal, learns every episode once, publishes what trains.

Weights are a function of the journal: episodes are learned in its order, with the random state of `trainer.pth`. So a
killed learner continues from there and comes to the very same weights; a run with `run.learner=inline` and the same
journal has them, too. In a process group all processes do what the first one finds to do; only that one writes.
"""

from __future__ import annotations

import time
from collections import deque

from lavis.common.dist_utils import gathered, is_main_process
from xrl_alignment.dagger.decoupled.directory import LearnerDirectory
from xrl_alignment.dagger.decoupled.published import Version, publish
from xrl_alignment.dagger.training import Training, Turns
from xrl_alignment.runs.directory import EpisodeRecord

LOOK_S = 0.02  # between two looks at a journal in which nothing is new
PUBLISH_S = 0.5  # between two publications, at least, while more episodes wait; the last of them is published at once
PUBLISH_SHARE = 0.03  # of the learner's time for publications, at most, while more episodes wait


class Follower:
    """Brings `training` to where the journal of `directory` ends, until all `num_rounds` are over.

    `updates` follow each turn of the learner, and the policy waits while its weights lack more than `max_staleness`:
    weights that end its wait are published at once.
    """

    def __init__(
        self,
        training: Training,
        directory: LearnerDirectory,
        *,
        num_rounds: int,
        updates: int = 1,
        max_staleness: int = 0,
    ) -> None:
        self.training = training
        self.directory = directory
        self.num_rounds = num_rounds
        self.updates = updates
        self.max_staleness = max_staleness
        self._waiting: deque[EpisodeRecord] = deque()
        self._turns = Turns(training.turns.every)
        self._over = 0  # rounds that have ended
        self._published: Version | None = None
        self._publish_next = 0.0  # not before this time, unless the policy waits

    def run(self) -> None:
        """Learn until the last round is over; then everything is saved and published.

        Raises DivergedError or CheckpointError if loss, gradient or weights are not finite, and CheckpointError if the
        saved state is not of this run.
        """
        self.begin()
        while self.training.round < self.num_rounds:
            if not self.advance():
                time.sleep(LOOK_S)
        self._publish()
        self.training.finish(self.num_rounds)

    def begin(self) -> None:
        """Continue from the saved state, if there is one, and publish its weights."""
        self._look()
        self.training.restore(len(self._waiting))  # with a new run's first state, if there was none
        assert self.training.saved
        for _ in range(self.training.saved[1]):
            self.training.train_on(self._waiting.popleft())
        self._tell(0.0)
        self._publish()

    def advance(self) -> bool:
        """Learn from the next episode, or end the round; False if there is nothing to do."""
        self._look()
        # What comes next. The first process decides for its group: the others' clocks differ, and all must compute
        # together.
        todo = "end" if self.training.round < self._over else ""
        if self._waiting and self._waiting[0].round <= self.training.round:
            todo = "learn"
        todo, save = gathered((todo, self.training.save_is_due))[0]

        round, step, seconds = self.training.round, self.training.learner.training_step, self.training.seconds
        if todo == "learn":
            while not self._waiting:  # another process has seen the episode already
                time.sleep(LOOK_S)
                self._look()
            record = self._waiting.popleft()
            before = seconds[record.round]
            self.training.train_on(record)
            self._tell(seconds[record.round] - before)
        elif todo == "end":
            before = seconds[round]
            self.training.end_round(round, last=round == self.num_rounds - 1)
            if self.training.learner.training_step != step:  # the last round's rest was learned
                self._tell(seconds[round] - before)
            self.training.save()
        if save and self.training.saved != (self.training.round, self.training.episodes):
            self.training.save()

        # Publish what is new, also after an episode from which nothing is to be learned: the policy may wait for it.
        # While more episodes wait, publications have their interval, unless the policy waits for these weights. A
        # published file that the server has removed was damaged.
        published = self._published.episodes if self._published else 0
        # The updates that the published weights lack for the journal's episodes, and those that the new ones lack.
        lacking, left = (self._turns.since(episodes) * self.updates for episodes in (published, self.training.episodes))
        ends_a_wait = lacking > self.max_staleness >= left
        due = not todo or time.monotonic() >= self._publish_next or ends_a_wait
        if gathered(due and (self._published != self._version or not self.directory.published.exists()))[0]:
            self._publish()
        return bool(todo)

    def _look(self) -> None:
        # In this order: when a round is said to be over, all its episodes are in the journal.
        self._over = self.directory.rounds_over()
        for record in self.directory.new_records():
            self._turns.add(record)
            self._waiting.append(record)

    def _tell(self, seconds: float) -> None:
        self.directory.tell(**self._version._asdict(), seconds=seconds)

    @property
    def _version(self) -> Version:
        return Version(self.training.episodes, self.training.learner.training_step)

    def _publish(self) -> None:
        began = time.monotonic()
        self._published = self._version
        weights = self.training.learner.replicas.trainable_state()  # all processes gather it
        if is_main_process():
            publish(self.directory.published, weights, self._published)
        # A large model takes seconds to publish: the learner then learns more episodes between two publications.
        now = time.monotonic()
        self._publish_next = now + max(PUBLISH_S, (now - began) / PUBLISH_SHARE)
