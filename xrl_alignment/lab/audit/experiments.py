"""The sections of the audit: each plays with `evaluate.py`, or counts, and returns its table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from alfworld_native.games import find_games, find_splits
from alfworld_native.household.levels import LEVELS
from lavis.common.files import read_json
from xrl_alignment.lab.audit.leakage import shared_with_training, told_by_text
from xrl_alignment.lab.audit.logs import count_trials
from xrl_alignment.lab.audit.power import detectable, games_needed, one_sided_games
from xrl_alignment.lab.audit.published import gaps, read_published
from xrl_alignment.lab.results.lab import Lab, as_options
from xrl_alignment.play.evaluation.protocols import PROTOCOLS

PLAYERS, DIALECTS = "xrl_alignment.lab.audit.players", "xrl_alignment.lab.audit.dialects"
BLIND: dict[str, Any] = {"environment.blank_frames": True}
Setup = tuple[str, dict[str, Any]]  # a settings file, and options over it
# A student that the audit trains: the demo's model with its language model, decoded with our two rules.
TRAINED: dict[str, Any] = {"policy.skip_rejected": True, "policy.skip_visited": True, **BLIND}
TEST_SPLITS = ("valid_seen", "valid_unseen")  # those of them that are on this machine


@dataclass(frozen=True)
class Sizes:
    """How large the audit is; the command's `--quick` is for trying it."""

    games: int = 0  # of each test split; 0: all
    students: tuple[int, ...] = (1, 10, 100, 711, 3553)  # training games
    batches: int = 48  # of 32 samples, of each student
    weak: int = 100  # training games of a student that the protocols are compared with, too; 0: without it
    levels: tuple[str, ...] = tuple(LEVELS)
    level_games: int = 0  # of each level; 0: all
    logs: tuple[str, ...] = ()  # folders of released runs
    only_done: bool = False  # leave out every evaluation that is not done yet


QUICK = Sizes(games=8, students=(1, 10), batches=8, weak=10, levels=("standard", "compound"), level_games=4)


def evaluate(lab: Lab, name: str, config: str, options: Mapping[str, Any], protocol: str = "") -> dict[str, Any]:
    """What a card says of one evaluation, and the command that made it."""
    output = lab.output / "evaluations" / f"{name}.json"
    table = lab.output / "scores.jsonl"
    command = ["evaluate.py", "--cfg-path", f"configs/{config}.yaml", *(["--protocol", protocol] if protocol else [])]
    command += as_options({**options, "run.output": output, "run.table": table})
    lab.step(f"evaluations/{name}", command)
    result = read_json(output)
    # Of the card what the page shows; the whole result stays in its own file.
    keys = ("who", "sees", "decode", "protocol", "max_steps", "trials", "split", "games_hash", "first_trial", "best_of")
    found: dict[str, Any] = {key: result[key] for key in keys} | {"by_slot": result.get("by_slot"), "name": name}
    for part in ("first_trial", "best_of"):  # by type, how many of how many is enough
        kinds = found[part].pop("per_task_type")
        found[part]["per_task_type"] = {
            kind: {"solved": row["solved"], "games": row["games"]} for kind, row in kinds.items()
        }
    shown = " ".join(command).replace('"', "").replace(str(lab.output), "OUTPUT")
    return found | {"command": f"python {shown}"}


