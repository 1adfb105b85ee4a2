r"""Scores a player on any games: plays whole episodes and prints success by task type, with intervals.

Any endpoint with OpenAI's interface (OpenAI, vLLM, Azure, gateways), free text; then its admissible commands shown:

    python evaluate.py --cfg-path configs/evaluate/endpoint.yaml --options expert.model=NAME \
        expert.base_url=http://localhost:8000/v1 environment.split=valid_seen run.num_envs=140
    python evaluate.py --cfg-path configs/evaluate/endpoint.yaml --options expert.model=NAME expert.decode=admissible

A checkpoint; its language model in vLLM; the student that ships; an expert; random commands:

    python evaluate.py --cfg-path configs/evaluate/episodes.yaml --options model.pretrained=emma_checkpoint_1.pth
    python evaluate.py --cfg-path configs/evaluate/episodes.yaml --options model.pretrained=… policy.name=vllm
    python evaluate.py --cfg-path configs/evaluate/student.yaml
    python evaluate.py --cfg-path configs/evaluate/expert.yaml --options expert.name=explorer
    python evaluate.py --cfg-path configs/evaluate/expert.yaml --options run.actor=random

`--protocol NAME` sets the rules of a published protocol (docs/scores.md lists them), here on other games than its own:

    python evaluate.py --cfg-path configs/evaluate/student.yaml --protocol emma-12 --options \
        environment.split=valid_seen run.num_envs=140

Games: `environment.split=valid_seen`, `valid_unseen`, `train` (official; `environment.name=textworld` or `thor` plays
them on those engines), or `environment.name=household environment.split=household_heldout`, or a harder level, as
`environment.split=household_compound run.num_envs=0 run.max_steps=0` (docs/levels.md; 0: all games, its own horizon).

Writes `run.output`: the figures of the first trial and, apart, of the best of `run.num_trials`, every episode, and what
they depend on (engine, split, hash of the game list, decoding, seed, versions). Beside it lie the result's card
(ending `.card.md`), a block for each trial as in the original's logs (`.world.log`), and the table `scores.jsonl`, to
which every result is appended (`run.table`). `python -m xrl_alignment.evaluation output/evaluate/scores.jsonl` makes a
page of it. docs/tutorials/evaluate.md tells how to read all that.

With `run.executor=local run.num_workers=8` (or `ray`) environments run in processes of their own (docs/rollouts.md). A
config whose `run:` section has the key `task` is a LAVIS config: that task evaluates stored data (docs/offline.md,
lavis/projects/instructblip/finetuning/alfworld_eval.yaml). Any other config has the keys of docs/settings.md.
"""

from __future__ import annotations

if __name__ == "__main__":
    import lavis  # noqa: F401  (before all else: it says in one line what this interpreter lacks)

import argparse
import contextlib
import datetime
import json
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from lavis.common.config import is_lavis_config
from lavis.common.errors import ConfigError
from lavis.common.program import parse_args, read_first, run_program
from lavis.models.sections import check_section
from xrl_alignment.builders.named import check_device, check_policy
from xrl_alignment.play.evaluation.protocols import (
    BY_GAME,
    BY_SLOT,
    FIRST_TRIAL,
    check_options,
    check_rules,
    options_of,
    other_decoding,
    own_games,
    protocol,
    recognised,
)
from xrl_alignment.settings.loading import load_config
from xrl_alignment.settings.schema import EvaluateConfig


