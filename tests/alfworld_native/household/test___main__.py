"""`python -m alfworld_native.household`."""

import json

import pytest

from alfworld_native.games import find_games
from alfworld_native.household.__main__ import main
from lavis.common.program import run_program


def test_program(tmp_path, capsys):
    assert main(["--out", str(tmp_path), "--num-train", "6", "--num-heldout", "6", "--max-receptacles", "24"]) == 0
    assert "12 of 12 games" in capsys.readouterr().out
    assert len(find_games("household_heldout", tmp_path)) == 6
    with pytest.raises(SystemExit) as end:
        run_program(lambda: main(["--out", str(tmp_path), "--max-receptacles", "2"]))
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith("error: max_receptacles")


@pytest.mark.parametrize("given", [["--seed", "3"], ["--level", "many"], ["--num-train", "5"], ["--rooms", "2"]])
def test_a_frozen_test_set_takes_no_other_numbers(given, tmp_path, capsys):
    with pytest.raises(SystemExit) as end:
        main(["--out", str(tmp_path), "--test-set", "many", *given])
    assert end.value.code == 2 and f"leave out {given[0]}" in capsys.readouterr().err
    assert not any(tmp_path.iterdir())


def test_an_empty_folder_is_not_that_of_the_official_games(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    for more in (["--num-train", "1", "--num-heldout", "0"], ["--test-set", "many"]):
        with pytest.raises(SystemExit) as end:
            main(["--out", "", *more])
        assert end.value.code == 2 and "--out is empty" in capsys.readouterr().err
    assert not any(tmp_path.iterdir())


def test_the_folder_that_is_printed_is_the_one_that_is_written(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main(["--out", "~/games", "--num-train", "1", "--num-heldout", "0"]) == 0
    assert f"games: {tmp_path}/games/json_2.1.1" in capsys.readouterr().out


def test_levels_and_knobs(tmp_path, capsys):
    few = ["--num-train", "2", "--num-heldout", "0"]
    assert main(["--out", str(tmp_path / "a"), *few, "--level", "hidden", "--clutter", "0", "1", "--goals", "2"]) == 0
    made = json.loads((tmp_path / "a" / "household.json").read_text())["level"]
    assert made["hidden"] is True and made["clutter"] == [0.0, 1.0] and made["goals"] == 2
    assert main(["--out", str(tmp_path / "a"), *few, "--level", "hidden", "--clutter", "0", "1", "--goals", "2"]) == 0
    assert "many" not in str(find_games("household_train", tmp_path / "a"))
    with pytest.raises(SystemExit) as end:
        run_program(lambda: main(["--out", str(tmp_path / "a"), *few, "--level", "hidden"]))
    assert end.value.code == 2 and "level" in capsys.readouterr().err
    assert main(["--out", str(tmp_path / "b"), "--test-set", "many"]) == 0
    assert len(find_games("household_many", tmp_path / "b")) == 60
