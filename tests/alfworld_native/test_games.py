"""Finding games: order, choice, what is skipped, the cache, errors."""

import json

import pytest

from alfworld_native import games
from alfworld_native.errors import EnvironmentFault
from alfworld_native.games import find_games, find_splits, games_hash


def put_game(data, split, folder, trial="trial_1", solvable=True):
    place = data / "json_2.1.1" / split / folder / trial
    place.mkdir(parents=True)
    (place / "game.tw-pddl").write_text(json.dumps({"pddl_problem": "", "solvable": solvable, "walkthrough": []}))


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for i, kind in enumerate(("pick_two_obj_and_place", "look_at_obj_in_light", "pick_and_place_simple")):
        for j in range(3):
            put_game(tmp_path, "train", f"{kind}-Mug-None-Desk-30{i}", f"trial_{j}")
    return tmp_path


def test_sorted_by_id_with_path_and_split(data):
    found = find_games("train", data)
    assert len(found) == 9
    assert [game.id for game in found] == sorted(game.id for game in found)
    assert found[0].id == "look_at_obj_in_light-Mug-None-Desk-301/trial_0"
    assert found[0].task_type == "look_at_obj_in_light"
    assert found[0].split == "train"
    assert found[0].path.is_file()
    assert find_splits(data) == ["train"]


def test_what_alfworld_skips_is_skipped(data):
    put_game(data, "train", "pick_and_place_with_movable_recep-Fork-Mug-Desk-1")
    put_game(data, "train", "pick_and_place_simple-AppleSliced-None-Desk-1")
    put_game(data, "train", "pick_and_place_simple-Book-None-Desk-1", solvable=False)
    (data / "json_2.1.1/train/pick_and_place_simple-Vase-None-Desk-1/trial_1").mkdir(parents=True)
    assert len(find_games("train", data)) == 9


def test_num_takes_the_first_and_seed_draws(data):
    everything = find_games("train", data)
    assert find_games("train", data, num=4) == everything[:4]
    assert find_games("train", data, num=0) == everything
    drawn = find_games("train", data, num=4, seed=7)
    assert drawn == find_games("train", data, num=4, seed=7)
    assert drawn != everything[:4]
    assert find_games("train", data, num=6, seed=7)[:4] == drawn
    assert set(find_games("train", data, seed=7)) == set(everything)


def test_second_scan_comes_from_the_cache_until_the_folder_changes(data, monkeypatch):
    first = find_games("train", data)
    scans = []
    monkeypatch.setattr(games, "_scan", lambda folder: scans.append(folder) or ["pick_and_place_simple-A-None-B-1/t"])
    assert find_games("train", data) == first
    assert scans == []
    put_game(data, "train", "pick_and_place_simple-Mug-None-Desk-302", "trial_9")  # a trial in a known task folder
    assert len(find_games("train", data)) == 1
    assert len(scans) == 1


def test_a_game_file_that_a_known_trial_folder_gets_later_is_found(data):
    trial = data / "json_2.1.1/train/pick_and_place_simple-Vase-None-Desk-1/trial_1"
    trial.mkdir(parents=True)
    assert len(find_games("train", data)) == 9  # trajectories are unpacked before the game files
    (trial / "game.tw-pddl").write_text('{"solvable": true}')
    assert len(find_games("train", data)) == 10
    (trial.parent / "trial_2").symlink_to(data / "gone")  # a link to what is no longer there is no game
    assert len(find_games("train", data)) == 10


def test_broken_cache_is_scanned_again(data):
    first = find_games("train", data)
    (cache,) = (data / "cache/emac/games").iterdir()
    cache.write_text('{"stamp": ')
    assert find_games("train", data) == first


def test_cache_that_cannot_be_written_only_costs_time(data, monkeypatch):
    (data / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(data / "file"))
    assert len(find_games("train", data)) == 9


@pytest.mark.parametrize(
    ("split", "hint"),
    [
        ("valid_seen", "alfworld-download"),
        ("household_train", "household --out DIR`"),
        ("household_many", "household --out DIR --test-set many`"),
    ],
)
def test_no_games_says_where_and_how(data, split, hint):
    with pytest.raises(EnvironmentFault) as error:
        find_games(split, data)
    assert str(data / "json_2.1.1" / split) in str(error.value)
    assert hint in str(error.value)
    assert "splits there: train" in str(error.value)


@pytest.mark.parametrize(("split", "near"), [("household_trian", "household_train"), ("valid_sen", "valid_seen")])
def test_a_typo_gets_the_nearest_split_and_no_download(tmp_path, split, near):
    with pytest.raises(EnvironmentFault, match=f"did you mean '{near}'") as error:
        find_games(split, tmp_path)
    assert "alfworld-download" not in str(error.value)


def test_a_wrong_split_beside_others_names_those(data):
    with pytest.raises(EnvironmentFault, match=r"splits there: train\): choose one of those"):
        find_games("tarin", data)
    (data / "json_2.1.1" / "train").rename(data / "json_2.1.1" / "household_train")
    with pytest.raises(EnvironmentFault, match=r"splits there: household_train\): choose one of those"):
        find_games("valid_seen", data)


def test_negative_number_is_refused(data):
    with pytest.raises(EnvironmentFault, match="-1"):
        find_games("train", data, num=-1)


def test_data_defaults_to_the_environment_variable(data, monkeypatch):
    monkeypatch.setenv("ALFWORLD_DATA", str(data))
    assert len(find_games("train")) == 9


def test_an_unknown_home_folder_is_named():
    with pytest.raises(EnvironmentFault, match="folder ~nobody-of-this-name/games: .* give the whole path"):
        find_games("train", "~nobody-of-this-name/games")


def test_hash_names_the_list(data):
    found = find_games("train", data)
    assert games_hash(found) == games_hash(list(found))
    assert games_hash(found) != games_hash(found[::-1])
    assert games_hash(found) != games_hash(found[:-1])


def test_official_games(alfworld_data):
    assert games_hash(find_games("valid_seen", alfworld_data)) == "ef35bea9156a"
    assert games_hash(find_games("train", alfworld_data)) == "199a2f369a51"
