"""Plays environments against a DAgger server.

    python alfworld_client.py --port 7860 --split valid_seen --num-envs 3
    python alfworld_client.py --cfg-path configs/dagger/demo_bc.yaml          # what the server with this file asks for
    python alfworld_client.py --cfg-path RUN_DIR/config.yaml --host gpu-machine --num-workers 8     # flags win

Ends when the server has no more work. Exit code 0, or 2 with one line `error: …`.
"""

from __future__ import annotations

if __name__ == "__main__":
    import lavis  # noqa: F401  (before all else: it says in one line what this interpreter lacks)

import argparse
import json
import math
import os
import sys
from functools import partial
from typing import Any

from alfworld_native import check_engine, choose_games, make_environment
from alfworld_native.household.levels import longest_horizon
from alfworld_native.household.mixture import horizon_of, read_mixture
from lavis.common.allocator import share_pools
from lavis.common.errors import ConfigError, unknown
from lavis.common.named_class import is_class_name
from lavis.common.program import run_program
from xrl_alignment.agents.experts import make_expert
from xrl_alignment.common.choices import (
    BACKENDS,
    CAMERAS,
    CLIENT_EXPERTS,
    IMAGE_NOISE_NAMES,
    NAMES_BY,
    STEP_TIMEOUT_S,
)
from xrl_alignment.play.client.cluster import play_on_cluster
from xrl_alignment.play.client.play import PATIENCE_S, WIRES, play
from xrl_alignment.play.client.player import ExpertFactory, expert_beside
from xrl_alignment.wire.expected import view_of
from xrl_alignment.wire.images import IMAGE_FORMATS

