"""Tables of looks: complete for ALFWorld's types, and within their unit boxes."""

from __future__ import annotations

import pytest
from alfworld.gen import constants

from xrl_alignment.environments.drawing import shapes
from xrl_alignment.environments.drawing.shapes import Ball, Block, Tube


def test_every_type_of_alfworld_has_a_look():
    receptacles = {name.lower() for name in constants.VAL_RECEPTACLE_OBJECTS}
    objects = {name.lower() for held in constants.VAL_RECEPTACLE_OBJECTS.values() for name in held}
    never_placed = {"paintinghanger", "pot", "bowl", "pan", "plate", "mug", "cup", "box"}  # or objects themselves
    assert receptacles - never_placed <= set(shapes.FURNITURE)
    assert {name.removesuffix("sliced") for name in objects} <= set(shapes.OBJECTS)


@pytest.mark.parametrize("kind", sorted(shapes.OBJECTS))
def test_parts_stay_near_their_unit_box(kind):
    shape = shapes.object_shape(kind)
    assert all(0.0 < edge <= 2.0 for edge in shape.size)
    for part in shape.parts:
        if isinstance(part, Block):
            assert part.u0 < part.u1 and part.v0 < part.v1 and part.w0 < part.w1
            numbers = part[:6]
        elif isinstance(part, Tube):
            numbers = (part.u - max(part.r0, part.r1), part.u + max(part.r0, part.r1), part.v0, part.v1)
        else:
            assert isinstance(part, Ball)
            numbers = (part.u - part.r, part.u + part.r, part.v)
        assert all(-0.25 <= number <= 1.25 for number in numbers)
        assert all(0 <= channel <= 255 for channel in part.colour)


def test_unknown_types_have_a_look_of_their_own():
    assert shapes.object_shape("wotsit") == shapes.object_shape("wotsit")
    assert shapes.object_shape("wotsit").parts != shapes.object_shape("gizmo").parts
    assert shapes.furniture("throne").kind == "surface"


def test_sliced_food_shows_its_flesh():
    whole, sliced = shapes.object_shape("apple"), shapes.object_shape("apple", sliced=True)
    assert len(sliced.parts) == 6 and sliced.parts != whole.parts
    assert any(part.colour == shapes.FLESH["apple"] for part in sliced.parts)
