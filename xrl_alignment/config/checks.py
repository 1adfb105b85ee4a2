"""Rules for the values of settings. A broken rule is a ConfigError that names the key, its value and the rule."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from lavis.common.errors import ConfigError
from xrl_alignment.common.named_class import is_class_name


class Rule(NamedTuple):
    """Which values a setting may have: in words, which end the sentence "`key`: `value` is not …", and as a test."""

    text: str
    holds: Callable[[Any], bool]


def at_least(least: float) -> Rule:
    """Finite numbers from `least` up."""
    return Rule(f"a number of at least {least:g}", lambda value: least <= value < math.inf)


def between(least: float, most: float) -> Rule:
    """Numbers from `least` to `most`, both included."""
    return Rule(f"a number from {least:g} to {most:g}", lambda value: least <= value <= most)


def one_of(*choices: str) -> Rule:
    """The names `choices`."""
    return Rule(f"one of {', '.join(choices)}", lambda value: value in choices)


def one_of_or_class(*choices: str) -> Rule:
    """The names `choices`, or a class of one's own as `module:Class`."""
    text = f"one of {', '.join(choices)}, or module:Class"
    return Rule(text, lambda value: value in choices or is_class_name(value))


def named(what: str) -> Rule:
    """Any text but the empty one; `what` says what it names ("a folder's path")."""
    return Rule(what, bool)


def list_of(what: str, holds: Callable[[Any], bool], *, empty: bool = True) -> Rule:
    """Lists whose items are single values for which `holds`; `what` describes them. `empty`: none are allowed, too."""

    def each(item: object) -> bool:
        return isinstance(item, str | int | float) and holds(item)

    return Rule(f"a list of {what}", lambda items: (empty or bool(items)) and all(map(each, items)))


def _is_device(value: str) -> bool:
    kind, _, index = value.partition(":")
    return value in ("auto", "cpu") or (kind == "cuda" and (index.isdigit() or ":" not in value))


SECONDS = Rule("a number of seconds above 0", lambda value: 0 < value < math.inf)
DEVICE = Rule("one of auto, cpu, cuda, cuda:<index>", _is_device)


def check(key: str, value: object, valid: bool, rule: str) -> None:
    """ConfigError where `value` is not `valid`; `rule` ends the sentence "`key`: `value` is not …"."""
    if not valid:
        raise ConfigError(f"{key}: {value!r} is not {rule}")


def check_rule(key: str, value: object, rule: Rule) -> None:
    """ConfigError where `value` breaks `rule`."""
    check(key, value, rule.holds(value), rule.text)


def check_has_effect(key: str, value: object, valid: bool, condition: str) -> None:
    """ConfigError where `value` is not `valid`; `condition` ends "`key`: `value` has no effect unless …"."""
    if not valid:
        raise ConfigError(f"{key}: {value!r} has no effect unless {condition}")


def check_choice(key: str, value: str, choices: tuple[str, ...]) -> None:
    """ConfigError where `value` is none of `choices`."""
    check_rule(key, value, one_of(*choices))


def check_numbers(section: str, config: object, names: Iterable[str], least: float) -> None:
    """ConfigError where one of the fields `names` of `config` is below `least`, or infinite."""
    for name in names:
        check_rule(f"{section}.{name}", getattr(config, name), at_least(least))


def check_seconds(section: str, config: object, *names: str) -> None:
    """ConfigError where one of the fields `names` of `config` is 0 or less, or infinite."""
    for name in names:
        check_rule(f"{section}.{name}", getattr(config, name), SECONDS)


def check_device(key: str, value: str) -> None:
    """ConfigError where `value` does not name a device."""
    check_rule(key, value, DEVICE)
