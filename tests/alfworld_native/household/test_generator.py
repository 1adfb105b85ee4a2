"""The generator: solvable games, the same games from the same request, disjoint rooms, nothing half made."""

import hashlib
import json
import re
import shutil
import sys
from collections import Counter

import pytest

from alfworld_native import choose_games
from alfworld_native.engine.environment import NativeEnvironment
from alfworld_native.engine.game import NativeGame
from alfworld_native.errors import EnvironmentFault
from alfworld_native.games import find_games
from alfworld_native.household import generator
from alfworld_native.household.__main__ import main
from alfworld_native.household.floor_plans import floor_plan_numbers
from alfworld_native.household.generator import generate
from alfworld_native.household.levels import LEVELS, level_of_game
from alfworld_native.language.sentences import TASK_TYPES
from lavis.common.errors import FileError, MissingExtraError
from lavis.common.program import run_program


def contents(out, split):
    """Game id -> the game's files."""
    return {
        g.id: (g.path.read_bytes(), (g.path.parent / "traj_data.json").read_bytes()) for g in find_games(split, out)
    }


def test_both_splits_hold_every_task_type_in_turn(made):
    for split, count in (("household_train", 48), ("household_heldout", 24)):
        games = find_games(split, made)
        assert Counter(game.task_type for game in games) == dict.fromkeys(TASK_TYPES, count // 6)


def test_rooms_of_the_splits_are_disjoint(made):
    rooms = [{int(re.search(r"-(\d+)/", game.id)[1]) for game in find_games(split, made)} for split in generator.SPLITS]
    assert rooms[0] <= set(floor_plan_numbers(heldout=False))
    assert rooms[1] <= set(floor_plan_numbers(heldout=True))
    assert not rooms[0] & rooms[1]


def test_walkthroughs_win_at_their_last_command(made):
    for game in find_games("household_train", made):
        commands = json.loads(game.path.read_text())["walkthrough"]
        play = NativeGame.load(game.path)
        won = [play.won] + [play.step(command) and play.won for command in commands]
        assert won == [False] * len(commands) + [True]


def test_a_plan_that_does_not_win_or_is_not_accepted_is_seen(made):
    game = find_games("household_train", made)[0]
    commands = json.loads(game.path.read_text())["walkthrough"]
    assert generator.solves(game.path, commands)
    assert not generator.solves(game.path, commands[:-1])
    assert not generator.solves(game.path, [*commands, "look"])
    assert not generator.solves(game.path, ["open the sky", *commands])
    assert not generator.solves(game.path, ["look"] * 50 + commands)
    assert not generator.solves(game.path, [])


def test_sizes(made):
    for game in find_games("household_heldout", made):
        start = json.loads(game.path.read_text())["pddl_problem"].split("(:goal")[0]
        assert 8 <= start.count("(receptacleType ") <= 16
        assert start.count("(openable ") >= 3
        assert start.count("(objectType ") >= 12


def test_same_request_same_games_and_more_games_keep_the_first(made, tmp_path):
    generate(tmp_path, 60, 6, seed=5)
    before, after = contents(made, "household_train"), contents(tmp_path, "household_train")
    assert len(after) == 60
    assert before.items() <= after.items()


def test_the_default_games_are_those_of_version_3(tmp_path):
    """Recorded before levels existed: a run directory or a published figure names games by their request alone."""
    for sizes, options, recorded in (
        ((24, 12, 5), {}, "190ac766c076a71c"),
        ((6, 6, 2), {"max_receptacles": 40}, "a1cf995475788626"),
    ):
        out = tmp_path / recorded
        generate(out, *sizes, **options)
        digest = hashlib.sha256()
        for path in sorted(path for path in (out / "json_2.1.1").rglob("*") if path.is_file()):
            digest.update(f"{path.relative_to(out)}\0".encode() + path.read_bytes())
        digest.update((out / "household.json").read_bytes())
        assert digest.hexdigest()[:16] == recorded


def test_another_seed_makes_other_games(made, tmp_path):
    generate(tmp_path, 12, 0, seed=6)
    ours, theirs = (contents(out, "household_train").values() for out in (tmp_path, made))
    assert not {game for game, _ in ours} & {game for game, _ in theirs}


def test_a_repeated_request_does_nothing(made, monkeypatch):
    monkeypatch.setattr(generator, "make_game", lambda *a: pytest.fail("made a game"))
    generate(made, 48, 24, seed=5)


def test_an_interrupted_request_is_made_again_and_leaves_nothing_behind(tmp_path, monkeypatch):
    generate(tmp_path, 6, 0)
    first = contents(tmp_path, "household_train")

    def stop(made, total):
        if made == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generate(tmp_path, 12, 0, replace=True, progress=stop)
    assert contents(tmp_path, "household_train") == first
    assert {p.name for p in tmp_path.iterdir()} == {".lock", "household.json", "json_2.1.1"}
    (tmp_path / "household.json").write_text("{}\n")  # as a kill between the two swaps leaves it
    (tmp_path / ".making-killed" / "household_train").mkdir(parents=True)
    generate(tmp_path, 12, 0)
    assert {p.name for p in tmp_path.iterdir()} == {".lock", "household.json", "json_2.1.1"}
    assert first.items() <= contents(tmp_path, "household_train").items()


def test_games_made_otherwise_are_replaced_only_if_asked(tmp_path, capsys):
    generate(tmp_path, 6, 0)
    first = contents(tmp_path, "household_train")
    with pytest.raises(EnvironmentFault, match=r"num_train 6, not 12; seed 0, not 3\): environment.name=native plays"):
        generate(tmp_path, 12, 0, seed=3)
    with pytest.raises(EnvironmentFault, match="num_train 6, not 2000"):
        choose_games("household", "household_train", data=str(tmp_path), num=3)
    with pytest.raises(SystemExit) as end:
        run_program(lambda: main(["--out", str(tmp_path), "--num-train", "12", "--num-heldout", "0"]))
    assert end.value.code == 2
    assert "num_train 6, not 12" in capsys.readouterr().err
    assert contents(tmp_path, "household_train") == first
    assert main(["--out", str(tmp_path), "--num-train", "12", "--num-heldout", "0", "--replace"]) == 0
    assert len(contents(tmp_path, "household_train")) == 12


def test_somebody_elses_split_is_not_touched(tmp_path):
    theirs = tmp_path / "json_2.1.1" / "household_train" / "mine.txt"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("mine")
    with pytest.raises(EnvironmentFault, match="choose another folder"):
        generate(tmp_path, 1, 1)
    assert theirs.read_text() == "mine"


@pytest.mark.parametrize("damaged", ['{"num_train": 2, "nu', "[1]", "3"])
def test_games_with_a_damaged_manifest_are_replaced_only_if_asked(tmp_path, damaged):
    generate(tmp_path, 2, 0)
    (tmp_path / "household.json").write_text(damaged)
    with pytest.raises(EnvironmentFault, match=r"without a readable .*household.json: choose another folder"):
        generate(tmp_path, 1, 0, seed=3)
    assert len(contents(tmp_path, "household_train")) == 2
    generate(tmp_path, 1, 0, seed=3, replace=True)
    assert len(contents(tmp_path, "household_train")) == 1


def test_games_that_a_cleaned_cache_lost_are_made_again(tmp_path):
    generate(tmp_path, 4, 2, seed=5)
    games = [game.path.read_bytes() for game in find_games("household_train", tmp_path)]
    shutil.rmtree(find_games("household_train", tmp_path)[1].path.parents[1])
    generate(tmp_path, 4, 2, seed=5)
    assert [game.path.read_bytes() for game in find_games("household_train", tmp_path)] == games
    shutil.rmtree(tmp_path / "json_2.1.1")
    generate(tmp_path, 4, 2, seed=5)
    assert len(find_games("household_heldout", tmp_path)) == 2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"num_train": -1}, "-1"),
        ({"num_heldout": 1.5}, "num_heldout is 1.5; give a whole number"),
        ({"seed": "a/b"}, "seed is 'a/b'; give a whole number"),
        ({"max_receptacles": 3}, "at least 8, got 3"),
        ({"verify": "hope"}, "'hope': choose one of native, none, planner"),
        ({"verify": "planner", "level": LEVELS["many"]}, "cannot check games that ask for 4 objects"),
        ({"verify": "planner", "levels": {"standard": 1, "hardest": 1}}, "cannot check games that ask for 3 objects"),
    ],
)
def test_requests_without_sense_are_refused(tmp_path, options, said):
    with pytest.raises(EnvironmentFault, match=said):
        generate(tmp_path, **{"num_train": 1, "num_heldout": 1, **options})
    assert not list(tmp_path.iterdir())


