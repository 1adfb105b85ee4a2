"""Builds an object that has to be recognised: what a variant of its type draws, and the pieces that it is made of.

Builders (`kinds`) work in centimetres: x to the right, y up from what the thing stands on, z to the back, (0, 0, 0) in
the middle of its base.
"""

from __future__ import annotations

import colorsys
import math
import random
from collections.abc import Callable, Sequence
from functools import partialmethod
from typing import NamedTuple, TypeVar
from zlib import crc32

from alfworld_native.drawing.objects import Shape
from alfworld_native.drawing.shapes import Ball, Colour, Part, Slab, Tube

_T = TypeVar("_T")
_HELD_OUT = (2, 7)  # tenths of [0, 1) that are for held-out variants alone
_Point = tuple[float, float, float]
Outline = list[tuple[float, float]]


def pairs(*numbers: float) -> Outline:
    """Points of an outline: `pairs(0, 1, 2, 3)` is [(0, 1), (2, 3)]."""
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def circle(r: float, count: int = 12, x: float = 0.0, z: float = 0.0, squash: float = 1.0) -> Outline:
    """A circle of `count` points around (x, z), `squash` times as deep as wide."""
    turn = 2 * math.pi / count
    return [(x + r * math.cos(k * turn), z + r * squash * math.sin(k * turn)) for k in range(count)]


def half_turn(count: int) -> list[float]:
    """Angles from 0 to pi in `count` steps."""
    return [math.pi * k / count for k in range(count + 1)]


class Variant(NamedTuple):
    """Which look of a type: any `number`; of the held-out ones or of those for training."""

    number: int
    held_out: bool = False


class _Piece(NamedTuple):
    """A part in centimetres. `layer`: later layers are rendered over earlier ones, within one the farthest first."""

    layer: int
    points: tuple[_Point, ...]  # a slab's face; centres of a tube's ends; a ball's centre
    along: _Point  # a slab's push
    radii: tuple[float, float]  # of a tube's ends; a ball's radius and squash
    colour: Colour
    top: Colour | None = None


