"""What the dashboard answers to a browser, mounted on a server of `wire`: the page, its events, episodes, frames.

    GET /                             the page; its scripts and styles at /dashboard/<file>
    GET /events                       server-sent events: every part of the page, then what changes
    GET /episodes/<round>/<env>       a finished episode, as JSON
    GET /frames/<round>/<env>/<step>  a frame of it, as JPEG
    GET /memories/<env>               a game's memories, as JSON

Addresses hold numbers only: which file they mean is looked up in the run's journal.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from lavis.datasets.shards import ShardError
from xrl_alignment.show import PAGE
from xrl_alignment.show.dashboard.board import Board, Viewer
from xrl_alignment.show.dashboard.live import EpisodeInProgress, LiveSessions, jpeg
from xrl_alignment.show.dashboard.replay import read_record, replay, stored_frame
from xrl_alignment.show.dashboard.run_files import Played, RunFiles
from xrl_alignment.show.dashboard.watcher import Watcher
from xrl_alignment.wire.admission import HttpResponse, RequestRefused

_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# Addresses hold numbers alone, so none can name a file.
_NUMBERS = re.compile(r"/(episodes|frames|memories)((?:/[0-9]{1,6}){1,3})", re.ASCII)
_QUALITY = 90


class Dashboard:
    """The pages (`wire.pages.Pages`) of the run in `run_dir`.

    `status` and `in_progress` are of a run in this process: its progress, and its sessions with their episodes.
    Without them the page shows what the run directory holds, of a run that has ended or that another process plays.
    """

    def __init__(
        self,
        run_dir: Path,
        *,
        status: Callable[[], Mapping[str, Any]] | None = None,
        in_progress: Callable[[], Sequence[tuple[str, EpisodeInProgress]]] | None = None,
    ) -> None:
        self._files = RunFiles(run_dir)
        self._board = Board()
        sessions = LiveSessions(in_progress) if in_progress else None
        self._watcher = Watcher(self._board, self._files, status=status, sessions=sessions)
        # Read once: no address that a browser names reaches the disk here.
        self._public = {
            f"/dashboard/{file.name}": HttpResponse(200, file.read_bytes(), _KINDS[file.suffix])
            for file in PAGE.iterdir()
            if file.suffix in _KINDS
        }
        self._public["/"] = self._public["/dashboard/index.html"]

    def is_public(self, path: str) -> bool:
        """The page's own files, in which nothing of the run is written."""
        return path in self._public

    def get(self, path: str) -> HttpResponse | Viewer:
        """What is at `path`; RequestRefused 404 if nothing is there, 503 if too many watch already."""
        if path in self._public:
            return self._public[path]
        if path == "/events":
            return self._board.watch()
        if match := _NUMBERS.fullmatch(path):
            match match[1], [int(number) for number in match[2].split("/")[1:]]:
                case "episodes", [round, env]:
                    played = self._played(round, env)
                    # The journal may have been cut, or replaced, since the episode's place was noted.
                    record = read_record(self._files.journal, played.start, played.size)
                    if record is None:
                        raise RequestRefused(404, "the run's journal does not hold this episode any more")
                    return _json(replay(record, self._files.buffer, tell_objects=self._files.tell_objects))
                case "frames", [round, env, step]:
                    try:
                        image = stored_frame(self._files.buffer, self._played(round, env).shard, step)
                    except ShardError as error:
                        raise RequestRefused(404, f"no frame of step {step + 1}") from error
                    return HttpResponse(200, jpeg(Image.fromarray(image), _QUALITY), "image/jpeg")
                case "memories", [env]:
                    games = self._files.games
                    if env >= len(games):
                        raise RequestRefused(404, f"the run has no game {env + 1}")
                    return _json({"game": games[env], "memories": self._files.memories.get(games[env], [])})
        raise RequestRefused(404, f"nothing at {path[:80]}; the dashboard is at /")

    def close(self) -> None:
        """Send a last time what is new, and end every stream."""
        # The watcher first: its last look still goes to the streams that the board then ends.
        self._watcher.close()
        self._board.close()

    def _played(self, round: int, env: int) -> Played:
        """A finished episode; one that the watcher has not seen yet is looked for now."""
        # The page may ask for an episode that has ended after the last look.
        played = self._files.episode(round, env)
        if played is None:
            self._watcher.look()
            played = self._files.episode(round, env)
        if played is None:
            raise RequestRefused(404, f"game {env + 1} has not been played in round {round + 1}")
        return played


def _json(content: Any) -> HttpResponse:
    return HttpResponse(200, json.dumps(content).encode(), "application/json")
