"""Noise on what an environment shows, in severities from 0 (none) to 4: on images, and on the words of a report.

The noise of a frame depends on seed, game and step alone: the same state rendered twice gives the same image, and the
order in which games are played does not matter.
"""

from __future__ import annotations

import random

import numpy as np

from alfworld_native.base import Environment, Game, TimeStep, WrappedEnvironment
from alfworld_native.choices import IMAGE_NOISE_NAMES
from lavis.common.errors import ConfigError, unknown

MAX_SEVERITY = 4  # 0 is no noise
# What each severity from 1 to 4 means.
_DEVIATION = (12.0, 25.0, 50.0, 100.0)  # of Gaussian noise, in steps of 255
_COVERED = (0.1, 0.2, 0.35, 0.5)  # share of the image behind a grey rectangle
_DROPPED = (0.1, 0.25, 0.5, 0.75)  # share of the frames that are black
_BRIGHTNESS = (0.75, 0.5, 0.3, 0.15)  # factor
_CHANGED = (0.1, 0.2, 0.3, 0.5)  # share of the frames that are cropped, enlarged or replaced by a segment of themselves
_WORDS_LOST = (0.05, 0.1, 0.2, 0.4)  # share
_GREY = 127


class NoisyTextEnvironment(WrappedEnvironment):
    """`environment` whose feedback has each word replaced by another one of it with probability `rate`.

    The opening (room and task) stays, and so do the admissible commands and the verdict. The noise depends on seed,
    game and step alone. Raises ConfigError for a rate outside 0 to 1.
    """

    def __init__(self, environment: Environment, *, rate: float, seed: int = 0) -> None:
        if not 0 <= rate <= 1:
            raise ConfigError(f"environment.text_noise: {rate} is not a share from 0 (no noise) to 1")
        super().__init__(environment)
        self._rate, self._seed, self._game, self._steps = rate, seed, "", 0

    def reset(self, game: Game) -> TimeStep:
        """See `Environment`."""
        self._game, self._steps = game.id, 0
        return super().reset(game)

    def step(self, action: str) -> TimeStep:
        """See `Environment`; the text has noise."""
        now = super().step(action)  # first: an action that is refused with an error is no step
        self._steps += 1
        draw = random.Random(f"text {self._seed} {self._game} {self._steps}")
        return now._replace(text=words_replaced(now.text, self._rate, draw), true_text=now.text)


class NoisyEnvironment(WrappedEnvironment):
    """`environment` with noise of one kind (of `IMAGE_NOISE_NAMES`) on its frames.

    Raises ConfigError for another kind or severity.
    """

    def __init__(self, environment: Environment, *, kind: str, severity: int, seed: int = 0) -> None:
        if kind not in IMAGE_NOISE_NAMES:
            raise ConfigError(unknown("image noise", kind, IMAGE_NOISE_NAMES))
        if not 0 <= severity <= MAX_SEVERITY:
            raise ConfigError(
                f"environment.image_severity: {severity} is not a severity from 0 (no noise) to {MAX_SEVERITY}"
            )
        super().__init__(environment)
        self._kind, self._severity, self._seed = kind, severity, seed
        self._game, self._steps = "", 0

    def reset(self, game: Game) -> TimeStep:
        """See `Environment`."""
        self._game, self._steps = game.id, 0
        return super().reset(game)

    def step(self, action: str) -> TimeStep:
        """See `Environment`."""
        now = super().step(action)  # first, as above
        self._steps += 1
        return now

    def render(self) -> np.ndarray:
        """The agent's view with noise: uint8, (height, width, 3), RGB."""
        # A string seed gives the same number in every process; Python's `hash` of a string would not.
        seed = random.Random(f"{self._seed} {self._game} {self._steps}").getrandbits(64)
        return image_noise(self._environment.render(), self._kind, self._severity, np.random.default_rng(seed))

    def view(self, size: int) -> np.ndarray:
        """As `render`: noise is drawn for each pixel, so a larger frame would have another."""
        return self.render()


def image_noise(frame: np.ndarray, kind: str, severity: int, draw: np.random.Generator) -> np.ndarray:
    """`frame` (uint8, H × W × 3) with noise of a kind of `IMAGE_NOISE_NAMES`; severity 0 changes nothing.

    "segments" is EMAC+'s noise on frames (arXiv:2505.19905, figure 4): a share of the frames is cropped, enlarged, or
    replaced by a segment of itself. ConfigError for another kind.
    """
    if not severity:
        return frame
    level, (height, width) = severity - 1, frame.shape[:2]
    match kind:
        case "gaussian":  # independent in every pixel and colour
            noise = draw.standard_normal(frame.shape, dtype=np.float32) * _DEVIATION[level]
            return np.clip(frame + noise, 0, 255).astype(np.uint8)
        case "occlusion":
            # Both sides by the square root of the share: the rectangle covers the share of the area.
            rows, columns = (round(size * _COVERED[level] ** 0.5) for size in (height, width))
            top, left = int(draw.integers(height - rows + 1)), int(draw.integers(width - columns + 1))
            covered = frame.copy()
            covered[top : top + rows, left : left + columns] = _GREY
            return covered
        case "dropped":
            return np.zeros_like(frame) if draw.random() < _DROPPED[level] else frame
        case "brightness":
            return (frame * _BRIGHTNESS[level]).astype(np.uint8)
        case "segments":
            if draw.random() >= _CHANGED[level]:
                return frame
            share = draw.uniform(0.4, 0.8)  # of each side that is left to be seen
            rows, columns = round(height * share), round(width * share)
            top, left = int(draw.integers(height - rows + 1)), int(draw.integers(width - columns + 1))
            part = frame[top : top + rows, left : left + columns]
            match int(draw.integers(3)):
                case 0:  # cropped: what lies outside is black
                    changed = np.zeros_like(frame)
                    changed[top : top + rows, left : left + columns] = part
                case 1:  # enlarged: the part fills the frame (nearest neighbour)
                    changed = part[np.arange(height) * rows // height][:, np.arange(width) * columns // width]
                case _:  # replaced: the part lies where another segment was
                    changed = frame.copy()
                    there = int(draw.integers(height - rows + 1)), int(draw.integers(width - columns + 1))
                    changed[there[0] : there[0] + rows, there[1] : there[1] + columns] = part
            return np.ascontiguousarray(changed)
        case _:
            raise ConfigError(unknown("image noise", kind, IMAGE_NOISE_NAMES))


def word_noise(text: str, severity: int, draw: random.Random) -> str:
    """`text` without a share of its words, lost at random; severity 0 changes nothing. Line breaks stay."""
    if not severity:
        return text
    lost = _WORDS_LOST[severity - 1]
    return "\n".join(" ".join(word for word in line.split() if draw.random() >= lost) for line in text.splitlines())


def words_replaced(text: str, rate: float, draw: random.Random) -> str:
    """`text` in which each word gives way to another word of the same text with probability `rate`. Lines stay.

    The noise on text observations of EMAC+'s figure 4 (arXiv:2505.19905); 0 changes nothing.
    """
    words = text.split()
    return "\n".join(
        " ".join(draw.choice(words) if draw.random() < rate else word for word in line.split())
        for line in text.splitlines()
    )
