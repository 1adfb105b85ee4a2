"""What belongs to a room: lamps, textiles, things for washing, vases."""

from __future__ import annotations

import math

from alfworld_native.drawing.build import Build, builds, circle, pairs
from alfworld_native.drawing.shapes import darkened


@builds("soapbottle")
def _soapbottle(b: Build) -> None:  # a pump with a bent spout
    r, high, colour = b.some(3.4, 4.4), b.some(12, 16), b.any()
    pump = b.pick((b.pale, b.dark, b.metal))()
    b.banded(0, r, high, r * b.some(0.75, 0.95), colour, darkened(colour, 8, 10))
    b.over()
    b.tube(high, 1.5, high + 2, 1.5, pump, pump)
    b.over()
    b.tube(high + 2, 0.6, high + 5, 0.6, pump)
    b.over()
    b.box(-5.2, high + 4.6, -0.9, 1.2, high + 6.2, 0.9, pump)


@builds("spraybottle")
def _spraybottle(b: Build) -> None:  # a trigger and a nozzle
    r, high, colour = b.some(3.8, 4.6), b.some(15, 18), b.any()
    head = b.any()
    b.profile(pairs(0, r, high * 0.6, r, high, 1.6), colour)
    b.over()
    b.upright(
        pairs(2.6, high, 3.2, high + 4.5, -5, high + 5, -5, high + 3, -1.5, high + 2.6, -1.5, high), -1.4, 1.4, head
    )
    b.over()
    b.upright(
        pairs(-2.6, high + 2.8, -1.6, high + 2.8, -3.4, high - 3, -4.4, high - 2.6), -0.7, 0.7, darkened(head, 6, 10)
    )


@builds("vase")
def _vase(b: Build) -> None:  # a belly, a narrow neck, a flared mouth
    r, high, colour = b.some(5.5, 8), b.some(20, 30), b.any()
    neck = r * b.some(0.3, 0.45)
    second = b.any() if b.chance(0.5) else colour
    b.profile(pairs(0, r * 0.5, high * 0.2, r * 0.85, high * 0.4, r), colour)
    b.profile(pairs(high * 0.4, r, high * 0.6, r * 0.8, high * 0.8, neck), second)
    b.profile([(high * 0.8, neck), (high, neck * 1.8)], colour, (24, 22, 24))


@builds("statue")
def _statue(b: Build) -> None:  # a figure on a square plinth
    colour = b.pick((b.brass, b.dark, b.pale, b.metal))()
    high, r = b.some(22, 32), b.some(3.6, 5)
    b.box(-r * 1.3, 0, -r * 1.3, r * 1.3, high * 0.16, r * 1.3, b.pick((b.dark, b.wood, b.pale))())
    b.over()
    b.profile(pairs(high * 0.16, r, high * 0.45, r * 0.6, high * 0.72, r * 0.95, high * 0.8, r * 0.35), colour)
    arm = b.some(0.5, 0.95)
    for side in (-1, 1):
        b.over()
        b.slab(
            [
                (side * r * 0.7, high * 0.74, -0.8),
                (side * r * 1.4, high * arm, -0.8),
                (side * r * 1.4, high * (arm - 0.08), -0.8),
                (side * r * 0.7, high * 0.64, -0.8),
            ],
            (0, 0, 1.6),
            colour,
        )
    b.over()
    b.ball(0, high * 0.88, 0, r * 0.52, colour, 1.2)


@builds("candle")
def _candle(b: Build) -> None:  # a wick with a drop of flame; wax, sometimes on a dish
    r, high, colour = b.some(2.6, 4), b.some(8, 15), b.pick((b.pale, b.pale, b.any))()
    if b.chance(0.5):
        dish = b.pick((b.brass, b.metal, b.dark))()
        b.tube(0, r * 1.3, 1.2, r * 1.8, dish, darkened(dish, 8, 10))
        b.over()
    b.tube(0.8, r, high, r * 0.96, colour, darkened(colour, 19, 20))
    b.over()
    b.box(-0.25, high, -0.25, 0.25, high + 1.6, 0.25, (30, 26, 24))
    b.over()
    b.ball(0, high + 2.8, 0, 0.95, (250, 190, 60), 1.7)


@builds("cloth")
def _cloth(b: Build) -> None:  # a crumpled flat rag, its edge wavy
    colour, r = b.any(), b.some(9, 11)
    wave = [
        (math.cos(k * math.pi / 7) * r * b.some(0.8, 1.15), math.sin(k * math.pi / 7) * r * b.some(0.6, 0.95))
        for k in range(14)
    ]
    b.flat(wave, 0, 0.8, colour)
    for k in range(3):
        b.over()
        x, z = b.some(-4, 4), b.some(-4, 4)
        b.flat(pairs(x - 4, z - 0.6, x, z - 1.4, x + 4, z + 0.4, x, z + 1.2), 0.8, 1.8, darkened(colour, 17 + k, 20))


