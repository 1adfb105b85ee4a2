"""A thread pool for network calls whose threads end with the program, so that a hanging call does not delay Ctrl-C.

The interpreter joins the threads of `concurrent.futures.ThreadPoolExecutor` when it exits, and a thread that reads from
a socket cannot be interrupted: a slow endpoint would keep the program alive for as long as its time-out.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple


class _Call(NamedTuple):
    """A submitted call and the future that gets its result."""

    future: Future[Any]
    run: Callable[[], Any]


class CallPool(Executor):
    """Runs up to `size` calls at once in daemon threads; it starts a thread when a call needs one."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._waiting: SimpleQueue[_Call | None] = SimpleQueue()  # None ends one thread
        self._threads = 0
        self._lock = threading.Lock()
        self._closed = False

    def submit(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run `call(*args, **kwargs)` when a thread is free; RuntimeError after `shutdown`."""
        with self._lock:
            if self._closed:
                raise RuntimeError("the pool is closed")
            future: Future[Any] = Future()
            self._waiting.put(_Call(future, lambda: call(*args, **kwargs)))
            if self._threads < self._size:
                self._threads += 1
                threading.Thread(target=self._work, daemon=True, name=f"call-{self._threads}").start()
        return future

    def shutdown(self, wait: bool = False, *, cancel_futures: bool = True) -> None:
        """Take no more calls and cancel those that have not begun; those that run end by themselves."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            with suppress(Empty):
                while cancel_futures:
                    if item := self._waiting.get_nowait():
                        item.future.cancel()
            for _ in range(self._threads):
                self._waiting.put(None)

    def _work(self) -> None:
        while (item := self._waiting.get()) is not None:
            if not item.future.set_running_or_notify_cancel():
                continue
            try:
                item.future.set_result(item.run())
            except BaseException as error:  # who waits for the future gets it
                item.future.set_exception(error)
