"""Reading a run directory, half-written files included."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.xrl_alignment.show.report.runs import make_run
from xrl_alignment.show.report.episodes import read_episodes
from xrl_alignment.show.report.run_data import (
    ReportError,
    find_runs,
    read_metrics,
    read_rounds,
    sample_steps,
    thin,
)


def test_readers(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    assert find_runs(run) == {"run": run}
    assert find_runs(tmp_path) == {"run": run}
    assert read_metrics(run) == {"train/loss": [(0, 2.0), (1, 0.5)]}
    assert [(r["ROUND"], r["ACCURACY"], r["TIME"]) for r in read_rounds(run)] == [(0, 0.25, 12.5), (1, 0.5, 12.5)]
    assert [index for index, _ in sample_steps(run, 4)] == [0, 4, 8, 12]
    assert sample_steps(run, 1)[0][1].executed == "do 0"


def test_runs_of_one_folder_keep_their_full_names(tmp_path: Path) -> None:
    first, second = make_run(tmp_path / "bc" / "one"), make_run(tmp_path / "bc" / "two")
    assert find_runs(tmp_path) == {"bc/one": first, "bc/two": second}


def test_damaged_shard_is_left_out(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    shard = next((run / "state" / "buffer").glob("*.h5"))
    shard.write_bytes(shard.read_bytes()[:100])
    assert sample_steps(run) == []


@pytest.mark.parametrize(
    "line",
    [
        "[1]",
        "[" * 100_000,
        '{"tag": "a", "step": Infinity, "value": 1}',
        "{}",
        '{"tag": "a", "step": 1}',
        '{"tag": "a", "step": 1, "value": null}',
    ],
)
def test_lines_of_another_kind_are_damage(tmp_path: Path, line: str) -> None:
    run = make_run(tmp_path / "run")
    (run / "state" / "metrics.jsonl").write_text(f"{line}\n")
    with pytest.raises(ReportError, match="metrics.jsonl is damaged"):
        read_metrics(run)


@pytest.mark.parametrize("line", [b'{"step": 2, "tag": "tra', b"\0\0\0", b"\xff{}", b"[1]"])
def test_a_damaged_line_is_named_by_its_number(tmp_path: Path, line: bytes) -> None:
    metrics = make_run(tmp_path / "run") / "state" / "metrics.jsonl"
    metrics.write_bytes(b'{"tag": "a", "step": 1, "value": 1}\n' + line + b"\n{}\n")
    with pytest.raises(ReportError, match=r"metrics.jsonl is damaged: line 2\b(?!.*\bline 1\b)"):
        read_metrics(tmp_path / "run")


def test_an_episode_that_does_not_say_how_it_ended_is_not_solved(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    (run / "state" / "episodes.jsonl").write_text("{}\n")
    assert [episode.solved for episode in read_episodes(run)] == [False]
    for line in ("[1]", '{"round": 1e999}'):
        (run / "state" / "episodes.jsonl").write_text(f"{line}\n")
        with pytest.raises(ReportError, match="episodes.jsonl is damaged"):
            read_episodes(run)


@pytest.mark.parametrize("count", [0, 1, 399, 400, 401, 5000])
def test_thin_keeps_mean_and_bound(count: int) -> None:
    points = [(float(i), float(i % 7)) for i in range(count)]
    thinned = thin(points, 400)
    assert len(thinned) <= 400
    assert (count <= 400) == (thinned == points)
