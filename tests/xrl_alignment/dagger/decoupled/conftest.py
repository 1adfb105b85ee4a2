"""A learner beside a run whose games have been played."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from lavis.common.devices import set_seed
from tests.xrl_alignment.dagger.decoupled.stored import copy_stored
from xrl_alignment.builders.student import load_student
from xrl_alignment.dagger.decoupled.directory import LearnerDirectory
from xrl_alignment.dagger.decoupled.follower import Follower
from xrl_alignment.dagger.decoupled.trainer import DecoupledTraining
from xrl_alignment.dagger.training import Training


class ThreadedLearner:
    """In place of the learner's process, for tests of a second: the same learner, in a thread."""

    def __init__(self, path: Path, make: Callable[[LearnerDirectory], Follower]) -> None:
        self.path, self.make = path, make
        self.deaths, self.finished = 0, False

    def start(self) -> None:
        threading.Thread(target=self._run, daemon=True).start()

    def check(self, learned: int) -> str:
        return ""

    def stop(self) -> None:
        pass

    def _run(self) -> None:
        directory = LearnerDirectory(self.path)
        self.make(directory).run()
        directory.close()
        self.finished = True


@pytest.fixture
def decoupled(learner_maker):
    """`decoupled(max_staleness)`: makes the trainer of a `Run` whose learner is a `ThreadedLearner`."""

    def follower(directory: LearnerDirectory) -> Follower:
        model, vis_processor = load_student({}, torch.device("cpu"))
        learner = learner_maker(model, vis_processor, directory.buffer)
        return Follower(Training(learner, directory, state_interval_s=0.0), directory, num_rounds=2)

    def make(max_staleness: int) -> Callable[..., DecoupledTraining]:
        def trainer(run) -> DecoupledTraining:
            process = ThreadedLearner(run.directory.path, follower)
            return DecoupledTraining(run.model, run.directory, process, updates=1, max_staleness=max_staleness)

        return trainer

    return make


@pytest.fixture
def follow(tmp_path, learner_maker):
    """`follow(run)`: a new learner beside a copy of the run that has only what a decoupled server writes."""
    opened: list[LearnerDirectory] = []

    def make(run, *, name: str = "decoupled", interval_s: float = 0.0, train_every: int = 1) -> Follower:
        path = tmp_path / name
        if not path.exists():
            copy_stored(run.directory, path)
        for other in opened:
            other.close()
        directory = LearnerDirectory(path, patience_s=0.1)
        opened.append(directory)
        set_seed(42)
        model, vis_processor = load_student(run.student, torch.device("cpu"))
        if run.preferences:
            model.set_reference()
        learner = learner_maker(model, vis_processor, directory.buffer, preferences=run.preferences)
        training = Training(learner, directory, state_interval_s=interval_s, train_every=train_every)
        return Follower(training, directory, num_rounds=2)

    yield make
    for directory in opened:
        directory.close()
