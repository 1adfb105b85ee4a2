"""One OpenAI-compatible endpoint: a prompt in, text out; with retries, cost control and a cache.

Works with OpenAI, vLLM, `transformers serve`, Azure and others; chat completions and legacy completions. Temporary
faults (no connection, timeouts, 408, 409, 429, 5xx, unreadable answers) are retried: with random exponential back-off,
as in the original, or after the time for which the endpoint asks. All other faults raise EndpointFault at once. A
request that was answered before is answered from the cache.

What comes back is a stranger's: an attempt ends after `timeout_s` in all, an answer has a limited size, redirects are
not followed, and a text passes `plain`.
"""

from __future__ import annotations

import email.utils
import json
import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import urlsplit

from lavis.common.errors import missing_extra
from xrl_alignment.agents.experts.llm.accounting import Account, Pace, Usage
from xrl_alignment.agents.experts.llm.answer_cache import AnswerCache, request_key
from xrl_alignment.agents.experts.llm.tokens import estimate
from xrl_alignment.agents.language.plain import one_line, plain
from xrl_alignment.common.call_pool import BoundedAnswers, CallLoop, CallPool, UnusableAnswer
from xrl_alignment.common.errors import EndpointFault, PromptTooLong

try:
    import openai
    from tenacity import RetryCallState, Retrying, retry_if_exception_type, wait_random_exponential
except ModuleNotFoundError as error:
    raise missing_extra("teacher", error) from None

KEY_VARIABLE = "OPENAI_API_KEY"
MAX_ATTEMPTS = 20  # the original's
QUIET_ATTEMPTS = 3  # the log shows later ones as warnings
FIRST_ATTEMPTS = 3  # at an address where nothing has answered yet: it is probably wrong
MAX_BACKOFF_S = 60.0  # the original's
MAX_RETRY_AFTER_S = 120.0  # upper limit of the waiting time for which an endpoint may ask
MAX_TOKENS = 1 << 40  # a larger number in an answer is damage
MAX_REASON = 400  # characters of a refusal that are shown
MAX_TEXT = 1 << 16  # characters of an answer's text; an endpoint that keeps to `max_tokens` writes fewer
CONNECT_SHARE = 0.9  # of `timeout_s`: what was never sent shall end before the deadline, which cannot tell
PROMPT_OVERHEAD = 32  # upper limit of the tokens that a chat template adds
# Refused before the model ran. Azure, for one, may bill 400 (filtered) and 408; a gateway's 5xx may follow an answer.
_NOT_BILLED = (401, 403, 404, 429)
_NEVER_SENT = ("ConnectError", "ConnectTimeout", "PoolTimeout")  # httpx's, or httpx2's, by openai's version
# Where an answer of one line ends. A model that completes texts: with the line. A chat model's answer may begin with
# an empty line; a small one then writes the game on, and its next turn begins with the cue.
LINE_ENDS: dict[str, tuple[str, ...]] = {"completion": ("\n",), "chat": ("\n>",)}
_MAY_BE_LEFT_OUT = ("temperature", "max_tokens", "max_completion_tokens", "stop")  # parameters of a request
_FILTER_CODES = ("content_filter", "content_policy_violation", "ResponsibleAIPolicyViolation")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Completion:
    """One answer. `filtered`: why there is no text (content filter, refusal); `cut`: `max_tokens` ended the text."""

    text: str
    filtered: str = ""
    cut: bool = False


class _TemporaryFault(Exception):
    """A fault to retry; `after` is the number of seconds for which the endpoint asks to wait, or None."""

    def __init__(self, reason: str, after: float | None = None, unreachable: bool = False) -> None:
        super().__init__(reason)
        self.after = after
        self.unreachable = unreachable


class _EndpointHttp(BoundedAnswers, openai.DefaultAsyncHttpxClient):
    """openai's own HTTP client, with limits."""


