"""Dishes, pots, cutlery, bottles for the table."""

from __future__ import annotations

import math

from alfworld_native.drawing.build import Build, builds, circle, half_turn, pairs
from alfworld_native.drawing.shapes import darkened


@builds("mug")
def _mug(b: Build) -> None:  # a handle; wide, straight
    r, high, colour = b.some(3.8, 4.8), b.some(8, 11), b.any()
    b.ring(r * 0.9, high * 0.5, b.some(2.6, 3.8), high * b.some(0.55, 0.75), b.some(0.8, 1.2), darkened(colour, 9, 10))
    r0 = r * b.some(0.8, 1.0)
    b.banded(0, r0, high, r, colour, darkened(colour, 1, 3) if b.chance(0.5) else (70, 44, 30))


@builds("cup")
def _cup(b: Build) -> None:  # no handle, much wider at the top, on a foot; sees inside
    r, high, colour = b.some(3.6, 4.6), b.some(9, 14), b.any()
    foot = b.some(0.45, 0.6)
    if b.chance(0.4):  # a goblet
        b.profile(pairs(0, r * 0.8, 0.8, r * 0.7, 1.0, 0.7, high * 0.4, 0.7, high * 0.5, r * 0.7), colour)
        b.over()
        b.banded(high * 0.5, r * 0.7, high, r, colour, darkened(colour, 1, 2))
    else:
        b.banded(0, r * foot, high, r, colour, darkened(colour, 1, 2))


@builds("bowl")
def _bowl(b: Build) -> None:  # low, wide, deep inside
    r, high, colour = b.some(7.5, 10), b.some(5.5, 8), b.any()
    b.profile(pairs(0, r * 0.45, high * 0.45, r * 0.85, high, r), colour, darkened(colour, 2, 3))
    b.over()
    b.tube(high, r * 0.8, high, r * 0.8, darkened(colour, 1, 2), darkened(colour, 1, 2))


@builds("plate")
def _plate(b: Build) -> None:  # flat, a rim around a lighter middle
    r, colour = b.some(10, 14), b.pick((b.pale, b.any))()
    rim = b.any() if b.chance(0.5) else darkened(colour, 8, 10)
    b.tube(0, r * 0.6, 1.6, r, colour, rim)
    b.over()
    b.tube(1.6, r * 0.72, 1.6, r * 0.72, colour, colour)
    if b.chance(0.4):
        b.over()
        b.tube(1.6, r * 0.25, 1.6, r * 0.25, rim, rim)


@builds("pan")
def _pan(b: Build) -> None:  # a low disc with one long handle
    r, colour = b.some(9, 13), b.pick((b.dark, b.metal, b.any))()
    inside, long = b.dark() if b.chance(0.7) else b.metal(), b.some(14, 20)
    handle = b.pick((b.dark, b.wood, b.metal))()
    b.flat(pairs(r * 0.9, -1.2, r + long, -1.5, r + long, 1.5, r * 0.9, 1.2), 3, 4.6, handle)
    b.tube(0, r * 0.8, 5, r, colour, darkened(colour, 7, 10))
    b.over()
    b.tube(5, r * 0.88, 5, r * 0.88, inside, inside)


@builds("pot")
def _pot(b: Build) -> None:  # high, two short handles; open or with a lid and knob
    r, high, colour = b.some(8, 12), b.some(10, 16), b.pick((b.metal, b.metal, b.any))()
    ear = b.dark() if b.chance(0.6) else darkened(colour, 8, 10)
    for side in (-1, 1):
        x0, x1 = side * r * 0.9, side * (r + b.some(3, 4.5))
        b.box(min(x0, x1), high * 0.7, -2.5, max(x0, x1), high * 0.82, 2.5, ear)
    b.tube(0, r * 0.95, high, r, colour, b.dark())
    if b.chance(0.5):
        lid = b.metal() if b.chance(0.7) else colour
        b.over()
        b.tube(high, r, high + 2.5, r * 0.5, lid, lid)
        b.over()
        b.tube(high + 2.5, 1.5, high + 4.5, 1.8, ear, ear)


