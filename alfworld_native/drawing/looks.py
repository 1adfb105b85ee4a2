"""Objects that have to be recognised: a shape of its own kind for every type, in variants without end.

`object_shape` (`objects`) gives a type one fixed look, in a colour that is nearly its name. Here a type is a way of
building (`kinds`: a mug has a handle, a cup a stem or none), and a *variant* draws proportions, colours, materials and
patterns.

Variants are of two kinds. Every number that a variant draws lies in [0, 1) before it is scaled to its range; those of
held-out variants lie in the stripes [0.2, 0.3) and [0.7, 0.8), those of training variants outside of them. So no
training variant has a proportion, a hue or a brightness that a held-out variant has.
"""

from __future__ import annotations

import random
from functools import lru_cache
from zlib import crc32

from alfworld_native.drawing import kinds  # noqa: F401  (fills LOOKS)
from alfworld_native.drawing.build import BUILDERS as LOOKS
from alfworld_native.drawing.build import Build, Variant
from alfworld_native.drawing.objects import FLESH, NOT_RENDERED, OBJECTS, Shape
from alfworld_native.drawing.shapes import Part, block

# How far a thing of a type may be turned from its front, degrees to each side; others lie in any direction.
_FACING = {
    **dict.fromkeys(
        "mug bread soapbottle spraybottle vase statue alarmclock box pillow tissuebox toiletpaper teddybear "
        "wateringcan kettle pan pot saltshaker potato glassbottle apple newspaper".split(),
        35.0,
    ),
    "handtowel": 6.0,
    "towel": 20.0,
    "laptop": 40.0,
    "basketball": 25.0,
}
_LYING = frozenset(
    "knife butterknife fork spoon ladle spatula pen pencil baseballbat tennisracket remotecontrol watch".split()
)


def is_known(kind: str) -> bool:
    """Whether a type has a way of building of its own, a fixed look (`objects`), or is a part of the room itself."""
    return kind in LOOKS or kind in OBJECTS or kind in NOT_RENDERED


@lru_cache(maxsize=4096)
def varied_shape(kind: str, variant: Variant, turn: int = 0, sliced: bool = False) -> Shape:
    """What an object of type `kind` looks like in this variant; `turn` chooses how it stands or lies.

    A type without a way of building has its fixed look (`objects.OBJECTS`), one that is unknown there, too, is a plain
    box in a colour that depends on the variant alone: nothing about it tells its type.
    """
    build = Build(kind, variant)
    builder = LOOKS.get(kind)
    if builder is None:
        if kind in OBJECTS:
            return OBJECTS[kind]
        unknown = Build("unknown", variant)
        unknown.box(-7, 0, -6, 7, unknown.some(8, 14), 6, unknown.any())
        return unknown.shape(0.0)
    builder(build)
    # The direction is drawn apart from the look: the same mug may stand turned in another place.
    toward = random.Random(crc32(f"turn {kind} {turn}".encode())).random() * 2 - 1
    degrees = toward * _FACING.get(kind, 180.0)
    if kind in _LYING:  # across, rather than pointing to the viewer
        degrees = toward * 50 + (180 if turn % 2 else 0)
    shape = build.shape(degrees)
    if not sliced:
        return shape
    skin, flesh = shape.parts[0].colour, FLESH.get(kind, (232, 222, 196))
    slices: list[Part] = []
    for start in (0.0, 0.38, 0.76):
        slices += [block(skin, u0=start, u1=start + 0.24, v1=0.9)]
        slices += [block(flesh, u0=start + 0.03, u1=start + 0.21, v0=0.9, v1=0.92, w0=0.08, w1=0.92)]
    return Shape((max(shape.size[0], 0.14), shape.size[1], shape.size[2]), tuple(slices))
