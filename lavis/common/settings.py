"""Settings: a field and all that is known about it, in one place: default, help, rule, whether a resume may change it.

A program's settings are dataclasses, one for each section of its file (`Section`). What checks a value, the tables of
the pages and the list of what a resumed run may change are made from the fields' own descriptions (`setting`). A broken
rule is a ConfigError that names the key, its value and the rule.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import json
import math
import re
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from lavis.common.config import not_a_list
from lavis.common.errors import ConfigError, unknown


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


def named(what: str) -> Rule:
    """Any text but the empty one; `what` says what it names ("a folder's path")."""
    return Rule(what, bool)


def list_of(what: str, holds: Callable[[Any], bool], *, empty: bool = True) -> Rule:
    """Lists whose items are single values for which `holds`; `what` describes them. `empty`: none are allowed, too."""

    def each(item: object) -> bool:
        return isinstance(item, str | int | float) and holds(item)

    return Rule(f"a list of {what}", lambda items: (empty or bool(items)) and all(map(each, items)))


SECONDS = Rule("a number of seconds above 0", lambda value: 0 < value < math.inf)
SEED = Rule("a number from 0 to 4294967295", lambda value: 0 <= value < 2**32)  # NumPy's largest
DTYPES = ("float32", "bfloat16", "float16")  # number formats by torch's names
AMP = Rule(f"one of {', '.join(DTYPES)}", (None, "", *DTYPES).__contains__)  # of autocast; null or empty: none
BELOW_ONE = Rule("a number of at least 0 and below 1", lambda value: 0 <= value < 1)
ABOVE_ZERO = Rule("a number above 0", lambda value: 0 < value < math.inf)
FINITE = Rule("a finite number", math.isfinite)
DEVICE = Rule("one of auto, cpu, cuda, cuda:<index>", lambda value: bool(re.fullmatch(r"auto|cpu|cuda(:\d+)?", value)))


def check(key: str, value: object, valid: bool, rule: str) -> None:
    """ConfigError if `value` is not `valid`; `rule` ends the sentence "`key`: `value` is not …"."""
    if not valid:
        raise ConfigError(f"{key}: {value!r} is not {rule}")


def check_has_effect(key: str, value: object, valid: bool, condition: str) -> None:
    """ConfigError if `value` is not `valid`; `condition` ends "`key`: `value` has no effect unless …"."""
    if not valid:
        raise ConfigError(f"{key}: {value!r} has no effect unless {condition}")


_KEY = "setting"  # in the metadata of a dataclass field
KINDS: dict[Any, str] = {  # what the value of a field of this type is
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    list[str]: "a list of texts",
    list[float]: "a list of numbers",
    str | None: "text, or null",
    dict[str, Any]: "a section with keys of its own",
}


class Setting(NamedTuple):
    """What `setting` was told, its default apart."""

    help: str
    rule: Rule | None
    may_change: bool


def setting(default: Any, help: str, rule: Rule | None = None, *, may_change: bool = False) -> Any:
    """A dataclass field with its help text (Markdown, without a full stop at the end) and the rule for its values.

    `may_change`: a resumed run may change it, for it decides where and how fast a run runs, not what comes out.
    """
    metadata = {_KEY: Setting(help, rule, may_change)}
    # Each instance gets a copy of its own: dataclasses refuse a list or dictionary that instances would share.
    if isinstance(default, list | dict):
        return dataclasses.field(default_factory=lambda: copy.deepcopy(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(frozen=True)
class Section:
    """Base class of the sections of a settings file: checks every field by its rule, then the combinations.

    A section is frozen, so whoever needs its settings takes the section itself, not copies of its fields: a section
    with more settings is a subclass of the ones that its parts need. `dataclasses.replace` makes a changed one, which
    is checked again.
    """

    section: ClassVar[str]

    def __init_subclass__(cls, *, section: str = "", **options: Any) -> None:
        """`section` is the name under which the file holds these settings; a subclass inherits it."""
        super().__init_subclass__(**options)
        if section:
            cls.section = section

    def __post_init__(self) -> None:
        """Check every value; ConfigError names the first that cannot be used."""
        for name, described in settings_of(self).items():
            if rule := described.rule:
                value = getattr(self, name)
                check(f"{self.section}.{name}", value, rule.holds(value), rule.text)
        self.check_combinations()

    def check_combinations(self) -> None:
        """ConfigError if settings that are each possible cannot be used together."""


def settings_of(schema: Section | type[Section]) -> dict[str, Setting]:
    """The settings of a section by name, its own before inherited ones; fields made without `setting` are left out."""
    # `dataclasses.fields` has the fields of base classes first; the pages of settings show a section's own first.
    own = inspect.get_annotations(schema if isinstance(schema, type) else type(schema))
    place = {name: number for number, name in enumerate(own)}
    fields = sorted(dataclasses.fields(schema), key=lambda field: place.get(field.name, len(place)))
    return {field.name: field.metadata[_KEY] for field in fields if _KEY in field.metadata}


def defaults_of(schema: type[Section]) -> dict[str, Any]:
    """The default of every setting of a section."""
    return {
        field.name: field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        for field in dataclasses.fields(schema)
    }


def checked_keys(schema: type[Section], given: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a section that stays a dictionary (`model:`), with defaults filled in.

    `null` is kept in a text, a list or a section; it means that the key was not given. Raises ConfigError for an
    unknown key, a value of another type, one that breaks its rule, and keys that contradict one another.
    """
    kinds = typing.get_type_hints(schema)
    for name, value in given.items():
        key = f"{schema.section}.{name}"
        if name not in kinds:
            raise ConfigError(unknown("key", key, [f"{schema.section}.{known}" for known in defaults_of(schema)]))
        kind = kinds[name]
        if kind == list[str] and (isinstance(value, str) or not isinstance(value, Sequence | None)):
            raise ConfigError(not_a_list(key, value))
        # True and False are whole numbers for Python, and a whole number will do for a number.
        fits = kind not in _FITS or (isinstance(value, _FITS[kind]) and (kind is bool or not isinstance(value, bool)))
        check(key, value, fits, KINDS.get(kind, ""))
    section = schema(**given)  # its `__post_init__` holds the values to their rules
    return {name: getattr(section, name) for name in defaults_of(schema)}


_FITS: dict[Any, Any] = {
    bool: bool, int: int, float: int | float, str: str | Path | None, dict[str, Any]: Mapping | None,
}  # fmt: skip


def settings_table(schema: type[Section], *, without: Iterable[str] = (), resumed: bool = False) -> str:
    """A section's settings as a table in Markdown; `resumed` adds the column about a resume."""
    kinds = typing.get_type_hints(schema)
    defaults = {}
    for name, default in defaults_of(schema).items():
        shown = default if isinstance(default, str) else json.dumps(default)
        defaults[name] = f"`{shown}`" if shown else "empty"
    head = ["key", "default", "value", "meaning", *(["on `--resume`"] if resumed else [])]
    lines = [_row(head), _row("---" for _ in head)]
    for name, described in settings_of(schema).items():
        if name in without:
            continue
        value = described.rule.text if described.rule else KINDS[kinds[name]]
        # Markdown takes `cuda:<index>` for a tag of HTML and shows nothing.
        cells = [f"`{name}`", defaults[name], value.replace("<", "&lt;"), described.help]
        lines.append(_row(cells + (["may change" if described.may_change else ""] if resumed else [])))
    return "\n".join([*lines, ""])


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