def read_command_line() -> tuple[argparse.Namespace, EvaluateConfig | None, str]:
    """The arguments, the settings that they name (None: a LAVIS config), and the protocol whose rules they are."""
    arguments = parse_args(__doc__, add_arguments, example="configs/evaluate/student.yaml")
    if is_lavis_config(arguments.cfg_path):
        if arguments.protocol:
            raise ConfigError(f"--protocol is for played games: {arguments.cfg_path} has run.task, for stored data")
        return arguments, None, ""
    config, rules = settings(arguments)
    if config.run.actor == "policy":
        check_device(config.run.device)
        check_section(config.model)
        check_policy(config.policy)
    return arguments, config, rules


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this program beside the settings."""
    parser.add_argument("--protocol", metavar="NAME", help="rules by name; docs/scores.md lists them")


def settings(arguments: argparse.Namespace) -> tuple[EvaluateConfig, str]:
    """The settings, and the name of the protocol whose rules they are.

    A named protocol lies over the settings file, which describes the player; an option may choose other games, but
    ConfigError for one that contradicts a rule.
    """
    if not arguments.protocol:
        config = load_config(EvaluateConfig, arguments.cfg_path, arguments.options)
        return config, recognised(config)
    check_options(arguments.protocol, arguments.options)
    laid_over = [*options_of(arguments.protocol), *arguments.options]
    config = load_config(EvaluateConfig, arguments.cfg_path, laid_over)
    check_rules(arguments.protocol, config, arguments.options)
    return config, arguments.protocol


if __name__ == "__main__":
    # Above the imports that take seconds: `--help` and mistakes in the settings are answered at once.
    read_first(read_command_line)

from alfworld_native.base import Game
from alfworld_native.games import games_hash
from alfworld_native.household.levels import horizon
from alfworld_native.household.mixture import checked_mixture, horizon_of
from lavis.common.allocator import bound_kernel_cache, keep_freed_memory
from lavis.common.devices import pick_device, set_seed, set_threads
from lavis.common.files import writable, write_text
from lavis.common.named_class import is_class_name
from lavis.models.hf_vlm.options import CONFIG_DEFAULTS
from lavis.models.played import played_by_file
from xrl_alignment.agents.experts import make_expert
from xrl_alignment.agents.policies.uniform import RandomPolicy
from xrl_alignment.builders.environments import environment_factory, games_of
from xrl_alignment.builders.stored import run_of
from xrl_alignment.builders.student import acting_policy, model_section
from xrl_alignment.builders.teacher import TeacherParts, build_teacher, expert_options
from xrl_alignment.common.choices import CLIENT_EXPERTS
from xrl_alignment.common.errors import EndpointFault
from xrl_alignment.common.progress import GameProgress
from xrl_alignment.common.versions import versions
from xrl_alignment.lab import lavis_task
from xrl_alignment.play.evaluation.actors import Actor, ExpertActor, PolicyActor, new_expert
from xrl_alignment.play.evaluation.metrics import share, summarise, table
from xrl_alignment.play.evaluation.page import card
from xrl_alignment.play.evaluation.reads import reads_of
from xrl_alignment.play.evaluation.scores import append, row_of
from xrl_alignment.play.evaluation.trials import Trials
from xrl_alignment.play.rollouts.base import RolloutExecutor
from xrl_alignment.play.rollouts.make import make_executor
from xrl_alignment.runs.directory import round_block


def main() -> None:
    """Parse, build, play, write, print."""
    arguments, config, rules = read_command_line()
    bound_kernel_cache()
    keep_freed_memory()
    if config is None:
        print(f"{arguments.cfg_path} has run.task: LAVIS evaluation", flush=True)
        lavis_task.evaluate(arguments)
        return
    if not config.run.max_steps:
        levels = config.environment.levels
        longest = horizon_of(checked_mixture(levels)) if levels else 0
        config.run = replace(config.run, max_steps=longest or horizon(config.environment.split))
    run = config.run
    set_threads(run.num_threads)
    set_seed(run.seed)
    # What can be wrong is told before games are generated and a model is loaded.
    output = writable("run.output", Path(run.output))
    # The table to which the result is appended: a bare name lies beside `run.output`, without a name there is none.
    path = Path(run.table)
    scores = path if path.parent != Path() else output.with_name(path.name) if path.name else None
    if scores:
        writable("run.table", scores)
        # The result would take the place of all rows of the table, or its row would damage the result.
        if scores.resolve() in [file.resolve() for file in result_files(output)]:
            raise ConfigError(
                f"run.table={run.table} and run.output={run.output} would be written to one file, {scores}: "
                "give one of them another name"
            )
    check_expert(config)
    executor = build_executor(config)
    games = games_of(config.environment, run.num_envs)
    expert = config.expert.name if run.actor == "expert" else None
    cleanup = contextlib.ExitStack()
    teacher = build_teacher(config.expert, config.reflexion, thinking=run.enable_tc)
    cleanup.callback(teacher.close)
    try:
        actor = build_actor(config, teacher, cleanup)
        trials = Trials(
            actor=actor,
            games=games,
            make_environment=environment_factory(
                config.environment, run.max_steps, expert if expert in CLIENT_EXPERTS else None
            ),
            executor=executor,
            max_steps=run.max_steps,
            repeat_limit=run.repeat_limit,
            enable_tc=run.enable_tc,
            reflector=teacher.reflector,
            swap_memories=run.swap_memories,
            moving_slots=run.moving_slots,
            tell_objects=config.environment.tell_objects or isinstance(actor, ExpertActor),  # experts are told all
        )
        print(announcement(config, games, rules, actor), flush=True)  # before the first game, which may take minutes
        with trials:
            log, seconds = play_trials(trials, run.num_trials, teacher)
    except EndpointFault as error:
        cache = teacher.endpoint.cache.path if teacher.endpoint else None
        if not cache:
            raise
        raise type(error)(f"{error}; answers so far are in {cache}: the same command continues from here") from error
    finally:
        cleanup.close()
    result: dict[str, Any] = {"first_trial": summarise(trials.first), "best_of": summarise(trials.best)}
    result |= facts(config, games, rules, actor)
    if run.moving_slots:
        result["by_slot"] = share(len(trials.solved), len(games))
    result["trained_on"] = trained_on(config, games)
    result["reflexion"] = teacher.reflector.name if teacher.reflector else ""
    result["rollouts"] = {"executor": run.executor, "workers": run.num_workers, "seconds": seconds}
    if teacher.account:
        first = teacher.account.figures(0)
        result["expert"] = {"model": config.expert.model, "first_trial": first, **teacher.account.status()}
    result["episodes"] = [[vars(episode) for episode in trial] for trial in trials.results]
    write(output, scores, result, log)
    print(f"{report(result, log)}; written to {run.output}")


def write(output: Path, scores: Path | None, result: dict[str, Any], log: str) -> None:
    """The result, the log and the card beside it, and its row in the table."""
    row = row_of(result)
    texts = (json.dumps(result, indent=1), log, card(row))
    for path, text in zip(result_files(output), texts, strict=True):
        write_text(path, text)
    if scores:
        append(scores, row)


def result_files(output: Path) -> tuple[Path, Path, Path]:
    """Where the result of `run.output`, its log and its card are written."""
    name = output.name.removesuffix(".json")  # `output/Qwen2.5` has no ending to replace
    return output, output.with_name(f"{name}.world.log"), output.with_name(f"{name}.card.md")


def announcement(config: EvaluateConfig, games: list[Game], rules: str, actor: Actor) -> str:
    """What is about to be played, by whom, under which rules."""
    weights = f", weights of {pretrained(config)}{reading(config)}" if pretrained(config) else ""
    played, run = config.environment, config.run
    where = f"{len(games)} games of {played.name} {played.split}, {run.num_trials} trials"
    other = ""
    if not own_games(rules, config, len(games)):
        other = f"; its own games would be {protocol(rules).games} of {protocol(rules).split}"
    if own := other_decoding(rules, player(config, actor).decode):
        other += f"; its own decoding would be {own}"
    return f"playing {where}: {acting(config)}{weights}\nprotocol: {rules}, {run.max_steps} steps{other}"


def reading(config: EvaluateConfig) -> str:
    """What the run of a hub model's checkpoint says otherwise than these settings of how a prompt shows its frames."""
    if config.model.get("arch") != "hf_vlm" or not Path(pretrained(config)).is_file():
        return ""
    now, trained = ({**CONFIG_DEFAULTS, **each} for each in (config.model, run_of(Path(pretrained(config)))[0]))
    differ = [key for key in ("images", "image_last") if now[key] != trained[key]]
    return "".join(f"; trained with model.{key}={trained[key]}, now {now[key]}" for key in differ)


