"""Writes the Reflexion memories of a round again, in the run directory of a training run.

    python generate_reflections.py RUN_DIR --options reflexion.reflector=llm expert.model=gpt-4o-mini
    python generate_reflections.py RUN_DIR --round 0 --options reflexion.reflector=rule

The settings are those of the run; `--options` change them. New memories replace those that the round's failed games
got, if no later round has begun; else they go to `logging_results/reflections_N.json`, and the run does not use them.
With the same reflector nothing changes, and answers that were paid for come from the cache.
"""

from __future__ import annotations

if __name__ == "__main__":
    import lavis  # noqa: F401  (before all else: it says in one line what this interpreter lacks)

import argparse
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from lavis.common.errors import ConfigError
from lavis.common.program import read_first, run_program
from xrl_alignment.settings.resume import saved_settings
from xrl_alignment.settings.schema import DaggerConfig


def read_command_line(argv: list[str] | None = None) -> tuple[argparse.Namespace, DaggerConfig]:
    """The arguments, and the run's settings with the changes that they ask for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    parser.add_argument("--round", type=int, metavar="N", help="default: the last round that has ended")
    parser.add_argument(
        "--options", metavar="KEY=VALUE", nargs="+", action="extend", default=[], help="changes to the settings"
    )
    arguments = parser.parse_args(argv)
    return arguments, saved_settings(arguments.run_dir, arguments.options)


if __name__ == "__main__":
    # Above the imports that take seconds: `--help` and mistakes in the settings are answered at once.
    read_first(read_command_line)

from xrl_alignment.builders.teacher import build_teacher
from xrl_alignment.runs.directory import RunDirectory, RunDirectoryError
from xrl_alignment.runs.past_rounds import finished_rounds, reflect_on_round
from xrl_alignment.utils.reflections import _generate_reflection_query, _get_scenario, update_memory

# The original keeps these functions here.
__all__ = ["_generate_reflection_query", "_get_scenario", "main", "update_memory"]


def main(argv: list[str] | None = None) -> None:
    """Parse the command line, write the memories, print how many there are."""
    arguments, config = read_command_line(argv)
    if not config.reflexion.enabled:  # a resume would play on with memories, against the run's settings
        raise ConfigError(
            f"{arguments.run_dir} is a run without memories (reflexion.enabled=false): to give it some nevertheless, "
            "add --options reflexion.enabled=true"
        )
    rounds = finished_rounds(arguments.run_dir)
    if not rounds:
        raise RunDirectoryError(f"no round of {arguments.run_dir} has ended yet")
    round = rounds[-1] if arguments.round is None else arguments.round
    with ExitStack() as cleanup:
        # Rules ask nobody, so no key is needed, whoever labels in the run.
        by_rule = config.reflexion.reflector == "rule"
        expert = replace(config.expert, name="explorer") if by_rule else config.expert
        # As the run had it: the prompt's length, so what is cut off and what the cache knows, depends on all of it.
        teacher = build_teacher(expert, config.reflexion, thinking=config.run.enable_tc)
        cleanup.callback(teacher.close)
        directory = RunDirectory(arguments.run_dir)
        cleanup.callback(directory.close)
        if teacher.account:
            teacher.account.keep(directory.expert_calls)
            teacher.account.start_round(round)
        assert teacher.reflector is not None  # reflexion is enabled, as was checked above
        told = config.environment.tell_objects
        made = reflect_on_round(directory, round, teacher.reflector, tell_objects=told)
        count = sum(map(bool, made.memories.values()))
        print(f"round {round}: {count} games have memories, the newest by {teacher.reflector.name}: {made.path}")
        if not made.used:
            print("a later round has begun with the earlier memories: the run does not use these")
        if teacher.account:
            print(teacher.account.line(round))


if __name__ == "__main__":
    run_program(main)
