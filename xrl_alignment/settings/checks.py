"""The rules for the values of settings: those of `lavis.common.settings`, and the one for a class of one's own."""

from __future__ import annotations

from lavis.common.named_class import is_class_name
from lavis.common.settings import (
    ABOVE_ZERO,
    DEVICE,
    SECONDS,
    SEED,
    Rule,
    at_least,
    between,
    check,
    check_has_effect,
    list_of,
    named,
    one_of,
)

__all__ = [
    "ABOVE_ZERO",
    "DEVICE",
    "SECONDS",
    "SEED",
    "Rule",
    "at_least",
    "between",
    "check",
    "check_has_effect",
    "list_of",
    "named",
    "one_of",
    "one_of_or_class",
]


def one_of_or_class(*choices: str) -> Rule:
    """The names `choices`, or a class of one's own as `module:Class`."""
    # Whether the class exists is seen when it is made: settings may be read where its module is not installed.
    text = f"one of {', '.join(choices)}, or module:Class"
    return Rule(text, lambda value: value in choices or is_class_name(value))
