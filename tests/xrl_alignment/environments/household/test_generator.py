"""The generator: ALFWorld's format, solvable games, the same games from the same request, disjoint rooms."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from xrl_alignment.common.errors import EnvironmentFault
from xrl_alignment.environments import choose_games
from xrl_alignment.environments.games import find_games
from xrl_alignment.environments.household.generator import (
    generate,
    generator,
    main,
    names,
    official_domain,
    official_grammar,
)
from xrl_alignment.environments.household.rooms import room_numbers
from xrl_alignment.environments.native.game import NativeGame
from xrl_alignment.language.sentences import TASK_TYPES

SENTENCES = {  # as they stand in the official games
    "pick_and_place_simple": (r"put a (\w+) in (\w+)", r"put some (\w+) on (\w+)"),
    "look_at_obj_in_light": (r"look at (\w+) under the (desklamp)", r"examine the (\w+) with the (desklamp)"),
    "pick_clean_then_place_in_recep": (r"put a clean (\w+) in (\w+)", r"clean some (\w+) and put it in (\w+)"),
    "pick_heat_then_place_in_recep": (r"put a hot (\w+) in (\w+)", r"heat some (\w+) and put it in (\w+)"),
    "pick_cool_then_place_in_recep": (r"put a cool (\w+) in (\w+)", r"cool some (\w+) and put it in (\w+)"),
    "pick_two_obj_and_place": (r"put two (\w+) in (\w+)", r"find two (\w+) and put them in (\w+)"),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """48 training and 24 held-out games."""
    out = tmp_path_factory.mktemp("made")
    generate(out, 48, 24, seed=5)
    return out


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
    assert rooms[0] <= set(room_numbers(heldout=False))
    assert rooms[1] <= set(room_numbers(heldout=True))
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


def test_task_sentences_are_alfworlds(made):
    used = set()
    for game in find_games("household_train", made):
        kind, wanted, _, target, _ = game.id.split("/")[0].split("-")
        sentence = re.search(r"Your task is to: (.*?)\.\"", json.loads(game.path.read_text())["grammar"])[1]
        matches = [re.fullmatch(pattern, sentence) for pattern in SENTENCES[kind]]
        match = next(filter(None, matches))
        assert match.groups() == (wanted.lower(), target.lower())
        used.add((kind, matches.index(match)))
    assert len(used) == 12


def test_trajectory_file_describes_the_task(made):
    game = find_games("household_train", made)[0]
    trajectory = json.loads((game.path.parent / "traj_data.json").read_text())
    assert trajectory["task_type"] == "look_at_obj_in_light"
    assert trajectory["task_id"] == game.id.split("/")[1]
    assert trajectory["pddl_params"]["toggle_target"] == "DeskLamp"
    assert trajectory["pddl_params"]["object_target"] == game.id.split("-")[1]
    assert trajectory["scene"]["scene_num"] in room_numbers(heldout=False)


def test_same_request_same_games_and_more_games_keep_the_first(made, tmp_path):
    generate(tmp_path, 60, 6, seed=5)
    before, after = contents(made, "household_train"), contents(tmp_path, "household_train")
    assert len(after) == 60
    assert before.items() <= after.items()


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
    generate(tmp_path, 12, 0)
    assert first.items() <= contents(tmp_path, "household_train").items()


def test_games_made_otherwise_are_replaced_only_if_asked(tmp_path, capsys):
    generate(tmp_path, 6, 0)
    first = contents(tmp_path, "household_train")
    with pytest.raises(EnvironmentFault, match=r"num_train 6, not 12; seed 0, not 3\): choose another folder"):
        generate(tmp_path, 12, 0, seed=3)
    with pytest.raises(EnvironmentFault, match="num_train 6, not 2000"):
        choose_games("household", "household_train", data=str(tmp_path), num=3)
    assert main(["--out", str(tmp_path), "--num-train", "12", "--num-heldout", "0"]) == 2
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


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"num_train": -1}, "-1"),
        ({"max_receptacles": 3}, "at least 8, got 3"),
        ({"verify": "hope"}, "'hope': choose one of native, planner, none"),
    ],
)
def test_requests_without_sense_are_refused(tmp_path, options, said):
    with pytest.raises(EnvironmentFault, match=said):
        generate(tmp_path, **{"num_train": 1, "num_heldout": 1, **options})
    assert not list(tmp_path.iterdir())


def test_program(tmp_path, capsys):
    assert main(["--out", str(tmp_path), "--num-train", "6", "--num-heldout", "6", "--max-receptacles", "24"]) == 0
    assert "12 of 12 games" in capsys.readouterr().out
    assert len(find_games("household_heldout", tmp_path)) == 6
    assert main(["--out", str(tmp_path), "--max-receptacles", "2"]) == 2
    assert capsys.readouterr().err.startswith("error: max_receptacles")


def test_names_are_the_demanglers():
    from alfworld.agents.utils.misc import Demangler

    class Info:
        def __init__(self, id_):
            self.id = id_.lower()

    ids = [
        f"{kind}_bar__{sign}_0{i}_dot_10" for kind in ("Mug", "Desk") for sign in ("plus", "minus") for i in range(7)
    ]
    ids += ["Sink_bar__plus_01_dot_00_bar_SinkBasin", "Bathtub_bar__plus_01_dot_00_bar_BathtubBasin"]
    demangler = Demangler(game_infos={id_: Info(id_) for id_ in ids})
    assert names(ids) == {id_: demangler.demangle_alfred_name(id_.lower()) for id_ in ids}


def test_domain_and_grammar_are_those_of_the_official_games(alfworld_data):
    official = json.loads(next((alfworld_data / "json_2.1.1/valid_seen").glob("*/*/game.tw-pddl")).read_text())
    assert official_domain() == official["pddl_domain"]
    assert official_grammar() == re.sub(
        r"(Your task is to: )[^\"]*\.\"", lambda m: m[1] + 'UNKNOWN GOAL."', official["grammar"]
    )


def test_predicates_are_those_of_the_official_games(made, alfworld_data):
    def predicates(paths):
        return set(re.findall(r"\n\s*\((\w+) ", "".join(p.read_text().replace("\\n", "\n") for p in paths)))

    official = predicates(list((alfworld_data / "json_2.1.1/valid_seen").glob("*/*/game.tw-pddl"))[:20])
    ours = predicates(Path(made).glob("json_2.1.1/*/*/*/game.tw-pddl"))
    assert ours <= official


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
