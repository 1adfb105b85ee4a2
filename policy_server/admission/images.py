"""Pictures from clients: sizes are checked in the header, before a single pixel is decoded."""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import warnings

from PIL import Image, UnidentifiedImageError

from policy_server.refusals import Refusal

FORMATS = ("JPEG", "PNG")
THUMBNAIL = (320, 320)  # pixels, what /ui shows at most


def from_base64(text: str) -> bytes:
    """The bytes of strict base64; Refusal (422) for anything else."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:  # ValueError: not ASCII
        raise Refusal(422, "bad_base64", f"image.data is not base64: {error}") from error


def decode(data: bytes, *, max_bytes: int, max_pixels: int) -> Image.Image:
    """An RGB picture from JPEG or PNG; Refusal: 413 where it is too large (encoded or decoded), 422 if it is none."""
    if len(data) > max_bytes:
        raise Refusal(413, "image_too_large", f"the image has {len(data)} bytes; at most {max_bytes} are taken")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # our own limit is far below Pillow's
            image = Image.open(io.BytesIO(data), formats=FORMATS)
        width, height = image.size
        if width * height > max_pixels:
            raise Refusal(
                413, "image_too_large", f"the image has {width} × {height} pixels; at most {max_pixels} are taken"
            )
        return image.convert("RGB")
    except Image.DecompressionBombError as error:
        raise Refusal(413, "image_too_large", f"the image has far too many pixels: {error}") from error
    except UnidentifiedImageError as error:
        raise Refusal(422, "not_an_image", "the image is neither JPEG nor PNG") from error
    except (OSError, ValueError, SyntaxError, EOFError, OverflowError) as error:  # Pillow's, for broken files
        raise Refusal(422, "not_an_image", f"the image is damaged: {error}") from error


def fingerprint(image: Image.Image) -> str:
    """The same for two pictures exactly if size and every pixel are the same."""
    digest = hashlib.blake2b(repr(image.size).encode(), digest_size=16)
    digest.update(image.tobytes())
    return digest.hexdigest()


def thumbnail(image: Image.Image) -> Image.Image:
    """A small copy."""
    copy = (
        image.copy() if image.width <= THUMBNAIL[0] and image.height <= THUMBNAIL[1] else image.reduce(_factor(image))
    )
    return copy


def _factor(image: Image.Image) -> int:
    return -(-max(image.size) // max(THUMBNAIL))


def as_data_url(image: Image.Image) -> str:
    """`image` as a JPEG in a `data:` address."""
    buffer = io.BytesIO()
    image.save(buffer, format="JPEG", quality=80)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"
