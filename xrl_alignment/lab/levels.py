"""Who solves how many games of each level: a table for docs/levels.md, for any player, on frozen or on fresh games.

    python -m xrl_alignment.levels --page docs/levels.md                     # frozen test sets
    python -m xrl_alignment.levels --players student random --levels hidden house --fresh 12345 --games 100 --json F

A player is `explorer`, `random`, `student` or `student_official` (those that ship), or one of your own:

    RUN/emma_checkpoint_1.pth                 a run's checkpoint: its model's settings are those that it names
    DIR/student.safetensors                   weights for the model `student`, or for a model given with --options
    MODEL@http://localhost:8000/v1            a language model behind an endpoint with OpenAI's interface
    mypackage.players:Mine                    a policy: a class with `act` and `close` (examples/custom_policy.py)

A model of the hub needs its folder, too: `--players RUN/emma_checkpoint_1.pth --options model.path=FOLDER`. Where and
how fast models play is said the same way, for all that have weights: `--options run.device=cuda run.max_batch=32`.

Whatever writes text decodes greedily. `student+rules`, or `FILE+rules`, has two rules of ours on top, which are no
learning: `policy.skip_rejected` and `policy.skip_visited`. Each game is played once, with free text, until the level's
horizon. `--fresh SEED` makes games that nobody has seen, in rooms that no training game has; the table then says which
seed and which hash. What was played is in DIR, and is not played again:

    DIR/<set>-<level>-<games>-<player>.json    figures by task type, hash, step limit; set: frozen or fresh-SEED
    DIR/<player>.card.md                       the card of a player: its figures on every level, and what they depend on
    DIR/fresh-SEED/                            the fresh games

Explorer and random commands need nothing but `pip install -e .`; students need the extra `train`.
"""

from __future__ import annotations

import argparse
import hashlib
import inspect
import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from html import escape
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from alfworld_native import choose_games
from alfworld_native.advice.shortest import shortest_way
from alfworld_native.base import Game
from alfworld_native.engine.environment import NativeEnvironment
from alfworld_native.engine.game import NativeGame
from alfworld_native.experts import belief, explorer, statistics
from alfworld_native.games import find_games
from alfworld_native.household.frozen import GAMES, HASHES, contents_hash
from alfworld_native.household.generator import generate
from alfworld_native.household.levels import LEVELS
from lavis.common.errors import ConfigError, FileError, unknown
from lavis.common.files import make_folder, read_json, writable, write_json, write_text
from lavis.common.named_class import is_class_name, load_class, make_named
from lavis.common.paths import REPO_ROOT
from lavis.common.program import run_program
from lavis.common.progress import Bar
from xrl_alignment.agents.language.prompt import build_prompt
from xrl_alignment.agents.policies.base import Policy
from xrl_alignment.agents.policies.uniform import RandomPolicy
from xrl_alignment.common.progress import GameProgress
from xrl_alignment.common.versions import versions
from xrl_alignment.play.evaluation.actors import Actor, ExpertActor, PolicyActor, new_expert
from xrl_alignment.play.evaluation.metrics import summarise
from xrl_alignment.play.evaluation.reads import reads_of
from xrl_alignment.play.evaluation.trials import play_games

BEGIN, END = "<!-- table: python -m xrl_alignment.levels -->\n", "<!-- /table -->\n"
SHIPPED = ("student", "student_official")  # model types
PLAYERS = ("explorer", *SHIPPED, "student+rules", "random")
RULES = "+rules"  # ends the name of a player that is decoded with our two rules
CHOOSES = "chosen from the admissible commands"  # how such a player answers
TOGETHER = 64  # games that are played at once: a student answers them as one batch
STATISTICS = Path(statistics.__file__).with_name(statistics.TABLE)
SHOWN = "text, rendered state with labels"  # what players of weights are given, in `EnvironmentConfig.shows`'s words
RUN_KEYS = ("run.device", "run.num_threads", "run.max_batch")  # what `--options` may say of how models run


# ---- players ---------------------------------------------------------------------------------------------------------


class Player(NamedTuple):
    """Who plays: a name for files and tables, what its figures depend on beside the name, and how it is made.

    `make` hands what is to be closed after the games to the stack that it is given.
    """

    name: str
    identity: dict[str, Any]
    make: Callable[[ExitStack], Actor]
    answers: str = "free text"