@builds("dishsponge")
def _dishsponge(b: Build) -> None:  # a block in two layers, pores on the upper one
    foam, pad = (
        b.pick((lambda: b.hue(0.12, 0.17, (0.5, 0.85), (0.8, 0.95)), b.any))(),
        b.hue(0.25, 0.45, (0.4, 0.8), (0.25, 0.5)),
    )
    w, d = b.some(9.5, 12), b.some(6.5, 8)
    b.box(-w / 2, 0, -d / 2, w / 2, 1.4, d / 2, pad)
    b.over()
    b.box(-w / 2, 1.4, -d / 2, w / 2, 4.6, d / 2, foam)
    b.over()
    for _ in range(8):
        x, z = b.some(-w * 0.42, w * 0.42), b.some(-d * 0.4, d * 0.4)
        b.flat(circle(0.45, 5, x, z), 4.6, 4.62, darkened(foam, 6, 10))


@builds("soapbar")
def _soapbar(b: Build) -> None:  # a rounded bar with an engraved oval
    colour = b.hue(0, 1, (0.05, 0.4), (0.8, 0.97))
    w, d = b.some(8.5, 10.5), b.some(5.5, 6.8)
    c = 1.6
    outline = pairs(
        -w / 2 + c,
        -d / 2,
        w / 2 - c,
        -d / 2,
        w / 2,
        -d / 2 + c,
        w / 2,
        d / 2 - c,
        w / 2 - c,
        d / 2,
        -w / 2 + c,
        d / 2,
        -w / 2,
        d / 2 - c,
        -w / 2,
        -d / 2 + c,
    )
    b.flat(outline, 0, 3.2, colour)
    b.over()
    b.flat([(x * 0.7, z * 0.65) for x, z in outline], 3.2, 3.7, colour)
    b.over()
    b.flat(circle(w * 0.22, 10, 0, 0, 0.6), 3.7, 3.72, darkened(colour, 7, 10))


@builds("handtowel")
def _handtowel(b: Build) -> None:  # hangs; small, with a fringe and a loop
    w, high = b.some(20, 25), b.some(24, 30)
    deep = 2.5
    colour, second = b.any(), b.pale() if b.chance(0.6) else b.any()
    b.box(-w / 2, 0, -deep / 2, w / 2, high, deep / 2, colour)
    b.over()
    front = -deep / 2 - 0.1  # what is woven in stands a little before the cloth, so that it is painted over it
    stripes = b.pick(((0.08, 0.16), (0.08, 0.13, 0.18, 0.23), (0.4, 0.6)))
    for low, top in zip(stripes[::2], stripes[1::2], strict=True):
        stripe = pairs(-w / 2, high * low, w / 2, high * low, w / 2, high * top, -w / 2, high * top)
        b.upright(stripe, front, front + 0.1, second)
    for k in range(7):
        x = -w / 2 + (k + 0.2) * w / 7
        b.upright(pairs(x, -2, x + w / 12, -2, x + w / 12, 0, x, 0), front, front + 0.1, second)
    b.over()
    b.upright(
        pairs(
            -1.5,
            high,
            1.5,
            high,
            1.5,
            high + 3,
            0.7,
            high + 3,
            0.7,
            high + 0.8,
            -0.7,
            high + 0.8,
            -0.7,
            high + 3,
            -1.5,
            high + 3,
        ),
        -0.5,
        0.5,
        b.any(),
    )


@builds("towel")
def _towel(b: Build) -> None:  # a large folded stack: rounded folds at the front
    w, d, colour = b.some(34, 42), b.some(22, 28), b.any()
    second = b.pale() if b.chance(0.6) else b.any()
    layers = b.pick((2, 3))
    for k in range(layers):
        b.over()
        b.box(-w / 2, k * 3.6, -d / 2, w / 2, k * 3.6 + 3.4, d / 2, colour if k % 2 == 0 else darkened(colour, 18, 20))
    top = layers * 3.6 - 0.2
    b.over()
    for x in (-0.4, 0.3):
        b.box(w * x, top, -d / 2, w * (x + 0.08), top + 0.05, d / 2, second)


@builds("pillow")
def _pillow(b: Build) -> None:  # soft: a bulging outline with pointed corners, in plain or striped cloth
    w, d, high, colour = b.some(38, 46), b.some(26, 32), b.some(10, 13), b.any()
    outline = pairs(-1, -1, 0, -0.86, 1, -1, 0.9, 0, 1, 1, 0, 0.86, -1, 1, -0.9, 0)
    b.flat([(x * w / 2, z * d / 2) for x, z in outline], high * 0.3, high * 0.6, colour)
    b.over()
    b.flat([(x * w * 0.42, z * d * 0.42) for x, z in outline], high * 0.6, high * 0.85, colour)
    b.over()
    b.flat([(x * w * 0.3, z * d * 0.3) for x, z in outline], high * 0.85, high, colour)
    if b.chance(0.5):
        second = b.any()
        b.over()
        for x in (-0.2, -0.05, 0.1):
            b.box(w * x, high, -d * 0.24, w * (x + 0.06), high + 0.05, d * 0.24, second)


