"""The wire between an environment (client) and the learner (server): messages, format v1, format v2, MD5.

v1 is the original's and fixed; its clients must work unchanged::

    POST /   MD5: <hex MD5 of the body>
    [#OBSERVATION]o[#HISTORY]h[#INFORMATION]i[#TYPE]t[#DONE]d[#IMAGE]j
    -> 200   MD5: …      ['go to desk 1']        [] after the final observation, ['SKIP'] for a solved game

v2 is ours: ``Content-Type: application/x-emac-v2``, a length-prefixed JSON header and the encoded image::

    4 bytes big-endian n | n bytes JSON {"kind": "observation", "session": …, "seq": …, …} | image bytes
    -> 200   MD5: …      {"kind": "action", "action": "go to desk 1"}

Whatever arrives was written by somebody else: decoding checks sizes before it allocates, types before it uses, and
answers everything it does not like with a `ProtocolError` that names the field.
"""

from __future__ import annotations

import ast
import hashlib
import io
import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from PIL import Image

CONTENT_TYPE_V2 = "application/x-emac-v2"
IMAGE_FORMATS = ("auto", "zlib", "png", "jpeg")
SKIP = "SKIP"  # v1: this game is solved already, go to the next one

MAX_PIXELS = 2048 * 2048  # a frame is 224×224 or 300×300; beyond this it is a mistake or an attack
MAX_INFORMATION = 1 << 20  # characters of Python literal that we are willing to parse
MAX_NESTING = 32  # brackets inside brackets in that literal; ALFWorld's infos need three
MAX_NAME = 512  # characters of a session or game id

_TAGS = ("[#OBSERVATION]", "[#HISTORY]", "[#INFORMATION]", "[#TYPE]", "[#DONE]", "[#IMAGE]")
_JPEG_QUALITY = 95
_DIGITS = np.array([list(str(number).ljust(3, "\0").encode()) for number in range(256)], np.uint8)  # (256, 3)


class ProtocolError(ValueError):
    """A message that breaks the wire format; its text names the field and what is wrong with it."""


def _no_image() -> np.ndarray:
    return np.zeros((1, 1, 3), np.uint8)


@dataclass(frozen=True, eq=False)
class Observation:
    """What the agent sees at one step.

    `task_type` is the game id (it begins with the task type) on the first observation of an episode, empty after it.
    `image` is uint8, (height, width, 3), RGB. `session`, `seq`, `env`, `round` are v2's; v1 leaves the defaults.
    """

    text: str
    history: str = ""
    information: dict[str, Any] = field(default_factory=dict)
    task_type: str = ""
    done: bool = False
    image: np.ndarray = field(default_factory=_no_image)
    session: str = ""
    seq: int = 0
    env: int = -1
    round: int = 0

    @property
    def won(self) -> bool | None:
        """`information["won"]`, also in the batch-of-one form that ALFWorld's own infos have; None where absent."""
        value = _unbatched(self.information.get("won"))
        return None if value is None else bool(value)

    @property
    def admissible_commands(self) -> list[str]:
        """`information["admissible_commands"]` as a flat list (ALFWorld's infos nest it once); empty where absent."""
        value = self.information.get("admissible_commands") or []
        if len(value) == 1 and isinstance(value[0], (list, tuple)):
            value = value[0]
        return [str(command) for command in value]


@dataclass(frozen=True)
class Hello:
    """A session introduces itself: which games it can play, on which environment."""

    session: str
    seq: int
    games: tuple[str, ...]
    environment: str = ""
    split: str = ""


@dataclass(frozen=True)
class Next:
    """A session asks for work."""

    session: str
    seq: int


@dataclass(frozen=True)
class Bye:
    """A session leaves; `reason` is empty when it left by itself. Its unfinished work goes back."""

    session: str
    seq: int
    reason: str = ""


Message = Observation | Hello | Next | Bye


def md5_hex(body: bytes) -> str:
    """Hex MD5 of `body`: the wire's check against damaged transfers. It is no protection against an attacker."""
    return hashlib.md5(body, usedforsecurity=False).hexdigest()


# --- v1 ---------------------------------------------------------------------------------------------------------------


def encode_v1(observation: Observation) -> bytes:
    """The body that the original's client would post for `observation`."""
    values = (
        observation.text,
        observation.history,
        repr(dict(observation.information)),
        observation.task_type,
        str(bool(observation.done)),
        "",
    )
    text = "".join(tag + value for tag, value in zip(_TAGS, values, strict=True))
    return text.encode() + encode_json_image(observation.image)


