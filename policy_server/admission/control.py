"""Admission control: the way of one request, from the encoded image to the action.

`AdmissionControl.act` checks the request, decodes the image, makes the prompt (with the session's history), looks into
the cache, waits in the queue for the model's answer, and parses it. It knows nothing of HTTP, and of models only
`ModelPool` and `BatchQueue`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from PIL import Image

from policy_server.admission import images
from policy_server.admission.action_cache import ActionCache
from policy_server.admission.batch_queue import BatchQueue
from policy_server.admission.rate_limit import RateLimiter
from policy_server.admission.sessions import Sessions
from policy_server.games.action_spaces import space_of
from policy_server.games.prompts import ParsedAction, PromptError
from policy_server.metrics import Metrics
from policy_server.models.pool import ModelPool
from policy_server.models.vision_model import ChatAnswer, ChatJob, ChatTurn, ModelJob
from policy_server.refusals import RequestRefused
from policy_server.settings import PolicyServerSettings

logger = logging.getLogger("policy_server.requests")

ResultT = TypeVar("ResultT")
TimedT = TypeVar("TimedT", "ActionResult", "ChatResult")
RECENT_CALLERS = 16  # whose last steps are kept; a step's thumbnail takes up to 0.3 MB
ANSWER_TOKENS = 512  # of an answer, if the request gives no number and the model allows as many


@dataclass(frozen=True)
class ActionQuery:
    """One request for an action: the encoded image and the fields of `web.schemas.ActionFields`.

    `max_tokens` None is the server's default.
    """

    image: bytes
    task: str
    step: int = 0
    temperature: float = 0.7
    max_tokens: int | None = None
    model: str = ""
    session: str = ""
    prompt: str = ""
    commands: tuple[str, ...] = ()


@dataclass
class ActionResult:
    """The action, the model that chose it, and the seconds of each stage (decode, queue, model, total)."""

    parsed: ParsedAction
    model: str
    cached: bool = False
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class ChatQuery:
    """A conversation to continue: (role, parts) for each message, a part a text or an encoded image.

    `max_tokens` None is the server's default, `top_p` None the model's own; `number` answers are drawn.
    """

    turns: tuple[tuple[str, tuple[str | bytes, ...]], ...]
    model: str
    temperature: float = 1.0
    top_p: float | None = None
    max_tokens: int | None = None
    number: int = 1
    stop: tuple[str, ...] = ()


@dataclass
class ChatResult:
    """The answers, the model that gave them, and the seconds of each stage (decode, queue, model, total)."""

    answers: list[ChatAnswer]
    model: str
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class RecentStep:
    """A step as `/ui` shows it. `query` has no image; `thumbnail` is a small copy. `when` is Unix time in seconds."""

    query: ActionQuery
    result: ActionResult
    thumbnail: Image.Image
    when: float


class AdmissionControl:
    """Rate limits, sessions, cache, and the bounded queue; one object for the whole server."""

    def __init__(self, settings: PolicyServerSettings, pool: ModelPool, metrics: Metrics) -> None:
        self.settings = settings
        self.pool = pool
        self.metrics = metrics
        server, memory, queue = settings.server, settings.memory, settings.queue
        self.limiter = RateLimiter(server.rate_per_s, server.burst)
        self.sessions = Sessions(memory.sessions, memory.history, memory.session_idle_s)
        self.cache = ActionCache(memory.cache, memory.cache_distance)
        self.recent: OrderedDict[str, deque[RecentStep]] = OrderedDict()  # by caller, who acted last at the end
        self.queue: BatchQueue[ModelJob | ChatJob, Any] = BatchQueue(
            pool.answer,
            limit=queue.limit,
            max_batch=queue.max_batch,
            window_s=queue.window_ms / 1000,
            metrics=metrics,
        )
        self.loop: asyncio.AbstractEventLoop | None = None  # the event loop, after `start`
        self.draining = False
        self._websockets = 0  # open ones
        self._in_hand = 0  # accepted requests without a response yet
        # Set while no accepted request waits for its response: `drained` waits for it.
        self._idle = asyncio.Event()
        self._idle.set()
        self._helpers = ThreadPoolExecutor(max_workers=2, thread_name_prefix="helper")
        metrics.watch("policy_queue_length", "Requests that wait for the model", lambda: len(self.queue))
        metrics.watch("policy_in_hand", "Requests that are not answered yet", lambda: self._in_hand)
        metrics.watch("policy_websockets", "Open WebSockets", lambda: self._websockets)
        metrics.watch("policy_sessions", "Sessions in memory", lambda: len(self.sessions))

    def start(self) -> None:
        """Begin to answer; call it on the running event loop."""
        self.loop = asyncio.get_running_loop()
        self.queue.start()

    def drain(self) -> None:
        """Refuse new requests, answer accepted ones for at most `server.drain_s`. Call it on the event loop."""
        self.draining = True
        self.queue.drain(self.settings.server.drain_s)

    async def drained(self) -> None:
        """Return when every accepted request is answered, at the latest after `server.drain_s`."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._idle.wait(), self.settings.server.drain_s)

    async def stop(self) -> None:
        """End the threads."""
        await self.queue.stop()
        self._helpers.shutdown(wait=False)

    @contextlib.contextmanager
    def websocket(self) -> Iterator[None]:
        """Count a WebSocket while it is open; RequestRefused (503) if `server.websockets` are open already."""
        limit = self.settings.server.websockets
        if self._websockets >= limit:
            raise RequestRefused(503, "too_many_websockets", f"{limit} WebSockets are open already", retry_after_s=10)
        self._websockets += 1
        try:
            yield
        finally:
            self._websockets -= 1

    def admit(self, caller: str) -> None:
        """Check rate limit and queue before the request's body is read; RequestRefused 429 or 503."""
        # The rate first: a caller that asks too often is told so, also while the queue is full.
        self.limiter.take(caller)
        self.queue.check_room()

    async def act(self, caller: str, query: ActionQuery, transport: str) -> ActionResult:
        """The action for one observation, counted and logged.

        Raises RequestRefused; the caller of this method reports that to `refused`.
        """
        result = await self._counted(self._act(caller, query), transport)
        logger.info(
            "%s %s 200 task=%s step=%d session=%s model=%s image_bytes=%d cached=%d %s",
            *(transport, caller, query.task, query.step, query.session or "-", result.model, len(query.image)),
            *(result.cached, _timing(result.seconds)),
        )
        return result

    async def chat(self, caller: str, query: ChatQuery, transport: str) -> ChatResult:
        """The next message of a conversation, `query.number` times, counted and logged; raises as `act`."""
        result = await self._counted(self._chat(query), transport)
        written = sum(answer.completion_tokens for answer in result.answers)
        logger.info(
            "%s %s 200 messages=%d answers=%d model=%s prompt_tokens=%d completion_tokens=%d %s",
            *(transport, caller, len(query.turns), len(result.answers), result.model),
            *(result.answers[0].prompt_tokens, written, _timing(result.seconds)),
        )
        return result

    async def _counted(self, work: Awaitable[TimedT], transport: str) -> TimedT:
        """What `work` gives; while it goes on, the server does not end, and its stages are measured."""
        started = time.monotonic()
        self._in_hand += 1
        self._idle.clear()
        try:
            result = await work
        finally:  # also after a refusal, and if the client has left: `drained` waits for this number to be 0
            self._in_hand -= 1
            if not self._in_hand:
                self._idle.set()
        result.seconds["total"] = time.monotonic() - started
        for stage, seconds in result.seconds.items():
            self.metrics.stages.labels(stage).observe(seconds)
        self.metrics.requests.labels(transport, "200").inc()
        return result

    def refused(self, transport: str, caller: str, refusal: RequestRefused, status: int | None = None) -> None:
        """Count and log a refused request; `status` is what the caller got, if it is not the refusal's own."""
        status = refusal.status if status is None else status
        self.metrics.requests.labels(transport, str(status)).inc()
        self.metrics.refusals.labels(refusal.code).inc()
        logger.info("%s %s %d %s", transport, caller, status, refusal.code)

    async def _act(self, caller: str, query: ActionQuery) -> ActionResult:
        space = space_of(query.task)
        model = query.model or self.pool.default
        # Requests that no model call can answer are refused before the image is decoded.
        longest = self._answer_length(model, query.max_tokens)
        started = time.monotonic()
        # Decoding takes milliseconds: in a thread, so that the event loop answers others meanwhile.
        image, fingerprint, thumbnail = await self._in_thread(self._decode, query.image)
        decode_s = time.monotonic() - started
        history = self.sessions.steps(caller, query.session)
        try:
            prompt = space.model_prompt(query.task, query.prompt, query.commands, history)
        except PromptError as error:
            raise RequestRefused(422, "invalid_request", str(error)) from error
        # All that the answer depends on, but for the image, whose fingerprint may be near instead of equal.
        key = (model, prompt, query.temperature, longest)
        parsed = None
        if self.cache.size:
            parsed = self.cache.get(key, fingerprint)
            self.metrics.cache.labels("hit" if parsed else "miss").inc()
        if parsed:
            result = ActionResult(parsed, model, cached=True)
        else:
            job = ModelJob(image, prompt, query.temperature, longest)
            answer = await self.queue.ask(model, job, self.settings.queue.deadline_s)
            # In a thread: to find the nearest of many commands takes quadratic time (`games.alfworld`).
            parsed = await self._in_thread(space.parse, answer.output, query.commands)
            result = ActionResult(parsed, model, seconds={"queue": answer.queue_s, "model": answer.model_s})
            self.cache.put(key, fingerprint, parsed)
        result.seconds = {"decode": decode_s, **result.seconds}
        # Only now: a step that was refused is no part of the history that the next prompt shows.
        self.sessions.add(caller, query.session, f"{query.step}: {result.parsed.summary}")
        # Without the encoded image: the page shows the thumbnail, and megabytes of each step would stay in memory.
        steps = self.recent.pop(caller, None) or deque(maxlen=self.settings.server.recent)
        steps.append(RecentStep(replace(query, image=b""), result, thumbnail, time.time()))
        self.recent[caller] = steps
        if len(self.recent) > RECENT_CALLERS:
            self.recent.popitem(last=False)
        return result

    async def _chat(self, query: ChatQuery) -> ChatResult:
        longest = self._answer_length(query.model, query.max_tokens)
        # Each answer takes a place in the queue: so many never have one at once, however long the client waits.
        if query.number > (limit := self.settings.queue.limit):
            reason = f"n is {query.number}; this server's queue.limit is {limit}"
            raise RequestRefused(422, "invalid_request", reason, param="n")
        started = time.monotonic()
        turns = await self._in_thread(self._decoded, query.turns)
        decode_s = time.monotonic() - started
        # A job for each answer: they share a batch, and each is drawn on its own.
        job = ChatJob(turns, query.temperature, longest, query.top_p, query.stop)
        asks = [
            asyncio.ensure_future(self.queue.ask(query.model, job, self.settings.queue.deadline_s))
            for _ in range(query.number)
        ]
        try:
            answers = await asyncio.gather(*asks)
        finally:
            for ask in asks:  # one was refused, or the client has left: nobody waits for the others
                ask.cancel()
        # The answers were drawn at the same time, so the slowest one is what the client has waited for.
        seconds = {
            "decode": decode_s,
            "queue": max(answer.queue_s for answer in answers),
            "model": max(answer.model_s for answer in answers),
        }
        return ChatResult([answer.output for answer in answers], query.model, seconds)

    def _answer_length(self, model: str, max_tokens: int | None) -> int:
        """Most tokens of an answer: `max_tokens`, or else ANSWER_TOKENS, or as many as the model gives if fewer.

        RequestRefused for more than the model gives (422), or a model that is not served (404).
        """
        limit = self.pool.settings(model).max_tokens
        if max_tokens is None:
            return min(ANSWER_TOKENS, limit)
        if max_tokens > limit:
            reason = f"max_tokens is {max_tokens}; {model} gives at most {limit}"
            raise RequestRefused(422, "invalid_request", reason, param="max_tokens")
        return max_tokens

    async def _in_thread(self, function: Callable[..., ResultT], *arguments: object) -> ResultT:
        """Run `function`, which takes milliseconds, outside the event loop's thread."""
        return await asyncio.get_running_loop().run_in_executor(self._helpers, function, *arguments)

    def _decoded(self, turns: Sequence[tuple[str, tuple[str | bytes, ...]]]) -> tuple[ChatTurn, ...]:
        """The conversation with its images decoded; all of them together have at most `server.max_pixels`."""
        server, left = self.settings.server, self.settings.server.max_pixels
        decoded = []
        for role, parts in turns:
            read: list[str | Image.Image] = []
            for part in parts:
                if isinstance(part, bytes):
                    image = images.decode(part, max_bytes=server.max_image_bytes, max_pixels=left)
                    left -= image.width * image.height
                    read.append(image)
                else:
                    read.append(part)
            decoded.append(ChatTurn(role, tuple(read)))
        return tuple(decoded)

    def _decode(self, data: bytes) -> tuple[Image.Image, int, Image.Image]:
        """The image, its fingerprint (0 without a cache), and its thumbnail."""
        server = self.settings.server
        image = images.decode(data, max_bytes=server.max_image_bytes, max_pixels=server.max_pixels)
        fingerprint = images.perceptual_hash if self.cache.distance else images.fingerprint
        return image, fingerprint(image) if self.cache.size else 0, images.thumbnail(image)


def _timing(seconds: dict[str, float]) -> str:
    return " ".join(f"{stage}_ms={1000 * value:.1f}" for stage, value in seconds.items())
