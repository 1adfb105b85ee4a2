"""Builds EMAC+'s loop from its settings, and runs it with its evaluations and ablations (docs/emac_plus.md)."""

from __future__ import annotations

import dataclasses
import shlex
import shutil
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import torch
from omegaconf import OmegaConf
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from alfworld_native import check_split
from alfworld_native.base import MAX_STEPS, Game
from alfworld_native.games import find_games, games_hash
from alfworld_native.household.levels import horizon
from lavis.common.config import load_yaml
from lavis.common.devices import half_type, pick_device, set_seed, set_threads
from lavis.common.errors import ConfigError, EmacError
from lavis.common.files import locked, new_folder, read_json, write_json, write_text
from lavis.common.named_class import is_class_name
from lavis.common.settings import check, check_has_effect
from lavis.models import fast_llm
from lavis.models.base_model import LIBRARY_ROOT
from lavis.models.blip2_models import weights
from lavis.models.blip2_models.emac_config import MODEL_TYPES, package_path
from lavis.models.blip2_models.text import load_llm_tokenizer
from lavis.models.played import PlayedGames, games_of_weights, played_by_base
from lavis.models.sections import check_section
from xrl_alignment.agents.language.react import read_examples
from xrl_alignment.builders.environments import environment_factory, games_of
from xrl_alignment.builders.named import check_device, check_policy
from xrl_alignment.builders.student import check_served, load_student, make_policy, model_section, prompt_writer
from xrl_alignment.builders.teacher import build_endpoint
from xrl_alignment.common.errors import EndpointFault
from xrl_alignment.common.versions import versions
from xrl_alignment.planning.agent import LearningAgent
from xrl_alignment.planning.figures import table
from xrl_alignment.planning.loop import Loop, TrainingCost
from xrl_alignment.planning.planners.base import Planner
from xrl_alignment.planning.planners.endpoint import EndpointPlanner
from xrl_alignment.planning.planners.explorer import ExplorerPlanner
from xrl_alignment.planning.planners.local import LocalPlanner
from xrl_alignment.settings.loading import load_config, shareable, to_yaml
from xrl_alignment.settings.planning import EmacPlusConfig, LoopRunConfig, PlannerConfig
from xrl_alignment.settings.resume import refuse_changes, settings_in

CPU = torch.device("cpu")
SUMMARY = "summary.json"
CALLS = "planner_calls.jsonl"
TINY = {  # planner.model -> weights: the demo's language model as it is, and taught to plan, badly (make_planner)
    "tiny": "tiny/backbone.safetensors",
    "tiny_planner": "tiny/planner.safetensors",
}
_CHANGES: dict[str, dict[str, Any]] = {  # ablation -> settings of the planner
    "no_replanning": {
        "feedback": "rules",  # the planner's own judgement (`questions`) would ask for plans besides the triggers
        "learn_feedback": False,  # there are no questions whose answers could be learned
        "replan_rejected": False,
        "replan_not_found": False,
        "replan_seen": False,
        "replan_exhausted": False,
        "replan_every": 0,
    },
    "no_reports": {"report": "none"},
    "report_text": {"report": "text"},
    "report_image": {"report": "image"},
    "report_both": {"report": "both"},
    "no_planner_learning": {"learn": False},
    "no_dpo": {"dpo_epochs": 0},
    "no_feedback": {"feedback": "rules", "learn_feedback": False},
    "cross_entropy": {},
    "step_teacher": {"replan_every": 1},
}
_TEXT_NOISE = (0.05, 0.1, 0.2, 0.4)  # `environment.text_noise` of the curve that `run.robustness` draws


