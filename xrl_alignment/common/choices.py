"""The names that settings and command lines offer, each list in one place, and the defaults that several share."""

ENVIRONMENT_NAMES = ("native", "textworld", "household", "thor")
CAMERAS = ("front", "around")
IMAGE_NOISE_NAMES = ("gaussian", "occlusion", "dropped", "brightness")
EXPERT_NAMES = ("explorer", "handcoded", "planner", "client", "openai")
CLIENT_EXPERTS = ("handcoded", "planner")  # they read the state of the game, so the client computes their labels
LABELS_FROM_CLIENT = ("client", *CLIENT_EXPERTS)  # the values of `expert.name` with which clients send the labels

BACKENDS = ("sequential", "local", "ray")  # of rollouts
STEP_TIMEOUT_S = 300.0  # AI2-THOR takes a minute to start, and seconds for a step
