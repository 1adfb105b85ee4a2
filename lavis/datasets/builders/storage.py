"""Where a split's samples lie: a file or folder on this machine, or a file on the web that is downloaded once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lavis.common.errors import ConfigError, unknown
from lavis.common.utils import is_url
from lavis.datasets.annotations import cache_folder
from lavis.models import download

KEYS = ("storage", "url", "md5")


def check_annotations(annotations: Mapping[str, Any]) -> None:
    """ConfigError for a split in `build_info.annotations` with a key that nobody reads, or a value that is no text."""
    for split, info in annotations.items():
        name = f"build_info.annotations.{split}"
        if info is not None and not isinstance(info, Mapping):
            raise ConfigError(f"{name}: {info!r} is no section: write {name}.storage (or .url)")
        info = info or {}
        for key, value in info.items():
            if key not in KEYS:
                raise ConfigError(unknown("key", str(key), KEYS, prefix=f"{name}."))
            several = key == "storage" and isinstance(value, list) and not info.get("url")
            if not all(isinstance(part, str | Path) for part in (value if several else [value or ""])):
                raise ConfigError(f"{name}.{key}: {value!r} is not a path or an address")


def below(path: str | Path, folder: Path | None) -> Path:
    """`path`; a relative one that is not there lies in `folder`, if that is given."""
    found = Path(path).expanduser()
    return found if folder is None or found.exists() else folder / found


def located(info: Mapping[str, Any], folder: Path | None = None) -> list[Path]:
    """The files or folders of a split: each `storage`, if that is there or there is no `url`; else its `url`.

    A relative storage that is not there is one in `folder`. A `url` on the web is downloaded once, to `storage` or into
    the cache, and compared with `md5` if that is given; a `url` may also be a path on this machine. Raises ConfigError,
    and MissingFileError or FileError as `download.fetched` does.
    """
    storage, url = info.get("storage") or "", str(info.get("url") or "")
    if isinstance(storage, list):
        return [below(part, folder) for part in storage]
    path = below(storage, folder) if storage else Path()
    # A file that is there is taken as it is: `md5` is compared once, when the file is downloaded.
    if not url or (storage and path.is_file()):
        return [path]
    if not is_url(url):
        return [Path(url).expanduser()]
    if storage and path.is_dir():
        raise ConfigError(f"{storage} is a folder: beside a url, storage names the file to download to")
    target = path if storage else download.cached_path(url, cache_folder())
    return [download.fetched(url, target, md5=str(info.get("md5") or ""))]
