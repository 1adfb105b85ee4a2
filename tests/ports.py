"""Ports for servers that are started later, or never: the system gives them to nobody else meanwhile."""

from __future__ import annotations

import random
import socket

PLACES = range(20_000, 32_768)  # below those that Linux gives to who asks for any: other tests ask all the time


def free_port() -> int:
    """A port of this machine on which nothing listens."""
    while True:
        port = random.SystemRandom().choice(PLACES)  # tests seed `random`: all processes would try the same ones
        try:
            socket.create_server(("", port)).close()
        except OSError:
            continue
        return port