class Build:
    """A thing in the making: it draws numbers for one variant, and collects pieces."""

    def __init__(self, kind: str, variant: Variant):
        self._random = random.Random(crc32(f"{kind} {variant.number} {variant.held_out}".encode()))
        self._held_out = variant.held_out
        self._layer = 0
        self.pieces: list[_Piece] = []

    # ---- what a variant draws ---------------------------------------------------------------------------------------

    def some(self, low: float, high: float) -> float:
        """A number between the two, from the stripes of this kind of variant."""
        if self._held_out:
            tenth = _HELD_OUT[int(self._random.random() * len(_HELD_OUT))]
        else:
            tenth = int(self._random.random() * 8)
            tenth += (tenth >= _HELD_OUT[0]) + (tenth + 1 >= _HELD_OUT[1])
        return low + (high - low) * (tenth + self._random.random()) / 10

    def pick(self, choices: Sequence[_T]) -> _T:
        """One of `choices`."""
        return choices[int(self._random.random() * len(choices))]

    def chance(self, share: float) -> bool:
        """True in this share of the variants."""
        return self._random.random() < share

    def hue(self, low: float, high: float, saturation: tuple[float, float], value: tuple[float, float]) -> Colour:
        """A colour whose hue (0 red, 1/3 green, 2/3 blue), saturation and value lie in these ranges."""
        red, green, blue = colorsys.hsv_to_rgb(self.some(low, high) % 1.0, self.some(*saturation), self.some(*value))
        return int(red * 255), int(green * 255), int(blue * 255)

    # Materials: ranges of hue, saturation and value.
    any = partialmethod(hue, 0, 1, (0.05, 0.9), (0.35, 0.95))  # dyed, painted or glazed: any colour
    pale = partialmethod(hue, 0, 1, (0.0, 0.12), (0.85, 0.98))  # white, cream, light grey
    dark = partialmethod(hue, 0, 1, (0.0, 0.25), (0.1, 0.28))  # black, anthracite
    metal = partialmethod(hue, 0.5, 0.7, (0.02, 0.1), (0.6, 0.85))  # steel, aluminium: a little blue
    brass = partialmethod(hue, 0.07, 0.14, (0.45, 0.75), (0.65, 0.9))  # gold, brass, copper
    wood = partialmethod(hue, 0.05, 0.1, (0.35, 0.65), (0.35, 0.85))  # light to dark

    # ---- pieces -----------------------------------------------------------------------------------------------------

    def over(self) -> None:
        """What follows is rendered over what is there."""
        self._layer += 1

    def flat(self, outline: Sequence[tuple[float, float]], y0: float, y1: float, colour: Colour) -> None:
        """A level outline of points (x, z), from y0 up to y1."""
        face = tuple((x, y0, z) for x, z in outline)
        self.pieces.append(_Piece(self._layer, face, (0.0, y1 - y0, 0.0), (0, 0), colour))

    def upright(self, outline: Sequence[tuple[float, float]], z0: float, z1: float, colour: Colour) -> None:
        """An upright outline of points (x, y), from z0 back to z1."""
        face = tuple((x, y, z0) for x, y in outline)
        self.pieces.append(_Piece(self._layer, face, (0.0, 0.0, z1 - z0), (0, 0), colour))

    def slab(self, face: Sequence[_Point], along: _Point, colour: Colour) -> None:
        """Any outline, pushed along any vector."""
        self.pieces.append(_Piece(self._layer, tuple(face), along, (0, 0), colour))

    def box(self, x0: float, y0: float, z0: float, x1: float, y1: float, z1: float, colour: Colour) -> None:
        """A box between two corners."""
        # Pushed along its shorter side, so that its largest face is the one that is rendered as a whole.
        if y1 - y0 > z1 - z0:
            self.upright(pairs(x0, y0, x1, y0, x1, y1, x0, y1), z0, z1, colour)
        else:
            self.flat(pairs(x0, z0, x1, z0, x1, z1, x0, z1), y0, y1, colour)

    def tube(
        self,
        y0: float,
        r0: float,
        y1: float,
        r1: float,
        colour: Colour,
        top: Colour | None = None,
        x: float = 0.0,
        z: float = 0.0,
    ) -> None:
        """An upright round piece."""
        self.pieces.append(_Piece(self._layer, ((x, y0, z), (x, y1, z)), (0, 0, 0), (r0, r1), colour, top))

    def profile(self, rings: Sequence[tuple[float, float]], colour: Colour, top: Colour | None = None) -> None:
        """A turned body: rings of (height, radius) from the bottom up, `top` the colour of the uppermost."""
        for at, ((y0, r0), (y1, r1)) in enumerate(zip(rings, rings[1:], strict=False)):
            self.over()
            self.tube(y0, r0, y1, r1, colour, top if at == len(rings) - 2 else None)

    def banded(self, y0: float, r0: float, y1: float, r1: float, colour: Colour, top: Colour | None = None) -> None:
        """A round body, plain or with bands of a second colour."""
        kind = self.pick(("plain", "plain", "band", "bands", "foot"))
        second = self.any() if self.chance(0.6) else self.pale()
        cuts: tuple[float, ...] = {
            "plain": (0, 1),
            "band": (0, 0.35, 0.65, 1),
            "bands": (0, 0.2, 0.4, 0.6, 0.8, 1),
            "foot": (0, 0.3, 1),
        }[kind]
        for at, (low, high) in enumerate(zip(cuts, cuts[1:], strict=False)):
            self.over()
            tint = second if (at % 2 == 1 and kind != "foot") or (kind == "foot" and at == 0) else colour
            self.tube(
                y0 + (y1 - y0) * low,
                r0 + (r1 - r0) * low,
                y0 + (y1 - y0) * high,
                r0 + (r1 - r0) * high,
                tint,
                top if high == 1 else None,
            )

    def ball(self, x: float, y: float, z: float, r: float, colour: Colour, squash: float = 1.0) -> None:
        """A ball; its height is `squash` times its width."""
        self.pieces.append(_Piece(self._layer, ((x, y, z),), (0, 0, 0), (r, squash), colour))

    def ring(self, x: float, y: float, out: float, high: float, thick: float, colour: Colour, z: float = 0.0) -> None:
        """An upright half ring to the right of (x, y): a handle. `out` wide, `high` from end to end."""
        outer = [(x + out * math.sin(a), y - high / 2 * math.cos(a)) for a in half_turn(5)]
        inner = [(x + (out - thick) * math.sin(a), y - (high / 2 - thick) * math.cos(a)) for a in half_turn(5)]
        self.upright(outer + inner[::-1], z - thick / 2, z + thick / 2, colour)

    # ---- the whole --------------------------------------------------------------------------------------------------

    def shape(self, degrees: float) -> Shape:
        """All pieces, turned about the vertical axis, in the unit box of `shapes`."""
        sin, cos = math.sin(math.radians(degrees)), math.cos(math.radians(degrees))

        def turned(p: _Point) -> _Point:
            return p[0] * cos - p[2] * sin, p[1], p[0] * sin + p[2] * cos

        pieces = [
            piece._replace(points=tuple(map(turned, piece.points)), along=turned(piece.along)) for piece in self.pieces
        ]
        ends: list[_Point] = []  # points that bound all pieces
        for piece in pieces:
            if len(piece.points) > 2:  # a slab: its face, and the face at the other end of the push
                ax, ay, az = piece.along
                ends += [*piece.points, *((x + ax, y + ay, z + az) for x, y, z in piece.points)]
            elif len(piece.points) == 2:  # a tube: the squares around both ends
                for (x, y, z), r in zip(piece.points, piece.radii, strict=True):
                    ends += [(x - r, y, z - r), (x + r, y, z + r)]
            else:
                (x, y, z), (r, squash) = piece.points[0], piece.radii
                ends += [(x - r, y - r * squash, z - r), (x + r, y + r * squash, z + r)]
        low = [min(end[axis] for end in ends) for axis in range(3)]
        size = [max(end[axis] for end in ends) - low[axis] for axis in range(3)]

        def unit(p: _Point) -> _Point:
            x, y, z = ((p[axis] - low[axis]) / size[axis] for axis in range(3))
            return x, y, z

        pieces.sort(key=lambda piece: (piece.layer, -sum(p[2] for p in piece.points) / len(piece.points)))
        parts: list[Part] = []
        for piece in pieces:
            points = [unit(p) for p in piece.points]
            if len(points) == 1:
                u, v, w = points[0]
                parts.append(Ball(u, v, w, piece.radii[0] / size[0], piece.colour, piece.radii[1]))
            elif len(points) == 2:
                (u, v0, w), (_, v1, _) = points
                r0, r1 = piece.radii
                parts.append(Tube(u, w, v0, r0 / size[0], v1, r1 / size[0], piece.colour, piece.top))
            else:
                du, dv, dw = (piece.along[axis] / size[axis] for axis in range(3))
                parts.append(Slab(tuple(points), (du, dv, dw), piece.colour))
        return Shape((size[0] / 100, size[1] / 100, size[2] / 100), tuple(parts))


BUILDERS: dict[str, Callable[[Build], None]] = {}  # type of an object -> what builds it


def builds(kind: str) -> Callable[[Callable[[Build], None]], Callable[[Build], None]]:
    """Decorator: the function builds objects of the type `kind`."""

    def register(builder: Callable[[Build], None]) -> Callable[[Build], None]:
        BUILDERS[kind] = builder
        return builder

    return register
