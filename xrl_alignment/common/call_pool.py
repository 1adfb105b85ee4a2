"""Threads for calls over a network. They end with the program, so a call that hangs does not keep Ctrl-C waiting.

`concurrent.futures.ThreadPoolExecutor` joins its threads at the interpreter's end, and a thread that reads from a
socket cannot be told to stop: a slow endpoint would hold the program for as long as its time-out.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any


class CallPool(Executor):
    """Runs up to `size` calls at once in daemon threads, which are started as they are needed."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._waiting: SimpleQueue = SimpleQueue()
        self._threads = 0
        self._lock = threading.Lock()
        self._closed = False

    def submit(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future:
        """Run `call(*args, **kwargs)` when a thread is free; RuntimeError after `shutdown`."""
        with self._lock:
            if self._closed:
                raise RuntimeError("the pool is closed")
            future: Future = Future()
            self._waiting.put((future, call, args, kwargs))
            if self._threads < self._size:
                self._threads += 1
                threading.Thread(target=self._work, daemon=True, name=f"expert-{self._threads}").start()
        return future

    def shutdown(self, wait: bool = False, *, cancel_futures: bool = True) -> None:
        """Take no more calls and drop those that have not begun; those on their way are left to end by themselves."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            with suppress(Empty):
                while cancel_futures:
                    future, *_ = self._waiting.get_nowait()
                    future.cancel()
            for _ in range(self._threads):
                self._waiting.put(None)

    def _work(self) -> None:
        while (item := self._waiting.get()) is not None:
            future, call, args, kwargs = item
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(call(*args, **kwargs))
            except BaseException as error:  # whoever waits for the future gets it
                future.set_exception(error)