def decode_v1(body: bytes) -> Observation:
    """Read a v1 body. Raises ProtocolError naming the field that is missing or malformed.

    A text field may contain newlines and even text that looks like a tag: the last three tags are searched from the
    right (type, done and image cannot contain tags), and INFORMATION is the first tag whose content is a dict.
    """
    head, image = _cut_right(body, _TAGS[5])
    head, done = _cut_right(head, _TAGS[4])
    head, task_type = _cut_right(head, _TAGS[3])
    if not head.startswith(_TAGS[0].encode()):
        raise ProtocolError(f"the body must begin with {_TAGS[0]}")
    text, found, rest = head[len(_TAGS[0]) :].partition(_TAGS[1].encode())
    if not found:
        raise ProtocolError(f"field {_TAGS[1]} is missing")
    history, information = _split_information(rest)
    flag = _text(done, _TAGS[4]).strip()
    if flag not in ("True", "False"):
        raise ProtocolError(f"field {_TAGS[4]} must be True or False, not {flag[:40]!r}")
    return Observation(
        text=_text(text, _TAGS[0]),
        history=_text(history, _TAGS[1]),
        information=information,
        task_type=_text(task_type, _TAGS[3]),
        done=flag == "True",
        image=decode_json_image(image),
    )


def encode_reply_v1(action: str | Sequence[str] | None) -> bytes:
    """`['go to desk 1']` for an action, `[]` for None (after a final observation)."""
    actions = [] if action is None else [action] if isinstance(action, str) else list(action)
    return repr(actions).encode()


def decode_reply_v1(body: bytes) -> list[str]:
    """The list of actions in a v1 reply: one action, `SKIP`, or nothing."""
    reply = _literal(_text(body, "reply"), "reply")
    if not isinstance(reply, list) or not all(isinstance(item, str) for item in reply):
        raise ProtocolError("the reply must be a list of strings")
    return reply


def encode_json_image(image: np.ndarray) -> bytes:
    """uint8 (height, width, 3) -> the bytes of `json.dumps(image.tolist())`, written with array operations."""
    _check_array(image)
    tokens = np.zeros((*image.shape, 9), np.uint8)  # a number and what follows it; zeros are left out at the end
    tokens[..., :3] = _DIGITS[image]
    tokens[..., 3:5] = list(b", ")
    tokens[:, :, 2, 3:7] = list(b"], [")
    tokens[:, -1, 2, 3:9] = list(b"]], [[")
    tokens[-1, -1, 2, 3:9] = 0
    tokens = tokens.ravel()
    return b"[[[" + tokens[tokens > 0].tobytes() + b"]]]"


def decode_json_image(text: bytes) -> np.ndarray:
    """JSON array height × width × 3 of whole numbers 0..255 -> uint8 (height, width, 3)."""
    image = _parse_plain_image(text)
    if image is not None:
        return image
    try:
        array = np.asarray(json.loads(text))
    except (ValueError, RecursionError, MemoryError) as error:
        raise ProtocolError(f"field {_TAGS[5]} is no JSON array height × width × 3: {_short(error)}") from error
    if array.ndim != 3 or array.shape[2] != 3 or array.size == 0:
        raise ProtocolError(f"field {_TAGS[5]} must have the shape height × width × 3, not {array.shape}")
    if array.dtype.kind not in "iuf" or not ((array >= 0) & (array <= 255)).all() or (array % 1).any():
        raise ProtocolError(f"field {_TAGS[5]} must hold whole numbers 0..255")
    _check_pixels(array.shape[0], array.shape[1])
    return array.astype(np.uint8)


def _cut_right(body: bytes, tag: str) -> tuple[bytes, bytes]:
    head, found, tail = body.rpartition(tag.encode())
    if not found:
        raise ProtocolError(f"field {tag} is missing")
    return head, tail


def _text(value: bytes, tag: str) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise ProtocolError(f"field {tag} is not UTF-8: {_short(error)}") from error


def _split_information(rest: bytes) -> tuple[bytes, dict[str, Any]]:
    """Cut `history[#INFORMATION]dict` where the dict begins; the history may itself mention the tag."""
    tag = _TAGS[2].encode()
    at = rest.find(tag)
    if at < 0:
        raise ProtocolError(f"field {_TAGS[2]} is missing")
    fault = ProtocolError(f"field {_TAGS[2]} must be a Python-literal dict")
    for _ in range(MAX_NESTING):  # each try may parse the rest, so their number is bounded
        try:
            information = _literal(_text(rest[at + len(tag) :], _TAGS[2]), f"field {_TAGS[2]}")
            if isinstance(information, dict) and all(isinstance(key, str) for key in information):
                return rest[:at], information
        except ProtocolError as error:
            fault = error
        at = rest.find(tag, at + 1)
        if at < 0:
            break
    raise fault


