"""A game as a terminal shows it: text, with room for the frame beside it, or with a list of what the frame shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from alfworld_native.language.sentences import task_sentence
from lavis.common.errors import ConfigError, unknown
from xrl_alignment.show.play.game import EXPERT, POLICY, GameInProgress, Moment, Move
from xrl_alignment.show.play.images import PROTOCOLS, has_sixel, protocol_by_name

FRAMES = ("auto", *PROTOCOLS, "text")  # how a frame is shown
SMALLEST, LARGEST = 24, 96  # of a frame, in characters: smaller ones show nothing, larger ones fill the window
_TEXT_WIDTH = 44  # what the text needs beside the frame
_LINES_BELOW = 3


def show_as(wanted: str, console: Console, variables: Mapping[str, str], ask: Callable[[], str]) -> str:
    """One of PROTOCOLS or "text": with "auto" what the terminal can; ConfigError for another name.

    `variables` are the environment's; `ask` gives the terminal's answer to `images.DEVICE_ATTRIBUTES`, and is only
    called if the variables tell nothing.
    """
    if wanted not in FRAMES:
        raise ConfigError(unknown("--frame", wanted, FRAMES))
    if wanted != "auto":
        return wanted
    if not console.is_terminal:
        return "text"
    return protocol_by_name(variables) or ("sixel" if has_sixel(ask()) else "text")


def frame_columns(console: Console) -> int:
    """How wide the frame may be so that the text has its place and nothing scrolls; 0: too small to show any."""
    room = min(console.width - _TEXT_WIDTH, 2 * (console.height - _LINES_BELOW), LARGEST)
    return room if room >= SMALLEST else 0


def game_screen(game: GameInProgress, console: Console, frame: str, *, last: Move | None, keys: str) -> RenderableType:
    """The game now: task, text, suggestions, the move before; `keys` says what can be done.

    With a protocol of `images` as `frame` the left side is free for the image. What the agent is not told is dim.
    """
    moment = game.moment
    # The task, the move before, and what the game has answered.
    task = clean(task_sentence(game.opening))
    parts: list[RenderableType] = [Panel(task, title=f"step {len(game.moves) + 1}", title_align="left", style="bold")]
    if last:
        move = Text("> ", "dim").append_text(clean(last.action)).append(f"   ({last.player}", "dim")
        if last.player != EXPERT and last.moment.expert:
            move.append(f"; {_compared(last)}", "green" if last.action == last.moment.label else "yellow")
        parts.append(move.append(")", "dim"))
    # The opening ends in the task, which stands above.
    text = moment.heard if last else moment.heard.replace(task_sentence(game.opening), "").rstrip()
    parts.append(marked(game, text))
    # What expert and policy suggest.
    if not game.over:
        suggestions = Table.grid(padding=(0, 1))
        for player in (EXPERT, POLICY):
            if player in game.players:
                said = moment.suggestion(player)
                suggestions.add_row(Text(f"{player}:", "cyan"), clean(said) if said else Text("no suggestion", "dim"))
        if moment.expert and moment.expert.thought:
            suggestions.add_row("", clean(moment.expert.thought))
        parts.append(suggestions)
    # The frame in words, and what can be done or how it has ended.
    if moment.names or frame == "text":
        if moment.names:
            shows = f"The frame shows: {', '.join(moment.names)}."
        elif moment.things:
            shows = f"The frame shows, without labels: {', '.join(moment.things)}."
        else:
            shows = "Nobody knows what the frame shows." if moment.things is None else "The frame shows no object."
        parts.append(clean(shows + (f" In the hand: {moment.holding}." if moment.holding else ""), "dim"))
    if game.blank_frames:
        parts.append(Text("The frame is not shown to the agent, which sees a black one.", "dim italic"))
    steps = f"{game.actions} steps"
    if not game.over:
        parts.append(Text(keys, style="dim"))
    elif game.won:
        parts.append(Text(f"Solved in {steps}.", "bold green"))
    else:
        parts.append(Text(f"Not solved in {steps}.", "bold red"))
    beside = Group(*parts)
    columns = frame_columns(console) if frame in PROTOCOLS else 0
    if not columns:
        return beside
    grid = Table.grid(padding=(0, 2))
    grid.add_column(width=columns, no_wrap=True)
    grid.add_column(ratio=1)
    grid.add_row("\n" * (columns // 2 - 1), beside)
    return grid


def commands_list(moment: Moment) -> RenderableType:
    """The admissible commands, numbered from 1."""
    return Columns([clean(f"{number} {text}") for number, text in enumerate(moment.commands, 1)], padding=(0, 2))


def marked(game: GameInProgress, heard: str) -> Text:
    """What people read; the sentences of it that the agent is not told are dim, and words at the end say so."""
    text = clean(heard)
    for sentence in map(clean, untold := game.untold(heard)):
        text.highlight_words([sentence.plain], "dim italic")
    return text.append(" (not shown to the agent)", "dim italic") if untold else text


def move_line(game: GameInProgress, move: Move) -> Text:
    """The last move in one line, for a log; how it compares with the expert stands in words, too."""
    text = Text(f"{len(game.moves):3} ").append(f"{move.player}: ", "dim").append_text(clean(move.action, "bold"))
    if move.player != EXPERT and move.moment.expert:
        text.append(f"  {_compared(move)}", "green" if move.action == move.moment.label else "yellow")
    return text.append("  ").append_text(marked(game, " ".join(move.feedback.split())))


def clean(text: str, style: str = "") -> Text:
    """`text` without control characters: what a game's file or a model says must not steer the terminal."""
    shown = (sign if sign.isprintable() or sign == "\n" else "\N{REPLACEMENT CHARACTER}" for sign in text)
    return Text("".join(shown), style)


def _compared(move: Move) -> str:
    if move.moment.label is None:
        return "the expert has no label"
    return "as the expert" if move.action == move.moment.label else f"the expert: {clean(move.moment.label).plain}"
