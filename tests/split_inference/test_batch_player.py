"""Games that a model plays on a real server, and what is read from its outputs."""

import json
import socket
from collections import Counter

import pytest
from PIL import Image

from alfworld_native.language.commands import MAX_THOUGHTS, canonical
from split_inference.batch_player import parse_action
from split_inference.socket_connection import ServerUnreachable, SocketConnection
from split_inference.trajectories import TrajectoryFolder
from tests.split_inference.players import Says, make_player
from tests.split_inference.servers import PATIENCE_S


def test_games_are_played_in_batches_and_written(connections, games, planner, tmp_path):
    playing = make_player(connections, planner, tmp_path)
    episodes = list(playing.play(games))
    assert not playing.failed and all(recorded.episode.won for recorded in episodes)
    assert sorted(recorded.episode.game for recorded in episodes) == sorted(game["game"] for game in games)
    assert max(planner.batches) == 3 and sum(planner.batches) == sum(len(episode.turns) for episode in episodes)
    for game in games:
        folder = tmp_path / game["game"]
        record = json.loads((folder / "trajectory.json").read_text())
        assert record["success"] is True and record["task_type"] == game["game"].split("-")[0]
        assert record["intro"].endswith(record["task_desc"])
        assert [turn["action"] for turn in record["turns"]] == list(map(canonical, planner.plans[game["game"]]))
        for turn in record["turns"]:
            assert turn["output"].startswith("Action: ") and turn["prompt"].endswith("\n> ") and turn["action_success"]
        images = [turn["image"] for turn in record["turns"]] + [record["final_image"]]
        assert images == [f"images/{number:02}.jpg" for number in range(len(images))]
        assert {file.name for file in (folder / "images").iterdir()} == {name[7:] for name in images}
        assert Image.open(folder / images[-1]).size == (300, 300)
    assert planner.prompts.count(planner.prompts[0]) == 1  # every prompt shows a new state


def test_the_table_counts_by_task_type(connections, games, planner, tmp_path):
    playing = make_player(connections, planner, tmp_path)
    list(playing.play(games))
    names = [game["game"] for game in games]
    lines = TrajectoryFolder(tmp_path, {"a": 1}).summarise(names).splitlines()
    counts = Counter(name.split("-")[0] for name in names)
    assert {line.split()[0]: line.split()[1:3] for line in lines[1:]} == {
        **{kind: [str(number)] * 2 for kind, number in counts.items()},
        "all": ["5", "5"],
    }
    assert json.loads((tmp_path / "summary.json").read_text())["success"] == 1.0


def test_an_episode_ends_with_its_turns(connections, games, planner, tmp_path):
    episodes = list(make_player(connections, planner, tmp_path, max_turns=1).play(games[:2]))
    assert [len(episode.turns) for episode in episodes] == [1, 1] and not any(
        recorded.episode.won for recorded in episodes
    )


def test_a_thought_costs_a_turn_but_no_step(connections, games, tmp_path):
    model, turns = Says("think: the mug is dirty"), MAX_THOUGHTS + 2  # no limit on thoughts in a row here
    (episode,) = make_player(connections, model, tmp_path, max_turns=turns).play(games[:1])
    assert [turn["feedback"] for turn in episode.turns] == ["OK."] * turns and len(episode.images) == 1
    assert model.turns[-1].prompt.endswith("> think: the mug is dirty\nOK.\n> ")
    TrajectoryFolder(tmp_path, {"a": 1}).summarise([games[0]["game"]])
    assert json.loads((tmp_path / "summary.json").read_text())["rejected"] == 0.0


def test_a_turn_tells_what_was_done_and_shown_before(connections, games, tmp_path):
    for number, said in enumerate(("look", "think: where is it?")):
        model = Says(said)
        (episode,) = make_player(connections, model, tmp_path / str(number), max_turns=3).play(games[:1])
        assert [[action for action, _ in turn.steps] for turn in model.turns] == [[], [said], [said] * 2]
        assert [list(turn.earlier) for turn in model.turns] == [episode.shown[:turn] for turn in range(3)]
        assert [turn.image for turn in model.turns] == episode.shown


