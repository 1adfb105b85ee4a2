"""Builds what a game needs from the command line: games, environment, expert, and a policy from a checkpoint."""

from __future__ import annotations

import contextlib
import difflib
import random
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from alfworld_native import choose_games, make_environment
from alfworld_native.base import Environment, Game
from alfworld_native.drawing.frames import BLANK_FRAME
from alfworld_native.gym_env import GENERATED
from alfworld_native.household.levels import longest_horizon
from lavis.common.errors import ConfigError
from xrl_alignment.agents.experts import Expert, make_expert
from xrl_alignment.common.choices import CLIENT_EXPERTS
from xrl_alignment.play.evaluation.actors import PolicyActor, PolicyQuestion
from xrl_alignment.show.play.game import GameInProgress, Suggest

if TYPE_CHECKING:  # settings and models are in the extra `train`; games and experts need none
    from xrl_alignment.settings.schema import EvaluateConfig


# The settings `environment.…` of what the agent is told and shown.
_SHOWN = ("name_by", "show_ids", "camera", "other_frames", "image_noise", "image_severity", "text_noise", "seed")
_OF_THE_AGENT = ("tell_objects", "blank_frames")  # what the agent is told and shown of that: people get all of it
# Which games are played, the command line says itself.
_FLAGS = {"name": "--env", "split": "--split", "data": "--data"}


@dataclass
class Setup:
    """Everything to play with: `new_game` begins an episode, `close` frees what was opened."""

    games: Sequence[Game]
    environment: Environment
    make_expert: Callable[[], Expert] | None = None
    suggest: Suggest | None = None
    tell_objects: bool = True
    blank_frames: bool = False
    cleanup: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def new_game(self, number: int) -> GameInProgress:
        """Begin game `number` of the list, counted from 1."""
        expert = self.make_expert() if self.make_expert else None
        return GameInProgress(
            self.environment,
            self.games[number - 1],
            expert=expert,
            suggest=self.suggest,
            tell_objects=self.tell_objects,
            blank_frames=self.blank_frames,
        )

    def close(self) -> None:
        """Close the environment and what the policy holds."""
        self.cleanup.close()


def set_up(
    *,
    environment: str = "household",
    split: str = "",
    data: str | None = None,
    expert: str = "explorer",
    checkpoint: Path | None = None,
    cfg_path: Path | None = None,
    options: Sequence[str] = (),
) -> Setup:
    """Games, environment, expert ("none": without) and, with `checkpoint`, `cfg_path` or `options`, a policy.

    `cfg_path` and `options` are settings as `evaluate.py` reads them; a checkpoint of a run brings its own. Of their
    `environment:` section counts what a policy is shown, not which games; an option for the others is a ConfigError.
    """
    for option in options:
        section, _, key = option.partition("=")[0].strip().partition(".")
        if section == "environment" and key and key not in (*_SHOWN, *_OF_THE_AGENT):
            from xrl_alignment.settings.environment import EnvironmentConfig  # it is in the extra `train`

            if key not in (known.name for known in fields(EnvironmentConfig)):
                continue  # misspelt: `read_settings` says what may be meant
            fix = f"use {_FLAGS[key]}" if key in _FLAGS else f"use {', '.join(_FLAGS.values())} to choose games"
            raise ConfigError(f"--options {option} has no effect here; {fix}")
    split = split or ("household_heldout" if environment == "household" else "valid_seen")
    games = choose_games(environment, split, data=data, num_train=GENERATED, num_heldout=GENERATED)
    with contextlib.ExitStack() as cleanup:
        # A policy only if something of it is named; settings also if the expert or the frames need them.
        named = any(option.startswith(("model.", "policy.name=")) for option in options)
        wanted = bool(checkpoint or cfg_path or named)
        config = read_settings(checkpoint, cfg_path, options) if wanted or options or expert == "openai" else None
        beside = expert if expert in CLIENT_EXPERTS else None
        frames = {key: getattr(config.environment, key) for key in _SHOWN} if config else {}
        # `run.max_steps` counts if it is an option: a settings file's belongs to its own games. 0: the games' own.
        given = any(option.partition("=")[0].strip() == "run.max_steps" for option in options)
        steps = config.run.max_steps if config and given else 0
        steps = steps or longest_horizon(games)
        engine = make_environment(environment, max_steps=steps, expert=beside, **frames)
        cleanup.callback(engine.close)
        parts = expert_options(config, cleanup) if config and expert == "openai" else {}
        suggest = load_policy(config, cleanup) if config and wanted else None
        new_expert = None if expert == "none" else (lambda: make_expert(expert, environment=engine, **parts))
        if new_expert:
            new_expert()  # an unknown name is told before anything is shown
        told = {key: getattr(config.environment, key) for key in _OF_THE_AGENT} if config else {}
        # What was opened is handed over: it stays open until `Setup.close`. An error before this line closes all of
        # it.
        return Setup(games, engine, new_expert, suggest, cleanup=cleanup.pop_all(), **told)