def run_emac_plus(cfg_path: str | Path, options: list[str], resume: Path | None = None) -> Path:
    """Run the loop of a settings file to its summary, which is printed as a table; returns the folder.

    `resume` is the folder of a loop that was stopped; it continues with the same settings. Raises ConfigError if the
    settings differ.
    """
    config = load_config(EmacPlusConfig, cfg_path, options)
    check_loop(config)
    games = find_all_games(config)  # before a folder is made: there may be too few
    folder = resume or new_folder(config.run.output_dir)
    if resume:
        refuse_changes(settings_in(resume, EmacPlusConfig), config, resume)
    # One process at a time; the settings are there before anything is played.
    with locked(folder / ".lock", folder):
        if not resume:
            write_text(folder / "config.yaml", to_yaml(config))
        set_threads(config.run.num_threads)
        print(f"EMAC+: {folder}", flush=True)
        # A resume may ask for other ablations and switches than before: the rows of earlier ones stay.
        earlier = read_json(folder / SUMMARY) if (folder / SUMMARY).exists() else {}
        try:
            summary = {**earlier, **run_all(config, games, folder)}
        except KeyboardInterrupt as stop:
            raise KeyboardInterrupt(f"continue with --resume {folder}") from stop
        except EndpointFault as error:
            raise type(error)(f"{error}; the loop is kept: continue with --resume {folder}") from error
        except EmacError:
            if not resume and not (folder / "buffer").exists():  # what `Loop` makes first: it could not be built
                shutil.rmtree(folder)
            raise
        write_json(folder / SUMMARY, summary)
    print(table(summary))
    print(f"{folder / SUMMARY}\nreport: python -m xrl_alignment.report {shlex.quote(str(folder))}", flush=True)
    return folder


def check_loop(config: EmacPlusConfig) -> None:
    """ConfigError, EnvironmentFault, MissingFileError or FileError for what no loop could use, without a folder yet."""
    run, environment = config.run, config.environment
    check_device(run.device)
    check_section(config.model)
    refuse_earlier_frames(config.model.get("images"))  # of `hf_vlm`
    if config.policy.name == "http":
        raise ConfigError(
            "policy.name=http asks another machine's model, which this loop does not train: use in_process or vllm"
        )
    if is_class_name(config.policy.name):
        raise ConfigError(
            f"policy.name={config.policy.name} answers instead of the model that this loop trains: use in_process or "
            "vllm, or give your model as model.arch=module:Class"
        )
    check_policy(config.policy)
    if config.model.get("ref_pretrained"):
        raise ConfigError("model.ref_pretrained: the loop's reference is its own agent before DPO; leave it out")
    for split in (environment.split, run.eval_split):
        check_split(environment.name, split, environment.data or None)
    _examples(config.planner)
    if config.planner.name == "endpoint":
        build_endpoint(config.planner, None).close()  # its address and its key
    if config.planner.trainer:
        refuse_no_model(config.planner.trainer, "planner.trainer")
    elif config.planner.name == "local":
        refuse_no_model(config.planner.model, "planner.model")
    for name in run.switches:
        if dataclasses.replace(config.planner, **_CHANGES[name]) == config.planner:  # it also checks itself
            raise ConfigError(f"run.switches={name} changes none of these settings: leave it out")
    # Here and not where the settings are read: an ablation switches single things off, and keeps the others.
    new = f"run.num_train_games=0 or at least run.num_envs={run.num_envs}: a round plays each game once"
    check("run.num_train_games", run.num_train_games, not 0 < run.num_train_games < run.num_envs, new)
    check_has_effect(
        "run.skip_solved",
        run.skip_solved,
        bool(run.num_train_games) or not run.skip_solved,
        "run.num_train_games is set: else every game is new",
    )
    valid = config.planner.memory == PlannerConfig.memory or config.planner.feedback == "questions"
    check_has_effect("planner.memory", config.planner.memory, valid, "planner.feedback=questions")
    valid = not run.report_noise or config.planner.report != "none"
    check_has_effect("run.report_noise", run.report_noise, valid, "planner.report is text, image or both")
    valid = not environment.report_severity or config.planner.report != "none"
    check_has_effect("environment.report_severity", environment.report_severity, valid, "planner.report is not none")
    valid = not (run.robustness and environment.blank_frames)
    check_has_effect("run.robustness", run.robustness, valid, "environment.blank_frames=false")
    for split in (environment.split, run.eval_split):
        if run.max_steps < (longest := horizon(split)) > MAX_STEPS:  # the frozen games of a longer level
            raise ConfigError(
                f"run.max_steps: {run.max_steps} is less than the {longest} that games of {split} may take"
            )
    learns = config.planner.learn and bool(config.planner.name == "local" or config.planner.trainer)
    for name in run.ablations:
        # `no_dpo` also makes every round of the agent's one of cloning.
        learned = name == "no_planner_learning" or (name == "no_dpo" and run.bc_rounds == run.num_rounds)
        without_effect = learned and not learns
        if without_effect or ablated(config, name) == config:
            raise ConfigError(f"run.ablations={name} changes none of these settings: leave it out")