def evaluate_all(lab: Lab, sizes: Sizes, asked: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """Key -> result of `evaluate`; `asked` holds its arguments."""
    done = lab.output / "steps" / "evaluations"
    chosen = {key: each for key, each in asked.items() if not sizes.only_done or (done / f"{each[0]}.json").is_file()}
    return {key: evaluate(lab, *each) for key, each in chosen.items()}


def splits() -> list[str]:
    """The test splits that are on this machine."""
    return [split for split in TEST_SPLITS if split in find_splits()]


def games_of(sizes: Sizes, split: str) -> dict[str, Any]:
    """The options that choose the games of a test split."""
    return {"environment.split": split, "run.num_envs": sizes.games}


def trained(lab: Lab, sizes: Sizes, number: int) -> Path | None:
    """A student cloned from the explorer's play of `number` training games, which never sees an image.

    With `only_done` None, if it is not trained yet.
    """
    if sizes.only_done and not (lab.output / "steps" / "students" / f"{number}-games.json").is_file():
        return None
    arguments = ["--split", "train", "--num-games", str(number), "--seed", "7", "--noise", "0.1", "--blank-frames"]
    data = lab.collect(f"{number}-games", *arguments)
    # A batch needs more samples than one game has; a listed set counts as often as it is listed.
    copies = [data] * max(1, 16 // number)
    inner = max(1, sizes.batches // 8)  # the learning rate falls in eight steps
    return lab.train(f"{number}-games", copies, seed=0, max_iters=sizes.batches, iters_per_inner_epoch=inner)


def players(lab: Lab, sizes: Sizes) -> dict[str, Any]:
    """Who solves the test games without learning, without seeing, or from few games."""
    # From the player that knows least to the one that has learned most: the page lists them in this order.
    expert, student = "evaluate/expert", "evaluate/student"
    compared: dict[str, Setup] = {
        "random words": (expert, {"expert.name": f"{PLAYERS}:RandomWords"}),
        "random admissible commands": (expert, {"run.actor": "random"}),
        "the list alone": (expert, {"expert.name": f"{PLAYERS}:ListAlone"}),
        "the task and the list": (expert, {"expert.name": f"{PLAYERS}:ListAndTask"}),
        "explorer without its table": (expert, {"expert.name": f"{PLAYERS}:WithoutTable"}),
        "explorer": (expert, {"expert.name": "explorer"}),
        "handcoded expert": (expert, {"expert.name": "handcoded"}),
    }
    there = splits()
    for number in sizes.students if there else ():
        if student_of := trained(lab, sizes, number):
            options = {"model.pretrained": student_of, **TRAINED}
            compared[f"blind student, {number} games"] = ("results/evaluation", options)
    compared["blind student that ships"] = (student, BLIND)
    compared["student that ships, with frames"] = (student, {})
    return {
        split: evaluate_all(
            lab,
            sizes,
            {
                who: (f"players/{split}/{_slug(who)}", config, {**games_of(sizes, split), **options})
                for who, (config, options) in compared.items()
            },
        )
        for split in there
    }


def protocols(lab: Lab, sizes: Sizes) -> dict[str, Any]:
    """The same players on the same games under the rules of every protocol."""
    split = splits()[0]
    compared: dict[str, Setup] = {"random admissible commands": ("evaluate/expert", {"run.actor": "random"})}
    if sizes.weak and (student_of := trained(lab, sizes, sizes.weak)):
        weak = {"model.pretrained": student_of, **BLIND}
        compared[f"blind student, {sizes.weak} games"] = ("results/evaluation", weak)
    compared["blind student that ships"] = ("evaluate/student", BLIND)
    return {
        who: evaluate_all(
            lab,
            sizes,
            {
                name: (f"protocols/{name}/{_slug(who)}", config, {**games_of(sizes, split), **options}, name)
                for name in PROTOCOLS
            },
        )
        for who, (config, options) in compared.items()
    }


def power(lab: Lab, sizes: Sizes) -> dict[str, Any]:
    """What a number of games can show, and which published differences exceed it."""
    # valid_unseen has 134 games, valid_seen 140; the last two numbers are three seeds of each.
    bases, numbers = (0.5, 0.7, 0.8, 0.9, 0.95), (128, 134, 140, 200, 3 * 134, 3 * 140)
    comparable, others = gaps(read_published())
    return {
        "detectable": {str(games): {str(base): detectable(base, games) for base in bases} for games in numbers},
        "needed": {"0.90 from 0.88": games_needed(0.88, 0.90), "0.95 from 0.93": games_needed(0.93, 0.95)},
        "one_sided": one_sided_games(),
        "gaps": [asdict(gap) for gap in comparable],
        "not_comparable": [asdict(rate) for rate in others],
    }


def leakage(lab: Lab, sizes: Sizes) -> dict[str, Any]:
    """What rooms, texts and lists of commands give away, in each test split."""
    training = find_games("train") if "train" in find_splits() else []
    found = {}
    for split in splits():
        games = find_games(split, num=sizes.games or None, seed=0)
        found[split] = {"training_games": len(training), **shared_with_training(games, training), **told_by_text(games)}
    return found


def dialects(lab: Lab, sizes: Sizes) -> dict[str, Any]:
    """The same players where only one dialect is understood."""
    split = splits()[0]
    compared: dict[str, Setup] = {
        "blind student that ships, free text": ("evaluate/student", BLIND),
        "the task and the list": ("evaluate/expert", {"expert.name": f"{PLAYERS}:ListAndTask"}),
        "explorer": ("evaluate/expert", {"expert.name": "explorer"}),
    }
    return {
        who: evaluate_all(
            lab,
            sizes,
            {
                dialect: (
                    f"dialects/{dialect}/{_slug(who)}",
                    config,
                    {"environment.name": f"{DIALECTS}:{dialect}", **games_of(sizes, split), **options},
                )
                for dialect in ("PutDialect", "MoveDialect")
            },
        )
        for who, (config, options) in compared.items()
    }


def levels(lab: Lab, sizes: Sizes) -> dict[str, Any]:
    """The levels of the generator, each with its frozen test set and horizon: what is left to solve."""
    compared: dict[str, Setup] = {
        "explorer": ("evaluate/expert", {"expert.name": "explorer"}),
        "student": ("evaluate/student", BLIND),
    }
    horizon = {"environment.name": "household", "run.num_envs": sizes.level_games, "run.max_steps": 0}
    return {
        level: evaluate_all(
            lab,
            sizes,
            {
                who: (f"levels/{level}/{who}", config, horizon | {"environment.split": f"household_{level}"} | options)
                for who, (config, options) in compared.items()
            },
        )
        for level in sizes.levels
    }


def logs(lab: Lab, sizes: Sizes) -> dict[str, Any]:
    """Released runs of several trials, counted by slot, by game, and in the first trial."""
    return {Path(folder).name: count_trials(Path(folder)) for folder in sizes.logs}


SECTIONS: dict[str, Callable[[Lab, Sizes], dict[str, Any]]] = {
    "power": power,
    "leakage": leakage,
    "players": players,
    "protocols": protocols,
    "dialects": dialects,
    "levels": levels,
    "logs": logs,
}


def _slug(who: str) -> str:
    return who.replace(",", "").replace(" ", "-")


def needs_games(sections: Sequence[str]) -> bool:
    """Whether one of `sections` plays official games."""
    return bool({"leakage", "players", "protocols", "dialects"} & set(sections))