def choose_game(games: Sequence[Game], wanted: str, seed: int | None) -> int:
    """The number (from 1) of the game that `wanted` names (number, id or part of one), else a random one."""
    if not wanted:
        return random.Random(seed).randrange(len(games)) + 1
    if re.fullmatch(r"[+-]?[0-9]+", wanted):  # -1 is a number, too, and not a part of a name
        if not 1 <= int(wanted) <= len(games):
            raise ConfigError(f"--game {wanted}: there are {len(games)} games, give a number from 1 to {len(games)}")
        return int(wanted)
    # A part of the id ("Mug"): the first game that has it.
    found = [number for number, game in enumerate(games, 1) if wanted.casefold() in game.id.casefold()]
    if not found:
        words = sorted({word for game in games for word in re.split(r"[^A-Za-z]+", game.id)})
        near = difflib.get_close_matches(wanted, words, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"names are such as {games[0].id}"
        raise ConfigError(f"--game {wanted}: no game of the {len(games)} has this in its name; {hint}")
    return found[0]


def read_settings(checkpoint: Path | None, cfg_path: Path | None, options: Sequence[str]) -> EvaluateConfig:
    """Settings of `evaluate.py`; without `cfg_path` the harmless ones of those that the checkpoint's run had."""
    from lavis.common.config import as_option
    from xrl_alignment.settings.loading import load_config
    from xrl_alignment.settings.schema import EvaluateConfig

    stored = settings_of_run(checkpoint) if checkpoint and not cfg_path else []
    pretrained = [as_option("model.pretrained", checkpoint), "model.load_pretrained=true"] if checkpoint else []
    return load_config(EvaluateConfig, cfg_path, [*stored, *pretrained, *options])


def settings_of_run(checkpoint: Path) -> list[str]:
    """The settings of the run that wrote a checkpoint, as options: of its model, its policy, and what that was shown.

    Only harmless ones (`builders.stored`); the others are told. ConfigError if the file does not say which model it is.
    """
    from xrl_alignment.builders.stored import as_options, stored_settings, told
    from xrl_alignment.runs.checkpoint import CheckpointError, load_checkpoint

    how = "give the settings of the model, for instance --cfg-path configs/evaluate/episodes.yaml"
    try:
        stored = stored_settings(load_checkpoint(checkpoint).get("config"))
    except CheckpointError as error:
        raise ConfigError(f"{error}; {how}") from error
    if "model_type" not in stored.taken["model"] and stored.taken["model"].get("arch") != "hf_vlm":
        raise ConfigError(f"{checkpoint} does not say which model it belongs to: {how}")
    if caution := told(stored):
        print(f"{checkpoint}: {caution}", file=sys.stderr, flush=True)
    return as_options(stored.taken)


def load_policy(config: EvaluateConfig, cleanup: contextlib.ExitStack) -> Suggest:
    """The policy of a `model:` and a `policy:` section, as a function of one state."""
    from lavis.common.devices import pick_device
    from xrl_alignment.builders.student import acting_policy

    tell_objects, device = config.environment.tell_objects, pick_device(config.run.device)
    policy, write_prompt = acting_policy(config.model, config.policy, device, max_batch=1, tell_objects=tell_objects)
    cleanup.callback(policy.close)
    actor = PolicyActor(policy=policy, blank_frames=config.environment.blank_frames, write_prompt=write_prompt)

    def suggest(question: PolicyQuestion) -> str:
        # A model that reads several frames gets the newest of the earlier ones, too; `[-0:]` would be all of them.
        count = actor.frames - 1
        seen = question._replace(earlier=question.earlier[-count:] if count else ())
        if "admissible_commands" not in actor.reads:
            seen = seen._replace(admissible_commands=())
        if actor.blank_frames:
            seen = seen._replace(image=BLANK_FRAME, earlier=[BLANK_FRAME] * len(seen.earlier))
        return actor.answer([seen])[0]

    return suggest


def expert_options(config: EvaluateConfig, cleanup: contextlib.ExitStack) -> dict[str, Any]:
    """What the expert `openai` needs: a teacher, from the settings `expert.…`."""
    from xrl_alignment.builders.teacher import build_teacher
    from xrl_alignment.settings.schema import ReflexionConfig

    teacher = build_teacher(replace(config.expert, name="openai"), ReflexionConfig(enabled=False))
    cleanup.callback(teacher.close)
    return teacher.expert_options