def player_named(text: str, options: Sequence[str] = ()) -> Player:
    """The player that `text` means; ConfigError, one line, if it means none.

    `options` are settings for a player of weights: `model.…` for weights that do not ship, `RUN_KEYS` for all.
    """
    if text == "explorer":
        source = _digest(inspect.getfile(explorer), inspect.getfile(belief), statistics.__file__, STATISTICS)
        return Player(text, {"source": source}, lambda cleanup: ExpertActor(partial(new_expert, "explorer", {})))
    if text == "random":  # any admissible command; it reads nothing
        # A policy for each level: what it draws does not depend on the levels that were played before.
        def random(cleanup: ExitStack) -> Actor:
            return _policy_actor(RandomPolicy(), cleanup, lambda *parts: "", blank=True)

        return Player(text, {"source": _digest(inspect.getfile(RandomPolicy))}, random, CHOOSES)
    weights = text.removesuffix(RULES)
    if weights in SHIPPED or Path(weights).exists():
        return _student(text, weights, options)
    if is_class_name(text):
        named = load_class(text, "policy", ("act", "close"), Policy)  # a class that cannot be used is told now
        reads = reads_of(named, policy=True)

        def made(cleanup: ExitStack) -> Actor:
            return _policy_actor(make_named(text, "policy", ("act", "close"), Policy), cleanup)

        answers = CHOOSES if "admissible_commands" in reads else "free text"
        return Player(text, {"source": _digest(inspect.getfile(named)), "reads": ", ".join(reads)}, made, answers)
    model, _, address = text.partition("@")
    if model and address.startswith(("http://", "https://")):
        # Files and tables name the host, never the whole address: it may hold a key.
        name = f"{model}@{urlsplit(address).netloc.rpartition('@')[2]}"
        identity = {"address": hashlib.sha256(address.encode()).hexdigest()[:6]}
        return Player(name, identity, partial(_endpoint, model, address))
    raise ConfigError(f"{unknown('player', text, PLAYERS)}, a checkpoint's file, MODEL@http://HOST/v1, module:Class")


def _digest(*files: str | Path) -> str:
    """Sixteen hex digits that change if one of the files does."""
    return hashlib.sha256(b"".join(Path(file).read_bytes() for file in files)).hexdigest()[:16]


def _policy_actor(
    policy: Policy, cleanup: ExitStack, write_prompt: Callable[..., str] = build_prompt, *, blank: bool = False
) -> Actor:
    cleanup.callback(policy.close)
    return PolicyActor(policy=policy, write_prompt=write_prompt, blank_frames=blank)


def _student(text: str, weights: str, more: Sequence[str]) -> Player:
    """A model that ships, or one of a file of weights, on frames of the rendered state with labels."""
    rules = text.endswith(RULES)
    own = weights in SHIPPED
    file = REPO_ROOT / "lavis" / "models" / "tiny" / f"{weights}.safetensors" if own else Path(weights)
    if file.is_dir():
        raise ConfigError(f"player {weights} is a folder: name the checkpoint's file in it")
    of_model = [option for option in more if option.startswith("model.")]
    of_run = [option for option in more if option not in of_model]
    if own:
        chosen = [f"model.model_type={weights}", *of_run]
    else:
        from lavis.common.config import as_option  # here: the other players need no torch
        from lavis.models.blip2_models.weights import read_shapes
        from xrl_alignment.builders.stored import as_options, run_of

        model, shown = run_of(file)
        read_shapes(file)  # what cannot be loaded is told now, too
        if model.get("arch") == "hf_vlm" and not any(option.startswith("model.path=") for option in more):
            raise ConfigError(f"player {file} is of a model of the hub: say where it is, --options model.path=FOLDER")
        chosen = [*as_options({"model": model}), as_option("model.pretrained", weights), *more]

    def make(cleanup: ExitStack) -> Actor:
        from lavis.common.devices import pick_device, set_threads  # here: the other players need no torch
        from xrl_alignment.builders.student import acting_policy
        from xrl_alignment.settings.loading import load_config
        from xrl_alignment.settings.schema import EvaluateConfig

        options = [f"policy.skip_rejected={str(rules).lower()}", f"policy.skip_visited={str(rules).lower()}", *chosen]
        config = load_config(EvaluateConfig, REPO_ROOT / "configs" / "evaluate" / "student.yaml", options)
        set_threads(config.run.num_threads)
        device, most = pick_device(config.run.device), config.run.max_batch
        policy, write_prompt = acting_policy(config.model, config.policy, device, max_batch=most, tell_objects=True)
        return _policy_actor(policy, cleanup, write_prompt)

    decoded = "greedy, no rejected command again, not again where nothing can be new" if rules else "greedy"
    identity = {"weights": _digest(file), "decoding": decoded}
    if of_model and not own:
        identity["options"] = " ".join(of_model)
    if not own and shown not in ("", SHOWN):
        identity["trained on"] = shown
        print(f"{file} was trained on {shown}; here it is given {SHOWN}, which is another task", flush=True)
    return Player(text, identity, make)


