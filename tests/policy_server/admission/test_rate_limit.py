from __future__ import annotations

import pytest

from policy_server.admission.rate_limit import RateLimiter
from policy_server.refusals import RequestRefused


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_caller_has_a_burst_and_then_an_average():
    clock = Clock()
    limiter = RateLimiter(rate_per_s=2.0, burst=3, clock=clock)
    for _ in range(3):
        limiter.take("a")
    with pytest.raises(RequestRefused) as caught:
        limiter.take("a")
    assert (caught.value.status, caught.value.retry_after_s) == (429, 1)
    limiter.take("b")  # another's bucket is another's
    clock.now += 0.5
    limiter.take("a")
    with pytest.raises(RequestRefused):
        limiter.take("a")
    clock.now += 1000
    for _ in range(3):  # never more than the burst, however long the silence was
        limiter.take("a")
    with pytest.raises(RequestRefused):
        limiter.take("a")


def test_rate_zero_is_no_limit():
    limiter = RateLimiter(0.0, 1)
    for _ in range(100):
        limiter.take("a")
