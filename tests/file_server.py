"""A real HTTP server of one file, for tests of downloads."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

CONTENT = bytes(range(256)) * 20_000  # 5 MB: several blocks


class FileServer(ThreadingHTTPServer):
    """Serves `content` under every path, with ranges; breaks off after `limit` bytes of a reply."""

    content, version, limit = CONTENT, '"1"', len(CONTENT)

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[str | None] = []  # the Range of each request

    def __enter__(self) -> FileServer:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()
        self.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/models/eva_vit_g.pth"


class _Handler(BaseHTTPRequestHandler):
    server: FileServer

    def do_GET(self) -> None:
        self.server.asked.append(self.headers.get("Range"))
        if "missing" in self.path:
            self.send_error(404, "Not Found")
            return
        start = 0
        if (wanted := self.headers.get("Range")) and self.headers.get("If-Range") == self.server.version:
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
        self.send_response(206 if start else 200)
        self.send_header("ETag", self.server.version)
        self.send_header("Content-Length", str(len(self.server.content) - start))
        self.end_headers()
        self.wfile.write(self.server.content[start : start + self.server.limit])

    def log_message(self, *args: object) -> None:
        pass
