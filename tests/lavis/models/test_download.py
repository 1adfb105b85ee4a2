"""Files by URL, from a real HTTP server on this machine."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from lavis.models import download
from tests.file_server import CONTENT, FileServer


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    monkeypatch.setattr(download, "cache_folder", lambda: tmp_path / "cache")
    with FileServer() as running:
        yield running


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


def test_a_query_chooses_another_file() -> None:
    paths = {download.cached_path(f"https://a.b/get{query}") for query in ("", "?id=1", "?id=2", "?" + "x" * 9000)}
    assert len(paths) == 4 and {path.name for path in paths} == {"get"}


def test_a_place_of_ones_own_and_a_checksum(server: FileServer, tmp_path: Path) -> None:
    path, right = tmp_path / "new" / "own.bin", hashlib.md5(CONTENT).hexdigest()
    with pytest.raises(OSError, match=f"eva_vit_g.pth has the MD5 {right}, not 0123: .* is another file"):
        download.fetched(server.url, path, md5="0123")
    assert not path.exists()
    assert download.fetched(server.url, path, md5=right.upper()) == path and path.read_bytes() == CONTENT
    assert server.asked == [None, None]  # what was damaged is not continued
