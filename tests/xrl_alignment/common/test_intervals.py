"""Confidence intervals against published values."""

import pytest

from xrl_alignment.common.intervals import wilson_interval


def test_wilsons_interval():
    low, high = wilson_interval(8, 10)  # Wilson 1927; agrees with R's prop.test(8, 10, correct=FALSE)
    assert (round(low, 4), round(high, 4)) == (0.4902, 0.9433)
    assert wilson_interval(0, 0) == (0.0, 1.0)
    assert wilson_interval(0, 20)[0] == pytest.approx(0, abs=1e-12) and wilson_interval(20, 20)[1] == pytest.approx(1)
