"""Frames in all four directions: what an agent sees that turns around wherever it stands (`environment.camera`)."""

from __future__ import annotations

import numpy as np

from alfworld_native.base import Environment, WrappedEnvironment
from alfworld_native.drawing.frames import render_around
from lavis.common.errors import ConfigError


class AroundEnvironment(WrappedEnvironment):
    """`environment` with frames in all four directions, one below the other.

    Raises ConfigError for an environment that does not tell where things are: AI2-THOR, or one's own.
    """

    camera = "around"

    def __init__(self, environment: Environment) -> None:
        if not hasattr(environment, "room_state"):
            raise ConfigError(f"environment.camera=around: {environment.name} renders its own frames, in one direction")
        super().__init__(environment)

    def render(self) -> np.ndarray:
        """The views in four directions: uint8, (4 * 224, 224, 3), RGB (`drawing.frames.render_around`)."""
        return render_around(self.room_state(), show_ids=self.show_ids)

    def view(self, size: int) -> np.ndarray:
        """The same four views, each `size` pixels wide and high."""
        return render_around(self.room_state(), size=size, show_ids=self.show_ids)
