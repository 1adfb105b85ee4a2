"""The published names of modules that have moved: old imports and `python -m` names lead to the modules of today.

    from xrl_alignment.environments.native.game import NativeGame   # gives alfworld_native.engine.game
    python -m xrl_alignment.collect                                 # runs xrl_alignment/lab/collect.py

`import` asks `MovedModules` first for every name below `xrl_alignment`. An old name gives the very same module object
as the new name, so classes are equal whichever name they were imported by.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType

_X = "xrl_alignment"
# The longest old name that begins a module's name decides.
MOVED = {
    "environments": "alfworld_native",
    "environments.native": "alfworld_native.engine",
    **{f"language.{name}": f"alfworld_native.language.{name}" for name in ("commands", "feedback", "sentences")},
    **{
        f"experts.{name}": f"alfworld_native.experts.{name}"
        for name in ("alfworld", "base", "belief", "explorer", "seeing", "state_service", "statistics")
    },
    **{f"adapters.{name}": f"alfworld_native.adapters.{name}" for name in ("alfworld", "alfworld_batch", "verl_agent")},
    **{f"common.{name}": f"lavis.common.{name}" for name in ("named_class", "paths", "program")},
    **{name: f"{_X}.agents.{name}" for name in ("experts", "language", "policies", "reflexion")},
    **{name: f"{_X}.play.{name}" for name in ("client", "collection", "evaluation", "rollouts")},
    "config": f"{_X}.settings",
    "learner": f"{_X}.dagger.decoupled",
    "learner.decoupled": f"{_X}.dagger.decoupled.trainer",
    "builders.learner": f"{_X}.dagger.building",
    "builders.emac_plus": f"{_X}.planning.building",
    # The room `play` has the name of a command of before, whose modules were these.
    **{
        f"play.{name}": f"{_X}.show.play.{name}"
        for name in ("__main__", "card", "game", "recording", "screen", "settings", "terminal", "web")
    },
    **{name: f"{_X}.show.{name}" for name in ("dashboard", "report")},
    **{
        name: f"{_X}.lab.{name}"
        for name in (
            "collect",
            "convert",
            "demo",
            "doctor",
            "lavis_task",
            "levels",
            "loops",
            "make_figures",
            "pipeline",
        )
    },
    **{name: f"{_X}.lab.{name}" for name in ("audit", "pretraining", "results")},
    **{
        f"make_{name}": f"{_X}.lab.pretraining.{name}"
        for name in ("backbone", "planner", "prompts", "student", "vision")
    },
}


def name_of_today(name: str) -> str:
    """The module that the name `xrl_alignment.…` of a module leads to now; the same name if it has not moved."""
    words = name.split(".")[1:]
    # From the longest beginning of the name to the shortest.
    for length in range(len(words), 0, -1):
        if moved := MOVED.get(".".join(words[:length])):
            return ".".join([moved, *words[length:]])
    return name


class MovedModules(MetaPathFinder):
    """Finds modules by their old names."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """A specification that loads the module of today; None if the name is no old one, or leads nowhere."""
        # `python -m` reads the specification, so it has what a file has: an origin, and a package's folders.
        today = name_of_today(fullname) if fullname.startswith(f"{_X}.") else fullname
        if today == fullname or (found := importlib.util.find_spec(today)) is None:
            return None
        package = found.submodule_search_locations
        spec = ModuleSpec(fullname, _Forward(found), origin=found.origin, is_package=package is not None)
        spec.submodule_search_locations = package
        spec.has_location = True
        return spec


class _Forward(InspectLoader):
    """Loads the module that `found` specifies, under whichever name it is asked for."""

    def __init__(self, found: ModuleSpec) -> None:
        self.found = found

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The module of today."""
        return importlib.import_module(self.found.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing is run twice; the module keeps its own specification, which `import` has just replaced."""
        module.__spec__ = self.found
        module.__loader__ = self.found.loader

    def get_code(self, fullname: str) -> CodeType | None:
        """What `python -m` runs."""
        assert isinstance(self.found.loader, InspectLoader)
        return self.found.loader.get_code(self.found.name)

    def get_source(self, fullname: str) -> str | None:
        """The module's text, for tracebacks."""
        assert isinstance(self.found.loader, InspectLoader)
        return self.found.loader.get_source(self.found.name)


def install() -> None:
    """Let `import` know the old names; may be called again."""
    if not any(isinstance(finder, MovedModules) for finder in sys.meta_path):
        sys.meta_path.insert(0, MovedModules())
