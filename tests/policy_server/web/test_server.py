from __future__ import annotations

import errno
import os
import resource
import socket

import pytest

from lavis.common.errors import ConfigError
from policy_server.web.server import ListenError, allow_open_files, open_port


def test_answers_are_sent_at_once():
    """asyncio sets TCP_NODELAY only where a socket says that it is TCP; without it each answer waits 40 ms."""
    with open_port("127.0.0.1", 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP


def test_a_port_is_taken_while_its_server_loads_the_model():
    with open_port("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(ListenError, match=rf"port {port} is held by .*\(process {os.getpid()}\)"):
            open_port("127.0.0.1", port)


def test_an_address_of_another_machine_is_named():
    with pytest.raises(ListenError, match=r"cannot listen on 192\.0\.2\.1:0") as caught:
        open_port("192.0.2.1", 0)
    assert isinstance(caught.value.__cause__, OSError) and caught.value.__cause__.errno == errno.EADDRNOTAVAIL


def test_the_limit_of_open_files_fits_the_connections():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, before[1]))
        allow_open_files(1024)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 1024
        with pytest.raises(ConfigError, match=f"server.connections: at most {before[1] - 256} are possible"):
            allow_open_files(before[1] + 1)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
