"""EMAC+'s own small LAVIS: the interface of Salesforce's library on today's PyTorch and Transformers.

Same package name, so that users' imports, configs and commands stay what they were; hence no other distribution that
provides `lavis` can be installed beside it, and importing says so at once.
"""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Iterable
from pathlib import Path

from omegaconf import OmegaConf

from lavis.common.registry import registry

OWN_DISTRIBUTION = "emac-plus"


def other_providers(distributions: Iterable[importlib.metadata.Distribution]) -> list[str]:
    """Names of installed distributions, other than ours, whose top-level packages include `lavis`."""
    names = set()
    for distribution in distributions:
        top_level = (distribution.read_text("top_level.txt") or "").split()
        if "lavis" in top_level and (name := distribution.metadata["Name"]) != OWN_DISTRIBUTION:
            names.add(name)
    return sorted(names)


def _check_alone() -> None:
    if others := other_providers(importlib.metadata.distributions()):
        raise ImportError(
            f"another distribution also provides the package 'lavis': {', '.join(others)}. Which of the two is "
            f"imported would be chance; remove it (pip uninstall {' '.join(others)}) or use another environment"
        )


def _register_paths() -> None:
    library_root = Path(__file__).resolve().parent
    defaults = OmegaConf.load(library_root / "configs" / "default.yaml")
    registry.register_path("library_root", str(library_root))
    registry.register_path("repo_root", str(library_root.parent))
    registry.register_path("cache_root", str(library_root.parent / Path(defaults.env.cache_root).expanduser()))


_check_alone()
_register_paths()
registry.register("MAX_INT", sys.maxsize)
registry.register("SPLIT_NAMES", ["train", "val", "test"])
