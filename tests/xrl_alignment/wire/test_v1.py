"""Wire v1: exact bytes, tolerance where the original was tolerant, and a reason for everything else."""

import ast
import json
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xrl_alignment.wire import v1
from xrl_alignment.wire.messages import Observation, ProtocolError

IMAGE = np.arange(2 * 2 * 3, dtype=np.uint8).reshape(2, 2, 3) * 20
PLAIN_TEXT = st.text(st.characters(exclude_characters="[]", exclude_categories=["Cs"]), max_size=40)


def v1_body(**changes: str) -> bytes:
    """A v1 body; a field set to None is left out with its tag."""
    fields = {
        "OBSERVATION": "You are in the middle of a room.",
        "HISTORY": "text",
        "INFORMATION": "{'won': False}",
        "TYPE": "pick_and_place_simple-Mug-None-Desk-1/trial_1",
        "DONE": "False",
        "IMAGE": json.dumps(IMAGE.tolist()),
    } | changes
    return "".join(f"[#{name}]{value}" for name, value in fields.items() if value is not None).encode()


def test_v1_body_is_what_the_original_client_posts():
    observation = Observation("Hi.\n", "> look\n", {"won": False}, "pick-1/t", True, IMAGE[:1])
    assert v1.encode(observation) == (
        b"[#OBSERVATION]Hi.\n[#HISTORY]> look\n[#INFORMATION]{'won': False}[#TYPE]pick-1/t[#DONE]True"
        b"[#IMAGE][[[0, 20, 40], [60, 80, 100]]]"
    )


@given(text=PLAIN_TEXT, history=PLAIN_TEXT, task_type=PLAIN_TEXT, done=st.booleans(), note=PLAIN_TEXT)
@settings(max_examples=60, deadline=None)
def test_v1_is_read_as_the_original_server_reads_it(text, history, task_type, done, note):
    body = v1.encode(Observation(text, history, {"note": note}, task_type, done, IMAGE))
    # The original's process_feedback (emac_full_documentation.md §6.1): one expression with non-greedy groups.
    tags = ("OBSERVATION", "HISTORY", "INFORMATION", "TYPE", "DONE")
    match = re.match("".join(rf"\[#{tag}\](.*?)" for tag in tags) + r"\[#IMAGE\](.*)", body.decode(), re.DOTALL)
    ours = v1.decode(body)
    assert (ours.text, ours.history, ours.task_type) == (match[1], match[2], match[4])
    assert ours.information == ast.literal_eval(match[3]) and ours.done == (match[5] == "True")
    assert (ours.image == np.asarray(json.loads(match[6]))).all()


def test_v1_fields_may_hold_text_that_looks_like_a_tag():
    history = "> say [#IMAGE] and [#INFORMATION] and [#INFORMATION]{'a': 1} and [#DONE]\nNothing happens."
    information = {"note": "[#TYPE] [#HISTORY]"}
    got = v1.decode(v1.encode(Observation("o", history, information, "", False, IMAGE)))
    assert (got.history, got.information, got.task_type) == (history, information, "")


@pytest.mark.parametrize("name", ["OBSERVATION", "HISTORY", "INFORMATION", "TYPE", "DONE", "IMAGE"])
def test_v1_names_the_missing_field(name):
    with pytest.raises(ProtocolError, match=name):
        v1.decode(v1_body(**{name: None}))


@pytest.mark.parametrize(
    "information",
    ["", "[1]", "{1: 2}", "dict(a=1)", "{'a': __import__('os')}", "{'a': " + "[" * 60 + "]" * 60 + "}", "{'a': ",
     "{'a': " + "-" * 100_000 + "1}", "{'a': '" + "x" * v1.MAX_INFORMATION + "'}",
     "{'a': [" + "0," * 20_000 + "]}", "{'a': [" + "[], " * 50 + "[" * 40 + "]" * 40 + "]}"],
)  # fmt: skip
def test_v1_information_is_a_bounded_literal_dict(information):
    with pytest.raises(ProtocolError, match="INFORMATION"):
        v1.decode(v1_body(INFORMATION=information))


