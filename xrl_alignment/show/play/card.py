"""An episode's step as an image: the frame, and beside it task, text, action and the expert's label."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from PIL import Image, ImageDraw, ImageFont

from alfworld_native.language.commands import is_thought
from alfworld_native.language.sentences import task_sentence, without_objects
from xrl_alignment.show.play.game import EXPERT, POLICY, YOU, GameInProgress, Moment, Move

WIDTH, HEIGHT = 896, 448
NOT_SHOWN = "not shown to the agent"
_MARGIN = 16
_GROUND, _TEXT, _QUIET, _UNTOLD = (20, 22, 25), (233, 234, 236), (169, 174, 181), (128, 133, 140)
_SAME, _OTHER, _BAD = (134, 223, 166), (255, 189, 138), (255, 163, 163)


class Line(NamedTuple):
    """A text in one size and colour; it is wrapped, and cut after `most` lines."""

    text: str
    size: int = 17
    colour: tuple[int, int, int] = _TEXT
    most: int = 3
    gap: int = 10  # above it


def step_card(game: GameInProgress, move: Move, number: int) -> Image.Image:
    """The state before a move, and the move."""
    lines = [*_head(game, number, move.moment), Line(f"> {move.action}", 22, _TEXT, 2, 18)]
    lines.append(Line(f"chosen by {YOU if move.player == YOU else f'the {move.player}'}", 15, _QUIET, 1, 2))
    if move.player != EXPERT and move.moment.expert and not is_thought(move.action):
        label, same = move.moment.label, move.action == move.moment.label
        said = "the expert agrees" if same else f"the expert: {label}" if label else "the expert has no label"
        lines.append(Line(said, 17, _SAME if same else _OTHER, 2, 8))
    if move.player != POLICY and move.moment.policy is not None:
        lines.append(Line(f"the policy: {move.moment.policy}", 17, _QUIET, 2, 8))
    return _card(game, move.moment, lines)


def end_card(game: GameInProgress, *, won: bool, over: bool) -> Image.Image:
    """The state now, in which no move follows."""
    how = "solved in" if won else "not solved in" if over else "left after"
    end = Line(f"{how} {game.actions} steps", 22, _SAME if won else _BAD, 1, 18)
    return _card(game, game.moment, [*_head(game, len(game.moves) + 1, game.moment), end])


def _head(game: GameInProgress, number: int, moment: Moment) -> list[Line]:
    """Task, step and text. What the agent is not told stands apart, in grey."""
    heard = " ".join(moment.heard.split()) if number > 1 else " ".join(game.opening.split("\n")[:-1])
    lines = [Line(task_sentence(game.opening), 19, _TEXT, 3, 0), Line(f"step {number}", 15, _QUIET, 1)]
    hidden = game.untold(heard)
    lines.append(Line(without_objects(heard) if hidden else heard, 17, _TEXT, 6, 4))
    if hidden:
        lines.append(Line(f"{NOT_SHOWN}: {' '.join(hidden)}", 15, _UNTOLD, 4, 4))
    if game.blank_frames:
        lines.append(Line(f"frame {NOT_SHOWN}", 15, _UNTOLD, 1, 4))
    return lines


def _card(game: GameInProgress, moment: Moment, lines: list[Line]) -> Image.Image:
    card = Image.new("RGB", (WIDTH, HEIGHT), _GROUND)
    frame = Image.fromarray(moment.shown)
    if frame.size != (HEIGHT, HEIGHT):
        frame = frame.resize((HEIGHT, HEIGHT), Image.Resampling.BICUBIC)
    if game.blank_frames:  # greyed, because the agent sees another one
        frame = Image.blend(frame.convert("L").convert("RGB"), Image.new("RGB", frame.size, _GROUND), 0.6)
    card.paste(frame, (0, 0))
    draw = ImageDraw.Draw(card)
    x, y = HEIGHT + _MARGIN, _MARGIN
    for line in lines:
        y += line.gap
        font = _font(line.size)
        for part in wrapped(line.text, font, WIDTH - x - _MARGIN, line.most):
            draw.text((x, y), part, fill=line.colour, font=font)
            y += round(line.size * 1.3)
    return card


def wrapped(text: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, width: int, most: int) -> list[str]:
    """`text` in at most `most` lines of `width` pixels, the last one with `...` if something was left out."""
    lines: list[str] = []
    # Bounded: each word is measured, and a model may write any amount.
    printable = "".join(sign if sign.isprintable() else " " for sign in text[:2000])
    words = [word for word in printable.split(" ") if word]
    while words and len(lines) < most:
        line = words.pop(0)
        while words and font.getlength(f"{line} {words[0]}") <= width:
            line = f"{line} {words.pop(0)}"
        while font.getlength(line) > width:  # one word that is longer than the line
            line = line[:-1]
        lines.append(line)
    if words:  # room for the dots is made at the end of the last line
        last = lines[-1]
        while last and font.getlength(f"{last} ...") > width:
            last = last.rpartition(" ")[0]
        lines[-1] = f"{last} ...".strip()
    return lines


@lru_cache(maxsize=8)
def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)
