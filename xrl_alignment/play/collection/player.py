"""Plays games by a plan and stores them, for an executor of `rollouts`: one player in every worker."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import lavis
from alfworld_native import make_environment
from alfworld_native.base import Environment, Game
from alfworld_native.experts.explorer import Explorer
from alfworld_native.experts.seeing import SeeingExplorer
from alfworld_native.reuse import ReusedEnvironments
from xrl_alignment.agents.experts import Expert, ExpertQuestion, Label, make_expert
from xrl_alignment.agents.language.prompt import build_prompt, token_counter
from xrl_alignment.agents.reflexion.base import update_memories
from xrl_alignment.agents.reflexion.rule import RuleReflector
from xrl_alignment.common.choices import CLIENT_EXPERTS
from xrl_alignment.play.collection.plan import Collected, Plan
from xrl_alignment.play.collection.storage import annotation, save_image, sync_images
from xrl_alignment.play.rollouts.episode import Episode
from xrl_alignment.play.rollouts.play import Turn, ask_expert, play, play_expert
from xrl_alignment.runs.transitions import NO_IMAGE, Transition, with_feedback, write_episode

ATTEMPT_STEPS = 12  # of an attempt that a memory is written of, fewer than these: most games take the explorer fewer


class CollectingPlayer:
    """Called with `(env, game)`, it plays and stores the game; returns its line and its annotation entries.

    A rollout of `rollouts`: it yields the expert if that waits for a network, so that those of several episodes are
    asked at once.
    """

    def __init__(self, plan: Plan, out: Path, expert_options: Mapping[str, Any] | None = None) -> None:
        self.plan = plan
        self.out = out
        own = {"notes": plan.notes or not plan.tell_objects, "order": plan.order} if plan.expert == "explorer" else {}
        self.expert_options = {**own, **(expert_options or {})}
        # The experts that read a game's state run beside it, so its environment has to know of them.
        beside = plan.expert if plan.expert in CLIENT_EXPERTS else None
        self._environments = ReusedEnvironments(
            partial(
                make_environment,
                plan.env,
                max_steps=plan.max_steps,
                name_by=plan.name_by,
                show_ids=plan.show_ids,
                camera=plan.camera,
                seed=plan.seed,
                expert=beside,
            )
        )

    def __call__(
        self, job: tuple[int, Game]
    ) -> Generator[ExpertQuestion | None, Label | None, tuple[Collected, list[dict[str, Any]]]]:
        """Play and store one game; the entries are those of --format lavis."""
        env, game = job
        began = time.perf_counter()
        with self._environments.lend() as environment:
            transitions, episode = yield from self.play(environment, game)
        won = episode.won
        only = self.plan.only
        kept = {turn: it for turn, it in transitions.items() if only in ("", it.text_output.partition(" ")[0])}
        # What an expert did in a game that it lost is no example, unless the plan says so.
        kept = kept if won or self.plan.keep_failed else {}
        entries: list[dict[str, Any]] = []
        if kept and self.plan.format == "shards":
            facts = {"game": game.id, "won": won, "expert": self.plan.expert, "engine": self.plan.env}
            write_episode(self.out, 0, env, [*kept.values()], facts, turns=[*kept])
        elif kept:
            for step, (turn, item) in enumerate(kept.items()):
                entry = annotation(item, game.id, turn)
                if item.image.size:
                    name = f"images/env{env:04d}_step{step:03d}.{self.plan.image_format}"
                    save_image(self.out / name, item)
                    entry = {"image": name, **entry}
                entries.append(entry)
            sync_images(self.out, entries)
        seconds = round(time.perf_counter() - began, 3)
        return Collected(env, game.id, game.task_type, won, episode.actions, len(kept), seconds), entries

    def play(
        self, environment: Environment, game: Game
    ) -> Generator[ExpertQuestion | None, Label | None, tuple[dict[int, Transition], Episode]]:
        """Play one game with the plan's expert; returns the labelled transitions by turn, and the episode."""
        plan = self.plan
        # By game, not one generator for all: so the data do not depend on which worker plays what.
        draw = random.Random(f"{plan.seed} {game.id}")
        memories: Sequence[str] = ()
        if plan.memories:
            memories = yield from failed_attempt(environment, game, draw, tell_objects=plan.tell_objects)
        expert: Expert
        if plan.eyes != "none":
            expert = SeeingExplorer(plan.eyes, **self.expert_options)
        else:
            expert = make_expert(plan.expert, environment=environment, **self.expert_options)
        agent = CollectingAgent(plan, expert, draw)
        episode = yield from play(
            environment,
            game,
            agent,
            expert=agent.expert,
            memories=memories,
            max_steps=plan.max_steps,
            thoughts=plan.thoughts,
        )
        transitions = with_feedback(agent.labelled, episode.steps)
        return dict(zip(agent.labelled, transitions, strict=True)), episode

    def close(self) -> None:
        """Close the environments."""
        self._environments.close()