@builds("kettle")
def _kettle(b: Build) -> None:  # a spout, an arched handle above
    r, high, colour = b.some(8, 10), b.some(12, 16), b.pick((b.metal, b.any, b.dark))()
    handle = b.dark() if b.chance(0.7) else b.wood()
    b.slab(
        [
            (r * 0.5, high * 0.4, -1.4),
            (r + 6, high * 0.95, -0.8),
            (r + 6, high * 0.95, 0.8),
            (r * 0.5, high * 0.4, 1.4),
        ],
        (0, -2.5, 0),
        darkened(colour, 8, 10),
    )
    b.profile(pairs(0, r, high * 0.35, r * 1.05, high * 0.8, r * 0.75, high, r * 0.4), colour, darkened(colour, 8, 10))
    b.over()
    b.ball(0, high + 1, 0, 1.4, handle)
    rise = b.some(6, 9)
    outer = [(-r * 0.85 * math.cos(a), high * 0.85 + rise * math.sin(a)) for a in half_turn(6)]
    inner = [(-r * 0.62 * math.cos(a), high * 0.85 + (rise - 1.8) * math.sin(a)) for a in half_turn(6)]
    b.upright(outer + inner[::-1], -0.9, 0.9, handle)


@builds("knife")
def _knife(b: Build) -> None:  # a long blade that runs to a point
    long, deep = b.some(17, 22), b.some(3.6, 5)
    blade = pairs(0, -deep * 0.4, -long * 0.6, -deep * 0.4, -long, deep * 0.4, -long * 0.7, deep * 0.6, 0, deep * 0.6)
    held, handle, grip = b.some(10, 13), b.pick((b.dark, b.wood, b.any))(), b.some(1.2, 1.6)
    b.flat(pairs(0, -grip, held, -grip, held, grip, 0, grip), 0, 1.8, handle)
    b.flat(blade, 0.4, 1.0, b.metal())
    b.over()
    if b.chance(0.5):  # two rivets
        for x in (0.25, 0.7):
            b.flat(circle(0.6, 6, held * x), 1.8, 1.85, (220, 220, 220))


@builds("butterknife")
def _butterknife(b: Build) -> None:  # a short blade with a round end, all metal
    long, deep, colour = b.some(8, 10), b.some(2.4, 3), b.metal()
    blade = pairs(0, -0.8, -long * 0.3, -deep * 0.5, -long, -deep * 0.5, -long - 1.4, 0, -long, deep * 0.5, 0, 0.8)
    b.flat(pairs(0, -0.8, b.some(10, 12), -1.2, 12, 1.2, 0, 0.8), 0, 1.2, darkened(colour, 8, 10))
    b.flat(blade, 0, 1.0, colour)


@builds("fork")
def _fork(b: Build) -> None:  # prongs
    colour, long = b.metal() if b.chance(0.8) else b.any(), b.some(12, 15)
    b.flat(pairs(0, -0.6, long, -1.1, long, 1.1, 0, 0.6), 0, 1.2, colour)
    b.flat(pairs(0.5, -0.8, -2.5, -2.2, -2.5, 2.2, 0.5, 0.8), 0, 1.2, colour)
    count = b.pick((3, 4))
    for k in range(count):
        z = -2.2 + 4.4 * k / (count - 1)
        b.flat(pairs(-2.3, z - 0.4, -8, z - 0.25, -8, z + 0.25, -2.3, z + 0.4), 0, 1.2, colour)


@builds("spoon")
def _spoon(b: Build) -> None:  # an oval with a hollow
    colour, long = b.metal() if b.chance(0.8) else b.any(), b.some(12, 15)
    b.flat(pairs(-0.5, -0.6, long, -1.1, long, 1.1, -0.5, 0.6), 0, 1.2, colour)
    r = b.some(3.2, 3.9)
    b.over()
    b.flat(circle(r, 10, -r * 0.9, 0, 0.68), 0, 1.4, colour)
    b.over()
    b.flat(circle(r * 0.7, 8, -r * 0.9, 0, 0.68), 1.4, 1.45, darkened(colour, 6, 10))


