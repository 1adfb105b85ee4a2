"""What people own: books, devices, toys, things for sport and writing."""

from __future__ import annotations

import math

from alfworld_native.drawing.build import Build, builds, circle, pairs
from alfworld_native.drawing.shapes import darkened


@builds("alarmclock")
def _alarmclock(b: Build) -> None:  # a round dial with hands, two bells on top, feet
    r, colour = b.some(5.2, 6.6), b.any()
    bell = b.pick((b.metal, b.brass))()
    for side in (-1, 1):
        b.box(side * r * 0.6 - 0.6, 0, -0.6, side * r * 0.6 + 0.6, 2.2, 0.6, bell)
        b.ball(side * r * 0.55, 2 * r + 1.4, 0.5, r * 0.42, bell, 0.8)
    b.over()
    b.upright(circle(r, 14, 0, r + 1), -1.8, 2.4, colour)
    b.over()
    b.upright(circle(r * 0.8, 12, 0, r + 1), -1.95, -1.85, b.pale())
    b.over()
    for angle, long in ((b.some(0, 6), 0.62), (b.some(0, 6), 0.45)):
        u, v = math.sin(angle), math.cos(angle)
        b.upright(
            pairs(-v * 0.45, r + 1 + u * 0.45, v * 0.45, r + 1 - u * 0.45, u * r * long, r + 1 + v * r * long),
            -2.1,
            -2.0,
            (30, 30, 34),
        )


@builds("book")
def _book(b: Build) -> None:  # a closed volume: pages on three sides, a title on the cover
    w, d, high, colour = b.some(15, 20), b.some(20, 26), b.some(2.6, 5), b.any()
    title = b.pale() if b.chance(0.6) else b.brass()
    b.box(-w / 2, 0, -d / 2, w / 2, 0.5, d / 2, colour)
    b.over()
    b.box(-w / 2 + 1, 0.5, -d / 2 + 0.6, w / 2 - 0.5, high - 0.5, d / 2 - 0.6, (236, 230, 212))
    b.box(-w / 2, 0.5, -d / 2, -w / 2 + 1.2, high - 0.5, d / 2, darkened(colour, 9, 10))
    b.over()
    b.box(-w / 2, high - 0.5, -d / 2, w / 2, high, d / 2, colour)
    b.over()
    z = b.some(-0.05, 0.25)
    b.box(-w * 0.3, high, d * z - 1.5, w * 0.3, high + 0.03, d * z + 1.5, title)
    if b.chance(0.6):
        b.box(-w * 0.2, high, -d * 0.32, w * 0.2, high + 0.03, -d * 0.27, title)


@builds("newspaper")
def _newspaper(b: Build) -> None:  # folded pale paper: a headline, columns, a photograph
    w, d, paper = b.some(28, 34), b.some(20, 24), b.hue(0.1, 0.16, (0.02, 0.14), (0.78, 0.92))
    b.box(-w / 2, 0, -d / 2, w / 2, 1.4, d / 2, darkened(paper, 19, 20))
    ink = (60, 60, 64)
    b.over()
    b.box(-w * 0.44, 1.4, d * 0.3, w * 0.44, 1.42, d * 0.42, ink)
    for k in range(3):
        x = -w * 0.44 + k * w * 0.31
        for row in range(3):
            b.box(x, 1.4, -d * 0.4 + row * d * 0.2, x + w * 0.25, 1.42, -d * 0.33 + row * d * 0.2, (128, 128, 130))
    b.over()
    x = b.pick((-0.42, 0.08))
    b.box(w * x, 1.42, -d * 0.15, w * (x + 0.34), 1.44, d * 0.24, (90, 92, 96))


@builds("box")
def _box(b: Build) -> None:  # a large carton with tape, flaps open or shut
    w, d, high = b.some(24, 34), b.some(20, 28), b.some(14, 24)
    colour = b.hue(0.07, 0.1, (0.35, 0.55), (0.6, 0.82)) if b.chance(0.7) else b.any()
    b.box(-w / 2, 0, -d / 2, w / 2, high, d / 2, colour)
    b.over()
    if b.chance(0.5):
        b.box(-1.8, high, -d / 2, 1.8, high + 0.05, d / 2, b.pale())
        b.upright(pairs(-1.8, high * 0.7, 1.8, high * 0.7, 1.8, high, -1.8, high), -d / 2 - 0.05, -d / 2, b.pale())
    else:  # open: dark inside, flaps to both sides
        b.box(-w * 0.46, high, -d * 0.46, w * 0.46, high + 0.05, d * 0.46, darkened(colour, 4, 10))
        for side in (-1, 1):
            b.slab(
                [
                    (side * w / 2, high, -d / 2),
                    (side * (w / 2 + 6), high + 2.5, -d / 2),
                    (side * (w / 2 + 6), high + 2.5, d / 2),
                    (side * w / 2, high, d / 2),
                ],
                (0, 0.4, 0),
                darkened(colour, 9, 10),
            )


