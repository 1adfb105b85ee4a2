"""The native engine compared with a transcript, answer by answer."""

from __future__ import annotations

from typing import NamedTuple

from alfworld_native.engine.game import NativeGame
from alfworld_native.errors import EnvironmentFault
from alfworld_native.prove.oracle import EngineAnswer, Oracle, shortcuts
from alfworld_native.prove.transcripts import Transcript, row


class Mismatch(NamedTuple):
    """The first place where the engines differ in a game; a game is not played further after it."""

    path: str
    step: int
    command: str
    what: str


def compare(path: str, transcript: Transcript) -> Mismatch | None:
    """Play the native engine by `transcript`; the first difference, or None."""
    try:
        game = NativeGame.load(path)
    except EnvironmentFault as error:
        return Mismatch(path, 0, "", f"the native engine refuses the game: {error}")
    # Row 0 is the answer to the reset, which has no command.
    for step, (command, *expected) in enumerate(transcript.rows):
        text = game.step(command) if step else game.reset()
        answer = EngineAnswer(text, game.admissible_commands(), game.won, game.facts())
        found = row(command, answer, bool(expected[-1]))[1:]
        for what, ours, theirs in zip(("text", "won", "commands", "facts"), found, expected, strict=False):
            if ours != theirs:
                return Mismatch(path, step, command, what)
    return None


def describe(mismatch: Mismatch, transcript: Transcript) -> str:
    """The mismatch with both engines' answers; plays the game again in TextWorld up to that step."""
    head = f"{mismatch.path}, step {mismatch.step}, command {mismatch.command!r}: {mismatch.what}"
    if mismatch.what not in ("text", "won", "commands", "facts"):
        return head
    game, oracle = NativeGame.load(mismatch.path), Oracle()
    with shortcuts():
        answer, text = oracle.reset(mismatch.path), game.reset()
        for command, *_ in transcript.rows[1 : mismatch.step + 1]:
            answer, text = oracle.step(command), game.step(command)
    ours = EngineAnswer(text, game.admissible_commands(), game.won, game.facts())
    a, b = getattr(ours, mismatch.what), getattr(answer, mismatch.what)
    if mismatch.what in ("commands", "facts"):  # only what one of them has and the other lacks
        a, b = sorted({*a} - {*b}), sorted({*b} - {*a})
    return f"{head}\n  native:    {a!r}\n  textworld: {b!r}"