@pytest.mark.parametrize(
    ("limit", "make"),
    [
        (131_072, lambda n: "{'a': '" + "x" * (n - 9) + "'}"),
        (16_384, lambda n: "{'a': '" + "," * (n - 1) + "'}"),  # commas and colons, wherever they are
        (32, lambda n: "{'a': " + "[" * (n - 1) + "]" * (n - 1) + "}"),
    ],
)
def test_v1_information_up_to_its_limits(limit, make):
    assert list(v1.decode(v1_body(INFORMATION=make(limit))).information) == ["a"]
    with pytest.raises(ProtocolError, match="INFORMATION"):
        v1.decode(v1_body(INFORMATION=make(limit + 1)))


def test_v1_brackets_beside_one_another_are_not_nested():
    information = {"a": [[1], (2,), {"b": {}}] * 50}
    assert v1.decode(v1.encode(Observation("o", "h", information, "", False, IMAGE))).information == information


def test_v1_a_long_history_that_ends_in_tags_is_read():
    history = "a" * 100_000 + "[#INFORMATION]" * 5
    assert v1.decode(v1_body(HISTORY=history)).history == history


def test_v1_a_history_full_of_tags_is_not_parsed_again_and_again(monkeypatch):
    parsed = []
    literal = ast.literal_eval
    monkeypatch.setattr(v1.ast, "literal_eval", lambda text: (parsed.append(len(text)), literal(text))[1])
    text = "[#INFORMATION]{0: 0}, " * 5000
    with pytest.raises(ProtocolError, match="INFORMATION"):
        v1.decode(v1_body(HISTORY=text))
    assert sum(parsed) <= 3 * v1.MAX_INFORMATION < len(text) ** 2


def test_v1_rejects_other_done():
    with pytest.raises(ProtocolError, match="DONE.*'true'"):
        v1.decode(v1_body(DONE="true"))


@pytest.mark.parametrize("name", ["OBSERVATION", "HISTORY", "INFORMATION", "TYPE", "DONE"])
def test_v1_names_the_field_that_is_not_utf8(name):
    with pytest.raises(ProtocolError, match=rf"field \[#{name}\] is not UTF-8"):
        v1.decode(v1_body().replace(f"[#{name}]".encode(), f"[#{name}]".encode() + b"\xff"))


@pytest.mark.parametrize(
    "image",
    ["", "{}", "[]", "[[[1, 2, 3]], [[1, 2, 3], [4, 5, 6]]]", "[[1, 2, 3]]", "[[[1, 2, 3, 4]]]", "[[[1, 2]]]",
     "[[[256, 0, 0]]]", "[[[-1, 0, 0]]]", "[[[0.5, 0, 0]]]", "[[[true, false, true]]]", '[[["1", "2", "3"]]]',
     "[[[1, 2, 3]]", "[[[1, , 3]]]", "[[[1,2,],5[1,2,3]]]", "[[[007, 0, 0]]]", "[[[NaN, 0, 0]]]", "[" * 5000],
)  # fmt: skip
def test_v1_image_of_wrong_shape_or_range(image):
    with pytest.raises(ProtocolError, match="IMAGE"):
        v1.decode(v1_body(IMAGE=image))


def test_v1_reply():
    assert v1.encode_reply(["go to desk 1"]) == b"['go to desk 1']"
    assert v1.encode_reply([]) == b"[]" and v1.encode_reply([v1.SKIP]) == b"['SKIP']"
    assert v1.decode_reply(b"['go to desk 1']") == ["go to desk 1"]
    reasons = {b"go": "reply is not a Python literal", b"\xff": "field reply is not UTF-8"}
    for wrong in (b"go", b"[1]", b"('a',)", b"\xff"):
        with pytest.raises(ProtocolError, match=reasons.get(wrong, "the reply must be a list of strings")):
            v1.decode_reply(wrong)


@given(st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_random_bytes_are_no_v1_reply_unless_they_are_a_list_of_texts(data):
    try:
        actions = v1.decode_reply(data)
    except ProtocolError:
        return
    assert all(isinstance(action, str) for action in actions)
