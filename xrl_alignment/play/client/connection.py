"""The client's connection to its server: one HTTP connection, and around it waiting, retrying and giving up."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from urllib.parse import urlsplit

from tenacity import RetryCallState, Retrying, retry_if_exception_type, wait_exponential
from tenacity.nap import sleep_using_event

from lavis.common.errors import ConfigError, EmacError
from xrl_alignment.play.client.report import ClientReport
from xrl_alignment.wire.messages import md5_hex

_FIRST_DELAY_S, _LONGEST_DELAY_S = 0.1, 5.0  # between two attempts: doubled each time
_CONNECT_S = 10.0


class ClientError(EmacError, OSError):
    """The server cannot be reached or refuses what it is sent; the text says what to do."""


class Unreachable(OSError):
    """No connection could be opened, so nothing was sent."""


class ClientStopped(Exception):
    """Another thread has asked this worker to end."""


class SessionLost(Exception):
    """The server does not know this session: it was restarted, or has closed the session because it was silent."""


class ServerLost(Exception):
    """The server went away and stayed away."""


class _NoAnswer(Exception):
    """An attempt without an answer.

    `waited_s` is how long a server that could be reached was waited for, `retry_after_s` how long it wants us to wait
    (0: it did not say).
    """

    def __init__(self, why: str, waited_s: float, retry_after_s: float = 0.0) -> None:
        super().__init__(why)
        self.waited_s = waited_s
        self.retry_after_s = retry_after_s


class Connection:
    """One keep-alive HTTP connection; checks the MD5 of every reply."""

    def __init__(self, server_url: str, token: str = "") -> None:
        """Raises ConfigError for a URL that is not `http://host:port`, or a token that no HTTP header can hold.

        Connects at the first `post`.
        """
        try:
            url = urlsplit(server_url)
            host, port = (url.hostname or "") if url.scheme == "http" else "", url.port or 80
        except ValueError as error:  # a port that is no number
            raise ConfigError(f"server URL {server_url!r}: {error}") from error
        if not host:
            raise ConfigError(f"server URL must look like http://host:port, not {server_url!r}")
        if not all("!" <= character <= "~" for character in token):
            raise ConfigError("the token (--token or EMAC_TOKEN) holds characters that none has: ASCII without spaces")
        try:
            self._http = http.client.HTTPConnection(host, port, timeout=_CONNECT_S)
        except http.client.InvalidURL as error:  # a space in the name
            raise ConfigError(f"server URL {server_url!r}: {error}") from error
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def post(self, body: bytes, content_type: str) -> tuple[int, bytes, float]:
        """Post `body`; returns (status, reply, seconds to wait before a retry, 0 if the server does not say).

        Waits for the reply without a limit (the server may be training); a server that dies is noticed.
        Raises OSError or HTTPException when the connection breaks, ClientError for a server of another kind.
        """
        if self._http.sock is None:
            self._connect()
        headers = {**self._headers, "Content-Type": content_type, "MD5": md5_hex(body)}
        self._http.request("POST", "/", body, headers)
        response = self._http.getresponse()
        reply = response.read()
        claimed, retry_after = response.headers.get("MD5"), response.headers.get("Retry-After", "")
        if response.status == 200 and claimed is None:
            raise ClientError(f"{self._http.host}:{self._http.port} does not answer like a dagger server (no MD5)")
        if response.status == 200 and claimed != md5_hex(reply):
            raise ConnectionError("the reply was damaged in transfer")
        # RFC 9110 allows a date in Retry-After as well; this server sends seconds.
        return response.status, reply, float(retry_after) if retry_after.isdecimal() else 0.0

    def _connect(self) -> None:
        try:
            self._http.connect()  # http.client sets TCP_NODELAY
        except (socket.gaierror, UnicodeError) as error:  # no such name, or one that cannot be: `a..b`
            raise ClientError(f"no host is called {self._http.host}: check --host") from error
        except OSError as error:
            raise Unreachable(str(error)) from error
        # Replies are waited for without a limit: the server may be training. Probes notice within two minutes that its
        # machine has gone (30 s of silence, then six probes, 10 s apart).
        connection = self._http.sock
        connection.settimeout(None)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 6)):
            if hasattr(socket, option):  # Linux; other systems keep their own intervals
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)

    def close(self) -> None:
        """Close; the next `post` opens a new connection."""
        self._http.close()

    def interrupt(self) -> None:
        """From another thread: make a `post` that waits fail now."""
        connection = self._http.sock  # read once: the other thread may close it meanwhile
        try:
            if connection is not None:
                connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # it had failed already


class RetryingConnection:
    """A connection that waits for its server, retries, and gives up after `patience_s`."""

    def __init__(self, server_url: str, *, token: str, patience_s: float, report: ClientReport) -> None:
        self.url = server_url
        self.bytes_sent = 0
        self._token = token
        self._connection = Connection(server_url, token)
        self._patience_s = patience_s
        self._report = report
        self._stop = threading.Event()
        self._run_is_over = False

    def exchange(
        self, body: bytes, content_type: str, *, resend: bool = True, patience_s: float | None = None
    ) -> bytes:
        """Post `body` and return the reply; waits through refused connections and 503.

        With `resend` a request whose connection broke is sent again (v2: the server recognises it); without it that
        raises ServerLost. A server that stays away raises ClientError, or ServerLost if `patience_s` is given. A server
        that was there, but took its time before it went away, has not stayed away: that time does not count.
        """
        patience = self._patience_s if patience_s is None else patience_s
        waited_s = 0.0

        def failure_of(state: RetryCallState) -> _NoAnswer:
            failure = state.outcome.exception() if state.outcome else None
            assert isinstance(failure, _NoAnswer)  # no other exception is retried
            return failure

        def gives_up(state: RetryCallState) -> bool:  # before a pause that would last longer than the patience
            nonlocal waited_s
            waited_s += failure_of(state).waited_s
            return (state.seconds_since_start or 0.0) - waited_s + state.upcoming_sleep >= patience

        def pause(state: RetryCallState) -> float:  # what the server asks for, else exponential backoff
            backoff = wait_exponential(multiplier=_FIRST_DELAY_S, max=_LONGEST_DELAY_S)
            return failure_of(state).retry_after_s or backoff(state)

        def report_waiting(state: RetryCallState) -> None:
            if state.attempt_number > 1:  # the first retry is silent: perhaps only an idle connection was closed
                self._report.waiting(f"waiting for the server at {self.url} ({failure_of(state)})")

        retrying = Retrying(
            retry=retry_if_exception_type(_NoAnswer),
            wait=pause,
            stop=gives_up,
            sleep=sleep_using_event(self._stop),
            before_sleep=report_waiting,
            reraise=True,
        )
        try:
            return retrying(self._attempt, body, content_type, resend)
        except _NoAnswer as error:
            if patience_s is not None:
                raise ServerLost(str(error)) from error
            raise ClientError(
                f"no server at {self.url} for {patience:g} s ({error}): start dagger_server.py there"
            ) from error

    def say_once(self, body: bytes, content_type: str) -> None:
        """Send a last message: one attempt, also after `stop`; nobody has to receive it.

        It has a connection of its own: `stop` wakes a worker first, and interrupts the worker's connection after that.
        """
        self._connection.close()
        connection = Connection(self.url, self._token)
        try:
            connection.post(body, content_type)
        except (OSError, http.client.HTTPException):
            return  # the server has gone, or will close our session after its timeout
        finally:
            connection.close()

    def pause(self, seconds: float) -> None:
        """Sleep; raises ClientStopped as soon as this connection is stopped."""
        self._stop.wait(seconds)
        self._check()

    def stop(self) -> None:
        """From another thread: end whatever this connection is doing."""
        self._stop.set()
        self._connection.interrupt()

    def run_is_over(self) -> None:
        """From another thread: the server has no more work, so do not wait for it once it has gone."""
        self._run_is_over = True

    def _attempt(self, body: bytes, content_type: str, resend: bool) -> bytes:
        """Post once; raises _NoAnswer if another attempt may help."""
        self._check()
        began = time.monotonic()
        try:
            status, reply, retry_after_s = self._connection.post(body, content_type)
            self.bytes_sent += len(body)
            reason = reply.decode(errors="replace").strip()[:500] if status != 200 else ""
            if status != 503:
                self._report.connected()
            if status == 200:
                return reply
            if status == 410:
                raise SessionLost(reason)
            if status != 503:
                hint = " (give it with --token or EMAC_TOKEN)" if status == 401 else ""
                raise ClientError(f"the server at {self.url} refuses ({status}): {reason}{hint}")
            # Busy, and says so: a server that asks for a pause is there, so neither this nor the pause is its absence.
            failure = _NoAnswer(reason, time.monotonic() - began + retry_after_s, retry_after_s)
        except ClientError:
            raise
        except (OSError, http.client.HTTPException) as error:
            if not resend and not isinstance(error, Unreachable):
                raise ServerLost(str(error)) from error
            waited_s = 0.0 if isinstance(error, Unreachable) else time.monotonic() - began
            failure = _NoAnswer(str(error) or type(error).__name__, waited_s)
        self._connection.close()
        self._check()
        if self._run_is_over:
            raise ClientStopped
        raise failure

    def _check(self) -> None:
        if self._stop.is_set():
            raise ClientStopped
