"""Refusals as HTTP responses, and the headers that every response carries."""

from __future__ import annotations

import json
import math
from http import HTTPStatus

from policy_server.refusals import RequestRefused

# No response may load or run anything in a browser. Only the page /ui has a policy of its own.
SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
}


def refusal_headers(refusal: RequestRefused) -> dict[str, str]:
    """The HTTP headers of a refusal."""
    headers = {}
    if refusal.retry_after_s is not None:
        headers["Retry-After"] = str(math.ceil(refusal.retry_after_s))
    if refusal.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return headers


def refusal_response(refusal: RequestRefused, *, close: bool) -> tuple[dict[str, str], bytes]:
    """Headers and body of a refusal outside the application; `close`: the connection ends with it."""
    body = json.dumps(refusal.body()).encode()
    headers = {"Content-Type": "application/json", "Content-Length": str(len(body)), **SECURITY_HEADERS}
    if close:
        headers["Connection"] = "close"
    return {**headers, **refusal_headers(refusal)}, body


def raw_response(refusal: RequestRefused) -> bytes:
    """A refusal as the bytes of a whole HTTP response, after which the connection is closed."""
    headers, body = refusal_response(refusal, close=True)
    lines = [f"HTTP/1.1 {refusal.status} {HTTPStatus(refusal.status).phrase}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body
