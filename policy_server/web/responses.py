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


OPENAI = "/v1/"  # begins the addresses whose refusals have OpenAI's form
_OPENAI_CODES = {
    "unknown_model": "model_not_found",
    "key_needed": "invalid_api_key",
    "too_many_requests": "rate_limit_exceeded",
}
_OPENAI_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


def refusal_status_and_body(refusal: RequestRefused, path: str) -> tuple[int, dict[str, object]]:
    """Status and JSON of a refusal of a request to `path`; below /v1/ in OpenAI's form, which knows no 422."""
    if not path.startswith(OPENAI):
        return refusal.status, refusal.body()
    status = 400 if refusal.status == 422 else refusal.status
    kind = _OPENAI_TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    code = _OPENAI_CODES.get(refusal.code, refusal.code)
    return status, {"error": {"message": str(refusal), "type": kind, "param": refusal.param, "code": code}}


def refusal_headers(refusal: RequestRefused) -> dict[str, str]:
    """The HTTP headers of a refusal."""
    headers = {}
    if refusal.retry_after_s is not None:
        headers["Retry-After"] = str(math.ceil(refusal.retry_after_s))
    if refusal.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return headers


def refusal_response(refusal: RequestRefused, path: str, *, close: bool) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of a refusal outside the application; `close`: the connection ends with it."""
    status, content = refusal_status_and_body(refusal, path)
    body = json.dumps(content).encode()
    headers = {"Content-Type": "application/json", "Content-Length": str(len(body)), **SECURITY_HEADERS}
    if close:
        headers["Connection"] = "close"
    return status, {**headers, **refusal_headers(refusal)}, body


def raw_response(refusal: RequestRefused) -> bytes:
    """A refusal as the bytes of a whole HTTP response, after which the connection is closed."""
    status, headers, body = refusal_response(refusal, "", close=True)
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body
