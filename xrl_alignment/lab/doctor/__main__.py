"""What this machine has and what it lacks, one line for each check, with how to fix it.

    python -m xrl_alignment.doctor [--cfg-path FILE] [--data DIR] [--port N] [--model NAME …] [--thor]
    python -m xrl_alignment.doctor --model vicuna7b --options model.base_model=FILE model.vit_weights=FILE

`ok`: as it should be; `warn`: the default run works, something else does not; `fail`: a default run (tiny model,
generated games, rendered frames) cannot work. `--thor` also checks what AI2-THOR needs. Exit code 0 without a `fail`,
1 with one. It only looks: it installs, deletes and stops nothing.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path

from lavis.common.program import run_program
from xrl_alignment.lab.doctor.files import check_config_weights, check_games, check_weights
from xrl_alignment.lab.doctor.finding import Finding
from xrl_alignment.lab.doctor.machine import (
    check_cache,
    check_device,
    check_disk,
    check_extras,
    check_keys,
    check_libraries,
    check_port,
    check_python,
)
from xrl_alignment.lab.doctor.model import check_model, is_model
from xrl_alignment.lab.doctor.simulator import (
    FRAME_TIMEOUT,
    check_display,
    check_frame,
    check_pipes,
    check_poses,
    check_simulator,
    check_unity_log,
)


def diagnose(arguments: argparse.Namespace) -> Iterator[Finding]:
    """Run the checks one after the other and yield what each finds."""
    # Libraries first: without them no other check could import what it looks at.
    yield check_python()
    missing = False
    for finding in check_libraries():
        missing = missing or finding.level == "fail"
        yield finding
    if not missing:
        yield check_device()
        yield check_games(arguments.data)
        yield check_cache()
        if arguments.cfg_path:
            yield from check_config_weights(arguments.cfg_path, [] if arguments.model else arguments.options)
    for name in arguments.model:
        if not missing and is_model(name):
            yield from check_model(name, arguments.options)
        elif name in ("blip2_emac", "hf_vlm") and not Path(name).exists():
            advice = "give a model type, a yaml with a section model:, or the folder of the model"
            yield Finding("fail", "model", f"{name} is an architecture, not a model", advice)
        else:
            yield check_weights(name)
    yield check_disk()
    yield check_port(arguments.port)
    yield from check_keys(os.environ)
    yield from check_extras()
    if arguments.thor and not missing:
        needed = [check_simulator(), check_display(os.environ)]
        yield from [*needed, check_unity_log(Path.home()), check_pipes(), check_poses(arguments.data)]
        # A frame takes minutes at AI2-THOR's first start; without its packages or a display it cannot come.
        if any(finding.level == "fail" for finding in needed):
            yield Finding("warn", "thor frame", "not tried", "first correct what failed above")
        else:
            yield check_frame(arguments.timeout)


def main(argv: list[str] | None = None) -> int:
    """Print the findings; 0 if none is `fail`, else 1."""
    parser = argparse.ArgumentParser(
        prog="python -m xrl_alignment.doctor", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--cfg-path", metavar="FILE", help="also check the weights that this config names")
    parser.add_argument("--data", metavar="DIR", help="folder that holds json_2.1.1 (default: $ALFWORLD_DATA)")
    parser.add_argument("--port", type=int, default=7860, help="the server's port (default: %(default)s)")
    parser.add_argument(
        "--model",
        metavar="NAME",
        nargs="+",
        default=[],
        help="a model type or a yaml with `model:` (what brings each part; nothing is loaded), or weights: a "
        "checkpoint or a model folder",
    )
    parser.add_argument(
        "--options",
        metavar="KEY=VALUE",
        nargs="+",
        action="extend",
        default=[],
        help="settings over those of --model, or of --cfg-path if no --model is given: model.key=value",
    )
    parser.add_argument("--thor", action="store_true", help="also check what AI2-THOR needs, and render one frame")
    parser.add_argument("--timeout", type=float, default=FRAME_TIMEOUT, help="seconds for that frame")
    levels = []
    arguments = parser.parse_args(argv)
    if arguments.options and not (arguments.model or arguments.cfg_path):
        parser.error("--options are settings of a model: name it with --model, or a config with --cfg-path")
    for finding in diagnose(arguments):
        print(finding, flush=True)
        levels.append(finding.level)
    print(f"{levels.count('fail')} to correct, {levels.count('warn')} to know about")
    return 1 if "fail" in levels else 0


if __name__ == "__main__":
    run_program(main)