@builds("tissuebox")
def _tissuebox(b: Build) -> None:  # a box with a tuft of paper in a slot
    w, d, high, colour = b.some(18, 23), b.some(11, 13), b.some(7, 10), b.any()
    b.box(-w / 2, 0, -d / 2, w / 2, high, d / 2, colour)
    b.over()
    if b.chance(0.5):
        b.upright(
            pairs(-w / 2, high * 0.3, w / 2, high * 0.3, w / 2, high * 0.55, -w / 2, high * 0.55),
            -d / 2 - 0.05,
            -d / 2,
            b.any(),
        )
    b.flat(circle(w * 0.3, 10, 0, 0, 0.4), high, high + 0.05, (50, 46, 44))
    b.over()
    b.upright(
        pairs(
            -w * 0.22,
            high,
            w * 0.2,
            high,
            w * 0.3,
            high + 5,
            w * 0.08,
            high + 3.4,
            -w * 0.05,
            high + 6.5,
            -w * 0.25,
            high + 4,
        ),
        -0.6,
        0.6,
        (250, 250, 250),
    )


@builds("toiletpaper")
def _toiletpaper(b: Build) -> None:  # a white roll lying: the round end with its core to the front, a loose sheet
    r, long, paper = b.some(5.2, 6.2), b.some(9.5, 11), b.hue(0.1, 0.15, (0, 0.08), (0.9, 0.99))
    b.upright(circle(r, 14, 0, r), -long / 2, long / 2, paper)
    b.over()
    b.upright(circle(r * 0.42, 10, 0, r), -long / 2 - 0.1, -long / 2, b.hue(0.07, 0.1, (0.3, 0.5), (0.5, 0.7)))
    b.over()
    b.upright(circle(r * 0.3, 8, 0, r), -long / 2 - 0.2, -long / 2 - 0.1, (50, 40, 32))
    b.flat(pairs(r * 0.2, -long / 2, r * 1.9, -long / 2, r * 1.9, long / 2, r * 0.2, long / 2), 0, 0.2, paper)


@builds("papertowelroll")
def _papertowelroll(b: Build) -> None:  # a tall white roll on a stand with a rod
    r, high, paper = b.some(5.2, 6.4), b.some(22, 26), b.hue(0.1, 0.15, (0, 0.08), (0.9, 0.99))
    stand = b.pick((b.wood, b.metal, b.dark))()
    b.tube(0, r * 1.25, 1.4, r * 1.25, stand, stand)
    b.over()
    b.tube(1.4, r, high, r, paper, darkened(paper, 18, 20))
    b.over()
    b.tube(high, r * 0.35, high, r * 0.35, (150, 110, 74), (150, 110, 74))
    b.over()
    b.tube(high, 0.8, high + 4, 0.8, stand, stand)
    b.over()
    b.ball(0, high + 4.6, 0, 1.3, stand)


def _lamp_like(b: Build, r: float, high: float) -> None:
    base, shade = b.pick((b.dark, b.metal, b.brass, b.wood))(), b.pale() if b.chance(0.5) else b.any()
    b.tube(0, r * 0.75, 2.5, r * 0.7, base, base)
    b.over()
    b.tube(2.5, r * 0.1, high * 0.6, r * 0.1, base)
    b.over()
    b.tube(high * 0.6, r, high, r * b.some(0.45, 0.7), shade)


@builds("desklamp")
def _desklamp(b: Build) -> None:  # a shade over a stem and a foot
    _lamp_like(b, b.some(10, 13), b.some(32, 42))


@builds("floorlamp")
def _floorlamp(b: Build) -> None:  # the same, taller than a person's hip
    _lamp_like(b, b.some(16, 22), b.some(130, 160))


@builds("wateringcan")
def _wateringcan(b: Build) -> None:  # a long spout with a rose, a large handle behind
    r, high, colour = b.some(7, 9), b.some(14, 18), b.pick((b.metal, b.any, b.any))()
    dark = darkened(colour, 8, 10)
    b.slab(
        [
            (-r * 0.7, high * 0.25, -1),
            (-r - 12, high * 1.05, -1),
            (-r - 12, high * 0.92, -1),
            (-r * 0.7, high * 0.02, -1),
        ],
        (0, 0, 2),
        dark,
    )
    b.slab(
        [
            (-r - 10.5, high * 1.2, -2.4),
            (-r - 14.5, high * 1.0, -2.4),
            (-r - 13.5, high * 0.84, -2.4),
            (-r - 9.5, high * 1.04, -2.4),
        ],
        (0, 0, 4.8),
        colour,
    )
    b.ring(r * 0.8, high * 0.65, r * 0.95, high * 0.9, 1.5, dark)
    b.tube(0, r, high, r * 0.85, colour, (40, 44, 44))


@builds("plunger")
def _plunger(b: Build) -> None:  # a rubber cup, a long stick
    rubber = b.pick((lambda: b.hue(0.98, 1.04, (0.6, 0.85), (0.4, 0.75)), b.dark))()
    r, high = b.some(6.5, 8), b.some(40, 50)
    b.profile(pairs(0, r, 6, r * 0.95, 9, r * 0.35), rubber)
    b.over()
    b.tube(9, 1.2, high, 1.2, b.wood() if b.chance(0.7) else b.any(), (210, 190, 150))
