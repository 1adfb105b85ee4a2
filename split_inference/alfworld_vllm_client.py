"""A vision-language model plays ALFWorld games on an `alfworld_server.py` that runs in another process.

    python alfworld_vllm_client.py --model-path Qwen/Qwen2-VL-7B-Instruct --output-dir runs/qwen --num-samples 100
    python alfworld_vllm_client.py --base-url http://localhost:8000/v1 --output-dir runs/served
    python alfworld_vllm_client.py --cfg-path ../configs/evaluate/episodes.yaml --output-dir runs/blip2_emac

The model answers all games that are in progress as one batch (`--num-envs` games, one connection each). The same
command continues a run that was stopped. The output folder is described in `trajectories.py`; messages, options and
installation in docs/split_inference.md.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

# Started as a file, Python looks for modules beside it; the packages lie one folder up (or are installed).
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lavis.common.errors import ConfigError, FileError
from lavis.common.files import locked, make_folder
from lavis.common.program import run_program
from lavis.common.progress import Bar
from split_inference.alfworld_server import TOKEN_VARIABLE
from split_inference.batch_player import BatchPlayer
from split_inference.socket_connection import FailedRequest, SocketConnection
from split_inference.trajectories import TrajectoryFolder
from split_inference.vision_models import load_model

# Of a settings file, beside the sections `model:` and `policy:`.
READ = ("run.device", "run.num_threads", "run.max_batch", "environment.tell_objects", "environment.blank_frames")
INSTRUCTIONS = """\
You control a household robot through text commands and see what it sees. Reach the goal of the task.
Reply with exactly one command on one line and nothing else. The commands are:
go to PLACE, open PLACE, close PLACE, take THING from PLACE, put THING in/on PLACE, use THING, heat THING with PLACE, \
cool THING with PLACE, clean THING with PLACE, slice THING with THING, examine NAME, look, inventory.
Names carry numbers: write them exactly as they are shown, for instance "go to cabinet 2" or \
"take mug 1 from countertop 1"."""


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line, with `--help`."""
    parser = argparse.ArgumentParser(
        description="A vision-language model plays ALFWorld games on an alfworld_server.py.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    which = parser.add_argument_group("model").add_mutually_exclusive_group(required=True)
    which.add_argument("--model-path", help="a vision-language model for vLLM: a folder or a name on the hub")
    which.add_argument("--base-url", help="a running OpenAI-compatible server (vllm serve …), ending in /v1")
    which.add_argument(
        "--cfg-path", help="Blip2Emac: a settings file of evaluate.py, whose model: and policy: are used"
    )
    model = parser.add_argument_group("how the model answers")
    model.add_argument(
        "--options",
        metavar="KEY=VALUE",
        nargs="+",
        action="extend",
        default=[],
        help="settings that override those of --cfg-path",
    )
    model.add_argument("--model-name", help="with --base-url: the model's name there; needed if the server has several")
    model.add_argument("--max-retries", type=_count, default=5, help="with --base-url: retries of a failed request")
    model.add_argument(
        "--temperature", type=_temperature, default=0.0, help="of sampling; 0 takes the most probable token"
    )
    model.add_argument("--max-new-tokens", type=_positive, default=64, help="length of an answer in tokens")
    vllm = parser.add_argument_group("vLLM, with --model-path")
    vllm.add_argument(
        "--max-model-len", type=_positive, default=4096, help="tokens of prompt, image and answer together"
    )
    vllm.add_argument("--dtype", default="auto", help="type of the weights")
    vllm.add_argument("--tensor-parallel-size", type=_positive, default=1, help="GPUs for one model")
    vllm.add_argument("--gpu-memory-utilization", type=float, default=0.9, help="share of the GPU's memory")
    vllm.add_argument("--enforce-eager", action="store_true", help="no CUDA graphs: starts faster, runs slower")
    server = parser.add_argument_group("environments")
    server.add_argument("--host", default="localhost", help="where alfworld_server.py listens")
    server.add_argument("--port", type=int, default=5555, help="its port")
    server.add_argument("--num-envs", type=_positive, default=8, help="games at the same time")
    server.add_argument("--timeout", type=_seconds, default=600.0, help="seconds to wait for an answer of any server")
    games = parser.add_argument_group("games")
    games.add_argument("--data-dir", help="folder of games on the server (default: the server's own)")
    games.add_argument("--traj-dir", help="folder of trajectory files (*.json) on the server to take games from")
    games.add_argument("--num-samples", type=_count, default=0, help="number of games, 0 for all")
    games.add_argument("--seed", type=int, default=0, help="seed of the choice of games, and of sampling")
    games.add_argument("--output-dir", type=Path, required=True, help="folder for the trajectories")
    play = parser.add_argument_group("play")
    play.add_argument("--max-turns", type=_positive, default=50, help="turns in an episode, thoughts included")
    play.add_argument(
        "--prompt-chars", type=_positive, default=6000, help="length of the prompt; the oldest steps are left out first"
    )
    play.add_argument("--show-commands", action="store_true", help="list the commands that the engine would accept")
    play.add_argument("--instructions", type=Path, help="a text file with another system message")
    arguments = parser.parse_args(argv)
    if arguments.options and not arguments.cfg_path:
        parser.error("--options override settings of --cfg-path, which is not given")
    engine = ("model_name", "max_model_len", "dtype", "tensor_parallel_size", "gpu_memory_utilization", "enforce_eager")
    for name in ("temperature", "max_new_tokens", "prompt_chars", "instructions", *engine):
        if arguments.cfg_path and getattr(arguments, name) != parser.get_default(name):
            parser.error(f"--{name.replace('_', '-')} does not apply to --cfg-path, whose settings say how it answers")
    return arguments


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is less than 1")
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{value} is less than 0")
    return value


def _temperature(text: str) -> float:
    value = float(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is no temperature of at least 0")
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is no number of seconds above 0")
    return value


def draw_games(games: Sequence[dict[str, str]], number: int, seed: int) -> list[dict[str, str]]:
    """`number` of the games (0: all), drawn by `seed`; a larger number with the same seed continues the draw."""
    # By name: the draw depends on the seed alone, not on the order of the server's list.
    drawn = sorted(games, key=lambda game: game["game"])
    random.Random(f"games {seed}").shuffle(drawn)
    if number > len(drawn):
        raise ConfigError(f"--num-samples {number}: there are {len(drawn)} games")
    return drawn[: number or None]


def main(argv: list[str] | None = None) -> int:
    """Connect, load the model, play, print the table; returns 1 if some games could not be played."""
    arguments = parse_arguments(argv)
    try:
        instructions = arguments.instructions.read_text(encoding="utf-8") if arguments.instructions else INSTRUCTIONS
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"--instructions {arguments.instructions} cannot be read: {error}") from error
    # Two runs of one folder would mix their files.
    make_folder(arguments.output_dir)
    lock, connections = locked(arguments.output_dir / ".lock", arguments.output_dir), list[SocketConnection]()
    try:
        # One connection first: what is wrong with server or games is told before the model is loaded.
        connections.append(connect(arguments))
        games, server = list_games(connections[0], arguments)
        games = draw_games(games, arguments.num_samples, arguments.seed)
        # A folder with another run is refused here, before the model is loaded.
        trajectories = TrajectoryFolder(arguments.output_dir, run_settings(arguments, instructions) | server)
        left = [game for game in games if not trajectories.finished(game["game"])]
        # Each connection is an environment of its own at the server: no more of them than there are games to play.
        while len(connections) < min(arguments.num_envs, len(left)):
            connections.append(connect(arguments))
        # Without a game that is left the model, which takes minutes to load, is not needed.
        failed = play(arguments, instructions, connections, trajectories, left) if left else {}
        print(trajectories.summarise([game["game"] for game in games], failed))
    finally:
        for connection in connections:
            connection.close()
        lock.close()
    for game, reason in failed.items():
        print(f"not played: {game}: {reason}", file=sys.stderr)
    return 1 if failed else 0


def connect(arguments: argparse.Namespace) -> SocketConnection:
    """A connection to the server, with the token of ALFWORLD_SERVER_TOKEN; ConfigError if it is refused."""
    token = os.environ.get(TOKEN_VARIABLE, "")
    try:
        return SocketConnection(arguments.host, arguments.port, arguments.timeout, token)
    except FailedRequest as reason:
        raise ConfigError(f"the server refuses this client: {reason}") from reason


def list_games(
    connection: SocketConnection, arguments: argparse.Namespace
) -> tuple[list[dict[str, str]], dict[str, Any]]:
    """The games that the server can play, and its settings, on which the trajectories depend ({}: an older server).

    ConfigError, with the server's reason, if there are no games.
    """
    request = {"command": "list_games", "data_dir": arguments.data_dir, "traj_dir": arguments.traj_dir}
    try:
        answer = connection.send_request(request)
    except FailedRequest as reason:
        raise ConfigError(f"the server lists no games: {reason}") from reason
    return answer["games"], answer.get("settings") or {}


def run_settings(arguments: argparse.Namespace, instructions: str) -> dict[str, Any]:
    """The settings that trajectories depend on; a run that continues another must have the same."""
    # Without those that change how fast it plays (--num-envs, --dtype, --timeout …): a run may go on with others.
    names = "model_path base_url model_name cfg_path options temperature max_new_tokens seed"
    names += " max_turns prompt_chars show_commands"
    given = {name: getattr(arguments, name) for name in names.split()} | {"instructions": instructions}
    if arguments.base_url and arguments.model_name:
        del given["base_url"]  # its name says which model answers; its server may have moved to another node or port
    if arguments.cfg_path:  # what is in the file, for it can be edited between two calls
        from xrl_alignment.settings.loading import load_config, shareable
        from xrl_alignment.settings.schema import EvaluateConfig

        config = load_config(EvaluateConfig, arguments.cfg_path, arguments.options)
        shown, usual = config.environment, EvaluateConfig().environment
        if not shown.show_ids:
            raise ConfigError("environment.show_ids=false: the server renders games with labels")
        for name in ("name_by", "camera", "other_frames", "image_severity", "text_noise"):
            if getattr(shown, name) != getattr(usual, name):
                raise ConfigError(f"environment.{name}={getattr(shown, name)}: the server shows games as they are")
        for option in arguments.options:
            if not option.startswith(("model.", "policy.")) and option.partition("=")[0] not in READ:
                raise ConfigError(
                    f"--options {option} has no effect here: of the settings file only model:, policy: and "
                    f"{', '.join(READ)} count; --help names this program's own options for games and turns"
                )
        # Not the file's name nor `--options`: both can be spelt in several ways, and name settings of speed, too.
        del given["cfg_path"], given["options"]
        given |= {name: shareable(config)[name] for name in ("model", "policy")}
        given["shown"] = {"tell_objects": shown.tell_objects, "blank_frames": shown.blank_frames}
    return given


def play(
    arguments: argparse.Namespace,
    instructions: str,
    connections: list[SocketConnection],
    trajectories: TrajectoryFolder,
    games: Sequence[dict[str, str]],
) -> dict[str, str]:
    """Load the model and play `games`; returns those that could not be played, with the reason.

    A connection that replaces a lost one is added to `connections`.
    """

    def reconnect() -> SocketConnection:
        connections.append(connect(arguments))
        return connections[-1]

    with closing(load_model(arguments, instructions)) as model, Bar("games") as bar:
        player = BatchPlayer(
            connections=list(connections),
            reconnect=reconnect,
            model=model,
            trajectories=trajectories,
            max_turns=arguments.max_turns,
            show_commands=arguments.show_commands,
        )
        won = 0
        for number, recorded in enumerate(player.play(games), start=1):
            won += recorded.episode.won
            bar.show(number, len(games), f"{won} solved")
    return player.failed


if __name__ == "__main__":
    run_program(main)
