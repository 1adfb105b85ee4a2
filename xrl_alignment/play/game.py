"""A game in progress: what there is to see, what expert and policy suggest, and every move so far."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lavis.common.errors import ConfigError
from xrl_alignment.environments.base import Environment, Game, TimeStep, information_of
from xrl_alignment.environments.drawing.frames import render_labelled
from xrl_alignment.evaluation.actors import PolicyQuestion
from xrl_alignment.experts.base import Expert, Label
from xrl_alignment.language.commands import normalise
from xrl_alignment.rollouts.episode import THOUGHT_FEEDBACK, Episode

YOU, EXPERT, POLICY = "you", "expert", "policy"
PLAYERS = (YOU, EXPERT, POLICY)
Suggest = Callable[[PolicyQuestion], str]  # a policy's action for one state


@dataclass(frozen=True)
class Moment:
    """A state of the game, before the next action.

    `expert` is its label (`action` is None where it has none), None without an expert; `policy` is the policy's action,
    None without one. `names` are the names that the frame shows, from left to right; empty where nobody knows them.
    """

    frame: np.ndarray  # uint8 (H, W, 3)
    heard: str
    commands: tuple[str, ...]  # admissible
    names: tuple[str, ...] = ()
    holding: str = ""
    expert: Label | None = None
    policy: str | None = None

    @property
    def label(self) -> str | None:
        """The expert's action, None where there is none."""
        return self.expert.action if self.expert else None

    def suggestion(self, player: str) -> str | None:
        """What `player` would do: "expert" or "policy"."""
        return self.label if player == EXPERT else self.policy


@dataclass(frozen=True)
class Move:
    """An action, who chose it, and what the environment answered."""

    moment: Moment
    player: str
    action: str
    feedback: str


class GameInProgress:
    """One episode: `moment` is the state now, `play` makes a move.

    An expert or a policy is asked once for each state. Thoughts (`think: …`) are answered `OK.` and move nothing, as in
    training.
    """

    def __init__(
        self,
        environment: Environment,
        game: Game,
        *,
        expert: Expert | None = None,
        suggest: Suggest | None = None,
    ) -> None:
        self.game = game
        self.moves: list[Move] = []
        self._environment = environment
        self._expert = expert
        self._suggest = suggest
        self._now: TimeStep = environment.reset(game)
        self._episode = Episode(game=game.id, text=self._now.text)
        if expert:
            expert.begin(self._now.text, task_type=game.id)
        self.moment = self._look()

    @property
    def opening(self) -> str:
        """The room and the task sentence."""
        return self._episode.opening

    @property
    def won(self) -> bool:
        """Whether the goal is reached."""
        return self._episode.won

    @property
    def over(self) -> bool:
        """Whether the game has ended."""
        return self._episode.won or self._episode.done

    @property
    def players(self) -> tuple[str, ...]:
        """Who can play: you, and whoever suggests something."""
        return tuple(name for name, there in ((YOU, True), (EXPERT, self._expert), (POLICY, self._suggest)) if there)

    def play(self, player: str, action: str | None = None) -> Move:
        """Make a move: `action`, or what `player` suggests; ConfigError where there is no such player."""
        if player not in self.players:
            raise ConfigError(f"nobody plays as {player}: give --expert or --checkpoint")
        said = normalise(action) if action is not None else (self.moment.suggestion(player) or "look")
        if self._episode.may_think(said):
            self._episode.think(said)
            feedback = THOUGHT_FEEDBACK
        else:
            self._now = self._environment.step(self._episode.act(said))
            feedback = self._now.text
            self._episode.hear(feedback, won=self._now.won, done=self._now.done)
            if self._expert:
                self._expert.observe(said, feedback)
        move = Move(self.moment, player, said, feedback)
        self.moves.append(move)
        self.moment = self._look()
        return move

    def _look(self) -> Moment:
        frame, names, holding = look(self._environment)
        heard, commands = self._episode.newest_text, tuple(self._now.admissible_commands)
        if self.over:
            return Moment(frame, heard, commands, names, holding)
        label = self._expert.act(information_of(self._environment, self._now)) if self._expert else None
        asked = PolicyQuestion(self._episode.text, (), tuple(self._episode.steps), frame, commands, self.game.id)
        policy = self._suggest(asked) if self._suggest else None
        return Moment(frame, heard, commands, names, holding, label, policy)


def look(environment: Environment) -> tuple[np.ndarray, tuple[str, ...], str]:
    """The frame, the names that it shows from left to right, and what the agent holds.

    Only rendered frames are told: AI2-THOR's image and an environment of one's own have no names, nor has a frame
    without `environment.show_ids`.
    """
    frame = environment.render()
    room_state = getattr(environment, "room_state", None)
    if room_state is None:
        return frame, (), ""
    state = room_state()
    written = render_labelled(state, show_ids=getattr(environment, "show_ids", True))[1]
    labels = sorted(written, key=lambda label: label.column)
    return frame, tuple(dict.fromkeys(label.name for label in labels)), state.names.get(state.held or "", "")
