"""The report: reads what a run leaves behind, half-written files included, and is one whole page by itself."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from xrl_alignment.dagger.replay import Transition, shard_name, write_shard
from xrl_alignment.report import (
    find_runs,
    main,
    read_metrics,
    read_rounds,
    running_success,
    sample_steps,
    thin,
    write_report,
)

WORLD_LOG = """
-----
ROUND: {round}
SUCCESS: {solved}
ADDITIONAL SUCCESS: {solved}
FAIL: {failed}
TOTAL: 4
ACCURACY: {accuracy:.2f}
TIME: 12.50 s
-----

"""
SUMMARY = {
    "untrained": {"success": 0.0, "success_admissible": 0.05, "games": 20, "mean_steps": None, "per_task_type": {}},
    "bc": {
        "success": 0.75,
        "success_admissible": 0.85,
        "interval": [0.53, 0.89],
        "games": 20,
        "mean_steps": 11.2,
        "per_task_type": {"look_at_obj_in_light": {"success": 0.5, "success_admissible": 0.625}},
    },
    "wall_seconds": 512.25,
    "games_hash": "abc123",
    "versions": {"torch": "2.13.0"},
    "note": "<script>alert(1)</script>",
}


def make_run(run: Path) -> Path:
    (run / "state").mkdir(parents=True)
    (run / "logging_results").mkdir()
    blocks = [WORLD_LOG.format(round=r, solved=r + 1, failed=3 - r, accuracy=(r + 1) / 4) for r in range(2)]
    (run / "logging_results" / "world.log").write_text("".join(blocks))
    lines = [{"step": s, "tag": "train/loss", "value": 2.0 - s, "time": 0.0} for s in (0, 1, 1)]
    lines[-1]["value"] = 0.5
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (run / "state" / "metrics.jsonl").write_text(text + '{"step": 2, "tag": "tra')
    episodes = [{"won": True, "assisted": True}, {"won": True, "assisted": False}, {"won": False, "assisted": False}]
    (run / "state" / "episodes.jsonl").write_text("".join(json.dumps(e) + "\n" for e in episodes))
    (run / "config.yaml").write_text("run:\n  seed: 42\n")
    steps = [
        Transition(
            np.full((8, 8, 3), i, np.uint8), f"room\n> step {i}", f"expert {i}", f"policy <{i}>", f"do {i}", "ok"
        )
        for i in range(13)
    ]
    write_shard(run / "state" / "buffer" / shard_name(0, 3, len(steps)), steps, {})
    return run


class WellFormed(HTMLParser):
    """Checks that tags nest, and notes what the page would load from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.sources: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.tags.add(tag)
        self.sources += [value for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "img", "!doctype"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_page_is_whole_and_loads_nothing(tmp_path: Path) -> None:
    make_run(tmp_path / "demo" / "bc")
    make_run(tmp_path / "demo" / "dpo")
    path = write_report(tmp_path / "demo", SUMMARY)
    assert path == tmp_path / "demo" / "report.html"
    page = path.read_text(encoding="utf-8")
    checker = WellFormed()
    checker.feed(page)
    assert not checker.open
    assert checker.sources
    assert all(source.startswith("data:image/") for source in checker.sources)
    assert "script" not in checker.tags
    assert "http" not in re.sub(r"data:image/[^\"]+", "", page)
    for expected in (
        "0.75",
        "0.53 to 0.89",
        "0.85",
        "0.62",
        "512.250",
        "abc123",
        "versions.torch",
        "policy &lt;12&gt;",
    ):
        assert expected in page, expected
    assert page.count("Rounds: ") == 2


def test_same_run_same_bytes(tmp_path: Path) -> None:
    make_run(tmp_path / "run")
    first = write_report(tmp_path / "run", SUMMARY).read_bytes()
    assert write_report(tmp_path / "run", SUMMARY).read_bytes() == first


def test_an_empty_run_still_has_a_report(tmp_path: Path) -> None:
    assert "EMAC+ run" in write_report(tmp_path, {}).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("content", "reason"), [("", "is not JSON"), ("[1]", "is no summary: it holds a list"), ("{", "is not JSON")]
)
def test_a_summary_that_is_none_is_named(tmp_path: Path, content: str, reason: str) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "figures.json").write_text(content)
    with pytest.raises(ValueError, match=f"figures.json {reason}"):
        main([str(tmp_path), "--summary", str(tmp_path / "figures.json")])


def test_a_folder_without_runs_and_a_damaged_journal_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no run in "):
        main([str(tmp_path)])
    (tmp_path / "state").mkdir()
    (tmp_path / "state/metrics.jsonl").write_bytes(b"\xff\n")
    with pytest.raises(ValueError, match="metrics.jsonl is damaged"):
        main([str(tmp_path)])


def test_missing_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no run directory .*nowhere"):
        write_report(tmp_path / "nowhere", {})


def test_readers(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    assert find_runs(run) == {"run": run}
    assert find_runs(tmp_path) == {"run": run}
    assert read_metrics(run) == {"train/loss": [(0, 2.0), (1, 0.5)]}
    assert [(r["ROUND"], r["ACCURACY"], r["TIME"]) for r in read_rounds(run)] == [(0, 0.25, 12.5), (1, 0.5, 12.5)]
    assert running_success(run) == [(1.0, 0.0), (2.0, 0.5), (3.0, 1 / 3)]
    assert running_success(run, window=1) == [(1.0, 0.0), (2.0, 1.0), (3.0, 0.0)]
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
    write_report(run, {})


@pytest.mark.parametrize("count", [0, 1, 399, 400, 401, 5000])
def test_thin_keeps_mean_and_bound(count: int) -> None:
    points = [(float(i), float(i % 7)) for i in range(count)]
    thinned = thin(points, 400)
    assert len(thinned) <= 400
    assert (count <= 400) == (thinned == points)


def test_opens_in_a_browser(tmp_path: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no chromium installed")
    path = write_report(make_run(tmp_path / "run"), SUMMARY)
    picture = tmp_path / "page.png"
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
    flags += [
        "--disable-background-networking",
        "--disable-component-update",
        f"--user-data-dir={tmp_path / 'profile'}",
    ]
    command = [browser, *flags, "--window-size=1200,2400", f"--screenshot={picture}", path.as_uri()]
    subprocess.run(command, check=True, capture_output=True, timeout=240)
    assert picture.stat().st_size > 20_000
