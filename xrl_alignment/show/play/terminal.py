"""Plays in the terminal: your moves line by line, or an expert's or a policy's animated, until you take over."""

from __future__ import annotations

import contextlib
import os
import re
import select
import struct
import sys
import time
from collections.abc import Callable, Iterator
from typing import TextIO

from rich.console import Console, RenderableType
from rich.live import Live

from alfworld_native.language.commands import is_thought
from xrl_alignment.show.play.game import EXPERT, POLICY, YOU, GameInProgress
from xrl_alignment.show.play.images import CELL, DEVICE_ATTRIBUTES, PROTOCOLS, image_at_home, no_image
from xrl_alignment.show.play.screen import commands_list, frame_columns, game_screen, marked, move_line

HELP = (
    "a command (Tab completes) or its number; e, p: do what the expert, the policy suggests; "
    "auto, auto p: the expert, the policy plays on; list; quit"
)
ANSWER_S = 0.3  # for a terminal to say what it can
WATCHING = "any key: you take over; q: quit"
Wait = Callable[[float], str]  # waits so many seconds for a key; "" when none came


class Quit(Exception):
    """The player has had enough."""


class TerminalGame:
    """Shows a game on `console` and asks for your moves; lines come from `stdin`.

    Where `stdin` or the console is no terminal, every move is one line and nothing is animated.
    """

    def __init__(self, console: Console, *, frame: str, delay_s: float, stdin: TextIO | None = None) -> None:
        """`frame`: one of `images.PROTOCOLS`, or "text"; `delay_s` between two moves that are watched."""
        self._console = console
        self._stdin = stdin or sys.stdin
        self._frame = frame
        self._delay_s = delay_s
        self._animated = console.is_terminal and self._stdin.isatty()

    def play(self, game: GameInProgress, player: str) -> None:
        """Play to the end, beginning with `player`; Quit if you say so, or the input ends."""
        if not self._animated and player != YOU:  # your screen shows the opening
            self._console.print(marked(game, game.opening))
        while not game.over:
            if player == YOU:
                player = self._your_move(game)
            elif self._animated:
                player = self._watch(game, player)
            else:
                move = game.play(player)
                self._console.print(move_line(game, move), soft_wrap=True)
        if self._animated:
            self._write(no_image(self._frame))
        # What stays in the terminal scrolls, and an image would not.
        self._console.print(self._screen(game, "", frame="text"))

    # --- watching --------------------------------------------------------------------------------------------------

    def _watch(self, game: GameInProgress, player: str) -> str:
        """Animate `player`'s moves; returns who plays on."""
        live = Live(self._screen(game, WATCHING), console=self._console, screen=True, auto_refresh=False)
        with single_keys(self._stdin) as wait, live:
            while not game.over:
                live.update(self._screen(game, WATCHING), refresh=True)
                self._show_image(game)
                if key := wait(self._delay_s):
                    self._write(no_image(self._frame))  # the screen goes by itself, an image stays
                    if key in ("q", "Q", "\x1b"):
                        raise Quit
                    return YOU
                game.play(player)
            live.update(self._screen(game, ""), refresh=True)
            self._show_image(game)
            wait(self._delay_s)
        return player

    def _screen(self, game: GameInProgress, keys: str, frame: str = "") -> RenderableType:
        last = game.moves[-1] if game.moves else None
        shown = frame or (self._frame if self._animated else "text")
        return game_screen(game, self._console, shown, last=last, keys=keys)

    def _show_image(self, game: GameInProgress) -> None:
        """The frame, in the room that the screen has left for it; the screen begins in the upper left corner."""
        columns = frame_columns(self._console)
        if self._frame in PROTOCOLS and columns:
            self._write(image_at_home(game.moment.shown, self._frame, columns, cell_size(self._stdin)))

    def _write(self, codes: str) -> None:
        self._console.file.write(codes)
        self._console.file.flush()

    # --- your moves ------------------------------------------------------------------------------------------------

    def _your_move(self, game: GameInProgress) -> str:
        """Ask until a move is made or another player takes over; returns who plays on."""
        if self._animated:
            self._console.clear()
        self._console.print(self._screen(game, HELP))
        if self._animated:
            self._show_image(game)
        while True:
            said = self._ask(game)
            commands = game.moment.commands
            if said in ("q", "quit", "exit"):
                raise Quit
            if said in ("auto", "auto e", "auto p"):
                wanted = POLICY if said.endswith("p") or EXPERT not in game.players else EXPERT
                if wanted in game.players:
                    return wanted
                self._console.print(f"There is no {wanted}: start with --expert or --checkpoint.", style="yellow")
            elif said in ("list", "?", "help"):
                self._console.print(HELP if said == "help" else commands_list(game.moment))
            elif said:
                # A move: somebody's suggestion, a command by its number, or in words.
                action: str | None = said
                if said in ("e", "p"):
                    wanted = EXPERT if said == "e" else POLICY
                    action = game.moment.suggestion(wanted)
                    if not action:
                        self._console.print(f"No suggestion of the {wanted}.", style="yellow")
                        continue
                elif re.fullmatch(r"-?[0-9]+", said):
                    if not 1 <= int(said) <= len(commands):
                        self._console.print(f"There are {len(commands)} commands: `list` shows them.", style="yellow")
                        continue
                    action = commands[int(said) - 1]
                move = game.play(YOU, action)
                if not self._animated:
                    self._console.print(move_line(game, move), soft_wrap=True)
                return YOU

    def _ask(self, game: GameInProgress) -> str:
        """One line of input; Quit at its end."""
        if not self._animated:
            line = self._stdin.readline()
            if not line:
                raise Quit
            return line.strip()
        try:
            with completing(game.moment.commands):
                return self._console.input("[bold]> [/bold]").strip()
        except EOFError:
            raise Quit from None


