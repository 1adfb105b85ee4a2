"""Checks of settings: each raises a ConfigError that names the key, its value and the rule."""

from __future__ import annotations

import math
from collections.abc import Iterable

from lavis.common.errors import ConfigError


def check(key: str, value: object, valid: bool, rule: str) -> None:
    """ConfigError where `value` is not `valid`; `rule` ends the sentence "`key`: `value` is not …"."""
    if not valid:
        raise ConfigError(f"{key}: {value!r} is not {rule}")


def check_choice(key: str, value: str, choices: tuple[str, ...]) -> None:
    """ConfigError where `value` is none of `choices`."""
    check(key, value, value in choices, f"one of {', '.join(choices)}")


def check_numbers(section: str, config: object, names: Iterable[str], at_least: float) -> None:
    """ConfigError where one of the fields `names` of `config` is below `at_least`, or infinite."""
    for name in names:
        value = getattr(config, name)
        check(f"{section}.{name}", value, at_least <= value < math.inf, f"a number of at least {at_least:g}")


def check_seconds(section: str, config: object, *names: str) -> None:
    """ConfigError where one of the fields `names` of `config` is 0 or less, or infinite."""
    for name in names:
        value = getattr(config, name)
        check(f"{section}.{name}", value, 0 < value < math.inf, "a number of seconds above 0")


def check_device(key: str, value: str) -> None:
    """ConfigError where `value` does not name a device."""
    kind, _, index = value.partition(":")
    known = value in ("auto", "cpu") or (kind == "cuda" and (index.isdigit() or ":" not in value))
    check(key, value, known, "one of auto, cpu, cuda, cuda:<index>")
