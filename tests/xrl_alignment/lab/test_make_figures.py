"""The README's figures: badges say what pyproject.toml says, figures are whole SVG files, the episode is animated."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest
from PIL import Image

from lavis.common.errors import ConfigError, MissingFileError
from lavis.common.paths import REPO_ROOT
from tests.xrl_alignment.show.dashboard.runs import make_run_directory
from xrl_alignment.lab.make_figures import badge, badges, main
from xrl_alignment.show.play.card import HEIGHT, WIDTH


def test_the_badges_in_docs_are_true():
    made = badges()
    assert len(made) == 3
    for name, content in made.items():
        assert (REPO_ROOT / "docs" / name).read_bytes() == content, f"{name}: run xrl_alignment.lab.make_figures"
    assert b"1 &lt; 2" in badge("a", "1 < 2") and ElementTree.fromstring(badge("a", "1 < 2")) is not None


def test_the_animated_episode_is_small():
    with Image.open(REPO_ROOT / "docs" / "episode.gif") as gif:
        assert gif.n_frames > 3 and gif.info["loop"] == 0
        assert gif.size == (WIDTH, HEIGHT), "run xrl_alignment.lab.make_figures"
    assert (REPO_ROOT / "docs" / "episode.gif").stat().st_size <= 3_000_000


def test_figures_are_made_from_a_run(tmp_path, household_data, capsys, monkeypatch):
    monkeypatch.setenv("ALFWORLD_DATA", str(household_data))
    run, out = make_run_directory(tmp_path / "run"), tmp_path / "figures"
    options = ["model.model_type=tiny", "policy.num_beams=1", "policy.max_length=8", "run.max_steps=5"]
    games = ["--env", "native", "--split", "household_heldout", "--game", "1"]
    main([str(run), "--out", str(out), *games, "--options", *options])
    for name in ("learning_curve.svg", "loop.svg", "badge-python.svg"):
        assert ElementTree.parse(out / name).getroot().tag.endswith("svg")
    with Image.open(out / "episode.gif") as gif:
        assert gif.n_frames > 3
    assert "steps" in capsys.readouterr().out


def test_a_folder_without_a_run_is_named(tmp_path):
    with pytest.raises(MissingFileError, match="no run in "):
        main([str(tmp_path)])


def test_without_a_policy_nothing_is_written(tmp_path, household_data, monkeypatch):
    monkeypatch.setenv("ALFWORLD_DATA", str(household_data))
    run = make_run_directory(tmp_path / "run")
    games = ["--env", "native", "--split", "household_heldout"]
    with pytest.raises(ConfigError, match="nobody plays as policy"):
        main([str(run), "--out", str(tmp_path / "out"), *games])
    assert not (tmp_path / "out").exists()
