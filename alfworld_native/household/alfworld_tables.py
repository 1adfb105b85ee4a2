"""ALFWorld's own tables, texts and floor plans that the generator needs, so that it runs without the package alfworld.

They stand in `alfworld_tables.json` beside this module, under ALFWorld's licence (`alfworld_license.txt`):

- `domain`, `grammar`: `data/alfred.pddl` and `data/alfred.twl2`;
- `may_hold`, `abilities`, `containers`, `train_rooms`, `test_rooms`: from `gen/constants.py`;
- `goals`: PDDL goals and sentences of the task types, from `gen/goal_library.py`;
- `floor_plans`: `gen/layouts/FloorPlan<n>-*`: `poses` (receptacle id -> x, z, degrees, horizon from where it is
  reached), `types` (everything in the room), `points` (reachable points in grid units of 0.25 m, x and z in turn).

`python -m alfworld_native.household.alfworld_tables` writes the file anew from the installed alfworld.
"""

from __future__ import annotations

import importlib.util
import json
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from alfworld_native.language.sentences import TASK_TYPES
from lavis.common.errors import MissingExtraError
from lavis.common.files import write_text
from lavis.common.program import run_program

GRID = 0.25  # metres between neighbouring standing points
_FILE = Path(__file__).with_name("alfworld_tables.json")
_ABILITIES = ("Heatable", "Coolable", "Cleanable", "Toggleable", "Sliceable")


@cache
def tables() -> dict[str, Any]:
    """The tables by the names above, and `alfworld`, the version of the package that they come from."""
    return json.loads(_FILE.read_text(encoding="utf-8"))


def alfworld_path() -> Path:
    """Folder of the installed `alfworld` package, found without importing it; `MissingExtraError` if it is missing."""
    spec = importlib.util.find_spec("alfworld")
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtraError("package alfworld is not installed: run `pip install -e '.[textworld]'`")
    return Path(next(iter(spec.submodule_search_locations)))


def extract() -> dict[str, Any]:
    """The tables as the installed alfworld has them; MissingExtraError if it is not installed."""
    root = alfworld_path()
    import numpy as np
    from alfworld.gen import constants, goal_library

    plans = {}
    for number in sorted({*constants.TRAIN_SCENE_NUMBERS, *constants.TEST_SCENE_NUMBERS}):
        layouts = root / "gen" / "layouts"
        layout = np.load(layouts / f"FloorPlan{number}-layout.npy", allow_pickle=False)
        # ALFWorld gives metres; grid units are whole numbers, which take less room in the file.
        points = sorted({(round(x / GRID), round(z / GRID)) for x, z in layout.tolist()})
        plans[str(number)] = {
            "poses": json.loads((layouts / f"FloorPlan{number}-openable.json").read_text()),
            "types": sorted(json.loads((layouts / f"FloorPlan{number}-objects.json").read_text())),
            "points": [value for point in points for value in point],
        }
    return {
        "alfworld": metadata.version("alfworld"),
        "domain": (root / "data" / "alfred.pddl").read_text(encoding="utf-8"),
        "grammar": (root / "data" / "alfred.twl2").read_text(encoding="utf-8"),
        "may_hold": {kind: sorted(things) for kind, things in sorted(constants.VAL_RECEPTACLE_OBJECTS.items())},
        "abilities": {ability: sorted(constants.VAL_ACTION_OBJECTS[ability]) for ability in _ABILITIES},
        "containers": sorted(constants.MOVABLE_RECEPTACLES),
        "train_rooms": sorted(constants.TRAIN_SCENE_NUMBERS),
        "test_rooms": sorted(constants.TEST_SCENE_NUMBERS),
        "goals": {kind: {key: goal_library.gdict[kind][key] for key in ("pddl", "templates")} for kind in TASK_TYPES},
        "floor_plans": plans,
    }


def main() -> None:
    """Write the file from the installed alfworld: one line for each table and floor plan."""
    content = extract()
    plans = content.pop("floor_plans")
    lines = [f'"{name}": {json.dumps(value)}' for name, value in content.items()]
    rooms = ",\n".join(f'"{number}": {json.dumps(plan, separators=(",", ":"))}' for number, plan in plans.items())
    text = "{\n" + ",\n".join(lines) + ',\n"floor_plans": {\n' + rooms + "\n}\n}\n"
    write_text(_FILE, text)


if __name__ == "__main__":
    run_program(main)