@builds("ladle")
def _ladle(b: Build) -> None:  # a deep round bowl at the end of a long handle
    colour, long, r = b.pick((b.metal, b.dark, b.wood))(), b.some(22, 28), b.some(4.2, 5.2)
    b.slab([(r * 0.6, 4, -0.8), (long, 1.5, -1.1), (long, 1.5, 1.1), (r * 0.6, 4, 0.8)], (0, 1.0, 0), colour)
    b.tube(0, r * 0.6, 4.5, r, colour, darkened(colour, 1, 2))


@builds("spatula")
def _spatula(b: Build) -> None:  # a flat blade with slots, a long handle
    colour, long, deep = b.pick((b.dark, b.metal, b.any))(), b.some(16, 22), b.some(7, 9)
    b.flat(pairs(0, -0.8, long, -1.3, long, 1.3, 0, 0.8), 0.8, 2.2, b.pick((b.dark, b.wood, b.any))())
    b.flat(pairs(1, -1.5, -1, -deep / 2, -10, -deep / 2, -10, deep / 2, -1, deep / 2, 1, 1.5), 0, 1, colour)
    b.over()
    for k in (-1, 0, 1):
        b.flat(pairs(-2.5, k * 2 - 0.4, -8.5, k * 2 - 0.4, -8.5, k * 2 + 0.4, -2.5, k * 2 + 0.4), 1, 1.02, (30, 30, 32))


@builds("winebottle")
def _winebottle(b: Build) -> None:  # tall, dark, long neck with a capsule, a label
    colour = b.hue(0.2, 0.42, (0.4, 0.8), (0.14, 0.36))
    r, high, shoulder, neck = b.some(3.5, 4.0), b.some(29, 33), b.some(0.55, 0.6), 1.4
    cap, label = b.any(), b.pale()
    b.profile(pairs(0, r, high * shoulder, r, high * (shoulder + 0.14), neck, high * 0.92, neck), colour)
    b.over()
    b.tube(high * 0.9, neck * 1.15, high, neck * 1.15, cap, cap)
    b.over()
    b.tube(high * 0.15, r * 1.02, high * 0.45, r * 1.02, label)


@builds("glassbottle")
def _glassbottle(b: Build) -> None:  # clear, no label, open mouth
    colour = b.hue(0.3, 0.6, (0.08, 0.35), (0.65, 0.92))
    high, r = b.some(18, 25), b.some(3.4, 4.3)
    b.profile(pairs(0, r, high * 0.45, r, high * 0.75, 1.5, high, 1.7), colour, darkened(colour, 1, 3))
    b.over()  # the light on the glass
    b.upright(
        pairs(-r * 0.6, high * 0.1, -r * 0.35, high * 0.1, -r * 0.35, high * 0.42, -r * 0.6, high * 0.42),
        -r * 0.9,
        -r * 0.88,
        (250, 252, 252),
    )


@builds("saltshaker")
def _saltshaker(b: Build) -> None:  # squat, white inside glass, a domed metal lid with holes
    r, high = b.some(2.5, 3.1), b.some(5, 6.5)
    b.tube(0, r, high * 0.55, r * 0.95, (244, 244, 242))
    b.over()
    b.tube(high * 0.55, r * 0.95, high, r * 0.85, b.hue(0.5, 0.6, (0.05, 0.15), (0.75, 0.88)))
    lid = b.metal()
    b.over()
    b.ball(0, high + r * 0.1, 0, r * 0.95, lid, 0.8)
    b.over()
    for x in (-0.35, 0, 0.35):
        b.ball(x * r, high + r * 0.45, -r * 0.7, 0.28, (40, 40, 44))


@builds("peppershaker")
def _peppershaker(b: Build) -> None:  # a mill: waisted, with a knob
    high, r = b.some(13, 18), b.some(2.4, 3.0)
    colour = b.pick((b.wood, b.dark, b.wood))()
    b.profile(pairs(0, r, high * 0.2, r, high * 0.45, r * 0.6, high * 0.68, r * 0.95, high * 0.72, r * 0.6), colour)
    b.over()
    b.ball(0, high * 0.82, 0, r * 0.85, colour, 0.9)
    b.over()
    b.ball(0, high * 0.98, 0, 0.9, b.metal())
