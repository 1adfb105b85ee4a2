"""Collects training data: an expert plays games, and every state it meets becomes a labelled transition.

    python -m xrl_alignment.collect --env native --split train --expert explorer --num-games 200 --workers 2 --out DIR
    python -m xrl_alignment.collect --split train --no-frames --out DIR       # labels and texts only
    python -m xrl_alignment.collect --expert openai --expert-options model=gpt-4o max_cost_usd=5 … --workers 8 --out DIR

    DIR/
        README.md                          dataset card: counts, success, settings, versions
        collection.json                    the settings; a second run with the same ones continues the first
        episodes.jsonl                     one line an episode, in the order of the games; those played again come last
        round000_env0012_steps013.h5       --format shards: one file for each stored episode
        annotations.json, images/          --format lavis: what LAVIS and the published ALFWorld data use

A transition holds what a model sees online: the same prompt (`language.prompt.build_prompt`), the same frame, the same
canonical commands. Episodes that the expert does not solve are left out unless --keep-failed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from alfworld_native import choose_games
from alfworld_native.base import MAX_STEPS, Game
from alfworld_native.errors import EnvironmentFault
from alfworld_native.experts.explorer import ORDERS
from alfworld_native.experts.seeing import EYES
from alfworld_native.games import games_hash
from alfworld_native.household.levels import longest_horizon
from alfworld_native.household.mixture import horizon_of, read_mixture
from lavis.common.config import as_option, merged, plain, read_option
from lavis.common.errors import ConfigError, FileError
from lavis.common.files import locked, make_folder, remove_temporaries, write_json
from lavis.common.program import run_program
from xrl_alignment.agents.experts import act_all
from xrl_alignment.builders.teacher import build_teacher
from xrl_alignment.common.choices import BACKENDS, CAMERAS, ENVIRONMENT_NAMES, NAMES_BY
from xrl_alignment.common.progress import GameProgress
from xrl_alignment.play.collection.card import card
from xrl_alignment.play.collection.plan import EXPERTS, FORMATS, LANGUAGE_MODEL, Collected, Plan
from xrl_alignment.play.collection.player import CollectingPlayer, counter
from xrl_alignment.play.collection.storage import CollectionJournal, forget_lost, parse_episodes
from xrl_alignment.play.rollouts.base import RolloutExecutor
from xrl_alignment.play.rollouts.make import make_executor
from xrl_alignment.play.rollouts.sequential import SequentialExecutor
from xrl_alignment.settings.loading import load_config
from xrl_alignment.settings.resume import FREE_KEYS
from xrl_alignment.settings.schema import EvaluateConfig, ReflexionConfig


def collect(
    plan: Plan,
    games: Sequence[Game],
    out: Path,
    executor: RolloutExecutor | None = None,
    expert_options: Mapping[str, Any] | None = None,
) -> list[Collected]:
    """Play what is not yet done of `games` with `executor` (None: in this process); all episodes, in the games' order.

    `expert_options` are `make_expert`'s: the teacher of the expert `openai`, which plays in this process only.
    Raises EnvironmentFault if a game was lost with its workers; what was collected before it is kept. Raises
    LockedError if another process collects into `out`, FileError if what is there already is damaged.
    """
    make_folder(out)
    with closing(locked(out / ".lock", out)):
        # Under the lock: the half-written files of a killed collection are nobody's then.
        remove_temporaries(out)
        _claim(plan, out)
        if plan.format == "shards" and (lost := forget_lost(out)):
            print(f"{len(lost)} shards are gone or cut short ({lost[0]}, …): their games are played again", flush=True)
        # The card is written last, and then the list of entries is no longer needed: nothing is left to do.
        path = out / "episodes.jsonl"
        if (out / "README.md").is_file() and path.is_file() and not (out / ".annotations.jsonl").is_file():
            episodes = parse_episodes(path.read_bytes(), path)[0]
            if len(episodes) == len(games):  # else the list was cut short since
                return sorted(episodes, key=lambda episode: episode.env)
        journal = CollectionJournal(out)
        # By number in the list: the plan holds the list's hash, so the same number is the same game.
        known = {episode.env for episode in journal.done}
        jobs = [(env, game) for env, game in enumerate(games) if env not in known]
        play_all = (executor or SequentialExecutor()).run
        results = play_all(
            CollectingPlayer(plan, out, expert_options),
            jobs,
            # Experts that ask a model are asked together: their calls wait at the same time.
            answer=lambda asked: act_all([one.expert for one in asked], [one.information for one in asked]),
            key=lambda job: job[1].id,
        )
        with GameProgress(len(jobs)) as progress, journal.writing() as add:
            for outcome in results:
                if outcome.fault:
                    raise EnvironmentFault(
                        f"{outcome.job[1].id} cannot be played ({outcome.attempts} attempts): {outcome.fault}; "
                        "the same command continues from there"
                    )
                episode, entries = outcome.value
                add(episode, entries)
                progress.advance(episode.won)
        journal.finish(out, card(plan, journal.done))
        return sorted(journal.done, key=lambda episode: episode.env)


def _claim(plan: Plan, out: Path) -> None:
    """Write the plan into the folder, or check that it is the one there."""
    path = out / "collection.json"
    if not path.is_file():
        # Whose place this one's could take.
        names = ("*.h5", "annotations.json", "README.md")
        if others := [each for name in names for each in out.glob(name) if each.is_file()]:
            raise ConfigError(f"{out} holds data that no collection has written ({others[0].name}): use another --out")
        write_json(path, asdict(plan))
        return
    try:
        there, reason = json.loads(path.read_text(encoding="utf-8")), "it holds no settings"
    except (ValueError, RecursionError) as error:
        there, reason = None, str(error)
    if not isinstance(there, dict):
        raise FileError(f"{path} is damaged ({reason}): use another --out, or remove {out} and collect again")
    # A setting that the file lacks is younger than the collection: it had its default then.
    for key, value in asdict(plan).items():
        if there.get(key, getattr(Plan, key, None)) != value:
            raise ConfigError(
                f"{out} was begun with other settings ({key}: {there.get(key)!r} there, {value!r} now): "
                "use another --out"
            )


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--out", type=Path, required=True, help="folder for the data")
    add("--env", default="native", help=f"{', '.join(ENVIRONMENT_NAMES)}, or module:Class")
    add("--split", default="train")
    add("--expert", default="explorer", help=f"{', '.join(EXPERTS)}, or module:Class")
    add("--expert-options", nargs="*", default=[], metavar="KEY=VALUE", help="of --expert openai (docs/teacher.md)")
    add("--num-games", type=int, default=0, help="0: all of the split")
    add("--workers", type=int, default=1, help="processes, or Ray actors")
    add("--executor", choices=BACKENDS, help="default: local with several workers, else sequential (docs/rollouts.md)")
    add("--ray-address", default="", help="--executor ray: the cluster (default: Ray on this machine only)")
    add("--data", default="", help="folder with json_2.1.1 (default: $ALFWORLD_DATA)")
    add("--seed", type=int, default=0, help="which games, and all chance in them")
    add("--levels", nargs="+", default=[], metavar="LEVEL=WEIGHT", help="--env household: a mixture of levels")
    add("--max-steps", type=int, default=0, help="of an episode; 0: the split's, or the longest of --levels")
    add("--format", choices=FORMATS, help="default: shards (lavis with --no-frames)")
    add("--image-format", choices=("png", "jpg"), default="png", help="of --format lavis")
    add("--no-frames", dest="frames", action="store_false", help="labels and texts only")
    add("--keep-failed", action="store_true", help="store episodes that the expert did not solve, too")
    add("--noise", type=float, default=0.0, help="probability of executing a random command instead of the label")
    add("--thoughts", action="store_true", help="the expert thinks before it acts (run.enable_tc of training)")
    add("--notes", action="store_true", help="the explorer's thoughts are notes, as expert.notes says")
    add("--memories", action="store_true", help="each game was tried before, and a memory of that is in the prompt")
    add("--hide-objects", dest="tell_objects", action="store_false", help="environment.tell_objects=false")
    add("--name-by", choices=NAMES_BY, default="number", help="type: texts and commands without numbers of objects")
    add("--no-show-ids", dest="show_ids", action="store_false", help="frames show the rendered state without labels")
    camera_help = "around: frames of all four directions; close: the receptacle at hand, objects drawn big"
    add("--camera", choices=CAMERAS, default="front", help=camera_help)
    add("--blank-frames", action="store_true", help="black frames")
    add("--negatives", action="store_true", help="store a random other command as text_output_neg, for DPO")
    add("--order", choices=ORDERS, default="likely", help="of the explorer's search")
    add(
        "--eyes",
        choices=tuple(EYES),
        default="none",
        help="what the explorer sees beside what it reads: labels of its frame, …",
    )
    add("--only", default="", metavar="WORD", help="store the states whose label begins with WORD alone (take)")
    add("--tokenizer", default="tiny", help="whose tokens the prompts are measured in: tiny, or a model's folder")
    add(
        "--budget",
        type=int,
        default=1023,
        help="longest prompt in tokens (the model's max_txt_len - 1); room, task and the newest step always stay",
    )
    return parser.parse_args(argv)


@contextlib.contextmanager
def _teacher(expert: str, options: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """What `make_expert` needs beside the expert's name: for `openai` a teacher.

    At the end, however it comes, the teacher's cost is printed, and it is closed.
    """
    if expert != LANGUAGE_MODEL:
        if options:
            raise ConfigError(f"--expert-options are for --expert {LANGUAGE_MODEL}, not for {expert}")
        yield {}
        return
    # A text in quotes, as it was read: yaml would read `runs #2` as `runs`.
    given = [
        as_option(f"expert.{key}", said) if isinstance(said, str) else f"expert.{key}={'' if said is None else said}"
        for key, said in options.items()
    ]
    try:
        settings = load_config(EvaluateConfig, None, [*given, f"expert.name={LANGUAGE_MODEL}"]).expert
    except ConfigError as error:
        # The settings are checked as those of a file's section `expert`; here they are named without it.
        text = str(error).replace("--options", "--expert-options", 1)
        raise ConfigError(text.replace("expert.", "")) from error
    with closing(build_teacher(settings, ReflexionConfig(enabled=False))) as teacher:
        try:
            yield teacher.expert_options
        finally:
            assert teacher.account is not None  # a language model has one
            print(teacher.account.line(0), flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    """Collect, and say what there is."""
    settings: dict[str, Any] = vars(parse_arguments(argv))
    out, workers, address = settings.pop("out"), settings.pop("workers"), settings.pop("ray_address")
    given = settings.pop("executor")
    if settings["expert"] == LANGUAGE_MODEL and (given or address):
        raise ConfigError(
            f"--executor and --ray-address are not for --expert {LANGUAGE_MODEL}: its episodes wait for a network, so "
            "--workers of them take turns in this process"
        )
    if workers < 1:
        raise ConfigError(f"--workers {workers}: use at least 1")
    backend = given or ("local" if workers > 1 else "sequential")
    settings["levels"] = " ".join(settings["levels"])
    settings["format"] = settings["format"] or ("shards" if settings["frames"] else "lavis")
    options = plain(merged({}, *(read_option(option) for option in settings["expert_options"])))
    # The plan holds what the data depends on; a key's variable or a price may change between two runs.
    settings["expert_options"] = {key: value for key, value in options.items() if f"expert.{key}" not in FREE_KEYS}
    mixed = settings["levels"]
    shortest = horizon_of(read_mixture(mixed)) if mixed else MAX_STEPS
    Plan(**{**settings, "max_steps": settings["max_steps"] or shortest})  # before games are looked for
    number = settings["num_games"]
    mixture: dict[str, Any] = {}
    if settings["levels"]:
        # Of a mixture of levels as many games are made as are asked for.
        sizes = {"num_train": number, "num_heldout": number} if number else {}
        mixture = {"levels": read_mixture(settings["levels"]), **sizes}
    games = choose_games(
        settings["env"], settings["split"], num=number, data=settings["data"] or None, seed=settings["seed"], **mixture
    )
    settings["max_steps"] = settings["max_steps"] or longest_horizon(games)
    plan = Plan(
        **{**settings, "data": os.path.abspath(settings["data"]) if settings["data"] else ""}, games=games_hash(games)
    )
    counter(plan.tokenizer)  # a tokenizer that is not there is an error before the folder is claimed
    began = time.monotonic()
    with contextlib.ExitStack() as cleanup:
        teacher = cleanup.enter_context(_teacher(plan.expert, options))
        executor: RolloutExecutor
        if plan.expert == LANGUAGE_MODEL:
            # Waiting for a network needs no processes: the episodes take turns in this one.
            executor = SequentialExecutor(interleave=workers)
        else:
            executor = make_executor(backend, workers=workers, address=address)
        cleanup.enter_context(executor)
        episodes = collect(plan, games, out.absolute(), executor, teacher)
    stored, won = sum(episode.stored for episode in episodes), sum(episode.won for episode in episodes)
    print(f"{stored} transitions of {won} solved of {len(episodes)} games, {time.monotonic() - began:.1f} s, in {out}")


if __name__ == "__main__":
    run_program(main)
