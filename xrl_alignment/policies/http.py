"""The policy that asks a policy server (docs/policy_server.md), whichever model that serves: `policy.name=http`."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from lavis.common.errors import MissingExtraError
from xrl_alignment.common.errors import InferenceEngineFault
from xrl_alignment.language.commands import canonical
from xrl_alignment.policies.base import PolicyInput, require_commands

CONNECTIONS = 64  # requests in progress; the server makes batches of those that arrive together


class HttpPolicy:
    """Asks the server at `url` for every input, all of a batch at the same time.

    It asks for greedy decoding, so that the same game is played the same way. With `decode="admissible"` the server
    gets the admissible commands and answers with one of them. The API key comes from the environment
    (EMAC_POLICY_KEY). Raises MissingExtraError without httpx.
    """

    def __init__(self, url: str, *, decode: str = "free", timeout_s: float = 300.0) -> None:
        try:
            from policy_server.qwen_policy_client import QwenPolicyClient
        except ImportError as error:
            raise MissingExtraError("policy.name=http needs httpx: pip install 'emac-plus[policy-server]'") from error
        self.decode = decode
        self._client = QwenPolicyClient(url, timeout=timeout_s, image_format="png")
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
        from policy_server.qwen_policy_client import PolicyServerError

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
            raise InferenceEngineFault(f"policy.base_urls: {error}") from error
        return canonical(answer["command"])