@builds("laptop")
def _laptop(b: Build) -> None:  # a screen that stands up behind a keyboard
    w, d, colour = b.some(30, 36), b.some(20, 24), b.pick((b.metal, b.dark, b.pale))()
    lean = b.some(2, 8)
    b.slab(
        [(-w / 2, 1, d / 2), (w / 2, 1, d / 2), (w / 2, d * 0.9, d / 2 + lean), (-w / 2, d * 0.9, d / 2 + lean)],
        (0, 0.2, 0.8),
        colour,
    )
    screen = b.pick((lambda: b.hue(0.5, 0.7, (0.3, 0.7), (0.5, 0.95)), b.any, b.dark))()
    b.over()
    b.slab(
        [
            (-w * 0.45, 2.5, d / 2 - 0.2),
            (w * 0.45, 2.5, d / 2 - 0.2),
            (w * 0.45, d * 0.84, d / 2 + lean - 0.4),
            (-w * 0.45, d * 0.84, d / 2 + lean - 0.4),
        ],
        (0, 0, 0.1),
        screen,
    )
    b.over()
    b.box(-w / 2, 0, -d / 2, w / 2, 1.4, d / 2, colour)
    b.over()
    for row in range(3):
        z = -d * 0.05 + row * d * 0.14
        b.box(-w * 0.42, 1.4, z, w * 0.42, 1.45, z + d * 0.1, (44, 44, 48))
    b.box(-w * 0.14, 1.4, -d * 0.42, w * 0.14, 1.45, -d * 0.16, darkened(colour, 8, 10))


@builds("cellphone")
def _cellphone(b: Build) -> None:  # a dark slab with a bright screen in rows of icons
    w, d, colour = b.some(7, 8.2), b.some(14, 17), b.pick((b.dark, b.metal, b.any))()
    b.box(-w / 2, 0, -d / 2, w / 2, 1.1, d / 2, colour)
    b.over()
    b.box(-w * 0.42, 1.1, -d * 0.42, w * 0.42, 1.15, d * 0.42, b.hue(0.45, 0.85, (0.3, 0.8), (0.3, 0.95)))
    b.over()
    for row in range(3):
        for column in range(3):
            x, z = (column - 1) * w * 0.26, (row - 1) * d * 0.2
            b.box(x - 0.6, 1.15, z - 0.7, x + 0.6, 1.17, z + 0.7, b.any())


@builds("remotecontrol")
def _remotecontrol(b: Build) -> None:  # long, narrow, dark, rows of buttons, one red
    w, d, colour = b.some(4.6, 5.6), b.some(17, 21), b.dark() if b.chance(0.8) else b.metal()
    b.box(-w / 2, 0, -d / 2, w / 2, 2.2, d / 2, colour)
    b.over()
    b.box(-w * 0.3, 2.2, d * 0.38, -w * 0.02, 2.5, d * 0.46, (210, 40, 40))
    key = b.pale() if sum(colour) < 380 else (40, 40, 44)
    for row in range(5):
        for column in (-1, 0, 1):
            x, z = column * w * 0.28, d * 0.26 - row * d * 0.13
            b.box(x - w * 0.1, 2.2, z - d * 0.035, x + w * 0.1, 2.4, z + d * 0.035, key)


@builds("creditcard")
def _creditcard(b: Build) -> None:  # a small card: a chip, a dark stripe, a row of digits
    colour = b.any()
    b.box(-5, 0, -3.2, 5, 0.35, 3.2, colour)
    b.over()
    b.box(-5, 0.35, 1.3, 5, 0.37, 2.5, (34, 34, 38))
    b.box(-3.8, 0.35, -0.6, -1.8, 0.38, 0.9, b.brass())
    b.box(-3.8, 0.35, -2.2, 3.8, 0.37, -1.5, b.pale())


@builds("cd")
def _cd(b: Build) -> None:  # a thin disc with a hole and rainbow rings
    r, colour = b.some(6.2, 7), b.hue(0.5, 0.9, (0.05, 0.3), (0.75, 0.95))
    b.tube(0, r, 0.5, r, colour, colour)
    for share in (0.8, 0.55):
        b.over()
        tint = b.hue(0, 1, (0.2, 0.45), (0.8, 0.95))
        b.tube(0.5, r * share, 0.5, r * share, tint, tint)
    b.over()
    b.tube(0.5, r * 0.3, 0.5, r * 0.3, (230, 232, 236), (230, 232, 236))
    b.over()
    b.tube(0.5, r * 0.13, 0.5, r * 0.13, (30, 30, 34), (30, 30, 34))


