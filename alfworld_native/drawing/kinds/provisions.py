"""What is eaten."""

from __future__ import annotations

import math

from alfworld_native.drawing.build import Build, builds, half_turn, pairs
from alfworld_native.drawing.shapes import darkened


@builds("apple")
def _apple(b: Build) -> None:  # a ball with a stalk and a leaf
    r = b.some(4, 4.8)
    colour = b.pick(
        (
            lambda: b.hue(0.97, 1.03, (0.7, 0.9), (0.6, 0.85)),
            lambda: b.hue(0.2, 0.3, (0.5, 0.8), (0.6, 0.85)),
            lambda: b.hue(0.11, 0.16, (0.5, 0.75), (0.8, 0.95)),
        )
    )()
    b.ball(0, r * 0.92, 0, r, colour, 0.92)
    if b.chance(0.5):
        b.over()
        b.ball(-r * 0.2, r * 1.0, -r * 0.5, r * 0.5, b.hue(0.97, 1.15, (0.6, 0.8), (0.7, 0.9)))
    b.over()
    b.upright(pairs(-0.4, r * 1.7, 0.4, r * 1.7, 0.9, r * 2.25, 0.2, r * 2.3), -0.3, 0.3, (92, 62, 36))
    b.upright(pairs(0.4, r * 1.9, 2.2, r * 2.3, 3.4, r * 2.1, 1.8, r * 1.85), -0.4, 0.2, (70, 130, 50))


@builds("tomato")
def _tomato(b: Build) -> None:  # a flat ball with a green star on top
    r, squash = b.some(3.9, 5), b.some(0.72, 0.85)
    b.ball(0, r * squash, 0, r, b.hue(0.0, 0.05, (0.75, 0.9), (0.75, 0.95)), squash)
    b.over()
    star = [
        (
            math.cos(k * math.pi / 5) * r * (0.75 if k % 2 else 0.22),
            math.sin(k * math.pi / 5) * r * (0.75 if k % 2 else 0.22),
        )
        for k in range(10)
    ]
    b.flat(star, r * squash * 1.75, r * squash * 1.85, (62, 120, 48))
    b.over()
    b.box(-0.3, r * squash * 1.85, -0.3, 0.3, r * squash * 2.2, 0.3, (62, 120, 48))


@builds("potato")
def _potato(b: Build) -> None:  # an oblong lump with dark eyes
    r, colour = b.some(3, 3.6), b.hue(0.07, 0.12, (0.35, 0.55), (0.6, 0.82))
    b.ball(-b.some(1.6, 2.6), r * 0.9, 0, r, colour, 0.9)
    b.ball(b.some(1.6, 2.6), r * 0.82, 0.4, r * b.some(0.85, 0.95), colour, 0.9)
    b.over()
    b.ball(0, r * 0.9, -0.5, r * 0.98, colour, 0.88)
    b.over()
    for _ in range(4):
        b.ball(b.some(-3.5, 3.5), b.some(r * 0.6, r * 1.4), -r * 0.95, 0.45, darkened(colour, 5, 10))


@builds("egg")
def _egg(b: Build) -> None:  # a small plain oval, narrower above
    r, colour = b.some(2.6, 3.0), b.hue(0.05, 0.11, (0.02, 0.4), (0.85, 0.98))
    b.ball(0, r * 1.05, 0, r, colour, 1.05)
    b.over()
    b.ball(0, r * 1.55, 0, r * 0.8, colour, 1.15)


@builds("lettuce")
def _lettuce(b: Build) -> None:  # a head of many leaves
    r = b.some(7, 9)
    for x, y, z, share in (
        (-0.5, 0.6, 0.2, 0.6),
        (0.5, 0.6, 0.2, 0.6),
        (0, 0.7, 0.5, 0.6),
        (0, 0.9, 0.0, 0.7),
        (-0.35, 0.5, -0.5, 0.5),
        (0.35, 0.5, -0.5, 0.5),
    ):
        b.over()
        b.ball(x * r, y * r, z * r, share * r, b.hue(0.22, 0.31, (0.4, 0.75), (0.5, 0.85)), 0.85)


@builds("bread")
def _bread(b: Build) -> None:  # a loaf: an arched front, cuts across the top
    long, deep, high = b.some(24, 30), b.some(10, 12), b.some(9, 12)
    crust = b.hue(0.06, 0.1, (0.5, 0.7), (0.5, 0.8))
    arch = (
        pairs(-deep / 2, 0, deep / 2, 0, deep * 0.55, high * 0.6)
        + [(deep * 0.5 * math.cos(a), high * 0.65 + high * 0.35 * math.sin(a)) for a in half_turn(4)]
        + [(-deep * 0.55, high * 0.6)]
    )
    b.slab([(long / 2, y, x) for x, y in arch], (-long, 0, 0), crust)
    b.over()
    pale = b.hue(0.09, 0.12, (0.3, 0.45), (0.8, 0.95))
    for k in (-0.3, 0.0, 0.3):
        b.flat(
            pairs(
                k * long - 1.5,
                -deep * 0.3,
                k * long - 0.3,
                -deep * 0.3,
                k * long + 1.5,
                deep * 0.3,
                k * long + 0.3,
                deep * 0.3,
            ),
            high,
            high + 0.1,
            pale,
        )
