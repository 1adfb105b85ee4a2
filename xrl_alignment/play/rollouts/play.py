"""Plays one episode: the one place that resets an environment for an agent and takes in what it answers.

`play` is a rollout (`rollouts.base`): it runs until the agent has a question for the caller's process, for instance one
that a policy has to answer, and goes on when the answer is sent. So an executor plays any number of episodes at once
and has the questions of all of them answered together:

    def look_around(turn):                             # an agent: a generator that returns the next action
        return (yield Question(turn.episode.steps, turn.frame()))

    with SequentialExecutor(interleave=32) as executor:
        rollouts = lambda game: play(make_environment(), game, look_around)
        for outcome in executor.run(rollouts, games, answer=answer):   # answer(questions) -> their answers
            outcome.value                                              # the `Episode`

Evaluation, collection, planning, client and play page differ in their agents only.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from alfworld_native.base import MAX_STEPS, Environment, Game, TimeStep, information_of
from alfworld_native.drawing.frames import BLANK_FRAME
from alfworld_native.errors import EnvironmentFault
from alfworld_native.experts.base import Expert, ExpertQuestion, Label, checked
from alfworld_native.experts.seeing import SeeingExplorer
from alfworld_native.language.commands import is_thought
from xrl_alignment.play.rollouts.base import Rollout
from xrl_alignment.play.rollouts.episode import Episode


@dataclass(frozen=True)
class Turn:
    """A state: what was said and done so far (`episode`, which goes on), what the environment says and shows now."""

    environment: Environment
    episode: Episode
    now: TimeStep

    @property
    def information(self) -> dict[str, Any]:
        """What an expert is told beside the text."""
        return information_of(self.environment, self.now)

    def frame(self, *, blank: bool = False) -> np.ndarray:
        """The agent's view, uint8 (H, W, 3); with `blank` a black one, and nothing is rendered.

        EnvironmentFault for another shape or dtype: stored, it would end a training long after.
        """
        if blank:
            return BLANK_FRAME
        seen = self.environment.render()
        if not (isinstance(seen, np.ndarray) and seen.dtype == np.uint8 and seen.ndim == 3 and seen.shape[2] == 3):
            what = f"{seen.dtype} {seen.shape}" if isinstance(seen, np.ndarray) else f"a {type(seen).__name__}"
            raise EnvironmentFault(
                f"{type(self.environment).__name__}.render() gives {what}: a frame is a uint8 array (height, width, 3)"
            )
        return seen


# Who acts in an episode: a generator of questions to the caller's process, which gives their answers. It returns the
# next action; None ends the episode.
Agent = Callable[[Turn], Generator[Any, Any, str | None]]
Witness = Callable[[Turn, str], Generator[Any, Any, None]]  # is told that an action has led to a state, and may ask


def play(
    environment: Environment,
    game: Game,
    agent: Agent,
    *,
    expert: Expert | None = None,
    witness: Witness | None = None,
    memories: Sequence[str] = (),
    max_steps: int | None = MAX_STEPS,
    repeat_limit: int = 0,
    thoughts: bool = False,
) -> Generator[Any, Any, Episode]:
    """Play `game` with `agent`; yields the agent's questions, and None after each step; returns the episode.

    `expert` follows the episode, whoever acts: it is told the opening and every executed action, so that the agent can
    ask it (`ask_expert`). `witness` sees every state to which an action has led.

    The episode ends if the environment ends it, if `agent` does, after `max_steps` actions, or when an action came
    `repeat_limit` times in a row (0: never). With `max_steps=None` only the agent ends it: it is asked in the last
    state, too, and so sees the end. With `thoughts` an action `think: …` is answered `OK.` and the environment does not
    notice it, at most `MAX_THOUGHTS` times in a row; without it, a thought is an action like any other.

    Any text may be an action: an environment answers `Nothing happens.` to what it does not understand or forbid.
    What the environment or the agent raises leaves through this generator. It is then an executor's matter: it raises
    the error in the turn of the job, or replays the job from the start if the environment's process was lost.
    """
    now = environment.reset(game)
    episode = Episode(
        game=game.id,
        text=now.text,
        memories=memories,
        repeat_limit=repeat_limit,
        won=bool(now.won),  # an environment of somebody's own may load a game that is over
        done=now.done,
    )
    if expert:
        expert.begin(now.text, task_type=game.id, memories=memories)
    while max_steps is None or not episode.over(max_steps):
        action = yield from agent(Turn(environment, episode, now))
        if action is None:
            break
        if thoughts and episode.may_think and is_thought(action):
            # ReAct (Yao et al. 2023): a thought changes the text alone, so neither expert nor witness hears of it.
            episode.think(action)
        else:
            now = environment.step(episode.act(action))
            episode.hear(now.text, won=bool(now.won), done=now.done)
            if expert:
                # The expert may have advised another action: DAgger asks it in the states that the agent reaches
                # (Ross et al. 2011), so it must follow what was really done.
                expert.observe(action, now.text)
            if witness:
                yield from witness(Turn(environment, episode, now), action)
        yield None  # a parallel executor counts steps by this, to tell a slow episode from one that hangs
    return episode


def ask_expert(expert: Expert, turn: Turn) -> Generator[ExpertQuestion, Label, Label]:
    """The label of a state.

    An expert that waits for a network (it has a `pool`) is handed to the caller, who asks those of many episodes at
    once. An expert with eyes is shown the room first.
    """
    if isinstance(expert, SeeingExplorer):
        by_type = getattr(turn.environment, "name_by", "number") == "type"
        expert.look(turn.environment.room_state(), by_type=by_type)  # type: ignore[attr-defined]
    if getattr(expert, "pool", None):
        return (yield ExpertQuestion(expert, turn.information))
    return checked(expert.act(turn.information), expert)


def play_expert(
    environment: Environment, game: Game, expert: Expert, *, otherwise: str | None = "look", **options: Any
) -> Generator[Any, Any, Episode]:
    """`play` with an expert as agent; if it has no answer (it was filtered), `otherwise` is done, or the game ended."""

    def agent(turn: Turn) -> Generator[ExpertQuestion, Label, str | None]:
        label = yield from ask_expert(expert, turn)
        return label.action or otherwise

    return play(environment, game, agent, expert=expert, **options)


def without_questions(rollout: Rollout) -> Any:
    """Play a rollout that asks nothing to its end; returns its value."""
    try:
        while True:
            question = next(rollout)
            assert question is None, f"nobody is there to answer {question!r}"
    except StopIteration as end:
        return end.value
