"""What every policy needs whose model runs in inference engines: who is asked, with which adapters, and a check."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lavis.models.blip2_models.adapters import is_adapter
from xrl_alignment.agents.policies.base import PolicyInput
from xrl_alignment.agents.policies.vllm.base import InferenceClient, ServerUnavailable
from xrl_alignment.agents.policies.vllm.handover import AdapterHandover
from xrl_alignment.agents.policies.vllm.model_check import ModelCheck
from xrl_alignment.agents.policies.vllm.server_pool import ServerPool
from xrl_alignment.common.errors import InferenceEngineFault

if TYPE_CHECKING:
    from torch import nn


class ServedPolicy:
    """Asks the engines at `base_urls` through `client`, which is closed with the policy.

    Each engine's model is checked first (`model_check`): InferenceEngineFault says which cannot be used and why. If
    `weights` has LoRA adapters, they are handed over by name through `adapter_folder` (`save_adapters` writes them),
    unless the servers have them (`adapters="merged"`). `pool_options` are those of `ServerPool`. A policy brings
    `_answer`, and `_call`, which asks one engine.
    """

    def __init__(
        self,
        *,
        base_urls: Sequence[str],
        client: InferenceClient,
        model_check: ModelCheck,
        weights: nn.Module,
        save_adapters: Callable[[Path], None],
        adapters: str = "by_name",
        adapter_folder: str = "",
        max_batch: int = 32,
        **pool_options: Any,
    ) -> None:
        self.max_batch = max_batch
        self._client = client
        self._model_check = model_check
        self._handover: AdapterHandover | None = None
        if adapters == "by_name" and any(map(is_adapter, weights.state_dict())):
            self._handover = AdapterHandover(weights, save_adapters, client, adapter_folder)
        self.pool = ServerPool(base_urls, call=self._call_newest, check=self._check, **pool_options)
        try:
            if self._handover:
                self._handover.update()
            for server in self.pool.servers:
                try:
                    self._check(server.url)
                except ServerUnavailable as error:
                    raise InferenceEngineFault(
                        f"policy.base_urls: {server.url} cannot be used: {error}; start it with `vllm serve` "
                        "(docs/vllm.md)"
                    ) from error
        except BaseException:  # also Ctrl-C: an engine of our own would go on running
            self.close()
            raise

    def act(self, batch: Sequence[PolicyInput]) -> list[str]:
        """One action for each input. InferenceEngineFault if no server is left."""
        if self._handover:
            self._handover.update()
        starts = range(0, len(batch), self.max_batch)
        return [action for start in starts for action in self._answer(batch[start : start + self.max_batch])]

    def close(self) -> None:
        """Close the connections, and the engine that was started for this policy."""
        self.pool.close()
        self._client.close()
        if self._handover:
            self._handover.close()

    def _answer(self, batch: Sequence[PolicyInput]) -> list[str]:
        """One action for each of at most `max_batch` inputs."""
        raise NotImplementedError

    def _call(self, url: str, requests: Sequence[Any]) -> list[Any]:
        """What the engine at `url`, which has the newest adapters, answers to each of `requests`."""
        raise NotImplementedError

    def _call_newest(self, url: str, requests: Sequence[Any]) -> list[Any]:
        if self._handover:
            self._handover.give(url)
        return self._call(url, requests)

    def _check(self, url: str) -> None:
        if self._handover:
            self._handover.give(url, again=True)
        self._model_check.check(self._client, url)
