"""`policy.name=http`: a policy server (docs/policy_server.md) answers, with whatever model it serves."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from policy_server.qwen_policy_client import QwenPolicyClient
from xrl_alignment.language.commands import canonical
from xrl_alignment.policies.base import PolicyInput, require_commands

CONNECTIONS = 64  # asked at once; the server makes batches of what arrives together


class HttpPolicy:
    """Asks the server at `url` for every input, all of a batch at once.

    Greedy, so that the same game is played the same way. With `decode="admissible"` the server is told the admissible
    commands and answers with one of them. The API key comes from EMAC_POLICY_KEY. Raises PolicyServerError.
    """

    def __init__(self, url: str, *, decode: str = "free", timeout_s: float = 300.0) -> None:
        self.decode = decode
        self._client = QwenPolicyClient(url, timeout=timeout_s, image_format="png")
        self._threads = ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="policy")

    def act(self, batch: Sequence[PolicyInput]) -> list[str]:
        """One canonical action for each input; ValueError where `decode="admissible"` meets one without commands."""
        if self.decode == "admissible":
            require_commands(batch)
        return list(self._threads.map(self._ask, batch))

    def close(self) -> None:
        """Close the connections."""
        self._threads.shutdown()
        self._client.close()

    def _ask(self, item: PolicyInput) -> str:
        commands = list(item.admissible_commands) if self.decode == "admissible" else []
        answer = self._client.get_action(
            item.image, "ALFWorld", temperature=0.0, prompt=item.prompt, admissible_commands=commands
        )
        return canonical(answer["command"])
