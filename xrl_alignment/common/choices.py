"""The names that settings and command lines offer, each list in one place, and the defaults that several share."""

from typing import Any

from alfworld_native.choices import CAMERAS, CLIENT_EXPERTS, ENVIRONMENT_NAMES, IMAGE_NOISE_NAMES, NAMES_BY

__all__ = [
    "BACKENDS",
    "CAMERAS",
    "CLIENT_EXPERTS",
    "ENVIRONMENT_NAMES",
    "EXPERT_NAMES",
    "IMAGE_NOISE_NAMES",
    "LABELS_FROM_CLIENT",
    "NAMES_BY",
    "STEP_TIMEOUT_S",
    "apart",
    "view_of",
]

EXPERT_NAMES = ("explorer", "handcoded", "planner", "client", "openai")
LABELS_FROM_CLIENT = ("client", *CLIENT_EXPERTS)  # the values of `expert.name` with which clients send the labels

BACKENDS = ("sequential", "local", "ray")  # of rollouts
# What a client shows of its games: settings of `environment`, and options of alfworld_client.py.
_VIEW = ("name_by", "show_ids", "camera", "blank_frames", "other_frames", "image_severity", "text_noise")
STEP_TIMEOUT_S = 300.0  # AI2-THOR takes a minute to start, and seconds for a step


def view_of(settings: Any) -> str:
    """How games are shown, as `camera=front show_ids=True …`, by an `environment:` section or by a client's options."""
    return " ".join(f"{name}={getattr(settings, name)}" for name in _VIEW)


def apart(view: str, other: str) -> str:
    """What `view` has and `other` has not."""
    return " ".join(its for its in view.split() if its not in other.split())
