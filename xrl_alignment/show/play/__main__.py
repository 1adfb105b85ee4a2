"""Plays a game in the terminal or a browser: you, an expert or a policy, each beside the others' suggestions.

python -m xrl_alignment.play                                  # you play a generated game; the explorer advises
python -m xrl_alignment.play --player expert                  # watch; any key: you take over
python -m xrl_alignment.play --checkpoint RUN_DIR/emma_checkpoint_3.pth --player policy
python -m xrl_alignment.play --web                            # in a browser
python -m xrl_alignment.play --env native --split valid_seen --game Mug --record episode.gif
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from alfworld_native.language.sentences import task_sentence
from lavis.common.errors import ConfigError, EmacError
from lavis.common.program import run_program
from xrl_alignment.common.choices import ENVIRONMENT_NAMES
from xrl_alignment.show.play.game import EXPERT, PLAYERS, YOU, GameInProgress
from xrl_alignment.show.play.recording import check_recording, write_recording
from xrl_alignment.show.play.screen import FRAMES, show_as
from xrl_alignment.show.play.settings import Setup, choose_game, set_up
from xrl_alignment.show.play.terminal import Quit, TerminalGame, device_attributes, summary_line

MAX_REQUEST = 4096  # bytes of what the page sends


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m xrl_alignment.play", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--player", choices=PLAYERS, default=YOU, help="who begins to play (default: you)")
    add("--expert", default="explorer", help="explorer, handcoded, planner, openai, module:Class, or none")
    add("--checkpoint", type=Path, help="weights of a policy; a run's checkpoint brings its own settings")
    add("--cfg-path", type=Path, metavar="FILE", help="settings of the policy, as evaluate.py reads them")
    add("--options", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="settings over those")
    add("--env", default="household", help=f"{', '.join(ENVIRONMENT_NAMES)}, or module:Class (default: household)")
    add("--split", default="", help="default: household_heldout, else valid_seen")
    add("--data", help="folder with json_2.1.1 (default: $ALFWORLD_DATA)")
    add("--game", default="", help="number in the split, or a part of its name (default: a random one)")
    add("--seed", type=int, help="chooses the random game")
    add("--record", type=Path, metavar="FILE", help="write the episode to FILE.gif, FILE.mp4 or FILE.html")
    frame_help = "an image by the terminal's protocol (auto finds it), or text: a list of what the frame shows"
    add("--frame", choices=FRAMES, default="auto", help=frame_help)
    add("--delay", type=float, default=1.0, metavar="SECONDS", help="between two moves that you watch (default: 1)")
    add("--web", action="store_true", help="play in a browser, at an address of this machine")
    add("--port", type=int, default=7862, help="--web: 0 takes any free one (default: 7862)")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Play one game, or with --web as many as you like."""
    arguments = parse_arguments(argv)
    if not 0 <= arguments.delay <= 3600:
        raise ConfigError(f"--delay {arguments.delay:g}: give 0 to 3600 seconds")
    if arguments.web and arguments.player != YOU:
        raise ConfigError(
            f"--player {arguments.player} is for the terminal: in the browser (--web) buttons choose who plays"
        )
    # Before the game: that a recording cannot be written would else be told when it is over.
    if arguments.record:
        check_recording(arguments.record)
    console = Console(highlight=False)  # rich would colour numbers and quoted words of the game's own text
    frame = show_as(arguments.frame, console, os.environ, lambda: device_attributes(console, sys.stdin))
    # On stderr: stdout may be a file that is to hold the game alone.
    print("Setting up the games ...", file=sys.stderr, flush=True)
    setup = set_up(
        environment=arguments.env,
        split=arguments.split,
        data=arguments.data,
        expert=arguments.expert,
        checkpoint=arguments.checkpoint,
        cfg_path=arguments.cfg_path,
        options=arguments.options,
    )
    with contextlib.closing(setup):
        number = choose_game(setup.games, arguments.game, arguments.seed)
        if arguments.web:
            serve(setup, number, arguments.port, arguments.record)
            return
        game = setup.new_game(number)
        if arguments.player not in game.players:
            missing = "--expert" if arguments.player == EXPERT else "--checkpoint, or --cfg-path of a served policy"
            raise ConfigError(f"--player {arguments.player}: nobody is there to play; give {missing}")
        # An episode that was left is summed up and recorded, too.
        with contextlib.suppress(Quit):
            TerminalGame(console, frame=frame, delay_s=arguments.delay).play(game, arguments.player)
        print(f"game {number} of {len(setup.games)} (--game {number}), {summary_line(game)}")
        if arguments.record:
            print(f"recorded: {write_recording(arguments.record, game)}")
        print(f"go on: the same command plays another game, --game {number} this one again, --web plays in a browser")


def serve(setup: Setup, number: int, port: int, record: Path | None) -> None:
    """Show the game at an address of this machine until Ctrl-C; the last episode that has ended is in `record`."""
    from xrl_alignment.show.play.web import PlayPages
    from xrl_alignment.wire.http_handler import Limits
    from xrl_alignment.wire.http_server import PageServer

    numbers = iter([number])  # the first game is the chosen one, the others are random

    def new_game() -> GameInProgress:
        return setup.new_game(next(numbers, None) or choose_game(setup.games, "", None))

    def ended(game: GameInProgress) -> None:
        print(f"{summary_line(game)}: {task_sentence(game.opening)}", flush=True)
        if record:
            try:
                print(f"recorded: {write_recording(record, game)}", flush=True)
            except EmacError as error:  # the player's last move is answered all the same
                print(f"not recorded: {error}", file=sys.stderr, flush=True)

    with contextlib.ExitStack() as cleanup:
        server = PageServer("127.0.0.1", port, limits=Limits(max_body=MAX_REQUEST), port_setting="--port")
        cleanup.callback(server.stop)
        server.mount(PlayPages(new_game, ended))
        server.start()
        print(f"Play at http://127.0.0.1:{server.port}/ (Ctrl-C ends it)", flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    run_program(main)
