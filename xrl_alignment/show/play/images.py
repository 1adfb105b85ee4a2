"""Frames in a terminal: escape codes for kitty's, iTerm2's and sixel images, and which of them a terminal knows.

Protocols: kitty's graphics protocol (sw.kovidgoyal.net/kitty/graphics-protocol), iTerm2's inline images
(iterm2.com/documentation-images.html), sixel (DEC's VT340). A terminal says by its variables that it is kitty or
iTerm2, or one that does as they do; sixel is the attribute 4 in its answer to `ESC [ c` (DA1).
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping

import numpy as np
from PIL import Image

PROTOCOLS = ("kitty", "iterm", "sixel")
DEVICE_ATTRIBUTES = "\x1b[c"  # asks for DA1; the answer is `ESC [ ? 62 ; 4 ; 22 c`
CELL = (10, 20)  # pixels of a character, for sixel, if the terminal does not tell them
_CHUNK = 4096  # characters of an image in one code of kitty's protocol, at most
_COLOURS = 128  # of a sixel image: all terminals have as many
_SAVE, _HOME, _RESTORE = "\x1b7", "\x1b[H", "\x1b8"  # the cursor's place


def protocol_by_name(variables: Mapping[str, str]) -> str | None:
    """The protocol of the terminal that these environment variables name; None if they name none.

    Inside tmux and screen there is none: these do not hand images on.
    """
    if variables.get("TMUX") or variables.get("TERM", "").startswith(("screen", "tmux")):
        return None
    program = variables.get("TERM_PROGRAM", "").lower()
    if variables.get("KITTY_WINDOW_ID") or variables.get("TERM") in ("xterm-kitty", "xterm-ghostty"):
        return "kitty"
    if program == "ghostty":
        return "kitty"
    return "iterm" if program in ("iterm.app", "wezterm") or variables.get("LC_TERMINAL") == "iTerm2" else None


def has_sixel(answer: str) -> bool:
    """Whether a terminal's answer to `DEVICE_ATTRIBUTES` has the attribute of sixel images."""
    _, found, attributes = answer.partition("\x1b[?")
    return bool(found) and "4" in attributes.partition("c")[0].split(";")[1:]


def image_at_home(frame: np.ndarray, protocol: str, columns: int, cell: tuple[int, int] = CELL) -> str:
    """Codes that show `frame` (uint8, H × W × 3) in the upper left corner, `columns` wide, half as many lines high.

    The cursor stays. `cell` is a character's width and height in pixels.
    """
    image, rows = Image.fromarray(frame), columns // 2
    if protocol == "sixel":
        size = (columns * cell[0], rows * cell[1])
        return f"{_SAVE}{_HOME}{sixel(image.resize(size, Image.Resampling.BICUBIC))}{_RESTORE}"
    png = io.BytesIO()
    image.save(png, "PNG")
    content = base64.b64encode(png.getvalue()).decode("ascii")
    if protocol == "iterm":
        keys = f"inline=1;size={len(png.getvalue())};width={columns};height={rows};preserveAspectRatio=0"
        return f"{_SAVE}{_HOME}\x1b]1337;File={keys}:{content}\x07{_RESTORE}"
    # kitty: a=T shows what is sent, f=100 is PNG, q=2 wants no answer (it would be read as keys), C=1 keeps the cursor.
    chunks = [content[at : at + _CHUNK] for at in range(0, len(content), _CHUNK)]
    keys = f"a=T,f=100,c={columns},r={rows},q=2,C=1,"
    codes = []
    for number, chunk in enumerate(chunks, 1):
        codes.append(f"\x1b_G{keys}m={int(number < len(chunks))};{chunk}\x1b\\")
        keys = ""
    return f"{_SAVE}{_HOME}{no_image(protocol)}{''.join(codes)}{_RESTORE}"


def no_image(protocol: str) -> str:
    """Codes that take the images away; characters do that by themselves, but in kitty."""
    return "\x1b_Ga=d,d=A,q=2\x1b\\" if protocol == "kitty" else ""


def sixel(image: Image.Image) -> str:
    """`image` as sixels: bands of six rows, in each band one line of columns for each of its colours."""
    reduced = image.convert("RGB").quantize(_COLOURS, dither=Image.Dither.NONE)
    palette, pixels = reduced.getpalette() or [], np.asarray(reduced)
    parts = [f'\x1bPq"1;1;{image.width};{image.height}']
    for colour in np.unique(pixels).tolist():
        red, green, blue = (round(value * 100 / 255) for value in palette[3 * colour : 3 * colour + 3])
        parts.append(f"#{colour};2;{red};{green};{blue}")  # defines a colour: 2 is RGB, each in per cent
    for top in range(0, len(pixels), 6):
        band = pixels[top : top + 6]
        for colour in np.unique(band).tolist():
            # A column's sixel is the character 63 + its six bits; bit k is set if row k has the colour. Runs of equal
            # sixels are written as `!count`. `$` goes back to the band's beginning, `-` to the next band.
            bits = ((band == colour) << np.arange(len(band))[:, None]).sum(0)  # (W,)
            starts = np.concatenate(([0], np.flatnonzero(np.diff(bits)) + 1))
            lengths = np.diff(np.append(starts, len(bits)))
            runs = zip(lengths.tolist(), bits[starts].tolist(), strict=True)
            parts.append(f"#{colour}{''.join(f'!{length}{chr(63 + value)}' for length, value in runs)}$")
        parts.append("-")
    return "".join((*parts, "\x1b\\"))
