"""Steps over a WebSocket: one connection, one response for each image, in order."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from fastapi import WebSocket

from policy_server.admission import images
from policy_server.admission.control import AdmissionControl
from policy_server.refusals import RequestRefused
from policy_server.web.conversion import json_object, query_from, response_from, validated
from policy_server.web.schemas import ActionRequest, TextFields

CLOSE_IDLE = 1001  # "going away" (RFC 6455, section 7.4.1)


class WebSocketSteps:
    """One client's connection.

    A text message is the JSON of a request. If it has no `image`, its fields apply to the binary messages that follow.
    A binary message is a JPEG or PNG file; its step is the fields' `step` (else 0), one more after each that was
    answered. Each message with an image gets one JSON message: the response, or `{"error", "detail", "status"}`.
    """

    def __init__(self, socket: WebSocket, admission: AdmissionControl, caller: str) -> None:
        self.socket = socket
        self.admission = admission
        self.caller = caller
        self.fields: dict[str, Any] = {}
        self.step = -1

    async def run(self) -> None:
        """Answer until the client closes the connection, or is silent for too long."""
        idle_s = self.admission.settings.server.websocket_idle_s
        coming = asyncio.ensure_future(self.socket.receive())
        try:
            while True:
                if not (await asyncio.wait({coming}, timeout=idle_s))[0]:
                    await self.socket.close(CLOSE_IDLE, f"no message for {idle_s:g} s")
                    return
                message = coming.result()
                if message["type"] == "websocket.disconnect":
                    return
                # Meanwhile the next message is read. If it says that the client has left, the answer is given up.
                coming = asyncio.ensure_future(self.socket.receive())
                answer = await self._answer_unless_gone(message, coming)
                if answer:
                    await self.socket.send_json(answer)
        finally:
            coming.cancel()

    async def _answer_unless_gone(
        self, message: Mapping[str, Any], coming: asyncio.Future[Any]
    ) -> dict[str, Any] | None:
        """The response or the refusal; None if there is nothing to send, or `coming` says that nobody would read it."""
        work = asyncio.ensure_future(self._answer(message))
        try:
            await asyncio.wait({work, coming}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done() and coming.result()["type"] == "websocket.disconnect":
                raise RequestRefused(499, "client_gone", "the client has closed the connection")
            return await work
        except RequestRefused as refusal:
            # A message that is refused leaves the connection open: the next one may be right.
            self.admission.refused("ws", self.caller, refusal)
            retry = {} if refusal.retry_after_s is None else {"retry_after_s": refusal.retry_after_s}
            return None if refusal.status == 499 else {**refusal.body(), "status": refusal.status, **retry}
        finally:
            work.cancel()

    async def _answer(self, message: Mapping[str, Any]) -> dict[str, Any] | None:
        """The response to a message with an image; None for fields, which the binary messages after them use."""
        counted = None  # the step of a binary message
        if message.get("bytes") is None:
            fields = json_object(message.get("text") or "")
            if "image" not in fields:
                self.fields, self.step = fields, validated(TextFields, fields).step - 1
                return None
            request = validated(ActionRequest, fields)
            query = query_from(request, images.from_base64(request.image.data))
        else:
            if not self.fields:
                raise RequestRefused(422, "invalid_request", "send the fields (task_name, …) as a text message first")
            counted = self.step + 1
            query = query_from(validated(TextFields, {**self.fields, "step": counted}), message["bytes"])
        self.admission.admit(self.caller)
        result = await self.admission.act(self.caller, query, "ws")
        # An image that was refused is no step: the client sends it again.
        self.step = self.step if counted is None else counted
        return response_from(query, result).model_dump()
