from __future__ import annotations

import io
import struct
import tracemalloc
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from policy_server.admission import images
from policy_server.refusals import RequestRefused
from tests.policy_server.servers import encoded_image

LIMITS = {"max_bytes": 100_000, "max_pixels": 1_000_000}


def bomb(width: int, height: int) -> bytes:
    """A correct PNG of `width` × `height` black pixels, a thousandth of its pixels long."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    row = zlib.compressobj()
    packed = b"".join(row.compress(bytes(1 + width)) for _ in range(height)) + row.flush()
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_images_come_back_in_rgb(kind):
    image = images.decode(encoded_image(kind), **LIMITS)
    assert (image.mode, image.size) == ("RGB", (64, 36))
    assert abs(image.getpixel((5, 5))[1] - 120) < 3


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "LA", "1", "I;16"])
def test_other_colour_modes_are_converted(mode):
    buffer = io.BytesIO()
    Image.new(mode, (20, 10)).save(buffer, format="PNG")
    assert images.decode(buffer.getvalue(), **LIMITS).mode == "RGB"


def test_grey_in_16_bits_keeps_its_shades():
    shades = np.array([[0, 255, 256, 0x8000, 0xFFFF]], np.uint16)
    buffer = io.BytesIO()
    Image.fromarray(shades).save(buffer, format="PNG")
    decoded = np.asarray(images.decode(buffer.getvalue(), **LIMITS))
    assert decoded.tolist() == [[[shade] * 3 for shade in (0, 0, 1, 0x80, 0xFF)]]


def test_a_bomb_is_refused_before_it_is_decoded():
    data = bomb(10_000, 10_000)
    tracemalloc.start()
    with pytest.raises(RequestRefused, match="10000 × 10000 pixels; the limit is 1000000") as caught:
        images.decode(data, max_bytes=200_000, max_pixels=1_000_000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert caught.value.status == 413
    assert peak < 5_000_000  # its pixels would be 100 MB


def test_sizes_beyond_pillows_own_limit_are_refused_too():
    header = bomb(1, 1)[:16] + struct.pack(">II", 100_000, 100_000) + b"\x08\0\0\0\0"
    data = header + struct.pack(">I", zlib.crc32(header[12:])) + bomb(1, 1)[33:]
    with pytest.raises(RequestRefused) as caught:
        images.decode(data, **LIMITS)
    assert caught.value.status == 413


def test_too_many_bytes():
    with pytest.raises(RequestRefused, match="has 100001 bytes; the limit is 100000") as caught:
        images.decode(bytes(100_001), **LIMITS)
    assert caught.value.status == 413


def gif() -> bytes:
    buffer = io.BytesIO()
    Image.new("L", (4, 4)).save(buffer, format="GIF")
    return buffer.getvalue()


@pytest.mark.parametrize(
    "data", [b"", b"hello", gif(), encoded_image("PNG")[:60], encoded_image("JPEG")[:200]], ids=str
)
def test_no_image_no_decoding(data):
    reason = "is damaged: " if len(data) >= 60 else "is neither JPEG nor PNG$"
    with pytest.raises(RequestRefused, match=f"the image {reason}") as caught:
        images.decode(data, **LIMITS)
    assert caught.value.status == 422


@given(st.binary(max_size=64), st.integers(0, 400), st.sampled_from(["PNG", "JPEG"]))
def test_damaged_images_are_decoded_or_refused(junk, at, kind):
    good = encoded_image(kind)
    try:
        image = images.decode(good[:at] + junk + good[at + len(junk) :], **LIMITS)
    except RequestRefused as refusal:
        assert refusal.status in (413, 422)
    else:
        assert image.mode == "RGB"


@pytest.mark.parametrize("text", ["%%%", "abc", "aGVsbG8=\n", "aGVs bG8=", "ä", "data:image/png;base64,aGVs"])
def test_base64_is_strict(text):
    with pytest.raises(RequestRefused, match="not base64") as caught:
        images.from_base64(text)
    assert caught.value.status == 422


def test_fingerprints_tell_images_apart():
    one, same, other = (images.decode(encoded_image("PNG", shade=s), **LIMITS) for s in (1, 1, 2))
    turned = images.decode(encoded_image("PNG", size=(36, 64), shade=1), **LIMITS)
    assert images.fingerprint(one) == images.fingerprint(same)
    assert len({images.fingerprint(image) for image in (one, other, turned)}) == 3


def test_thumbnails_are_small_and_keep_their_shape():
    large = images.decode(encoded_image("PNG", size=(1280, 720)), **LIMITS | {"max_pixels": 10**6})
    assert images.thumbnail(large).size == (320, 180)
    assert images.as_data_url(images.thumbnail(large)).startswith("data:image/jpeg;base64,/9j/")


def scene(shift: int = 0, light: float = 1.0) -> Image.Image:
    """A landscape with a house: large areas, as games show them."""
    view = np.zeros((180, 320, 3))
    view[:90] = np.linspace(255, 160, 90)[:, None, None] * (0.6, 0.8, 1)
    view[90:] = np.linspace(60, 140, 90)[:, None, None] * (0.5, 1, 0.4)
    view[60:130, 100 + shift : 160 + shift] = (150, 90, 60)
    return Image.fromarray(np.clip(view * light, 0, 255).astype(np.uint8))


def distance(first: Image.Image, second: Image.Image) -> int:
    return (images.perceptual_hash(first) ^ images.perceptual_hash(second)).bit_count()


def test_the_perceptual_hash_is_near_for_what_looks_alike():
    buffer = io.BytesIO()
    scene().save(buffer, format="JPEG", quality=80)
    assert distance(scene(), scene()) == 0
    assert distance(scene(), Image.open(buffer)) <= 8
    assert distance(scene(), scene(shift=2)) <= 8
    assert distance(scene(), scene(shift=120)) > 8
    assert distance(scene(), scene().transpose(Image.Transpose.FLIP_TOP_BOTTOM)) > 8


def test_the_perceptual_hash_sees_the_colour_of_an_empty_view():
    dark, sky, red = (Image.new("RGB", (64, 36), colour) for colour in ((5, 5, 5), (120, 170, 240), (240, 20, 20)))
    assert min(distance(dark, sky), distance(dark, red), distance(sky, red)) > 8
    assert distance(sky, Image.new("RGB", (64, 36), (122, 171, 239))) <= 1
    for colour in ((0, 0, 0), (255, 255, 255)):
        assert images.perceptual_hash(Image.new("RGB", (1, 1), colour)) < 1 << 304
