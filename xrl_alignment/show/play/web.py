"""A game in a browser: the page, its state, its frames, and the moves that the page sends; on loopback only.

    GET /                the page; its files at /dashboard/<file> and /play/<file>
    GET /state           the game now, as JSON
    GET /frames/<step>   the frame of a step, as PNG
    GET /recording       the moves so far as a page of their own
    POST /move           {"step": n, "action": text} or {"step": n, "player": "expert"}: the state after it, as JSON
    POST /new            another game: its state, as JSON

A move names the step that it is for: one that was sent twice is made once.
"""

from __future__ import annotations

import io
import json
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image

from alfworld_native.language.commands import normalise
from xrl_alignment.show import PAGE
from xrl_alignment.show.play.game import EXPERT, POLICY, YOU, GameInProgress
from xrl_alignment.show.play.recording import recorded, recording_page
from xrl_alignment.wire.admission import HttpResponse, RequestRefused

MAX_ACTION = 500  # characters
_OWN = Path(__file__).parent / "page"
_FRAME = re.compile(r"/frames/([0-9]{1,4})", re.ASCII)
_KINDS = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}


class PlayPages:
    """The pages (`wire.pages.Pages`) of one player; `new_game` begins a game, `on_end` is told when one has ended."""

    def __init__(
        self, new_game: Callable[[], GameInProgress], on_end: Callable[[GameInProgress], None] = lambda game: None
    ) -> None:
        self._new_game = new_game
        self._on_end = on_end
        self._playing = threading.Lock()
        self._number = 0
        self.game = new_game()
        # The page's files are read once, and only these are served: no address can lead to another file.
        files = [*PAGE.iterdir(), *(file for file in _OWN.iterdir() if not file.name.startswith("recording"))]
        folders = {PAGE: "dashboard", _OWN: "play"}
        self._public = {
            f"/{folders[file.parent]}/{file.name}": HttpResponse(200, file.read_bytes(), _KINDS[file.suffix])
            for file in files
            if file.suffix in _KINDS
        }
        self._public["/"] = HttpResponse(200, (_OWN / "index.html").read_bytes(), "text/html; charset=utf-8")

    def is_public(self, path: str) -> bool:
        """The page's own files."""
        return path in self._public

    def get(self, path: str) -> HttpResponse:
        """What is at `path`; RequestRefused 404 if nothing is."""
        if path in self._public:
            return self._public[path]
        # One at a time: a move of one window must not change the game while another one is told its state.
        with self._playing:
            if path == "/state":
                return self._state()
            if path == "/recording":
                return HttpResponse(200, recording_page(self.game).encode(), "text/html; charset=utf-8")
            if match := _FRAME.fullmatch(path):
                moments = [*(move.moment for move in self.game.moves), self.game.moment]
                if (step := int(match[1])) < len(moments):
                    png = io.BytesIO()
                    Image.fromarray(moments[step].shown).save(png, "PNG")
                    return HttpResponse(200, png.getvalue(), "image/png")
        raise RequestRefused(404, f"nothing at {path[:80]}; the game is at /")

    def post(self, path: str, body: bytes) -> HttpResponse:
        """Make a move, or begin another game; RequestRefused 400 for what is no move, 409 for one that comes late."""
        if path not in ("/move", "/new"):
            raise RequestRefused(404, f"nothing is done at {path[:80]}; moves go to /move")
        with self._playing:
            if path == "/new":
                self.game = self._new_game()
                self._number += 1
            else:
                self._move(body)
            return self._state()

    def close(self) -> None:
        """Nothing is open."""

    def _move(self, body: bytes) -> None:
        try:
            content: Any = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise RequestRefused(400, "a move is a JSON object") from error
        content = content if isinstance(content, dict) else {}
        step, action, player = (content.get(key) for key in ("step", "action", "player"))
        # `type`, not `isinstance`: JSON's `true` is an int in Python.
        if type(step) is not int or not (isinstance(action, str) or isinstance(player, str)):
            raise RequestRefused(400, 'a move is {"step": number, "action": text} or {"step": number, "player": name}')
        if isinstance(action, str):
            action, player = action.strip(), YOU
            if not action or len(content["action"]) > MAX_ACTION:
                raise RequestRefused(400, f"an action has 1 to {MAX_ACTION} characters")
        game = self.game
        # Of the game that the page shows: another window may have begun another one, which is at the same step.
        if content.get("game", self._number) != self._number:
            raise RequestRefused(409, "another game has begun")
        if step == len(game.moves) - 1:
            made = game.moves[-1]
            if made.player == player and (action is None or made.action == normalise(action)):
                return  # sent again: the answer was lost
        if step != len(game.moves) or game.over:
            raise RequestRefused(409, f"the game is at step {len(game.moves)}{' and over' if game.over else ''}")
        if player not in game.players:
            raise RequestRefused(400, f"nobody plays as {player[:40]!r}")
        game.play(player, action)
        if game.over:
            self._on_end(game)

    def _state(self) -> HttpResponse:
        game = self.game
        # The same facts as in a recording, so that one script shows both; frames have addresses of their own.
        told = recorded(game, frames=False)
        moment = game.moment
        suggestions = {player: moment.suggestion(player) for player in (EXPERT, POLICY) if player in game.players}
        now = {
            "heard": moment.heard,
            "commands": moment.commands,
            "suggestions": suggestions,
            "thought": moment.expert.thought if moment.expert else "",
        }
        return HttpResponse(200, json.dumps({**told, "number": self._number, "now": now}).encode(), "application/json")
