"""From solids to strokes: a pinhole camera, and what it sees of a box, a tube or a ball.

A `Stroke` is one call of Pillow's `ImageDraw`; a list of them, in order, renders a thing. Methods (see Foley et al.,
"Computer Graphics: Principles and Practice"): perspective projection u = f x / z; backface culling of boxes; polygons
clipped at the near plane with Sutherland and Hodgman's algorithm (1974); flat shading by the direction of a face.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from PIL import ImageDraw

from alfworld_native.drawing.geometry import Box
from alfworld_native.drawing.ids import Pose
from alfworld_native.drawing.scene import Solid, unit_axes
from alfworld_native.drawing.shapes import Block, Colour, Part, Slab, Tube

_NEAR = 0.1  # metres; nothing nearer is rendered
_SHADES = (0.80, 1.0, 0.90)  # brightness of faces across x, y (seen from above), z
_INK = 0.72  # brightness of outlines over their face
_LINE = 2  # pixels of the supersampled frame
_DOOR_ANGLE = math.radians(105)

Seen = tuple[float, float, float]  # metres right of, above, and along the line of sight


class Camera:
    """A pinhole camera at `eye` (metres); `focal` length and image centre `middle` are in pixels."""

    def __init__(
        self,
        eye: tuple[float, float, float],
        pose: Pose,
        focal: float,
        middle: tuple[float, float],
        *,
        aside: float = 0.0,
        light: Seen = (-0.36, 0.8, -0.48),
    ):
        """`aside` turns the camera further, in degrees clockwise; `light` is the unit vector to the lamp (`Slab`s)."""
        self.eye, self.focal, self.middle, self.light = eye, focal, middle, light
        sin_yaw: float
        cos_yaw: float
        sin_yaw, cos_yaw = pose.forward
        if aside:  # without it the numbers stay whole
            sin, cos = math.sin(math.radians(aside)), math.cos(math.radians(aside))
            sin_yaw, cos_yaw = sin_yaw * cos + cos_yaw * sin, cos_yaw * cos - sin_yaw * sin
        self.sin_yaw, self.cos_yaw = sin_yaw, cos_yaw
        pitch = math.radians(pose.horizon)
        self.sin_pitch, self.cos_pitch = math.sin(pitch), math.cos(pitch)

    def see(self, x: float, y: float, z: float) -> Seen:
        """A point of the room (metres) as the camera sees it."""
        dx, dy, dz = x - self.eye[0], y - self.eye[1], z - self.eye[2]
        # Yaw turns about the vertical axis, pitch about the axis to the right.
        ahead = dx * self.sin_yaw + dz * self.cos_yaw
        right = dx * self.cos_yaw - dz * self.sin_yaw
        return right, dy * self.cos_pitch + ahead * self.sin_pitch, ahead * self.cos_pitch - dy * self.sin_pitch

    def pixel(self, seen: Seen) -> tuple[float, float]:
        """Pixel of a point in front of the camera, given as `see` returns it."""
        # u = f x / z, v = -f y / z about the middle: pixels count downwards.
        scale = self.focal / seen[2]
        return self.middle[0] + seen[0] * scale, self.middle[1] - seen[1] * scale

    def polygon(self, corners: list[tuple[float, float, float]]) -> list[tuple[float, float]]:
        """Pixels of a polygon in the room, cut off at the near plane; empty if all of it is behind."""
        seen = [self.see(*corner) for corner in corners]
        if min(s[2] for s in seen) < _NEAR:
            # Sutherland and Hodgman's algorithm with one plane, z = near. An edge that crosses it is cut at the share
            # of its way at which z = near; of two ends only the one in front is kept.
            kept: list[Seen] = []
            for here, there in zip(seen, seen[1:] + seen[:1], strict=True):
                if here[2] >= _NEAR:
                    kept.append(here)
                if (here[2] < _NEAR) != (there[2] < _NEAR):
                    share = (_NEAR - here[2]) / (there[2] - here[2])
                    right, above = (a + share * (b - a) for a, b in zip(here[:2], there[:2], strict=True))
                    kept.append((right, above, _NEAR))
            seen = kept
        return [self.pixel(s) for s in seen]


class Stroke(NamedTuple):
    """One call of `ImageDraw`: `what` is polygon, ellipse or line; `points` are pixels."""

    what: str
    points: list[tuple[float, float]]
    fill: Colour
    outline: Colour | None = None


def apply_strokes(canvas: ImageDraw.ImageDraw, strokes: list[Stroke], fill: int | None = None) -> None:
    """Render strokes, in order, in their own colours, or all of them in `fill` (for a mask)."""
    for what, points, own, edge in strokes:
        # In a mask the outline belongs to the thing.
        inside, outline = (own, edge) if fill is None else (fill, fill if edge else None)
        if what == "polygon":
            canvas.polygon(points, fill=inside, outline=outline)
        elif what == "ellipse":
            canvas.ellipse(points, fill=inside, outline=outline)
        else:
            canvas.line(points, fill=inside, width=_LINE)


def _tinted(colour: Colour, towards: Colour, share: float) -> Colour:
    red, green, blue = (int(c + (t - c) * share) for c, t in zip(colour, towards, strict=True))
    return red, green, blue


def shaded(colour: Colour, factor: float) -> Colour:
    """`colour` at `factor` times its brightness."""
    return (int(colour[0] * factor), int(colour[1] * factor), int(colour[2] * factor))


def _paint_sides(
    camera: Camera, box: Box, colour: Colour, without: str = "", *, inner: bool = False, dim: float = 1.0
) -> list[Stroke]:
    """The sides of a box that the camera sees but for one; `dim` is their brightness.

    With `inner` the box is seen from within: its sides are those that face away from the camera.
    """
    x0, y0, z0, x1, y1, z1 = box
    # A side of an axis-aligned box faces the camera if the eye is beyond its plane.
    ex, ey, ez = camera.eye
    sides = (  # name (axis and end), whether it faces the camera, corners, brightness
        ("x0", ex < x0, ((x0, y0, z0), (x0, y0, z1), (x0, y1, z1), (x0, y1, z0)), _SHADES[0]),
        ("x1", ex > x1, ((x1, y0, z0), (x1, y0, z1), (x1, y1, z1), (x1, y1, z0)), _SHADES[0]),
        ("z0", ez < z0, ((x0, y0, z0), (x1, y0, z0), (x1, y1, z0), (x0, y1, z0)), _SHADES[2]),
        ("z1", ez > z1, ((x0, y0, z1), (x1, y0, z1), (x1, y1, z1), (x0, y1, z1)), _SHADES[2]),
        ("y0", ey < y0, ((x0, y0, z0), (x1, y0, z0), (x1, y0, z1), (x0, y0, z1)), 0.6),
        ("y1", ey > y1, ((x0, y1, z0), (x1, y1, z0), (x1, y1, z1), (x0, y1, z1)), _SHADES[1]),
    )
    strokes = []
    for name, shown, corners, light in sides:
        points = camera.polygon(list(corners)) if shown != inner and name != without else []
        if len(points) > 2:
            lit = light * dim
            strokes.append(Stroke("polygon", points, shaded(colour, lit), shaded(colour, lit * _INK)))
    return strokes


def _paint_tube(camera: Camera, base: tuple, top: tuple, radii: tuple[float, float], part: Tube) -> list[Stroke]:
    """An upright round solid: two ellipses and the quadrilateral between their widest points."""
    low, high = camera.see(*base), camera.see(*top)
    if min(low[2], high[2]) < _NEAR:
        return []
    ends = []
    for seen, radius in ((low, radii[0]), (high, radii[1])):
        u, v = camera.pixel(seen)
        reach = radius * camera.focal / seen[2]
        # A level circle is flattened by the sine of the angle at which the line of sight meets its plane.
        distance = math.sqrt(seen[0] ** 2 + seen[1] ** 2 + seen[2] ** 2)
        flat = abs(seen[1] * camera.cos_pitch - seen[2] * camera.sin_pitch) / distance
        ends.append((u, v, reach, reach * flat))
    (u0, v0, r0, f0), (u1, v1, r1, f1) = ends
    # The unit normal of the axis on the screen: the silhouette leaves the ellipses at their widest points.
    length = math.hypot(u1 - u0, v1 - v0) or 1.0
    nx, ny = -(v1 - v0) / length, (u1 - u0) / length
    if v1 > v0:  # seen from so far above that the top hides the bottom
        nx, ny = -nx, -ny
    # The lid is seen from above or not at all; below eye level it has its own colour.
    above = top[1] < camera.eye[1]
    dark = shaded(part.colour, _INK)
    body = [
        (u0 + nx * r0, v0 + ny * r0),
        (u1 + nx * r1, v1 + ny * r1),
        (u1 - nx * r1, v1 - ny * r1),
        (u0 - nx * r0, v0 - ny * r0),
    ]
    strokes = (
        []
        if part.v0 == part.v1
        else [
            Stroke("ellipse", [(u0 - r0, v0 - f0), (u0 + r0, v0 + f0)], shaded(part.colour, 0.85), dark),
            Stroke("polygon", body, shaded(part.colour, 0.88)),
            Stroke("line", body[:2], dark),
            Stroke("line", body[2:], dark),
        ]
    )
    lid = part.top if above and part.top else shaded(part.colour, 1.0 if above else 0.88)
    return [*strokes, Stroke("ellipse", [(u1 - r1, v1 - f1), (u1 + r1, v1 + f1)], lid, dark)]


def _paint_slab(camera: Camera, face: list[Seen], along: Seen, colour: Colour) -> list[Stroke]:
    """The strip far to near, then the face that is nearer; brightness by the angle between a face and the light."""
    back = [(x + along[0], y + along[1], z + along[2]) for x, y, z in face]
    seen, seen_back = [camera.see(*p) for p in face], [camera.see(*p) for p in back]
    if min(s[2] for s in seen) < _NEAR or min(s[2] for s in seen_back) < _NEAR:
        return []
    pixels, pixels_back = [camera.pixel(s) for s in seen], [camera.pixel(s) for s in seen_back]
    depth, depth_back = sum(s[2] for s in seen), sum(s[2] for s in seen_back)
    length = math.sqrt(along[0] ** 2 + along[1] ** 2 + along[2] ** 2) or 1.0
    light = camera.light
    # The faces' normals are along the push; a face that looks away from the light still gets what the room reflects.
    lit = (along[0] * light[0] + along[1] * light[1] + along[2] * light[2]) / length
    strokes = []
    if length > 0.002:
        count = len(face)
        order = sorted(range(count), key=lambda i: -(seen[i][2] + seen[(i + 1) % count][2]))
        for i in order:
            j = (i + 1) % count
            ex, ey, ez = face[j][0] - face[i][0], face[j][1] - face[i][1], face[j][2] - face[i][2]
            # The normal of a side is perpendicular to its edge and to the push.
            nx, ny, nz = ey * along[2] - ez * along[1], ez * along[0] - ex * along[2], ex * along[1] - ey * along[0]
            size = math.sqrt(nx * nx + ny * ny + nz * nz) or 1.0
            # Outlines may turn either way, so the side takes the larger of its two angles to the light, dimmed.
            share = 0.58 + 0.27 * abs(nx * light[0] + ny * light[1] + nz * light[2]) / size
            strokes.append(
                Stroke("polygon", [pixels[i], pixels[j], pixels_back[j], pixels_back[i]], shaded(colour, share))
            )
    near, toward = (pixels_back, lit) if depth_back < depth else (pixels, -lit)
    share = 0.7 + 0.3 * max(toward, 0.0)
    strokes.append(Stroke("polygon", near, shaded(colour, share), shaded(colour, share * _INK)))
    return strokes


def _paint_part(camera: Camera, solid: Solid, part: Part, colour: Colour) -> list[Stroke]:
    box = solid.box
    (cx, cz), across, depth = unit_axes(box, solid.front)
    bottom, height = box[1], box[4] - box[1]

    def at(u: float, v: float, w: float) -> tuple[float, float, float]:
        return cx + u * across[0] + w * depth[0], bottom + v * height, cz + u * across[1] + w * depth[1]

    if isinstance(part, Slab):
        origin, (du, dv, dw) = at(0.0, 0.0, 0.0), part.along
        end = at(du, dv, dw)
        along = (end[0] - origin[0], end[1] - origin[1], end[2] - origin[2])
        return _paint_slab(camera, [at(*point) for point in part.face], along, colour)
    if isinstance(part, Block):
        (ax, ay, az), (bx, by, bz) = at(part.u0, part.v0, part.w0), at(part.u1, part.v1, part.w1)
        block = (min(ax, bx), min(ay, by), min(az, bz), max(ax, bx), max(ay, by), max(az, bz))
        return _paint_sides(camera, block, colour)
    width = abs(across[0]) + abs(across[1])
    # Radii of round parts are in units of the solid's width; one component of `across` is 0.
    if isinstance(part, Tube):
        radii = (part.r0 * width, part.r1 * width)
        low, high = at(part.u, part.v0, part.w), at(part.u, part.v1, part.w)
        return _paint_tube(camera, low, high, radii, part._replace(colour=colour))
    # A ball is a disc whatever the direction from which it is seen, and a lighter spot at its upper left.
    seen = camera.see(*at(part.u, part.v, part.w))
    if seen[2] < _NEAR:
        return []
    (u, v), r = camera.pixel(seen), part.r * width * camera.focal / seen[2]
    h = r * part.squash
    glint = [(u - r * 0.5, v - h * 0.6), (u - r * 0.05, v - h * 0.15)]
    return [
        Stroke("ellipse", [(u - r, v - h), (u + r, v + h)], shaded(colour, 0.92), shaded(colour, 0.65)),
        Stroke("ellipse", glint, _tinted(colour, (255, 255, 255), 0.45)),
    ]


def paint(camera: Camera, solid: Solid) -> list[Stroke]:
    """The strokes of a thing and of what is seen inside it, far to near; none if it is behind the camera."""
    if solid.opening:
        return _paint_open(camera, solid)
    strokes = []
    # What heat, cold and cleaning do to the colours of all parts: reddish, bluish, brighter.
    colours = [part.colour for part in solid.parts]
    for mark, towards, share in (
        ("hot", (255, 84, 30), 0.35),
        ("cool", (110, 180, 255), 0.45),
        ("clean", (255, 255, 255), 0.15),
    ):
        if mark in solid.marks:
            colours = [_tinted(colour, towards, share) for colour in colours]
    for part, colour in zip(solid.parts, colours, strict=True):
        strokes += _paint_part(camera, solid, part, colour)
    return strokes + _paint_marks(strokes, solid.marks) if strokes and solid.marks else strokes


def _paint_open(camera: Camera, solid: Solid) -> list[Stroke]:
    """An open container: its walls from within, its contents, its walls from without, its door."""
    fx, fz = solid.front
    from_above = solid.opening.startswith("top")
    missing = "y1" if from_above else ("x" if fx else "z") + ("1" if fx + fz > 0 else "0")
    colour = solid.parts[0].colour
    # Light comes from lamps at the ceiling: less of it reaches the inside through a door than through the top.
    strokes = _paint_sides(camera, solid.box, colour, missing, inner=True, dim=0.85 if from_above else 0.55)
    # The farthest thing first (painter's algorithm), by the middle of its box (x0, y0, z0, x1, y1, z1).
    middles = {i: [(s.box[k] + s.box[k + 3]) / 2 for k in range(3)] for i, s in enumerate(solid.inside)}
    for i in sorted(middles, key=lambda i: -math.dist(camera.eye, middles[i])):
        strokes += paint(camera, solid.inside[i])
    if "built-in" not in solid.opening:
        strokes += _paint_sides(camera, solid.box, colour, missing)
    if from_above:
        return strokes
    # The door, swung out on its left edge. (ux, uz) is the unit vector along the front; the door turns from it by its
    # angle, and is a little narrower.
    corner, across, _ = unit_axes(solid.box, solid.front)
    width = abs(across[0]) + abs(across[1])
    ux, uz = across[0] / width, across[1] / width
    swing, out = math.cos(_DOOR_ANGLE) * width * 0.8, math.sin(_DOOR_ANGLE) * width * 0.8
    end = (corner[0] + ux * swing + solid.front[0] * out, corner[1] + uz * swing + solid.front[1] * out)
    low, high = solid.box[1], solid.box[4]
    corners = [(corner[0], low, corner[1]), (end[0], low, end[1]), (end[0], high, end[1]), (corner[0], high, corner[1])]
    points = camera.polygon(corners)
    if len(points) > 2:
        door = shaded(colour, 0.95)
        strokes.append(Stroke("polygon", points, door, shaded(door, 0.6)))
    return strokes


def extent(strokes: list[Stroke]) -> tuple[float, float, float, float]:
    """Left, top, right, bottom of all strokes, in pixels."""
    us = [u for stroke in strokes for u, _ in stroke.points]
    vs = [v for stroke in strokes for _, v in stroke.points]
    return min(us), min(vs), max(us), max(vs)


def _paint_marks(strokes: list[Stroke], marks: tuple[str, ...]) -> list[Stroke]:
    """Steam over what is hot, a snowflake on what is cool, a sparkle on what is clean, rays around what is lit."""
    left, top, right, bottom = extent(strokes)
    # Marks are as large as the thing, but never too small to be recognised.
    wide, middle = max(right - left, 12.0), (left + right) / 2
    found = []
    if "lit" in marks:
        centre, reach = (middle, top + (bottom - top) * 0.2), wide * 0.9
        found += _star(centre, reach, reach * 0.62, 12, (255, 244, 170))
    if "hot" in marks:
        for step in (-0.3, 0.0, 0.3):
            u = middle + step * wide
            wave = [(u + wide * 0.07 * (-1) ** k, top - wide * (0.08 + 0.12 * k)) for k in range(5)]
            found += [
                Stroke("line", wave, (250, 250, 250)),
                Stroke("line", [(a + 2, b) for a, b in wave], (214, 120, 90)),
            ]
    if "cool" in marks:
        found += _star((left + wide * 0.15, top), wide * 0.32, 0.0, 6, (60, 120, 235))
    if "clean" in marks:
        u, v, r = right - wide * 0.08, top + wide * 0.05, max(wide * 0.3, 7.0)
        points = []
        for k in range(8):
            reach = r if k % 2 == 0 else r * 0.28
            points.append((u + reach * math.sin(k * math.pi / 4), v - reach * math.cos(k * math.pi / 4)))
        found.append(Stroke("polygon", points, (255, 255, 255), (70, 130, 190)))
    return found


def _star(centre: tuple[float, float], outer: float, inner: float, count: int, colour: Colour) -> list[Stroke]:
    """`count` rays around `centre`, from `inner` to `outer` pixels away."""
    rays = []
    for k in range(count):
        du, dv = math.cos(2 * math.pi * k / count), math.sin(2 * math.pi * k / count)
        ends = [(centre[0] + du * inner, centre[1] + dv * inner), (centre[0] + du * outer, centre[1] + dv * outer)]
        rays.append(Stroke("line", ends, colour))
    return rays
