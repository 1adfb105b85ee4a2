"""A cache of a language model's answers, by request: the same request is never paid for twice.

It is an SQLite file: opening takes the same time at any size, several processes may share it, and it survives a killed
process. It stores answers only, never the API key or the prompt. A row that holds no answer (damaged, or written by
another program) counts as none: it is removed, and the request is asked anew. An empty answer without a reason
(filtered, cut) is not stored: a gateway with a fault writes such ones, and no later run would get another.
"""

from __future__ import annotations

import hashlib
import json
import logging
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lavis.common.errors import ConfigError, FileError
from xrl_alignment.agents.language.plain import plain_texts

_FIELDS = {"text": str, "filtered": str, "cut": bool}  # of an answer, as `endpoint.Completion` has them
_log = logging.getLogger(__name__)


def request_key(request: Mapping[str, Any]) -> str:
    """SHA-256 of the request's canonical JSON: 64 hex digits."""
    text = json.dumps(request, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


class AnswerCache:
    """Answers (JSON objects) by request key; `path` None keeps them in memory. Safe to use from many threads.

    `section` is that of the settings, for messages. Raises ConfigError for a file that cannot be such a cache,
    FileError if it cannot be read or written later.
    """

    def __init__(self, path: Path | str | None, *, section: str = "expert") -> None:
        self.path = path
        self._lock = threading.Lock()
        self._told = False  # of a row that holds no answer
        self._asking: dict[str, Future[dict[str, Any]]] = {}
        try:
            if path:
                Path(path).parent.mkdir(parents=True, exist_ok=True)
            self._base = sqlite3.connect(path or ":memory:", check_same_thread=False, isolation_level=None, timeout=30)
            # A write-ahead log survives a killed process; a power cut may cost the last answers, no more.
            self._base.execute("PRAGMA journal_mode=WAL")
            self._base.execute("PRAGMA synchronous=NORMAL")
            self._base.execute("CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, answer TEXT) WITHOUT ROWID")
        except (sqlite3.DatabaseError, OSError) as error:
            message = f"answer cache {path} cannot be used ({error}): name another file in {section}.cache"
            raise ConfigError(message) from error

    def __len__(self) -> int:
        with self._database() as base:
            return int(base.execute("SELECT COUNT(*) FROM answers").fetchone()[0])

    def get(self, key: str) -> dict[str, Any] | None:
        """The answer, or None."""
        with self._database() as base:
            row = base.execute("SELECT answer FROM answers WHERE key = ?", (key,)).fetchone()
            if row is None:
                return None
            if (answer := _answer_in(row[0])) is not None:
                return answer
            # One line on the screen is enough: a file may hold many of them.
            level, self._told = logging.INFO if self._told else logging.WARNING, True
            _log.log(level, "answer cache %s: the row %s holds no answer; it is removed", self.path, key)
            # With the content: another process may have put a good answer there meanwhile.
            base.execute("DELETE FROM answers WHERE key = ? AND answer IS ?", (key, row[0]))
        return None

    def put(self, key: str, answer: Mapping[str, Any]) -> None:
        """Store an answer, unless it is empty without a reason; the first one for a key stays."""
        if not any(answer.values()):
            return
        text = json.dumps(plain_texts(dict(answer)))
        with self._database() as base:
            base.execute("INSERT OR IGNORE INTO answers VALUES (?, ?)", (key, text))

    def get_or_ask(self, key: str, ask: Callable[[], dict[str, Any]]) -> tuple[dict[str, Any], bool]:
        """The answer, and whether it was known already; an unknown one comes from `ask` and is stored.

        If several threads ask for the same key at the same time, `ask` runs once; what it raises goes to all of them.
        """
        if (known := self.get(key)) is not None:
            return known, True
        # The first thread that asks leaves a future, for which the others wait.
        with self._lock:
            other = self._asking.get(key)
            future = self._asking[key] = other or Future()
        if other is not None:
            return other.result(), True
        try:
            # Another thread may have stored it between our first look and our turn.
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

    @contextmanager
    def _database(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                yield self._base
            except sqlite3.ProgrammingError:  # a bug of ours, such as a call after `close`
                raise
            except sqlite3.DatabaseError as error:  # full disk, damaged file, locked for longer than the timeout
                raise FileError(f"answer cache {self.path}: {error}") from error


def _answer_in(row: Any) -> dict[str, Any] | None:
    """The answer that a row holds, with texts as older versions did not clean them; None if it holds no answer."""
    try:
        answer = json.loads(row)
    except (ValueError, TypeError, RecursionError):
        return None
    if not isinstance(answer, dict) or "text" not in answer or not any(answer.values()):
        return None
    if not all(name in _FIELDS and isinstance(value, _FIELDS[name]) for name, value in answer.items()):
        return None
    cleaned: dict[str, Any] = plain_texts(answer)
    return cleaned
