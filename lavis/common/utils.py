"""LAVIS's small helpers of paths and names."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from urllib.parse import urlsplit

from lavis.common.registry import registry


def now() -> str:
    """The time as LAVIS's names of runs have it, 20240131123: to ten minutes, so that a run's processes agree."""
    return datetime.now().strftime("%Y%m%d%H%M")[:-1]


def is_url(url_or_filename: object) -> bool:
    """Whether it names a file on the web."""
    return urlsplit(str(url_or_filename)).scheme in ("http", "https")


def get_abs_path(rel_path: str) -> str:
    """A path below the folder of the package `lavis`; an absolute path stays what it is."""
    return str(Path(registry.get_path("library_root"), rel_path))


def get_cache_path(rel_path: str) -> str:
    """A path below the cache (`env.cache_root` of configs/default.yaml); an absolute path stays what it is."""
    return str(Path(registry.get_path("cache_root"), rel_path).expanduser())


def makedir(dir_path: str) -> bool:
    """Make a folder with its parents; whether it is there afterwards."""
    Path(dir_path).mkdir(parents=True, exist_ok=True)
    return Path(dir_path).is_dir()
