"""Game files: what is refused and how, the cache of many."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from alfworld_native.engine import gamefile
from alfworld_native.engine.gamefile import GRAMMARS, file_stamp, fingerprint, read_game, read_games, read_json
from alfworld_native.engine.pddl import rows
from alfworld_native.errors import EnvironmentFault
from alfworld_native.games import find_games


@pytest.fixture
def game(household_data, tmp_path) -> Path:
    """A copy of a game file that a test may spoil."""
    source = find_games("household_train", data=household_data)[0].path
    target = tmp_path / "split" / "task" / "trial" / "game.tw-pddl"
    target.parent.mkdir(parents=True)
    shutil.copy(source, target)
    return target


def change(path: Path, key: str, old: str, new: str) -> None:
    data = json.loads(path.read_text())
    assert old in data[key]
    data[key] = data[key].replace(old, new, 1)
    path.write_text(json.dumps(data))


def test_a_game_is_read(game):
    text = read_game(game)
    assert text.task.startswith("Your task is to: ") and text.goal.startswith("(:goal (and")
    facts = list(rows(text.facts))
    assert len(facts) == len(set(facts)) and all(word == word.lower() for fact in facts for word in fact)


def test_the_fingerprint_does_not_see_the_task(game):
    grammar = read_json(game)["grammar"]
    assert fingerprint(grammar) in GRAMMARS
    assert fingerprint(grammar.replace("Your task is to: ", "Your task is to: please ")) == fingerprint(grammar)
    assert fingerprint(grammar.replace("You arrive at", "You come to")) not in GRAMMARS


def test_what_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        read_game(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    for read in (read_game, file_stamp):
        with pytest.raises(FileNotFoundError, match="game file .*file/game.tw-pddl does not exist"):
            read(tmp_path / "file" / "game.tw-pddl")
    with pytest.raises(EnvironmentFault, match="is a folder"):
        read_game(tmp_path)


@pytest.mark.parametrize("content", [b"", b"\x89PNG\r\n", b'{"grammar": "'])
def test_truncated_or_foreign(tmp_path, content):
    path = tmp_path / "game.tw-pddl"
    path.write_bytes(content)
    with pytest.raises(EnvironmentFault, match=r"game\.tw-pddl is truncated or no JSON"):
        read_game(path)


@pytest.mark.parametrize("content", ["[]", '{"grammar": 3, "pddl_domain": ""}', '{"pddl_domain": "", "grammar": ""}'])
def test_json_but_no_game(tmp_path, content):
    path = tmp_path / "game.tw-pddl"
    path.write_text(content)
    with pytest.raises(EnvironmentFault, match="is no ALFWorld game: it lacks .*pddl_problem"):
        read_game(path)


def test_a_huge_or_nested_file_is_no_game(tmp_path, monkeypatch):
    path = tmp_path / "game.tw-pddl"
    path.write_text("[" * 100_000)
    with pytest.raises(EnvironmentFault, match="truncated or no JSON"):
        read_json(path)
    monkeypatch.setattr(gamefile, "MAX_BYTES", 1000)
    with pytest.raises(EnvironmentFault, match="larger than 1000 bytes"):
        read_json(path)


def test_an_unsolvable_game(game):
    data = json.loads(game.read_text())
    game.write_text(json.dumps({**data, "solvable": False}))
    with pytest.raises(EnvironmentFault, match="marked as unsolvable"):
        read_game(game)


@pytest.mark.parametrize(
    ("key", "old", "new", "message"),
    [
        ("pddl_domain", "(not (holdsAny ?a))", "", "PDDL domain .*not one of ALFWorld's"),
        ("grammar", "You arrive at", "You come to", "PDDL grammar .*not one of ALFWorld's"),
        ("grammar", "Your task is to: ", "Your task is to: #look# ", "not one line of plain text"),
        ("grammar", "Your task is to: ", 'Your task is to: a."}], "b": [{"rhs": "{1}', "could run code"),
        ("pddl_problem", "(receptacleType", "(recepticleType", "predicate 'recepticletype' .* unknown"),
        ("pddl_problem", "(inReceptacle ", "(inReceptacle twice ", "needs 2 argument"),
        ("pddl_problem", "(:goal", "(:gaol", r"no \(:init"),
        ("pddl_problem", "(inReceptacle ?", "(insideOf ?", "'insideof'.*not understood"),
    ],
)
def test_what_was_not_proven_is_refused(game, key, old, new, message):
    change(game, key, old, new)
    with pytest.raises(EnvironmentFault, match=message) as fault:
        read_game(game)
    assert str(game) in str(fault.value)


@pytest.fixture
def many(household_data, monkeypatch) -> list[Path]:
    monkeypatch.setattr(gamefile, "_WORTH_A_CACHE", 3)
    return [game.path for game in find_games("household_train", data=household_data)]


def same(a, b) -> bool:
    return {path: (x.task, x.goal, dict(x.facts)) for path, x in a.items()} == {
        path: (x.task, x.goal, {name: tuple(ids) for name, ids in x.facts.items()}) for path, x in b.items()
    }


def test_many_games_come_from_the_cache(many, tmp_path, monkeypatch):
    first = read_games(many, tmp_path)
    assert list(first) == many and len(list(tmp_path.iterdir())) == 1
    monkeypatch.setattr(gamefile, "read_game", lambda path: pytest.fail(f"{path} was read again"))
    assert same(read_games(many, tmp_path), first)
    assert same(read_games(many[:5], tmp_path), {path: first[path] for path in many[:5]})


def test_a_changed_game_is_read_again(game, tmp_path, monkeypatch):
    monkeypatch.setattr(gamefile, "_WORTH_A_CACHE", 1)
    assert "please" not in read_games([game], tmp_path)[game].task
    change(game, "grammar", "Your task is to: ", "Your task is to: please ")
    assert read_games([game], tmp_path)[game].task.startswith("Your task is to: please ")
    assert read_games([game], tmp_path)[game].task.startswith("Your task is to: please ")


@pytest.mark.parametrize(
    "content", ["", "{", "[1]", '{"format": 1, "words": ["a"], "games": {"x": [[1, 2], [7], {}]}}']
)
def test_a_spoilt_cache_is_made_again(many, tmp_path, content):
    first = read_games(many, tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_text(content)
    assert same(read_games(many, tmp_path), first)
    assert len(file.read_text()) > 1000


def test_a_cache_that_cannot_be_written_only_costs_time(many, tmp_path):
    (tmp_path / "file").write_text("")
    assert len(read_games(many, tmp_path / "file")) == len(many)