@builds("pen")
def _pen(b: Build) -> None:  # a barrel with a clip and a cap of another colour, a dark point
    long, colour, cap = b.some(14, 17), b.any(), b.dark() if b.chance(0.5) else b.any()
    b.box(-long * 0.1, 0, -0.85, long * 0.5, 1.7, 0.85, colour)
    b.box(-long * 0.5, 0, -1.0, -long * 0.1, 2.0, 1.0, cap)
    b.flat(pairs(long * 0.5, -0.8, long * 0.6, -0.1, long * 0.6, 0.1, long * 0.5, 0.8), 0.4, 1.3, (40, 40, 44))
    b.over()
    b.box(-long * 0.46, 2.0, -0.35, -long * 0.16, 2.4, 0.35, b.metal())


@builds("pencil")
def _pencil(b: Build) -> None:  # wood at the sharpened end with a lead, a ferrule, a pink eraser
    long, colour = b.some(15, 18), b.hue(0.1, 0.16, (0.7, 0.9), (0.8, 0.95)) if b.chance(0.5) else b.any()
    b.box(-long * 0.3, 0, -0.85, long * 0.32, 1.7, 0.85, colour)
    b.flat(pairs(-long * 0.3, -0.85, -long * 0.45, -0.3, -long * 0.45, 0.3, -long * 0.3, 0.85), 0, 1.5, (222, 184, 134))
    b.flat(pairs(-long * 0.44, -0.35, -long * 0.53, 0, -long * 0.44, 0.35), 0.3, 1.2, (36, 36, 40))
    b.box(long * 0.32, 0, -0.9, long * 0.39, 1.8, 0.9, b.metal())
    b.box(long * 0.39, 0, -0.85, long * 0.5, 1.7, 0.85, (232, 132, 146))


@builds("keychain")
def _keychain(b: Build) -> None:  # a ring with two toothed keys and a tag
    b.flat(circle(2.4, 10) + circle(1.6, 10)[::-1], 0, 0.5, b.metal())
    for angle in (b.some(-25, 0), b.some(30, 60)):
        sin, cos = math.sin(math.radians(angle)), math.cos(math.radians(angle))
        colour = b.brass() if b.chance(0.5) else b.metal()
        key = pairs(
            2,
            -1.6,
            4.5,
            -1.6,
            4.5,
            -0.5,
            10,
            -0.5,
            10,
            1.4,
            9,
            1.4,
            9,
            0.5,
            8,
            0.5,
            8,
            1.3,
            7,
            1.3,
            7,
            0.5,
            4.5,
            0.5,
            4.5,
            1.6,
            2,
            1.6,
        )
        b.over()
        b.flat([(x * cos - z * sin, x * sin + z * cos) for x, z in key], 0.3, 0.8, colour)
    b.over()
    b.flat(pairs(-2, -1.5, -6.5, -2.2, -6.5, 2.2, -2, 1.5), 0, 0.8, b.any())


@builds("watch")
def _watch(b: Build) -> None:  # a strap to both sides of a small dial
    strap, long = b.pick((b.dark, b.wood, b.any, b.metal))(), b.some(8, 10)
    b.box(-long, 0, -1.3, long, 0.8, 1.3, strap)
    b.over()
    case = b.pick((b.metal, b.brass, b.dark))()
    b.tube(0.2, 2.7, 1.6, 2.6, case, case)
    b.over()
    dial = b.pale() if b.chance(0.6) else b.dark()
    b.tube(1.6, 2.0, 1.65, 2.0, dial, dial)
    b.over()
    ink = (30, 30, 34) if sum(dial) > 380 else (240, 240, 240)
    b.flat(pairs(-0.2, -0.2, 0.2, -0.2, 0.2, 1.6, -0.2, 1.6), 1.65, 1.68, ink)
    b.flat(pairs(0, -0.2, 1.3, -0.2, 1.3, 0.2, 0, 0.2), 1.65, 1.68, ink)