class CollectingAgent:
    """The agent of one game: takes the expert's labels, with the plan's noise, and keeps what it was shown and told.

    `draw` decides all chance of the episode: the stored negative of a state first, then the executed action.
    """

    def __init__(self, plan: Plan, expert: Expert, draw: random.Random) -> None:
        self.plan = plan
        self.expert = expert
        self.draw = draw
        self.labelled: dict[int, Transition] = {}  # by the number of the turn, still without feedback

    def __call__(self, turn: Turn) -> Generator[ExpertQuestion, Label, str]:
        """The label, or noise; `look` in a state for which the expert has no label: such a state is not stored."""
        plan, draw, episode = self.plan, self.draw, turn.episode
        advice = yield from ask_expert(self.expert, turn)
        label = episode.answer(advice.action, advice.thought if plan.thoughts else "")
        others = [command for command in turn.now.admissible_commands if command != label]
        rejected = draw.choice(others) if plan.negatives and others else ""
        # DART (Laskey et al. 2017): what is executed may differ from the label, so the data hold the states around
        # the expert's path, too.
        action = draw.choice(others) if plan.noise and others and draw.random() < plan.noise else label or "look"
        if label is not None:
            image = turn.frame(blank=plan.blank_frames) if plan.frames else NO_IMAGE
            prompt = build_prompt(
                episode.text,
                episode.memories,
                episode.steps,
                budget=plan.budget,
                count=counter(plan.tokenizer),
                tell_objects=plan.tell_objects,
            )
            self.labelled[len(episode.steps)] = Transition(image, prompt, label, rejected, action, "")
        return action


def failed_attempt(
    environment: Environment, game: Game, draw: random.Random, *, tell_objects: bool = True
) -> Generator[Any, Any, list[str]]:
    """Play a few steps of `game` with the explorer; returns the memory of this attempt, as one without success."""
    attempt = yield from play_expert(environment, game, Explorer(), max_steps=draw.randrange(1, ATTEMPT_STEPS))
    trace = attempt.trace()
    if trace.won:  # a failure is wanted: all but the step that reached the goal
        trace = replace(trace, steps=trace.steps[:-1], won=False)
    return update_memories([trace], {}, RuleReflector(), tell_objects=tell_objects)[trace.game_id]


@lru_cache(maxsize=1)
def counter(tokenizer: str) -> Callable[[str], int]:
    """Counts the tokens of a text as the model does."""
    path = Path(lavis.__file__).parent / "models" / tokenizer / "tokenizer.json"
    if path.is_file():
        from tokenizers import Tokenizer  # the package's own tokenizer needs neither torch nor transformers

        tokens = Tokenizer.from_file(str(path))
        return token_counter(lambda text: tokens.encode(text, add_special_tokens=False).ids)
    from lavis.models.blip2_models.text import load_llm_tokenizer

    return token_counter(load_llm_tokenizer(tokenizer, "--tokenizer").encode)
