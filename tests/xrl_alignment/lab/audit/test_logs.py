"""Runs of several trials, counted by slot and by game, in the format of the original's released logs."""

from __future__ import annotations

import json

import pytest

from lavis.common.errors import FileError
from xrl_alignment.lab.audit.logs import count_trials


def write(folder, trials):
    """A file for each trial; a trial is slot -> (solved so far, game)."""
    for number, slots in enumerate(trials):
        states = {
            f"env_{slot}": {"memory": [], "is_success": solved, "type": game, "path_length": 0}
            for slot, (solved, game) in enumerate(slots)
        }
        (folder / f"env_results_trial_{number}.json").write_text(json.dumps(states))
    return folder


def test_a_game_that_solves_several_slots_is_one_game(tmp_path):
    """Only game b can be solved. It moves from slot to slot, and all three slots end solved."""
    trials = [
        [(False, "a"), (True, "b"), (False, "c")],
        [(False, "c"), (True, "a"), (True, "b")],
        [(True, "b"), (True, "c"), (True, "a")],
    ]
    got = count_trials(write(tmp_path, trials))
    assert (got["trials"], got["slots_with_another_game"]) == (3, 3)
    assert [got[way]["solved"] for way in ("first_trial", "by_slot", "by_game")] == [1, 3, 1]
    assert got["by_game"]["games"] == 3 and got["curve"] == [[0, 1], [1, 2], [2, 3]]


def test_a_run_of_this_project_names_the_game_beside_its_type(tmp_path):
    states = {f"env_{n}": {"is_success": n == 0, "game": f"heat-{n}/t", "type": "pick_heat"} for n in range(3)}
    (tmp_path / "env_results_trial_0.json").write_text(json.dumps(states))
    assert count_trials(tmp_path)["by_game"]["games"] == 3


def test_slots_that_keep_their_game_count_the_same(tmp_path):
    trials = [[(False, "a"), (False, "b")], [(True, "a"), (False, "b")]]
    got = count_trials(write(tmp_path, trials))
    assert got["by_slot"] == got["by_game"] and got["first_trial"]["solved"] == got["slots_with_another_game"] == 0


def test_trials_are_read_in_the_order_of_their_numbers(tmp_path):
    """trial_10 is after trial_9; as names it would come before trial_2."""
    trials = [[(number >= 10, "a"), (True, "b")] for number in range(11)]
    assert [solved for _, solved in count_trials(write(tmp_path, trials))["curve"]] == [1] * 10 + [2]


@pytest.mark.parametrize("lost", [0, 1])
def test_a_trial_that_is_missing_is_told(tmp_path, lost):
    """Of a folder that was copied in part, the first file would count as the first trial."""
    write(tmp_path, [[(number > 0, "a"), (False, "b")] for number in range(3)])
    (tmp_path / f"env_results_trial_{lost}.json").unlink()
    with pytest.raises(FileError, match=f"lacks env_results_trial_{lost}.json: give all trials from 0 on"):
        count_trials(tmp_path)


def test_a_run_of_this_project_can_be_counted(finished_run):
    got = count_trials(finished_run.directory.path / "logging_results")
    assert got["trials"] == 2 and got["by_slot"]["games"] == 2 and got["by_slot"]["solved"] == 0


@pytest.mark.parametrize(
    "text", ["", "[]", '{"env_0": 3}', '{"env_0": {"is_success": 1, "type": "a"}}', '{"env_0": {}}']
)
def test_a_damaged_file_is_named(tmp_path, text):
    (tmp_path / "env_results_trial_0.json").write_text(text)
    with pytest.raises(FileError, match=r"env_results_trial_0.json"):
        count_trials(tmp_path)


def test_a_folder_without_results_is_named(tmp_path):
    with pytest.raises(FileError, match="holds no env_results_trial_<trial>.json"):
        count_trials(tmp_path)
