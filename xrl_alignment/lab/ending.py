"""What a program says when its training has ended: success, cost, checkpoint, and the commands that come next."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from alfworld_native.household.mixture import read_mixture
from lavis.common.named_class import is_class_name
from lavis.common.paths import REPO_ROOT
from lavis.models.sections import changed_keys
from xrl_alignment.agents.experts.llm.accounting import Usage, read_calls
from xrl_alignment.play.collection.plan import Plan
from xrl_alignment.runs.directory import EpisodeRecord, RunPaths, newest_checkpoint
from xrl_alignment.settings.fields import settings_of
from xrl_alignment.settings.loading import load_config
from xrl_alignment.settings.policy import PolicyConfig
from xrl_alignment.settings.resume import saved_settings
from xrl_alignment.settings.schema import DaggerConfig, EnvironmentConfig, EvaluateConfig

EPISODES = "configs/evaluate/episodes.yaml"
HELD_OUT = {
    "train": "valid_seen", "valid_seen": "valid_unseen", "valid_unseen": "valid_seen",
    "household_train": "household_heldout",
}  # fmt: skip
# Of a `model:` section: what the checkpoint takes the place of, and what counts in training only.
_NOT_EVALUATED = ("pretrained", "ref_pretrained", "load_pretrained", "mix_ratio", "avg_log_probs", "low_memory")
_SHOWN = ("tell_objects", "show_ids", "name_by", "camera", "blank_frames")  # of a collection: what the model is shown


def ending(run_dir: Path) -> list[str]:
    """Lines about a DAgger run that has ended: who won, what it cost, its checkpoint, how to evaluate and report it."""
    config, run = saved_settings(run_dir), RunPaths(run_dir)
    lines = run.journal.read_bytes().splitlines() if run.journal.exists() else []
    told = [success([run.record(line) for line in lines], config.run.num_envs)]
    usages, prices = read_calls(run.expert_calls)
    if usages:
        total = sum(usages.values(), Usage())
        cost = f"{prices.cost(total):.4f} USD" if prices else "cost unknown, because no prices are set"
        told.append(f"language model as expert: {total.calls} calls, {cost}")
    checkpoint = newest_checkpoint(run_dir)
    if checkpoint:
        if apart := trained_unplayed(config):
            told.append(apart)
        told += [f"checkpoint: {checkpoint}", f"evaluate it: {evaluate_command(config, checkpoint)}"]
    elif config.run.run_training:
        told.append("no checkpoint was written: run.save_ckpt=false")
    return [*told, f"report: python -m xrl_alignment.report {shlex.quote(str(run_dir))}"]


def trained_unplayed(config: DaggerConfig) -> str:
    """A sentence for a run in which a policy of somebody's own plays, and the model learns; empty for any other run."""
    if not (config.run.run_training and is_class_name(config.policy.name)):
        return ""
    return f"policy.name={config.policy.name} plays; the model that is trained learns from its games, and plays none"


def success(records: list[EpisodeRecord], games: int) -> str:
    """Who won how many episodes, because an expert that drives wins in the policy's place."""
    alone = [record for record in records if not record.assisted]
    helped = [record for record in records if record.assisted]
    won = sum(record.won for record in helped)
    expert = f"the expert helped in {len(helped)} episodes and {won} of them were won"
    if not alone:
        return f"no episode was the policy's alone: {expert}; only an evaluation says what the policy has learned"
    solved = len({record.game for record in alone if record.won})
    policy = f"the policy alone has solved {solved} of {games} games, in {len(alone)} episodes"
    return f"{policy}; {expert}" if helped else policy


def evaluate_command(config: DaggerConfig, checkpoint: Path) -> str:
    """The command line that plays held-out games with `checkpoint`, which a run of `config` has written."""
    base = load_config(EvaluateConfig, REPO_ROOT / EPISODES)
    options = model_options(config.model, checkpoint)
    # Only what differs from the file that the command names: the shorter the command, the likelier it is read.
    for field in fields(EnvironmentConfig):
        value = getattr(config.environment, field.name)
        if field.name == "split":
            value = HELD_OUT.get(value, value)
        if value != getattr(base.environment, field.name):
            options[f"environment.{field.name}"] = value
    for name, described in settings_of(PolicyConfig).items():
        value = getattr(config.policy, name)
        # Settings that may change (addresses, waiting times) belong to the machine, not to how the policy acts.
        if not described.may_change and value != getattr(base.policy, name):
            options[f"policy.{name}"] = value
    if config.environment.name == "household":
        options["run.num_envs"] = 0  # all of the held-out games, of which there may be fewer than in the file
    for name in ("max_steps", "enable_tc"):
        if getattr(config.run, name) != getattr(base.run, name):
            options[f"run.{name}"] = getattr(config.run, name)
    return command(options)


