"""Plays a whole game without learning, for an executor of `rollouts`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import Any

import numpy as np

from alfworld_native.base import MAX_STEPS, Environment, Game
from alfworld_native.experts.base import Expert
from alfworld_native.reuse import ReusedEnvironments
from xrl_alignment.agents.language.history import EpisodeTrace
from xrl_alignment.play.evaluation.actors import PolicyQuestion
from xrl_alignment.play.evaluation.metrics import EpisodeResult
from xrl_alignment.play.evaluation.reads import READS
from xrl_alignment.play.rollouts.play import Turn, play, play_expert

Job = tuple[Game, Sequence[str]]  # a game and its memories


class EvaluationPlayer:
    """Called with a game and its memories, it returns `(EpisodeResult, EpisodeTrace)`; a rollout of `rollouts`.

    With `make_expert` that expert plays, else whoever answers `PolicyQuestion`s. With `enable_tc` thoughts (`think: …`)
    are answered `OK.` and cost no step, as in training. A policy whose `reads` lack the admissible commands is not sent
    them; one that reads several `frames` is sent those of the states before, too. Environments are kept for the next
    game until `close`.
    """

    def __init__(
        self,
        make_environment: Callable[[], Environment],
        make_expert: Callable[[Environment], Expert] | None = None,
        *,
        max_steps: int = MAX_STEPS,
        repeat_limit: int = 0,
        enable_tc: bool = False,
        blank_frames: bool = False,
        reads: Sequence[str] = READS,
        frames: int = 1,
    ) -> None:
        self.make_expert = make_expert
        self.max_steps = max_steps
        self.repeat_limit = repeat_limit
        self.enable_tc = enable_tc
        self.blank_frames = blank_frames
        self.reads = reads
        self.frames = frames
        self._environments = ReusedEnvironments(make_environment)

    def __call__(self, job: Job) -> Generator[Any, Any, tuple[EpisodeResult, EpisodeTrace]]:
        """Play one game."""
        game, memories = job
        options: dict[str, Any] = {
            "memories": memories,
            "max_steps": self.max_steps,
            "repeat_limit": self.repeat_limit,
            "thoughts": self.enable_tc,
        }
        # Frames of earlier states, which the policy sees again; with one frame it keeps none.
        shown: deque[np.ndarray] = deque(maxlen=self.frames - 1)

        def ask(turn: Turn) -> Generator[PolicyQuestion, str, str]:
            episode, frame = turn.episode, turn.frame(blank=self.blank_frames)
            commands = turn.now.admissible_commands if "admissible_commands" in self.reads else ()
            earlier = tuple(shown)
            shown.append(frame)
            said = (episode.text, episode.memories, episode.steps)
            may_think = self.enable_tc and episode.may_think
            return (yield PolicyQuestion(*said, frame, commands, episode.game, earlier, may_think))

        with self._environments.lend() as environment:
            if self.make_expert:
                episode = yield from play_expert(environment, game, self.make_expert(environment), **options)
            else:
                episode = yield from play(environment, game, ask, **options)
        result = EpisodeResult(game.id, game.task_type, episode.won, episode.actions, episode.rejected)
        return result, episode.trace()

    def close(self) -> None:
        """Close the environments."""
        self._environments.close()