class Endpoint:
    """Asks one model. Safe to use from many threads; `pool` runs up to `concurrency` calls at the same time.

    The API key comes only from the environment variable `key_variable`; it is required without `base_url` (then the
    address is OpenAI's). `api_version` selects an Azure deployment of the older kind. `section` is that of the
    settings, for messages. Raises EndpointFault.
    """

    def __init__(
        self,
        *,
        model: str,
        base_url: str = "",
        api: str = "chat",
        api_version: str = "",
        key_variable: str = KEY_VARIABLE,
        timeout_s: float = 60.0,
        max_attempts: int = MAX_ATTEMPTS,
        concurrency: int = 32,
        pace: Pace | None = None,
        account: Account | None = None,
        cache: AnswerCache | None = None,
        count: Callable[[str], int] = estimate,
        sleep: Callable[[float], Any] | None = None,
        environ: Mapping[str, str] = os.environ,
        section: str = "expert",
    ) -> None:
        if not model:
            raise EndpointFault(f"{section}.model is empty: set {section}.model to a model that the endpoint serves")
        self.section = section
        self.model = model
        self.api = api
        self.key_variable = key_variable
        self.timeout_s = timeout_s
        self.max_attempts = max_attempts
        self.pace = Pace() if pace is None else pace
        self.account = Account() if account is None else account
        self.cache = AnswerCache(None) if cache is None else cache
        self.count = count
        self.pool = CallPool(concurrency)
        self.draw = 0
        self._closing = threading.Event()
        # A pause before the next attempt ends at once when the endpoint is closed.
        self._sleep: Callable[[float], Any] = self._closing.wait if sleep is None else sleep
        self._has_answered = False  # anything, at this address
        self._unsupported: set[str] = set()  # parameters that the model rejects
        self._client = self._connect(base_url, api_version, environ.get(key_variable, ""))
        self._calls = CallLoop()
        self.address = str(self._client.base_url)

    def complete(
        self,
        prompt: str,
        *,
        system: str = "",
        temperature: float = 0.0,
        max_tokens: int = 256,
        stop: Sequence[str] = (),
    ) -> Completion:
        """The model's answer; the same request gets the same answer, from the cache.

        With a `temperature` each number in `draw` has an answer of its own: a later trial draws anew.

        Raises EndpointFault if a retry cannot help, or `max_attempts` attempts did not help, and BudgetSpent if the
        next attempt could exceed the account's limits.
        """
        request: dict[str, Any] = {
            "address": self.address,
            "model": self.model,
            "api": self.api,
            "system": plain(system),
            "prompt": plain(prompt),
        }
        # Rounded: temperatures are sums (0.1 + 0.2 is not 0.3), and an equal request must have an equal key.
        request |= {"temperature": round(temperature, 3), "max_tokens": max_tokens, "stop": list(stop)}
        if self.draw and temperature > 0:
            request["draw"] = self.draw
        answer, known = self.cache.get_or_ask(request_key(request), lambda: asdict(self._pay(request)))
        if known:
            self.account.count("cache_hits")
        return Completion(**answer)

    def note_cut(self, max_tokens: int) -> None:
        """Count an answer that ended before it came to anything; the first one is told: the score shows no reason."""
        if self.account.count("cut") == 1:
            _log.warning(
                "%s used up its tokens (%s.max_answer_tokens=%d, unless the endpoint's own limit is lower) before it "
                "came to an answer: a model that reasons needs more",
                self.model,
                self.section,
                max_tokens,
            )

    def post(self, path: str, body: Mapping[str, Any]) -> str:
        """Send `body` to `path` below the address, with the key; returns why the server does not take it, else ""."""
        try:
            self._calls.run(lambda: self._client.post(path, cast_to=str, body=body), self.timeout_s)
        except openai.APIStatusError as error:
            return f"status {error.status_code}: {one_line(error.response.text)}"
        except openai.APIError as error:
            return _reason(error)
        except TimeoutError:
            return f"no answer within {self.timeout_s:g} s"
        except (UnusableAnswer, ConnectionAbortedError) as error:
            return str(error)
        return ""

    def close(self) -> None:
        """End waiting times and connections; calls in progress fail."""
        self._closing.set()
        self.pool.shutdown()
        self._calls.close(self._client.close)

    def _connect(self, base_url: str, api_version: str, key: str) -> openai.AsyncOpenAI:
        if not key and not base_url:
            raise EndpointFault(
                f"no key: set the environment variable {self.key_variable} (or {self.section}.base_url to your own "
                "server)"
            )
        if base_url and not _is_address(base_url):
            raise EndpointFault(
                f"{self.section}.base_url {base_url!r} is not an address that begins with http:// or https://, then "
                "names a host, and, if any, a port by its number"
            )
        # Local servers need no key, but the library does. Retries are ours (`Retrying`), so that they are counted.
        timeout = openai.Timeout(self.timeout_s, connect=CONNECT_SHARE * self.timeout_s)
        options: dict[str, Any] = {"api_key": key or "none", "timeout": timeout, "max_retries": 0}
        options["http_client"] = _EndpointHttp()
        if api_version:
            return openai.AsyncAzureOpenAI(azure_endpoint=base_url, api_version=api_version, **options)
        return openai.AsyncOpenAI(base_url=base_url or None, **options)

    def _pay(self, request: Mapping[str, Any]) -> Completion:
        """The answer to a request that the cache does not know, in as many attempts as it takes."""

        def give_up(state: RetryCallState) -> bool:
            # An address at which nothing has ever answered is probably wrong: it is not tried for long.
            unreachable = _fault(state).unreachable and not self._has_answered
            limit = min(FIRST_ATTEMPTS, self.max_attempts) if unreachable else self.max_attempts
            return state.attempt_number >= limit or self._closing.is_set()

        def pause(state: RetryCallState) -> float:
            # As long as the endpoint asks for, else random exponential back-off: callers that failed together part.
            after = _fault(state).after
            return wait_random_exponential(multiplier=1, max=MAX_BACKOFF_S)(state) if after is None else after

        def log_retry(state: RetryCallState) -> None:
            self.account.count("retries")
            seconds = state.next_action.sleep if state.next_action else 0.0
            # Single failures are normal; only several in a row deserve a line on the screen.
            level = logging.INFO if state.attempt_number < QUIET_ATTEMPTS else logging.WARNING
            _log.log(level, "attempt %d: %s; next attempt in %.1f s", state.attempt_number, _fault(state), seconds)

        attempts = Retrying(
            retry=retry_if_exception_type(_TemporaryFault),
            stop=give_up,
            wait=pause,
            sleep=self._sleep,
            before_sleep=log_retry,
            reraise=True,
        )
        try:
            return attempts(self._ask, request)
        except _TemporaryFault as fault:
            message = f"{self.address} gave no answer in {attempts.statistics['attempt_number']} attempts: {fault}"
            raise EndpointFault(message) from fault

    def _ask(self, request: Mapping[str, Any]) -> Completion:
        """One attempt. It is booked at its worst case, unless what comes back shows that it cost less."""
        self.pace.wait()
        # The worst case: the whole prompt is read and `max_tokens` are written. The account books it before the call.
        size = self.count(request["system"]) + self.count(request["prompt"]) + PROMPT_OVERHEAD
        with self.account.attempt(prompt=size, completion=request["max_tokens"]) as settle:
            try:
                response = self._calls.run(lambda: self._send(request), self.timeout_s)
            except TimeoutError as error:
                raise _TemporaryFault(f"no answer within {self.timeout_s:g} s", unreachable=True) from error
            except openai.APIConnectionError as error:
                if type(error.__cause__).__name__ in _NEVER_SENT:
                    settle(Usage())  # it cost nothing; after any other fault the endpoint may have computed an answer
                timed_out = isinstance(error, openai.APITimeoutError)
                late = f"no answer within {self.timeout_s:g} s"
                lost = f"no connection ({_reason(error)})"
                raise _TemporaryFault(late if timed_out else lost, unreachable=True) from error
            except (UnusableAnswer, ConnectionAbortedError) as error:
                raise _TemporaryFault(str(error)) from error
            except openai.APIStatusError as error:
                self._has_answered = True
                if error.status_code in _NOT_BILLED:
                    settle(Usage(1))
                return self._judge(error)
            self._has_answered = True
            try:
                completion, usage = _read(json.loads(response.content.decode("utf-8")), self.api)
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
                raise _TemporaryFault(f"the answer cannot be read ({one_line(str(error))})") from error
            if usage.prompt:  # else the endpoint does not report what it bills
                settle(usage)
            return completion

    async def _send(self, request: Mapping[str, Any]) -> Any:
        # Newer models of OpenAI reject some of these names; `_judge` notes which, and they are left out from then on.
        options = {"temperature": request["temperature"], "max_tokens": request["max_tokens"]}
        if request["stop"]:
            options["stop"] = request["stop"]
        if "max_tokens" in self._unsupported:
            options["max_completion_tokens"] = options.pop("max_tokens")
        options = {name: value for name, value in options.items() if name not in self._unsupported}
        # An endpoint that knows this header does not bill an answer twice if the connection broke during the first.
        options["extra_headers"] = {"Idempotency-Key": request_key(request)}
        if self.api == "completion":
            # Vocabularies have " go" as one token: behind a cue "> " the model would have to begin without its blank.
            prompt = request["prompt"].removesuffix(" ")
            return await self._client.completions.with_raw_response.create(model=self.model, prompt=prompt, **options)
        messages: list[Any] = [{"role": "system", "content": request["system"]}] if request["system"] else []
        messages.append({"role": "user", "content": request["prompt"]})
        create = self._client.chat.completions.with_raw_response.create
        return await create(model=self.model, messages=messages, **options)

    def _judge(self, error: openai.APIStatusError) -> Completion:
        """What an HTTP error means: a filtered answer, a retry, or the end."""
        status, code, text = error.status_code, error.code or "", _words(error)
        # What only this request causes: its content, its length, a parameter that the model does not know.
        if status == 400 and (code in _FILTER_CODES or "content_filter" in str(error.body)):
            return Completion("", filtered="content filter")
        if status == 400 and (code == "context_length_exceeded" or "maximum context length" in text):
            raise PromptTooLong(f"the prompt is too long for {self.model}: {text}; lower {self.section}.context_tokens")
        unsupported = status == 400 and code in ("unsupported_parameter", "unsupported_value")
        if unsupported and (name := error.param) in _MAY_BE_LEFT_OUT:
            if name not in self._unsupported:
                _log.warning("%s does not accept the parameter %s; it is left out from now on", self.model, name)
            self._unsupported.add(name)
            raise _TemporaryFault(f"parameter {name} is not supported", after=0.0)
        # What a user has to change, or (in between) what passes by itself.
        if status == 429 and code in ("insufficient_quota", "billing_hard_limit_reached"):
            raise EndpointFault(f"{self.address}: the account's quota is used up ({text})")
        if 300 <= status < 400:
            where = one_line(error.response.headers.get("location", "")).partition("?")[0]
            raise EndpointFault(
                f"{self.address} redirects to {where or 'nowhere'} ({status}), and prompts go only to the address that "
                f"is named: check {self.section}.base_url"
            )
        if status in (408, 409, 429) or status >= 500:
            raise _TemporaryFault(f"status {status} ({text})", after=retry_after(error.response.headers))
        if status in (401, 403):
            raise EndpointFault(f"{self.address} refuses the key ({status}): check {self.key_variable}")
        if status == 404:
            raise EndpointFault(
                f"{self.address} has no model {self.model!r}, or is a wrong address (404): check "
                f"{self.section}.model, {self.section}.base_url and {self.section}.api ({text})"
            )
        raise EndpointFault(f"{self.address} refuses the request ({status}): {text}")


