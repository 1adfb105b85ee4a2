"""Images on the wire: a JSON array in v1; zlib, PNG or JPEG bytes in v2. Always uint8, (height, width, 3), RGB."""

from __future__ import annotations

import io
import json
import zlib

import numpy as np
from PIL import Image

from lavis.common.errors import unknown
from xrl_alignment.wire.messages import ProtocolError, brief

IMAGE_FORMATS = ("auto", "zlib", "png", "jpeg")
MAX_PIXELS = 1024 * 1024  # a frame is 224×224 or 300×300; anything beyond this is a mistake or an attack

_JPEG_QUALITY = 95  # the best that Pillow advises: above it files grow, and images hardly improve
_FIELD = "field [#IMAGE]"  # v1's name of the image
_DIGITS = np.array([list(str(number).ljust(3, "\0").encode()) for number in range(256)], np.uint8)  # (256, 3)


# --- v1: JSON ---------------------------------------------------------------------------------------------------------


def encode_json_image(image: np.ndarray) -> bytes:
    """uint8 (height, width, 3) -> the bytes of `json.dumps(image.tolist())`, written with array operations."""
    _check_array(image)
    tokens = np.zeros((*image.shape, 9), np.uint8)  # a number and what follows it; the zeros are dropped at the end
    tokens[..., :3] = _DIGITS[image]
    tokens[..., 3:5] = list(b", ")  # after a number
    tokens[:, :, 2, 3:7] = list(b"], [")  # after a pixel
    tokens[:, -1, 2, 3:9] = list(b"]], [[")  # after a row
    tokens[-1, -1, 2, 3:9] = 0  # the last bracket of all is added below
    tokens = tokens.ravel()
    return b"[[[" + tokens[tokens > 0].tobytes() + b"]]]"


def decode_json_image(text: bytes) -> np.ndarray:
    """JSON array height × width × 3 of whole numbers 0..255 -> uint8 (height, width, 3). Raises ProtocolError."""
    image = _parse_plain_image(text)
    if image is not None:
        return image
    try:
        array = np.asarray(json.loads(text))
    except (ValueError, RecursionError, MemoryError) as error:
        raise ProtocolError(f"{_FIELD} is not a JSON array height × width × 3: {brief(error)}") from error
    if array.ndim != 3 or array.shape[2] != 3 or array.size == 0:
        raise ProtocolError(f"{_FIELD} must have the shape height × width × 3, not {array.shape}")
    if array.dtype.kind not in "iuf" or not ((array >= 0) & (array <= 255)).all() or (array % 1).any():
        raise ProtocolError(f"{_FIELD} must hold whole numbers 0..255")
    _check_pixels(array.shape[0], array.shape[1])
    return array.astype(np.uint8)


def _parse_plain_image(text: bytes) -> np.ndarray | None:
    """Parse what `json.dumps(image.tolist())` writes with array operations, 3 × as fast; None for any other text.

    The text without its digits must be exactly the brackets and commas of a height × width × 3 array, and every run of
    digits must stand where a number belongs: between `[` or `,` and `,` or `]`.
    """
    text = text.strip().replace(b", ", b",")
    if not (text.startswith(b"[[[") and text.endswith(b"]]]")):
        return None
    # 1. Without its digits the text is "[[[,,],[,,],…],[…]]": its beginning gives the width, its length the height.
    skeleton = text.translate(None, b"0123456789")
    width = skeleton.find(b"]]") // 5  # a row is "[" + "[,,]" + ",[,,]" …
    row = b"[" + b",".join([b"[,,]"] * width) + b"]"
    height = (len(skeleton) - 1) // (len(row) + 1)
    if height < 1 or width * height > MAX_PIXELS or skeleton != b"[" + b",".join([row] * height) + b"]":
        return None
    # 2. The places of the numbers: where digits begin and end.
    codes = np.frombuffer(text, np.uint8)
    is_digit = (codes >= 48) & (codes <= 57)
    edges = np.flatnonzero(is_digit[1:] != is_digit[:-1]) + 1
    first, end = edges[0::2], edges[1::2]  # pairs, since the text begins and ends with a bracket
    length = end - first
    comma, opening, closing = b",[]"
    before, after = codes[first - 1], codes[end]
    placed = ((before == comma) | (before == opening)) & ((after == comma) | (after == closing))
    if len(first) != height * width * 3 or length.max() > 3 or not placed.all():
        return None
    if ((codes[first] == 48) & (length > 1)).any():  # JSON has no leading zeros
        return None
    # 3. Their values, from the last digit (48 is "0") to the third last.
    value = (codes[end - 1] - 48).astype(np.int16)
    value += np.where(length > 1, codes[end - 2] - np.int16(48), 0) * 10
    value += np.where(length > 2, codes[end - 3] - np.int16(48), 0) * 100
    return value.astype(np.uint8).reshape(height, width, 3) if value.max() <= 255 else None


