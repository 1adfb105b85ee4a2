"""Images on the wire: exact in JSON, zlib and PNG, close in JPEG, and a reason where it is no image."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xrl_alignment.wire import images
from xrl_alignment.wire.messages import ProtocolError

IMAGE = np.arange(2 * 2 * 3, dtype=np.uint8).reshape(2, 2, 3) * 20


def test_v1_image_whole_floats_and_other_spacing_are_read():
    for text in (" [[[1.0, 2.0, 255.0]]]\n", "[[[ 1,2 ,\n255]]]", "[[[1,2,255]]]"):
        assert images.decode_json_image(text.encode()).tolist() == [[[1, 2, 255]]]


@given(shape=st.tuples(st.integers(1, 4), st.integers(1, 4)), seed=st.integers(0, 99), data=st.data())
@settings(max_examples=150, deadline=None)
def test_fast_image_writer_and_parser_agree_with_json(shape, seed, data):
    image = np.random.default_rng(seed).integers(0, 256, (*shape, 3), dtype=np.uint8)
    text = bytearray(images.encode_json_image(image))
    assert text == json.dumps(image.tolist()).encode()
    assert (images._parse_plain_image(bytes(text)) == image).all()
    for _ in range(data.draw(st.integers(1, 2))):  # damage it: whatever is read must be what json reads
        at = data.draw(st.integers(0, len(text) - 1))
        text[at : at + data.draw(st.integers(0, 2))] = data.draw(
            st.sampled_from([b"", b"0", b"9", b",", b"[", b"]", b" "])
        )
    parsed = images._parse_plain_image(bytes(text))
    if parsed is not None:
        assert parsed.tolist() == json.loads(text)


def test_v2_auto_is_lossless_for_drawings_and_jpeg_for_photographs():
    drawing = np.zeros((64, 64, 3), np.uint8)
    drawing[10:30, 5:40] = (200, 30, 30)
    photograph = np.random.default_rng(0).integers(100, 160, (64, 64, 3), dtype=np.uint8)
    assert images.encode_image(drawing)[0] == "zlib"
    name, data = images.encode_image(photograph)
    got = images.decode_image(data, name, 64, 64)
    assert name == "jpeg" and np.abs(got.astype(int) - photograph).mean() < 16


def test_encoding_refuses_what_is_no_image():
    with pytest.raises(ProtocolError, match="float64"):
        images.encode_image(IMAGE / 255)
    with pytest.raises(ProtocolError, match="unknown image format 'bmp'"):
        images.encode_image(IMAGE, "bmp")