def _literal(text: str, what: str) -> Any:
    """A Python literal from a stranger: `ast.literal_eval` runs no code, but needs bounds on size and depth."""
    if len(text) > MAX_INFORMATION:
        raise ProtocolError(f"{what} is longer than {MAX_INFORMATION} characters")
    if sum(map(text.count, "[({")) > MAX_NESTING and _depth(text) > MAX_NESTING:
        raise ProtocolError(f"{what} is nested deeper than {MAX_NESTING}")
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise ProtocolError(f"{what} is no Python literal: {_short(error)}") from error


def _depth(text: str) -> int:
    """The deepest nesting of brackets; those inside strings count too, which errs on the safe side."""
    depth = deepest = 0
    for char in text:
        if char in "[({":
            depth += 1
            deepest = max(deepest, depth)
        elif char in "])}":
            depth -= 1
    return deepest


def _parse_plain_image(text: bytes) -> np.ndarray | None:
    """What `json.dumps(image.tolist())` writes, parsed with array operations, 3 × as fast; None for anything else.

    The text with its digits removed must be exactly the brackets and commas of a height × width × 3 array, and every
    run of digits must stand where a number belongs: between `[` or `,` and `,` or `]`.
    """
    text = text.strip().replace(b", ", b",")
    if not (text.startswith(b"[[[") and text.endswith(b"]]]")):
        return None
    skeleton = text.translate(None, b"0123456789")
    width = skeleton.find(b"]]") // 5  # a row is "[" + "[,,]" + ",[,,]" …
    row = b"[" + b",".join([b"[,,]"] * width) + b"]"
    height = (len(skeleton) - 1) // (len(row) + 1)
    if height < 1 or width * height > MAX_PIXELS or skeleton != b"[" + b",".join([row] * height) + b"]":
        return None
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
    value = (codes[end - 1] - 48).astype(np.int16)
    value += np.where(length > 1, codes[end - 2] - np.int16(48), 0) * 10
    value += np.where(length > 2, codes[end - 3] - np.int16(48), 0) * 100
    return value.astype(np.uint8).reshape(height, width, 3) if value.max() <= 255 else None


# --- v2 ---------------------------------------------------------------------------------------------------------------


def encode_v2(message: Message, image_format: str = "auto") -> bytes:
    """The body of one v2 message; `image_format` (one of IMAGE_FORMATS) matters for observations only."""
    header: dict[str, Any] = {"session": message.session, "seq": message.seq}
    image = b""
    match message:
        case Observation():
            name, image = encode_image(message.image, image_format)
            height, width, _ = message.image.shape
            header |= {"kind": "observation", "env": message.env, "round": message.round, "text": message.text}
            header |= {"history": message.history, "information": dict(message.information)}
            header |= {"task_type": message.task_type, "done": bool(message.done)}
            header |= {"image": {"format": name, "height": height, "width": width}}
        case Hello():
            header |= {"kind": "hello", "games": list(message.games)}
            header |= {"environment": message.environment, "split": message.split}
        case Next():
            header |= {"kind": "next"}
        case Bye():
            header |= {"kind": "bye", "reason": message.reason}
    text = json.dumps(header, ensure_ascii=False).encode()
    return struct.pack(">I", len(text)) + text + image


def decode_v2(body: bytes) -> Message:
    """Read a v2 body. Raises ProtocolError naming the field that is missing or malformed."""
    if len(body) < 4:
        raise ProtocolError("the body is shorter than its length prefix")
    (length,) = struct.unpack_from(">I", body)
    if length > len(body) - 4:
        raise ProtocolError(f"the header claims {length} bytes, the body has {len(body) - 4}")
    header = _json_object(body[4 : 4 + length], "header")
    kind = _get(header, "kind", str)
    session = _get(header, "session", str)
    seq = _get(header, "seq", int)
    if not 0 < len(session) <= MAX_NAME or seq < 0:
        raise ProtocolError("field session must be a short name and field seq a count")
    match kind:
        case "observation":
            return _observation(header, body[4 + length :], session, seq)
        case "hello":
            games = _get(header, "games", list)
            if not all(isinstance(game, str) and len(game) <= MAX_NAME for game in games):
                raise ProtocolError("field games must be a list of game ids")
            return Hello(session, seq, tuple(games), _get(header, "environment", str), _get(header, "split", str))
        case "next":
            return Next(session, seq)
        case "bye":
            return Bye(session, seq, _get(header, "reason", str))
    raise ProtocolError(f"unknown kind {kind[:40]!r}; known: observation, hello, next, bye")


def encode_reply_v2(reply: Mapping[str, Any]) -> bytes:
    """A v2 reply: JSON."""
    return json.dumps(dict(reply), ensure_ascii=False).encode()


def decode_reply_v2(body: bytes) -> dict[str, Any]:
    """The reply to a v2 message, a dict with `kind`."""
    reply = _json_object(body, "reply")
    _get(reply, "kind", str)
    return reply


