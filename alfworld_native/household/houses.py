"""Several floor plans side by side as one: a house whose rooms have all their receptacles in one listing."""

from __future__ import annotations

import dataclasses
import random
from functools import cache

from alfworld_native.household.alfworld_tables import GRID
from alfworld_native.household.floor_plans import (
    FloorPlan,
    Receptacle,
    floor_plan_numbers,
    load_floor_plan,
    location_id,
    mangle,
    room_kind,
)

_GAP = 4  # grid units between two rooms


def draw_plan(rooms: int, heldout: bool, rng: random.Random) -> FloorPlan:
    """A floor plan of one side of the train/held-out division; with several `rooms` a house of different kinds."""
    numbers = floor_plan_numbers(heldout)
    if rooms == 1:
        return load_floor_plan(rng.choice(numbers))
    kinds = rng.sample(sorted({room_kind(number) for number in numbers}), rooms)
    return load_house(tuple(rng.choice([number for number in numbers if room_kind(number) == kind]) for kind in kinds))


@cache
def load_house(numbers: tuple[int, ...]) -> FloorPlan:
    """The floor plans `numbers` from left to right; the result depends on the numbers alone."""
    plans: list[FloorPlan] = []
    right = 0  # grid units
    for number in numbers:
        plan = load_floor_plan(number)
        if plans:  # the room further along x, beside the last one
            # In grid units, so that standing points stay on the grid.
            by = right + _GAP - min(x for x, _ in plan.points)
            plan = dataclasses.replace(
                plan,
                receptacles=tuple(_moved(receptacle, by) for receptacle in plan.receptacles),
                points=tuple((x + by, z) for x, z in plan.points),
            )
        right = max(x for x, _ in plan.points)
        plans.append(plan)
    return FloorPlan(
        number=numbers[0],
        kind="House",
        receptacles=tuple({r.id.lower(): r for plan in plans for r in plan.receptacles}.values()),  # each id once
        object_types=tuple(sorted({kind for plan in plans for kind in plan.object_types})),
        points=tuple(point for plan in plans for point in plan.points),
        joined=numbers[1:],
    )


def _moved(receptacle: Receptacle, by: int) -> Receptacle:
    """The receptacle `by` grid units further along x."""
    x, y, z = receptacle.position
    x = round(x + by * GRID, 2)
    kind, _, rest = receptacle.id.split("_bar_", 2)  # the position follows the type, x first
    place = [int(word.replace("_minus_", "-")) for word in receptacle.location.split("_bar_")[1:]]
    return dataclasses.replace(
        receptacle,
        id="_bar_".join((kind, mangle(f"{x:+06.2f}"), rest)),
        position=(x, y, z),
        location=location_id(place[0] + by, *place[1:]),
    )
