"""The page: whole by itself, the same for the same run, and written from half-finished runs as well."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.browser import Browser, axe_script, running_browser, violations
from tests.xrl_alignment.show.dashboard.runs import by_looks, make_run_directory
from tests.xrl_alignment.show.report.runs import make_run
from tests.xrl_alignment.show.report.test_original import make_logs
from xrl_alignment.agents.experts.llm.accounting import Account, Prices, Usage
from xrl_alignment.show.report.page import write_report
from xrl_alignment.show.report.run_data import ReportError, read_costs

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
    assert page.count("<h2>Rounds: ") == 2


def cells(page: str, heading: str) -> list[list[str]]:
    """The rows of the table under a heading, its head included."""
    table = page.partition(f"<h2>{heading}")[2].partition("</table>")[0]
    return [re.findall(r"<t[hd][^>]*>([^<]*)<", row) for row in table.split("<tr>")[1:]]


def test_the_teachers_cost_by_round(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    assert read_costs(run) == []  # no language model, no table
    account = Account(prices=Prices(prompt=2.0, cached=0.5, completion=10.0))
    account.keep(run / "state" / "expert_calls.jsonl")
    for round, usage in ((0, Usage(1, 1000, 400, 100)), (2, Usage(1, 500, 0, 10))):
        account.start_round(round)
        with account.attempt(prompt=9999, completion=256) as settle:
            settle(usage)
    account.close()
    metrics = run / "state" / "metrics.jsonl"
    line = {"step": 1, "tag": "expert/cache_hits", "value": 7, "time": 0.0}
    metrics.write_text(metrics.read_text().rpartition("\n")[0] + "\n" + json.dumps(line) + "\n")
    page = write_report(run, {}).read_text(encoding="utf-8")
    assert cells(page, "Cost of the teacher: run")[1:] == [
        ["1", "1", "1000", "400", "100", "0.0024", "–"],
        ["2", "0", "0", "0", "0", "0.0000", "7"],
        ["3", "1", "500", "0", "10", "0.0011", "–"],
        ["all", "2", "1500", "400", "110", "0.0035", "7"],
    ]


def test_it_says_what_the_agent_got(tmp_path: Path) -> None:
    page = write_report(by_looks(make_run_directory(tmp_path)), {})
    html = page.read_text(encoding="utf-8")
    assert "the agent got" in html and "by looks: text without objects and numbers" in html
    assert '<span class="untold">On the desk 1, you see a mug 1. (not' in html


def test_same_run_same_bytes(tmp_path: Path) -> None:
    make_run(tmp_path / "run")
    first = write_report(tmp_path / "run", SUMMARY).read_bytes()
    assert write_report(tmp_path / "run", SUMMARY).read_bytes() == first


def test_an_empty_run_still_has_a_report(tmp_path: Path) -> None:
    page = write_report(tmp_path, {}).read_text(encoding="utf-8")
    assert "EMAC+ run" in page and "Cost of the teacher" not in page


def test_missing_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no run directory .*nowhere"):
        write_report(tmp_path / "nowhere", {})


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with running_browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


def test_it_opens_on_phone_and_desktop_in_both_schemes(browser: Browser, tmp_path: Path) -> None:
    make_run_directory(tmp_path / "demo" / "bc")
    by_looks(make_run_directory(tmp_path / "demo" / "dpo"))
    path = write_report(tmp_path / "demo", SUMMARY)
    grounds, rows = set(), {}
    for width, dark in ((1440, False), (390, True)):
        with browser.page(width=width, dark=dark) as page:
            page.open(path.as_uri())
            page.wait("document.readyState === 'complete'")
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            grounds.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
            assert page.evaluate("[...document.images].every((image) => image.naturalWidth > 0)")
            assert page.text("main > :nth-child(2)").startswith("bc: a run; 3 games of native train")
            # Sentences in narrow columns made the page of a phone half as long again: its tables scroll sideways.
            lines = (
                "Math.max(...[...document.querySelectorAll('td')].map((cell) => cell.parentElement.offsetHeight / 22))"
            )
            assert page.evaluate(lines) < 3.5
            assert page.errors() == []
            curves = "[...document.querySelector('.charts').children].map((curve) => curve.offsetTop)"
            rows[width] = len(set(page.evaluate(curves)))
    assert rows[390] == 1 < rows[1440], "a phone scrolls from curve to curve"
    assert len(grounds) == 2, "the dark scheme has a ground of its own"


def test_accessibility_in_both_schemes(browser: Browser, tmp_path: Path) -> None:
    axe = axe_script(tmp_path)
    for name in ("bc", "dpo"):
        make_run_directory(tmp_path / "demo" / name)
    path = write_report(tmp_path / "demo", SUMMARY)
    for dark, width in ((False, 1440), (True, 390)):
        with browser.page(dark=dark, width=width) as page:
            page.open(path.as_uri())
            page.wait("document.readyState === 'complete'")
            page.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
            assert violations(page, axe) == []


def test_a_damaged_shard_costs_only_its_steps(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    shard = next((run / "state" / "buffer").glob("*.h5"))
    shard.write_bytes(shard.read_bytes()[:100])
    page = write_report(run, {}).read_text(encoding="utf-8")
    assert "Steps: " not in page and "Rounds: " in page


def test_what_a_run_says_is_no_markup(tmp_path: Path) -> None:
    run = make_run(tmp_path / "<b>run")
    (run / "config.yaml").write_text("note: '</pre><script>'\n")
    checker = WellFormed()
    checker.feed(write_report(run, {"<i>": {"success": 0.5}, "fact": "<u>"}).read_text(encoding="utf-8"))
    assert not checker.open and not checker.tags & {"b", "i", "u", "script"}


def test_the_originals_logs_alone_are_a_page(tmp_path: Path) -> None:
    path = write_report(make_logs(tmp_path / "emma"), {})
    page = path.read_text(encoding="utf-8")
    assert [row[:4] for row in cells(page, "Logs: emma")] == [
        ["trial", "solved, world.log", "slots solved", "games solved"],
        ["0", "1", "1", "1"], ["1", "2", "2", "1"], ["2", "3", "3", "1"],
    ]  # fmt: skip
    assert cells(page, "Why episodes failed: emma")[1][0] == "never found"


def test_runs_stand_side_by_side_with_what_differs(tmp_path: Path) -> None:
    first, second = make_run(tmp_path / "a" / "run"), make_run(tmp_path / "b" / "run")
    (second / "config.yaml").write_text("run:\n  seed: 43\n  output_dir: <i>\n")
    path = write_report(first, {}, second, out=tmp_path / "both.html")
    page = path.read_text(encoding="utf-8")
    assert path == tmp_path / "both.html" and not (first / "report.html").exists()
    assert [row[0] for row in cells(page, "Runs side by side")] == ["run", "run", "run (2)"]
    assert "run.seed" in page and "&lt;i&gt;" in page


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    page = write_report(run, {"dpo": {"success": 0.5}}).read_text(encoding="utf-8")
    assert "DONE is missing: the run has not ended" in page
    assert "Missing beside these figures: expert, random, untrained, bc" in page
    (run / "state" / "metrics.jsonl").unlink()
    assert "state/metrics.jsonl is missing" in write_report(run, {}).read_text(encoding="utf-8")


def test_bc_and_dpo_are_compared_game_by_game(tmp_path: Path) -> None:
    won = {"bc": {"a": True, "b": False}, "dpo": {"a": True, "b": True}}
    summary = {name: {"success": 0.5, "won": games} for name, games in won.items()}
    page = write_report(make_run(tmp_path / "run"), summary).read_text(encoding="utf-8")
    assert cells(page, "BC against DPO, game by game")[1] == ["held-out", "2", "1", "0", "1", "0", "+0.500", "1.00"]


def test_hostile_texts_of_episodes_are_text(tmp_path: Path) -> None:
    run = make_run_directory(tmp_path / "run")
    checker = WellFormed()
    page = write_report(run, {}).read_text(encoding="utf-8")
    checker.feed(page)
    assert not checker.open and "script" not in checker.tags and "Best and worst episodes" in page
    assert all(source.startswith("data:image/") for source in checker.sources)


def test_half_a_surrogate_pair_in_a_journal_or_a_folders_name_is_a_question_mark(tmp_path: Path) -> None:
    run = make_run_directory(tmp_path / os.fsdecode(b"M\xfcller"))  # Latin-1
    journal = run / "state" / "episodes.jsonl"
    journal.write_text(journal.read_text().replace("Your task is to: put a mug", "Your task is to: put a \\ud83d mug"))
    page = write_report(run, {}).read_text(encoding="utf-8")
    assert "<title>EMAC+ run: M?ller</title>" in page and "put a ? mug" in page


def test_numbers_of_a_world_log_that_cannot_be_are_told_in_a_line(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    log = run / "logging_results" / "world.log"
    log.write_text(log.read_text() + "ROUND: " + "9" * 400 + "\n")
    with pytest.raises(ReportError, match=r"world.log is damaged: ROUND: 9{20}… is too large"):
        write_report(tmp_path, SUMMARY)
    log.write_text("ROUND: 0\nSUCCESS: 9\nTOTAL: 4\n-----\nROUND: 1\nSUCCESS: 0\nTOTAL: 0.5\n")
    write_report(tmp_path, SUMMARY)  # more solved games than there are: the page is made


def test_settings_that_grow_without_end_are_shown_as_they_are_written(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / name) for name in ("one", "two")]
    lines = ["a0: &a0 {x: 1, y: 2}"] + [f"a{n}: &a{n} {{x: *a{n - 1}, y: *a{n - 1}}}" for n in range(1, 40)]
    for run, text in zip(runs, ("\n".join(lines), "a: 2026-13-45\nb: " + "[" * 5000), strict=True):
        (run / "config.yaml").write_text(text)
    assert "a39: &amp;a39" in write_report(tmp_path, SUMMARY).read_text()
