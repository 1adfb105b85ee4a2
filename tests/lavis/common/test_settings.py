"""Rules: what they let through, and what they say. The table of a section."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError, dataclass, replace

import pytest

from lavis.common import settings
from lavis.common.errors import ConfigError
from lavis.common.settings import Rule, Section, setting, settings_table


@pytest.mark.parametrize(
    ("rule", "good", "bad"),
    [
        (settings.at_least(1), [1, 1.5, 10**9], [0, -1, math.inf, math.nan]),
        (settings.between(0, 2), [0, 1, 2], [-1, 3, math.nan]),
        (settings.one_of("a", "b"), ["a", "b"], ["", "c"]),
        (settings.named("a file's path"), ["x"], [""]),
        (settings.list_of("texts", bool), [[], ["a"]], [[""], ["a", ""]]),
        (settings.list_of("texts", bool, empty=False), [["a"]], [[], [""]]),
        (settings.SECONDS, [0.1, 3600], [0, -1, math.inf, math.nan]),
        (settings.DEVICE, ["auto", "cpu", "cuda", "cuda:1"], ["gpu", "cuda:", "cuda:x", "cpu:0", ""]),
    ],
    ids=lambda value: value.text if isinstance(value, Rule) else "",
)
def test_rules(rule: Rule, good: list[object], bad: list[object]) -> None:
    assert all(map(rule.holds, good)) and not any(map(rule.holds, bad))


def test_a_setting_without_effect_names_the_condition() -> None:
    settings.check_has_effect("run.x", 3, True, "run.y=1")
    with pytest.raises(ConfigError, match="run.x: 3 has no effect unless run.y=1"):
        settings.check_has_effect("run.x", 3, False, "run.y=1")


@dataclass(frozen=True)
class Small(Section, section="small"):
    size: int = setting(1, "how large", settings.at_least(1), may_change=True)
    name: str = setting("", "what it is called")
    shape: str = setting("round", "`<any>` of these", Rule("<round>", bool))


def test_a_value_that_breaks_its_rule_is_named() -> None:
    with pytest.raises(ConfigError) as caught:
        Small(size=0)
    assert str(caught.value) == "small.size: 0 is not a number of at least 1"


def test_a_section_is_a_table_of_key_default_value_and_meaning() -> None:
    assert settings_table(Small).splitlines() == [
        "| key | default | value | meaning |",
        "| --- | --- | --- | --- |",
        "| `size` | `1` | a number of at least 1 | how large |",
        "| `name` | empty | text | what it is called |",
        "| `shape` | `round` | &lt;round> | `<any>` of these |",
    ]
    lines = settings_table(Small, without=["name", "shape"], resumed=True).splitlines()
    assert lines[2:] == ["| `size` | `1` | a number of at least 1 | how large | may change |"]


def test_a_section_is_frozen_and_a_changed_one_is_checked_again() -> None:
    section = Small()
    with pytest.raises(FrozenInstanceError):
        section.size = 2
    assert replace(section, size=2) == Small(size=2)
    with pytest.raises(ConfigError, match="small.size: 0 is not"):
        replace(section, size=0)
