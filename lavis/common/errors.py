"""The errors that a user can mend: one base class, which programs print as one line.

Anything else that is raised is a fault of this code and shows its traceback. The subclasses here are also the built-in
error that fits, for callers who catch that.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable


class EmacError(Exception):
    """A user's mistake or a limit of the machine; the text says what happened, where, and how to fix it."""

    def __str__(self) -> str:
        kind = type(self)
        text = str(self.args[0]) if self.args else kind.__name__  # KeyError would print the text in quotes
        # From a loader's worker process it arrives with that process's traceback before the text.
        _, found, own = text.rpartition(f"\n{kind.__module__}.{kind.__qualname__}: ")
        return own.strip() if found else text


class ConfigError(EmacError, ValueError):
    """A setting or argument that cannot be used; the text names it, its value and what is allowed."""


class DivergedError(EmacError, ValueError):
    """A loss, gradient or weight that is not finite; the text says where."""


class MissingFileError(EmacError, FileNotFoundError):
    """A file or folder that is not there; the text names it and says where it should come from."""


class FileError(EmacError, OSError):
    """A file that cannot be read or written (rights, full disk, damaged); the text names it and the reason."""


class MissingExtraError(EmacError, ImportError):
    """A part that is not installed; the text names the extra that brings it."""


def missing_extra(extra: str, error: ImportError) -> MissingExtraError:
    """What is raised if the import of a package of `extra` ended in `error`."""
    return MissingExtraError(f"package {error.name} is not installed: run `pip install -e '.[{extra}]'`")


def first_sentence(error: BaseException) -> str:
    """The reason in an error's own words. Torch adds advice after it, such as weights_only=False, which is unsafe."""
    lines = str(error).strip().splitlines()
    if len(lines) > 1 and lines[0].endswith(":"):  # Transformers' check of a config.json: the second says what is wrong
        lines[0] += f" {lines[1].strip()}"
    return lines[0].split(". ")[0] if lines else f"{type(error).__name__}: it is empty or cut off"


def described(error: BaseException) -> str:
    """An error in words, with its type; at most 500 characters, for it may quote what somebody has sent."""
    return f"{type(error).__name__}: {first_sentence(error)}"[:500]


def why_unreadable(path: str | os.PathLike[str], error: BaseException) -> str:
    """Why a file of weights cannot be read and how to fix it: by its first bytes, else in the error's own words."""
    try:
        with open(path, "rb") as file:
            head = file.read(512)
    except OSError as fault:
        return fault.strerror or str(fault)
    if not head:
        return "it is empty: download or copy it again"
    if head.startswith(b"version https://git-lfs"):
        return "it is Git LFS's note of the file, not the file: run `git lfs pull`, or download it"
    if head.lstrip().startswith(b"<"):
        return "it is a web page: download the file itself"
    if min(head) > 8 and head.decode("utf-8", "replace").count("\ufffd") <= 1:  # the last character may be cut
        return "it is a text: name a file of weights (.safetensors, .pth, .pt or .bin)"
    return f"{first_sentence(error)}; it is cut off or of another kind: download or copy it again"


_SHOWN = 12  # names that a message lists, if there are more than twice as many


def unknown(kind: str, name: str, names: Iterable[str], *, prefix: str = "") -> str:
    """`unknown kind 'nmae': did you mean 'name'?`, or, if nothing is near, a list of what there is.

    `prefix` ("run.") is shown before `name` and before the name that is meant; it plays no part in the comparison.
    """
    known, name = sorted(set(map(str, names))), str(name)
    near = difflib.get_close_matches(name, known, n=1)
    shown = known
    if len(known) > 2 * _SHOWN:  # those that are most like it
        shown = [*difflib.get_close_matches(name, known, n=_SHOWN, cutoff=0.0), f"… ({len(known)} in all)"]
    hint = f"did you mean {prefix + near[0]!r}?" if near else f"choose one of {', '.join(shown) or 'none'}"
    return f"unknown {kind} {prefix + name!r}: {hint}"
