"""Plays games with a planner: the agent acts by its plan, or the controller does (the planner alone).

The acting model reads the current high-level action as the newest thought of its prompt, in ReAct's form:

    > think: clean mug 1 with sinkbasin 1
    OK.
    >

It has the names and places that the text has told (`Controller.told`): the planner may say `take mug` of one that was
seen long ago. Only the newest one is shown, so the prompt has the length of one without a plan, and no model needs a
new form. The label of a state is the controller's command for that high-level action, so planner and plan decide what
is learned.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np

from alfworld_native.base import MAX_STEPS, Environment, Game
from alfworld_native.reuse import ReusedEnvironments
from xrl_alignment.agents.language.prompt import build_prompt
from xrl_alignment.agents.policies.base import Policy, PolicyInput
from xrl_alignment.planning.follower import PlanFollower
from xrl_alignment.planning.planners.base import Planner, PlanQuestion
from xrl_alignment.planning.reports import Sight, described
from xrl_alignment.play.evaluation.metrics import EpisodeResult
from xrl_alignment.play.rollouts.episode import THOUGHT_FEEDBACK, Episode
from xrl_alignment.play.rollouts.play import Turn, play
from xrl_alignment.runs.transitions import Transition, with_feedback
from xrl_alignment.settings.planning import LoopRunConfig, PlanRules


class SightQuestion(NamedTuple):
    """The agent is asked what it sees: it continues `prompt`, which ends with an action, in the engine's words."""

    prompt: str
    image: np.ndarray  # uint8 (H, W, 3)


@dataclass(frozen=True)
class PlanSettings:
    """How games are played with a planner: its rules, noise on its reports, when they end, what the agent is shown."""

    rules: PlanRules = field(default_factory=PlanRules)
    report_severity: int = 0
    max_steps: int = MAX_STEPS
    blank_frames: bool = False
    tell_objects: bool = True
    by_type: bool = False  # texts name objects without numbers (`environment.name_by=type`)
    repeat_limit: int = LoopRunConfig.repeat_limit  # equal actions in a row that end an agent's game as stuck; 0: never
    seed: int = 0


@dataclass
class PlannedGame:
    """A finished game: its result, why it ended, all calls of the planner and how often each trigger asked for one.

    `feedbacks` are the planner's judgements of its plans. `carried_out` has the high-level actions that were carried
    out, each with its place in the record of what was done (`PlanCall.history`). `assisted` games were not played by
    the agent alone. `sight` counts how many objects the agent's descriptions named rightly. `transitions` is what the
    agent can learn from the game. `step_tokens` is what a teacher would have read and written if it had been asked
    before every action.
    """

    result: EpisodeResult
    ended: str
    calls: list[dict[str, Any]]
    triggers: dict[str, int]
    sight: Sight
    goal: str
    assisted: bool = False
    feedbacks: list[dict[str, Any]] = field(default_factory=list)
    carried_out: list[tuple[int, str]] = field(default_factory=list)
    transitions: list[Transition] = field(default_factory=list)
    step_tokens: int = 0

    def record(self) -> dict[str, Any]:
        """All but the transitions, as plain containers."""
        kept = {name: value for name, value in vars(self).items() if name != "transitions"}
        return kept | {"result": asdict(self.result), "sight": asdict(self.sight)}


class PlanningPlayer:
    """Called with a game, it returns a `PlannedGame`; a rollout of `rollouts`.

    It yields `PlanQuestion`, `PolicyInput` and `SightQuestion`; `Answerer` answers them. With `agent` the acting model
    plays, else the controller. With probability `beta` the controller's command is executed although the agent plays
    (DAgger): with 1 it always is, and a game without a command is over, as without an agent. With `store` labelled
    states are kept, and with `preferences` the agent is asked in each of them. `count` counts a text's tokens.
    """

    def __init__(
        self,
        make_environment: Callable[[], Environment],
        settings: PlanSettings,
        *,
        agent: bool,
        write_prompt: Callable[..., str] = build_prompt,
        beta: float = 0.0,
        store: bool = False,
        preferences: bool = False,
        count: Callable[[str], int] = len,
    ) -> None:
        self.settings = settings
        self.agent = agent
        self.write_prompt = write_prompt
        self.beta = beta
        self.store = store
        self.preferences = preferences
        self.count = count
        # Lent for one game each: starting an engine is slow, resetting it is not.
        self._environments = ReusedEnvironments(make_environment)

    def __call__(self, game: Game) -> Generator[Any, Any, PlannedGame]:
        """Play one game."""
        # By seed and game, not by order: a loop that continues plays the games that are left as it would have.
        agent = PlannedAgent(self, random.Random(f"{self.settings.seed} {game.id}"))
        with self._environments.lend() as environment:
            episode = yield from play(
                environment,
                game,
                agent.act,
                witness=agent.witness,
                max_steps=self.settings.max_steps,
                repeat_limit=self.settings.repeat_limit if self.agent else 0,
            )
        follower = agent.follower(episode)
        # Why it ended: the first of these that holds.
        ended = "won" if episode.won else follower.stopped
        if not ended:
            ended = "stuck" if episode.stuck else "steps" if episode.actions >= self.settings.max_steps else "no plan"
        return PlannedGame(
            result=EpisodeResult(episode.game, episode.task_type, episode.won, episode.actions, episode.rejected),
            ended=ended,
            calls=[asdict(call) for call in follower.calls],
            triggers=dict(follower.counts),
            sight=follower.sight,
            goal=follower.goal,
            assisted=agent.assisted,
            feedbacks=[asdict(feedback) for feedback in follower.feedbacks],
            carried_out=follower.carried_out,
            transitions=with_feedback(agent.labelled, episode.steps),
            step_tokens=step_tokens(episode, self.count),
        )

    def close(self) -> None:
        """Close the environments."""
        self._environments.close()


