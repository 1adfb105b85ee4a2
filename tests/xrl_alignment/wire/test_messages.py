"""What the messages say of themselves, and that no bytes break the reading of either format."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xrl_alignment.wire import v1, v2
from xrl_alignment.wire.messages import Observation, ProtocolError, md5_hex


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


def test_md5_is_the_usual_one():
    assert md5_hex(b"abc") == "900150983cd24fb0d6963f7d28e17f72"
