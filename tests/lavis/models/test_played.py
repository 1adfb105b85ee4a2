"""Which games weights have trained on: what a run's checkpoint says, and files that say nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from lavis.datasets.shards import ShardFolder
from lavis.models import Blip2Emac
from lavis.models.convert import convert
from lavis.models.convert import main as convert_main
from lavis.models.played import PlayedGames, games_of_weights, played_by_file
from xrl_alignment.builders.student import model_section


@pytest.fixture
def annotated(annotation_folder: Path) -> tuple[Path, set[str]]:
    """An annotation file, and the games that its entries name."""
    path = annotation_folder / "annotations.json"
    return path, {entry["game"] for entry in json.loads(path.read_text())}


def test_a_checkpoint_names_the_games_of_its_data_and_of_the_weights_it_began_with(
    make_runner, shard_folder: Path, annotated, tmp_path: Path
) -> None:
    path, others = annotated
    storage = "datasets.alfworld_cap.build_info.annotations.train.storage"
    make_runner("first", **{"run.max_epoch": 1}).train()
    first = tmp_path / "first/checkpoint_0.pth"
    known = played_by_file(first)
    assert known is not None and known.all_named and set(known.games) == ShardFolder(shard_folder).games()
    assert len(known.games) == 3 and known.environments == ("stored games",)
    make_runner("second", **{"run.max_epoch": 1, "model.pretrained": first, storage: f"[{path}]"}).train()
    later = played_by_file(tmp_path / "second/checkpoint_0.pth")
    assert later is not None and set(later.games) == {*known.games, *others}
    assert games_of_weights({"pretrained": str(first), "load_pretrained": False}).games == ()
    for name in ("converted.safetensors", "converted.pth"):  # a figure on these games is still no held-out one
        convert(str(first), tmp_path / name, "native")
        assert played_by_file(tmp_path / name) == known
    convert(str(tmp_path / "converted.safetensors"), tmp_path / "again.pth", "lavis")
    assert played_by_file(tmp_path / "again.pth") == known


def test_data_that_do_not_name_their_games_are_not_called_unseen(make_runner, annotated, tmp_path: Path) -> None:
    path, _ = annotated
    entries = json.loads(path.read_text())
    path.write_text(json.dumps([{key: entry[key] for key in entry if key != "game"} for entry in entries]))
    storage = {"datasets.alfworld_cap.build_info.annotations.train.storage": path}
    make_runner("a", **{"run.max_epoch": 1, **storage}).train()
    known = played_by_file(tmp_path / "a/checkpoint_0.pth")
    assert known is not None and not known.all_named


def test_files_that_say_nothing(tmp_path: Path) -> None:
    torch.save({"model": {}}, tmp_path / "older.pth")
    torch.save([1], tmp_path / "list.pth")
    (tmp_path / "broken.pth").write_bytes(b"PK")
    (tmp_path / "student.safetensors").write_bytes(b"")
    for number, games in enumerate((7, "abc", [1], [["a/b"]], None, {"a/b": 1})):
        torch.save({"played": {"games": games, "environments": []}}, tmp_path / f"{number}.pth")
        assert played_by_file(tmp_path / f"{number}.pth") is None
    for name in ("older.pth", "list.pth", "broken.pth", "student.safetensors", "missing.pth", ""):
        assert played_by_file(tmp_path / name) is None


def test_a_run_that_continues_from_weights_that_say_nothing_knows_not_all_its_games(tmp_path: Path) -> None:
    """Their games were read as none, and an evaluation on them was called held out."""
    for name, content in (("older.pth", {"model": {}, "base_hash": "0"}), ("foreign.pth", {"model": {}})):
        torch.save(content, tmp_path / name)
    for name, file in (("adapter", "adapter_config.json"), ("noted", "emac_base.json"), ("base", "config.json")):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text('{"played": {"games": ["a/b"]}}')

    def played(key: str, name: str, **section: str) -> PlayedGames:
        return games_of_weights({key: str(tmp_path / name), **section})

    for key in ("pretrained", "ref_pretrained"):
        for name in ("older.pth", "foreign.pth", "adapter"):
            assert played(key, name) == PlayedGames(unknown=(name,)) and not played(key, name).all_named
        assert played(key, "noted").games == ("a/b",) and played(key, "noted").all_named
        assert played(key, "base") == games_of_weights({key: "owner/instructblip"}) == PlayedGames()
        assert not played(key, "base", path="owner/model").all_named  # the base is the other folder
        merged = played(key, "noted").merged(played(key, "older.pth"))
        torch.save({"played": merged.as_dict()}, tmp_path / "later.pth")
        assert played(key, "later.pth") == merged
    for key in ("path", "llm_model", "base_model", "vit_weights", "llm_weights"):
        assert played(key, "noted").games == ("a/b",) and played(key, "adapter").unknown == ("adapter",)
        assert played(key, "foreign.pth") == played(key, "base") == PlayedGames()


def test_an_exported_language_model_says_its_games(tmp_path: Path) -> None:
    model = Blip2Emac.from_config(model_section({}))
    older = {"model": model.trainable_state_dict(), "base_hash": model.base_hash()}
    torch.save(older, tmp_path / "older.pth")
    assert convert_main([str(tmp_path / "older.pth"), str(tmp_path / "llm"), "--to", "llm", "--model", "tiny"]) == 0
    assert played_by_file(tmp_path / "llm") == PlayedGames(unknown=("older.pth",))
    assert convert_main(["none", str(tmp_path / "plain"), "--to", "llm", "--model", "tiny"]) == 0
    assert played_by_file(tmp_path / "plain") is None


def test_the_students_that_ship_say_which_splits_they_have_read(tmp_path: Path) -> None:
    """A run that starts from one of them says it of its own checkpoint, too."""
    for name in ("student", "student_official", "student_looks"):
        played = games_of_weights(model_section({"model_type": name}))
        assert played.splits == ("household_train", "train")
        assert played.among(["a/b"], "train") == ["a/b"] and not played.among(["a/b"], "valid_seen")
    assert played_by_file("tiny/student_smollm.safetensors").splits == ("household_train", "train")
    parts = games_of_weights(model_section({"model_type": "demo"}))  # its frozen parts
    assert parts.splits == ("household_train",)
    convert("lavis/models/tiny/student.safetensors", tmp_path / "again.pth", "lavis")
    assert played_by_file(tmp_path / "again.pth") == played_by_file("tiny/student.safetensors")
