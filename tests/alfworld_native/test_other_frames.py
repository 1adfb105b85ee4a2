"""Frames of another game."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from alfworld_native import make_environment
from alfworld_native.base import Game
from alfworld_native.errors import EnvironmentFault


@pytest.mark.parametrize("camera", ["front", "close"])
def test_only_the_frames_are_another_games(games: list[Game], camera: str) -> None:
    own, other, again = (
        make_environment("native", camera=camera, show_ids=False, name_by="type", other_frames=other_frames)
        for other_frames in (False, True, True)
    )
    now = own.reset(games[0])
    assert other.reset(games[0]) == now == again.reset(games[0])
    differ, changes, last = 0, 0, other.render()
    places = [command for command in now.admissible_commands if command.startswith("go to ")]
    for action in (places * 49)[:49]:
        now = own.step(action)
        assert other.step(action) == now == again.step(action) and other.facts() == own.facts()
        frame = other.render()
        assert (frame == again.render()).all()
        differ += bool((frame != own.render()).any())
        changes, last = changes + bool((frame != last).any()), frame
    assert differ == 49 and changes > 20  # the other game goes on, also after its end
    other.close()


def test_a_folder_without_another_game_is_told(games: list[Game], tmp_path) -> None:
    alone = tmp_path / "json_2.1.1" / "alone" / games[0].id
    path = alone / "game.tw-pddl"
    for folder in (alone, alone.with_name("another_trial")):  # of the same task
        folder.mkdir(parents=True)
        (folder / path.name).write_bytes(games[0].path.read_bytes())
    environment = make_environment("native", other_frames=True)
    with pytest.raises(EnvironmentFault, match="environment.other_frames: .* holds no game of another task"):
        environment.reset(replace(games[0], path=path, split="alone"))
    with pytest.raises(EnvironmentFault, match="no game is loaded"):
        environment.step("look")
    # Nor does the game before go on.
    environment.reset(games[0])
    for lost, said in ((path, "holds no game of another task"), (Path(path.name), "is in no folder of ALFW")):
        with pytest.raises(EnvironmentFault, match=said):
            environment.reset(replace(games[0], path=lost, split="alone"))
        with pytest.raises(EnvironmentFault, match="no game is loaded"):
            environment.step("look")