def check_expert(config: EvaluateConfig) -> None:
    """ConfigError for an expert that cannot play here."""
    if config.run.actor != "expert":
        return
    if config.expert.name == "client":
        raise ConfigError("expert.name=client reads what a client sends; evaluate.py has none: choose another")
    if is_class_name(config.expert.name):
        make_expert(config.expert.name)


def trained_on(config: EvaluateConfig, games: list[Game]) -> dict[str, Any]:
    """How many of `games` the evaluated weights have trained on, as their checkpoint says.

    `games` is None if nobody can tell: weights of another kind, of an older version, or behind an address, a class of
    somebody's own, games without an id.
    """
    nothing: dict[str, Any] = {"games": 0, "environments": []}
    unknown: dict[str, Any] = {"games": None, "environments": []}
    if config.run.actor == "random":
        return nothing
    if config.run.actor == "expert":
        if config.expert.name == "explorer" and config.environment.split == "train":
            # Its table of likely places was counted on these games (alfworld_native/experts/statistics.py).
            return {"games": len(games), "environments": ["the explorer's table of likely places"]}
        return nothing if config.expert.name in ("explorer", *CLIENT_EXPERTS) else unknown
    weights = pretrained(config)
    if not weights or (played := played_by_file(weights)) is None:
        return unknown
    known = len(played.among((game.id for game in games), config.environment.split))
    where = [*played.environments, *(f"split {name}" for name in played.splits)]
    return {"games": known if known or played.all_named else None, "environments": where}


