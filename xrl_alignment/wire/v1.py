"""Wire format v1: the original's. It is fixed, because the original's clients must work unchanged.

::

    POST /   MD5: <hex MD5 of the body>
    [#OBSERVATION]o[#HISTORY]h[#INFORMATION]i[#TYPE]t[#DONE]d[#IMAGE]j
    -> 200   MD5: …      ['go to desk 1']        [] after the final observation, ['SKIP'] for a solved game
"""

from __future__ import annotations

import ast
import threading
from collections.abc import Sequence
from typing import Any

from xrl_alignment.wire.images import decode_json_image, encode_json_image
from xrl_alignment.wire.messages import (
    MAX_INFORMATION,
    MAX_VALUES,
    Observation,
    ProtocolError,
    brief,
    check_observation,
)

V1_SESSION = "v1"  # there is one client, and it knows no sessions: no session of v2 may have this name
SKIP = "SKIP"  # the reply when this game is solved already: the client continues with the next one

MAX_NESTING = 32  # brackets inside brackets in that literal; ALFWorld's infos need three
_PARSER = threading.Lock()  # one text at a time: its syntax tree takes up to 500 bytes for each value

_TAGS = ("[#OBSERVATION]", "[#HISTORY]", "[#INFORMATION]", "[#TYPE]", "[#DONE]", "[#IMAGE]")


def encode(observation: Observation) -> bytes:
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


def decode(body: bytes) -> Observation:
    """Read a v1 body. Raises ProtocolError, which names the field that is missing or malformed.

    A text field may contain newlines and even text that looks like a tag. So the last three tags are searched from the
    right (type, done and image cannot contain tags), and INFORMATION is the first such tag that a dict follows.
    """
    # From the right: image, done, type; then from the left: observation, history.
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
    return check_observation(
        Observation(
            text=_text(text, _TAGS[0]),
            history=_text(history, _TAGS[1]),
            information=information,
            task_type=_text(task_type, _TAGS[3]),
            done=flag == "True",
            image=decode_json_image(image),
        )
    )


def encode_reply(actions: Sequence[str]) -> bytes:
    """`['go to desk 1']` for one action, `[]` for none (after a final observation)."""
    return repr(list(actions)).encode()


def decode_reply(body: bytes) -> list[str]:
    """The list in a reply: one action, `SKIP`, or nothing. Raises ProtocolError."""
    reply = _literal(_text(body, "reply"), "reply")
    if not isinstance(reply, list) or not all(isinstance(item, str) for item in reply):
        raise ProtocolError("the reply must be a list of strings")
    return reply


def _cut_right(body: bytes, tag: str) -> tuple[bytes, bytes]:
    head, found, tail = body.rpartition(tag.encode())
    if not found:
        raise ProtocolError(f"field {tag} is missing")
    return head, tail


def _text(value: bytes, tag: str) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise ProtocolError(f"field {tag} is not UTF-8: {brief(error)}") from error


def _split_information(rest: bytes) -> tuple[bytes, dict[str, Any]]:
    """Cut `history[#INFORMATION]dict` where the dict begins; the history itself may contain the tag."""
    tag = _TAGS[2].encode()
    at = rest.find(tag)
    if at < 0:
        raise ProtocolError(f"field {_TAGS[2]} is missing")
    fault = ProtocolError(f"field {_TAGS[2]} must be a Python-literal dict")
    left = 2 * MAX_INFORMATION  # bytes that may be parsed: each attempt may parse the whole rest
    while at >= 0 and left > 0:
        left -= len(rest) - at
        try:
            information = _literal(_text(rest[at + len(tag) :], _TAGS[2]), f"field {_TAGS[2]}")
            if isinstance(information, dict) and all(isinstance(key, str) for key in information):
                return rest[:at], information
        except ProtocolError as error:
            fault = error
        at = rest.find(tag, at + 1)
    raise fault


def _literal(text: str, what: str) -> Any:
    """Parse a Python literal from an untrusted sender: `ast.literal_eval` runs no code, but needs bounds."""
    # Its size, its number of values and its depth, each counted without parsing: the parser's memory grows with them.
    if len(text) > MAX_INFORMATION:
        raise ProtocolError(f"{what} is longer than {MAX_INFORMATION} characters")
    if sum(map(text.count, ",:")) > MAX_VALUES:
        raise ProtocolError(f"{what} holds more than {MAX_VALUES} values")
    # Brackets inside strings count, too, so the depth is never too small. With few brackets there is nothing to count.
    depth = 0
    for char in text if sum(map(text.count, "[({")) > MAX_NESTING else "":
        depth += (char in "[({") - (char in "])}")
        if depth > MAX_NESTING:
            raise ProtocolError(f"{what} is nested deeper than {MAX_NESTING}")
    try:
        with _PARSER:
            return ast.literal_eval(text.strip())  # `strip`: a blank at the beginning is an indentation to the parser
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise ProtocolError(f"{what} is not a Python literal: {brief(error)}") from error
