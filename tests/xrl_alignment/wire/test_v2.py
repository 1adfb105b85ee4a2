"""Wire v2: round trips, and a reason for everything that is missing, malformed or too large."""

import json
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xrl_alignment.wire import images, v2
from xrl_alignment.wire.messages import Bye, Hello, Next, Observation, ProtocolError

IMAGE = np.arange(2 * 2 * 3, dtype=np.uint8).reshape(2, 2, 3) * 20


def v2_body(header: dict, image: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return struct.pack(">I", len(text)) + text + image


def observation_header(**changes) -> dict:
    header = {"kind": "observation", "session": "s", "seq": 3, "env": 1, "round": 0, "text": "t", "history": ""}
    header |= {"information": {}, "task_type": "", "done": False}
    header |= {"image": {"format": "zlib", "height": 2, "width": 2}}
    return header | changes


@pytest.mark.parametrize("message", [Hello("s", 0, ("a", "b"), "native", "train"), Next("s", 1), Bye("s", 2, "why")])
def test_v2_round_trip_of_small_messages(message):
    assert v2.decode(v2.encode(message)) == message


def test_v2_is_utf8_behind_a_length():
    assert v2.CONTENT_TYPE == "application/x-emac-v2"
    header = '{"session": "ü", "seq": 1, "kind": "bye", "reason": ""}'.encode()
    assert v2.encode(Bye("ü", 1)) == b"\0\0\0" + bytes([len(header)]) + header


def test_v2_reply():
    assert v2.encode_reply({"kind": "action", "action": "say ü"}) == '{"kind": "action", "action": "say ü"}'.encode()
    assert v2.decode_reply(v2.encode_reply({"kind": "wait", "seconds": 1})) == {"kind": "wait", "seconds": 1}
    for wrong, reason in ((b"{", "the reply is not JSON"), (b"{}", "field kind is missing"), (b'{"kind": 1}', "kind")):
        with pytest.raises(ProtocolError, match=reason):
            v2.decode_reply(wrong)


def test_v2_what_a_session_does_not_say_is_empty():
    hello = v2.decode(v2.encode(Hello("s", 0, ("g",))))
    assert (hello.environment, hello.split) == ("", "")


@pytest.mark.parametrize("image_format", ["zlib", "png"])
def test_v2_observation_round_trip_is_lossless(image_format):
    sent = Observation("Ünï", "h", {"won": True, "admissible_commands": ["look"]}, "g", True, IMAGE, "s", 5, 2, 1)
    got = v2.decode(v2.encode(sent, image_format))
    for name in ("text", "history", "information", "task_type", "done", "session", "seq", "env", "round"):
        assert getattr(got, name) == getattr(sent, name)
    assert got.image.dtype == np.uint8 and (got.image == IMAGE).all()


@pytest.mark.parametrize("name", ["session", "seq", "text", "information", "task_type", "done", "image", "env", "kind"])
def test_v2_names_missing_and_mistyped_fields(name):
    header = observation_header()
    value = header.pop(name)
    with pytest.raises(ProtocolError, match=f"field {name} is missing"):
        v2.decode(v2_body(header, zlib.compress(IMAGE.tobytes())))
    with pytest.raises(ProtocolError, match=f"field {name} must be"):
        wrong = True if type(value) is int else 1.5
        v2.decode(v2_body(header | {name: wrong}, zlib.compress(IMAGE.tobytes())))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"\0\0\0", "length prefix"),
        (b"\0\0\0\0", "the header is not JSON"),
        (b"\0\0\0\x09{}", "claims 9 bytes"),
        (b"\0\0\0\x02[]", "JSON object"),
        (b"\0\0\0\x01{", "not JSON"),
        (struct.pack(">I", 90_000) + b"[" * 90_000, "not JSON"),
        (v2_body({"kind": "tell", "session": "s", "seq": 0}), "unknown kind 'tell'"),
        (v2_body({"kind": "next", "session": "", "seq": 0}), "session"),
        (v2_body({"kind": "next", "session": "s", "seq": -1}), "seq"),
        (v2_body({"kind": "hello", "session": "s", "seq": 0, "games": [1]}), "games"),
    ],
)
def test_v2_malformed(body, reason):
    with pytest.raises(ProtocolError, match=reason):
        v2.decode(body)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"information": {"admissible_commands": 5}}, "information.admissible_commands must be a list of texts"),
        ({"information": {"admissible_commands": {"x": 1}}}, "information.admissible_commands must be a list of texts"),
        ({"information": {"admissible_commands": ["look", 3]}}, "information.admissible_commands must be a list"),
        ({"information": {"admissible_commands": ["a"] * 5000}}, "at most 4096 texts"),
        ({"information": {"admissible_commands": ["a" * 2000]}}, "texts of 1024 characters"),
        ({"information": {"won": "yes"}}, "information.won must be true or false, not str"),
        ({"information": {"expert_action": "a" * 20_000}}, "information.expert_action is longer than 16384"),
        ({"text": "a" * 20_000}, "field text is longer than 16384 characters"),
        ({"history": "a" * 300_000}, "field history is longer than 262144 characters"),
        ({"task_type": "a" * 600}, "field task_type is longer than 512 characters"),
        ({"information": {"a": [[{}] * 8000, [[]] * 9000]}}, "field information holds more than 16384 values"),
        ({"information": {"a": "a" * 600_000}}, "an observation's at most 524288"),
        ({"information": {"a": "a" * 3_000_000}}, "bytes, at most 2097152 are allowed"),
    ],
)
def test_v2_values_that_an_episode_cannot_use(changes, reason):
    with pytest.raises(ProtocolError, match=reason):
        v2.decode(v2_body(observation_header(**changes), zlib.compress(IMAGE.tobytes())))


