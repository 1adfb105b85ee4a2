"""A local endpoint with OpenAI's interface for tests and benchmarks: answers by a rule, slowly or wrongly on request.

    python benchmarks/_endpoint.py --latency 0.5        # prints its address, answers `look` until it is stopped

It bills an answer once for each `Idempotency-Key`, also if the answer did not arrive (cut, too slow, malformed).
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

FAULTS = ("429", "500", "slow", "cut", "empty", "refusal", "malformed", "latin1", "filtered", "sentinel")


class FakeEndpoint(ThreadingHTTPServer):
    """Answers `answer(prompt)` after `latency_s`; `fault(number)` names a request's fault, or is None.

    `fault` may also return `(status, headers, body)`. A slow answer takes `slow_s` more. `requests` are the bodies that
    were received, `billed` is how often each idempotency key was charged.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(
        self,
        answer: Callable[[str], str] = lambda prompt: "look",
        fault: Callable[[int], object] = lambda number: None,
        *,
        latency_s: float = 0.0,
        slow_s: float = 1.0,
        port: int = 0,
    ) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.answer = answer
        self.fault = fault
        self.latency_s = latency_s
        self.slow_s = slow_s
        self.requests: list[dict] = []
        self.headers: list[dict] = []
        self.billed: Counter[str] = Counter()
        self.at_once = 0
        self.most_at_once = 0
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        """The value for `expert.base_url`."""
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def __enter__(self) -> FakeEndpoint:
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, request: object, client_address: object) -> None:
        """Print nothing: a client that closed its connection is expected."""


class _Handler(BaseHTTPRequestHandler):
    server: FakeEndpoint
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # headers and body in one packet: else Nagle and delayed acknowledgements cost 40 ms
    disable_nagle_algorithm = True

    def log_message(self, *args: object) -> None:
        pass

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server = self.server
        with server.lock:
            number = len(server.requests)
            server.requests.append(body)
            server.headers.append({name.lower(): value for name, value in self.headers.items()})
            server.at_once += 1
            server.most_at_once = max(server.most_at_once, server.at_once)
        try:
            time.sleep(server.latency_s)
            self._reply(body, server.fault(number))
        finally:
            with server.lock:
                server.at_once -= 1

    def _reply(self, body: dict, fault: object) -> None:
        if isinstance(fault, tuple):
            return self._send(*fault)
        if fault == "429":
            return self._send(429, {"Retry-After": "1"}, _error("slow down", "rate_limit_exceeded"))
        if fault == "500":
            return self._send(500, {}, b"<html>internal</html>")
        self._bill()
        if fault == "filtered":
            return self._send(400, {}, _error("the prompt was filtered", "content_filter"))
        content = self._answer(body, fault)
        if fault == "slow":
            time.sleep(self.server.slow_s)
        if fault == "cut":
            self._send(200, {"Content-Length": str(len(content))}, content[: len(content) // 2])
            self.wfile.flush()
            self.close_connection = True
            return None
        if fault == "malformed":
            content = content[:-5]
        return self._send(200, {}, content)

    def _bill(self) -> None:
        key = self.headers.get("Idempotency-Key", "")
        with self.server.lock:
            self.server.billed[key] = 1 if key and self.server.billed[key] else self.server.billed[key] + 1

    def _answer(self, body: dict, fault: object) -> bytes:
        chat = "messages" in body
        prompt = body["messages"][-1]["content"] if chat else body["prompt"]
        text = "9: filtered" if fault == "sentinel" else self.server.answer(prompt)
        message = {"role": "assistant", "content": text}
        if fault == "refusal":
            message |= {"content": None, "refusal": "I will not do that."}
        choices = [{"index": 0, "finish_reason": "stop", **({"message": message} if chat else {"text": text})}]
        tokens, written = len(prompt) // 4, len(text) // 4
        document = {
            "id": "answer",
            "object": "chat.completion" if chat else "text_completion",
            "created": 0,
            "model": body.get("model", ""),
            "choices": [] if fault == "empty" else choices,
            "usage": {
                "prompt_tokens": tokens,
                "completion_tokens": written,
                "total_tokens": tokens + written,
                "prompt_tokens_details": {"cached_tokens": tokens // 2},
            },
        }
        content = json.dumps(document).encode()
        return content.replace(b'"role"', b'"r\xf4le"') + b"\xff" if fault == "latin1" else content

    def _send(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


def _error(message: str, code: str) -> bytes:
    return json.dumps({"error": {"message": message, "code": code}}).encode()


def main() -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--latency", type=float, default=0.5, metavar="SECONDS")
    parser.add_argument("--answer", default="look", help="the answer to every prompt")
    arguments = parser.parse_args()
    with FakeEndpoint(lambda prompt: arguments.answer, latency_s=arguments.latency) as endpoint:
        print(endpoint.url, flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
