"""Rules: what they let through, and what they say."""

from __future__ import annotations

import math

import pytest

from lavis.common.errors import ConfigError
from xrl_alignment.config import checks
from xrl_alignment.config.checks import Rule, check_rule


@pytest.mark.parametrize(
    ("rule", "good", "bad"),
    [
        (checks.at_least(1), [1, 1.5, 10**9], [0, -1, math.inf, math.nan]),
        (checks.between(0, 2), [0, 1, 2], [-1, 3, math.nan]),
        (checks.one_of("a", "b"), ["a", "b"], ["", "c"]),
        (checks.named("a file's path"), ["x"], [""]),
        (checks.list_of("texts", bool), [[], ["a"]], [[""], ["a", ""]]),
        (checks.list_of("texts", bool, empty=False), [["a"]], [[], [""]]),
        (checks.SECONDS, [0.1, 3600], [0, -1, math.inf, math.nan]),
        (checks.DEVICE, ["auto", "cpu", "cuda", "cuda:1"], ["gpu", "cuda:", "cuda:x", "cpu:0", ""]),
    ],
    ids=lambda value: value.text if isinstance(value, Rule) else "",
)
def test_rules(rule: Rule, good: list[object], bad: list[object]) -> None:
    for value in good:
        check_rule("run.x", value, rule)
    for value in bad:
        with pytest.raises(ConfigError) as caught:
            check_rule("run.x", value, rule)
        assert str(caught.value) == f"run.x: {value!r} is not {rule.text}"


def test_checks_of_several_fields_name_the_first_that_is_wrong() -> None:
    class Settings:
        a, b, c = 1, 0, -1.0

    checks.check_numbers("run", Settings, ("a", "b"), 0)
    checks.check_seconds("run", Settings, "a")
    with pytest.raises(ConfigError, match="run.b: 0 is not a number of at least 1"):
        checks.check_numbers("run", Settings, ("a", "b", "c"), 1)
    with pytest.raises(ConfigError, match="run.c: -1.0 is not a number of seconds above 0"):
        checks.check_seconds("run", Settings, "a", "c", "b")


def test_a_setting_without_effect_names_the_condition() -> None:
    checks.check_has_effect("run.x", 3, True, "run.y=1")
    with pytest.raises(ConfigError, match="run.x: 3 has no effect unless run.y=1"):
        checks.check_has_effect("run.x", 3, False, "run.y=1")
