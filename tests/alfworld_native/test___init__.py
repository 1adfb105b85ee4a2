"""Environments by name."""

import pytest

from alfworld_native import ENVIRONMENTS, Environment, check_split, choose_games, known_games, make_environment
from alfworld_native.errors import EnvironmentFault
from xrl_alignment.common.choices import ENVIRONMENT_NAMES


@pytest.mark.parametrize(("name", "made"), [("native", "native"), ("household", "native"), ("thor", "thor")])
def test_names(name, made):
    environment = make_environment(name, max_steps=7, show_ids=False)
    assert isinstance(environment, Environment)
    assert (environment.name, environment.max_steps, environment.show_ids) == (made, 7, False)


def test_textworld_with_an_expert():
    environment = make_environment("textworld", expert="planner")
    assert (environment.name, environment.expert) == ("textworld", "planner")


def test_the_names_are_those_that_settings_offer():
    assert tuple(ENVIRONMENTS) == ENVIRONMENT_NAMES


def test_an_unknown_name_is_refused_with_a_known_one():
    with pytest.raises(EnvironmentFault, match="unknown environment 'natvie': did you mean 'native'"):
        make_environment("natvie")
    with pytest.raises(EnvironmentFault, match="choose one of household, native, textworld, thor"):
        make_environment("xyz")


def test_an_unknown_camera_is_refused():
    with pytest.raises(EnvironmentFault, match="unknown camera 'arround': did you mean 'around'"):
        make_environment("household", camera="arround")


def test_alfworld_experts_need_alfworlds_games():
    with pytest.raises(EnvironmentFault, match="environment.name=native"):
        make_environment("examples.custom_environment:Anything", expert="planner")
    with pytest.raises(EnvironmentFault, match="handcoded, planner"):
        make_environment("textworld", expert="perfect")


def test_the_split_is_checked_by_name_and_by_what_is_there(tmp_path):
    for name, split in (("native", "valid_unseen"), ("textworld", "train"), ("household", "household_heldout")):
        check_split(name, split, str(tmp_path))  # the games may be on the clients' machine
    (tmp_path / "json_2.1.1" / "my_split").mkdir(parents=True)
    check_split("native", "my_split", str(tmp_path))
    for name, split in (("native", "valid_unsen"), ("household", "valid_seen")):
        with pytest.raises(EnvironmentFault, match=f"environment.split: unknown split '{split}'"):
            check_split(name, split, str(tmp_path / "nothing"))


def test_a_wrong_split_of_generated_games_is_told_before_any_is_generated(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for split in ("household_trian", "valid_seen"):
        message = f"no games of split '{split}': environment household generates household_train and household_heldout"
        with pytest.raises(EnvironmentFault, match=message):
            choose_games("household", split, num=3)
    assert not list(tmp_path.iterdir())


def test_a_wrong_mixture_is_told_before_a_folder_is_named_by_it(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(EnvironmentFault, match="the weight of level many is 'half': use a number"):
        choose_games("household", "household_train", levels={"many": "half"})
    assert not list(tmp_path.iterdir())


def test_known_games_are_those_that_are_chosen(household_data, tmp_path):
    options = {"data": str(household_data), "seed": 3}
    chosen = [game.id for game in choose_games("native", "household_train", num=4, **options)]
    sizes = {"num_train": 12, "num_heldout": 6}
    assert known_games("native", "household_train", 4, **options, **sizes) == chosen
    assert known_games("native", "household_train", 4, data=str(tmp_path), **sizes) is None