def _endpoint(model: str, address: str, cleanup: ExitStack) -> Actor:
    """A language model behind an endpoint, as `configs/evaluate/endpoint.yaml` plays it."""
    from xrl_alignment.builders.teacher import build_teacher  # here: it needs the extra `teacher`
    from xrl_alignment.settings.loading import load_config
    from xrl_alignment.settings.schema import EvaluateConfig

    options = [f"expert.model={model}", f"expert.base_url={address}"]
    config = load_config(EvaluateConfig, REPO_ROOT / "configs" / "evaluate" / "endpoint.yaml", options)
    teacher = build_teacher(config.expert, config.reflexion)
    cleanup.callback(teacher.close)
    return ExpertActor(partial(new_expert, "openai", teacher.expert_options))


# ---- games -----------------------------------------------------------------------------------------------------------


class GameSet(NamedTuple):
    """The games of a level: `name` is `frozen` or `fresh-SEED`; `hash` covers every byte of the whole set."""

    name: str
    level: str
    games: Sequence[Game]
    hash: str


class SetSizes(NamedTuple):
    """Means over the games of a set, and the longest of the shortest ways."""

    receptacles: float
    objects: float
    steps: float
    longest: int


class UnsolvableError(RuntimeError):
    """A game has no way to its goal within the horizon: a defect of the generator."""


def game_set(level: str, out: Path, fresh: int | None, number: int) -> GameSet:
    """`number` games (0: all 60) of the frozen set, or new ones from the seed `fresh`, kept in `out`."""
    if fresh is None:
        if number > GAMES:
            raise ConfigError(
                f"--games {number}: a frozen test set has {GAMES}; --fresh SEED makes as many as you want"
            )
        games = choose_games("household", f"household_{level}")  # generated, and compared with the frozen hash
        return GameSet("frozen", level, games[: number or None], HASHES[level])
    folder = out / f"fresh-{fresh}" / f"{level}-{number or GAMES}"
    generate(folder, 0, number or GAMES, fresh, level=LEVELS[level])
    games = find_games("household_heldout", data=folder)
    return GameSet(f"fresh-{fresh}", level, games, contents_hash(games[0].path.parents[2]))


def measure(level: str, games: Sequence[Game]) -> SetSizes:
    """Let the planner solve every game; UnsolvableError if it cannot within the level's horizon."""
    steps, receptacles, objects = [], 0, 0
    with Bar(f"planner, {level}") as bar:
        for number, file in enumerate(games):
            game = NativeGame.load(file.path)
            game.reset()
            way = shortest_way(game)  # knows the whole state: no player that has to search is as fast
            if way is None or not 0 < len(way) <= LEVELS[level].max_steps:
                raise UnsolvableError(f"{file.path} cannot be solved in {LEVELS[level].max_steps} steps")
            steps.append(len(way))
            receptacles += len(game.world.location_of)
            objects += len(game.world.type_of)
            bar.show(number + 1, len(games), "solved")
    return SetSizes(receptacles / len(games), objects / len(games), sum(steps) / len(games), max(steps))


def play(player: Player, chosen: GameSet, out: Path) -> dict[str, Any]:
    """The figures of a player on a set: played now, unless those of these games are in `out`."""
    # Figures count as known if they are of the same player, games and step limit.
    level, limit = chosen.level, LEVELS[chosen.level].max_steps
    # The number of games is in the name: fewer games of the same set do not take the place of all of them.
    path = out / f"{chosen.name}-{level}-{len(chosen.games)}-{_slug(player.name)}.json"
    asked = {"player": player.name, "level": level, "set": chosen.name, "hash": chosen.hash, "max_steps": limit}
    asked |= {"games": len(chosen.games), **player.identity}
    if path.is_file():
        known = _read(path)
        # A subset of the file's entries: it also holds the figures.
        if asked.items() <= known.items():
            print(f"{path}: played before; without this file it is played again", flush=True)
            return known
    with GameProgress(len(chosen.games)) as progress, ExitStack() as cleanup:
        results = play_games(
            player.make(cleanup),
            chosen.games,
            partial(NativeEnvironment, limit),
            max_steps=limit,
            concurrency=TOGETHER,
            enable_tc=True,
            on_result=lambda result, trace: progress.advance(result.won),
        )
    found = asked | summarise(results) | {"versions": versions()}
    write_json(path, found)
    return found