def pretrained(config: EvaluateConfig) -> str:
    """The checkpoint that the model's settings name, those of its type included; empty if none is loaded."""
    if config.run.actor != "policy" or config.policy.name == "http" or is_class_name(config.policy.name):
        return ""  # no model of these settings plays
    section = model_section(config.model)
    return str(section.get("pretrained") or "") if section.get("load_pretrained", True) else ""


def contamination(result: dict[str, Any]) -> str:
    """The sentence about `trained_on`, empty if the games are held out."""
    number, total = result["trained_on"]["games"], result["first_trial"]["games"]
    if number is None and result["pretrained"]:
        return "whether the weights have trained on these games is unknown: their file does not name them"
    if number is None:
        return "whether the player was trained on these games is unknown"
    if not number:
        return ""
    where = ", ".join(result["trained_on"]["environments"])
    return f"NOT HELD OUT: the {result['kind']} has trained on {number} of these {total} games ({where})"


def play_trials(trials: Trials, number: int, teacher: TeacherParts) -> tuple[str, list[float]]:
    """Play all trials; returns the log and the seconds of each trial.

    The log is what `world.log` says of each, and what it cost if a language model was asked.
    """
    log, solved, seconds = "", 0, []
    for trial in range(number):
        name = f"games of trial {trial + 1} of {number}" if number > 1 else "games"
        with GameProgress(len(trials.games) - solved, name=name) as progress:  # solved ones are not played again
            started = time.monotonic()
            if teacher.account:
                teacher.account.start_round(trial)
            if teacher.endpoint:
                # Answers are cached: without another number a second trial would get those of the first.
                teacher.endpoint.draw = trial
            trials.play(lambda result, trace: progress.advance(result.won))
            before, solved = solved, len(trials.solved)
            counts = {"solved": solved, "newly_solved": solved - before, "total": len(trials.games)}
            seconds.append(round(time.monotonic() - started, 3))
            log += round_block(trial, **counts, seconds=seconds[-1])
            if teacher.account:
                log += teacher.account.line(trial) + "\n"
    return log, seconds


