"""The names that settings and command lines offer, each list in one place, and the defaults that several share."""

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
]

EXPERT_NAMES = ("explorer", "handcoded", "planner", "client", "openai")
LABELS_FROM_CLIENT = ("client", *CLIENT_EXPERTS)  # the values of `expert.name` with which clients send the labels

BACKENDS = ("sequential", "local", "ray")  # of rollouts
STEP_TIMEOUT_S = 300.0  # AI2-THOR takes a minute to start, and seconds for a step
