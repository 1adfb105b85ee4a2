"""The output folder: complete episodes or none, one run only."""

import errno
import json
import os
from pathlib import Path

import pytest

from lavis.common.errors import ConfigError, FileError
from split_inference.trajectories import TrajectoryFolder
from tests.split_inference.players import Says, make_player


def test_a_crash_while_writing_leaves_nothing_half_done(connections, games, planner, tmp_path, monkeypatch):
    class Crash(BaseException):
        pass

    def crash(*_):
        raise Crash

    playing = make_player(connections, planner, tmp_path)
    monkeypatch.setattr(os, "replace", crash)
    with pytest.raises(Crash):
        list(playing.play(games[:1]))
    monkeypatch.undo()
    assert (tmp_path / ".partial").is_dir()
    again = TrajectoryFolder(tmp_path, {"a": 1})
    assert not again.finished(games[0]["game"]) and not (tmp_path / ".partial").exists()


def test_the_format_of_a_record(connections, games, tmp_path):
    folder, half_a_pair = tmp_path / games[0]["game"], "look \ud800 é"
    list(make_player(connections, Says(half_a_pair), tmp_path, max_turns=1).play(games[:1]))
    text = (folder / "trajectory.json").read_text(encoding="utf-8")
    record = json.loads(text)
    assert list(record) == "game task_type task_desc intro success turns final_image seconds".split()
    (turn,) = record["turns"]
    assert list(turn) == "prompt image output action feedback action_success error_message".split()
    assert turn["output"] == half_a_pair and "look \\ud800 é" in text
    assert (turn["image"], record["final_image"]) == ("images/00.jpg", "images/01.jpg")
    assert (tmp_path / "settings.json").read_text() == '{\n "a": 1\n}'


def test_a_game_that_could_not_be_played_counts_as_not_solved(connections, games, planner, tmp_path):
    list(make_player(connections, planner, tmp_path).play(games[:1]))
    lost, named_freely = games[1]["game"], "a-file"
    names, failed = [games[0]["game"], lost, named_freely], {lost: "AI2-THOR stopped", named_freely: "no room"}
    folder = TrajectoryFolder(tmp_path, {"a": 1})
    row, last = folder.summarise(names, failed).splitlines()[-2:]
    assert row.split()[:4] == ["all", "3", "1", "0.333"]
    assert last == "counted as not solved: 2 of 3 games could not be played"
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["games"], summary["solved"], summary["faults"]) == (3, 1, failed)
    assert set(summary["per_task_type"]) == {games[0]["game"].split("-")[0], lost.split("-")[0], ""}
    assert "could not be played" not in folder.summarise(names)


@pytest.mark.parametrize("text", ["{", "[]", "\xff", "[" * 100_000], ids=["cut", "list", "latin", "nested"])
def test_a_damaged_file_is_named(tmp_path, text):
    (tmp_path / "settings.json").write_bytes(text.encode("latin-1"))
    (tmp_path / "game").mkdir()
    (tmp_path / "game" / "trajectory.json").touch()
    with pytest.raises(FileError, match="settings.json .*another --output-dir"):
        TrajectoryFolder(tmp_path, {})


def test_a_folder_that_cannot_be_written_is_named(connections, games, planner, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    with pytest.raises(FileError, match="file/out cannot be made"):
        TrajectoryFolder(tmp_path / "file" / "out", {})
    playing = make_player(connections, planner, tmp_path)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(FileError, match=f"{games[0]['game']} could not be written: No space left"):
        list(playing.play(games[:1]))


def test_another_run_is_not_mixed_in(tmp_path):
    TrajectoryFolder(tmp_path, {"model": "b", "seed": 1})  # it ended before a game did, and so may be corrected
    for _ in range(2):
        folder = TrajectoryFolder(tmp_path, {"model": "a", "seed": 1})
    (tmp_path / "game").mkdir()
    (tmp_path / "game" / "trajectory.json").write_text("{}")
    assert folder.finished("game")
    with pytest.raises(ConfigError, match="model 'a' is now 'b'.*another --output-dir"):
        TrajectoryFolder(tmp_path, {"model": "b", "seed": 1})


@pytest.mark.parametrize("name", ["/etc/passwd", "../up", "a/../../b", ".partial", ""])
def test_a_game_is_never_written_outside(tmp_path, name):
    with pytest.raises(ConfigError, match="folder's name"):
        TrajectoryFolder(tmp_path, {}).finished(name)