def offline_command(config: Mapping[str, Any], checkpoint: Path) -> str:
    """The command line that plays held-out games with `checkpoint`, which `train.py` has written; `config` is its own.

    The games show what those of the first training data showed, if `collect` made the data: another text is another
    task. If not, or if other data of the training showed something else, the line ends with a comment that says so.
    """
    base = load_config(EvaluateConfig, REPO_ROOT / EPISODES)
    options = model_options(changed_keys(config["model"]), checkpoint)
    remark = "set what the data showed: it is not known (docs/information.md)"
    if plans := _plans(config["datasets"], config.get("run", {}).get("train_splits") or ["train"]):
        plan = plans[0]
        shown: dict[str, Any] = {"name": plan.env, "split": HELD_OUT.get(plan.split, plan.split)}
        shown |= {key: getattr(plan, key) for key in ("data", *_SHOWN)}
        options |= {f"environment.{key}": its for key, its in shown.items() if its != getattr(base.environment, key)}
        options |= {"run.enable_tc": True} if plan.thoughts else {}
        options |= {"run.max_steps": plan.max_steps} if plan.max_steps != base.run.max_steps else {}
        if plan.env == "household":
            options["run.num_envs"] = 0
            options |= {"environment.seed": plan.seed} if plan.seed != base.environment.seed else {}
            if plan.levels:  # `collect` makes as many games of a mixture as it is asked for
                options["environment.levels"] = read_mixture(plan.levels)
                sizes = ("num_train", "num_heldout") if plan.num_games else ()
                options |= {f"environment.{size}": plan.num_games for size in sizes}
        differ = [key for key in (*_SHOWN, "thoughts") if len({getattr(each, key) for each in plans}) > 1]
        others = f"the games are as the first data showed them; other data differ in {', '.join(differ)}"
        remark = others if differ else ""
    if any((section or {}).get("blank_images") for section in config["datasets"].values()):
        options["environment.blank_frames"] = True
    return command(options) + (f"   # {remark}" if remark else "")


def _plans(datasets: Mapping[str, Any], splits: Sequence[str]) -> list[Plan]:
    """How `collect` made the data of the training `splits` of a `datasets:` section, without data of other origin."""
    plans = []
    for section in datasets.values():
        # A builder of somebody's own need not have any of it.
        sources = ((section or {}).get("build_info") or {}).get("annotations") or {}
        named = [(sources.get(split) or {}).get("storage") or [] for split in splits]
        given = [part for storage in named for part in ([storage] if isinstance(storage, str) else storage)]
        for storage in given:
            folder = Path(storage) if Path(storage).is_dir() else Path(storage).parent
            try:
                settings = json.loads((folder / "collection.json").read_text(encoding="utf-8"))
                plans.append(Plan(**settings))
            except (OSError, ValueError, TypeError):  # none, or not readable, or another version's
                continue
    return plans


def model_options(section: Mapping[str, Any], checkpoint: Path) -> dict[str, Any]:
    """The options of evaluate.py that build a model of a `model:` section with the weights of `checkpoint`."""
    base = load_config(EvaluateConfig, REPO_ROOT / EPISODES).model
    given = {key: value for key, value in section.items() if key not in _NOT_EVALUATED and value != base.get(key)}
    return {**{f"model.{key}": value for key, value in given.items()}, "model.pretrained": str(checkpoint)}


def command(options: Mapping[str, Any]) -> str:
    """`python evaluate.py …` with `options`, as a shell reads it."""
    texts = []
    for key, value in options.items():
        # What a shell needs quotes for, yaml may need quotes for, too: a path with `: ` or ` #`.
        plain = isinstance(value, str) and value == shlex.quote(value)
        texts.append(f"{key}={value if plain else json.dumps(value, ensure_ascii=False)}")
    return shlex.join(["python", "evaluate.py", "--cfg-path", EPISODES, "--options", *texts])
