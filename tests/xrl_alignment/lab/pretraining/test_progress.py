from __future__ import annotations

import json

import pytest

from xrl_alignment.lab.pretraining.progress import drawn, read_progress, success_by_hours


def test_a_point_counts_the_last_games_of_a_level_alone(tmp_path):
    pools = [{"many": [0, 30]}, {"many": [5, 10], "large": [1, 1]}, {}, {"many": [30, 30], "large": [9, 9]}]
    lines = [json.dumps({"pool": pool, "seconds": 1800, "own": own}) + "\n" for pool, own in enumerate(pools, 1)]
    killed = json.dumps({"pool": 2, "seconds": 9, "own": {"many": [9, 10]}}) + "\n"  # before its state was saved
    # A full disk cut the last line.
    (tmp_path / "progress.jsonl").write_text("".join([lines[0], killed, *lines[1:]]) + '{"pool": 5, "seconds": 18')
    read = read_progress(tmp_path / "progress.jsonl")
    assert len(read) == 4 and read_progress(tmp_path / "none.jsonl") == []
    curves = success_by_hours(read)
    # Until the second pool 5 of 40; then the first pool's thirty are not needed any more. `large` has too few.
    assert curves == {"many": [(1.0, 5 / 40), (2.0, pytest.approx(35 / 40))]}
    picture = drawn(read)
    assert b">many</text>" in picture and b"large" not in picture and picture == drawn(read)
    assert b"</svg>" in drawn([])
