"""Both wire formats: exact bytes, tolerance where the original was tolerant, and a reason for everything else."""

import ast
import json
import re
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xrl_alignment.wire import protocol
from xrl_alignment.wire.protocol import Bye, Hello, Next, Observation, ProtocolError

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


def v2_body(header: dict, image: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return struct.pack(">I", len(text)) + text + image


def observation_header(**changes) -> dict:
    header = {"kind": "observation", "session": "s", "seq": 3, "env": 1, "round": 0, "text": "t", "history": ""}
    header |= {"information": {}, "task_type": "", "done": False}
    header |= {"image": {"format": "zlib", "height": 2, "width": 2}}
    return header | changes


def test_v1_body_is_what_the_original_client_posts():
    observation = Observation("Hi.\n", "> look\n", {"won": False}, "pick-1/t", True, IMAGE[:1])
    assert protocol.encode_v1(observation) == (
        b"[#OBSERVATION]Hi.\n[#HISTORY]> look\n[#INFORMATION]{'won': False}[#TYPE]pick-1/t[#DONE]True"
        b"[#IMAGE][[[0, 20, 40], [60, 80, 100]]]"
    )


@given(text=PLAIN_TEXT, history=PLAIN_TEXT, task_type=PLAIN_TEXT, done=st.booleans(), note=PLAIN_TEXT)
@settings(max_examples=60, deadline=None)
def test_v1_is_read_as_the_original_server_reads_it(text, history, task_type, done, note):
    body = protocol.encode_v1(Observation(text, history, {"note": note}, task_type, done, IMAGE))
    # The original's process_feedback (emac_full_documentation.md §6.1): one expression with non-greedy groups.
    tags = ("OBSERVATION", "HISTORY", "INFORMATION", "TYPE", "DONE")
    match = re.match("".join(rf"\[#{tag}\](.*?)" for tag in tags) + r"\[#IMAGE\](.*)", body.decode(), re.DOTALL)
    ours = protocol.decode_v1(body)
    assert (ours.text, ours.history, ours.task_type) == (match[1], match[2], match[4])
    assert ours.information == ast.literal_eval(match[3]) and ours.done == (match[5] == "True")
    assert (ours.image == np.asarray(json.loads(match[6]))).all()


def test_v1_fields_may_hold_text_that_looks_like_a_tag():
    history = "> say [#IMAGE] and [#INFORMATION] and [#INFORMATION]{'a': 1} and [#DONE]\nNothing happens."
    information = {"note": "[#TYPE] [#HISTORY]"}
    got = protocol.decode_v1(protocol.encode_v1(Observation("o", history, information, "", False, IMAGE)))
    assert (got.history, got.information, got.task_type) == (history, information, "")


@pytest.mark.parametrize("name", ["OBSERVATION", "HISTORY", "INFORMATION", "TYPE", "DONE", "IMAGE"])
def test_v1_names_the_missing_field(name):
    with pytest.raises(ProtocolError, match=name):
        protocol.decode_v1(v1_body(**{name: None}))


@pytest.mark.parametrize(
    "information",
    ["", "[1]", "{1: 2}", "dict(a=1)", "{'a': __import__('os')}", "{'a': " + "[" * 60 + "]" * 60 + "}", "{'a': ",
     "{'a': " + "-" * 100_000 + "1}", "{'a': '" + "x" * protocol.MAX_INFORMATION + "'}"],
)  # fmt: skip
def test_v1_information_is_a_bounded_literal_dict(information):
    with pytest.raises(ProtocolError, match="INFORMATION"):
        protocol.decode_v1(v1_body(INFORMATION=information))


def test_v1_rejects_other_done_and_bad_utf8():
    with pytest.raises(ProtocolError, match="DONE.*'true'"):
        protocol.decode_v1(v1_body(DONE="true"))
    with pytest.raises(ProtocolError, match="HISTORY.*UTF-8"):
        protocol.decode_v1(v1_body().replace(b"[#HISTORY]text", b"[#HISTORY]\xff"))


@pytest.mark.parametrize(
    "image",
    ["", "{}", "[]", "[[[1, 2, 3]], [[1, 2, 3], [4, 5, 6]]]", "[[1, 2, 3]]", "[[[1, 2, 3, 4]]]", "[[[1, 2]]]",
     "[[[256, 0, 0]]]", "[[[-1, 0, 0]]]", "[[[0.5, 0, 0]]]", "[[[true, false, true]]]", '[[["1", "2", "3"]]]',
     "[[[1, 2, 3]]", "[[[1, , 3]]]", "[[[1,2,],5[1,2,3]]]", "[[[007, 0, 0]]]", "[[[NaN, 0, 0]]]", "[" * 5000],
)  # fmt: skip
def test_v1_image_of_wrong_shape_or_range(image):
    with pytest.raises(ProtocolError, match="IMAGE"):
        protocol.decode_v1(v1_body(IMAGE=image))


def test_v1_image_whole_floats_and_other_spacing_are_read():
    for text in (" [[[1.0, 2.0, 255.0]]]\n", "[[[ 1,2 ,\n255]]]", "[[[1,2,255]]]"):
        assert protocol.decode_json_image(text.encode()).tolist() == [[[1, 2, 255]]]


@given(shape=st.tuples(st.integers(1, 4), st.integers(1, 4)), seed=st.integers(0, 99), data=st.data())
@settings(max_examples=150, deadline=None)
def test_fast_image_writer_and_parser_agree_with_json(shape, seed, data):
    image = np.random.default_rng(seed).integers(0, 256, (*shape, 3), dtype=np.uint8)
    text = bytearray(protocol.encode_json_image(image))
    assert text == json.dumps(image.tolist()).encode()
    assert (protocol._parse_plain_image(bytes(text)) == image).all()
    for _ in range(data.draw(st.integers(1, 2))):  # damage it: whatever is read must be what json reads
        at = data.draw(st.integers(0, len(text) - 1))
        text[at : at + data.draw(st.integers(0, 2))] = data.draw(
            st.sampled_from([b"", b"0", b"9", b",", b"[", b"]", b" "])
        )
    parsed = protocol._parse_plain_image(bytes(text))
    if parsed is not None:
        assert parsed.tolist() == json.loads(text)


def test_v1_reply():
    assert protocol.encode_reply_v1("go to desk 1") == b"['go to desk 1']"
    assert protocol.encode_reply_v1(None) == b"[]" and protocol.encode_reply_v1(["SKIP"]) == b"['SKIP']"
    assert protocol.decode_reply_v1(b"['go to desk 1']") == ["go to desk 1"]
    for wrong in (b"go", b"[1]", b"('a',)", b"\xff"):
        with pytest.raises(ProtocolError, match="reply"):
            protocol.decode_reply_v1(wrong)


@pytest.mark.parametrize("message", [Hello("s", 0, ("a", "b"), "native", "train"), Next("s", 1), Bye("s", 2, "why")])
def test_v2_round_trip_of_small_messages(message):
    assert protocol.decode_v2(protocol.encode_v2(message)) == message


@pytest.mark.parametrize("image_format", ["zlib", "png"])
def test_v2_observation_round_trip_is_lossless(image_format):
    sent = Observation("Ünï", "h", {"won": True, "admissible_commands": ["look"]}, "g", True, IMAGE, "s", 5, 2, 1)
    got = protocol.decode_v2(protocol.encode_v2(sent, image_format))
    for name in ("text", "history", "information", "task_type", "done", "session", "seq", "env", "round"):
        assert getattr(got, name) == getattr(sent, name)
    assert got.image.dtype == np.uint8 and (got.image == IMAGE).all()


def test_v2_auto_is_lossless_for_drawings_and_jpeg_for_photographs():
    drawing = np.zeros((64, 64, 3), np.uint8)
    drawing[10:30, 5:40] = (200, 30, 30)
    photograph = np.random.default_rng(0).integers(100, 160, (64, 64, 3), dtype=np.uint8)
    assert protocol.encode_image(drawing)[0] == "zlib"
    name, data = protocol.encode_image(photograph)
    got = protocol.decode_image(data, name, 64, 64)
    assert name == "jpeg" and np.abs(got.astype(int) - photograph).mean() < 16


@pytest.mark.parametrize("name", ["session", "seq", "text", "information", "task_type", "done", "image", "env", "kind"])
def test_v2_names_missing_and_mistyped_fields(name):
    header = observation_header()
    value = header.pop(name)
    with pytest.raises(ProtocolError, match=f"field {name} is missing"):
        protocol.decode_v2(v2_body(header, zlib.compress(IMAGE.tobytes())))
    with pytest.raises(ProtocolError, match=f"field {name} must be"):
        wrong = True if type(value) is int else 1.5
        protocol.decode_v2(v2_body(header | {name: wrong}, zlib.compress(IMAGE.tobytes())))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "length prefix"),
        (b"\0\0\0\x09{}", "claims 9 bytes"),
        (b"\0\0\0\x02[]", "JSON object"),
        (b"\0\0\0\x01{", "no JSON"),
        (struct.pack(">I", 90_000) + b"[" * 90_000, "no JSON"),
        (v2_body({"kind": "tell", "session": "s", "seq": 0}), "unknown kind 'tell'"),
        (v2_body({"kind": "next", "session": "", "seq": 0}), "session"),
        (v2_body({"kind": "next", "session": "s", "seq": -1}), "seq"),
        (v2_body({"kind": "hello", "session": "s", "seq": 0, "games": [1]}), "games"),
    ],
)
def test_v2_malformed(body, reason):
    with pytest.raises(ProtocolError, match=reason):
        protocol.decode_v2(body)


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
        ({"format": "jpeg", "height": 2, "width": 2}, protocol.encode_image(IMAGE, "png")[1], "cannot be decoded"),
        ({"format": "png", "height": 3, "width": 2}, protocol.encode_image(IMAGE, "png")[1], "the header says"),
        ({"format": "png", "height": 2, "width": 2}, protocol.encode_image(IMAGE, "png")[1][:45], "cannot be decoded"),
    ],
)
def test_v2_images_are_checked_before_they_are_unpacked(image, data, reason):
    with pytest.raises(ProtocolError, match=reason):
        protocol.decode_v2(v2_body(observation_header(image=image), data))


