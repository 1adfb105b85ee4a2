"""What the messages say of themselves, and that no bytes break the reading of either format."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xrl_alignment.wire import v1, v2
from xrl_alignment.wire.messages import (
    Bye,
    Hello,
    Next,
    Observation,
    ProtocolError,
    brief,
    bytes_of,
    check_observation,
    md5_hex,
    without_content,
)


@given(st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_random_bytes_end_in_protocol_error(data):
    for decode in (v1.decode, v2.decode, v2.decode_reply):
        with pytest.raises(ProtocolError):
            decode(data)


def test_information_also_in_alfworlds_batched_form():
    ours = Observation("", information={"won": True, "admissible_commands": ["look", "go to desk 1"]})
    batched = Observation("", information={"won": [True], "admissible_commands": [["look", "go to desk 1"]]})
    for observation in (ours, batched):
        assert observation.won is True and observation.admissible_commands == ["look", "go to desk 1"]
    assert Observation("").won is None and Observation("").admissible_commands == []


def test_an_observation_of_a_text_says_nothing_else():
    got = Observation("look")
    assert (got.history, got.information, got.task_type, got.done) == ("", {}, "", False)
    assert (got.session, got.seq, got.env, got.round) == ("", 0, -1, 0)
    with pytest.raises(ValueError, match="read-only"):  # all observations without an image share this one
        got.image[:] = 1


def test_what_is_kept_of_an_answered_message_says_who_sent_it_and_no_more():
    seen = Observation("t", "h", {"won": True}, "g", True, np.ones((2, 2, 3), np.uint8), "s", 5, 2, 1)
    kept = without_content(seen)
    assert (kept.text, kept.history, kept.information, kept.image.size) == ("", "", {}, 3)
    assert (kept.task_type, kept.done, kept.session, kept.seq, kept.env, kept.round) == ("g", True, "s", 5, 2, 1)
    assert without_content(Hello("s", 0, ("g",), "native", "train")) == Hello("s", 0, (), "native", "train")
    assert [without_content(message) for message in (Next("s", 1), Bye("s", 2))] == [Next("s", 1), Bye("s", 2)]


def test_what_is_quoted_of_an_error_is_short():
    assert brief(ValueError("why")) == "ValueError: why"
    assert brief(ValueError("a" * 500)) == "ValueError: " + "a" * 108


def test_the_memory_of_a_message_is_that_of_all_its_values():
    small = bytes_of(Observation("text"))
    assert bytes_of(Observation("text", image=np.zeros((100, 100, 3), np.uint8))) - small == 30_000 - 3
    nested = [[{}], ({"a": []},), {1, 2}]
    assert bytes_of(Observation("text", information={"a": nested})) - small > 64 * 4 + 56 * 3
    assert 1000 < bytes_of(Hello("s", 0, ("g" * 500,) * 2)) < 2000


def test_md5_is_the_usual_one():
    assert md5_hex(b"abc") == "900150983cd24fb0d6963f7d28e17f72"


@pytest.mark.parametrize(
    ("limit", "make"),
    [
        (16_384, lambda n: Observation("a" * n)),
        (262_144, lambda n: Observation("", history="a" * n)),
        (512, lambda n: Observation("", task_type="a" * n)),
        (16_384, lambda n: Observation("", information={"expert_action": "a" * n})),
        (16_384, lambda n: Observation("", information={"expert_thought": "a" * n})),
        (16_384, lambda n: Observation("", information={"values": [0] * (n - 2)})),  # the key and the list count, too
        (4096, lambda n: Observation("", information={"admissible_commands": ["look"] * n})),
        (1024, lambda n: Observation("", information={"admissible_commands": [["look", "a" * n]]})),
    ],
)
def test_a_field_may_be_as_long_as_its_limit_and_no_longer(limit, make):
    observation = make(limit)
    assert check_observation(observation) is observation
    with pytest.raises(ProtocolError):
        check_observation(make(limit + 1))
