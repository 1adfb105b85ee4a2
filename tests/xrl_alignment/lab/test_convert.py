"""Shards to LAVIS JSON and back: nothing is lost."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from lavis.common.errors import ConfigError, MissingFileError
from lavis.datasets import annotations
from lavis.datasets.shards import open_shard
from xrl_alignment.lab.collect import collect
from xrl_alignment.lab.convert import main, to_lavis, to_shards
from xrl_alignment.play.collection.plan import Plan
from xrl_alignment.runs.transitions import FIELDS, Transition, shard_name, write_shard


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(annotations, "cache_folder", lambda: tmp_path / "cache")


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    draw = np.random.default_rng(0)
    for env, steps in enumerate((2, 3)):
        items = [
            Transition(draw.integers(0, 256, (8, 8, 3), np.uint8), f"> é {env} {i}", "look", "", "inventory", "You …")
            for i in range(steps)
        ]
        write_shard(tmp_path / "shards" / shard_name(0, env, steps), items, {"game": "look_at_obj_in_light-CD/t"})
    return tmp_path / "shards"


def test_both_ways(shards: Path, tmp_path: Path) -> None:
    assert to_lavis(shards, tmp_path / "lavis") == 5
    assert to_shards(tmp_path / "lavis/annotations.json", tmp_path / "back") == 5
    assert to_shards(tmp_path / "lavis", tmp_path / "from the folder") == 5
    names = [path.name for path in sorted(shards.glob("*.h5"))]
    assert [path.name for path in sorted((tmp_path / "back").glob("*.h5"))] == names
    for name in names:
        before, after = open_shard(shards / name), open_shard(tmp_path / "back" / name)
        assert after.game == before.game and after.steps == before.steps
        for step in range(before.steps):
            one, two = before.read(step, FIELDS), after.read(step, FIELDS)
            assert np.array_equal(one.pop("image"), two.pop("image")) and one == two


def test_how_the_data_was_made_goes_along(shards: Path, tmp_path: Path) -> None:
    plan = Plan(env="household", split="household_train", tell_objects=False)
    (shards / "collection.json").write_text(json.dumps(asdict(plan)))
    main(["--to", "lavis", str(shards), str(tmp_path / "lavis")])
    main(["--to", "shards", str(tmp_path / "lavis/annotations.json"), str(tmp_path / "back")])
    told = json.loads((tmp_path / "back/collection.json").read_text())
    assert Plan(**told) == replace(plan, format="converted")
    with pytest.raises(ConfigError, match="begun with other settings .format: 'converted' there"):
        collect(plan, [], tmp_path / "back")


def test_entries_that_name_no_episode(shards: Path, tmp_path: Path) -> None:
    to_lavis(shards, tmp_path / "lavis")
    path = tmp_path / "lavis/annotations.json"
    entries = json.loads(path.read_text())
    path.write_text(json.dumps([{k: v for k, v in e.items() if k not in ("episode", "game", "step")} for e in entries]))
    to_shards(path, tmp_path / "back")
    assert [p.name for p in (tmp_path / "back").glob("*.h5")] == ["round000_env0000_steps005.h5"]


def test_two_episodes_of_a_game_that_follow_each_other_stay_two(shards: Path, tmp_path: Path) -> None:
    """As in the annotations of `collect`, which name the game alone."""
    to_lavis(shards, tmp_path / "lavis")
    path = tmp_path / "lavis/annotations.json"
    path.write_text(json.dumps([{k: v for k, v in e.items() if k != "episode"} for e in json.loads(path.read_text())]))
    to_shards(path, tmp_path / "back")
    names = sorted(file.name for file in (tmp_path / "back").glob("*.h5"))
    assert names == [path.name for path in sorted(shards.glob("*.h5"))]


def test_the_message_is_about_what_was_wrong(shards: Path, tmp_path: Path) -> None:
    for words, told in (
        (["--to", "shards", str(shards)], "holds shards already, which --to lavis reads"),
        (["--to", "shards", str(tmp_path / "absent")], "no annotation file .*absent: name a JSON file"),
        (["--to", "lavis", "--images", "x", str(shards)], "--images has no effect with --to lavis"),
        (["--to", "shards", "--image-format", "jpg", str(shards)], "--image-format has no effect with --to shards"),
    ):
        with pytest.raises((ConfigError, MissingFileError), match=f"^[^:]*{told}"):
            main([*words, str(tmp_path / "out")])


def test_folders_that_do_not_serve(shards: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no folder .*absent"):
        to_lavis(tmp_path / "absent", tmp_path / "out")
    with pytest.raises(ConfigError, match="no shards"):
        to_lavis(tmp_path, tmp_path / "out")
    with pytest.raises(ConfigError, match="is not an empty folder"):
        main(["--to", "lavis", str(shards), str(shards)])
    with pytest.raises(ConfigError, match="is the folder that this runs in: name a new one"):
        main(["--to", "lavis", str(shards), "."])
