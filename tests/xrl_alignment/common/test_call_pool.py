"""Calls at once, in threads that nobody has to wait for; calls with a deadline."""

import asyncio
import subprocess
import sys
import threading
import time
from functools import partial

import httpx
import pytest

from lavis.common.errors import ConfigError
from tests.file_server import CONTENT, FileServer
from xrl_alignment.common.call_pool import BoundedAnswers, CallLoop, CallPool

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


async def forever():
    while True:
        await asyncio.sleep(0.01)


async def stubborn():
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            continue


async def divide(by):
    return 6 / by


def test_a_call_in_the_loop_gives_its_result_or_its_error():
    loop = CallLoop()
    assert loop.run(lambda: divide(2), PATIENCE_S) == 3
    with pytest.raises(ZeroDivisionError):
        loop.run(lambda: divide(0), PATIENCE_S)
    loop.close()


def test_a_deadline_ends_a_call_and_not_the_others(monkeypatch):
    monkeypatch.setattr("xrl_alignment.common.call_pool.GRACE_S", 0.2)
    loop, pool = CallLoop(), CallPool(4)
    for call in (forever, stubborn):
        other = pool.submit(loop.run, lambda: asyncio.sleep(0.5, "done"), PATIENCE_S)
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            loop.run(call, 0.1)
        assert time.monotonic() - began < PATIENCE_S
        assert other.result(PATIENCE_S) == "done"
    loop.close(), pool.shutdown()


def test_closing_ends_calls_in_progress_and_the_thread():
    before, closed = set(threading.enumerate()), []
    loop, pool = CallLoop(), CallPool(1)
    (thread,) = set(threading.enumerate()) - before

    async def last():
        closed.append(True)

    waiting = pool.submit(loop.run, forever, PATIENCE_S)
    while not waiting.running():
        time.sleep(0.01)
    loop.close(last)
    with pytest.raises(ConnectionAbortedError):
        waiting.result(PATIENCE_S)
    with pytest.raises(ConnectionAbortedError):
        loop.run(forever, 1)
    loop.close(last)
    thread.join(PATIENCE_S)
    assert closed == [True] and not thread.is_alive()
    pool.shutdown()


def test_a_server_of_this_machine_is_asked_without_a_proxy(monkeypatch):
    for variable in ("HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")  # where nothing listens
    for variable in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(variable, raising=False)

    class Client(BoundedAnswers, httpx.AsyncClient):
        max_answer = len(CONTENT)

    client, loop = Client(), CallLoop()
    with FileServer() as server:
        for host in ("127.0.0.1", "localhost"):
            url = server.url.replace("127.0.0.1", host)
            assert loop.run(partial(client.get, url), PATIENCE_S).content == CONTENT
    with pytest.raises(httpx.ConnectError):  # others still through the proxy
        loop.run(partial(client.get, "http://example.invalid/"), PATIENCE_S)
    loop.close(client.aclose)


@pytest.mark.parametrize("proxy", ["socks://127.0.0.1:9", "socks5://127.0.0.1:9"])
def test_a_proxy_that_cannot_be_used_is_one_line(monkeypatch, proxy):
    class Client(BoundedAnswers, httpx.AsyncClient):
        pass

    monkeypatch.setenv("ALL_PROXY", proxy)
    monkeypatch.setitem(sys.modules, "socksio", None)  # as where it is not installed
    with pytest.raises(ConfigError, match="the proxy of the environment .*: (Using SOCKS|Unknown scheme)"):
        Client()


def test_a_name_that_is_never_found_does_not_hold_the_program():
    program = """
import asyncio, socket, time
from xrl_alignment.common.call_pool import CallLoop
socket.getaddrinfo = lambda *_: time.sleep(3600)
async def ask():
    await asyncio.get_running_loop().getaddrinfo("nowhere", 80)
try:
    CallLoop().run(ask, 0.2)
except TimeoutError:
    print("late")
"""
    ended = subprocess.run([sys.executable, "-c", program], check=True, timeout=240, capture_output=True, text=True)
    assert ended.stdout == "late\n"
