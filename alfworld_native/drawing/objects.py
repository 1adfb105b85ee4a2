"""What ALFWorld's objects look like: typical sizes, parts and colours, by the type's name in the text (`desklamp`).

Sizes are metres (width, height, depth).
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple
from zlib import crc32

from alfworld_native.drawing.shapes import (
    BLACK,
    BLUE,
    BROWN,
    CREAM,
    DARK,
    DARK_WOOD,
    GLASS,
    GOLD,
    GREEN,
    GREY,
    LEAF,
    NAVY,
    ORANGE,
    PINK,
    PURPLE,
    RED,
    SKY,
    STEEL,
    TAN,
    TEAL,
    WHITE,
    WOOD,
    YELLOW,
    Ball,
    Colour,
    Part,
    Tube,
    block,
    legs,
)


class Shape(NamedTuple):
    """`size` (width, height, depth) in metres and the parts of a thing; `flat` things hang on the nearest wall."""

    size: tuple[float, float, float]
    parts: tuple[Part, ...]
    flat: bool = False


def _bottle(colour: Colour, cap: Colour) -> tuple[Part, ...]:
    # Body, shoulder, cap.
    body = Tube(0.5, 0.5, 0.0, 0.5, 0.62, 0.5, colour)
    return (body, Tube(0.5, 0.5, 0.62, 0.4, 0.78, 0.2, colour), Tube(0.5, 0.5, 0.78, 0.2, 1.0, 0.2, cap))


def _cutlery(blade: Colour, handle: Colour, head: float) -> tuple[Part, ...]:
    """Lies across, its head to the left."""
    return (
        block(blade, u1=0.3, w0=0.5 - head / 2, w1=0.5 + head / 2),
        block(blade, u0=0.3, u1=0.55, w0=0.4, w1=0.6),
        block(handle, u0=0.55, w0=0.32, w1=0.68),
    )


def _pan(depth_colour: Colour, lid: Colour) -> tuple[Part, ...]:
    return (
        # The vessel, then its handle at the right.
        Tube(0.36, 0.5, 0.0, 0.32, 1.0, 0.36, depth_colour, lid),
        block(BLACK, u0=0.72, u1=1.0, v0=0.7, v1=0.95, w0=0.44, w1=0.56),
    )


def _lamp(base: Colour, shade: Colour) -> tuple[Part, ...]:
    return (
        Tube(0.5, 0.5, 0.0, 0.4, 0.06, 0.4, base),
        Tube(0.5, 0.5, 0.06, 0.06, 0.62, 0.06, base),
        Tube(0.5, 0.5, 0.6, 0.5, 1.0, 0.3, shade),
    )


def _frame(frame: Colour, inner: Colour) -> tuple[Part, ...]:
    return (block(frame), block(inner, u0=0.07, u1=0.93, v0=0.07, v1=0.93, w0=-0.05, w1=0.0))


_WINDOW = (
    *_frame(WHITE, SKY),
    block(WHITE, u0=0.47, u1=0.53, v0=0.05, v1=0.95, w0=-0.08, w1=-0.05),
    block(WHITE, u0=0.05, u1=0.95, v0=0.47, v1=0.53, w0=-0.08, w1=-0.05),
)
_CHAIR = (
    *(leg._replace(v1=0.46) for leg in legs(BROWN, 0.1)),
    block(WOOD, v0=0.44, v1=0.52),
    block(WOOD, v0=0.52, w0=0.9),
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
    block(DARK, v0=0.08, w0=0.9),
    block(SKY, u0=0.06, u1=0.94, v0=0.2, v1=0.92, w0=0.88, w1=0.9),
    block(GREY, v1=0.08, w1=0.9),
    block(BLACK, u0=0.1, u1=0.9, v0=0.08, v1=0.09, w0=0.35, w1=0.75),
)
_CLOCK = (block(RED), block(WHITE, u0=0.12, u1=0.88, v0=0.2, v1=0.8, w0=-0.05, w1=0.0))
_TISSUES = (block(TEAL, v1=0.7), Tube(0.5, 0.5, 0.7, 0.16, 1.0, 0.3, WHITE, WHITE))
_SPRAY = (
    Tube(0.5, 0.5, 0.0, 0.4, 0.6, 0.4, (90, 170, 210)),
    Tube(0.5, 0.5, 0.6, 0.2, 0.8, 0.14, (90, 170, 210)),
    block(ORANGE, u0=0.0, u1=0.7, v0=0.8, v1=1.0, w0=0.35, w1=0.65),
)
_KETTLE = (
    Tube(0.45, 0.5, 0.0, 0.44, 0.75, 0.28, STEEL, GREY),
    block(STEEL, u0=0.8, u1=1.0, v0=0.4, v1=0.65, w0=0.44, w1=0.56),
    block(BLACK, u0=0.2, u1=0.7, v0=0.88, v1=1.0, w0=0.42, w1=0.58),
)
_CAN = (
    Tube(0.4, 0.5, 0.0, 0.36, 0.8, 0.34, (80, 140, 110), DARK),
    block((80, 140, 110), u0=0.72, u1=1.0, v0=0.55, v1=0.7, w0=0.45, w1=0.55),
)
_STATUE = (block(DARK, v1=0.14), Tube(0.5, 0.5, 0.14, 0.3, 0.72, 0.18, GOLD), Ball(0.5, 0.84, 0.5, 0.24, GOLD))
_VASE = (
    Tube(0.5, 0.5, 0.0, 0.25, 0.45, 0.5, PURPLE),
    Tube(0.5, 0.5, 0.45, 0.5, 0.85, 0.2, PURPLE),
    Tube(0.5, 0.5, 0.85, 0.2, 1.0, 0.3, PURPLE, BLACK),
)
_CANDLE = (Tube(0.5, 0.5, 0.0, 0.5, 0.85, 0.5, CREAM, YELLOW), block(BLACK, 0.46, 0.85, 0.46, 0.54, 1.0, 0.54))
_FAUCET = (
    Tube(0.5, 0.7, 0.0, 0.16, 0.9, 0.12, STEEL),
    block(STEEL, u0=0.4, u1=0.6, v0=0.85, v1=1.0, w0=0.0, w1=0.8),
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
    block(_CUP_LIKE["mug"], u0=0.78, u1=1.0, v0=0.25, v1=0.8, w0=0.42, w1=0.58),
    Tube(0.42, 0.5, 0.0, 0.38, 1.0, 0.42, _CUP_LIKE["mug"], (90, 40, 30)),
)
_RACKET = (block(BLUE, u1=0.6, v1=1.0), block(BLACK, u0=0.6, v0=0.2, v1=0.8, w0=0.42, w1=0.58))
_KEYS = (
    Ball(0.25, 0.5, 0.5, 0.22, GOLD, 0.6),
    block(GOLD, u0=0.4, v1=0.7, w0=0.3, w1=0.5),
    block(STEEL, u0=0.4, v1=0.7, w0=0.6, w1=0.8),
)
_WATCH = (block(BROWN, w0=0.3, w1=0.7, v1=0.5), Tube(0.5, 0.5, 0.3, 0.34, 1.0, 0.34, GOLD, WHITE))
_CD = (Tube(0.5, 0.5, 0.0, 0.5, 1.0, 0.5, STEEL, (200, 190, 230)), Tube(0.5, 0.5, 1.0, 0.14, 1.0, 0.14, DARK, DARK))
_PLATE = (Tube(0.5, 0.5, 0.0, 0.34, 1.0, 0.5, WHITE, (222, 226, 232)), Tube(0.5, 0.5, 1.0, 0.3, 1.0, 0.3, WHITE, WHITE))
_ROLL = (Tube(0.5, 0.5, 0.0, 0.5, 1.0, 0.5, WHITE, WHITE), Tube(0.5, 0.5, 1.0, 0.18, 1.0, 0.18, TAN, BROWN))
_BOOK = (
    block(RED),
    block(CREAM, u0=0.03, v0=0.15, v1=0.85, w0=-0.02, w1=0.0),
    block(GOLD, u0=0.25, u1=0.75, v0=1.0, v1=1.01, w0=0.4, w1=0.6),
)
_PHONE = (block(BLACK), block(SKY, u0=0.1, u1=0.9, v0=1.0, v1=1.02, w0=0.1, w1=0.9))
_REMOTE = (
    block(BLACK),
    block(RED, u0=0.1, u1=0.3, v0=1.0, v1=1.05, w0=0.3, w1=0.7),
    block(GREY, u0=0.4, u1=0.9, v0=1.0, v1=1.05, w0=0.2, w1=0.8),
)
_CARD = (block((60, 110, 190)), block(GOLD, u0=0.1, u1=0.35, v0=1.0, v1=1.1, w0=0.4, w1=0.75))
_PAPER = (
    block((214, 212, 204)),
    block(DARK, u0=0.08, u1=0.92, v0=1.0, v1=1.02, w0=0.75, w1=0.9),
    block(GREY, u0=0.08, u1=0.45, v0=1.0, v1=1.02, w0=0.15, w1=0.6),
)
_BOX = (block((190, 146, 96)), block((226, 200, 150), u0=0.44, u1=0.56, v0=1.0, v1=1.01))


def _shaker(colour: Colour) -> tuple[Part, ...]:
    return (Tube(0.5, 0.5, 0.0, 0.5, 0.7, 0.4, colour), Tube(0.5, 0.5, 0.7, 0.42, 1.0, 0.3, STEEL, GREY))


def _ball(colour: Colour, stalk: bool = False, squash: float = 1.0) -> tuple[Part, ...]:
    ball = (Ball(0.5, 0.5, 0.5, 0.5, colour, squash),)
    return (*ball, block(BROWN, u0=0.46, u1=0.54, v0=0.95, v1=1.2, w0=0.46, w1=0.54)) if stalk else ball


def _cup(colour: Colour, inside: Colour) -> tuple[Part, ...]:
    return (Tube(0.5, 0.5, 0.0, 0.36, 1.0, 0.5, colour, inside),)


OBJECTS: dict[str, Shape] = {
    "alarmclock": Shape((0.14, 0.11, 0.07), _CLOCK),
    "apple": Shape((0.09, 0.09, 0.09), _ball(RED, stalk=True)),
    "baseballbat": Shape((0.08, 0.75, 0.08), (Tube(0.5, 0.5, 0.0, 0.25, 1.0, 0.5, TAN),)),
    "basketball": Shape((0.24, 0.24, 0.24), _ball(ORANGE)),
    "blinds": Shape((1.0, 0.18, 0.06), (block(CREAM),), flat=True),
    "book": Shape((0.2, 0.05, 0.26), _BOOK),
    "boots": Shape((0.28, 0.26, 0.28), (block(BROWN, u1=0.42), block(BROWN, u0=0.58))),
    "bowl": Shape((0.17, 0.08, 0.17), _cup((226, 180, 90), (170, 128, 60))),
    "box": Shape((0.36, 0.26, 0.3), _BOX),
    "bread": Shape(
        (0.26, 0.12, 0.12), (block((196, 138, 72), v1=0.8), block((214, 160, 92), u0=0.04, u1=0.96, v0=0.8))
    ),
    "butterknife": Shape((0.24, 0.015, 0.03), _cutlery(STEEL, GREY, 0.7)),
    "candle": Shape((0.07, 0.14, 0.07), _CANDLE),
    "cd": Shape((0.13, 0.012, 0.13), _CD),
    "cellphone": Shape((0.08, 0.02, 0.15), _PHONE),
    "chair": Shape((0.44, 0.9, 0.44), _CHAIR),
    "cloth": Shape((0.2, 0.03, 0.18), (block((110, 150, 200)),)),
    "creditcard": Shape((0.09, 0.012, 0.06), _CARD),
    "cup": Shape((0.09, 0.12, 0.09), _cup(_CUP_LIKE["cup"], NAVY)),
    "curtains": Shape((1.2, 1.6, 0.08), (block((170, 110, 110)),), flat=True),
    "desklamp": Shape((0.22, 0.46, 0.22), _lamp(DARK, (222, 196, 140))),
    "dishsponge": Shape((0.11, 0.05, 0.08), (block(YELLOW, v1=0.7), block(GREEN, v0=0.7))),
    "egg": Shape((0.06, 0.075, 0.06), _ball((240, 222, 190), squash=1.25)),
    "faucet": Shape((0.12, 0.26, 0.2), _FAUCET),
    "floorlamp": Shape((0.4, 1.55, 0.4), _lamp(DARK, (222, 196, 140))),
    "footstool": Shape((0.45, 0.4, 0.45), (block(TAN),)),
    "fork": Shape((0.2, 0.015, 0.035), _cutlery(STEEL, STEEL, 1.0)),
    "glassbottle": Shape((0.08, 0.26, 0.08), _bottle((120, 180, 150), GREEN)),
    "handtowel": Shape((0.24, 0.34, 0.04), (block((224, 140, 120)), block(CREAM, v0=0.08, v1=0.16, w0=-0.1, w1=0.0))),
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
    "pen": Shape((0.15, 0.014, 0.014), (block(BLUE, u1=0.8), block(BLACK, u0=0.8))),
    "pencil": Shape((0.17, 0.014, 0.014), (block(YELLOW, u0=0.15), block(TAN, u1=0.15))),
    "peppershaker": Shape((0.06, 0.12, 0.06), _shaker(BLACK)),
    "pillow": Shape(
        (0.48, 0.16, 0.34), (block((206, 190, 216), v1=0.9), block((220, 206, 228), 0.06, 0.9, 0.06, 0.94, 1.0, 0.94))
    ),
    "plate": Shape((0.24, 0.025, 0.24), _PLATE),
    "plunger": Shape((0.16, 0.55, 0.16), _PLUNGER),
    "poster": Shape((0.6, 0.8, 0.02), _frame(CREAM, PINK), flat=True),
    "pot": Shape((0.34, 0.15, 0.26), _pan(STEEL, DARK)),
    "potato": Shape((0.11, 0.07, 0.08), _ball((178, 134, 84), squash=0.7)),
    "remotecontrol": Shape((0.18, 0.025, 0.055), _REMOTE),
    "saltshaker": Shape((0.06, 0.12, 0.06), _shaker(WHITE)),
    "scrubbrush": Shape((0.12, 0.4, 0.12), _BRUSH),
    "showercurtain": Shape((1.0, 1.7, 0.06), (block((150, 190, 200)),), flat=True),
    "showerdoor": Shape((0.8, 1.8, 0.04), _frame(STEEL, GLASS), flat=True),
    "showerglass": Shape((0.8, 1.8, 0.04), _frame(STEEL, GLASS), flat=True),
    "showerhead": Shape((0.16, 0.12, 0.16), (Tube(0.5, 0.5, 0.0, 0.5, 1.0, 0.2, STEEL),)),
    "soapbar": Shape((0.1, 0.035, 0.065), (block(PINK),)),
    "soapbottle": Shape((0.08, 0.2, 0.08), _bottle((150, 110, 190), WHITE)),
    "spatula": Shape((0.32, 0.02, 0.09), _cutlery(BLACK, RED, 1.0)),
    "spoon": Shape((0.18, 0.018, 0.04), _cutlery(STEEL, STEEL, 0.9)),
    "spraybottle": Shape((0.12, 0.25, 0.09), _SPRAY),
    "statue": Shape((0.16, 0.3, 0.16), _STATUE),
    "stoveknob": Shape((0.05, 0.05, 0.03), (block(BLACK),), flat=True),
    "teddybear": Shape((0.3, 0.36, 0.26), _BEAR),
    "television": Shape((0.95, 0.58, 0.08), _frame(BLACK, (40, 52, 70))),
    "tennisracket": Shape((0.66, 0.03, 0.26), _RACKET),
    "tissuebox": Shape((0.22, 0.13, 0.13), _TISSUES),
    "toiletpaper": Shape((0.12, 0.11, 0.12), _ROLL),
    "toiletpaperroll": Shape((0.12, 0.11, 0.12), _ROLL),
    "tomato": Shape((0.09, 0.08, 0.09), _ball((222, 62, 40), stalk=True, squash=0.85)),
    "towel": Shape((0.5, 0.55, 0.05), (block((120, 170, 200)), block(CREAM, v0=0.08, v1=0.14, w0=-0.1, w1=0.0))),
    "vase": Shape((0.14, 0.28, 0.14), _VASE),
    "watch": Shape((0.1, 0.03, 0.1), _WATCH),
    "wateringcan": Shape((0.3, 0.26, 0.2), _CAN),
    "window": Shape((1.0, 1.1, 0.06), _WINDOW, flat=True),
    "winebottle": Shape((0.085, 0.3, 0.085), _bottle((44, 84, 56), (120, 30, 40))),
}
# Parts of the fabric of the room whose basin, body or frame is rendered as something else.
NOT_RENDERED = frozenset({"sink", "bathtub", "laundryhamperlid"})
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


@lru_cache(maxsize=512)
def object_shape(kind: str, sliced: bool = False) -> Shape:
    """What an object of type `kind` looks like; an unknown type is a small block in a colour of its own."""
    shape = OBJECTS.get(kind)
    if shape is None:
        # A checksum and not `hash`, which differs in each Python process.
        code = crc32(kind.encode())
        shape = Shape((0.14, 0.12, 0.12), (block((90 + code % 130, 90 + code // 130 % 130, 90 + code // 16900 % 130)),))
    if not sliced:
        return shape
    skin, flesh = shape.parts[0].colour, FLESH.get(kind, CREAM)
    slices = []
    # Three slices beside each other, each with its skin around and its flesh on top.
    for start in (0.0, 0.38, 0.76):
        slices.append(block(skin, u0=start, u1=start + 0.24, v1=0.9))
        slices.append(block(flesh, u0=start + 0.03, u1=start + 0.21, v0=0.9, v1=0.92, w0=0.08, w1=0.92))
    return shape._replace(size=(max(shape.size[0], 0.14), shape.size[1], shape.size[2]), parts=tuple(slices))
