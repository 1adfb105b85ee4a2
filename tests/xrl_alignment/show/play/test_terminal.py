"""Playing in the terminal: commands, numbers, suggestions; on a real pseudo-terminal: watching and taking over."""

from __future__ import annotations

import io
import os
import pty
import select
import subprocess
import sys
import time

import pytest
from rich.console import Console

from lavis.common.paths import REPO_ROOT
from xrl_alignment.show.play.terminal import Quit, TerminalGame, cell_size, completing, device_attributes, summary_line


def play(game, lines: str, player: str = "you", width: int = 200) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    try:
        TerminalGame(console, frame="text", delay_s=0.0, stdin=io.StringIO(lines)).play(game, player)
    except Quit:
        console.print("QUIT")
    return console.file.getvalue()


def test_commands_numbers_and_suggestions_are_moves(new_game):
    game = new_game(suggest=lambda question: "inventory")
    label, third = game.moment.label, None
    text = play(game, "look\ne\np\n")
    assert [move.action for move in game.moves] == ["look", game.moves[0].moment.label, "inventory"]
    assert label == game.moves[0].moment.label and text.rstrip().endswith("QUIT")
    third = game.moment.commands[2]
    play(game, "3\n")
    assert game.moves[-1].action == third and game.moves[-1].player == "you"


def test_what_means_no_move_is_told(new_game):
    game = new_game()
    text = play(game, "999\np\nauto p\nhelp\nlist\n\nquit\n")
    assert game.moves == []
    for said in ("There are ", "No suggestion of the policy.", "There is no policy: start with", "Tab completes", "1 "):
        assert said in text


def test_the_first_screen_names_the_task_once(new_game):
    text = play(new_game(), "quit\n")
    assert text.count("Your task is to") == 1 and "you see" in text
    text = play(new_game(), "", player="expert")
    assert text.count("Your task is to") == 2  # before the moves, which are a line each, and above the end


def test_a_move_is_one_line_of_a_log_however_narrow_it_is(new_game):
    game = new_game()
    lines = play(game, "", player="expert", width=40).splitlines()
    for number, move in enumerate(game.moves, start=1):
        assert f"{number:3} expert: {move.action}  {' '.join(move.feedback.split())}" in lines


def test_a_log_marks_what_the_agent_is_not_told(new_game):
    assert "not shown" not in play(new_game(), "", player="expert")
    game = new_game()
    game.tell_objects = False
    log = " ".join(play(game, "", player="expert").split())
    told = [" ".join(move.feedback.split()) for move in game.moves]
    hidden = [feedback for feedback in told if game.untold(feedback)]
    assert 0 < len(hidden) < len(told)
    for feedback in told:
        assert (f"{feedback} (not shown to the agent)" in log) == (feedback in hidden)


def test_auto_hands_over_to_the_expert_who_solves_it(new_game):
    game = new_game()
    text = play(game, "look\nauto\n")
    assert game.won and f"Solved in {len(game.moves)} steps." in text
    assert {move.player for move in game.moves[1:]} == {"expert"}
    assert "0 of 1 as the expert" in summary_line(game)


def test_tab_completes_whole_commands():
    readline = pytest.importorskip("readline")
    with completing(("go to desk 1", "go to bed 1", "look")):
        complete = readline.get_completer()
        assert [complete("go to", state) for state in range(3)] == ["go to desk 1", "go to bed 1", None]
        assert " " not in readline.get_completer_delims()
    assert readline.get_completer() is not complete


class Terminal:
    """The program on a pseudo-terminal of 120 × 40."""

    def __init__(self, *arguments: str) -> None:
        self._ours, theirs = pty.openpty()
        import fcntl
        import struct
        import termios

        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        environment = {**os.environ, "COLORTERM": "truecolor", "TERM": "xterm-kitty", "PYTHONPATH": str(REPO_ROOT)}
        for name in ("COLUMNS", "LINES", "TMUX"):  # pytest's workers set them; the size is the terminal's
            environment.pop(name, None)
        command = [sys.executable, "-m", "xrl_alignment.play", *arguments]
        self.process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
        os.close(theirs)
        self.text = ""

    def until(self, part: str) -> None:
        deadline = time.monotonic() + 60
        while part not in self.text:
            assert time.monotonic() < deadline, self.text[-2000:]
            if select.select([self._ours], [], [], 0.1)[0]:
                try:
                    self.text += os.read(self._ours, 1 << 16).decode("utf-8", "replace")
                except OSError:  # the program has ended
                    assert part in self.text, self.text[-2000:]

    def press(self, keys: str) -> None:
        self.text = ""
        os.write(self._ours, keys.encode())

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)


def test_on_a_terminal_it_is_animated_until_a_key_takes_over(household_data):
    games = ("--env", "native", "--split", "household_heldout", "--data", str(household_data), "--game", "1")
    terminal = Terminal(*games, "--player", "expert", "--delay", "30")
    try:
        terminal.until("any key: you take over")
        terminal.until("\x1b8")
        assert "\x1b[?1049h" in terminal.text and "\x1b_Ga=T" in terminal.text, "on a screen of its own, with the frame"
        terminal.press("\x1b[A")  # an arrow key is three characters, and all of them are one key
        terminal.until("a command (Tab completes)")
        terminal.until("> ")
        assert "\x1b[?1049l" in terminal.text
        terminal.press("e\r")
        terminal.until("as the expert")
        terminal.press("auto\r")
        terminal.until("any key: you take over")
        terminal.press("q")
        terminal.until("left in 1 steps")
        assert terminal.process.wait(30) == 0
    finally:
        terminal.close()


def test_a_terminal_that_answers_is_asked_for_sixels():
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "r+b", buffering=0) as raw, io.TextIOWrapper(raw, newline="\n") as stdin:
        console = Console(file=io.StringIO())
        assert device_attributes(console, stdin) == "" and console.file.getvalue() == "\x1b[c"

        class Asked(io.StringIO):
            def write(self, text):  # answers when it is asked: what came before is dropped with the terminal's mode
                os.write(ours, b"\x1b[?62;4c")
                return super().write(text)

        assert device_attributes(Console(file=Asked()), stdin) == "\x1b[?62;4c"
        assert cell_size(stdin) == (10, 20)  # it does not tell its pixels
        import fcntl
        import struct
        import termios

        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 960, 680))
        assert cell_size(stdin) == (8, 17)
    os.close(ours)
    assert device_attributes(console, io.StringIO()) == "" and cell_size(io.StringIO()) == (10, 20)
