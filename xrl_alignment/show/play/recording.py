"""Writes an episode as an animation: GIF, MP4, or an HTML page of its own with slider and keyboard."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from PIL import Image

from alfworld_native.language.commands import is_thought
from lavis.common.errors import ConfigError, MissingExtraError, missing_extra, unknown
from lavis.common.files import make_folder, replaced, writable, write_atomically, write_text
from xrl_alignment.show import PAGE
from xrl_alignment.show.play.card import end_card, step_card
from xrl_alignment.show.play.game import EXPERT, POLICY, YOU, GameInProgress

STEP_MS, END_MS = 1600, 3500  # how long a step, and the end, are shown
SMALL, _QUALITY = 288, 55  # pixels and WebP quality of a small recording's frames
_COLOURS = 128  # of a GIF's frame
_OWN = Path(__file__).parent / "page"


def check_recording(path: Path) -> Path:
    """`path`, if it can be written: ConfigError for another ending, MissingExtraError without what MP4 needs."""
    ending = path.suffix.lower().lstrip(".")
    if ending not in _WRITERS:
        raise ConfigError(f"--record {path}: {unknown('ending', ending or str(path), _WRITERS)}")
    if ending == "mp4":
        _encoder()
    make_folder(path.absolute().parent)
    return writable("--record", path)


def write_recording(path: Path, game: GameInProgress) -> Path:
    """Write the moves of `game` so far to `path`; its ending says how. Returns the path."""
    _WRITERS[path.suffix.lower().lstrip(".")](path, game)
    return path


def cards(game: GameInProgress) -> list[Image.Image]:
    """An image for each move, then one for the end."""
    steps = [step_card(game, move, number) for number, move in enumerate(game.moves, 1)]
    end = end_card(game, won=game.won, over=game.over)
    return [*steps, end]


def _write_gif(path: Path, game: GameInProgress) -> None:
    # Without dithering: dithered letters are hard to read, and make the file large.
    first, *others = [card.quantize(_COLOURS, dither=Image.Dither.NONE) for card in cards(game)]
    # The end stands longer, so that it is seen before the animation begins again.
    durations = [*[STEP_MS] * len(others), END_MS]

    def write(file: BinaryIO) -> None:
        first.save(file, "GIF", save_all=True, append_images=others, duration=durations, loop=0, optimize=True)

    write_atomically(path, write)


def _write_mp4(path: Path, game: GameInProgress) -> None:
    encoder = _encoder()
    images = cards(game)
    shown = [*[round(STEP_MS / 200)] * (len(images) - 1), round(END_MS / 200)]  # at 5 frames a second
    with replaced(path) as temporary:
        size = images[0].size
        # The name of the temporary file does not say the format.
        options = ["-f", "mp4", "-movflags", "+faststart"]
        writer = encoder.write_frames(str(temporary), size, fps=5, macro_block_size=16, output_params=options)
        writer.send(None)
        for image, times in zip(images, shown, strict=True):
            for _ in range(times):
                writer.send(np.asarray(image).tobytes())
        writer.close()


def _write_html(path: Path, game: GameInProgress) -> None:
    write_text(path, recording_page(game))


def recording_page(game: GameInProgress, *, small: bool = False) -> str:
    """The page: the dashboard's style and player, and the episode as data; needs nothing but a browser."""
    told = json.dumps(recorded(game, small=small)).replace("<", "\\u003c")  # no text can end the script
    # The part of the dashboard's page that replays an episode.
    dashboard = (PAGE / "index.html").read_text(encoding="utf-8")
    begin = dashboard.index('<section id="replay"')
    player = dashboard[begin : dashboard.index("</section>", begin)] + "</section>"
    # Its scripts without imports and exports: a page that is a file cannot load modules.
    lines: list[str] = []
    for file in (PAGE / "elements.js", PAGE / "player.js", _OWN / "recording.js"):
        script = file.read_text(encoding="utf-8").splitlines()
        lines += [line.removeprefix("export ") for line in script if not line.startswith("import ")]
    parts = {
        "STYLE": "\n".join((PAGE / name).read_text(encoding="utf-8") for name in ("base.css", "dashboard.css")),
        "PLAYER": player,
        "SCRIPT": "\n".join(lines),
        "EPISODE": told,
    }
    page = (_OWN / "recording.html").read_text(encoding="utf-8")
    for name, content in parts.items():
        page = page.replace(f"@{name}@", content)
    return page


def recorded(game: GameInProgress, *, frames: bool = True, small: bool = False) -> dict[str, Any]:
    """An episode as the dashboard's player reads it, with its `images` unless `frames` is false.

    `small` makes WebP images of at most `SMALL` pixels, which take a tenth of the space and lose fine detail.
    """
    steps: list[dict[str, Any]] = []
    for move in game.moves:
        moment = move.moment
        suggested = ((EXPERT, moment.label), (POLICY, moment.policy))
        said = [[name, action] for name, action in suggested if action is not None]
        if move.player == YOU:
            said.insert(0, [YOU, move.action])
        said.append(["executed", move.action])
        agent = moment.policy if move.player == EXPERT else move.action  # who is compared with the expert
        told = {"agent": agent, "expert": moment.label, "executed": move.action, "said": said}
        if is_thought(move.action) or is_thought(agent or ""):  # a thought is no answer to the expert's command
            told |= {"agent": None, "expert": None}
        steps.append({**told, "heard": moment.heard, "feedback": move.feedback})
    end: dict[str, Any] = {
        "agent": None,
        "expert": None,
        "executed": "",
        "heard": game.moment.heard,
        "feedback": "",
        "said": [],
    }
    facts = {"game": game.game.id, "won": game.won, "over": game.over, "actions": game.actions}
    # What people read and see, but the agent does not.
    heard = [move.moment.heard for move in game.moves] + [game.moment.heard]
    untold = list(dict.fromkeys(sentence for text in heard for sentence in game.untold(text)))
    notice = "The agent sees black frames; these are not shown to it." if game.blank_frames else ""
    images: list[str] = []
    for moment in [*(move.moment for move in game.moves), game.moment] if frames else ():
        image, kind, content = Image.fromarray(moment.shown), "webp" if small else "png", io.BytesIO()
        if small:
            image.thumbnail((SMALL, SMALL))
            image.save(content, "WEBP", quality=_QUALITY, method=6)
        else:
            image.quantize(256).save(content, "PNG", optimize=True)
        images.append(f"data:image/{kind};base64,{base64.b64encode(content.getvalue()).decode('ascii')}")
    hidden = {"untold": untold, "unseen": game.blank_frames, "notice": notice}
    return {**facts, **hidden, "opening": game.opening, "steps": [*steps, end], "images": images}


def _encoder() -> Any:
    try:
        import imageio_ffmpeg
    except ImportError as error:
        raise MissingExtraError(f"{missing_extra('video', error)}; or record a .gif or .html") from error
    return imageio_ffmpeg


_WRITERS: dict[str, Callable[[Path, GameInProgress], None]] = {
    "gif": _write_gif,
    "mp4": _write_mp4,
    "html": _write_html,
}
