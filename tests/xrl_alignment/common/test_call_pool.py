"""Calls at once, in threads that nobody has to wait for."""

import subprocess
import sys
import threading
import time

import pytest

from xrl_alignment.common.call_pool import CallPool

PATIENCE_S = 60  # far more than anything here takes, also on a busy machine


def test_results_and_failures_reach_who_waits():
    pool = CallPool(4)
    assert [future.result(PATIENCE_S) for future in [pool.submit(pow, 2, number) for number in range(20)]][-1] == 2**19
    with pytest.raises(ZeroDivisionError):
        pool.submit(divmod, 1, 0).result(PATIENCE_S)
    pool.shutdown()
    with pytest.raises(RuntimeError, match="closed"):
        pool.submit(pow, 2, 2)


def test_so_many_at_once_and_no_more():
    pool, together = CallPool(3), threading.Barrier(3, timeout=PATIENCE_S)
    for future in [pool.submit(together.wait) for _ in range(3)]:
        future.result(PATIENCE_S)
    running, most, lock = [], [], threading.Lock()

    def call():
        with lock:
            running.append(1)
            most.append(len(running))
        time.sleep(0.01)
        with lock:
            running.pop()

    for future in [pool.submit(call) for _ in range(12)]:
        future.result(PATIENCE_S)
    assert max(most) <= 3
    pool.shutdown()


def test_what_has_not_begun_is_cancelled():
    pool, begun, go_on = CallPool(1), threading.Event(), threading.Event()
    first = pool.submit(lambda: begun.set() or go_on.wait(PATIENCE_S))
    second = pool.submit(go_on.wait, PATIENCE_S)
    assert begun.wait(PATIENCE_S)
    pool.shutdown()
    assert second.cancelled()
    go_on.set()
    assert first.result(PATIENCE_S)


def test_a_call_that_hangs_does_not_hold_the_program():
    program = "import time; from xrl_alignment.common.call_pool import CallPool; CallPool(1).submit(time.sleep, 3600)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=240)
