"""The contact sheet of the varied objects (`looks`): every type, four training variants, then four held-out ones.

python -m alfworld_native.drawing.sheet --out docs/objects.png
"""

from __future__ import annotations

import argparse
from pathlib import Path

from PIL import Image, ImageDraw

from alfworld_native.drawing.build import Variant
from alfworld_native.drawing.geometry import oriented_box
from alfworld_native.drawing.ids import Pose
from alfworld_native.drawing.labels import font
from alfworld_native.drawing.looks import LOOKS, varied_shape
from alfworld_native.drawing.painter import Camera, apply_strokes, paint
from alfworld_native.drawing.scene import Solid
from alfworld_native.drawing.view import SCALE
from lavis.common.files import write_atomically
from lavis.common.program import run_program

_EACH = 4  # variants of a kind
_SIDE, _NAME, _COLUMNS = 64, 104, 2  # pixels of a picture and of a name; pairs of names and pictures side by side


def portrait(kind: str, variant: Variant, turn: int, side: int = _SIDE) -> Image.Image:
    """One object from above its front, as large as fits `side` pixels."""
    shape = varied_shape(kind, variant, turn)
    size = max(shape.size)
    eye = (0.0, shape.size[1] / 2 + size * 1.3, -size * 1.6)
    camera = Camera(eye, Pose(0, 0, 0, 39.0), side * SCALE * 1.35, (side * SCALE / 2, side * SCALE / 2))
    image = Image.new("RGB", (side * SCALE, side * SCALE), (222, 214, 204) if not variant.held_out else (206, 212, 222))
    canvas = ImageDraw.Draw(image)
    solid = Solid((kind, turn), kind, oriented_box((0, 0, 0), shape.size, (0, -1)), (0, -1), shape.parts)
    apply_strokes(canvas, paint(camera, solid))
    return image.reduce(SCALE)


def sheet() -> Image.Image:
    """All types in alphabetical order, down the columns."""
    kinds = sorted(LOOKS)
    rows = -(-len(kinds) // _COLUMNS)
    width = _NAME + 2 * _EACH * _SIDE
    image = Image.new("RGB", (width * _COLUMNS, _SIDE * rows), (250, 250, 248))
    canvas = ImageDraw.Draw(image)
    for number, kind in enumerate(kinds):
        column, row = divmod(number, rows)
        canvas.text((column * width + 6, row * _SIDE + _SIDE // 2 - 8), kind, font=font(13), fill=(20, 20, 24))
        for place in range(2 * _EACH):
            variant = Variant(place % _EACH, held_out=place >= _EACH)
            at = column * width + _NAME + place * _SIDE, row * _SIDE
            image.paste(portrait(kind, variant, turn=place), at)
    return image


def main() -> None:
    """Write the sheet."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True, type=Path, metavar="FILE.png")
    out = parser.parse_args().out
    picture = sheet().quantize(255)  # flat colours: a palette halves the file
    write_atomically(out, lambda file: picture.save(file, "PNG", optimize=True))


if __name__ == "__main__":
    run_program(main)