@given(st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_random_bytes_end_in_protocol_error(data):
    for decode in (protocol.decode_v1, protocol.decode_v2, protocol.decode_reply_v2):
        with pytest.raises(ProtocolError):
            decode(data)


@given(st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_random_bytes_are_no_v1_reply_unless_they_are_a_list_of_texts(data):
    try:
        actions = protocol.decode_reply_v1(data)
    except ProtocolError:
        return
    assert all(isinstance(action, str) for action in actions)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5), st.lists, max_leaves=6), st.data())
@settings(max_examples=150, deadline=None)
def test_damaged_v2_headers_end_in_protocol_error_or_a_message(value, data):
    header = observation_header()
    header[data.draw(st.sampled_from(sorted(header)))] = value
    try:
        message = protocol.decode_v2(v2_body(header, zlib.compress(IMAGE.tobytes())))
    except ProtocolError:
        return
    assert isinstance(message, Observation) and isinstance(message.information, dict)


def test_encoding_refuses_what_is_no_image():
    with pytest.raises(ProtocolError, match="float64"):
        protocol.encode_image(IMAGE / 255)
    with pytest.raises(ProtocolError, match="unknown image format 'bmp'"):
        protocol.encode_image(IMAGE, "bmp")


def test_information_also_in_alfworlds_batched_form():
    ours = Observation("", information={"won": True, "admissible_commands": ["look", "go to desk 1"]})
    batched = Observation("", information={"won": [True], "admissible_commands": [["look", "go to desk 1"]]})
    for observation in (ours, batched):
        assert observation.won is True and observation.admissible_commands == ["look", "go to desk 1"]
    assert Observation("").won is None and Observation("").admissible_commands == []


def test_md5_is_the_usual_one():
    assert protocol.md5_hex(b"abc") == "900150983cd24fb0d6963f7d28e17f72"
