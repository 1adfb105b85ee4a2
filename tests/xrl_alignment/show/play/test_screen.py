"""What a terminal shows: text, room for the frame, or what the frame shows; hostile texts steer nothing."""

from __future__ import annotations

import dataclasses
import io

import pytest
from rich.console import Console

from lavis.common.errors import ConfigError
from xrl_alignment.show.play.screen import (
    clean,
    commands_list,
    frame_columns,
    game_screen,
    move_line,
    show_as,
)


def console(width: int = 120, height: int = 40, *, colours: str | None = "truecolor") -> Console:
    return Console(
        file=io.StringIO(), force_terminal=colours is not None, color_system=colours, width=width, height=height,
        highlight=False, legacy_windows=False,
    )  # fmt: skip


def shown(what, **size) -> str:
    terminal = console(**size)
    terminal.print(what)
    return terminal.file.getvalue()


@pytest.mark.parametrize(
    ("wanted", "colours", "variables", "answer", "shows"),
    [
        ("auto", "truecolor", {"TERM": "xterm-kitty"}, "", "kitty"),
        ("auto", "truecolor", {}, "\x1b[?62;4c", "sixel"),
        ("auto", "truecolor", {}, "\x1b[?62;22c", "text"),
        ("auto", None, {"TERM": "xterm-kitty"}, "\x1b[?62;4c", "text"),
        ("iterm", None, {}, "", "iterm"),
        ("text", "truecolor", {"TERM": "xterm-kitty"}, "", "text"),
    ],
)
def test_how_a_frame_is_shown(wanted, colours, variables, answer, shows):
    assert show_as(wanted, console(colours=colours), variables, lambda: answer) == shows


def test_another_way_to_show_frames_is_unknown():
    with pytest.raises(ConfigError, match="unknown --frame 'kity': did you mean 'kitty'"):
        show_as("kity", console(), {}, str)


def test_the_frame_leaves_room_for_the_text_and_nothing_scrolls(new_game):
    game = new_game()
    for width, height in ((80, 24), (120, 30), (200, 60)):
        terminal = console(width, height, colours=None)
        columns = frame_columns(terminal)
        assert 24 <= columns <= width - 44 and columns / 2 <= height
        terminal.print(game_screen(game, terminal, "kitty", last=None, keys=""))
        lines = terminal.file.getvalue().splitlines()
        assert len(lines) >= columns // 2 and not any(line[:columns].strip() for line in lines)
    assert frame_columns(console(60, 24)) == 0, "too narrow: only text"


def test_what_the_agent_is_not_told_is_said(new_game):
    game = new_game()
    while "you see a " not in game.moment.heard or not game.moves:
        game.play("expert")
    assert "not shown" not in shown(game_screen(game, console(), "text", last=None, keys=""), colours=None)
    game.tell_objects, game.blank_frames = False, True
    text = " ".join(shown(game_screen(game, console(), "text", last=None, keys=""), colours=None).split())
    assert " ".join(game.moment.heard.split()) + " (not shown to the agent)" in text
    assert "not shown to the agent, which sees a black one" in text
    sentence = game.untold(game.moment.heard)[0].split()[0]
    assert f"\x1b[2;3m{sentence} " in shown(game_screen(game, console(), "text", last=None, keys=""))


def test_objects_are_listed_also_where_no_label_names_them(new_game):
    game = new_game()
    while not game.moment.things:
        game.play("expert")
    game.moment = dataclasses.replace(game.moment, names=())
    text = " ".join(shown(game_screen(game, console(), "text", last=None, keys=""), colours=None).split())
    assert f"The frame shows, without labels: {game.moment.things[0]}" in text


def test_the_text_says_what_a_frame_would_show(new_game):
    game = new_game()
    while not game.moment.holding:
        game.play("expert")
    screen = game_screen(game, console(), "text", last=game.moves[-1], keys="")
    text = " ".join(shown(screen, colours=None).split())
    assert "The frame shows: " in text and game.moment.names[0] in text
    assert f"In the hand: {game.moment.holding}." in text


def test_suggestions_and_the_comparison_of_the_last_move_are_in_words(new_game):
    game = new_game(suggest=lambda question: "dance")
    move = game.play("you", "look")
    text = " ".join(shown(game_screen(game, console(), "text", last=move, keys="KEYS"), colours=None).split())
    assert f"expert: {game.moment.label}" in text and "policy: dance" in text and "KEYS" in text
    assert f"> look (you; the expert: {move.moment.label})" in text
    assert f"you: look the expert: {move.moment.label}" in " ".join(shown(move_line(game, move), colours=None).split())


def test_hostile_texts_are_text():
    attack = "[red]\x1b]0;taken\x07\x1b[2J[/red]"
    text = shown(clean(attack))
    assert "[red]" in text and "\x1b" not in text and "\x07" not in text


def test_commands_are_numbered(new_game):
    game = new_game()
    text = shown(commands_list(game.moment), colours=None)
    assert f"1 {game.moment.commands[0]}" in text and f"{len(game.moment.commands)} {game.moment.commands[-1]}" in text