def test_alfworld_itself_collects_the_games(made):
    from alfworld.agents.environment.alfred_tw_env import AlfredTWEnv

    folder = str(made / "json_2.1.1/household_train")
    config = {
        "dataset": {"data_path": folder, "num_train_games": -1},
        "env": {"goal_desc_human_anns_prob": 0.0, "task_types": [1, 2, 3, 4, 5, 6]},
    }
    environment = AlfredTWEnv(config, train_eval="train")
    assert sorted(environment.game_files) == [str(game.path) for game in find_games("household_train", made)]


def test_the_planner_solves_a_sample_in_no_more_steps(made):
    import textworld

    for game in find_games("household_heldout", made)[::8]:
        environment = textworld.start(str(game.path), textworld.EnvInfos(policy_commands=True))
        ours = json.loads(game.path.read_text())["walkthrough"]
        assert 0 < len(environment.reset()["policy_commands"]) <= len(ours)
    assert generator.planner_solves(game.path)


def test_checking_by_the_planner(tmp_path):
    generate(tmp_path, 2, 0, verify="planner")
    assert len(find_games("household_train", tmp_path)) == 2


def test_without_textworld_the_planner_names_its_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "textworld", None)
    with pytest.raises(MissingExtraError, match=r"pip install -e '.\[textworld\]'"):
        generate(tmp_path, 1, 0, verify="planner")


