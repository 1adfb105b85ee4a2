"""What is read of a run directory: whole, growing, half-written, damaged, of another version."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.xrl_alignment.show.dashboard.runs import GAMES, add_episode, by_looks, make_run_directory
from xrl_alignment.show.dashboard.run_files import MAX_CELLS, RunFiles


def opened(run: Path) -> RunFiles:
    files = RunFiles(run)
    files.refresh()
    return files


def test_a_whole_directory(tmp_path: Path):
    files = opened(make_run_directory(tmp_path))
    assert files.grid() == ["SWF", " F"]
    assert files.games == GAMES and list(files.memories) == [GAMES[2]] and files.environments == ["native train"]
    figures = files.figures()
    assert figures["loss"]["loss"] == [(0, 2.5), (1, 1.5)]
    assert figures["rewards"] == {"chosen": [(1, 0.2)], "rejected": [(1, -0.2)]}
    assert figures["cost"]["US dollars"] == [(1, 0.25)], "rounds are counted from 1"
    shares = ("games solved so far", "of the unsolved games played in the round")
    assert [figures["success"][name] for name in shares] == [[(1, 0.333333)]] * 2, "round 2 is in progress"
    assert files.rounds()[1] == (1, 0, 1, 3, False)
    # 2 of 2; then 0 of 1 (the agent was not asked in the other state); 0 of 2 without those that have no label; 1 of 2
    assert [y for _, y in figures["agreement"]["same action as the expert"]] == [1, 0.666667, 0.4, 0.428571]
    assert files.notices() == [] and not files.ended


def test_it_follows_a_run_and_its_resume(tmp_path: Path):
    files = opened(make_run_directory(tmp_path))
    add_episode(tmp_path, 1, 2, [("look", "look")], won=True)
    files.refresh()
    assert files.grid() == ["SWF", " FS"]
    played = files.episode(1, 2)
    assert played is not None and files.episode(2, 0) is None
    line = files.journal.read_bytes()[played.start : played.start + played.size]
    assert json.loads(line)["game"] == GAMES[2]
    journal = files.journal.read_text().splitlines(keepends=True)
    files.journal.write_text("".join(journal[:2]))  # a resume has cut off what it plays again
    files.refresh()
    assert files.grid() == ["SW"] and "success" not in files.figures(), "no round is finished"
    assert files.figures()["loss"], "the other log was not cut"


def test_a_round_is_finished_when_its_unsolved_games_are_played_or_the_run_has_ended(tmp_path: Path):
    files = opened(make_run_directory(tmp_path))
    add_episode(tmp_path, 1, 2, [("look", "look")], won=True)
    files.refresh()
    assert [round.finished for round in files.rounds()] == [True, True], "game 1 was solved before"
    assert files.figures()["success"]["games solved so far"] == [(1, 0.333333), (2, 0.666667)]
    (tmp_path / "done").mkdir()
    add_episode(tmp_path / "done", 0, 2, [])
    (tmp_path / "done" / "DONE").touch()
    assert [round.finished for round in opened(tmp_path / "done").rounds()] == [True]


def test_the_head_of_a_stored_run_is_complete(tmp_path: Path):
    run = make_run_directory(tmp_path)
    (run / "config.yaml").write_text("run:\n  enable_dpo: true\n  num_rounds: 5\n")
    files = opened(run)
    assert files.title == "DPO" and files.progress() == {
        "episodes": 4, "round": 1, "num_rounds": 5, "num_envs": 3, "played_in_round": 2, "solved": 1,
        "training_step": 2,
    }  # fmt: skip
    (run / "state" / "phase").write_text("phase 3 of 4\n")
    assert files.title == "phase 3 of 4: DPO"


def test_curves_that_were_replaced_are_read_anew(tmp_path: Path):
    """A run that goes on may have cut off half a line: its log is another file then."""
    run = make_run_directory(tmp_path)
    metrics = run / "state" / "metrics.jsonl"
    lines = [json.dumps({"tag": "train/loss", "step": step, "value": step}) + "\n" for step in range(5)]
    metrics.write_text("".join(lines) + '{"tag"')
    files = opened(run)
    assert files.figures()["loss"]["loss"][-1] == (4, 4)
    (tmp_path / "new").write_text("".join(lines[:2]))
    (tmp_path / "new").replace(metrics)
    files.refresh()
    assert files.figures()["loss"]["loss"] == [(0, 0), (1, 1)] and not files.notices()


@pytest.mark.parametrize("number", [".nan", "2026-01-01", "[5]"])
def test_a_number_of_rounds_that_is_none_is_not_shown(tmp_path: Path, number: str):
    """JSON has neither, and the whole page would stay as it is."""
    run = make_run_directory(tmp_path)
    (run / "config.yaml").write_text(f"run:\n  num_rounds: {number}\n")
    assert opened(run).progress()["num_rounds"] == 2


def test_it_says_how_many_episodes_it_has_still_to_read(tmp_path: Path):
    files = RunFiles(make_run_directory(tmp_path))
    files.refresh(lambda: False)
    assert files.reading == 4
    files.refresh()
    assert files.reading == 0


def test_an_empty_folder_says_what_is_missing(tmp_path: Path):
    files = opened(tmp_path)
    assert files.grid() == [] and files.figures() == {} and files.games == [] and files.memories == {}
    assert [notice.split(" ")[0] for notice in files.notices()] == [
        "state/episodes.jsonl",
        "state/metrics.jsonl",
        "state/games.json",
    ]


def test_damage_is_named_and_the_rest_is_shown(tmp_path: Path):
    run = make_run_directory(tmp_path)
    state = run / "state"
    good = (state / "episodes.jsonl").read_text()
    wrong = ["{", "[]", "null", '{"round": -1, "env": 0, "won": true}', '{"round": 0, "env": 99999999, "won": true}']
    (state / "episodes.jsonl").write_text("\n".join(wrong) + "\n" + good + '{"round": 1, "env"')
    (state / "metrics.jsonl").write_text('{"tag": "train/loss", "step": 1, "value": null}\n\x00\xff\n')
    (state / "memories.json").write_text("{")
    (state / "games.json").write_text('{"a": 1}')
    (state / "buffer" / "round000_env0000_steps002.h5").write_bytes(b"cut")
    files = opened(run)
    assert files.grid() == ["SWF", " F"] and files.games == [] and files.memories == {}
    text = "\n".join(files.notices())
    for name in (
        "episodes.jsonl has a line",
        "metrics.jsonl has a line",
        "memories.json cannot",
        "steps002.h5 is missing",
    ):
        assert name in text, name


@pytest.mark.parametrize("line", ['{"round": 1e999, "env": 0, "won": true}', "[" * 100_000], ids=["infinite", "nested"])
def test_a_line_that_no_run_writes_is_left_out(tmp_path: Path, line: str):
    run = make_run_directory(tmp_path)
    for name in ("episodes.jsonl", "metrics.jsonl"):
        text = (run / "state" / name).read_text()
        (run / "state" / name).write_text(f"{line}\n{text}")
    (run / "state" / "memories.json").write_text(line)
    files = opened(run)
    assert files.grid() == ["SWF", " F"] and files.figures()["loss"]["loss"] == [(0, 2.5), (1, 1.5)]
    assert files.memories == {} and "episodes.jsonl has a line that cannot be read" in "".join(files.notices())


def test_a_short_journal_does_not_ask_for_a_large_grid(tmp_path: Path):
    """These 2,000 lines made 200 MB, which every look sent anew."""
    run = make_run_directory(tmp_path)
    with open(run / "state" / "episodes.jsonl", "a") as journal:
        for round in range(2, 2_000):
            journal.write(json.dumps({"round": round, "env": 99_999, "won": False}) + "\n")
        journal.write(json.dumps({"round": 1, "env": 0, "won": True}) + "\n")
    files = opened(run)
    assert sum(map(len, files.grid())) <= MAX_CELLS
    assert files.grid()[:2] == ["SWF", "SF"], "the run's own episodes are shown"
    assert f"more than {MAX_CELLS}" in "".join(files.notices())
    assert files.episode(1_999, 99_999) is None


def test_a_journal_of_an_older_version(tmp_path: Path):
    (tmp_path / "state").mkdir()
    old = {"round": 0, "env": 0, "game": "g", "won": True, "steps": []}
    (tmp_path / "state" / "episodes.jsonl").write_text(json.dumps(old) + "\n")
    assert opened(tmp_path).grid() == ["S"]


def test_shards_are_read_only_as_long_as_there_is_time(tmp_path: Path):
    files = RunFiles(make_run_directory(tmp_path))
    files.refresh(lambda: False)
    assert "agreement" not in files.figures() and files.grid() == ["SWF", " F"]
    files.refresh()
    assert len(files.figures()["agreement"]["same action as the expert"]) == 4


def test_what_the_agent_is_told_and_shown(tmp_path: Path):
    run = make_run_directory(tmp_path)
    files = opened(run)
    assert files.told is None and files.tell_objects
    by_looks(run)
    assert files.told is not None and not files.tell_objects
    assert files.told.shows == "by looks: text without objects and numbers, rendered state without labels from near"
    for damage in ("environment: [1]", "environment: {camera: sideways}", "environment: {name: '", "&a [*a]"):
        (run / "config.yaml").write_text(damage)
        assert opened(run).told is None and opened(run).tell_objects