def summary_line(game: GameInProgress) -> str:
    """How a game ended, in one line; the screen above it names the task."""
    end = "solved" if game.won else "not solved" if game.over else "left"
    compared = [
        move for move in game.moves if move.player != EXPERT and move.moment.label and not is_thought(move.action)
    ]
    agreed = sum(move.action == move.moment.label for move in compared)
    agreement = f", {agreed} of {len(compared)} as the expert" if compared else ""
    return f"{end} in {game.actions} steps{agreement}"


def device_attributes(console: Console, stdin: TextIO) -> str:
    """The terminal's answer to `images.DEVICE_ATTRIBUTES`; empty if none comes, or `stdin` is no terminal."""
    if not stdin.isatty():
        return ""
    with single_keys(stdin) as wait:
        console.file.write(DEVICE_ATTRIBUTES)
        console.file.flush()
        answer = ""
        # The answer is `ESC [ ? … c` (DEC's primary device attributes).
        while not answer.endswith("c") and (part := wait(ANSWER_S)):
            answer += part
    return answer


def cell_size(stdin: TextIO) -> tuple[int, int]:
    """A character's width and height in pixels, as the terminal says; `CELL` if it does not."""
    try:
        import fcntl
        import termios

        told = fcntl.ioctl(stdin.fileno(), termios.TIOCGWINSZ, bytes(8))
    except (ImportError, OSError, ValueError):  # Windows; no terminal
        return CELL
    rows, columns, width, height = struct.unpack("HHHH", told)
    return (width // columns, height // rows) if rows and columns and width >= columns and height >= rows else CELL


@contextlib.contextmanager
def single_keys(stdin: TextIO) -> Iterator[Wait]:
    """Keys one by one, without Enter, as long as the block lasts; none come if the system has no such mode."""
    try:
        import termios
        import tty
    except ImportError:  # Windows

        def no_keys(seconds: float) -> str:
            time.sleep(seconds)
            return ""

        yield no_keys
        return
    before = termios.tcgetattr(stdin)
    try:
        tty.setcbreak(stdin)

        def wait(seconds: float) -> str:
            if not select.select([stdin], [], [], seconds)[0]:
                return ""
            # Past Python's buffer, in which the rest of an arrow key would wait and be taken for a command.
            return os.read(stdin.fileno(), 64).decode("utf-8", "replace")

        yield wait
    finally:
        termios.tcsetattr(stdin, termios.TCSADRAIN, before)


@contextlib.contextmanager
def completing(commands: tuple[str, ...]) -> Iterator[None]:
    """Tab completes whole commands, if Python has readline."""
    try:
        import readline
    except ImportError:
        yield
        return

    def complete(text: str, state: int) -> str | None:
        found = [command for command in commands if command.startswith(text)]
        return found[state] if state < len(found) else None

    # readline's settings belong to the whole process, so they are put back. Without delimiters it completes the line as
    # a whole: commands hold blanks.
    before, delimiters = readline.get_completer(), readline.get_completer_delims()
    readline.set_completer(complete)
    readline.set_completer_delims("")
    readline.parse_and_bind("tab: complete")
    try:
        yield
    finally:
        readline.set_completer(before)
        readline.set_completer_delims(delimiters)
