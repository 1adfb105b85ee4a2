"""uvicorn around the application: the port, and a shutdown that answers what was accepted."""

from __future__ import annotations

import asyncio
import logging
import resource
import signal
import socket
from errno import EADDRINUSE
from functools import partial
from types import FrameType

import uvicorn
from fastapi import FastAPI

from lavis.common.errors import ConfigError, EmacError
from policy_server.admission.control import AdmissionControl
from policy_server.settings import ServerSettings
from policy_server.web.app import SERVICE
from policy_server.web.connections import ConnectionRoom, LimitedProtocol, LimitedWebSocket
from xrl_alignment.common.network import process_on_port

logger = logging.getLogger("policy_server")

WRITE_S = 5  # seconds for sending the last answers
BACKLOG = 2048  # connections that the system holds until they are accepted; uvicorn's default
SPARE_FILES = 256  # open files beside connections: the model's, the log, libraries


class ListenError(EmacError, OSError):
    """The server cannot listen on its port; the text names the port and the reason."""


class DrainingServer(uvicorn.Server):
    """uvicorn's server, which answers all accepted requests before it closes any connection.

    Meanwhile `/health` says `draining`, and new requests get 503.
    """

    def __init__(self, config: uvicorn.Config, admission: AdmissionControl) -> None:
        super().__init__(config)
        self.admission = admission

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to drain on SIGTERM or Ctrl-C; a second Ctrl-C ends the server at once."""
        logger.info("%s: answering the accepted requests, then ending", signal.Signals(sig).name)
        # Python runs a signal handler between any two instructions; this call is safe there, and wakes the loop.
        if self.admission.loop is not None:
            self.admission.loop.call_soon_threadsafe(self.admission.drain)
        if sig == signal.SIGTERM:
            # Without uvicorn's method: what that notes is raised a second time after the orderly end, which would then
            # be an interruption. To ignore SIGTERM from before the start on would lose one that comes just then.
            self.should_exit = True
        else:
            super().handle_exit(sig, frame)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, then log the address."""
        await super().startup(sockets)
        if self.started and sockets:
            # From the socket: with `server.port` 0 the system has chosen the port.
            host, port = sockets[0].getsockname()[:2]
            logger.info("%s ready! http://%s:%d", SERVICE, f"[{host}]" if ":" in host else host, port)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Wait for the last answer, or a second Ctrl-C, then close all connections."""
        drained = asyncio.ensure_future(self.admission.drained())
        while not (drained.done() or self.force_exit):
            await asyncio.wait([drained], timeout=0.1)
        drained.cancel()
        await super().shutdown(sockets)


def uvicorn_config(app: FastAPI, settings: ServerSettings) -> uvicorn.Config:
    """uvicorn's settings: no log of its own, our limits for connections, and our size limit for WebSocket messages."""
    room = ConnectionRoom(settings.connections)
    return uvicorn.Config(
        app,
        http=partial(LimitedProtocol, room=room, header_timeout_s=settings.header_timeout_s),  # type: ignore[arg-type]
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=WRITE_S,
        ws=LimitedWebSocket,
        ws_max_size=settings.max_body_bytes,
    )


def allow_open_files(number: int) -> None:
    """Raise this process's limit of open files to `number`; ConfigError if the system forbids that."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if number <= soft or soft == resource.RLIM_INFINITY:
        return
    if number > hard and hard != resource.RLIM_INFINITY:
        most = max(1, hard - SPARE_FILES)
        raise ConfigError(f"server.connections: at most {most} are possible here (`ulimit -Hn` is {hard})")
    resource.setrlimit(resource.RLIMIT_NOFILE, (number, hard))


def open_port(host: str, port: int) -> socket.socket:
    """The listening socket; ListenError, which names the process that holds the port if it is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only if the socket's protocol is TCP. Without it Nagle's algorithm (RFC 896) holds a
    # response's body back until the client acknowledges the headers, 40 ms later.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    # Otherwise a server that is started again must wait until the old connections' TIME_WAIT is over.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        # Now, not when uvicorn does it: with SO_REUSEADDR a second server can bind a port on which nobody listens yet,
        # and loading the model may take minutes. Clients that come meanwhile wait.
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno != EADDRINUSE:
            raise ListenError(f"cannot listen on {host}:{port}: {error.strerror}") from error
        holder = process_on_port(port) or "another process"
        raise ListenError(f"port {port} is held by {holder}; stop it or choose another --port") from error
    return listener