def _is_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
        port = parts.port  # ValueError for what is no port
    except ValueError:
        return False
    return text.isprintable() and parts.scheme in ("http", "https") and bool(parts.hostname) and port != 0


def _words(error: openai.APIStatusError) -> str:
    """What the endpoint itself says. The library reads only OpenAI's form; FastAPI's servers write {"detail": …}."""
    message = one_line(str(error.message))
    if message != f"Error code: {error.status_code}" or not error.body:
        return message
    body = error.body if isinstance(error.body, str) else json.dumps(error.body)
    return message if body.startswith("<") else f"{message}, {one_line(body)[:MAX_REASON]}"  # not a proxy's web page


def _reason(error: openai.APIError) -> str:
    """What lies under an error of the library's, which itself says only that there was one."""
    cause = error.__cause__ or error
    return one_line(str(cause)) or type(cause).__name__


def _fault(state: RetryCallState) -> _TemporaryFault:
    fault = state.outcome.exception() if state.outcome else None
    assert isinstance(fault, _TemporaryFault)  # no other exception is retried
    return fault


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds from `Retry-After` (seconds or a date, RFC 9110) or `retry-after-ms`; None if neither is usable.

    A date is compared with the endpoint's own `Date`, so a wrong clock on either side has no effect. At most two
    minutes.
    """
    value, seconds = headers.get("retry-after", ""), -1.0
    # Three forms, the surest last, which wins: a date, seconds, milliseconds (a header of OpenAI's own).
    with suppress(ValueError, TypeError, OverflowError):
        until, now = (email.utils.parsedate_to_datetime(date) for date in (value, headers.get("date", "")))
        seconds = (until - now).total_seconds()
    with suppress(ValueError):
        seconds = float(value)
    with suppress(KeyError, ValueError):
        seconds = float(headers["retry-after-ms"]) / 1000
    return min(seconds, MAX_RETRY_AFTER_S) if seconds >= 0 else None


def _tokens(number: object) -> int:
    """A number of tokens in an answer, 0 if the answer names none; ValueError for anything else."""
    if number is None:
        return 0
    if isinstance(number, float) and number.is_integer():  # 12.0, from gateways in whose language that is 12
        number = int(number)
    if not isinstance(number, int) or not 0 <= number <= MAX_TOKENS:
        raise ValueError(f"{ascii(number)[:50]} is no number of tokens")
    return number


def _read(document: Mapping[str, Any], api: str) -> tuple[Completion, Usage]:
    """Text and usage of an answer; KeyError, ValueError, TypeError or AttributeError if it has not an answer's form.

    _TemporaryFault if it reports an error instead.
    """
    # OpenAI's documents: {"usage": {"prompt_tokens": …, "prompt_tokens_details": {"cached_tokens": …}, …},
    # "choices": [{"message": {"content": …, "refusal": …} or, of completions, "text": …, "finish_reason": …}]}
    used = document.get("usage") or {}
    prompt = _tokens(used.get("prompt_tokens"))
    cached = min(_tokens((used.get("prompt_tokens_details") or {}).get("cached_tokens")), prompt)
    usage = Usage(1, prompt, cached, _tokens(used.get("completion_tokens")))
    choice = document["choices"][0] if document.get("choices") else {}
    # Gateways report a fault of the model's host with status 200, as the document's error or as that of a choice.
    if error := document.get("error") or choice.get("error"):
        text = error.get("message") if isinstance(error, dict) else error
        raise _TemporaryFault(f"status 200 with an error ({one_line(str(text))})")
    if not document["choices"]:
        return Completion(""), usage
    reason = choice.get("finish_reason")
    message = choice.get("message") or {}
    text = choice.get("text") if api == "completion" else message.get("content")
    if isinstance(text, list):  # content in parts
        text = "".join(part.get("text", "") for part in text)
    refusal = message.get("refusal")
    for name, value in (("text", text), ("refusal", refusal)):
        if not isinstance(value, str | None):
            raise TypeError(f"its {name} is a {type(value).__name__}")
    if reason == "content_filter" or refusal:
        return Completion("", filtered=one_line(refusal or "") or "content filter"), usage
    text = plain(text or "")
    return Completion(text[:MAX_TEXT], cut=reason == "length" or len(text) > MAX_TEXT), usage
