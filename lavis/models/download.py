"""Files by URL: each is downloaded once into the cache, with progress, and continued where it broke off."""

from __future__ import annotations

import fcntl
import hashlib
import http.client
import os
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

from lavis.common.errors import FileError, MissingFileError
from lavis.common.files import make_folder, sync
from lavis.common.progress import Bar
from lavis.common.registry import registry

TIMEOUT_S = 30.0  # without a byte
BLOCK = 1 << 20
MIB = 1 << 20


def is_hub_id(name: str) -> bool:
    """Whether `name` may be a model's id on the hub (`owner/name`), not a file's path."""
    file = Path(name).suffix in (".pth", ".pt", ".bin", ".safetensors")
    return not file and re.fullmatch(r"[\w.-]+/[\w.-]+", name) is not None


def in_hub_cache(name: str) -> bool:
    """Whether the hub's cache on this machine has the model `name`; ids of the hub's first years have no owner."""
    from huggingface_hub import try_to_load_from_cache  # only here: it takes a third of a second, and few names need it

    try:
        return isinstance(try_to_load_from_cache(name, "config.json"), str)
    except ValueError:  # no name that the hub could have
        return False


def cache_folder() -> Path:
    """Where downloaded weights lie."""
    return Path(registry.get_path("cache_root")) / "weights"


def cached_path(url: str, folder: Path | None = None) -> Path:
    """Where the file of `url` lies once it is downloaded: in `folder` (by default `cache_folder`), by host and path."""
    parts = urlsplit(url)
    # A query may choose among files of one path; it may also be longer than a file's name.
    query = hashlib.sha256(parts.query.encode()).hexdigest()[:16] if parts.query else ""
    # Not `:` (a port), and no `..`: the path stays below the cache.
    names = [re.sub(r"[^\w.+-]", "_", unquote(name)) for name in (parts.netloc, query, *parts.path.split("/"))]
    return (folder or cache_folder()).joinpath(*(name for name in names if name.strip(".")))


def fetched(url: str, path: Path | None = None, *, md5: str = "") -> Path:
    """The file of `url` at `path` (by default in the cache), downloaded if it is not there yet.

    The download goes to a neighbour `*.part`, which a later call continues as long as the server has the same version;
    it gets its name once it is whole. Size and SHA-256 are printed. Raises MissingFileError, which says where to put
    the file by hand, if it cannot be downloaded; FileError if it cannot be written, or has another `md5` than the
    given one (hex digits; this finds damage, it protects from nobody).
    """
    path = path or cached_path(url)
    if path.is_file():
        return path
    make_folder(path.parent)
    with _alone(path):
        if not path.is_file():  # another process may have fetched it meanwhile
            part, version = path.with_name(path.name + ".part"), path.with_name(path.name + ".part.version")
            by_hand = f"put the file at {path}, or set the key to the place where you have it"
            try:
                _append(url, part, version)
            except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
                cause = error.reason if isinstance(error, urllib.error.URLError) and error.reason else error
                reason = getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
                kept = part.stat().st_size / MIB if part.is_file() else 0
                again = f" ({kept:,.0f} MiB are kept: a new start continues there)" if kept else ""
                raise MissingFileError(f"{url} could not be downloaded: {reason}{again}; {by_hand}") from error
            digest, size = _digest(part, "sha256"), part.stat().st_size
            if md5 and (found := _digest(part, "md5")) != md5.lower():
                part.unlink()
                raise FileError(f"{url} has the MD5 {found}, not {md5}: it was damaged on the way, or is another file")
            os.replace(part, path)
            version.unlink(missing_ok=True)
            sync(path.parent)
            print(f"{path}: {size:,} bytes, SHA-256 {digest}", flush=True)
    return path


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Held by one process at a time: those of one training run all ask for the same file."""
    lock = path.with_name(f".{path.name}.lock")
    try:
        with open(lock, "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
    except OSError as error:
        if isinstance(error, FileError | MissingFileError):
            raise
        raise FileError(f"{path} could not be written: {error.strerror or error}") from error


def _append(url: str, part: Path, version: Path) -> None:
    """Write what `part` lacks of the file; ConnectionError if the server's answer ends too early."""
    done = part.stat().st_size if part.is_file() else 0
    known = version.read_text() if version.is_file() else ""
    headers = {"User-Agent": "emac-plus"}
    if done and known:
        # If-Range: the server sends the rest only if the file is still the same version, else the whole file (RFC 9110,
        # section 13.1.5).
        headers |= {"Range": f"bytes={done}-", "If-Range": known}
    try:
        # `is_url` has let in http and https only.
        answer = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT_S)  # nosec B310
    except urllib.error.HTTPError as error:
        if error.code != http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise
        part.unlink()  # it is as long as the file, or longer, and yet was not finished: begin anew
        answer = urllib.request.urlopen(url, timeout=TIMEOUT_S)  # nosec B310
    with answer:
        continued = answer.status == http.client.PARTIAL_CONTENT
        # A server that ignores the range answers 200 with the whole file: it is written anew.
        done = done if continued else 0
        total = done + int(answer.headers.get("Content-Length") or 0)
        version.write_text(answer.headers.get("ETag") or answer.headers.get("Last-Modified") or "")
        with part.open("ab" if continued else "wb") as file, Bar("MiB") as bar:
            if continued:
                bar.say(f"{url}: continues at {done / MIB:,.0f} MiB")
            while block := answer.read(BLOCK):
                file.write(block)
                done += len(block)
                bar.show(done // MIB, max(total, done) // MIB, url.rsplit("/", 1)[-1])
            file.flush()
            os.fsync(file.fileno())
    if total and done < total:
        raise ConnectionError(f"the connection broke off after {done:,} of {total:,} bytes")


def _digest(path: Path, name: str) -> str:
    digest = hashlib.new(name, usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()