def padded(message, length: int) -> bytes:
    """A message whose header is `length` bytes long."""
    body = v2.encode(message)
    (now,) = struct.unpack_from(">I", body)
    return struct.pack(">I", length) + body[4 : 4 + now] + b" " * (length - now) + body[4 + now :]


@pytest.mark.parametrize(
    ("limit", "make"),
    [
        (2 << 20, lambda n: padded(Hello("s", 0, ("g",)), n)),
        (1 << 19, lambda n: padded(Observation("t", image=IMAGE, session="s"), n)),
        (512, lambda n: v2.encode(Next("s" * n, 0))),
        (512, lambda n: v2.encode(Hello("s", 0, ("g" * n,)))),
        (1 << 16, lambda n: v2.encode(Hello("s", 0, ("g",) * n))),
    ],
)
def test_v2_sizes_up_to_their_limits(limit, make):
    assert v2.decode(make(limit)).session
    with pytest.raises(ProtocolError):
        v2.decode(make(limit + 1))


def test_v2_what_is_only_noted_is_cut():
    hello = v2.decode(v2.encode(Hello("s", 0, (), "e" * 600, "t" * 600)))
    assert (len(hello.environment), len(hello.split)) == (512, 512)
    assert len(v2.decode(v2.encode(Bye("s", 0, "r" * 600))).reason) == 512


def test_v2_a_client_offers_no_endless_list():
    with pytest.raises(ProtocolError, match="field games must be a list of at most 65536 game ids"):
        v2.decode(v2.encode(Hello("s", 0, ("g",) * 70_000)))


@pytest.mark.parametrize("commands", [None, [], ["look"], [["look", "go to desk 1"]]])
@pytest.mark.parametrize("won", [None, True, [False]])
def test_v2_values_as_alfworld_has_them(commands, won):
    header = observation_header(information={"admissible_commands": commands, "won": won, "extra": [1, {"a": None}]})
    got = v2.decode(v2_body(header, zlib.compress(IMAGE.tobytes())))
    assert got.won in (won, (won or [None])[0] if isinstance(won, list) else won)
    assert got.admissible_commands in ([], ["look"], ["look", "go to desk 1"])


@pytest.mark.parametrize(
    ("image", "data", "reason"),
    [
        ({"format": "gif", "height": 2, "width": 2}, b"", "unknown image format"),
        ({"format": "zlib", "height": 9999, "width": 9999}, b"", "out of bounds"),
        ({"format": "zlib", "height": 0, "width": 2}, b"", "out of bounds"),
        ({"format": "zlib", "height": 2, "width": 2}, zlib.compress(bytes(10_000_000)), "does not unpack"),
        ({"format": "zlib", "height": 2, "width": 2}, zlib.compress(bytes(11)), "does not unpack"),
        ({"format": "zlib", "height": 2, "width": 2}, b"abc", "cannot be decoded"),
        ({"format": "png", "height": 2, "width": 2}, b"abc", "cannot be decoded"),
        ({"format": "jpeg", "height": 2, "width": 2}, images.encode_image(IMAGE, "png")[1], "cannot be decoded"),
        ({"format": "png", "height": 3, "width": 2}, images.encode_image(IMAGE, "png")[1], "the header says"),
        ({"format": "png", "height": 2, "width": 2}, images.encode_image(IMAGE, "png")[1][:45], "cannot be decoded"),
    ],
)
def test_v2_images_are_checked_before_they_are_unpacked(image, data, reason):
    with pytest.raises(ProtocolError, match=reason):
        v2.decode(v2_body(observation_header(image=image), data))


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5), st.lists, max_leaves=6), st.data())
@settings(max_examples=150, deadline=None)
def test_damaged_v2_headers_end_in_protocol_error_or_a_message(value, data):
    header = observation_header()
    header[data.draw(st.sampled_from(sorted(header)))] = value
    try:
        message = v2.decode(v2_body(header, zlib.compress(IMAGE.tobytes())))
    except ProtocolError:
        return
    assert isinstance(message, Observation) and isinstance(message.information, dict)
