"""The policy that runs in this process, on several devices: a replica of the model on each, behind one pool.

The pool (`policies.vllm.server_pool`) shares a batch among them as it does among inference servers. The replicas run in
threads: their kernels run at the same time, Python between the kernels does not.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from lavis.common.devices import DEVICE_LOST
from lavis.common.errors import first_sentence
from xrl_alignment.agents.policies.base import PolicyInput, changes
from xrl_alignment.agents.policies.in_process import InProcessPolicy
from xrl_alignment.agents.policies.vllm.base import ServerUnavailable
from xrl_alignment.agents.policies.vllm.server_pool import ServerPool


@dataclass
class _Replica:
    """A policy, and the lock of whoever computes with its model."""

    policy: InProcessPolicy
    lock: threading.Lock = field(default_factory=threading.Lock)


class ReplicatedPolicy:
    """`first`, and a replica of it on each of `devices` (one may be named several times).

    Replicas take the weights of `first`'s model when they have changed: a learner trains that one alone. A device that
    is lost is left out, its observations go to the others; InferenceEngineFault if none is left.
    """

    def __init__(self, first: InProcessPolicy, devices: Sequence[torch.device | str]) -> None:
        self.first = first
        self.reads = first.reads  # see `Policy`
        replicas = [first, *(replica_of(first, torch.device(device)) for device in devices)]
        self._replicas = {f"replica {n} on {p.model.device}": _Replica(p) for n, p in enumerate(replicas)}
        self._given = self._changes()
        self.pool = ServerPool(list(self._replicas), call=self._call, check=self._check)

    @property
    def frames(self) -> int:
        """See `Policy`."""
        return self.first.frames

    def act(self, batch: Sequence[PolicyInput]) -> list[str]:
        """One normalised action for each input, as `InProcessPolicy.act`."""
        # Training changes the first replica's model in place. torch counts such changes, so nothing is compared or sent
        # while nobody trains.
        if self._given != (now := self._changes()):
            weights = self.first.model.trainable_state_dict()
            for replica in list(self._replicas.values())[1:]:
                with replica.lock:
                    replica.policy.model.load_trainable(weights)
            self._given = now
        return self.pool.ask(batch)

    def close(self) -> None:
        """End the pool's threads."""
        self.pool.close()

    def _call(self, name: str, batch: Sequence[PolicyInput]) -> list[str]:
        replica = self._replicas[name]
        try:
            with replica.lock:  # new weights must not arrive in the middle of an answer
                return replica.policy.act(batch)
        except DEVICE_LOST as error:
            raise ServerUnavailable(first_sentence(error)) from error

    def _check(self, name: str) -> None:
        try:  # the cheapest work that a lost device refuses
            torch.zeros(1, device=self._replicas[name].policy.model.device).item()
        except RuntimeError as error:
            raise ServerUnavailable(first_sentence(error)) from error

    def _changes(self) -> list[int]:
        return changes(parameter for parameter in self.first.model.parameters() if parameter.requires_grad)


def replica_of(policy: InProcessPolicy, device: torch.device) -> InProcessPolicy:
    """The same policy with a copy of its model on `device`, without DPO's reference policy."""
    replica = copy.copy(policy)
    replica.model = policy.model.replica(device)
    return replica
