"""One game being played: what was shown, said, done and labelled so far."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from xrl_alignment.dagger.replay import Transition
from xrl_alignment.experts.base import Expert, Label
from xrl_alignment.language.commands import MAX_THOUGHTS, is_thought, normalise
from xrl_alignment.language.history import EnvironmentHistory
from xrl_alignment.wire.messages import Observation


def plain(text: str) -> str:
    """`text` without what files and shards cannot hold (NUL, half surrogates): a client may send anything."""
    return text.replace("\0", " ").encode("utf-8", "replace").decode("utf-8")


@dataclass
class Episode:
    """One game in one session's hands. `opening` is the text after reset, without banner."""

    env: int
    game: str
    round: int
    beta: float
    opening: str
    memories: Sequence[str]
    expert: Expert
    history: EnvironmentHistory  # for its count of repeated actions
    observation: Observation  # the newest
    steps: list[tuple[str, str]] = field(default_factory=list)  # executed action, feedback; thoughts included
    transitions: list[Transition] = field(default_factory=list)
    actions: int = 0  # sent to the environment
    thoughts: int = 0  # in a row
    assisted: bool = False  # the expert drove at least one step
    awaiting: str = ""  # the action whose feedback has not come yet
    started: float = field(default_factory=time.monotonic)

    def send(self, action: str) -> str:
        """Note that `action` goes to the environment; returns it."""
        self.thoughts = 0
        self.actions += 1
        self.awaiting = action
        return action

    def receive(self, observation: Observation) -> None:
        """Take in what the environment answered to the action that was sent."""
        self.observation = observation
        feedback = plain(observation.text)
        self.expert.observe(self.awaiting, feedback)
        self._hear(self.awaiting, feedback)

    def thinks(self, action: str) -> bool:
        """Whether `action` is a thought that may still be answered `OK.` without the environment; then it is."""
        if not is_thought(action) or self.thoughts >= MAX_THOUGHTS:
            return False
        self.thoughts += 1
        self._hear(action, "OK.")
        return True

    def label(self, advice: Label, *, thoughts: bool) -> str | None:
        """The expert's `advice` for now as text; None where it has no answer (filtered).

        With `thoughts`, a thought that this episode has not had comes before the action it explains.
        """
        thought = plain(normalise(f"think: {advice.thought}"))
        if thoughts and advice.thought and not self.thoughts and all(action != thought for action, _ in self.steps):
            return thought
        return None if advice.action is None else plain(normalise(advice.action))

    def coin(self, seed: int) -> float:
        """Uniform in [0, 1), a function of (seed, round, game, step): the same whatever order games are played in."""
        return random.Random(f"{seed}/{self.round}/{self.game}/{len(self.steps)}").random()

    @property
    def won(self) -> bool:
        """The environment's verdict; where a v1 client sends none, an episode that is done is won."""
        verdict = self.observation.won
        return self.observation.done if verdict is None else verdict

    def over(self, max_steps: int) -> bool:
        """Won, ended by the environment, stuck, or at its step limit."""
        stuck = self.history.check_is_exhausted()
        return self.won or self.observation.done or stuck or self.actions >= max_steps

    @property
    def heard(self) -> str:
        """The newest text from the environment, on one line."""
        return " ".join((self.steps[-1][1] if self.steps else self.opening).split())

    def _hear(self, action: str, feedback: str) -> None:
        self.steps.append((action, feedback))
        self.history.add("action", action)
        self.history.add("observation", feedback)
        self.transitions[-1] = replace(self.transitions[-1], feedback=feedback)
