"""The policy that asks a policy server (docs/policy_server.md), whichever model that serves: `policy.name=http`."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from alfworld_native.language.commands import canonical
from lavis.common.errors import missing_extra
from xrl_alignment.agents.language.plain import one_line, plain
from xrl_alignment.agents.policies.base import PolicyInput, model_reads, require_commands
from xrl_alignment.common.call_pool import BoundedAnswers, CallLoop, UnusableAnswer
from xrl_alignment.common.errors import InferenceEngineFault

try:
    import httpx

    from policy_server.qwen_policy_client import PolicyServerError, QwenPolicyClient
except ModuleNotFoundError as error:
    raise missing_extra("policy-server", error) from None

CONNECTIONS = 64  # requests in progress; the server makes batches of those that arrive together


class HttpPolicy:
    """Asks the server at `url` for every input, all of a batch at the same time.

    It asks for greedy decoding, so that the same game is played the same way. With `decode="admissible"` the server
    gets the admissible commands and answers with one of them. A try ends after `timeout_s` in all, and an answer has a
    limited size. The API key comes from the environment (EMAC_POLICY_KEY).
    """

    def __init__(self, url: str, *, decode: str = "free", timeout_s: float = 300.0) -> None:
        self.decode = decode
        self.reads = model_reads(decode)  # see `Policy`
        self._client = QwenPolicyClient(url, timeout=timeout_s, image_format="png", http=_BoundedHttp())
        self._threads = ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="policy")

    def act(self, batch: Sequence[PolicyInput]) -> list[str]:
        """One canonical action for each input.

        Raises ConfigError if `decode="admissible"` gets an input without admissible commands, InferenceEngineFault if
        the server refuses or does not answer.
        """
        if self.decode == "admissible":
            require_commands(batch)
        return list(self._threads.map(self._ask, batch))

    def close(self) -> None:
        """Close the connections."""
        self._threads.shutdown()
        self._client.close()

    def _ask(self, item: PolicyInput) -> str:
        commands = list(item.admissible_commands) if self.decode == "admissible" else []
        try:
            answer = self._client.get_action(
                item.image,
                "ALFWorld",
                temperature=0.0,
                env_id=None,  # the prompt holds the history
                prompt=item.prompt,
                admissible_commands=commands,
            )
        except PolicyServerError as error:
            raise InferenceEngineFault(f"policy.base_urls: {one_line(str(error))}") from error
        if not isinstance(command := answer.get("command"), str):
            raise InferenceEngineFault(f"policy.base_urls: {self._client.server_url} answers without a command")
        return canonical(plain(command))


class _AsyncClient(BoundedAnswers, httpx.AsyncClient):
    """httpx's client, with limits."""


class _BoundedHttp:
    """Sends the requests of a `QwenPolicyClient`: its time-out becomes a deadline for the whole try."""

    def __init__(self) -> None:
        self._calls = CallLoop()
        self._client = _AsyncClient()

    def request(self, *, timeout: float, **request: Any) -> httpx.Response:
        """See `httpx.Client.request`."""
        # In the words of httpx's own errors: the client of the policy server decides by them what to retry.
        try:
            return self._calls.run(lambda: self._client.request(**request, timeout=timeout), timeout)
        except TimeoutError as error:
            raise httpx.ReadTimeout("the deadline has passed") from error
        except UnusableAnswer as error:
            raise PolicyServerError(f"{request['url']}: {error}") from error
        except ConnectionAbortedError as error:
            raise httpx.NetworkError(str(error)) from error

    def close(self) -> None:
        """Close the connections."""
        self._calls.close(self._client.aclose)