@pytest.mark.parametrize(
    "text", ["", "\x00\ud800\x1b[0m\u2028", "I am sorry. " * 400, "examine " + "x" * 5000, "go to\n\n\nnowhere"]
)
def test_whatever_a_model_writes_the_game_goes_on(connections, games, tmp_path, text):
    playing = make_player(connections, Says(text), tmp_path, max_turns=2)
    (episode,) = playing.play(games[:1])
    assert not playing.failed and [turn["action_success"] for turn in episode.turns] == [False, False]
    assert json.loads((tmp_path / games[0]["game"] / "trajectory.json").read_text())["turns"][0]["action"] is not None


def test_commands_are_shown_if_asked_for(connections, games, tmp_path):
    model = Says("look")
    list(make_player(connections, model, tmp_path, max_turns=1, show_commands=True).play(games[:1]))
    assert model.turns[0].prompt.startswith("Possible commands: ") and "; inventory; look\n" in model.turns[0].prompt


def test_a_long_episode_leaves_out_its_oldest_steps(connections, games, tmp_path):
    model = Says("inventory", budget=600)
    list(make_player(connections, model, tmp_path, max_turns=25).play(games[:1]))
    assert max(len(turn.prompt) for turn in model.turns) <= 600 and "\n...\n" in model.turns[-1].prompt


def test_a_game_that_cannot_be_played_stops_no_other(connections, games, planner, tmp_path):
    broken = {"traj_file": "no/such/game", "game": "broken/trial"}
    playing = make_player(connections, planner, tmp_path)
    assert len(list(playing.play([broken, *games[:2], broken | {"game": "broken/other"}]))) == 2
    assert list(playing.failed) == ["broken/trial", "broken/other"] and "no game" in playing.failed["broken/trial"]


def test_a_game_whose_environment_is_lost_counts_as_failed_and_another_environment_takes_its_place(
    server, connections, games, planner, tmp_path
):
    opened = []

    def reconnect():
        opened.append(SocketConnection("localhost", server.port, PATIENCE_S))
        return opened[-1]

    lost, answer = connections[0], planner.answer

    def cut(turns):
        planner.answer = answer
        lost._socket.shutdown(socket.SHUT_RDWR)  # as if its process had crashed
        return answer(turns)

    planner.answer = cut
    playing = make_player(connections, planner, tmp_path, reconnect=reconnect)
    won = [recorded.episode.game for recorded in playing.play(games) if recorded.episode.won]
    for connection in opened:
        connection.close()
    assert list(playing.failed) == [games[0]["game"]] and len(opened) == 1
    assert sorted(won) == sorted(game["game"] for game in games[1:])


def test_games_are_played_on_new_connections_if_the_old_ones_were_silent_for_too_long(start, games, planner, tmp_path):
    server = start("--idle-timeout", "1")
    connections = [SocketConnection("localhost", server.port, PATIENCE_S) for _ in range(3)]
    for connection in connections:  # wait for the server's last line, as while a model loads, and leave it unread
        connection._socket.recv(1, socket.MSG_PEEK)

    def reconnect():
        connections.append(SocketConnection("localhost", server.port, PATIENCE_S))
        return connections[-1]

    playing = make_player(connections[:3], planner, tmp_path, reconnect=reconnect)
    won = [recorded.episode.game for recorded in playing.play(games) if recorded.episode.won]
    for connection in connections:
        connection.close()
    assert not playing.failed and sorted(won) == sorted(game["game"] for game in games)


def test_a_game_that_ends_its_environment_twice_before_it_begins_counts_as_failed(
    connections, games, planner, tmp_path
):
    class Crashes:
        """A connection whose environment crashes when it loads a game."""

        def send(self, request):
            """The request arrives."""

        def receive(self):
            raise ServerUnreachable("it closed the connection")

        def close(self):
            """Nothing to close."""

    spare = [Crashes(), connections[0], connections[1]]
    playing = make_player([Crashes()], planner, tmp_path, reconnect=lambda: spare.pop(0))
    won = [recorded.episode.game for recorded in playing.play(games) if recorded.episode.won]
    assert playing.failed == {games[0]["game"]: "it closed the connection"} and len(won) == 4 and len(spare) == 1


@pytest.mark.parametrize(
    ("output", "action"),
    [
        ("go to cabinet 2", "go to cabinet 2"),
        ("<think>where?</think>\nAction: take mug 1 from desk 2.", "take mug 1 from desk 2"),
        ("put the mug 1 on desk 2", "put mug 1 in/on desk 2"),
        ("think: look around", "think: look around"),
        ("I cannot help.", "i cannot help"),
        ("", ""),
    ],
)
def test_actions_are_read_from_outputs(output, action):
    assert parse_action(output) == action
