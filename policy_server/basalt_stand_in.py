"""A stand-in for MineRL's BASALT environments, with the same spaces and methods but a very small world.

MineRL needs Java and Minecraft. This environment needs neither, so that a client can be tried without them. The frame
shows a meadow and a cave from the player's position. Keys move the player, the camera turns, and ESC ends the episode.
"""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from lavis.common.errors import ConfigError, unknown
from policy_server.games.minerl import CAMERA_LIMIT, TASKS, no_op

HEIGHT, WIDTH = 360, 640  # pixels of MineRL's view
FIELD_OF_VIEW = 70.0  # degrees, Minecraft's default
SPEED = 0.22  # blocks in a tick, about Minecraft's walking speed
CAVE = (6.0, 24.0)  # position of the cave's entrance, in blocks
Observation = dict[str, Any]
Action = dict[str, Any]
SKY, GRASS, ROCK = (124, 172, 255), (96, 140, 62), (40, 38, 36)


class BasaltStandIn(gymnasium.Env[Observation, Action]):
    """A meadow with a cave. `obs["pov"]` is uint8 (360, 640, 3); actions are MineRL's dictionary."""

    metadata = {"render_modes": ["rgb_array"]}
    render_mode = "rgb_array"

    def __init__(self, task_name: str = "MineRLBasaltFindCave-v0", max_steps: int = 3600) -> None:
        """All tasks share the same world; ConfigError for a task that BASALT does not have."""
        if task_name not in TASKS:
            raise ConfigError(unknown("task", task_name, TASKS))
        self.task_name = task_name
        self.max_steps = max_steps
        self.observation_space = spaces.Dict({"pov": spaces.Box(0, 255, (HEIGHT, WIDTH, 3), np.uint8)})
        buttons = {name: spaces.Discrete(2) for name in no_op() if name != "camera"}
        camera = spaces.Box(-CAMERA_LIMIT, CAMERA_LIMIT, (2,), np.float32)
        self.action_space = spaces.Dict({**buttons, "camera": camera})

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Place the player at the origin, in a random direction that depends on `seed` alone."""
        super().reset(seed=seed)
        self.steps = 0
        self.position = np.zeros(2)
        self.pitch, self.yaw = 0.0, float(self.np_random.uniform(-40, 40))
        return self._observation(), {}

    def step(self, action: Action) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Play one tick (1/20 s). The reward is 0, as in BASALT. ESC terminates, `max_steps` truncates."""
        self.steps += 1
        pitch, yaw = (float(angle) for angle in action["camera"])
        self.pitch = max(-90.0, min(90.0, self.pitch + pitch))
        self.yaw = (self.yaw + yaw + 180.0) % 360.0 - 180.0
        forward = int(action["forward"]) - int(action["back"])
        right = int(action["right"]) - int(action["left"])
        angle = math.radians(self.yaw)
        ahead, aside = np.array([math.sin(angle), math.cos(angle)]), np.array([math.cos(angle), -math.sin(angle)])
        # Minecraft's player sprints 1.3 times as fast as it walks.
        self.position += SPEED * (1.3 if action["sprint"] else 1.0) * (forward * ahead + right * aside)
        truncated = self.steps >= self.max_steps
        return self._observation(), 0.0, bool(action["ESC"]), truncated, {"distance": self._distance()}

    def render(self) -> np.ndarray:
        """The player's view, uint8 (360, 640, 3)."""
        return self._observation()["pov"]

    def _distance(self) -> float:
        return float(np.hypot(*(np.array(CAVE) - self.position)))

    def _observation(self) -> Observation:
        pov = np.empty((HEIGHT, WIDTH, 3), np.uint8)
        scale = WIDTH / FIELD_OF_VIEW  # pixels in a degree
        horizon = int(np.clip(HEIGHT / 2 - self.pitch * scale, 0, HEIGHT))
        pov[:horizon], pov[horizon:] = SKY, GRASS
        offset = np.array(CAVE) - self.position
        bearing = math.degrees(math.atan2(offset[0], offset[1])) - self.yaw
        bearing = (bearing + 180.0) % 360.0 - 180.0
        half = math.degrees(math.atan2(2.0, max(self._distance(), 0.5))) * scale
        left, right = (int(np.clip(WIDTH / 2 + bearing * scale + side * half, 0, WIDTH)) for side in (-1, 1))
        top, bottom = (int(np.clip(horizon + side * half / 2, 0, HEIGHT)) for side in (-1, 1))
        pov[top:bottom, left:right] = ROCK
        return {"pov": pov}