def ablated(config: EmacPlusConfig, name: str, cost: TrainingCost | None = None) -> EmacPlusConfig:
    """The settings of an ablation: a loop of its own with one thing changed.

    `cost` is that of the whole loop, if it has been run: `step_teacher`, whose planner is asked before every action,
    plays so many games less in a round that it is asked about as often.
    """
    run, planner = config.run, dataclasses.replace(config.planner, **_CHANGES[name])
    if name in ("no_dpo", "cross_entropy"):  # every round is one of cloning
        run = dataclasses.replace(run, bc_rounds=run.num_rounds)
    if name == "step_teacher":
        if cost:
            number = min(run.num_envs, max(1, round(run.num_envs * cost.calls / max(cost.calls_each_step, 1))))
            run = dataclasses.replace(run, num_envs=number)
        planner = dataclasses.replace(planner, max_replans=run.max_steps)
    return dataclasses.replace(config, planner=planner, run=run)


class LoopGames(NamedTuple):
    """Games that a loop trains on, and those that it is evaluated on; `official` only with `run.valid_seen`."""

    training: list[Game]
    heldout: list[Game]
    official: list[Game]


def find_all_games(config: EmacPlusConfig) -> LoopGames:
    """The games of a loop; EnvironmentFault if there are too few."""
    run = config.run
    # `household` keeps its own games in `data`.
    data = config.environment.data if config.environment.name != "household" else None
    return LoopGames(
        games_of(config.environment, run.num_train_games or run.num_envs * run.num_rounds),
        games_of(dataclasses.replace(config.environment, split=run.eval_split), run.num_eval),
        find_games("valid_seen", data) if run.valid_seen else [],
    )


def run_all(config: EmacPlusConfig, games: LoopGames, folder: Path) -> dict[str, Any]:
    """The loop, its evaluations and its ablations; returns what the summary holds."""
    run, (training, heldout, official) = config.run, games
    # The loop's own games, and those of the weights that agent and planner begin with.
    known = games_of_weights(model_section(config.model)).merged(games_of_planner(config.planner))
    known = known.merged(PlayedGames(tuple(game.id for game in training[: run.num_envs * run.num_rounds])))
    trained_on = {"trained_on": trained_among(known, heldout, run.eval_split)}  # of the held-out games
    if run.valid_seen:
        trained_on["trained_on_valid_seen"] = trained_among(known, official, "valid_seen")
    summary, cost, identity = _play_loop(config, games, folder)
    for name in run.ablations:
        # A function of its own, so that one loop's models are gone before the next one's are loaded.
        changed = ablated(config, name, cost)
        summary[name] = _play_ablation(changed, games, folder / "ablations" / name, folder / CALLS)
    facts = {
        "seed": run.seed,
        "planner": identity,
        "training_tokens": cost.tokens,
        "heldout_games_hash": games_hash(heldout),
        **trained_on,
        "settings": shareable(config),
        "versions": versions(),
    }
    return summary | facts


def _play_ablation(config: EmacPlusConfig, games: LoopGames, folder: Path, calls: Path) -> dict[str, Any]:
    """A loop of its own, trained and evaluated; its row of the summary."""
    with closing(build_loop(config, folder, calls=calls)) as loop:
        loop.run(games.training)
        found = _evaluate_both(loop, "after", games.heldout)
        tokens = loop.training_cost().tokens
    return found["agent_after"] | {"planner_success": found["planner_after"]["success"], "training_tokens": tokens}


def _evaluate_both(loop: Loop, name: str, games: list[Game], **changes: Any) -> dict[str, Any]:
    """The rows `planner_<name>` (the planner alone) and `agent_<name>` of the summary; see `Loop.evaluate`."""
    return {
        f"{who}_{name}": loop.evaluate(f"{who}_{name}", games, agent=who == "agent", **changes)
        for who in ("planner", "agent")
    }


