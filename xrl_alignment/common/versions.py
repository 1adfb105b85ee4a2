"""Versions of what a result depends on."""

import platform
from importlib import metadata

PACKAGES = ("emac-plus", "torch", "transformers", "alfworld", "textworld", "numpy")


def versions() -> dict[str, str]:
    """Python's and the packages' versions; packages that are not installed are left out."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