def report(result: dict[str, Any], log: str) -> str:
    """What is printed: the table of the first trial, of the best of all, and the blocks of `world.log`."""
    parts = [table(result["first_trial"])]
    if result["trials"] > 1:
        memories = "with a memory of each failure" if result["reflexion"] else "without memories"
        memories = "with another game's memories" if result["swap_memories"] and result["reflexion"] else memories
        parts.append(f"best of {result['trials']} trials, {memories}:\n{table(result['best_of'])}")
    if by_slot := result.get("by_slot"):
        ways = {BY_SLOT: by_slot, BY_GAME: result["best_of"], FIRST_TRIAL: result["first_trial"]}
        lines = [
            f"{name:26} {way['solved']:4d} of {way['games']} = {way['success']:.3f} "
            f"({way['interval'][0]:.3f} to {way['interval'][1]:.3f})"
            for name, way in ways.items()
        ]
        parts.append("\n".join(lines))
    if result["trials"] > 1 or "expert" in result:
        parts.append(log.strip())
    if caution := contamination(result):
        parts.append(caution)
    lost = [episode for trial in result["episodes"] for episode in trial if episode["fault"]]
    if lost:
        parts.append("\n".join(f"lost, counted as not solved: {each['game']}: {each['fault']}" for each in lost))
    rollouts = result["rollouts"]
    workers = f" with {rollouts['workers']} workers" if rollouts["workers"] > 1 else ""
    parts.append(f"rollouts: {sum(rollouts['seconds']):.1f} s, {rollouts['executor']}{workers}")
    made = f"engine {result['engine']}, {result['actor']}, games {result['games_hash']}"
    return "\n\n".join((*parts, f"protocol {result['protocol']}, {made}"))


def build_actor(config: EvaluateConfig, teacher: TeacherParts, cleanup: contextlib.ExitStack) -> Actor:
    """Who plays, by `run.actor`; `cleanup` gets what is to be closed afterwards."""
    run = config.run
    if run.actor == "random":
        return PolicyActor(policy=RandomPolicy(run.seed))
    if run.actor == "expert":
        told, notes = config.environment.tell_objects, config.expert.notes
        options = expert_options(config.expert.name, teacher, tell_objects=told, notes=notes)
        reads = reads_of(make_expert(config.expert.name, environment=object(), **options))
        return ExpertActor(partial(new_expert, config.expert.name, options), reads)
    policy, write_prompt = acting_policy(
        config.model,
        config.policy,
        pick_device(run.device),
        max_batch=run.max_batch,
        tell_objects=config.environment.tell_objects,
    )
    cleanup.callback(policy.close)
    return PolicyActor(policy=policy, blank_frames=config.environment.blank_frames, write_prompt=write_prompt)


def build_executor(config: EvaluateConfig) -> RolloutExecutor:
    """Where the environments run; `sequential` lets `run.max_batch` episodes share each call of the policy."""
    run = config.run
    if run.executor != "sequential" and run.actor == "expert" and config.expert.name == "openai":
        raise ConfigError(
            f"expert.name=openai asks for all episodes at once from one process: leave run.executor={run.executor} out"
        )
    return make_executor(
        run.executor,
        workers=run.num_workers,
        interleave=run.max_batch,
        step_timeout_s=run.step_timeout_s,
        address=run.ray_address,
    )


def acting(config: EvaluateConfig) -> str:
    """Who acts, in a few words."""
    own = is_class_name(config.policy.name)  # such a policy decodes as it likes; the card says what it reads
    policy = f"policy {config.policy.name}" if own else f"policy, {config.policy.decode} decoding"
    return {"expert": f"expert {config.expert.name}", "random": "random"}.get(config.run.actor, policy)


