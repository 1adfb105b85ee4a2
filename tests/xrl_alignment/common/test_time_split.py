"""Seconds by part."""

import time

import pytest

from xrl_alignment.common.time_split import PARTS, TimeSplit


def test_parts_add_up_and_the_rest_is_other():
    times = TimeSplit()
    for _ in range(2):
        with times.part("policy"):
            time.sleep(0.02)
    with pytest.raises(ZeroDivisionError), times.part("expert"):
        raise ZeroDivisionError
    taken = times.take(1.0)
    assert list(taken) == [*PARTS, "other"] and sum(taken.values()) == pytest.approx(1.0)
    assert 0.04 <= taken["policy"] < 1 and taken["environment"] == 0 < taken["expert"]
    assert times.take(0.5) == dict.fromkeys(PARTS, 0.0) | {"other": 0.5}
