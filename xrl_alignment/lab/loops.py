"""Several loops of EMAC+ with the same settings and different seeds, compared game by game: tables for a page.

    python -m xrl_alignment.loops output/emac_plus/student output/emac_plus/student_1 output/emac_plus/student_2

Each FOLDER is one loop's (`xrl_alignment.pipeline` with a file of configs/emac_plus/), with its ablations. A row of a
table is one evaluation, which every loop must have: success is the mean over loops and games. Intervals are 95 %, of
several loops by a two-way bootstrap over loops and games, of one by Wilson's over games (`lab/results/statistics.py`),
also those of a paired difference (same loop, same game): of a result to what the loop began with, and of an ablation, a
switch or noise to the whole loop's result.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lavis.common.errors import ConfigError, MissingFileError
from lavis.common.files import read_json
from lavis.common.program import run_program
from xrl_alignment.lab.results.page import by_seed, gain, rate, span
from xrl_alignment.lab.results.statistics import difference, grid, success_and_interval, won_by_game
from xrl_alignment.settings.planning import EmacPlusConfig
from xrl_alignment.settings.resume import changed_settings, settings_in

ACTORS = ("planner", "agent")
HEAD = "| {who} | success | 95 % interval | by seed | calls for each solved game | tokens of training | difference |"

Evaluation = Mapping[str, Any]


def read_loop(folder: Path) -> dict[str, Evaluation]:
    """The evaluations of a loop by name, `<actor>_<what>`; those of ablation X as `<actor>_X, trained anew`.

    Each gets `training_tokens`: what the planner read and wrote in all rounds, None before them. MissingFileError
    if the loop has no summary yet, and ConfigError if an evaluation does not tell which games were won.
    """
    summary = folder / "summary.json"
    if not summary.is_file():
        raise MissingFileError(f"{folder} has no summary.json: the loop is not finished, or no loop's folder")
    facts = read_json(summary)
    tokens = {"": facts.get("training_tokens")}
    files = {path.stem: path for path in sorted((folder / "evaluations").glob("*.json"))}
    for ablation in sorted((folder / "ablations").glob("*/evaluations/*_after.json")):
        name = ablation.parts[-3]
        if name in facts:  # one that was asked for, and came to its end
            what = f"{name}, trained anew"  # a switch of the same name trains nothing
            files[f"{ablation.stem.removesuffix('after')}{what}"] = ablation
            tokens[what] = facts[name].get("training_tokens")
    found = {}
    for name, path in files.items():
        evaluation = read_json(path)
        if "episodes" not in evaluation:
            raise ConfigError(f"{path} is of an older version: it does not tell which games were won")
        what = name.partition("_")[2]
        found[name] = evaluation | {"training_tokens": tokens.get(what, None if "before" in what else tokens[""])}
    return found


def compare(folders: Sequence[Path]) -> dict[str, Any]:
    """The rows of all evaluations that every loop has, by name; ConfigError if loops differ in more than the seed."""
    loops = [read_loop(folder) for folder in folders]
    settings = [settings_in(folder, EmacPlusConfig) for folder in folders]
    first, of_seed = settings[0], dict[int, Path]()
    for folder, other in zip(folders, settings, strict=True):
        same_seed = replace(other, run=replace(other.run, seed=first.run.seed))
        if changes := changed_settings(first, same_seed):
            raise ConfigError(f"{folder} has other settings than {folders[0]}: {'; '.join(changes)}")
        if other.run.seed in of_seed:
            raise ConfigError(f"{folder} has the same seed as {of_seed[other.run.seed]}: it is no further loop")
        of_seed[other.run.seed] = folder
    rows = {}
    for name in loops[0]:
        if any(name not in loop for loop in loops):
            continue
        evaluations = [loop[name] for loop in loops]
        played = [set(won_by_game(each)) for each in evaluations]
        for folder, games in zip(folders, played, strict=True):
            if games != played[0]:  # of a split's name alone the settings do not tell which games it had
                raise ConfigError(f"{folder}: {name} is of other games than that of {folders[0]}")
        values = grid([won_by_game(each) for each in evaluations])  # (loops, games)
        mean, low, high = success_and_interval(values)
        solved = sum(sum(won_by_game(each).values()) for each in evaluations)
        spent = [each["training_tokens"] for each in evaluations]
        rows[name] = {
            "success": mean,
            "interval": [low, high],
            "by_seed": values.mean(axis=1).tolist(),
            "games": values.shape[1],
            "calls_per_solved": sum(each["planner_calls"] for each in evaluations) / solved if solved else None,
            "training_tokens": None if None in spent else sum(spent) / len(spent),
        }
        base = base_of(name)
        if base != name and all(base in loop for loop in loops):
            rows[name]["base"] = base
            rows[name]["difference"] = difference(evaluations, [loop[base] for loop in loops])
    return rows


def base_of(name: str) -> str:
    """The evaluation that `name` is compared with; its own name if it is where the comparison begins."""
    who, _, what = name.partition("_")
    games = "_valid_seen" if what.endswith("_valid_seen") else ""
    when = "before" if what.startswith(("after", "before")) else "after"
    return f"{who}_{when}{games}"


def render(rows: Mapping[str, Any]) -> str:
    """One Markdown table for the planner alone, one for the agent with its planner."""
    tables = []
    for who in ACTORS:
        lines = [HEAD.format(who=who), "| --- | ---: | ---: | ---: | ---: | ---: | --- |"]
        for name, row in rows.items():
            actor, _, what = name.partition("_")
            if actor != who:
                continue
            calls, tokens = row["calls_per_solved"], row["training_tokens"]
            compared = f"{gain(row['difference'])} against `{row['base']}`" if "difference" in row else ""
            cells = (
                f"{what}, {row['games']} games",
                rate(row["success"]),
                span(row["interval"]),
                by_seed(row["by_seed"]),
                "-" if calls is None else f"{calls:.1f}",
                "-" if tokens is None else f"{tokens:,.0f}",
                compared,
            )
            lines.append(f"| {' | '.join(cells)} |")
        tables.append("\n".join(lines))
    return "\n\n".join(tables)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="a loop's folder, one for each seed")
    print(render(compare(parser.parse_args().folders)))


if __name__ == "__main__":
    run_program(main)
