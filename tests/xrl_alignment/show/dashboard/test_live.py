"""Cards of the sessions that play: what they show, and what they keep for themselves."""

from __future__ import annotations

import base64
import io
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from tests.xrl_alignment.show.dashboard.runs import ATTACK, GAMES, OPENING, TOLD, transitions
from tests.xrl_alignment.show.dashboard.test_board import parse
from xrl_alignment.agents.experts import make_expert
from xrl_alignment.dagger.episode import LabelledEpisode, UnfinishedTransitions
from xrl_alignment.show.dashboard.board import Board
from xrl_alignment.show.dashboard.live import MOST_CARDS, LiveSessions, data_url
from xrl_alignment.wire.messages import Observation

FOLDER = tempfile.TemporaryDirectory()  # for what episodes in progress keep on disk


def episode(env: int, *said: tuple[str, str]) -> LabelledEpisode:
    playing = LabelledEpisode(
        game=GAMES[env], text=OPENING, env=env, round=1, beta=0.0, expert=make_expert("explorer"),
        observation=Observation(OPENING), transitions=UnfinishedTransitions(Path(FOLDER.name)),
    )  # fmt: skip
    for step, transition in enumerate(transitions(*said)):
        playing.transitions.append(transition)
        if step < len(said) - 1:
            playing.hear(transition.feedback)
    return playing


def shown(board: Board) -> dict[str, list]:
    found: dict[str, list] = {}
    viewer = board.watch()
    for name, value in parse(next(iter(viewer))):
        found.setdefault(name, []).append(value)
    viewer.close()
    return found


def test_a_card_shows_frame_text_and_both_actions():
    board, playing = Board(), {"secret-session-name": episode(2, ("look", "go to desk 1"), ("", "take mug 1"))}
    live = LiveSessions(lambda: list(playing.items()))
    live.publish(board)
    (card,) = shown(board)["session"]
    assert {key: card[key] for key in ("number", "env", "round", "step", "agent", "expert", "executed", "heard")} == {
        "number": 0, "env": 2, "round": 1, "step": 2, "agent": None, "expert": "take mug 1", "executed": "take mug 1",
        "heard": "ok 0",
    }  # fmt: skip
    assert card["history"] == [["", "ok 0"]] and card["earlier"] == 0 and ATTACK in card["opening"]
    kind, data = card["frame"].split(",")
    image = Image.open(io.BytesIO(base64.b64decode(data)))
    assert kind == "data:image/jpeg;base64" and image.size == (8, 6) and abs(image.getpixel((3, 3))[0] - 20) < 3
    assert "secret-session-name" not in str(shown(board))
    playing["secret-session-name"].labelled = False
    playing["secret-session-name"].transitions.append(replace(transitions(("look", "look"))[0], text_input="later"))
    live.publish(board)
    assert shown(board)["session"][0]["expert"] is None


def test_a_card_is_made_anew_only_when_something_happened():
    board, playing = Board(), {"a": episode(0, ("look", "look"))}
    live = LiveSessions(lambda: list(playing.items()))
    live.publish(board)
    watching = iter(board.watch())
    assert next(watching)
    live.publish(board)
    playing["b"] = episode(1)  # it waits for its first action: nothing to show yet
    live.publish(board)
    assert [name for name, _ in parse(next(watching))] == ["sessions"]
    board.close()


def test_sessions_keep_their_places_and_those_of_others_are_given_away_later():
    now, board, playing = [0.0], Board(), {name: episode(env, ("look", "look")) for env, name in enumerate("abc")}
    live = LiveSessions(lambda: list(playing.items()), clock=lambda: now[0])
    live.publish(board)
    a = playing.pop("a")
    now[0] = 2.0
    live.publish(board)
    assert shown(board)["sessions"] == [{"numbers": [0, 1, 2], "playing": 2}]
    now[0] = 9.0
    live.publish(board)
    assert shown(board)["sessions"] == [{"numbers": [1, 2], "playing": 2}] and len(shown(board)["session"]) == 2
    playing["d"] = a
    live.publish(board)
    assert {card["number"]: card["env"] for card in shown(board)["session"]} == {0: 0, 1: 1, 2: 2}


def test_many_sessions_and_large_frames_stay_small():
    image = np.random.default_rng(0).integers(0, 255, (1000, 900, 3), np.uint8)
    assert len(data_url(image)) < 150_000
    assert data_url(np.zeros((1, 1, 3), np.uint8)) == ""
    board, one = Board(), episode(0, ("look", "look"))
    LiveSessions(lambda: [(f"s{number}", one) for number in range(MOST_CARDS + 9)]).publish(board)
    assert len(shown(board)["session"]) == MOST_CARDS


def test_a_card_names_what_the_agent_is_not_told():
    playing = episode(0, ("look", "look"), ("look", "look"))
    playing.steps[-1] = ("go to desk 1", TOLD)
    for tell_objects, untold in ((True, []), (False, ["On the desk 1, you see a mug 1."])):
        board = Board()
        LiveSessions(lambda: [("name", playing)]).publish(board, tell_objects=tell_objects)
        (card,) = shown(board)["session"]
        assert card["heard"] == TOLD and card["untold"] == untold
