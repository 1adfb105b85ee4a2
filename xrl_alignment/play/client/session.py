"""A client's session with the server (wire v2): numbered messages, so that the server recognises a repeated one."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from xrl_alignment.play.client.connection import ClientError, RetryingConnection
from xrl_alignment.wire import v2
from xrl_alignment.wire.messages import Bye, Hello, Message, Next, Observation, ProtocolError


class ClientSession:
    """Sends one message after the other.

    Each method but `bye` waits for the server's answer. It raises ClientError when the server refuses or does not
    answer like a dagger server, and what `RetryingConnection.exchange` raises.
    """

    def __init__(self, connection: RetryingConnection, image_format: str) -> None:
        self.name = uuid.uuid4().hex
        self._connection = connection
        self._image_format = image_format
        self._numbers = itertools.count(1)  # `seq` of the next message

    def hello(self, games: Sequence[str], environment: str = "", split: str = "", view: str = "") -> dict[str, Any]:
        """Offer `games` (their ids); returns the server's `welcome`."""
        return self._send(Hello(self.name, next(self._numbers), tuple(games), environment, split, view))

    def ask_for_work(self) -> dict[str, Any]:
        """A game to play (`work`), or `wait`, or `finished`."""
        return self._send(Next(self.name, next(self._numbers)))

    def ask_for_action(self, observation: Observation, *, env: int, round: int) -> dict[str, Any]:
        """The `action` after `observation`, None when the episode is over; with a `reason` if the server gave it up.

        `env` and `round` are those of the work.
        """
        return self._send(replace(observation, session=self.name, seq=next(self._numbers), env=env, round=round))

    def bye(self) -> None:
        """Leave, whatever state the connection is in."""
        body = v2.encode(Bye(self.name, next(self._numbers)))
        self._connection.say_once(body, v2.CONTENT_TYPE)

    def _send(self, message: Message) -> dict[str, Any]:
        # Encoded once: the connection sends the very same bytes again, by which the server knows a retry.
        body = v2.encode(message, self._image_format)
        try:
            reply = v2.decode_reply(self._connection.exchange(body, v2.CONTENT_TYPE))
        except ProtocolError as error:
            raise ClientError(f"{self._connection.url} does not answer like a dagger server: {error}") from error
        if reply["kind"] == "error":
            reason = reply.get("reason", "no reason given")
            raise ClientError(f"the server at {self._connection.url} refuses: {reason}")
        return reply
