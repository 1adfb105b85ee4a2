"""Weight files by URL, from a real HTTP server on this machine."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from lavis.models import download

CONTENT = bytes(range(256)) * 20_000  # 5 MB: several blocks


class FileServer(ThreadingHTTPServer):
    """Serves `content` under every path, with ranges; breaks off after `limit` bytes of a reply."""

    content, version, limit = CONTENT, '"1"', len(CONTENT)

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[str | None] = []  # the Range of each request

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


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    monkeypatch.setattr(download, "cache_folder", lambda: tmp_path / "cache")
    with FileServer() as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running
        running.shutdown()


def test_a_file_is_downloaded_once_and_its_size_and_hash_are_shown(
    server: FileServer, capsys: pytest.CaptureFixture
) -> None:
    path = download.fetched(server.url)
    assert path.read_bytes() == CONTENT and path.name == "eva_vit_g.pth"
    shown = capsys.readouterr().out
    assert f"{len(CONTENT):,} bytes, SHA-256 {hashlib.sha256(CONTENT).hexdigest()}" in shown
    assert "eva_vit_g.pth, 4 of 4 MiB" in shown
    assert download.fetched(server.url) == path and len(server.asked) == 1
    assert [file.name for file in path.parent.iterdir() if not file.name.startswith(".")] == [path.name]


def test_a_broken_download_continues(server: FileServer) -> None:
    server.limit = 3_000_000
    with pytest.raises(FileNotFoundError, match=r"downloaded: .* after 3,000,000 of 5,120,000 bytes .*kept"):
        download.fetched(server.url)
    assert not download.cached_path(server.url).exists()
    assert download.fetched(server.url).read_bytes() == CONTENT
    assert server.asked == [None, "bytes=3000000-"]


def test_another_version_begins_anew(server: FileServer) -> None:
    server.limit = 3_000_000
    with pytest.raises(FileNotFoundError):
        download.fetched(server.url)
    server.content, server.version, server.limit = CONTENT[::-1], '"2"', len(CONTENT)
    assert download.fetched(server.url).read_bytes() == CONTENT[::-1]


def test_several_processes_ask_at_once(server: FileServer) -> None:
    threads = [threading.Thread(target=download.fetched, args=(server.url,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert download.cached_path(server.url).read_bytes() == CONTENT and len(server.asked) == 1


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/models/eva_vit_g.pth", "{server}/missing.pth"])
def test_without_the_file_the_error_says_where_to_put_it(server: FileServer, url: str) -> None:
    url = url.format(server=f"http://127.0.0.1:{server.server_port}")
    with pytest.raises(FileNotFoundError, match=r"could not be downloaded: .*(refused|Not Found)") as caught:
        download.fetched(url)
    assert f"put the file at {download.cached_path(url)}" in str(caught.value)


def test_the_path_stays_in_the_cache() -> None:
    for url in ("https://a.b/../../etc/passwd", "https://a.b/%2e%2e/%2e%2e/x", "https://a.b:8/x/./y%2f..%2fz"):
        assert download.cache_folder() in download.cached_path(url).resolve().parents
