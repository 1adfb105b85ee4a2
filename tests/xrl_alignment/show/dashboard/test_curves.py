"""Curves: bounded, right in the mean, and true to a resume."""

from __future__ import annotations

import math

import pytest

from xrl_alignment.show.dashboard.curves import Curve, RunningShare


def test_a_long_curve_keeps_its_shape_in_bounded_memory():
    curve = Curve(most=100)
    for x in range(10_000):
        curve.add(x, 2.0 * x)
    points = curve.points()
    assert 50 <= len(points) <= 100
    assert all(y == pytest.approx(2 * x, rel=1e-4) for x, y in points)
    assert points[0][0] < 200 and points[-1][0] > 9_700 and curve.last == 9_999


def test_what_a_resume_repeats_replaces_what_was_there():
    curve = Curve()
    for x, y in [(0, 5), (1, 4), (2, 9), (1, 3), (2, 2)]:
        curve.add(x, y)
    assert curve.points() == [(0, 5), (1, 3), (2, 2)]


def test_numbers_that_json_does_not_know_are_left_out():
    curve = Curve()
    for y in (1.0, math.nan, math.inf, 2.0):
        curve.add(len(curve.points()), y)
    assert curve.points() == [(0, 1), (1, 2)]


def test_the_running_share_is_of_the_last_episodes():
    share = RunningShare(window=2)
    assert share.add(0, 0) is None
    assert [share.add(*pair) for pair in [(1, 2), (3, 4), (0, 1)]] == [0.5, 4 / 6, 3 / 5]