def encode_image(image: np.ndarray, image_format: str = "auto") -> tuple[str, bytes]:
    """uint8 (height, width, 3) -> (format used, bytes).

    `zlib` (deflate level 1 of the raw pixels) and `png` are lossless, `jpeg` is quality 95. `auto` takes zlib for
    drawn frames and jpeg for photographs and renderings: measured in benchmarks/wire.py, deflate is smallest and
    fastest where neighbouring pixels are equal, and 6 × larger than jpeg where they are not.
    """
    _check_array(image)
    if image_format == "auto":
        image_format = "zlib" if _looks_drawn(image) else "jpeg"
    if image_format == "zlib":
        return "zlib", zlib.compress(np.ascontiguousarray(image), 1)
    out = io.BytesIO()
    if image_format == "png":
        Image.fromarray(image).save(out, "PNG", compress_level=1)
    elif image_format == "jpeg":
        Image.fromarray(image).save(out, "JPEG", quality=_JPEG_QUALITY)
    else:
        raise ProtocolError(f"unknown image format {image_format!r}; known: {', '.join(IMAGE_FORMATS)}")
    return image_format, out.getvalue()


def decode_image(data: bytes, image_format: str, height: int, width: int) -> np.ndarray:
    """Encoded bytes -> uint8 (height, width, 3). The size is checked before anything is unpacked."""
    _check_pixels(height, width)
    if image_format == "zlib":
        return _inflate(data, height, width)
    if image_format not in IMAGE_FORMATS[1:]:
        raise ProtocolError(f"unknown image format {image_format[:40]!r}; known: {', '.join(IMAGE_FORMATS[1:])}")
    try:
        with Image.open(io.BytesIO(data), formats=[image_format.upper()]) as picture:  # reads the header only
            if picture.size != (width, height) or picture.mode != "RGB":
                raise ProtocolError(f"the image is {picture.mode} {picture.size}, the header says {(width, height)}")
            return np.array(picture)
    except ProtocolError:
        raise
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise ProtocolError(f"the image cannot be decoded: {_short(error)}") from error


def _inflate(data: bytes, height: int, width: int) -> np.ndarray:
    size = height * width * 3
    inflater = zlib.decompressobj()
    try:
        pixels = inflater.decompress(data, size + 1)
    except zlib.error as error:
        raise ProtocolError(f"the image cannot be decoded: {_short(error)}") from error
    if len(pixels) != size or not inflater.eof:
        raise ProtocolError(f"the image does not unpack to {height} × {width} × 3 bytes")
    return np.frombuffer(pixels, np.uint8).reshape(height, width, 3)


def _looks_drawn(image: np.ndarray) -> bool:
    """Whether most pixels equal their left neighbour (on every 8th row: a tenth of a millisecond)."""
    rows = image[::8]
    return bool((rows[:, 1:] == rows[:, :-1]).mean() > 0.5)


def _observation(header: dict[str, Any], image: bytes, session: str, seq: int) -> Observation:
    shape = _get(header, "image", dict)
    task_type = _get(header, "task_type", str)
    if len(task_type) > MAX_NAME:
        raise ProtocolError(f"field task_type is longer than {MAX_NAME} characters")
    return Observation(
        text=_get(header, "text", str),
        history=_get(header, "history", str),
        information=_get(header, "information", dict),
        task_type=task_type,
        done=_get(header, "done", bool),
        image=decode_image(image, _get(shape, "format", str), _get(shape, "height", int), _get(shape, "width", int)),
        session=session,
        seq=seq,
        env=_get(header, "env", int),
        round=_get(header, "round", int),
    )


def _json_object(text: bytes, what: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"the {what} is no JSON: {_short(error)}") from error
    if not isinstance(value, dict):
        raise ProtocolError(f"the {what} must be a JSON object")
    return value


def _get(header: Mapping[str, Any], name: str, kind: type) -> Any:
    if name not in header:
        raise ProtocolError(f"field {name} is missing")
    value = header[name]
    if type(value) is not kind:  # exact: a bool is no count
        raise ProtocolError(f"field {name} must be {kind.__name__}, not {type(value).__name__}")
    return value


def _check_array(image: np.ndarray) -> None:
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or image.size == 0:
        raise ProtocolError(f"an image must be uint8 height × width × 3, not {image.dtype} {image.shape}")


def _check_pixels(height: int, width: int) -> None:
    if height < 1 or width < 1 or height * width > MAX_PIXELS:
        raise ProtocolError(f"an image of {height} × {width} pixels is out of bounds (1 to {MAX_PIXELS} pixels)")


def _unbatched(value: Any) -> Any:
    return value[0] if isinstance(value, (list, tuple)) and len(value) == 1 else value


def _short(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:120]
