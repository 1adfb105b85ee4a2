"""Wire format v2: ours. A length-prefixed JSON header and the compressed image.

::

    POST /   MD5: <hex MD5 of the body>   Content-Type: application/x-emac-v2
    4 bytes big-endian n | n bytes JSON {"kind": "observation", "session": …, "seq": …, …} | image bytes
    -> 200   MD5: …      {"kind": "action", "action": "go to desk 1"}

A session numbers its messages (`seq`), so that the server recognises a repeated one and answers it as before.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

from lavis.common.errors import unknown
from xrl_alignment.wire.images import decode_image, encode_image
from xrl_alignment.wire.messages import (
    MAX_GAMES,
    MAX_NAME,
    Bye,
    Hello,
    Message,
    Next,
    Observation,
    ProtocolError,
    brief,
    check_observation,
)
from xrl_alignment.wire.v1 import V1_SESSION

CONTENT_TYPE = "application/x-emac-v2"
MAX_HEADER = 2 << 20  # bytes; the list of ALFWorld's 3,553 training games takes 0.5 MB
MAX_OBSERVATION = 1 << 19  # bytes of an observation's header


def encode(message: Message, image_format: str = "auto") -> bytes:
    """The body of one message.

    `image_format`, one of `images.IMAGE_FORMATS`, has no effect unless the message is an Observation. Raises
    ProtocolError for an image that is not uint8 (height, width, 3), or an unknown format.
    """
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
            header |= {"view": message.view} if message.view else {}
        case Next():
            header |= {"kind": "next"}
        case Bye():
            header |= {"kind": "bye", "reason": message.reason}
    text = json.dumps(header, ensure_ascii=False).encode()  # as UTF-8: escapes would be three times as long
    return struct.pack(">I", len(text)) + text + image


def decode(body: bytes) -> Message:
    """Read a v2 body. Raises ProtocolError, which names the field that is missing or malformed."""
    if len(body) < 4:
        raise ProtocolError("the body is shorter than its length prefix")
    # Sizes are checked before anything is parsed.
    (length,) = struct.unpack_from(">I", body)
    if length > len(body) - 4:
        raise ProtocolError(f"the header claims {length} bytes, the body has {len(body) - 4}")
    if length > MAX_HEADER:
        raise ProtocolError(f"the header has {length} bytes, at most {MAX_HEADER} are allowed")
    header = _json_object(body[4 : 4 + length], "header")
    # What every message has: its kind, who sends it, its number.
    kind = _get(header, "kind", str)
    session = _get(header, "session", str)
    seq = _get(header, "seq", int)
    if not 0 < len(session) <= MAX_NAME or seq < 0:
        raise ProtocolError(f"field session must have 1 to {MAX_NAME} characters, field seq must not be negative")
    if session == V1_SESSION:
        raise ProtocolError(f"field session: {session} is the name of wire v1's client")
    match kind:
        case "observation":
            if length > MAX_OBSERVATION:
                raise ProtocolError(f"the header has {length} bytes, an observation's at most {MAX_OBSERVATION}")
            shape = _get(header, "image", dict)
            height, width = _get(shape, "height", int), _get(shape, "width", int)
            return check_observation(
                Observation(
                    text=_get(header, "text", str),
                    history=_get(header, "history", str),
                    information=_get(header, "information", dict),
                    task_type=_get(header, "task_type", str),
                    done=_get(header, "done", bool),
                    image=decode_image(body[4 + length :], _get(shape, "format", str), height, width),
                    session=session,
                    seq=seq,
                    env=_get(header, "env", int),
                    round=_get(header, "round", int),
                )
            )
        case "hello":
            games = _get(header, "games", list)
            if len(games) > MAX_GAMES or not all(isinstance(game, str) and len(game) <= MAX_NAME for game in games):
                raise ProtocolError(
                    f"field games must be a list of at most {MAX_GAMES} game ids of at most {MAX_NAME} characters"
                )
            # Cut, not refused: these are names for people, and are compared with the run's settings.
            environment, split = (_get(header, name, str)[:MAX_NAME] for name in ("environment", "split"))
            view = _get(header, "view", str)[:MAX_NAME] if "view" in header else ""
            return Hello(session, seq, tuple(games), environment, split, view)
        case "next":
            return Next(session, seq)
        case "bye":
            return Bye(session, seq, _get(header, "reason", str)[:MAX_NAME])
    raise ProtocolError(unknown("kind", kind[:40], ("observation", "hello", "next", "bye")))


def encode_reply(reply: Mapping[str, Any]) -> bytes:
    """The reply to a message, a dict with `kind`, as JSON."""
    return json.dumps(dict(reply), ensure_ascii=False).encode()


def decode_reply(body: bytes) -> dict[str, Any]:
    """The reply to a message, a dict with `kind`. Raises ProtocolError."""
    reply = _json_object(body, "reply")
    _get(reply, "kind", str)
    return reply


def _json_object(text: bytes, what: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"the {what} is not JSON: {brief(error)}") from error
    if not isinstance(value, dict):
        raise ProtocolError(f"the {what} must be a JSON object")
    return value


def _get(header: Mapping[str, Any], name: str, kind: type) -> Any:
    if name not in header:
        raise ProtocolError(f"field {name} is missing")
    value = header[name]
    if type(value) is not kind:  # `isinstance` would take True for an integer
        raise ProtocolError(f"field {name} must be {kind.__name__}, not {type(value).__name__}")
    return value
