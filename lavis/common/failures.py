"""What to pass on of an error that a library raised."""

from __future__ import annotations


def first_sentence(error: Exception) -> str:
    """The reason in an error's own words: what follows it in torch's texts is advice, some of it unsafe."""
    lines = str(error).strip().splitlines()
    return lines[0].split(". ")[0] if lines else f"{type(error).__name__}: it is empty or cut off"