def test_two_who_ask_at_once_get_games_made_once(tmp_path, monkeypatch):
    import threading

    made, real = [], generator.make_game
    monkeypatch.setattr(generator, "make_game", lambda *a: made.append(a) or real(*a))
    askers = [threading.Thread(target=generate, args=(tmp_path, 12, 0)) for _ in range(3)]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join()
    assert len(made) == 12
    assert len(find_games("household_train", tmp_path)) == 12


def test_a_folder_that_cannot_be_written_is_the_users_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="could not be written"):
        generate(tmp_path / "file" / "games", 1, 0)


def test_a_mixture_has_its_shares_and_each_game_its_levels_horizon(tmp_path):
    mixture = {"standard": 3, "compound": 1}
    generate(tmp_path / "a", 8, 4, 5, levels=mixture)
    for split, number in (("household_train", 8), ("household_heldout", 4)):
        games = find_games(split, tmp_path / "a")
        assert Counter(level_of_game(game.id) for game in games) == {"standard": number * 3 / 4, "compound": number / 4}
    environment = NativeEnvironment(200)
    steps = {}
    for game in find_games("household_train", tmp_path / "a"):
        now, done = environment.reset(game), 0
        while not now.done:
            now, done = environment.step("look"), done + 1
        steps.setdefault(level_of_game(game.id), set()).add(done)
    assert steps == {"standard": {50}, "compound": {100}}
    # A game of a mixture is the game that its level alone has, but for its name.
    generate(tmp_path / "b", 2, 0, 5, level=LEVELS["compound"])
    alone = {game.id for game in find_games("household_train", tmp_path / "b")}
    mixed = {game.id.replace("_compound100_", "_") for game in find_games("household_train", tmp_path / "a")}
    assert len(alone) == 2 and alone <= mixed
    # The same request, in other numbers, makes nothing anew; another mixture is another request.
    before = (tmp_path / "a" / "household.json").stat().st_mtime_ns
    generate(tmp_path / "a", 8, 4, 5, levels={"standard": 0.75, "compound": 0.25})
    assert (tmp_path / "a" / "household.json").stat().st_mtime_ns == before
    with pytest.raises(EnvironmentFault, match="levels .*, not"):
        generate(tmp_path / "a", 8, 4, 5, levels={"many": 1})


def test_one_level_and_a_mixture_are_not_given_together(tmp_path):
    with pytest.raises(EnvironmentFault, match="not both"):
        generate(tmp_path, 2, 2, level=LEVELS["many"], levels={"house": 1})
    with pytest.raises(EnvironmentFault, match="not both"):
        generate(tmp_path, 2, 2, max_receptacles=8, levels={"house": 1})


def test_a_levels_folder_is_not_taken_for_a_plain_one_and_the_difference_is_named(tmp_path):
    generate(tmp_path, 6, 0)
    manifest = json.loads((tmp_path / "household.json").read_text())
    (tmp_path / "household.json").write_text(json.dumps({**manifest, "level": {"rooms": 2}}))
    with pytest.raises(EnvironmentFault, match=r'for \(level {"rooms": 2}, not none\): environment.name=native plays'):
        generate(tmp_path, 6, 0)


def test_a_folder_named_by_a_variable_is_the_one_that_is_read(tmp_path, monkeypatch):
    monkeypatch.setenv("GAMES_FOLDER", str(tmp_path))
    generate("$GAMES_FOLDER/g", 1, 0)
    assert len(find_games("household_train", "$GAMES_FOLDER/g")) == 1 and (tmp_path / "g").is_dir()


def test_who_waited_for_others_does_not_replace_what_they_made(tmp_path, monkeypatch):
    real = generator.FileLock

    class AfterOthers:
        """The lock, which others held until now."""

        def __init__(self, path):
            monkeypatch.setattr(generator, "FileLock", real)
            generate(tmp_path, 2, 0)
            self._lock = real(path)

        def __enter__(self):
            return self._lock.__enter__()

        def __exit__(self, *how):
            return self._lock.__exit__(*how)

    monkeypatch.setattr(generator, "FileLock", AfterOthers)
    with pytest.raises(EnvironmentFault, match="num_train 2, not 3"):
        generate(tmp_path, 3, 0)
    assert len(find_games("household_train", tmp_path)) == 2
