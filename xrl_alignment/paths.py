"""Where the repository's own files lie (`prompts/` and `configs/` stand at its root), and writing a file as a whole."""

from __future__ import annotations

import os
from pathlib import Path

REPO_ROOT = Path(__file__).resolve().parent.parent


def write_atomically(path: Path, write) -> None:
    """Call `write(binary_file)` on a temporary neighbour of `path`, sync it, then rename it over `path`.

    A crash or a full disk leaves the old file as it was.
    """
    if not path.parent.is_dir():
        path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
