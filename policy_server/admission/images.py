"""Images from clients: checked for size before any pixel is decoded."""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import warnings

import numpy as np
from PIL import Image, UnidentifiedImageError

from policy_server.refusals import RequestRefused

FORMATS = ("JPEG", "PNG")
THUMBNAIL = (320, 320)  # pixels; /ui shows no larger image


def from_base64(text: str) -> bytes:
    """The bytes of strict base64; RequestRefused (422) for anything else."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:  # ValueError: not ASCII
        raise RequestRefused(422, "bad_base64", f"image.data is not base64: {error}") from error


def decode(data: bytes, *, max_bytes: int, max_pixels: int) -> Image.Image:
    """The RGB image in `data`, a JPEG or PNG file.

    Raises RequestRefused: 413 if the file or the decoded image is too large, 422 if `data` is no such image.
    """
    if len(data) > max_bytes:
        raise _too_large(f"the image has {len(data)} bytes; the limit is {max_bytes}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # our own limit is far below Pillow's
            image = Image.open(io.BytesIO(data), formats=FORMATS)  # reads the header only
        width, height = image.size
        if width * height > max_pixels:
            raise _too_large(f"the image has {width} × {height} pixels; the limit is {max_pixels}")
        if image.mode == "I;16":  # grey in 16 bits, whose values above 255 `convert` would make white
            return image.point(lambda value: value / 256).convert("RGB")
        return image.convert("RGB")
    except Image.DecompressionBombError as error:
        raise _too_large(f"the image has far too many pixels: {error}") from error
    except UnidentifiedImageError as error:
        raise RequestRefused(422, "not_an_image", "the image is neither JPEG nor PNG") from error
    except (OSError, ValueError, SyntaxError, EOFError, OverflowError) as error:  # Pillow's errors for damaged files
        raise RequestRefused(422, "not_an_image", f"the image is damaged: {error}") from error


def _too_large(reason: str) -> RequestRefused:
    return RequestRefused(413, "image_too_large", reason)


def fingerprint(image: Image.Image) -> int:
    """A hash of size and pixels: two images have the same one only if they are identical."""
    digest = hashlib.blake2b(repr(image.size).encode(), digest_size=16)
    digest.update(image.tobytes())
    return int.from_bytes(digest.digest(), "big")


def perceptual_hash(image: Image.Image) -> int:
    """301 bits that differ little between similar images; the number of different bits is their distance.

    256 bits say for each cell of a grid of 16 × 16 whether it is brighter than its right neighbour (dHash, Krawetz
    2013). They ignore the colour of the whole, so an empty sky and a dark cave would be the same. The other 45 are the
    mean of red, green and blue, each in 16 levels with one more bit set for each level.
    """
    grid = np.asarray(image.convert("L").resize((17, 16), Image.Resampling.BOX))
    mean = np.asarray(image.resize((1, 1), Image.Resampling.BOX)).reshape(3, 1)
    bits = np.concatenate([(grid[:, :-1] > grid[:, 1:]).ravel(), (mean // 16 > np.arange(15)).ravel()])
    return int.from_bytes(np.packbits(bits).tobytes(), "big")


def thumbnail(image: Image.Image) -> Image.Image:
    """A copy that fits into THUMBNAIL, reduced by a whole number."""
    factor = -(-max(image.size) // max(THUMBNAIL))  # rounded up
    return image.reduce(factor) if factor > 1 else image.copy()


def as_data_url(image: Image.Image) -> str:
    """`image` as a `data:` URL with a JPEG."""
    buffer = io.BytesIO()
    image.save(buffer, format="JPEG", quality=80)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"
