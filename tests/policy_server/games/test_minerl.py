from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy_server.basalt_stand_in import BasaltStandIn
from policy_server.games.minerl import TASKS, model_prompt, no_op, parse

SPACE = BasaltStandIn().action_space


def changed(action: dict) -> dict:
    """What differs from doing nothing."""
    return {key: value for key, value in action.items() if value != no_op()[key]}


def test_the_plain_answer_is_taken_as_it_is():
    reading = parse('{"reasoning": "a dark opening ahead", "action": {"forward": 1, "camera": [5.0, -10]}}')
    assert changed(reading.action) == {"forward": 1, "camera": [5.0, -10.0]}
    assert reading.reasoning == "a dark opening ahead"
    assert reading.summary == "forward camera 5 -10"


def test_an_action_has_every_key_of_the_environment():
    assert set(parse("{}").action) == set(SPACE.spaces)
    assert list(no_op())[0] == "forward" and list(no_op())[-1] == "ESC"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('Sure!\n```json\n{"action": {"jump": true}}\n```\nHope that helps {friend}', {"jump": 1}),
        ("{'action': {'attack': True, 'camera': (1, 2)}}", {"attack": 1, "camera": [1.0, 2.0]}),
        ('{"action": {"forward": 1,}}', {"forward": 1}),
        ('{"action": {"forward": 1}', {"forward": 1}),
        ('{"Forward": "1", "sprint": "yes", "back": "no"}', {"forward": 1, "sprint": 1}),
        ('{"action": {"hotbar": 3, "camera": {"pitch": -4, "yaw": 7}}}', {"hotbar.3": 1, "camera": [-4.0, 7.0]}),
        ('{"action": {"hotbar_2": 1, "backward": 1, "escape": 0}}', {"hotbar.2": 1, "back": 1}),
        ("I go on. forward: 1\ncamera: [0, 15]\nmood: 7", {"forward": 1, "camera": [0.0, 15.0]}),
        ('{"pitch": 3, "yaw": -3}', {"camera": [3.0, -3.0]}),
        ('{"thought": "{odd}", "action": {"use": 2}}', {"use": 1}),
        ('{"action": "forward + jump"}', {"forward": 1, "jump": 1}),
        ('{"action": ["sneak"]}', {"sneak": 1}),
        ('{} then {"action": {"use": 1}}', {"use": 1}),
    ],
)
def test_forms_that_models_write(text, expected):
    reading = parse(text)
    assert changed(reading.action) == expected
    assert SPACE.contains(as_spaces_want(reading.action))


def test_what_is_not_understood_is_dropped_and_named():
    reading = parse('{"reasoning": "up", "action": {"fly": 1, "jump": "perhaps", "camera": [999, "NaN"], "use": 1}}')
    assert changed(reading.action) == {"use": 1, "camera": [180.0, 0.0]}
    for note in ("unknown key 'fly' dropped", "jump='perhaps'", "camera pitch=999 clamped to 180", "camera yaw='NaN'"):
        assert note in reading.reasoning
    assert reading.reasoning.startswith("up [")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "   ",
        "I do not know.",
        "{",
        "[1, 2]",
        '{"reasoning": "hm"}',
        '{"action": "dance"}',
        "{" * 5000,
        "null",
        "{{}}",
        "{[]: 1}",
    ],
)
def test_without_an_action_nothing_is_done_and_the_reason_is_given(text):
    reading = parse(text)
    assert reading.action == no_op()
    assert reading.reasoning.endswith("]") and reading.summary == "nothing"


def test_a_camera_of_the_wrong_shape_stays_still():
    for camera in ("[1]", "[1, 2, 3]", '"left"', "null", "1e999"):
        assert parse(f'{{"action": {{"camera": {camera}, "jump": 1}}}}').action["camera"] == [0.0, 0.0]


def test_infinite_turns_are_clamped():
    assert parse('{"action": {"camera": [Infinity, -Infinity]}}').action["camera"] == [180.0, -180.0]


def as_spaces_want(action: dict) -> dict:
    import numpy as np

    return {**action, "camera": np.array(action["camera"], np.float32)}


def test_half_a_surrogate_pair_in_the_reasoning_fits_into_a_response():
    """Half an emoji, such as a model writes that knows JSON's escapes."""
    reading = parse(r'{"reasoning": "a \ud83d cave", "action": {"forward": 1}}')
    assert (reading.reasoning, reading.summary) == ("a ? cave", "forward")


@pytest.mark.parametrize("text", ["{'jump': %s}", "{'camera': [%s, 1]}", "{'hotbar': %s}", "{%s: 1}"])
def test_a_number_of_more_digits_than_python_writes_is_no_action(text):
    """`max_tokens` allows them, and a hexadecimal one passes Python's limit for decimal ones."""
    assert parse(text % ("0x" + "f" * 3700)).action == no_op()


@given(st.text(max_size=300))
def test_any_text_gives_a_valid_action(text):
    assert SPACE.contains(as_spaces_want(parse(text).action))


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
keys = st.sampled_from([*no_op(), "hotbar", "pitch", "yaw", "reasoning", "fly"])


@given(st.dictionaries(keys, values), st.booleans())
def test_any_json_gives_a_valid_action(fields, nested):
    text = json.dumps({"reasoning": "x", "action": fields} if nested else fields)
    reading = parse(text)
    assert SPACE.contains(as_spaces_want(reading.action))
    assert isinstance(reading.reasoning, str)


def test_a_question_holds_the_task_and_the_steps_before():
    asked = model_prompt("MineRLBasaltMakeWaterfall-v0", "", (), ["1: forward", "2: use"])
    assert TASKS["MineRLBasaltMakeWaterfall-v0"] in asked.text
    assert asked.text.index("1: forward") < asked.text.index("2: use")
    assert "hotbar.1" in asked.instructions