def _read(path: Path) -> dict[str, Any]:
    """What `play` has written into a file; nothing of a file that holds something else."""
    known = read_json(path)
    return known if isinstance(known, dict) and known.keys() >= {"level", "interval", "versions"} else {}


def _slug(name: str) -> str:
    """`name` as a part of a file's name; of a path or address its end, and a few digits that tell it from others."""
    if re.fullmatch(r"[\w.+-]+", name):
        return name
    return re.sub(r"[^\w.+-]+", "-", name)[-40:].strip("-") + "-" + hashlib.sha256(name.encode()).hexdigest()[:6]


# ---- tables ----------------------------------------------------------------------------------------------------------


def main(arguments: list[str] | None = None) -> int:
    """Make the sets, play what is missing, write cards, and print the table or write it into a page."""
    parser = argparse.ArgumentParser(
        prog="python -m xrl_alignment.levels", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("output/levels"), metavar="DIR")
    parser.add_argument("--levels", nargs="+", choices=LEVELS, default=list(LEVELS))
    parser.add_argument("--players", nargs="*", default=list(PLAYERS), metavar="PLAYER")
    parser.add_argument(
        "--options", nargs="+", action="extend", default=[], metavar="KEY=VALUE",
        help=f"model.… for players that are files of weights, and {', '.join(RUN_KEYS)} for all that have weights "
        "(what is not said: configs/evaluate/student.yaml)",
    )  # fmt: skip
    parser.add_argument(
        "--fresh", type=int, metavar="SEED", help="new games from this seed (default: frozen test sets)"
    )
    parser.add_argument("--games", type=int, default=0, metavar="N", help=f"of each level (default: {GAMES})")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures into this file, too")
    parser.add_argument("--heat-map", type=Path, metavar="SVG", help="draw success by player and level")
    parser.add_argument("--page", type=Path, help="write the table into this Markdown file, between its marks")
    options = parser.parse_args(arguments)
    if options.games < 0 or (options.fresh or 0) < 0:
        raise ConfigError("--games and --fresh must be 0 or more")
    _check_options(options.options, options.players)
    players = [player_named(text, options.options) for text in options.players]  # before minutes go into others' games
    page = _page_parts(options.page) if options.page else None
    # Before hours of playing: all three are written at the end.
    for name, file in (("--json", options.json), ("--heat-map", options.heat_map), ("--page", options.page)):
        if file:
            writable(name, file)
    make_folder(options.out)
    found: dict[str, dict[str, Any]] = {}
    for level in options.levels:
        chosen = game_set(level, options.out, options.fresh, options.games)
        sizes = measure(level, chosen.games)
        found[level] = {
            "set": chosen.name, "games": len(chosen.games), "hash": chosen.hash, "horizon": LEVELS[level].max_steps,
            **sizes._asdict(), "players": {player.name: play(player, chosen, options.out) for player in players},
        }  # fmt: skip
        rows = found[level]["players"].items()
        print(f"{level}: " + ", ".join(f"{name} {_cell(row)}" for name, row in rows), flush=True)
    for player in players:
        write_text(options.out / f"{_slug(player.name)}.card.md", _player_card(player, options.out))
    if options.json:
        write_json(options.json, {"levels": found, "versions": versions()})
    if options.heat_map:
        write_text(options.heat_map, _heat_map(found, [player.name for player in players]))
    table = _table(found, [player.name for player in players])
    if page:
        write_text(options.page, "".join((page[0], BEGIN, "\n", table, "\n", END, page[1])))
    print(table, end="")
    return 0


def _check_options(options: Sequence[str], players: Sequence[str]) -> None:
    """ConfigError for an option that is none of those that a player may have, or that none of `players` reads."""
    files = [text.removesuffix(RULES) for text in players if Path(text.removesuffix(RULES)).is_file()]
    weights = files or [text for text in players if text.removesuffix(RULES) in SHIPPED]
    for option in options:
        key = option.partition("=")[0]
        if not key.startswith("model.") and key not in RUN_KEYS:
            allowed = f"use model.…, {', '.join(RUN_KEYS)}"
            raise ConfigError(f"--options {option}: all players see the same and decode greedily; {allowed}")
        if not (files if key.startswith("model.") else weights):
            reader = "a file of weights" if key.startswith("model.") else "a model of ours"
            raise ConfigError(f"--options {option} has no effect: none of --players is {reader}")