# --- v2: compressed bytes ---------------------------------------------------------------------------------------------


def encode_image(image: np.ndarray, image_format: str = "auto") -> tuple[str, bytes]:
    """uint8 (height, width, 3) -> (the format used, the bytes).

    `zlib` (deflate level 1 of the raw pixels) and `png` are lossless, `jpeg` has quality 95. `auto` takes zlib where
    most neighbouring pixels are equal, as in frames of `alfworld_native.drawing`, and jpeg for photographs and a
    simulator's frames: there deflate needs 6 × the bytes (measured by benchmarks/wire.py).
    Raises ProtocolError for an unknown format or an array of another shape or type.
    """
    _check_array(image)
    if image_format == "auto":
        rows = image[::8]  # every 8th row is enough, and takes 0.1 ms
        flat = (rows[:, 1:] == rows[:, :-1]).mean() > 0.5  # most values equal those of the left neighbour
        image_format = "zlib" if flat else "jpeg"
    if image_format == "zlib":
        return "zlib", zlib.compress(np.ascontiguousarray(image).data, 1)
    out = io.BytesIO()
    if image_format == "png":
        Image.fromarray(image).save(out, "PNG", compress_level=1)
    elif image_format == "jpeg":
        Image.fromarray(image).save(out, "JPEG", quality=_JPEG_QUALITY)
    else:
        raise ProtocolError(unknown("image format", image_format, IMAGE_FORMATS))
    return image_format, out.getvalue()


def decode_image(data: bytes, image_format: str, height: int, width: int) -> np.ndarray:
    """Compressed bytes -> uint8 (height, width, 3); the size is checked before decompression. Raises ProtocolError."""
    _check_pixels(height, width)
    if image_format == "zlib":
        size = height * width * 3
        inflater = zlib.decompressobj()
        try:
            pixels = inflater.decompress(data, size + 1)  # never more than one byte too many, whatever was sent
        except zlib.error as error:
            raise ProtocolError(f"the image cannot be decoded: {brief(error)}") from error
        if len(pixels) != size or not inflater.eof:
            raise ProtocolError(f"the image does not unpack to {height} × {width} × 3 bytes")
        return np.frombuffer(pixels, np.uint8).reshape(height, width, 3)
    if image_format not in IMAGE_FORMATS[1:]:
        raise ProtocolError(unknown("image format", image_format[:40], IMAGE_FORMATS[1:]))
    try:
        with Image.open(io.BytesIO(data), formats=[image_format.upper()]) as image:  # reads the header only
            if image.size != (width, height) or image.mode != "RGB":
                raise ProtocolError(f"the image is {image.mode} {image.size}, the header says {(width, height)}")
            return np.array(image)
    except ProtocolError:
        raise
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise ProtocolError(f"the image cannot be decoded: {brief(error)}") from error


def _check_array(image: np.ndarray) -> None:
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or image.size == 0:
        raise ProtocolError(f"an image must be uint8 height × width × 3, not {image.dtype} {image.shape}")


def _check_pixels(height: int, width: int) -> None:
    if height < 1 or width < 1 or height * width > MAX_PIXELS:
        raise ProtocolError(f"an image of {height} × {width} pixels is out of bounds (1 to {MAX_PIXELS} pixels)")
