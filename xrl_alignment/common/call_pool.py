"""Network calls that end: threads that end with the program, total deadlines, answers of bounded size.

The interpreter joins the threads of `concurrent.futures.ThreadPoolExecutor` when it exits, and a thread that reads from
a socket cannot be interrupted: a slow endpoint would keep the program alive for as long as its time-out. So `CallPool`
has daemon threads.

A socket's time-out begins anew with every byte: a peer that sends one byte a second never meets it. So `CallLoop` gives
each call one deadline for everything (name, connection, headers, body), and `BoundedAnswers` bounds what it may send.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import socket
import threading
import zlib
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, TypeVar

from lavis.common.errors import ConfigError

GRACE_S = 5.0  # for a call that is late to end by itself
NAME_THREADS = 8
MAX_ANSWER = 2 << 20  # bytes; as JSON they take up to thirty times that while they are read
# A proxy of the environment (HTTP_PROXY) cannot reach the servers of this machine, and would get what they are asked:
# httpx asks these addresses without one.
_DIRECT = dict.fromkeys(("all://localhost", "all://127.0.0.1", "all://[::1]"))
_FRAMING = (b"content-encoding", b"content-length", b"content-type", b"transfer-encoding")  # of what was sent
_Answer = TypeVar("_Answer")


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
            # Those that wait are cancelled, then one mark for each thread ends it after its call.
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


class CallLoop:
    """Runs coroutines in one daemon thread for threads that wait for them; each has a deadline for all that it does."""

    def __init__(self) -> None:
        self._loop = _EventLoop()
        self._closed = threading.Event()
        threading.Thread(target=self._work, daemon=True, name="call-loop").start()

    def run(self, call: Callable[[], Awaitable[_Answer]], deadline_s: float) -> _Answer:
        """What `call()` returns.

        Raises TimeoutError after `deadline_s`, ConnectionAbortedError if the loop is closed meanwhile, and whatever
        the call raises.
        """
        if self._closed.is_set():
            raise ConnectionAbortedError("the connections are closed")

        async def within_deadline() -> _Answer:
            try:
                return await asyncio.wait_for(call(), deadline_s)
            except asyncio.TimeoutError:  # before Python 3.11 not the built-in one
                raise TimeoutError from None

        future = asyncio.run_coroutine_threadsafe(within_deadline(), self._loop)
        try:
            return future.result(deadline_s + GRACE_S)  # a call that does not notice its end is left to itself
        except concurrent.futures.CancelledError:
            raise ConnectionAbortedError("the connections were closed") from None
        except concurrent.futures.TimeoutError:  # before Python 3.11 not the built-in one
            raise TimeoutError from None
        finally:
            future.cancel()  # if it has not ended: Ctrl-C

    def close(self, *last: Callable[[], Awaitable[Any]]) -> None:
        """Cancel the calls in progress, run `last` (what closes their connections), end the thread."""
        if self._closed.is_set():
            return
        self._closed.set()

        async def end() -> None:
            calls = asyncio.all_tasks() - {asyncio.current_task()}
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, *(each() for each in last), return_exceptions=True)

        with suppress(concurrent.futures.TimeoutError):
            asyncio.run_coroutine_threadsafe(end(), self._loop).result(GRACE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _work(self) -> None:
        self._loop.run_forever()
        self._loop.close()


class _EventLoop(asyncio.SelectorEventLoop):
    """Finds names in daemon threads: asyncio's own would hold the program at its end."""

    def __init__(self) -> None:
        super().__init__()
        self._names = CallPool(NAME_THREADS)

    async def getaddrinfo(  # type: ignore[no-untyped-def]
        self, host, port, *, family=0, type=0, proto=0, flags=0
    ):
        """See `socket.getaddrinfo`."""
        return await asyncio.wrap_future(
            self._names.submit(socket.getaddrinfo, host, port, family, type, proto, flags), loop=self
        )

    def close(self) -> None:
        """Close the loop and end the threads."""
        self._names.shutdown()
        super().close()


class UnusableAnswer(Exception):
    """An answer that is not read to its end: too large, or packed in a way that was not asked for."""


class BoundedAnswers:
    """A mix-in for httpx's `AsyncClient`: the whole answer, or UnusableAnswer.

    An answer has at most `max_answer` bytes, as sent and unpacked. No redirect is followed: it would send the prompt to
    an address that nobody has named. No cookie is kept. An answer counts as JSON in UTF-8, whatever its header says:
    the header could name a codec that is none for texts.
    """

    max_answer = MAX_ANSWER

    def __init__(self, **options: Any) -> None:
        """`options` are those of httpx's `AsyncClient`. ConfigError if httpx cannot use the environment's proxy."""
        try:
            super().__init__(mounts=_DIRECT, **options)  # type: ignore[call-arg]
        except (ImportError, ValueError) as error:  # socks5:// without the package socksio; a scheme such as socks://
            raise ConfigError(f"the proxy of the environment (ALL_PROXY, HTTPS_PROXY, …): {error}") from error

    async def send(self, request: Any, *, stream: bool = False, **options: Any) -> Any:
        """See httpx's `AsyncClient.send`."""
        request.headers["Accept-Encoding"] = "identity"
        given = await super().send(request, stream=True, **{**options, "follow_redirects": False})  # type: ignore[misc]
        # The length is counted while parts come: a server may claim less than it sends.
        content = bytearray()
        try:
            async for part in given.aiter_raw():
                content += part
                if len(content) > self.max_answer:
                    raise self._too_large()
        finally:
            await given.aclose()
            self.cookies.clear()  # type: ignore[attr-defined]
        headers = [(name, value) for name, value in given.headers.raw if name.lower() not in _FRAMING]
        return type(given)(
            given.status_code,
            headers=[*headers, (b"Content-Type", b"application/json")],
            content=self._unpacked(bytes(content), given.headers.get("content-encoding", "")),
            request=request,
            extensions=given.extensions,
        )

    def _unpacked(self, content: bytes, coding: str) -> bytes:
        """`content`, which a server may have packed although it was asked not to."""
        if coding.strip().lower() in ("", "identity"):
            return content
        if coding.strip().lower() not in ("gzip", "x-gzip", "deflate"):
            raise UnusableAnswer(f"the answer is packed ({ascii(coding)[:50]}), which was not asked for")
        try:
            # httpx unpacks a part at a time as well, but older versions without a limit: 64 kB become 64 MB.
            content = zlib.decompressobj(zlib.MAX_WBITS | 32).decompress(content, self.max_answer + 1)
        except zlib.error as error:
            raise UnusableAnswer(f"the answer cannot be unpacked ({error})") from error
        if len(content) > self.max_answer:
            raise self._too_large()
        return content

    def _too_large(self) -> UnusableAnswer:
        return UnusableAnswer(f"the answer is larger than {self.max_answer >> 10:,} KiB")
