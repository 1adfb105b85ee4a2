"""A sample of the proof that the native engine equals TextWorld's, and that the proof can fail."""

from __future__ import annotations

import json
import re
import subprocess
from itertools import islice
from pathlib import Path

import pytest

from alfworld_native.engine import actions
from alfworld_native.engine.game import NativeGame
from alfworld_native.engine.world import World, load_world
from alfworld_native.errors import EnvironmentFault
from alfworld_native.games import find_games
from alfworld_native.prove import transcripts
from alfworld_native.prove.__main__ import main
from alfworld_native.prove.oracle import Oracle, shortcuts
from lavis.common.errors import ConfigError
from lavis.common.paths import REPO_ROOT
from lavis.common.program import run_program


def run(*arguments: str | Path) -> int:
    """The program, in this process and without a cache."""
    return main(["--workers", "0", "--no-cache", *map(str, arguments)])


def test_official_games(alfworld_data, capsys):
    """A game costs 0.3 s and a step 2 ms with the shortcuts: few games, long scripts."""
    assert run("--data", alfworld_data, "--games", 5, "--steps", 130, "--seed", 1) == 0
    games, steps, mismatches = map(int, re.findall(r"\d+", capsys.readouterr().out))
    assert games == 5 and steps >= 600 and mismatches == 0


def cooking(world: World) -> list[str] | None:
    """Commands that bring about every state of food which `examine` tells apart; None where the room lacks a thing."""
    lies_in = {thing: place for place, things in world.contents.items() for thing in things}
    able = world.able
    fruits = able["sliceable"] & able["pickupable"] & able["heatable"] & able["coolable"] & able["cleanable"]
    fruits = [thing for thing in sorted(fruits) if thing in lies_in]
    knives = [thing for thing, kind in sorted(world.type_of.items()) if kind == "knifetype" and thing in lies_in]
    appliances = [sorted(names) for names in (world.cleaning, world.heating, world.cooling)]
    if len(fruits) < 2 or not knives or not all(appliances):
        return None
    name, knife = world.names, knives[0]
    sink, microwave, fridge = (name[names[0]] for names in appliances)
    table = next(name[place] for place in world.location_of if world.accepts(place, knife))
    commands = []
    for fruit in fruits[:2]:
        x, k, home = name[fruit], name[knife], name[lies_in[fruit]]
        where = name[lies_in[knife]] if fruit == fruits[0] else table
        commands += [f"go to {where}", f"open {where}", f"take {k} from {where}", f"go to {home}", f"open {home}"]
        commands += [f"slice {x} with {k}", f"examine {k}", f"go to {table}", f"move {k} to {table}", "look"]
        commands += [f"go to {home}", f"take {x} from {home}", f"examine {x}"]
        heat = [f"go to {microwave}", f"heat {x} with {microwave}", f"examine {x}"]
        cool = [f"go to {fridge}", f"cool {x} with {fridge}", f"examine {x}", "inventory"]
        clean = [f"go to {sink}", f"clean {x} with {sink}", f"examine {x}"]
        commands += heat + cool + clean + heat if fruit == fruits[0] else clean + cool
        commands += [f"go to {table}", f"move {x} to {table}", "look"]
    return commands


def test_every_state_of_food(alfworld_data):
    """A random walk rarely slices and then picks up: these texts are asked for on purpose."""
    texts = set()
    plans = ((g, cooking(load_world(g.path))) for g in find_games("train", data=alfworld_data, seed=0))
    for game, commands in islice(((game, plan) for game, plan in plans if plan), 2):
        native, oracle = NativeGame.load(game.path), Oracle()
        with shortcuts():
            assert native.reset() == oracle.reset(game.path).text
            for command in commands:
                answer = oracle.step(command)
                assert native.step(command) == answer.text
                assert native.admissible_commands() == answer.commands
                assert (native.won, native.facts()) == (answer.won, answer.facts)
                texts.add(re.sub(r"\w+ \d+", "it", answer.text))
    states = ("sliced", "hot sliced", "cool sliced", "clean sliced", "cool and clean sliced", "hot and clean sliced")
    assert texts >= {f"This is a {words} it." for words in states}


def test_generated_games(household_data):
    assert run("--data", household_data, "--games", 4, "--steps", 40) == 0


