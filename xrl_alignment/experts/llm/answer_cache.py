"""Answers on disk by request: what was asked and paid for once is never paid for again.

An SQLite file: it opens in the same time whatever it holds, several processes may share it, and a killed process
leaves it whole. Only answers are kept, never the key or who asked.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any


def request_key(request: Mapping[str, Any]) -> str:
    """SHA-256 over the request's canonical JSON: 64 hex digits."""
    text = json.dumps(request, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


class AnswerCache:
    """Answers (JSON objects) by request key; `path` None keeps them in memory. Safe to use from many threads.

    Raises ValueError for a file that is no such cache.
    """

    def __init__(self, path: Path | str | None) -> None:
        self._lock = threading.Lock()
        self._asking: dict[str, Future] = {}
        if path:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        try:
            self._base = sqlite3.connect(path or ":memory:", check_same_thread=False, isolation_level=None, timeout=30)
            # A write-ahead log survives a killed process; a power cut may cost the last answers, no more.
            self._base.execute("PRAGMA journal_mode=WAL")
            self._base.execute("PRAGMA synchronous=NORMAL")
            self._base.execute("CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, answer TEXT) WITHOUT ROWID")
        except sqlite3.DatabaseError as error:
            message = f"answer cache {path} cannot be used ({error}): name another file in expert.cache"
            raise ValueError(message) from error

    def __len__(self) -> int:
        with self._lock:
            return self._base.execute("SELECT COUNT(*) FROM answers").fetchone()[0]

    def get(self, key: str) -> dict[str, Any] | None:
        """The answer, or None."""
        with self._lock:
            row = self._base.execute("SELECT answer FROM answers WHERE key = ?", (key,)).fetchone()
        return json.loads(row[0]) if row else None

    def put(self, key: str, answer: Mapping[str, Any]) -> None:
        """Keep an answer; the first one for a key stays."""
        text = json.dumps(answer)  # in ASCII: an answer may hold half a surrogate pair, which SQLite refuses
        with self._lock:
            self._base.execute("INSERT OR IGNORE INTO answers VALUES (?, ?)", (key, text))

    def get_or_ask(self, key: str, ask: Callable[[], dict[str, Any]]) -> tuple[dict[str, Any], bool]:
        """The answer, and whether it was there already; else it comes from `ask` and is kept.

        The same request from several threads at once is asked once; what `ask` raises goes to all of them.
        """
        if (known := self.get(key)) is not None:
            return known, True
        with self._lock:
            future = self._asking.get(key)
            first = future is None
            if first:
                future = self._asking[key] = Future()
        if not first:
            return future.result(), True
        try:
            # Another thread may have put it there between our look and our turn.
            known = self.get(key)
            answer = ask() if known is None else known
            self.put(key, answer)
            future.set_result(answer)
            return answer, known is not None
        except BaseException as error:
            future.set_exception(error)
            raise
        finally:
            with self._lock:
                del self._asking[key]

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._base.close()