EXPERTS = (*CLIENT_EXPERTS, "explorer")
SLOW = ("textworld", "thor")  # a step holds the interpreter for 30 ms or more, so threads would wait for each other


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line, with `--help`."""
    parser = argparse.ArgumentParser(
        description="Plays environments against a DAgger server (dagger_server.py) and asks it for every action.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    settings = parser.add_argument_group("settings", "the server's, instead of flags; a flag wins over the file")
    settings.add_argument(
        "--cfg-path", metavar="FILE", help="settings file of dagger_server.py, or a run's config.yaml"
    )
    settings.add_argument(
        "--options", metavar="KEY=VALUE", nargs="+", action="extend", default=[], help="changes to the file's settings"
    )
    server = parser.add_argument_group("server")
    server.add_argument("--host", default="127.0.0.1", help="where dagger_server.py listens")
    server.add_argument("--port", type=int, default=7860)
    server.add_argument("--token", default="", help="for a server on another machine (or EMAC_TOKEN)")
    server.add_argument("--wire", choices=WIRES, default="v2", help="v1 is the original's format")
    server.add_argument("--patience", type=seconds, default=PATIENCE_S, help="seconds to wait for an absent server")
    games = parser.add_argument_group("games")
    games.add_argument(
        "--env", default="native", help="native, textworld, household (generated games), thor, or module:Class"
    )
    games.add_argument("--split", help="default: household_train for household, valid_seen otherwise")
    games.add_argument(
        "--data", help="folder that holds json_2.1.1 (empty: $ALFWORLD_DATA, or a cache folder for household)"
    )
    games.add_argument("--num-envs", type=int, default=3, help="number of games, 0 for all")
    games.add_argument("--seed", type=int, default=0, help="for the choice of games and for generated ones")
    games.add_argument("--num-train", type=int, default=2000, help="household: generated training games")
    games.add_argument("--num-heldout", type=int, default=100, help="household: generated held-out games")
    games.add_argument("--levels", nargs="+", metavar="LEVEL=WEIGHT", help="household: a mixture of levels")
    play_group = parser.add_argument_group("play")
    play_group.add_argument("--num-workers", type=int, default=1, help="environments at once (v2 only)")
    play_group.add_argument(
        "--executor",
        choices=("auto", *BACKENDS),
        default="auto",
        help="environments in this process (sequential), each in its own (local; auto: several of textworld or thor), "
        "or in a client on every node of a Ray cluster (ray)",
    )
    play_group.add_argument(
        "--ray-address", default="", help="ray: the cluster (empty: $RAY_ADDRESS, else Ray on this machine only)"
    )
    play_group.add_argument(
        "--step-timeout", type=seconds, default=STEP_TIMEOUT_S, help="local: seconds after which a step is given up"
    )
    play_group.add_argument("--num-rounds", type=int, help="v1 only: rounds to play (default: until the server ends)")
    play_group.add_argument(
        "--max-steps", type=int, help="actions in an episode (default: 50, or the horizon of the games' level)"
    )
    play_group.add_argument(
        "--expert",
        type=expert_name,
        metavar="NAME",
        help=f"expert to run beside the environment, which sends the labels: {', '.join(EXPERTS)}, or module:Class",
    )
    play_group.add_argument("--image-format", choices=IMAGE_FORMATS, default="auto", help="v2: how frames travel")
    play_group.add_argument("--blank-frames", action="store_true", help="send black images")
    play_group.add_argument("--other-frames", action="store_true", help="send the frames of another game")
    play_group.add_argument("--name-by", choices=NAMES_BY, default="number", help="type: objects without numbers")
    play_group.add_argument(
        "--no-show-ids", dest="show_ids", action="store_false", help="frames show the rendered state without labels"
    )
    camera_help = "around: frames of all four directions; close: the receptacle at hand, objects drawn big"
    play_group.add_argument("--camera", choices=CAMERAS, default="front", help=camera_help)
    noise_help = "kind of noise on the frames; has no effect unless --image-severity is above 0"
    play_group.add_argument("--image-noise", choices=IMAGE_NOISE_NAMES, default="gaussian", help=noise_help)
    play_group.add_argument(
        "--image-severity", type=int, choices=range(5), default=0, help="strength of that noise (0: none)"
    )
    words_help = "share of the words of the environment's answers that are exchanged (0: none)"
    play_group.add_argument("--text-noise", type=share, default=0.0, metavar="SHARE", help=words_help)
    written = sys.argv[1:] if argv is None else argv
    given = parser.parse_args(written)
    if given.options and not given.cfg_path:
        raise ConfigError("--options has no effect without --cfg-path: it changes that file's settings")
    if not given.cfg_path:
        return given
    # The file's settings are put before the flags of the command line: of two equal flags the last one counts.
    port_given = any(word.partition("=")[0] == "--port" for word in written)
    return parser.parse_args([*settings_as_flags(given, port_given=port_given), *written])


def settings_as_flags(given: argparse.Namespace, *, port_given: bool) -> list[str]:
    """The flags that say what the server's settings say: where it listens, and what is to be played.

    ConfigError if nobody says on which port it listens.
    """
    from xrl_alignment.builders.environments import client_arguments  # here: settings need the extra `train`
    from xrl_alignment.settings.loading import load_config
    from xrl_alignment.settings.schema import DaggerConfig
    from xrl_alignment.settings.token import read_token

    config = load_config(DaggerConfig, given.cfg_path, given.options)
    # A server that listens on all addresses of its machine is reached at that machine's own.
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(config.server.host, config.server.host)
    flags = ["--host", host, *client_arguments(config)]
    if config.server.port:
        flags += ["--port", str(config.server.port)]
    elif not port_given:
        raise ConfigError(f"{given.cfg_path}: server.port=0 takes any free port: give --port, the server prints it")
    if not given.token:  # with --token, the file that holds another one need not be here
        flags.append(f"--token={read_token(config.server)}")
    return flags


def main() -> int:
    """Parse, play, print the summary as one line of JSON."""
    arguments = parse_arguments()
    share_pools()  # of its threads, one for each session
    if "/" in arguments.host:
        raise ConfigError(f"--host {arguments.host}: give a name or an address without http:// and port (--port)")
    if not 0 < arguments.port < 1 << 16:
        raise ConfigError(f"--port {arguments.port}: give the port on which dagger_server.py listens; it prints it")
    if arguments.ray_address and arguments.executor != "ray":
        raise ConfigError(f"--ray-address {arguments.ray_address} has no effect unless --executor is ray")
    if arguments.executor == "ray" and arguments.wire == "v1":
        raise ConfigError("wire v1 knows one client, not one on every node: use --wire v2 with --executor ray")
    check_engine(arguments.env)
    split = arguments.split or ("household_train" if arguments.env == "household" else "valid_seen")
    levels = read_mixture(" ".join(arguments.levels)) if arguments.levels else None
    games = choose_games(
        arguments.env,
        split,
        num=arguments.num_envs or None,
        data=arguments.data,
        seed=arguments.seed,
        num_train=arguments.num_train,
        num_heldout=arguments.num_heldout,
        levels=levels,
    )
    max_steps = longest_horizon(games, split) if arguments.max_steps is None else arguments.max_steps
    if levels and max_steps < (longest := horizon_of(levels)):
        raise ConfigError(f"--max-steps {max_steps} is less than the longest horizon of --levels: {longest}")
    factory = partial(
        make_environment,
        arguments.env,
        max_steps=max_steps,
        show_ids=arguments.show_ids,
        expert=arguments.expert if arguments.expert in CLIENT_EXPERTS else None,
        name_by=arguments.name_by,
        camera=arguments.camera,
        other_frames=arguments.other_frames,
        image_noise=arguments.image_noise,
        image_severity=arguments.image_severity,
        text_noise=arguments.text_noise,
        seed=arguments.seed,
    )
    # An expert beside each environment; none if the environment itself has ALFWorld's, or if none is asked for.
    expert: ExpertFactory | None = None
    if arguments.expert is not None and arguments.expert not in CLIENT_EXPERTS:
        make_expert(arguments.expert)  # a class that cannot be used is an error now, not in a worker
        expert = partial(expert_beside, arguments.expert)
    # The executor of each client: the one on the command line, or for `auto` and `ray` the faster one. Processes of
    # their own pay only for engines whose steps take long.
    executor = arguments.executor
    if executor in ("auto", "ray"):
        executor = "local" if arguments.num_workers > 1 and arguments.env in SLOW else "sequential"
    if arguments.step_timeout != STEP_TIMEOUT_S and executor == "sequential":
        raise ConfigError(
            f"--step-timeout {arguments.step_timeout} has no effect in this process: use --executor local, or several "
            "--num-workers of textworld or thor"
        )
    host = f"[{arguments.host}]" if ":" in arguments.host else arguments.host  # an IPv6 address (RFC 3986, 3.2.2)
    job: dict[str, Any] = {
        "server_url": f"http://{host}:{arguments.port}",
        "environment_factory": factory,
        "games": games,
        "wire": arguments.wire,
        "expert": expert,
        "token": arguments.token or os.environ.get("EMAC_TOKEN", ""),
        "image_format": arguments.image_format,
        "blank_frames": arguments.blank_frames,
        "num_rounds": arguments.num_rounds,
        "split": split,
        "view": view_of(arguments),
        "patience_s": arguments.patience,
        "executor": executor,
        "step_timeout_s": arguments.step_timeout,
    }
    if arguments.executor == "ray":
        summary = play_on_cluster(job, num_workers=arguments.num_workers, address=arguments.ray_address)
    else:
        summary = play(**job, num_workers=arguments.num_workers)
    print(json.dumps(summary))
    return 0


def seconds(text: str) -> float:
    """`text` as a time that ends; for `--patience` and `--step-timeout`."""
    value = float(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is no number of seconds of at least 0")
    return value


def share(text: str) -> float:
    """`text` as a share of a whole; for `--text-noise`."""
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not a share from 0 to 1")
    return value


def expert_name(name: str) -> str:
    """`name`, if an expert can have it; for `--expert`."""
    if name not in EXPERTS and not is_class_name(name):
        raise argparse.ArgumentTypeError(f"{unknown('expert', name, EXPERTS)}, or give module:Class")
    return name


if __name__ == "__main__":
    run_program(main)
