"""`python -m xrl_alignment.levels`: the table of a level, made by real evaluations."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from contextlib import ExitStack
from typing import ClassVar

import numpy as np
import pytest
import torch

from alfworld_native import choose_games
from alfworld_native.household.floor_plans import floor_plan_numbers
from alfworld_native.household.frozen import HASHES
from alfworld_native.household.levels import LEVELS, GameLevel
from lavis.common.errors import ConfigError, FileError
from lavis.common.paths import REPO_ROOT
from lavis.common.program import run_program
from lavis.models.blip2_models.weights import WeightsError
from lavis.models.hf_vlm import tiny
from lavis.runners import checkpoint
from xrl_alignment.builders.student import load_student
from xrl_alignment.lab import levels
from xrl_alignment.runs.checkpoint import save_checkpoint
from xrl_alignment.settings.loading import load_config, shareable
from xrl_alignment.settings.schema import DaggerConfig


def test_a_table_is_made_once_and_written_into_its_page(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    page, out = tmp_path / "page.md", tmp_path / "out"
    page.write_text(f"before\n\n{levels.BEGIN}old\n{levels.END}\nafter\n")
    asked = ["--out", str(out), "--levels", "many", "--players", "explorer", "random", "--page", str(page)]
    assert levels.main(asked) == 0
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("\nafter\n") and "old" not in text
    assert f"| `many` | 60 | `{HASHES['many']}` |" in text
    figures = json.loads((out / "frozen-many-60-explorer.json").read_text())
    assert (figures["games"], figures["max_steps"], figures["success"]) == (60, 100, 1.0)
    assert f"| 1.00 (0.94 to 1.00), {figures['mean_steps']:.1f} steps | 0.00 (0.00 to 0.06) |" in text
    monkeypatch.setattr(levels, "play_games", lambda *asked, **options: pytest.fail("played again"))
    assert levels.main(asked) == 0 and page.read_text() == text
    with pytest.raises(pytest.fail.Exception, match="played again"):
        levels.main([*asked, "--games", "2"])  # fewer games are other figures, and take nothing's place
    (out / "frozen-many-60-explorer.json").write_text(json.dumps(figures | {"hash": "of other games"}))
    with pytest.raises(pytest.fail.Exception, match="played again"):
        levels.main(asked)


@pytest.mark.parametrize("content", [[1], None, {"player": "explorer"}, "without versions"])
def test_a_file_without_figures_is_played_again(tmp_path, content):
    asked = ["--out", str(tmp_path), "--levels", "standard", "--players", "explorer", "--games", "1", "--fresh", "7"]
    assert levels.main(asked) == 0
    file, other = tmp_path / "fresh-7-standard-1-explorer.json", tmp_path / "other-explorer.json"
    whole = json.loads(file.read_text())
    if content == "without versions":
        content = {key: value for key, value in whole.items() if key != "versions"}
    for each in (file, other):
        each.write_text(json.dumps(content))
    assert levels.main(asked) == 0 and json.loads(file.read_text()) == whole


def test_what_goes_wrong_is_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    page = tmp_path / "page.md"
    page.write_text("no marks")
    with pytest.raises(SystemExit) as end:
        asked = ["--out", str(tmp_path / "out"), "--levels", "many", "--players", "--page", str(page)]
        run_program(lambda: levels.main(asked))
    assert end.value.code == 2 and "has no lines <!-- table" in capsys.readouterr().err
    page.write_bytes("Größe".encode("latin-1"))
    with pytest.raises(FileError, match="page.md cannot be read: 'utf-8' codec can't decode"):
        levels.main(asked)
    games = choose_games("household", "household_many", num=1)
    monkeypatch.setitem(LEVELS, "many", GameLevel(max_steps=3))
    with pytest.raises(levels.UnsolvableError, match="cannot be solved in 3 steps"):
        levels.measure("many", games)


def test_fresh_games_are_new_the_same_for_all_and_kept(tmp_path, capsys):
    asked = ["--out", str(tmp_path), "--levels", "many", "standard", "--players", "explorer", "--games", "3"]

    def play(*more: str) -> dict:
        assert levels.main([*asked, "--json", str(tmp_path / "all.json"), *more]) == 0
        return json.loads((tmp_path / "all.json").read_text())["levels"]

    first, again, other = play("--fresh", "7"), play("--fresh", "7"), play("--fresh", "8")
    assert first == again and first["many"]["hash"] != other["many"]["hash"] != HASHES["many"]
    assert first["many"]["set"] == "fresh-7" and first["many"]["games"] == 3
    assert first["standard"]["players"]["explorer"]["success"] == 1.0
    card = (tmp_path / "explorer.card.md").read_text()
    assert card.count("| `many` | fresh-7 | 3 |") == card.count("| `standard` | fresh-8 | 3 |") == 1, (
        "all in the folder"
    )
    assert f"| `many` | fresh-8 | 3 | `{other['many']['hash']}` | 100 | 3 | 1.00" in card
    # Held-out rooms, which no training game has.
    heldout = set(floor_plan_numbers(heldout=True))
    games = list((tmp_path / "fresh-7").glob("*/json_2.1.1/household_heldout/*"))
    assert len(games) == 6 and all(int(game.name.rpartition("-")[2]) in heldout for game in games)


def test_any_policy_plays_by_its_name_and_results_of_other_weights_are_not_reused(tmp_path, monkeypatch):
    asked = ["--out", str(tmp_path / "out"), "--levels", "standard", "--fresh", "1", "--games", "2", "--players"]
    assert levels.main([*asked, "examples.custom_policy:WordMatchPolicy"]) == 0
    (figures,) = map(json.loads, (path.read_text() for path in (tmp_path / "out").glob("fresh-1-standard-*.json")))
    assert figures["player"] == "examples.custom_policy:WordMatchPolicy" and figures["games"] == 2
    assert len(figures["source"]) == 16, "a class that was changed is played again"
    # The student: greedy unless our rules are asked for; known by its weights.
    weights = tmp_path / "mine.safetensors"
    shipped = REPO_ROOT / "lavis" / "models" / "tiny" / "student.safetensors"
    weights.write_bytes(shipped.read_bytes())
    mine, own, ruled = (levels.player_named(name) for name in (str(weights), "student", f"{weights}+rules"))
    assert mine.identity == own.identity == {"weights": own.identity["weights"], "decoding": "greedy"}
    assert ruled.identity["weights"] == mine.identity["weights"] and "no rejected" in ruled.identity["decoding"]
    with ExitStack() as cleanup:
        policies = [player.make(cleanup).policy for player in (mine, ruled)]
    assert [(policy.skip_rejected, policy.skip_visited) for policy in policies] == [(False, False), (True, True)]
    weights.write_bytes(shipped.with_name("student_official.safetensors").read_bytes())
    assert levels.player_named(str(weights)).identity != mine.identity
    weights.write_bytes(b"")
    with pytest.raises(WeightsError, match="it is empty"):  # at once: before games are made and solved
        levels.player_named(str(weights))


def test_how_a_model_runs_is_said_for_those_that_ship_too_and_is_no_part_of_its_figures():
    asked = ["run.max_batch=7", "run.num_threads=1"]
    player = levels.player_named("student", asked)
    with ExitStack() as cleanup:
        assert player.make(cleanup).policy.max_batch == 7
    assert player.identity == levels.player_named("student").identity


def test_an_explorer_of_another_day_plays_again_and_a_card_tells_the_packages_of_each_row(tmp_path, monkeypatch):
    def asked(*which):
        return ["--out", str(tmp_path), "--fresh", "1", "--games", "1", "--players", "explorer", "--levels", *which]

    assert levels.main(asked("standard")) == 0
    monkeypatch.setattr(levels, "versions", lambda: {"python": "4.0"})
    assert levels.main(asked("standard", "many")) == 0
    card = (tmp_path / "explorer.card.md").read_text()
    assert card.count("python 4.0") == 1 and card.count("python ") == 2
    monkeypatch.setattr(levels, "_digest", lambda *files: "other")
    monkeypatch.setattr(levels, "play_games", lambda *asked, **options: pytest.fail("played again"))
    with pytest.raises(pytest.fail.Exception, match="played again"):
        levels.main(asked("standard"))


def test_weights_of_another_model_play_with_its_settings(tmp_path, capsys):
    def made(path, options):
        model, _ = load_student(load_config(DaggerConfig, None, options).model, torch.device("cpu"))
        config = shareable(load_config(DaggerConfig, None, options))
        return str(save_checkpoint(path, model=model, config=config))

    def policy_of(*asked):
        with ExitStack() as cleanup:
            return levels.player_named(*asked).make(cleanup).policy

    # A run's checkpoint names its model's settings; others may be given, and figures depend on them.
    tiny_run = made(tmp_path / "tiny.pth", ["model.model_type=tiny", "model.max_txt_len=200"])
    policy = policy_of(tiny_run)
    assert policy.model.max_txt_len == 200 and policy.model.llm_proj.in_features == 64  # `student` has 96
    assert policy_of(tiny_run, ["model.max_txt_len=300"]).model.max_txt_len == 300
    assert levels.player_named(tiny_run, ["model.max_txt_len=300"]).identity["options"] == "model.max_txt_len=300"
    # Of a run that showed its model other things than the levels do, the figures say so.
    assert "trained on" not in levels.player_named(tiny_run).identity
    untold = made(tmp_path / "untold.pth", ["model.model_type=tiny", "environment.tell_objects=false"])
    shown = "text without objects, rendered state with labels"
    assert levels.player_named(untold).identity["trained on"] == shown
    assert f"untold.pth was trained on {shown}; here it is given text, rendered" in capsys.readouterr().out
    # `train.py` names its model's settings, too.
    offline = dict.fromkeys(checkpoint.TYPES, {}) | {"config": {"model": {"model_type": "tiny", "max_txt_len": 150}}}
    offline |= {key: torch.load(tiny_run, weights_only=True)[key] for key in ("model", "base_hash")}
    offline |= dict.fromkeys(("epoch", "batches", "global_batch", "accum_grad_iters"), 1)
    offline |= {"arch": "blip2_emac", "random": []}
    torch.save(offline, tmp_path / "offline.pth")
    assert policy_of(str(tmp_path / "offline.pth")).model.max_txt_len == 150
    # A model of the hub needs its folder: it is not taken from a file.
    folder = tiny.make("smolvlm", tmp_path / "hub")
    place = f"model.path={folder}"
    hub_run = made(tmp_path / "hub.pth", ["model.arch=hf_vlm", place, "model.lora_rank=4"])
    with pytest.raises(ConfigError, match="is of a model of the hub: say where it is"):
        levels.player_named(hub_run)
    asked = ["--out", str(tmp_path / "out"), "--levels", "standard", "--fresh", "1", "--games", "1", "--players"]
    assert levels.main([*asked, hub_run, "--options", place]) == 0
    (figures,) = (json.loads(path.read_text()) for path in (tmp_path / "out").glob("fresh-1-standard-*.json"))
    assert figures["options"] == place and figures["games"] == 1


class Silent:
    """A policy that does not say what it reads; it walks about, and notes what it is asked."""

    prompts: ClassVar[list[str]] = []

    def act(self, observations, normalise=None):
        assert not any(len(seen.admissible_commands) or np.any(seen.image) for seen in observations), "text alone"
        self.prompts += [seen.prompt for seen in observations]
        return [f"go to cabinet {len(self.prompts) % 3}" for _ in observations]

    def close(self):
        """Nothing to close."""


def test_a_class_is_given_what_it_declares_and_its_card_says_how_it_answers(tmp_path):
    players = [f"{__name__}:Silent", "examples.custom_policy:WordMatchPolicy"]
    asked = ["--out", str(tmp_path), "--levels", "standard", "--fresh", "1", "--games", "2", "--players", *players]
    assert levels.main(asked) == 0
    silent, chooses = (
        next(path.read_text() for path in tmp_path.glob("*.card.md") if name in path.name)
        for name in ("Silent", "WordMatchPolicy")
    )
    assert "Single trial, free text, " in silent and "chosen from the admissible commands" in chooses
    assert max(map(len, Silent.prompts)) > 3000, "a class is told the whole episode"


def test_an_endpoints_address_is_not_published():
    """Cards and files had all of it: user, password, and a key in the path."""
    one, other = (levels.player_named(f"gpt@https://me:pass@host:81/v1?key={key}", []) for key in ("abc", "abd"))
    assert one.name == "gpt@host:81" and "pass" not in str(one.identity) and "abc" not in str(one.identity)
    assert one.identity != other.identity, "figures of another address are not taken for its own"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--players", "nobody"], "unknown player 'nobody'"),
        (["--players", "no.module:Here"], "there is no module"),
        (["--players", "gpt@ftp://host"], "unknown player"),
        (["--players", str(REPO_ROOT)], "is a folder"),
        (["--options", "policy.skip_rejected=true"], "all players see the same and decode greedily"),
        (["--options", "run.num_envs=3"], "use model.…, run.device"),
        (["--players", "explorer", "--options", "run.max_batch=3"], "no effect: none of --players is a model of ours"),
        (["--players", "student", "--options", "model.max_txt_len=9"], "none of --players is a file of weights"),
        (["--games", "61"], "a frozen test set has 60"),
        (["--games", "-1"], "must be 0 or more"),
        (["--json", str(REPO_ROOT)], "--json=.* cannot be written"),
        (["--heat-map", str(REPO_ROOT)], "--heat-map=.* cannot be written"),
    ],
)
def test_what_no_player_is_and_no_number(arguments, said, tmp_path):
    with pytest.raises(ConfigError, match=said):
        levels.main(["--out", str(tmp_path), "--levels", "many", *arguments])


def test_a_heat_map_shows_what_transfers(tmp_path):
    asked = ["--out", str(tmp_path), "--levels", "many", "standard", "--players", "explorer", "random", "--fresh", "3"]
    assert levels.main([*asked, "--games", "2", "--heat-map", str(tmp_path / "map.svg")]) == 0
    texts = [text.text for text in ElementTree.parse(tmp_path / "map.svg").iter("{http://www.w3.org/2000/svg}text")]
    assert texts[:2] == ["many", "standard"] and texts[2:5] == ["explorer", "1.00", "1.00"]
    assert texts[5] == "random" and len(texts) == 8
