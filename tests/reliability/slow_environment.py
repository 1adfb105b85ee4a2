"""The native engine, slowed down, so that workers can be killed while they play."""

from __future__ import annotations

import time

from xrl_alignment.environments.base import TimeStep
from xrl_alignment.environments.native.environment import NativeEnvironment


class SlowEnvironment(NativeEnvironment):
    """A step takes 50 ms more."""

    def step(self, action: str) -> TimeStep:
        time.sleep(0.05)
        return super().step(action)