def _play_loop(config: EmacPlusConfig, games: LoopGames, folder: Path) -> tuple[dict[str, Any], TrainingCost, str]:
    """The loop with its evaluations: their rows of the summary, what training has cost, and who the planner is."""
    run, (training, heldout, official) = config.run, games
    with closing(build_loop(config, folder)) as loop:
        summary = _evaluate_both(loop, "before", heldout)
        if official:
            summary |= _evaluate_both(loop, "before_valid_seen", official)
        loop.run(training)
        summary |= _evaluate_both(loop, "after", heldout)
        if official:
            summary |= _evaluate_both(loop, "after_valid_seen", official)
        # Switches: the trained agent and planner play once more with one rule changed.
        for name in run.switches:
            rules = dataclasses.replace(config.planner, **_CHANGES[name])
            found = _evaluate_both(loop, name, heldout, rules=rules)
            success = found[f"planner_{name}"]["success"]
            summary[f"agent_{name}"] = found[f"agent_{name}"] | {"planner_success": success}
        # Noise on the frames (severity 0 is none), each with the planner's triggers and without; then on the reports.
        kind, fixed = config.environment.image_noise, dataclasses.replace(config.planner, **_CHANGES["no_replanning"])
        for severity in range(5) if run.robustness else ():
            settings = dataclasses.replace(config.environment, image_severity=severity)
            noisy = environment_factory(settings, run.max_steps)
            for ending, rules in (("", config.planner), ("_no_replanning", fixed)):
                name = f"agent_{kind}_{severity}{ending}"
                summary[name] = loop.evaluate(name, heldout, agent=True, make_environment=noisy, rules=rules)
        for rate in _TEXT_NOISE if run.robustness else ():
            noisy = environment_factory(dataclasses.replace(config.environment, text_noise=rate), run.max_steps)
            summary |= _evaluate_both(loop, f"text_noise_{rate}", heldout, make_environment=noisy)
        for severity in range(1, 5) if run.report_noise else ():
            name = f"agent_report_noise_{severity}"
            summary[name] = loop.evaluate(name, heldout, agent=True, report_severity=severity)
        return summary, loop.training_cost(), loop.planner.identity


def games_of_planner(planner: PlannerConfig) -> PlayedGames:
    """The games that the planner has trained on before the loop; of a model behind an endpoint nobody knows."""
    if planner.name == "endpoint":
        return PlayedGames(unknown=(planner.model,))
    if planner.name == "explorer":
        return PlayedGames()
    return played_by_base(TINY.get(planner.model, planner.model)) or PlayedGames()


def trained_among(known: PlayedGames, games: Sequence[Game], split: str) -> int | None:
    """How many of `games`, of `split`, are among those `known` to be trained on, and print it; None if nobody knows."""
    number = len(known.among((game.id for game in games), split))
    if number:
        print(f"NOT HELD OUT: {number} of {len(games)} games of {split} are trained on", flush=True)
    elif not known.all_named:
        print(f"{split}: whether its games were trained on is unknown; the weights do not name theirs", flush=True)
        return None
    return number


def refuse_earlier_frames(frames: object) -> None:
    """ConfigError if a student reads more `frames` than the current one; what is no number is the model's to refuse."""
    if isinstance(frames, int) and frames > 1:
        raise ConfigError(
            f"model.images: the student reads {frames} frames, and EMAC+'s loop gives it the current one alone: set "
            "model.images=1"
        )


