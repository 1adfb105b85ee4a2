"""What things look like: typical sizes, parts and colours of ALFWorld's receptacle and object types.

A shape lives in a unit box seen from its front: `u` runs to the right, `v` up, `w` from the front (0) to the back (1).
Parts are drawn in the order given here, so write what is behind or below first. Sizes are metres (width, height,
depth). They are typical household sizes, held against where official games place things on and in each type.
Types are spelled as in the text the agent reads (`sinkbasin`, `desklamp`).
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple
from zlib import crc32

Colour = tuple[int, int, int]

WOOD, DARK_WOOD, PALE_WOOD = (166, 118, 74), (112, 76, 48), (205, 170, 125)
WHITE, CREAM, GREY, DARK, BLACK = (238, 238, 236), (232, 222, 196), (150, 152, 156), (70, 72, 78), (34, 34, 38)
STEEL, STONE, GLASS, SKY = (186, 192, 200), (196, 192, 184), (190, 220, 226), (165, 208, 240)
RED, ORANGE, YELLOW, GREEN, LEAF = (200, 48, 44), (228, 132, 40), (240, 204, 70), (70, 150, 74), (96, 168, 64)
BLUE, NAVY, PURPLE, PINK, BROWN = (66, 112, 190), (46, 60, 110), (132, 84, 160), (232, 160, 176), (134, 88, 50)
TAN, GOLD, TEAL = (206, 172, 122), (206, 164, 60), (60, 150, 150)


class Block(NamedTuple):
    """A box between two corners of the unit box."""

    u0: float
    v0: float
    w0: float
    u1: float
    v1: float
    w1: float
    colour: Colour


class Tube(NamedTuple):
    """An upright round solid, from height `v0` (radius `r0`) to `v1` (`r1`); radii are shares of the width.

    `top` is the colour of its upper end; a dark one makes it hollow.
    """

    u: float
    w: float
    v0: float
    r0: float
    v1: float
    r1: float
    colour: Colour
    top: Colour | None = None


class Ball(NamedTuple):
    """A sphere; the radius is a share of the width, `squash` its height over its width."""

    u: float
    v: float
    w: float
    r: float
    colour: Colour
    squash: float = 1.0


Part = Block | Tube | Ball


class Shape(NamedTuple):
    """`size` (width, height, depth) in metres and the parts of a thing; `flat` things hang on the nearest wall."""

    size: tuple[float, float, float]
    parts: tuple[Part, ...]
    flat: bool = False


class Furniture(NamedTuple):
    """How a receptacle type is built.

    `kind`: `surface` (things lie on it), `front` (opens to the front), `top` (open above), `drawer` (slides out), or
    `wall` (a small holder). `anchor` says where the id's point is: `floor` (on the ground, or the upper face if high
    up), `base`, `top`, `centre`, or `hinge` (the door's hinge, cabinets). `reach` is how far beyond the typical size a
    real one may extend, metres.
    """

    kind: str
    anchor: str
    size: tuple[float, float, float]
    colour: Colour
    parts: tuple[Part, ...] = ()
    legs: tuple[Part, ...] = ()
    seat: float = 1.0  # height of what things lie on, as a share of the whole
    reach: float = 0.1
    spot: tuple[float, float, float, float] = (0.0, 0.0, 1.0, 1.0)  # u0, w0, u1, w1 of where things lie
    backed: bool = False  # stands with its back to the wall, wherever the agent looks at it from


def _block(colour: Colour, u0=0.0, v0=0.0, w0=0.0, u1=1.0, v1=1.0, w1=1.0) -> Block:
    return Block(u0, v0, w0, u1, v1, w1, colour)


def _legs(colour: Colour, thick: float = 0.07) -> tuple[Block, ...]:
    far = 1 - thick
    corners = ((far, far), (0.0, far), (far, 0.0), (0.0, 0.0))
    return tuple(Block(u, 0, w, u + thick, 1, w + thick, colour) for u, w in corners)


def _table(colour: Colour) -> dict:
    """A slab on four legs; the slab is the top 5 cm, `frames` splits the two so that things fit under the slab."""
    return {"parts": (_block(colour),), "legs": _legs(tuple(c * 3 // 4 for c in colour))}


def _sofa(colour: Colour) -> tuple[Part, ...]:
    dark = tuple(c * 7 // 8 for c in colour)
    back, left = _block(dark, w0=0.72), _block(dark, u1=0.14, v1=0.72)
    return (back, _block(colour, u0=0.14, u1=0.86, v1=0.5, w1=0.72), left, _block(dark, u0=0.86, v1=0.72))


_BED = (
    _block(DARK_WOOD, v1=0.45),
    _block((120, 146, 190), v0=0.45, v1=0.68, w1=0.7),
    _block(WHITE, v0=0.45, v1=0.68, w0=0.7, w1=0.96),
    _block(DARK_WOOD, w0=0.96),
)
_TOILET = (
    Tube(0.5, 0.35, 0, 0.3, 0.4, 0.44, WHITE, WHITE),
    Tube(0.5, 0.35, 0.4, 0.46, 0.44, 0.46, WHITE, STEEL),
    _block(WHITE, w0=0.7, v0=0.3),
)
_COFFEE_MACHINE = (
    _block(DARK, v1=0.1),
    _block(DARK, v0=0.1, w0=0.6),
    _block(BLACK, v0=0.68, w1=0.6),
    _block(RED, u0=0.42, u1=0.58, v0=0.8, v1=0.88, w0=-0.02, w1=0.0),
)
_TOASTER = (
    _block(STEEL),
    _block(BLACK, u0=0.1, u1=0.9, v0=0.99, v1=1.0, w0=0.2, w1=0.4),
    _block(BLACK, u0=0.1, u1=0.9, v0=0.99, v1=1.0, w0=0.6, w1=0.8),
)
_BURNER = (
    Tube(0.5, 0.5, 0.0, 0.5, 0.6, 0.5, BLACK, DARK),
    Tube(0.5, 0.5, 0.6, 0.32, 0.7, 0.32, GREY, BLACK),
)
_CART = (_block(STEEL, v0=0.22, v1=0.27), *_legs(GREY, 0.06), _block(STEEL, v0=0.95))
_BAR = (_block(STEEL, v0=0.4, v1=0.6, w0=0.0, w1=0.3), _block(GREY, u1=0.1, w0=0.3), _block(GREY, u0=0.9, w0=0.3))

_SEAT = (0.14, 0.0, 0.86, 0.72)

FURNITURE: dict[str, Furniture] = {
    "armchair": Furniture(
        "surface", "floor", (0.8, 0.88, 0.8), TEAL, _sofa((92, 138, 140)), seat=0.5, spot=_SEAT, backed=True
    ),
    "bathtubbasin": Furniture("top", "rim", (1.5, 0.5, 0.75), WHITE),
    "bed": Furniture("surface", "floor", (1.6, 0.85, 1.9), BLUE, _BED, seat=0.68, reach=0.3, backed=True),
    "cabinet": Furniture("front", "hinge", (0.44, 0.66, 0.5), PALE_WOOD),
    "cart": Furniture("surface", "floor", (0.5, 0.86, 0.36), STEEL, _CART),
    "coffeemachine": Furniture(
        "surface", "base", (0.26, 0.34, 0.34), DARK, _COFFEE_MACHINE, seat=0.1, spot=(0.2, 0.0, 0.8, 0.6)
    ),
    "coffeetable": Furniture("surface", "floor", (1.0, 0.42, 0.65), WOOD, reach=0.4, **_table(WOOD)),
    "countertop": Furniture("surface", "counter", (0.9, 0.94, 0.62), STONE, (_block(STONE),), reach=1.6),
    "desk": Furniture("surface", "floor", (1.3, 0.76, 0.6), WOOD, reach=0.5, **_table(WOOD)),
    "diningtable": Furniture("surface", "floor", (1.2, 0.78, 0.9), BROWN, reach=0.4, **_table(BROWN)),
    "drawer": Furniture("drawer", "centre", (0.44, 0.17, 0.46), WOOD),
    "dresser": Furniture("surface", "floor", (1.2, 0.84, 0.48), DARK_WOOD, (_block(DARK_WOOD),), reach=0.4),
    "fridge": Furniture("front", "floor", (0.8, 1.8, 0.66), (214, 220, 224)),
    "garbagecan": Furniture("top", "floor", (0.32, 0.42, 0.32), (96, 102, 112)),
    "handtowelholder": Furniture("wall", "centre", (0.22, 0.08, 0.08), STEEL, _BAR),
    "laundryhamper": Furniture("top", "floor", (0.42, 0.55, 0.42), TAN),
    "microwave": Furniture("front", "base", (0.5, 0.3, 0.38), (84, 88, 96)),
    "ottoman": Furniture("surface", "floor", (0.65, 0.43, 0.65), TAN, (_block(TAN),)),
    "safe": Furniture("front", "base", (0.42, 0.38, 0.4), (92, 104, 96)),
    "shelf": Furniture("surface", "top", (0.7, 0.03, 0.28), PALE_WOOD, (_block(PALE_WOOD),), reach=0.4),
    "sidetable": Furniture("surface", "floor", (0.62, 0.62, 0.42), WOOD, reach=0.25, **_table(WOOD)),
    "sinkbasin": Furniture("top", "rim", (0.52, 0.2, 0.38), STEEL),
    "sofa": Furniture(
        "surface", "floor", (1.9, 0.85, 0.9), NAVY, _sofa((104, 118, 156)), seat=0.5, reach=0.2, spot=_SEAT, backed=True
    ),
    "stoveburner": Furniture("surface", "base", (0.22, 0.03, 0.22), BLACK, _BURNER),
    "toaster": Furniture("surface", "base", (0.3, 0.2, 0.18), STEEL, _TOASTER),
    "toilet": Furniture("surface", "floor", (0.44, 0.95, 0.7), WHITE, _TOILET, spot=(0.0, 0.7, 1.0, 1.0), backed=True),
    "toiletpaperhanger": Furniture("wall", "centre", (0.16, 0.06, 0.1), STEEL, _BAR),
    "towelholder": Furniture("wall", "centre", (0.55, 0.08, 0.1), STEEL, _BAR),
    "tvstand": Furniture("surface", "floor", (1.2, 0.6, 0.42), DARK_WOOD, (_block(DARK_WOOD),), reach=0.3),
}
_ANY_FURNITURE = Furniture("surface", "floor", (0.6, 0.6, 0.5), WOOD, (_block(WOOD),))


def _bottle(colour: Colour, cap: Colour) -> tuple[Part, ...]:
    body = Tube(0.5, 0.5, 0.0, 0.5, 0.62, 0.5, colour)
    return (body, Tube(0.5, 0.5, 0.62, 0.4, 0.78, 0.2, colour), Tube(0.5, 0.5, 0.78, 0.2, 1.0, 0.2, cap))


def _cutlery(blade: Colour, handle: Colour, head: float) -> tuple[Part, ...]:
    """Lies across, its head to the left."""
    return (
        _block(blade, u1=0.3, w0=0.5 - head / 2, w1=0.5 + head / 2),
        _block(blade, u0=0.3, u1=0.55, w0=0.4, w1=0.6),
        _block(handle, u0=0.55, w0=0.32, w1=0.68),
    )


def _pan(depth_colour: Colour, lid: Colour) -> tuple[Part, ...]:
    return (
        Tube(0.36, 0.5, 0.0, 0.32, 1.0, 0.36, depth_colour, lid),
        _block(BLACK, u0=0.72, u1=1.0, v0=0.7, v1=0.95, w0=0.44, w1=0.56),
    )


def _lamp(base: Colour, shade: Colour) -> tuple[Part, ...]:
    return (
        Tube(0.5, 0.5, 0.0, 0.4, 0.06, 0.4, base),
        Tube(0.5, 0.5, 0.06, 0.06, 0.62, 0.06, base),
        Tube(0.5, 0.5, 0.6, 0.5, 1.0, 0.3, shade),
    )


def _frame(frame: Colour, inner: Colour) -> tuple[Part, ...]:
    return (_block(frame), _block(inner, u0=0.07, u1=0.93, v0=0.07, v1=0.93, w0=-0.05, w1=0.0))


_WINDOW = (
    *_frame(WHITE, SKY),
    _block(WHITE, u0=0.47, u1=0.53, v0=0.05, v1=0.95, w0=-0.08, w1=-0.05),
    _block(WHITE, u0=0.05, u1=0.95, v0=0.47, v1=0.53, w0=-0.08, w1=-0.05),
)
_CHAIR = (
    *(leg._replace(v1=0.46) for leg in _legs(BROWN, 0.1)),
    _block(WOOD, v0=0.44, v1=0.52),
    _block(WOOD, v0=0.52, w0=0.9),
)
_PLANT = (
    Tube(0.5, 0.5, 0.0, 0.22, 0.4, 0.3, (176, 96, 64), BROWN),
    Ball(0.3, 0.65, 0.6, 0.26, GREEN),
    Ball(0.7, 0.62, 0.5, 0.26, LEAF),
    Ball(0.5, 0.8, 0.45, 0.26, GREEN),
)
_BEAR = (
    Ball(0.5, 0.3, 0.5, 0.36, BROWN),
    Ball(0.28, 0.92, 0.5, 0.12, BROWN),
    Ball(0.72, 0.92, 0.5, 0.12, BROWN),
    Ball(0.5, 0.72, 0.5, 0.28, TAN),
)
_LAPTOP = (
    _block(DARK, v0=0.08, w0=0.9),
    _block(SKY, u0=0.06, u1=0.94, v0=0.2, v1=0.92, w0=0.88, w1=0.9),
    _block(GREY, v1=0.08, w1=0.9),
    _block(BLACK, u0=0.1, u1=0.9, v0=0.08, v1=0.09, w0=0.35, w1=0.75),
)
_CLOCK = (_block(RED), _block(WHITE, u0=0.12, u1=0.88, v0=0.2, v1=0.8, w0=-0.05, w1=0.0))
_TISSUES = (_block(TEAL, v1=0.7), Tube(0.5, 0.5, 0.7, 0.16, 1.0, 0.3, WHITE, WHITE))
_SPRAY = (
    Tube(0.5, 0.5, 0.0, 0.4, 0.6, 0.4, (90, 170, 210)),
    Tube(0.5, 0.5, 0.6, 0.2, 0.8, 0.14, (90, 170, 210)),
    _block(ORANGE, u0=0.0, u1=0.7, v0=0.8, v1=1.0, w0=0.35, w1=0.65),
)
_KETTLE = (
    Tube(0.45, 0.5, 0.0, 0.44, 0.75, 0.28, STEEL, GREY),
    _block(STEEL, u0=0.8, u1=1.0, v0=0.4, v1=0.65, w0=0.44, w1=0.56),
    _block(BLACK, u0=0.2, u1=0.7, v0=0.88, v1=1.0, w0=0.42, w1=0.58),
)
_CAN = (
    Tube(0.4, 0.5, 0.0, 0.36, 0.8, 0.34, (80, 140, 110), DARK),
    _block((80, 140, 110), u0=0.72, u1=1.0, v0=0.55, v1=0.7, w0=0.45, w1=0.55),
)
_STATUE = (_block(DARK, v1=0.14), Tube(0.5, 0.5, 0.14, 0.3, 0.72, 0.18, GOLD), Ball(0.5, 0.84, 0.5, 0.24, GOLD))
_VASE = (
    Tube(0.5, 0.5, 0.0, 0.25, 0.45, 0.5, PURPLE),
    Tube(0.5, 0.5, 0.45, 0.5, 0.85, 0.2, PURPLE),
    Tube(0.5, 0.5, 0.85, 0.2, 1.0, 0.3, PURPLE, BLACK),
)
_CANDLE = (Tube(0.5, 0.5, 0.0, 0.5, 0.85, 0.5, CREAM, YELLOW), _block(BLACK, 0.46, 0.85, 0.46, 0.54, 1.0, 0.54))
_FAUCET = (
    Tube(0.5, 0.7, 0.0, 0.16, 0.9, 0.12, STEEL),
    _block(STEEL, u0=0.4, u1=0.6, v0=0.85, v1=1.0, w0=0.0, w1=0.8),
)
_PLUNGER = (Tube(0.5, 0.5, 0.0, 0.5, 0.25, 0.3, RED), Tube(0.5, 0.5, 0.25, 0.1, 1.0, 0.1, TAN))
_BRUSH = (Tube(0.5, 0.5, 0.0, 0.5, 0.3, 0.4, WHITE), Tube(0.5, 0.5, 0.3, 0.1, 1.0, 0.1, WHITE))
_LETTUCE = (
    Ball(0.5, 0.5, 0.5, 0.5, LEAF),
    Ball(0.35, 0.6, 0.3, 0.25, (140, 200, 96)),
    Ball(0.65, 0.7, 0.4, 0.22, GREEN),
)
_CUP_LIKE = {"mug": (200, 90, 60), "cup": (110, 170, 220)}
_MUG = (
    _block(_CUP_LIKE["mug"], u0=0.78, u1=1.0, v0=0.25, v1=0.8, w0=0.42, w1=0.58),
    Tube(0.42, 0.5, 0.0, 0.38, 1.0, 0.42, _CUP_LIKE["mug"], (90, 40, 30)),
)
_RACKET = (_block(BLUE, u1=0.6, v1=1.0), _block(BLACK, u0=0.6, v0=0.2, v1=0.8, w0=0.42, w1=0.58))
_KEYS = (
    Ball(0.25, 0.5, 0.5, 0.22, GOLD, 0.6),
    _block(GOLD, u0=0.4, v1=0.7, w0=0.3, w1=0.5),
    _block(STEEL, u0=0.4, v1=0.7, w0=0.6, w1=0.8),
)
_WATCH = (_block(BROWN, w0=0.3, w1=0.7, v1=0.5), Tube(0.5, 0.5, 0.3, 0.34, 1.0, 0.34, GOLD, WHITE))
_CD = (Tube(0.5, 0.5, 0.0, 0.5, 1.0, 0.5, STEEL, (200, 190, 230)), Tube(0.5, 0.5, 1.0, 0.14, 1.0, 0.14, DARK, DARK))
_PLATE = (Tube(0.5, 0.5, 0.0, 0.34, 1.0, 0.5, WHITE, (222, 226, 232)), Tube(0.5, 0.5, 1.0, 0.3, 1.0, 0.3, WHITE, WHITE))
_ROLL = (Tube(0.5, 0.5, 0.0, 0.5, 1.0, 0.5, WHITE, WHITE), Tube(0.5, 0.5, 1.0, 0.18, 1.0, 0.18, TAN, BROWN))
_BOOK = (
    _block(RED),
    _block(CREAM, u0=0.03, v0=0.15, v1=0.85, w0=-0.02, w1=0.0),
    _block(GOLD, u0=0.25, u1=0.75, v0=1.0, v1=1.01, w0=0.4, w1=0.6),
)
_PHONE = (_block(BLACK), _block(SKY, u0=0.1, u1=0.9, v0=1.0, v1=1.02, w0=0.1, w1=0.9))
_REMOTE = (
    _block(BLACK),
    _block(RED, u0=0.1, u1=0.3, v0=1.0, v1=1.05, w0=0.3, w1=0.7),
    _block(GREY, u0=0.4, u1=0.9, v0=1.0, v1=1.05, w0=0.2, w1=0.8),
)
_CARD = (_block((60, 110, 190)), _block(GOLD, u0=0.1, u1=0.35, v0=1.0, v1=1.1, w0=0.4, w1=0.75))
_PAPER = (
    _block((214, 212, 204)),
    _block(DARK, u0=0.08, u1=0.92, v0=1.0, v1=1.02, w0=0.75, w1=0.9),
    _block(GREY, u0=0.08, u1=0.45, v0=1.0, v1=1.02, w0=0.15, w1=0.6),
)
_BOX = (_block((190, 146, 96)), _block((226, 200, 150), u0=0.44, u1=0.56, v0=1.0, v1=1.01))


def _shaker(colour: Colour) -> tuple[Part, ...]:
    return (Tube(0.5, 0.5, 0.0, 0.5, 0.7, 0.4, colour), Tube(0.5, 0.5, 0.7, 0.42, 1.0, 0.3, STEEL, GREY))


def _ball(colour: Colour, stalk: bool = False, squash: float = 1.0) -> tuple[Part, ...]:
    ball = (Ball(0.5, 0.5, 0.5, 0.5, colour, squash),)
    return (*ball, _block(BROWN, u0=0.46, u1=0.54, v0=0.95, v1=1.2, w0=0.46, w1=0.54)) if stalk else ball


def _cup(colour: Colour, inside: Colour) -> tuple[Part, ...]:
    return (Tube(0.5, 0.5, 0.0, 0.36, 1.0, 0.5, colour, inside),)


OBJECTS: dict[str, Shape] = {
    "alarmclock": Shape((0.14, 0.11, 0.07), _CLOCK),
    "apple": Shape((0.09, 0.09, 0.09), _ball(RED, stalk=True)),
    "baseballbat": Shape((0.08, 0.75, 0.08), (Tube(0.5, 0.5, 0.0, 0.25, 1.0, 0.5, TAN),)),
    "basketball": Shape((0.24, 0.24, 0.24), _ball(ORANGE)),
    "blinds": Shape((1.0, 0.18, 0.06), (_block(CREAM),), flat=True),
    "book": Shape((0.2, 0.05, 0.26), _BOOK),
    "boots": Shape((0.28, 0.26, 0.28), (_block(BROWN, u1=0.42), _block(BROWN, u0=0.58))),
    "bowl": Shape((0.17, 0.08, 0.17), _cup((226, 180, 90), (170, 128, 60))),
    "box": Shape((0.36, 0.26, 0.3), _BOX),
    "bread": Shape(
        (0.26, 0.12, 0.12), (_block((196, 138, 72), v1=0.8), _block((214, 160, 92), u0=0.04, u1=0.96, v0=0.8))
    ),
    "butterknife": Shape((0.24, 0.015, 0.03), _cutlery(STEEL, GREY, 0.7)),
    "candle": Shape((0.07, 0.14, 0.07), _CANDLE),
    "cd": Shape((0.13, 0.012, 0.13), _CD),
    "cellphone": Shape((0.08, 0.02, 0.15), _PHONE),
    "chair": Shape((0.44, 0.9, 0.44), _CHAIR),
    "cloth": Shape((0.2, 0.03, 0.18), (_block((110, 150, 200)),)),
    "creditcard": Shape((0.09, 0.012, 0.06), _CARD),
    "cup": Shape((0.09, 0.12, 0.09), _cup(_CUP_LIKE["cup"], NAVY)),
    "curtains": Shape((1.2, 1.6, 0.08), (_block((170, 110, 110)),), flat=True),
    "desklamp": Shape((0.22, 0.46, 0.22), _lamp(DARK, (222, 196, 140))),
    "dishsponge": Shape((0.11, 0.05, 0.08), (_block(YELLOW, v1=0.7), _block(GREEN, v0=0.7))),
    "egg": Shape((0.06, 0.075, 0.06), _ball((240, 222, 190), squash=1.25)),
    "faucet": Shape((0.12, 0.26, 0.2), _FAUCET),
    "floorlamp": Shape((0.4, 1.55, 0.4), _lamp(DARK, (222, 196, 140))),
    "footstool": Shape((0.45, 0.4, 0.45), (_block(TAN),)),
    "fork": Shape((0.2, 0.015, 0.035), _cutlery(STEEL, STEEL, 1.0)),
    "glassbottle": Shape((0.08, 0.26, 0.08), _bottle((120, 180, 150), GREEN)),
    "handtowel": Shape((0.24, 0.34, 0.04), (_block((224, 140, 120)), _block(CREAM, v0=0.08, v1=0.16, w0=-0.1, w1=0.0))),
    "houseplant": Shape((0.32, 0.5, 0.32), _PLANT),
    "kettle": Shape((0.24, 0.2, 0.2), _KETTLE),
    "keychain": Shape((0.1, 0.02, 0.07), _KEYS),
    "knife": Shape((0.3, 0.015, 0.045), _cutlery(STEEL, BLACK, 1.0)),
    "ladle": Shape((0.3, 0.05, 0.08), _cutlery(GREY, BLACK, 1.0)),
    "lamp": Shape((0.24, 0.48, 0.24), _lamp(DARK, (222, 196, 140))),
    "laptop": Shape((0.34, 0.24, 0.28), _LAPTOP),
    "lettuce": Shape((0.17, 0.15, 0.17), _LETTUCE),
    "lightswitch": Shape((0.1, 0.13, 0.02), _frame(WHITE, CREAM), flat=True),
    "mirror": Shape((0.8, 0.9, 0.04), _frame(GOLD, (206, 222, 230)), flat=True),
    "mug": Shape((0.12, 0.1, 0.09), _MUG),
    "newspaper": Shape((0.34, 0.02, 0.24), _PAPER),
    "painting": Shape((0.7, 0.55, 0.04), _frame(DARK_WOOD, (120, 160, 150)), flat=True),
    "pan": Shape((0.4, 0.055, 0.26), _pan(DARK, BLACK)),
    "papertowel": Shape((0.13, 0.26, 0.13), _ROLL),
    "papertowelroll": Shape((0.13, 0.26, 0.13), _ROLL),
    "pen": Shape((0.15, 0.014, 0.014), (_block(BLUE, u1=0.8), _block(BLACK, u0=0.8))),
    "pencil": Shape((0.17, 0.014, 0.014), (_block(YELLOW, u0=0.15), _block(TAN, u1=0.15))),
    "peppershaker": Shape((0.06, 0.12, 0.06), _shaker(BLACK)),
    "pillow": Shape(
        (0.48, 0.16, 0.34), (_block((206, 190, 216), v1=0.9), _block((220, 206, 228), 0.06, 0.9, 0.06, 0.94, 1.0, 0.94))
    ),
    "plate": Shape((0.24, 0.025, 0.24), _PLATE),
    "plunger": Shape((0.16, 0.55, 0.16), _PLUNGER),
    "poster": Shape((0.6, 0.8, 0.02), _frame(CREAM, PINK), flat=True),
    "pot": Shape((0.34, 0.15, 0.26), _pan(STEEL, DARK)),
    "potato": Shape((0.11, 0.07, 0.08), _ball((178, 134, 84), squash=0.7)),
    "remotecontrol": Shape((0.18, 0.025, 0.055), _REMOTE),
    "saltshaker": Shape((0.06, 0.12, 0.06), _shaker(WHITE)),
    "scrubbrush": Shape((0.12, 0.4, 0.12), _BRUSH),
    "showercurtain": Shape((1.0, 1.7, 0.06), (_block((150, 190, 200)),), flat=True),
    "showerdoor": Shape((0.8, 1.8, 0.04), _frame(STEEL, GLASS), flat=True),
    "showerglass": Shape((0.8, 1.8, 0.04), _frame(STEEL, GLASS), flat=True),
    "showerhead": Shape((0.16, 0.12, 0.16), (Tube(0.5, 0.5, 0.0, 0.5, 1.0, 0.2, STEEL),)),
    "soapbar": Shape((0.1, 0.035, 0.065), (_block(PINK),)),
    "soapbottle": Shape((0.08, 0.2, 0.08), _bottle((150, 110, 190), WHITE)),
    "spatula": Shape((0.32, 0.02, 0.09), _cutlery(BLACK, RED, 1.0)),
    "spoon": Shape((0.18, 0.018, 0.04), _cutlery(STEEL, STEEL, 0.9)),
    "spraybottle": Shape((0.12, 0.25, 0.09), _SPRAY),
    "statue": Shape((0.16, 0.3, 0.16), _STATUE),
    "stoveknob": Shape((0.05, 0.05, 0.03), (_block(BLACK),), flat=True),
    "teddybear": Shape((0.3, 0.36, 0.26), _BEAR),
    "television": Shape((0.95, 0.58, 0.08), _frame(BLACK, (40, 52, 70))),
    "tennisracket": Shape((0.66, 0.03, 0.26), _RACKET),
    "tissuebox": Shape((0.22, 0.13, 0.13), _TISSUES),
    "toiletpaper": Shape((0.12, 0.11, 0.12), _ROLL),
    "toiletpaperroll": Shape((0.12, 0.11, 0.12), _ROLL),
    "tomato": Shape((0.09, 0.08, 0.09), _ball((222, 62, 40), stalk=True, squash=0.85)),
    "towel": Shape((0.5, 0.55, 0.05), (_block((120, 170, 200)), _block(CREAM, v0=0.08, v1=0.14, w0=-0.1, w1=0.0))),
    "vase": Shape((0.14, 0.28, 0.14), _VASE),
    "watch": Shape((0.1, 0.03, 0.1), _WATCH),
    "wateringcan": Shape((0.3, 0.26, 0.2), _CAN),
    "window": Shape((1.0, 1.1, 0.06), _WINDOW, flat=True),
    "winebottle": Shape((0.085, 0.3, 0.085), _bottle((44, 84, 56), (120, 30, 40))),
}
# Parts of the fabric of the room whose basin, body or frame is drawn as something else.
NOT_DRAWN = frozenset({"sink", "bathtub", "laundryhamperlid"})
# Belong to the room and are never spoken of in the text.
FIXTURES = frozenset(
    "blinds chair curtains faucet footstool houseplant lightswitch mirror painting plunger poster scrubbrush "
    "showercurtain showerdoor showerglass showerhead stoveknob window".split()
)
FLESH = {
    "apple": (244, 232, 190),
    "bread": (240, 216, 168),
    "egg": (250, 204, 80),
    "lettuce": (206, 230, 160),
    "potato": (240, 220, 160),
    "tomato": (240, 120, 90),
}


def furniture(kind: str) -> Furniture:
    """How a receptacle of type `kind` is built; an unknown type is a plain wooden block."""
    return FURNITURE.get(kind, _ANY_FURNITURE)


@lru_cache(maxsize=512)
def object_shape(kind: str, sliced: bool = False) -> Shape:
    """What an object of type `kind` looks like; an unknown type is a small block in a colour of its own."""
    shape = OBJECTS.get(kind)
    if shape is None:
        code = crc32(kind.encode())
        shape = Shape(
            (0.14, 0.12, 0.12), (_block((90 + code % 130, 90 + code // 130 % 130, 90 + code // 16900 % 130)),)
        )
    if not sliced:
        return shape
    skin, flesh = shape.parts[0].colour, FLESH.get(kind, CREAM)
    slices = []
    for start in (0.0, 0.38, 0.76):
        slices.append(_block(skin, u0=start, u1=start + 0.24, v1=0.9))
        slices.append(_block(flesh, u0=start + 0.03, u1=start + 0.21, v0=0.9, v1=0.92, w0=0.08, w1=0.92))
    return shape._replace(size=(max(shape.size[0], 0.14), shape.size[1], shape.size[2]), parts=tuple(slices))