class PlannedAgent:
    """The agent of one game that is played by the planner's plans, by the rules of `player`."""

    def __init__(self, player: PlanningPlayer, draw: random.Random) -> None:
        self.player = player
        self.draw = draw
        self.labelled: dict[int, Transition] = {}  # by the number of the turn, still without feedback
        self.assisted = False  # a command of the plan was executed in place of the agent's own action
        self._follower: PlanFollower | None = None

    def follower(self, episode: Episode) -> PlanFollower:
        """Who follows the plans of `episode`; made when it is first asked for, for it needs the game's text."""
        if self._follower is None:
            settings = self.player.settings
            self._follower = PlanFollower(
                episode.text, settings.rules, report_severity=settings.report_severity, draw=self.draw
            )
        return self._follower

    def act(self, turn: Turn) -> Generator[Any, Any, str | None]:
        """Follow the plan, after a new one if that is due; None if the controller leads and has no command."""
        player, episode, follower = self.player, turn.episode, self.follower(turn.episode)
        # Not once: a judgement that gives the plan up makes a new plan due.
        while follower.due:
            follower.take((yield follower.question()))
        # The command that the plan asks for is the label. With probability beta it is executed, too (DAgger's mixture,
        # Ross et al. 2011, algorithm 3.1), else the agent's own action.
        label = follower.command
        if label is None and (not player.agent or player.beta >= 1):
            return None
        assisted = label is not None and (not player.agent or self.draw.random() < player.beta)
        self.assisted |= assisted
        if not player.agent and not player.store:  # nobody looks at the frame or reads the prompt
            return label
        image = turn.frame(blank=player.settings.blank_frames)
        # An agent whose text names no objects is not told by a thought which there are, and where.
        told = follower.told if player.settings.tell_objects else str(follower.action or "")
        prompt = player.write_prompt(episode.text, (), instructed(episode.steps, told))
        # DPO needs the agent's own action as the rejected one, even if another action is executed.
        own = ""
        if player.agent and (player.preferences or not assisted):
            own = yield PolicyInput(prompt, image, turn.now.admissible_commands, episode.game, episode.steps)
        # An empty answer becomes the command that changes nothing: it costs a step, as any other.
        action = (label if assisted else own) or "look"
        if player.store and label is not None:
            self.labelled[len(episode.steps)] = Transition(image, prompt, label, own, action, "")
        return action

    def witness(self, turn: Turn, action: str) -> Generator[SightQuestion, str, None]:
        """Have the agent describe what it sees if objects came into view, and tell the follower."""
        player, episode, follower, seen = self.player, turn.episode, self.follower(turn.episode), None
        told = turn.now.true_text or turn.now.text
        if follower.describes(told):
            # The text ends with the action, without the engine's answer: that is what the agent is to write.
            prompt = player.write_prompt(episode.text, (), episode.steps[:-1]) + action
            image = turn.frame(blank=player.settings.blank_frames)
            seen = described((yield SightQuestion(prompt, image)), by_type=player.settings.by_type)
        follower.observe(action, turn.now.text, seen, told)


class Answerer:
    """Answers the questions of many games at once: plans by `planner`, actions by `policy`, sights by `describe`.

    `describe` takes prompts and images (uint8, H × W × 3) and returns the agent's continuations.
    """

    def __init__(
        self,
        planner: Planner,
        policy: Policy | None = None,
        describe: Callable[[Sequence[str], Sequence[np.ndarray]], Sequence[str]] | None = None,
    ) -> None:
        self.planner = planner
        self.policy = policy
        self.describe = describe

    def __call__(self, questions: Sequence[Any]) -> list[Any]:
        """The answers in order: a `PlanAnswer`, an action, or a description."""
        # Filled in place by place: the questions of all games are mixed, and each kind is answered at once.
        answers: list[Any] = [None] * len(questions)
        # All questions of one kind together, as one batch.
        for kind in (PlanQuestion, PolicyInput, SightQuestion):
            places = [i for i, question in enumerate(questions) if isinstance(question, kind)]
            asked: list[Any] = [questions[i] for i in places]
            said: Sequence[Any]
            if not asked:
                continue
            if kind is PlanQuestion:
                said = self.planner.plan_all(asked)
            elif kind is PolicyInput:
                if self.policy is None:
                    raise ValueError("the agent plays, but there is no policy")
                said = self.policy.act(asked)
            else:
                if self.describe is None:
                    raise ValueError("reports of images need an agent that describes them")
                said = self.describe([question.prompt for question in asked], [question.image for question in asked])
            for i, answer in zip(places, said, strict=True):
                answers[i] = answer
        return answers


def instructed(steps: Sequence[tuple[str, str]], action: str) -> list[tuple[str, str]]:
    """The steps that the acting model reads, the current high-level `action` as the newest thought."""
    return [*steps, (f"think: {action}", THOUGHT_FEEDBACK)] if action else list(steps)


def step_tokens(episode: Episode, count: Callable[[str], int]) -> int:
    """Tokens of a teacher that is asked before every action: it reads the game so far, and writes an action."""
    # Before step t it reads the opening and t - 1 actions with their answers: O(steps²) tokens in all.
    read, total = count(episode.opening), 0
    for action, feedback in episode.steps:
        total += read + count(action)
        read += count(action) + count(feedback)
    return total
