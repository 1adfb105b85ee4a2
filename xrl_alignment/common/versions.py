"""The versions of Python and of the packages that a result depends on."""

from __future__ import annotations

import platform
from importlib import metadata

PACKAGES = ("emac-plus", "torch", "transformers", "alfworld", "textworld", "numpy")


def versions() -> dict[str, str]:
    """Versions by name, "python" first; packages that are not installed are left out."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
