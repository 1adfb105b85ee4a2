"""A game in progress: what there is to see, what expert and policy suggest, and every move so far."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from alfworld_native.base import Environment, Game
from alfworld_native.drawing.frames import AROUND, objects_in_view, objects_labelled, render_labelled
from alfworld_native.experts.base import Expert, Label
from alfworld_native.language.commands import is_thought, normalise
from alfworld_native.language.sentences import type_of, untold
from lavis.common.errors import ConfigError, EmacError
from xrl_alignment.play.evaluation.actors import PolicyQuestion
from xrl_alignment.play.rollouts.episode import Episode
from xrl_alignment.play.rollouts.play import Turn, play

YOU, EXPERT, POLICY = "you", "expert", "policy"
PLAYERS = (YOU, EXPERT, POLICY)
LARGE = 448  # pixels of a frame that people look at
Suggest = Callable[[PolicyQuestion], str]  # a policy's action for one state; `earlier` has all frames before it


@dataclass(frozen=True)
class Moment:
    """A state of the game, before the next action.

    `frame` is what the agent sees, `shown` the same for people, larger where the environment can. `expert` is the
    expert's label (its `action` is None if it has no answer), None without an expert; `policy` is the policy's action,
    None without a policy. `names` are the names that the frame shows, from left to right; empty if nobody knows them,
    or if they are not written there. `things` are the objects that the frame shows, named or not; None if nobody knows.
    """

    frame: np.ndarray  # uint8 (H, W, 3)
    shown: np.ndarray  # uint8 (H, W, 3)
    heard: str
    commands: tuple[str, ...]  # admissible
    names: tuple[str, ...] = ()
    things: tuple[str, ...] | None = None
    holding: str = ""
    expert: Label | None = None
    policy: str | None = None

    @property
    def label(self) -> str | None:
        """The expert's action, None if there is none."""
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
    training. Without `tell_objects` the agent is not told the sentences that list objects, with `blank_frames` it sees
    black frames: people see and read all of it, and are told what the agent is not.
    """

    def __init__(
        self,
        environment: Environment,
        game: Game,
        *,
        expert: Expert | None = None,
        suggest: Suggest | None = None,
        tell_objects: bool = True,
        blank_frames: bool = False,
    ) -> None:
        self.game = game
        self.tell_objects, self.blank_frames = tell_objects, blank_frames
        self.moves: list[Move] = []
        self.players = tuple(name for name, there in ((YOU, True), (EXPERT, expert), (POLICY, suggest)) if there)
        self._expert = expert
        self._suggest = suggest
        self._frames: list[np.ndarray] = []  # of all states so far
        self._episode: Episode
        # The episode waits for a move in each state, also in the last one, which is only shown.
        self._rollout = play(environment, game, self._show, expert=expert, max_steps=None, thoughts=True)
        self.moment: Moment = next(self._rollout)

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
    def actions(self) -> int:
        """The moves so far without thoughts, which cost no step."""
        return sum(not is_thought(move.action) for move in self.moves)

    def untold(self, heard: str) -> list[str]:
        """The sentences of `heard` that the agent is not told."""
        return [] if self.tell_objects else untold(heard)

    def play(self, player: str, action: str | None = None) -> Move:
        """Make a move: `action`, or what `player` suggests; ConfigError if there is no such player."""
        if player not in self.players:
            raise ConfigError(f"nobody plays as {player}: give --expert or --checkpoint")
        before = self.moment
        # Who has no suggestion looks, as the agent does in training.
        said = normalise(action) if action is not None else (before.suggestion(player) or "look")
        moment = self._rollout.send(said)
        while moment is None:  # the step is made; the next state follows
            moment = next(self._rollout)
        self.moment = moment
        move = Move(before, player, said, moment.heard)
        self.moves.append(move)
        return move

    def _show(self, turn: Turn) -> Generator[Moment, str, str]:
        """The agent: shows a state and what expert and policy suggest, in the last state nothing; is sent the move."""
        self._episode = turn.episode
        frame, shown, names, things, holding = look(turn.environment)
        heard, commands = turn.episode.newest_text, tuple(turn.now.admissible_commands)
        label, policy = None, None
        if not self.over:  # a language model's suggestion costs money
            # Without a suggestion (an endpoint is away, a budget is spent) the game goes on, and says why.
            try:
                label = self._expert.act(turn.information) if self._expert else None
            except EmacError as error:
                label = Label(None, f"no answer: {error}")
            said = (turn.episode.text, (), tuple(turn.episode.steps))
            asked = PolicyQuestion(
                *said, frame, commands, turn.episode.game, tuple(self._frames), turn.episode.may_think
            )
            try:
                policy = self._suggest(asked) if self._suggest else None
            except EmacError as error:
                label = Label(label.action if label else None, f"the policy has no answer: {error}")
        self._frames.append(frame)
        return (yield Moment(frame, shown, heard, commands, names, things, holding, label, policy))


class Look(NamedTuple):
    """What there is to see now: `frame`, `shown`, `names`, `things` and `holding` of a `Moment`."""

    frame: np.ndarray
    shown: np.ndarray
    names: tuple[str, ...]
    things: tuple[str, ...] | None
    holding: str


def look(environment: Environment) -> Look:
    """What the environment shows.

    Only of rendered frames it is known what they show: AI2-THOR's image and an environment of one's own have no names.
    """
    frame = environment.render()
    room_state = getattr(environment, "room_state", None)
    if room_state is None:
        return Look(frame, frame, (), None, "")
    state = room_state()
    # Frames from near show what is in reach; the others tell by their geometry what they show.
    camera = getattr(environment, "camera", "front")
    things: tuple[str, ...] | None
    if camera == "close":
        seen = [state.names[key] for key in state.in_reach()]
        labels = seen
    elif camera == "around":
        seen = list(dict.fromkeys(name for turn in range(AROUND) for name in objects_in_view(state, turn=turn)))
        labels = list(objects_labelled(state, around=True))
    else:
        seen = list(objects_in_view(state))
        written = render_labelled(state, show_ids=True)[1]
        labels = [label.name for label in sorted(written, key=lambda label: label.column)]
    by_type = getattr(environment, "name_by", "number") == "type"
    things = tuple(dict.fromkeys(type_of(name) if by_type else name for name in seen))
    names = tuple(dict.fromkeys(labels)) if getattr(environment, "show_ids", True) else ()
    if getattr(environment, "frames_of_another_game", False):
        names, things = (), None
    view = getattr(environment, "view", None)
    shown = view(LARGE) if view else frame
    held = state.names.get(state.held or "", "")
    return Look(frame, shown, names, things, type_of(held) if by_type else held)