def test_all_versions_and_a_folder_of_any_layout(household_data, tmp_path, capsys):
    """A game also in the texts of the other versions (`put X in/on Y`, no `help`); two files cannot be played."""
    source = find_games("household_train", data=household_data)[0].path
    (tmp_path / "game.tw-pddl").write_bytes(source.read_bytes())
    data = json.loads(source.read_text())
    for folder, content in (("a", {**data, "grammar": data["grammar"] + "\n"}), ("b", {**data, "solvable": False})):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "game.tw-pddl").write_text(json.dumps(content))
    page = tmp_path / "page.md"
    assert run("--data", tmp_path, "--all", "--steps", 60, "--other-versions", 1, "--out", page) == 0
    out, text = capsys.readouterr().out, page.read_text()
    assert "3 games, 183 steps compared, 0 mismatches" in out and "1 of 3 games at hand were played" in text
    assert "1 not played: its PDDL grammar (fingerprint" in text and "1 not played: is marked as unsolvable" in text
    for version, dialect in (
        ("0.4, official games", "move"),
        ("0.4.0 to 0.4.2, package", "move"),
        ("0.2.2 to 0.3.5, package", "put"),
    ):
        assert f"| {version} | {dialect} | 1 | 61 | 0 |" in text
    for path in tmp_path.rglob("game.tw-pddl"):
        path.write_text("{}")
    with pytest.raises(EnvironmentFault, match="none of 3 games can be played: is no ALFWorld game"):
        run("--data", tmp_path, "--all")


def test_a_difference_is_found_and_shown(household_data, monkeypatch, capsys):
    monkeypatch.setitem(transcripts.WEIGHTS, "inventory", 1000.0)
    monkeypatch.setitem(actions._ALWAYS_AND_HELP, "inventory", (lambda state: "You carry nothing.",))
    assert run("--data", household_data, "--games", 1, "--steps", 40) == 1
    out = capsys.readouterr().out
    assert "MISMATCH" in out and "'You carry nothing.'" in out and "textworld: 'You are" in out


def test_transcripts_are_kept_and_compared_again(household_data, tmp_path, monkeypatch, capsys):
    arguments = ["--workers", "0", "--data", str(household_data), "--games", "3", "--steps", "20"]
    arguments += ["--cache", str(tmp_path), "--out", str(tmp_path / "page.md")]
    assert main(arguments) == 0
    (file,) = tmp_path.glob("*.jsonl")
    lines = file.read_text().splitlines(keepends=True)
    assert len(lines) == 3
    file.write_text(lines[0] + lines[1] + lines[2][:50])  # a crash while the last one was written
    assert main(arguments) == 0
    assert len(file.read_text().splitlines()) == 4
    monkeypatch.setattr(transcripts, "_record", lambda job: pytest.fail("TextWorld was asked again"))
    assert main(arguments) == 0
    assert "3 games, 63 steps compared, 0 mismatches" in capsys.readouterr().out
    page = (tmp_path / "page.md").read_text()
    assert "| **all** | | **3** | **63** | **0** |" in page and "`look`" in page
    assert re.search(r"^Finished on \d{4}-\d\d-\d\d\.", page, re.MULTILINE)
    (command,) = re.findall(r"`(sha256sum .*?)`", page)
    summed = subprocess.run(["sh", "-c", command], cwd=REPO_ROOT, capture_output=True, text=True, check=True).stdout
    assert f"fingerprint `{summed[:12]}`" in page
    key, game, rows = json.loads(lines[0])
    file.write_text(json.dumps([key, game, [[*rows[0][:1], "other text", *rows[0][2:]], *rows[1:]]]) + "\n" + lines[1])
    monkeypatch.undo()
    assert main(arguments) == 1


@pytest.mark.parametrize("wrong", [("--games", 0), ("--games", -3), ("--steps", -1)])
def test_a_proof_of_nothing_is_refused(household_data, wrong):
    with pytest.raises(ConfigError, match=r"at least 1 game, and no negative number"):
        run("--data", household_data, *wrong)


def test_a_page_that_cannot_be_written_is_told_before_games_are_played(household_data, tmp_path):
    with pytest.raises(ConfigError, match="--out=.* cannot be written"):
        run("--data", household_data, "--out", tmp_path)


def test_no_games(tmp_path, capsys):
    with pytest.raises(SystemExit) as end:
        run_program(lambda: run("--data", tmp_path))
    assert end.value.code == 2
    line = capsys.readouterr().err
    assert f"error: no game.tw-pddl below {tmp_path}: get the official games with `alfworld-download`" in line
    assert "ALFWORLD_DATA" in line and line.count("\n") == 1
