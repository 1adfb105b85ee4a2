"""Bars on a terminal, lines elsewhere."""

import io

import pytest

from lavis.common import progress
from lavis.common.progress import Bar
from xrl_alignment.common.progress import GameProgress, RoundProgress

STATUS = {"round": 1, "num_rounds": 3, "played_in_round": 2, "num_envs": 4, "solved": 1}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_lines_come_every_ten_seconds_and_at_the_end(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    stream = io.StringIO()
    with Bar("games", stream=stream) as bar:
        for done, at in ((1, 4.0), (2, 8.0), (3, 12.0), (4, 16.0), (9, 17.0), (10, 18.0)):
            now[0] = at
            bar.show(done, 10, "fine")
    assert stream.getvalue().splitlines() == [
        "fine, 3 of 10 games",  # too few have been counted to know
        "fine, 10 of 10 games, 18 s in all",
    ]


def test_a_terminal_shows_a_bar_with_the_time_left():
    stream = Terminal()
    with Bar("games", stream=stream) as bar:
        bar.show(3, 10, "fine")
        bar.say("[a] line above")
        bar.show(10, 10, "done")
    text = stream.getvalue()
    assert "10/10" in text and "done" in text and "[a] line above" in text and "games, about" not in text


@pytest.mark.parametrize(("stream", "left"), [(io.StringIO(), "about 360 s left"), (Terminal(), "0:06:00")])
def test_what_a_resume_reads_from_the_journal_says_nothing_of_the_time_left(monkeypatch, stream, left):
    """A hundred episodes in a second, then a minute for a client: the rest was said to take seconds, not minutes."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(progress.sys, "stdout", stream)
    with RoundProgress() as bar:
        for played in range(1, 101):
            now[0] += 0.01
            bar.update({**STATUS, "round": 0, "num_envs": 50, "played_in_round": played, "recovering": True})
        now[0] += 60.0
        for played in range(101, 115):
            bar.update({**STATUS, "round": 0, "num_envs": 50, "played_in_round": played})
            now[0] += 10.0
    assert left in stream.getvalue()


def test_rounds_are_counted_from_one_and_episodes_over_all(capsys, monkeypatch):
    monkeypatch.setattr(progress, "LINE_EVERY_S", -1.0)
    with RoundProgress() as bar:
        bar.update(STATUS)
    assert capsys.readouterr().out.startswith("round 2/3, 1 solved by the policy, 6 of 12 episodes")


def test_a_finished_run_is_shown_as_complete(capsys):
    with RoundProgress() as bar:
        bar.update({**STATUS, "round": 2, "played_in_round": 4})
    assert "12 of 12 episodes" in capsys.readouterr().out


def test_games_are_counted_beyond_what_was_expected(capsys):
    with GameProgress(1) as bar:
        bar.advance(True)
        bar.advance(False)
    assert [line.partition(", 0 s")[0] for line in capsys.readouterr().out.splitlines()] == [
        "1 solved, 1 of 1 games",
        "1 solved, 2 of 2 games",
    ]


def test_help_of_the_expert_and_missing_labels_are_told(capsys, monkeypatch):
    monkeypatch.setattr(progress, "LINE_EVERY_S", -1.0)
    with RoundProgress() as bar:
        bar.update({**STATUS, "won": 4, "missing_labels": 0.25})
    said = capsys.readouterr().out
    assert said.startswith("round 2/3, 1 solved by the policy, 3 won with the expert's help, 25% of labels missing, ")


@pytest.mark.parametrize(
    ("cost", "said"), [(None, "5 calls of the teacher, "), (1.234, "5 calls of the teacher for 1.2340 USD, ")]
)
def test_the_teachers_cost_is_told(capsys, monkeypatch, cost, said):
    monkeypatch.setattr(progress, "LINE_EVERY_S", -1.0)
    with RoundProgress() as bar:
        bar.update({**STATUS, "expert": {"total": {"calls": 5, "cost_usd": cost}}})
    assert said in capsys.readouterr().out