def build_loop(config: EmacPlusConfig, folder: Path, *, calls: Path | None = None) -> Loop:
    """A loop in `folder` with its planner, trainer and agent. Raises what the models and the endpoint raise.

    `calls` is the file of what calls to the planner's endpoint cost (None: one in `folder`): loops that share it share
    their limits.
    """
    run, planner = config.run, config.planner
    device = pick_device(run.device)
    set_seed(run.seed)  # before the models are made: untrained weights are drawn
    model, vis_processor = load_student(config.model, device)
    refuse_earlier_frames(model.frames)  # a model of a third party has its own way to set it
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ConfigError(
            "every part of the agent's model is frozen: set one of model.freeze_* to false (run.updates=0: only the "
            "planner learns)"
        )
    if config.policy.name == "vllm":
        check_served(model, config.policy.adapters)
    model.dpo_beta = run.dpo_beta
    agent = LearningAgent(
        model,
        make_policy(config.policy, model, vis_processor, run.max_batch),
        vis_processor=vis_processor,
        write_prompt=prompt_writer(model, tell_objects=config.environment.tell_objects),
        earlier_games=games_of_weights(model_section(config.model)),
        max_batch=run.max_batch,
    )
    # The language model whose adapter is trained: the planner itself, or one with the same base beside an endpoint.
    trainer = local_planner(planner, run, device) if planner.name == "local" or planner.trainer else None
    plans: Planner
    if planner.name == "explorer":
        plans = ExplorerPlanner()
    elif planner.name == "local":
        assert trainer is not None
        plans = trainer
    else:
        from xrl_alignment.agents.experts.llm.tokens import counter_for  # tiktoken and Transformers: only if asked for

        endpoint = build_endpoint(planner, Path(planner.cache) if planner.cache else folder / "planner_answers.sqlite")
        endpoint.account.keep(calls or folder / CALLS)  # what was spent before a resume counts
        endpoint.count = counter_for(planner.model, planner.tokenizer, section=planner.section)
        plans = EndpointPlanner(
            endpoint,
            examples=_examples(planner),
            context_tokens=planner.context_tokens,
            max_answer_tokens=planner.max_answer_tokens,
            temperature=planner.temperature,
        )
    return Loop(
        folder,
        config,
        planner=plans,
        trainer=trainer,
        agent=agent,
        make_environment=environment_factory(config.environment, run.max_steps),
    )


def local_planner(settings: PlannerConfig, run: LoopRunConfig, device: torch.device) -> LocalPlanner:
    """The `trainer`, or else the `model` (`TINY`, else a folder or hub id) with an untrained adapter."""
    key = "planner.trainer" if settings.trainer else "planner.model"
    name = settings.trainer or settings.model
    tokenizer = load_llm_tokenizer(package_path("tiny" if name in TINY else name), key)
    return LocalPlanner(
        language_model(name, key, device).to(device),  # type: ignore[arg-type]  # transformers wraps `to` without types
        tokenizer,
        rank=settings.lora_rank,
        alpha=settings.lora_alpha,
        targets=settings.lora_targets,
        seed=run.seed,
        examples=_examples(settings),
        context_tokens=settings.context_tokens,
        max_answer_tokens=settings.max_answer_tokens,
        max_batch=run.max_batch,
        grounded=settings.grounded,
        kept_mib=settings.kept_prompts_mib,
    )


def refuse_no_model(name: str, key: str) -> None:
    """ConfigError for a folder that holds no language model; `key` is the setting that names it."""
    if name not in TINY and Path(name).is_dir() and not (Path(name) / "config.json").is_file():
        # Transformers would load the model that the folder's adapter_config.json names, from anywhere.
        raise ConfigError(f"{key}={name} is no language model: it has no config.json")


def language_model(name: str, key: str = "planner.model", device: torch.device = CPU) -> PreTrainedModel:
    """One of `TINY`, or a folder or hub id, for `device`; `key` is the setting that names it. Raises ConfigError.

    The weights have the number format of their file; float32 if `device` is a CPU that only emulates that format.
    """
    if name not in TINY:
        refuse_no_model(name, key)
        try:
            model = AutoModelForCausalLM.from_pretrained(name, trust_remote_code=False)
        except weights.UNLOADABLE as error:
            reason = weights.why_unloadable(name, error)
            raise ConfigError(f"{key}={name} is no language model: {reason}") from error
        if fast_llm.cache_name(model) is None:
            raise ConfigError(
                f"{key}: a {type(model).__name__} takes no cache of a prompt that it has read (past_key_values): take "
                "another language model"
            )
        if device.type == "cpu" and model.dtype != half_type(device):
            return model.float()
        return model
    # The demo's language model: its sizes from the model's settings, its weights from the file that ships.
    sizes = OmegaConf.to_container(load_yaml(LIBRARY_ROOT / MODEL_TYPES["demo"]).model.llm_config)
    assert isinstance(sizes, dict)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**{str(key): value for key, value in sizes.items()}))
    state = {name: value.float() for name, value in load_file(package_path(TINY[name])).items()}
    model.load_state_dict(state, strict=False)  # the output layer is the embedding
    return model


def _examples(settings: PlannerConfig) -> str:
    return read_examples("planner.examples", settings.examples) if settings.examples else ""
