"""The game's pages over HTTP: moves by JSON from its own page only, each made once."""

from __future__ import annotations

import http.client
import json
from contextlib import closing

import pytest

from xrl_alignment.show.play.__main__ import MAX_REQUEST
from xrl_alignment.show.play.web import PlayPages
from xrl_alignment.wire.http_handler import Limits
from xrl_alignment.wire.http_server import PageServer

JSON = {"Content-Type": "application/json"}


class Client:
    def __init__(self, new_game) -> None:
        self.ended: list = []
        self.pages = PlayPages(lambda: new_game(suggest=lambda question: "inventory"), self.ended.append)
        self.server = PageServer("127.0.0.1", 0, limits=Limits(max_body=MAX_REQUEST)).start()
        self.server.mount(self.pages)

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, bytes]:
        with closing(http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=30)) as connection:
            connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
            answer = connection.getresponse()
            return answer.status, answer.read()

    def move(self, **content) -> dict:
        status, answer = self.ask("POST", "/move", json.dumps(content).encode(), **JSON)
        return json.loads(answer) if status == 200 else {"status": status, "reason": answer.decode()}


@pytest.fixture
def client(new_game):
    client = Client(new_game)
    yield client
    client.server.stop()


def test_a_whole_game_is_played(client):
    state = json.loads(client.ask("GET", "/state")[1])
    assert state["now"]["suggestions"].keys() == {"expert", "policy"} and not state["over"]
    state = client.move(step=0, action="look")
    assert [step["executed"] for step in state["steps"]] == ["look", ""] and state["actions"] == 1
    while not state["over"]:
        state = client.move(step=state["actions"], player="expert")
    assert state["won"] and client.ended == [client.pages.game]
    assert client.move(step=state["actions"], player="expert")["status"] == 409
    status, png = client.ask("GET", f"/frames/{state['actions']}")
    assert status == 200 and png.startswith(b"\x89PNG")
    assert client.ask("GET", f"/frames/{state['actions'] + 1}")[0] == 404
    assert b'id="episode"' in client.ask("GET", "/recording")[1]
    status, answer = client.ask("POST", "/new", b"{}", **JSON)
    assert json.loads(answer)["number"] == 1 and json.loads(answer)["actions"] == 0


def test_a_move_that_is_sent_again_is_made_once(client):
    first = client.move(step=0, action="LOOK")  # it is normalised, and so is what comes again
    assert client.move(step=0, action="LOOK") == client.move(step=0, action="look") == first
    assert client.move(step=0, action="inventory")["status"] == 409
    assert client.move(step=0, player="expert")["status"] == 409, "another player's move is not this one"
    assert len(client.pages.game.moves) == 1


def test_a_move_of_another_game_is_refused(client):
    assert client.move(game=0, step=0, action="look")["number"] == 0
    client.ask("POST", "/new", b"{}", **JSON)
    assert client.move(game=0, step=0, action="look") == {"status": 409, "reason": "another game has begun\n"}
    assert client.pages.game.moves == [] and client.move(game=1, step=0, action="look")["number"] == 1


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{", b'{"step": 0}', b'{"step": true, "action": "look"}', b'{"step": 0, "action": " "}',
     b'{"step": 0, "player": "nobody"}', b'{"step": 0, "action": "' + b"x" * 600 + b'"}', b"[" * 3000],
)  # fmt: skip
def test_what_is_no_move_is_refused(client, body):
    assert client.ask("POST", "/move", body, **JSON)[0] == 400 and client.pages.game.moves == []


def test_only_its_own_page_plays(client):
    look, here = b'{"step": 0, "action": "look"}', f"http://127.0.0.1:{client.server.port}"
    assert client.ask("POST", "/move", look, **JSON, Origin="http://evil.example")[0] == 403
    assert client.ask("POST", "/move", look, **JSON, Sec_Fetch_Site="cross-site")[0] == 403
    assert client.ask("POST", "/move", look, Content_Type="text/plain")[0] == 415, "what a form could send"
    assert client.ask("POST", "/move", look, **JSON, Host="evil.example", Origin="http://evil.example")[0] == 403
    assert client.ask("POST", "/move", b" " * (MAX_REQUEST + 1), **JSON)[0] == 413
    assert client.ask("POST", "/elsewhere", b"{}", **JSON)[0] == 404 and client.pages.game.moves == []
    assert client.ask("POST", "/move", look, **JSON, Origin=here, Sec_Fetch_Site="same-origin")[0] == 200


def test_the_pages_files_are_public(client):
    for path in ("/", "/play/play.js", "/play/play.css", "/dashboard/base.css", "/dashboard/elements.js"):
        assert client.pages.is_public(path) and client.ask("GET", path)[0] == 200
    assert client.ask("GET", "/play/recording.html")[0] == 404
