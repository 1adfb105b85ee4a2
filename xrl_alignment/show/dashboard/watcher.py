"""Keeps the board up to date in a thread of its own, at most so often that the run does not notice."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from xrl_alignment.show.dashboard.board import Board
from xrl_alignment.show.dashboard.live import LiveSessions
from xrl_alignment.show.dashboard.run_files import RunFiles

logger = logging.getLogger(__name__)

INTERVAL_S = 1.0  # between two looks, at least
MOST_LOAD = 0.01  # of one processor: after a long look the next one comes later
SHARDS_S = 0.02  # a look reads shards for so long


class Watcher:
    """Looks at a run while somebody watches it; without viewers it does nothing.

    `status` and `sessions` are of a run in this process; without them only `files` are shown.
    """

    def __init__(
        self,
        board: Board,
        files: RunFiles,
        *,
        status: Callable[[], Mapping[str, Any]] | None = None,
        sessions: LiveSessions | None = None,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._board = board
        self._files = files
        self._status = status
        self._sessions = sessions
        self._interval_s = interval_s
        self._looking = threading.Lock()
        self._closed = threading.Event()
        threading.Thread(target=self._watch, name="dashboard", daemon=True).start()

    def close(self) -> None:
        """Look a last time if somebody watches; the thread ends once the board is closed."""
        if not self._closed.is_set():
            self._closed.set()
            if self._board.viewers:
                self._try_to_look()

    def _watch(self) -> None:
        while not self._closed.is_set():
            if not self._board.wait_for_viewer(self._interval_s):
                continue
            began = time.thread_time()
            self._try_to_look()
            load = time.thread_time() - began  # processor time of this thread: a look may wait for the disk
            self._closed.wait(max(self._interval_s, load / MOST_LOAD if self._status else 0.0))

    def _try_to_look(self) -> None:
        """An error here must not end the run's watching, nor the run."""
        try:
            self.look()
        except Exception:
            logger.exception("the dashboard could not be brought up to date")

    def look(self) -> None:
        """Bring every part of the board up to date."""
        with self._looking:
            # Shards take longest to read. What is left of them waits for the next look, so that the rest of the page is
            # not late.
            until = time.monotonic() + SHARDS_S
            files, board = self._files, self._board
            files.refresh(lambda: time.monotonic() < until)
            memories = files.memories
            games = files.games
            board.put("games", "games", {"games": games, "memories": [len(memories.get(game, ())) for game in games]})
            board.put("grid", "grid", {"rounds": files.grid()})
            board.put("curves", "curves", files.figures())
            if self._sessions:
                self._sessions.publish(board, tell_objects=files.tell_objects)
            rounds = files.rounds()
            run = {
                "so_far": {"round": len(rounds), **rounds[-1]._asdict()}
                if rounds and not rounds[-1].finished
                else None,
                "name": files.path.resolve().name,
                "title": files.title,
                "reading": files.reading,
                "live": self._status is not None,
                "ended": files.ended,
                "environments": files.environments,
                "shows": files.told.shows if files.told else "",
                "status": dict(self._status()) if self._status else files.progress(),
                "notices": files.notices(),
            }
            board.put("run", "run", run)