@builds("basketball")
def _basketball(b: Build) -> None:  # a large ball with dark seams
    r, colour = b.some(11, 12.5), b.hue(0.04, 0.08, (0.65, 0.9), (0.65, 0.9))
    b.ball(0, r, 0, r, colour)
    b.over()
    ink = (40, 28, 22)
    b.upright(
        pairs(
            -r * 0.95, r * 1.02, 0, r * 1.12, r * 0.95, r * 1.02, r * 0.95, r * 0.94, 0, r * 1.04, -r * 0.95, r * 0.94
        ),
        -r * 0.3,
        -r * 0.3,
        ink,
    )
    for x in (-0.45, 0.45):
        b.upright(
            pairs(
                x * r * 1.6,
                r * 1.6,
                x * r,
                r,
                x * r * 1.6,
                r * 0.4,
                x * r * 1.45,
                r * 0.4,
                x * r * 0.85,
                r,
                x * r * 1.45,
                r * 1.6,
            ),
            -r * 0.3,
            -r * 0.3,
            ink,
        )
    b.upright(pairs(-0.5, r * 1.95, 0.5, r * 1.95, 0.5, r * 0.05, -0.5, r * 0.05), -r * 0.3, -r * 0.3, ink)


@builds("baseballbat")
def _baseballbat(b: Build) -> None:  # lies: thick at one end, thin grip, a knob
    colour = b.wood() if b.chance(0.6) else b.any()
    long, r = b.some(60, 70), b.some(3, 3.8)
    outline = pairs(-long / 2, -r * 0.8, -long * 0.15, -r, long * 0.2, -r * 0.45, long * 0.45, -r * 0.4)
    b.flat(outline + [(x, -z) for x, z in outline[::-1]], 0, 2 * r * 0.8, colour)
    grip = b.dark() if b.chance(0.6) else b.any()
    b.over()
    b.flat(
        pairs(long * 0.25, -r * 0.5, long * 0.46, -r * 0.45, long * 0.46, r * 0.45, long * 0.25, r * 0.5),
        0.4,
        2 * r * 0.82,
        grip,
    )
    b.box(long * 0.46, 0, -r * 0.7, long * 0.5, 2 * r * 0.8, r * 0.7, colour)


@builds("tennisracket")
def _tennisracket(b: Build) -> None:  # an oval of strings, a handle
    colour, r = b.any(), b.some(11, 13)
    b.flat(circle(r, 14, -r * 0.7, 0, 0.8), 0, 2, colour)
    b.over()
    b.flat(circle(r * 0.86, 14, -r * 0.7, 0, 0.78), 2, 2.02, (232, 234, 222))
    b.over()
    for k in range(-2, 3):
        b.box(
            -r * 0.7 + k * r * 0.3 - 0.25,
            2.02,
            -r * 0.55,
            -r * 0.7 + k * r * 0.3 + 0.25,
            2.04,
            r * 0.55,
            (120, 124, 120),
        )
        b.box(-r * 1.4, 2.02, k * r * 0.24 - 0.25, 0, 2.04, k * r * 0.24 + 0.25, (120, 124, 120))
    b.flat(pairs(r * 0.25, -2.5, r * 0.9, -1.2, r * 0.9, 1.2, r * 0.25, 2.5), 0, 2, colour)
    b.flat(
        pairs(r * 0.9, -1.4, r * 0.9 + 18, -1.6, r * 0.9 + 18, 1.6, r * 0.9, 1.4),
        0,
        2.6,
        b.dark() if b.chance(0.7) else b.pale(),
    )


@builds("teddybear")
def _teddybear(b: Build) -> None:  # sits: ears, a muzzle, arms and legs
    fur, r = b.hue(0.04, 0.12, (0.2, 0.65), (0.35, 0.9)), b.some(8, 10)
    belly = b.hue(0.07, 0.12, (0.1, 0.4), (0.75, 0.95))
    for side in (-1, 1):
        b.ball(side * r * 0.6, r * 2.6, 0.5, r * 0.32, fur)
        b.ball(side * r * 0.95, r * 1.1, -r * 0.2, r * 0.36, fur, 1.3)
    b.over()
    b.ball(0, r * 0.9, 0, r * 0.9, fur, 1.05)
    b.over()
    b.ball(0, r * 0.85, -r * 0.5, r * 0.55, belly)
    b.over()
    b.ball(0, r * 2.05, -r * 0.1, r * 0.72, fur)
    for side in (-1, 1):
        b.ball(side * r * 0.7, r * 0.35, -r * 0.9, r * 0.4, fur)
    b.over()
    b.ball(0, r * 1.85, -r * 0.7, r * 0.32, belly, 0.8)
    b.over()
    for x, y, s in ((-0.26, 2.2, 0.09), (0.26, 2.2, 0.09), (0, 1.95, 0.1)):
        b.ball(x * r, y * r, -r, s * r, (24, 20, 20))
