"""The names that settings and command lines offer, each list in one place."""

ENVIRONMENT_NAMES = ("native", "textworld", "household", "thor")
EXPERT_NAMES = ("explorer", "handcoded", "planner", "client", "openai")
CLIENT_EXPERTS = ("handcoded", "planner")  # they need the game's state, so the client computes them

BACKENDS = ("sequential", "local", "ray")
STEP_TIMEOUT_S = 300.0  # AI2-THOR takes a minute to start and seconds for a step
