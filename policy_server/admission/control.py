"""Between the wire and the model: what an accepted request goes through, whichever way it came.

`Admission.act` is the whole way of one request: checks, picture, question (with the session's history), cache, queue,
reading. It knows nothing of HTTP, and of models only what `ModelPool` and `BatchQueue` offer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from PIL import Image

from policy_server.admission import images
from policy_server.admission.batch_queue import BatchQueue
from policy_server.admission.sessions import ActionCache, Sessions
from policy_server.games.action_spaces import space_of
from policy_server.games.prompts import Reading
from policy_server.metrics import Metrics
from policy_server.models.pool import ModelPool
from policy_server.models.transformers_model import Job
from policy_server.refusals import Refusal
from policy_server.settings import PolicyServerSettings
from policy_server.web.api_keys import RateLimiter

logger = logging.getLogger("policy_server.requests")

ResultT = TypeVar("ResultT")


@dataclass(frozen=True)
class Ask:
    """One request for an action: the encoded picture and what came with it (the fields of `schemas.ActionFields`)."""

    image: bytes
    task: str
    step: int = 0
    temperature: float = 0.7
    max_tokens: int = 512
    model: str = ""
    session: str = ""
    prompt: str = ""
    commands: tuple[str, ...] = ()


@dataclass
class Outcome:
    """The answer, and where the time went: stage -> seconds."""

    reading: Reading
    model: str
    cached: bool = False
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Seen:
    """A step as `/ui` shows it; `ask` is without its picture."""

    caller: str
    ask: Ask
    outcome: Outcome
    thumbnail: Image.Image
    when: float


class Admission:
    """Admission control: rate limits, sessions, cache, bounded queue with batches and deadlines."""

    def __init__(self, settings: PolicyServerSettings, pool: ModelPool, metrics: Metrics) -> None:
        self.settings = settings
        self.pool = pool
        self.metrics = metrics
        server, memory, queue = settings.server, settings.memory, settings.queue
        self.limiter = RateLimiter(server.rate_per_s, server.burst)
        self.sessions = Sessions(memory.sessions, memory.history, memory.session_idle_s)
        self.cache = ActionCache(memory.cache)
        self.recent: deque[Seen] = deque(maxlen=server.recent)
        self.queue: BatchQueue[Job] = BatchQueue(
            pool.answer,
            limit=queue.limit,
            max_batch=queue.max_batch,
            window_s=queue.window_ms / 1000,
            metrics=metrics,
        )
        self.loop: asyncio.AbstractEventLoop | None = None  # where all of this runs, once it does
        self.draining = False
        self._in_hand = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._helpers = ThreadPoolExecutor(max_workers=2, thread_name_prefix="helper")
        metrics.watch("policy_queue_length", "Requests that wait for the model", lambda: len(self.queue))
        metrics.watch("policy_in_hand", "Requests that are not answered yet", lambda: self._in_hand)
        metrics.watch("policy_sessions", "Sessions that are remembered", lambda: len(self.sessions))

    def start(self) -> None:
        """Begin to answer; call it on the running event loop."""
        self.loop = asyncio.get_running_loop()
        self.queue.start()

    def drain(self) -> None:
        """Take nothing new; who waits is answered, for `server.drain_s` at most. Call it on the event loop."""
        self.draining = True
        self.queue.drain(self.settings.server.drain_s)

    async def drained(self) -> None:
        """Until no request is in hand any more, but no longer than `server.drain_s`."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._idle.wait(), self.settings.server.drain_s)

    async def stop(self) -> None:
        """End the threads."""
        await self.queue.stop()
        self._helpers.shutdown(wait=False)

    def admit(self, caller: str) -> None:
        """Before anything of a request is read: Refusal 429 (too often) or 503 (no room)."""
        self.limiter.take(caller)
        self.queue.check_room()

    async def act(self, caller: str, ask: Ask, transport: str) -> Outcome:
        """The action for one observation, counted and logged; Refusal where there is none (`refused` counts those)."""
        started = time.monotonic()
        self._in_hand += 1
        self._idle.clear()
        try:
            outcome = await self._act(caller, ask)
        finally:
            self._in_hand -= 1
            if not self._in_hand:
                self._idle.set()
        outcome.seconds["total"] = time.monotonic() - started
        for stage, seconds in outcome.seconds.items():
            self.metrics.stage(stage, seconds)
        self.metrics.request(transport, 200)
        timing = " ".join(f"{stage}_ms={1000 * seconds:.1f}" for stage, seconds in outcome.seconds.items())
        logger.info(
            "%s %s 200 task=%s step=%d session=%s model=%s image_bytes=%d cached=%d %s",
            *(transport, caller, ask.task, ask.step, ask.session or "-", outcome.model, len(ask.image)),
            *(outcome.cached, timing),
        )
        return outcome

    def refused(self, transport: str, caller: str, refusal: Refusal) -> None:
        """Count and log a request that got no action, whoever said no."""
        self.metrics.request(transport, refusal.status)
        self.metrics.refused(refusal.code)
        logger.info("%s %s %d %s", transport, caller, refusal.status, refusal.code)

    async def _act(self, caller: str, ask: Ask) -> Outcome:
        space, model = self._checked(ask)
        started = time.monotonic()
        image, print_, small = await self._in_thread(self._decode, ask.image)
        decode_s = time.monotonic() - started
        history = self.sessions.steps(caller, ask.session)
        try:
            question = space.question(ask.task, ask.prompt, ask.commands, history)
        except ValueError as error:
            raise Refusal(422, "invalid_request", str(error)) from error
        key = (model, question, print_, ask.temperature, ask.max_tokens)
        outcome = self._remembered(key, model)
        if outcome is None:
            job = Job(image, question, ask.temperature, ask.max_tokens)
            outcome = await self._answered(space, ask, job, model, key)
        outcome.seconds = {"decode": decode_s, **outcome.seconds}
        self.sessions.add(caller, ask.session, f"{ask.step}: {outcome.reading.summary}")
        self.recent.append(Seen(caller, replace(ask, image=b""), outcome, small, time.time()))
        return outcome

    def _checked(self, ask: Ask) -> tuple[Any, str]:
        """The request's action space and model; Refusal where it names what is not there."""
        try:
            space = space_of(ask.task)
        except LookupError as error:
            raise Refusal(404, "unknown_task", error.args[0]) from error
        model = ask.model or self.pool.default
        most = self.pool.settings(model).max_tokens
        if ask.max_tokens > most:
            raise Refusal(422, "invalid_request", f"max_tokens is {ask.max_tokens}; {model} gives at most {most}")
        return space, model

    async def _in_thread(self, function: Callable[..., ResultT], *arguments: Any) -> ResultT:
        """Run what takes milliseconds beside the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._helpers, function, *arguments)

    def _decode(self, data: bytes) -> tuple[Image.Image, str, Image.Image]:
        """The picture, its fingerprint where a cache wants it, a small copy."""
        server = self.settings.server
        image = images.decode(data, max_bytes=server.max_image_bytes, max_pixels=server.max_pixels)
        return image, images.fingerprint(image) if self.cache.size else "", images.thumbnail(image)

    def _remembered(self, key: Hashable, model: str) -> Outcome | None:
        if not self.cache.size:
            return None
        reading = self.cache.get(key)
        self.metrics.cache(reading is not None)
        return Outcome(reading, model, cached=True) if reading else None

    async def _answered(self, space: Any, ask: Ask, job: Job, model: str, key: Hashable) -> Outcome:
        answered = await self.queue.ask(model, job, self.settings.queue.deadline_s)
        reading = await self._in_thread(space.parse, answered.text, ask.commands)
        self.cache.put(key, reading)
        return Outcome(reading, model, seconds={"queue": answered.queue_s, "model": answered.model_s})
