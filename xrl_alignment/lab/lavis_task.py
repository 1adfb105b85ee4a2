"""What LAVIS's side does not know: how actions are normalised, and how episodes are played.

Importing this module registers both with LAVIS's registry; train.py and evaluate.py do.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeVar

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from alfworld_native.base import MAX_STEPS
from alfworld_native.games import games_hash
from alfworld_native.language.commands import normalise
from lavis.common.config import Config, to_dot_list
from lavis.common.dist_utils import end_distributed_mode, get_rank, get_world_size
from lavis.common.errors import ConfigError, unknown
from lavis.common.registry import registry
from lavis.models import StudentModel, load_preprocess
from lavis.runners.launch import build_runner
from lavis.tasks.student_task import StudentTask
from xrl_alignment.builders.environments import environment_factory, games_of
from xrl_alignment.builders.student import ImageProcessor, make_policy, prompt_writer
from xrl_alignment.common.progress import GameProgress
from xrl_alignment.play.evaluation.actors import PolicyActor
from xrl_alignment.play.evaluation.metrics import EpisodeResult, summarise, table
from xrl_alignment.play.evaluation.trials import play_games
from xrl_alignment.settings.checks import at_least
from xrl_alignment.settings.fields import Section, setting
from xrl_alignment.settings.policy import PolicyConfig
from xrl_alignment.settings.schema import EnvironmentConfig

if TYPE_CHECKING:
    from typing_extensions import Self

registry.register("action_normaliser", normalise)
SectionT = TypeVar("SectionT", bound=Section)


@dataclass(frozen=True)
class EpisodesConfig(EnvironmentConfig):
    """`run.environment`: which games on which engine, how many of them, and how long each may last."""

    num_envs: int = setting(140, "games", at_least(1))
    max_steps: int = setting(MAX_STEPS, "steps after which an episode ends", at_least(1))

    def check_combinations(self) -> None:
        """As for all environments; and no level of a mixture grants more steps than an episode has."""
        super().check_combinations()
        self.check_horizon(self.max_steps, "environment.max_steps")


@registry.register_task("alfworld_episode")
class AlfworldEpisodeTask(StudentTask):
    """Plays whole episodes: success with Wilson's interval, steps, by task type (`evaluation.summarise`).

    Games and engine are those of `run.environment` (the keys of `EpisodesConfig`), the decoding that of `run.policy`.
    Games are shared among processes. A sharded model (run.fsdp) cannot play: its processes would have to act in step.
    """

    needs_data = False
    environment: EpisodesConfig
    policy: PolicyConfig
    vis_processor: ImageProcessor

    @classmethod
    def setup_task(cls, cfg: Config) -> Self:
        """From a config; ConfigError names a key of `run.environment` or `run.policy` that does not exist."""
        task = super().setup_task(cfg)
        if task.settings.fsdp:
            raise ConfigError("run.task=alfworld_episode cannot be combined with run.fsdp=True: evaluate without it")
        task.environment = section(EpisodesConfig, task.settings.environment, "run.environment")
        task.policy = section(PolicyConfig, task.settings.policy, "run.policy")
        task.vis_processor = load_preprocess(cfg.config.get("preprocess") or {})[0]["eval"]
        return task

    def evaluation(self, model: StudentModel, data_loader: Any, cuda_enabled: bool = True) -> list[dict[str, Any]]:
        """This process's games, each played once."""
        # Every process finds the same list and plays its share: processes r, r + n, r + 2n, …
        self.games = games_of(self.environment, self.environment.num_envs)
        games = self.games[get_rank() :: get_world_size()]
        policy = make_policy(self.policy, model, self.vis_processor, self.settings.batch_size_eval)
        write_prompt = prompt_writer(model, tell_objects=self.environment.tell_objects)
        with closing(policy), GameProgress(len(games)) as progress:
            actor = PolicyActor(policy=policy, blank_frames=self.environment.blank_frames, write_prompt=write_prompt)
            self.reads = actor.reads
            results = play_games(
                actor,
                games,
                environment_factory(self.environment, self.environment.max_steps),
                max_steps=self.environment.max_steps,
                concurrency=self.settings.batch_size_eval,
                on_result=lambda result, trace: progress.advance(result.won),
            )
        return [{"instance_id": result.game, **vars(result)} for result in results]

    def report(self, results: list[dict[str, Any]]) -> dict[str, Any]:
        """`evaluation.summarise` of the episodes, and what they depend on; `agg_metrics` is the success rate."""
        # LAVIS has gathered the rows of all processes; `instance_id` is its own key.
        names = ("game", "task_type", "won", "actions", "rejected")
        summary = summarise([EpisodeResult(**{name: row[name] for name in names}) for row in results])
        decode = "admissible" if "admissible_commands" in self.reads else "free"
        facts: dict[str, Any] = {"engine": self.environment.name, "split": self.environment.split}
        facts |= {"decode": decode, "reads": list(self.reads)}
        # The hash is that of the whole list, of which this process has played a share.
        return {"agg_metrics": summary["success"], **summary, **facts, "games_hash": games_hash(self.games)}


def section(schema: type[SectionT], given: Mapping[str, Any], name: str) -> SectionT:
    """A settings dataclass from the plain section `name`; ConfigError names a key or value that cannot be used."""
    names = [field.name for field in fields(schema)]
    if foreign := [key for key in given if key not in names]:
        raise ConfigError(unknown("key", foreign[0], names, prefix=f"{name}."))
    try:
        # A structured config refuses a key that the schema does not have, and a value of another type.
        settings = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(schema), dict(given)))
    except OmegaConfBaseException as error:
        raise ConfigError(f"{name}.{error.full_key or error.key}: {str(error).splitlines()[0]}") from error
    except ConfigError as error:
        # The schema's rules call it `policy` or `environment`, as the other programs' files do.
        raise ConfigError(str(error).replace(f"{schema.section}.", f"{name}.")) from error
    assert isinstance(settings, schema)
    return settings


def evaluate(arguments: argparse.Namespace) -> dict[str, Any]:
    """Evaluate as a LAVIS config says, print the figures, return them by split."""
    arguments.options = [*to_dot_list(arguments.options), "run.evaluate=True"]
    try:
        runner = build_runner(arguments)
        with closing(runner.log):  # after an error, too
            found = runner.evaluate("final")
    finally:
        end_distributed_mode()
    if runner.is_main:
        if caution := untrained(runner.config):
            print(caution)
        for split, figures in found.items():
            print(f"{split}:\n{table(figures) if 'interval' in figures else json.dumps(figures, indent=1)}")
        print(f"written to {runner.output_dir}")
    return found


def untrained(config: Config) -> str:
    """The sentence about figures of weights that no training has written; empty if the settings name some."""
    model = config.model_cfg
    if any(model.get(f"load_{key}", True) and model.get(key) for key in ("pretrained", "finetuned")):
        return ""
    return "model.pretrained names no weights: these are the figures of the model as it came"