def facts(config: EvaluateConfig, games: list[Game], rules: str, actor: Actor) -> dict[str, Any]:
    """What the figures depend on."""
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "protocol": rules,
        "protocol_games": own_games(rules, config, len(games)),
        "actor": acting(config),
        **player(config, actor)._asdict(),
        "reads": list(actor.reads),
        "max_steps": config.run.max_steps,
        "repeat_limit": config.run.repeat_limit,
        "thoughts": config.run.enable_tc,
        "engine": config.environment.name,
        "split": config.environment.split,
        "games_hash": games_hash(games),
        "trials": config.run.num_trials,
        "swap_memories": config.run.swap_memories,
        "blank_frames": config.environment.blank_frames,
        "other_frames": config.environment.other_frames,
        "image_noise": config.environment.image_noise if config.environment.image_severity else "",
        "image_severity": config.environment.image_severity,
        "text_noise": config.environment.text_noise,
        "pretrained": pretrained(config),
        "seed": config.run.seed,
        "versions": versions(),
    }


class Scored(NamedTuple):
    """Who is scored. Scores of different kinds, or by different ways of decoding, are not compared."""

    # "random", "endpoint", "expert", "server", "class" (a policy of one's own), "checkpoint" or "model as it came".
    kind: str
    who: str
    decode: str  # "free" text, or one of the "admissible" commands
    sees: str


def player(config: EvaluateConfig, actor: Actor) -> Scored:
    """Who is scored by these settings; `actor.reads` is what the player was given."""
    reads = actor.reads
    run, expert, policy, shown = config.run, config.expert, config.policy, config.environment
    decode = "admissible" if "admissible_commands" in reads else "free"
    names = {"task_type": "the task's type", "state": "the state", "admissible_commands": "admissible commands"}
    names["text"] = replace(shown, tell_objects=True).told  # `tell_objects` is for models; noise is for everybody
    given = ", ".join(names.get(each, each) for each in reads) or "nothing"
    if run.actor == "random":
        return Scored("random", "random commands", decode, given)
    if run.actor == "expert" and expert.name == "openai":
        at = urlsplit(expert.base_url).hostname or "OpenAI"  # never the whole address: it may hold a key
        return Scored("endpoint", f"{expert.model} at {at}", decode, given)
    if run.actor == "expert":
        return Scored("expert", expert.name, decode, given)
    weights = config.model.get("pretrained", "") if config.model.get("load_pretrained", True) else ""
    if is_class_name(policy.name):
        who = policy.name
    elif config.model.get("arch") == "hf_vlm":  # a model of the hub: its folder's name, or its id
        folder = str(config.model.get("path", ""))
        who = Path(folder).name if Path(folder).is_dir() else folder
    else:
        arch, kind = str(config.model.get("arch", "blip2_emac")), str(config.model.get("model_type", ""))
        # The types of this project's model are known by their names.
        who = (kind or "tiny") if arch in ("blip2_emac", "blip2_emma") else f"{arch} {kind}".strip()
    if weights and not is_class_name(policy.name):
        path = Path(weights)  # every run calls its checkpoints alike: the run's folder tells them apart
        who += f" {path.absolute().parent.name}/{path.name}" if "checkpoint" in path.name else f" {path.name}"
    if policy.num_beams > 1 and decode == "free" and not is_class_name(policy.name):
        who += f", {policy.num_beams} beams"
    who += ", no rejected command again" if policy.skip_rejected else ""
    who += ", not again where nothing can be new" if policy.skip_visited else ""
    if policy.name == "http":
        who = f"policy server at {urlsplit(policy.base_urls[0]).hostname}"
    # One frame is less than the last three: scores of one checkpoint with other `model.images` are told apart.
    several = f", of the last {actor.frames} states" if actor.frames > 1 else ""
    names |= {"text": shown.told, "image": f"{shown.frames}{several}"}
    given = ", ".join(names[each] for each in reads) or "nothing"
    given = f"by looks: {given}" if shown.by_looks and "image" in reads else given
    if is_class_name(policy.name):
        return Scored("class", who, decode, given)
    kind = "checkpoint" if pretrained(config) else "model as it came"
    return Scored("server" if policy.name == "http" else kind, who, decode, given)


if __name__ == "__main__":
    run_program(main)
