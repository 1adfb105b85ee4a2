"""Confidence intervals against published values."""

import pytest

from xrl_alignment.common.intervals import wilson_interval


def test_wilsons_interval():
    low, high = wilson_interval(8, 10)  # Wilson 1927; agrees with R's prop.test(8, 10, correct=FALSE)
    assert (round(low, 4), round(high, 4)) == (0.4902, 0.9433)
    assert wilson_interval(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize("trials", range(1, 100))
def test_an_interval_holds_its_rate(trials):
    """Error bars are distances from the rate to the bounds, and matplotlib takes no negative ones."""
    for successes in range(trials + 1):
        low, high = wilson_interval(successes, trials)
        assert 0 <= low <= successes / trials <= high <= 1