def _page_parts(page: Path) -> tuple[str, str]:
    """What stands before and behind the table in `page`; ConfigError if no place is marked for it."""
    try:
        content = page.read_text(encoding="utf-8") if page.is_file() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"--page {page} cannot be read: {error}") from error
    before, begin, rest = content.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        marks = f"{BEGIN.strip()} and {END.strip()}"
        raise ConfigError(f"{page} has no lines {marks}, between which the table stands")
    return before, after


def _table(found: dict[str, dict[str, Any]], players: Sequence[str]) -> str:
    """A row for each level."""
    head = ["level", "games", "hash", "receptacles", "objects", "horizon", "planner: mean, longest", *players]
    lines = [head, ["---", *["---:"] * (len(head) - 1)]]
    for level, row in found.items():
        lines.append([
            f"`{level}`", str(row["games"]), f"`{row['hash']}`", f"{row['receptacles']:.0f}", f"{row['objects']:.0f}",
            str(row["horizon"]), f"{row['steps']:.1f}, {row['longest']}",
            *(_cell(row["players"][player]) for player in players),
        ])  # fmt: skip
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _heat_map(found: dict[str, dict[str, Any]], players: Sequence[str]) -> str:
    """Success as an SVG: a row for each player, a column for each level; from white (0) to green (1)."""
    left, top, width, height = 170, 30, 78, 28  # pixels
    size = f"{left + width * len(found)} {top + height * len(players)}"
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" font-family="sans-serif" font-size="12">']
    for column, level in enumerate(found):
        parts.append(f'<text x="{left + width * (column + 0.5)}" y="{top - 10}" text-anchor="middle">{level}</text>')
    for row, player in enumerate(players):
        y = top + height * row
        # The end of a long name (a checkpoint's path) tells more than its beginning.
        parts.append(f'<text x="{left - 8}" y="{y + 18}" text-anchor="end">{escape(player[-26:])}</text>')
        for column, figures in enumerate(level["players"][player] for level in found.values()):
            success, x = figures["success"], left + width * column
            # From rgb(255, 255, 255) to rgb(50, 160, 90), along a line.
            colour = f"rgb({round(255 - 205 * success)},{round(255 - 95 * success)},{round(255 - 165 * success)})"
            parts.append(f'<rect x="{x}" y="{y}" width="{width - 2}" height="{height - 2}" fill="{colour}"/>')
            parts.append(f'<text x="{x + width / 2}" y="{y + 18}" text-anchor="middle">{success:.2f}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _cell(figures: dict[str, Any]) -> str:
    """Success, its interval, and the mean steps of solved games."""
    low, high = figures["interval"]
    steps = "" if figures["mean_steps"] is None else f", {figures['mean_steps']:.1f} steps"
    return f"{figures['success']:.2f} ({low:.2f} to {high:.2f}){steps}"


def _player_card(player: Player, out: Path) -> str:
    """The card of a player: all that it has played whose figures are in `out`, also in earlier calls."""
    known = [_read(path) for path in sorted(out.glob(f"*-{_slug(player.name)}.json"))]
    # Not figures of other weights or another class by the same name.
    asked = {"player": player.name, **player.identity}
    rows = [row for row in known if asked.items() <= row.items() and row["level"] in LEVELS]
    rows.sort(key=lambda row: list(LEVELS).index(row["level"]))
    lines = [
        f"# {player.name} on the levels", "",
        f"Single trial, {player.answers}, success with Wilson's 95 % interval, mean steps of solved games.", "",
        "| level | set | games | hash | horizon | solved | success | rejected commands |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]  # fmt: skip
    for row in rows:
        lines.append(
            f"| `{row['level']}` | {row['set']} | {row['games']} | `{row['hash']}` | {row['max_steps']} | "
            f"{row['solved']} | {_cell(row)} | {row['rejected']:.3f} |"
        )
    facts = [player.identity] if rows else []
    for row in rows:  # those of rows that were played with other packages stand beside each other
        if row["versions"] not in facts:
            facts.append(row["versions"])
    told = (", ".join(f"{name} {value}" for name, value in fact.items()) for fact in facts)
    return "\n".join([*lines, "", *(f"{line}\n" for line in told)])


if __name__ == "__main__":
    run_program(main)
