"""EMAC+'s own small LAVIS: the interface of Salesforce's library on today's PyTorch and Transformers.

It has the same package name, so that users' imports, configs and commands stay what they were. So no other distribution
that provides `lavis` can be installed beside it, and importing fails with its name if one is.

Importing this package loads the standard library and the registry only: neither torch nor OmegaConf. Where a program of
the project imports it, it first looks whether this interpreter can run that program.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import sys
from pathlib import Path

from lavis.common.registry import registry

OWN_DISTRIBUTION = "emac-plus"
OLDEST_PYTHON = (3, 10)
NEEDED = ("numpy", "omegaconf", "torch", "transformers")  # by every program but these:
# The first reports what is missing; the others need no extra.
LIGHT_PROGRAMS = ("xrl_alignment.doctor", "xrl_alignment.environments", "xrl_alignment.play", "alfworld_native")
_CACHE_ROOT = re.compile(r"^ +cache_root: *([^#\s][^#\n]*)", re.MULTILINE)


def cache_root(library_root: Path) -> Path:
    """`env.cache_root` of configs/default.yaml; a relative path is taken from the folder that holds the package.

    `$XDG_CACHE_HOME`, if it is set, takes the place of `~/.cache`, unless only the folder in `~/.cache` exists: older
    versions used it whatever the variable said.
    The one line is read without a yaml parser, which would be most of the time that importing takes.
    """
    found = _CACHE_ROOT.search((library_root / "configs" / "default.yaml").read_text(encoding="utf-8"))
    if found is None:
        raise ValueError("lavis/configs/default.yaml has no line `cache_root: FOLDER` under `env:`")
    stated = Path(found[1].strip().strip("'\""))
    if (elsewhere := os.environ.get("XDG_CACHE_HOME")) and stated.is_relative_to("~/.cache"):
        moved = Path(elsewhere, stated.relative_to("~/.cache")).expanduser().absolute()
        if moved.is_dir() or not stated.expanduser().is_dir():
            stated = moved
    return library_root.parent / stated.expanduser()


def _is_program() -> bool:
    """Whether one of the project's programs is starting: `python train.py`, `python -m lavis.models.verify`.

    Python has `-m` as the program's name while it looks for the module.
    """
    name = Path(sys.argv[0] if sys.argv else "")
    return str(name) == "-m" or (name.suffix == ".py" and name.resolve().parent == Path(__file__).resolve().parents[1])


def _refuse(message: str) -> None:
    """ImportError; a program ends in one line."""
    if not _is_program():
        raise ImportError(message)
    print(f"error: {message}", file=sys.stderr)
    raise SystemExit(2)


def _check_interpreter() -> None:
    """Programs only: whoever imports the package hears from Python what is missing."""
    if not _is_program() or any(word.startswith(LIGHT_PROGRAMS) for word in getattr(sys, "orig_argv", ())):
        return
    lacking = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if sys.version_info >= OLDEST_PYTHON and not lacking:
        return
    version = ".".join(map(str, sys.version_info[:3]))
    fault = f"lacks {', '.join(lacking)}" if sys.version_info >= OLDEST_PYTHON else "is older than Python 3.10"
    own = Path(__file__).resolve().parents[1] / ".venv" / "bin" / "python"
    how = f"use {own}" if own.exists() else "`make install` sets up .venv; then use .venv/bin/python"
    _refuse(f"{sys.executable} (Python {version}) {fault}: {how}, or activate it: source .venv/bin/activate")


def _check_alone() -> None:
    """Refuse to be imported if another installed distribution has a top-level package `lavis`, too."""
    others = set()
    for distribution in importlib.metadata.distributions():
        # Wheels built with setuptools list their top-level packages here; other builders may leave the file out.
        top_level = (distribution.read_text("top_level.txt") or "").split()
        if "lavis" in top_level and (name := distribution.metadata["Name"]) != OWN_DISTRIBUTION:
            others.add(name)
    if others:
        _refuse(
            f"another distribution also provides the package 'lavis': {', '.join(sorted(others))}. It is left to "
            "chance which of the two is imported: remove it "
            f"(pip uninstall {' '.join(sorted(others))}) or use another environment"
        )


_check_interpreter()
_check_alone()
# The names under which LAVIS's code asks the registry for its folders and constants.
_LIBRARY_ROOT = Path(__file__).resolve().parent
registry.register_path("library_root", str(_LIBRARY_ROOT))
registry.register_path("repo_root", str(_LIBRARY_ROOT.parent))
registry.register_path("cache_root", str(cache_root(_LIBRARY_ROOT)))
registry.register("MAX_INT", sys.maxsize)
registry.register("SPLIT_NAMES", ["train", "val", "test"])
