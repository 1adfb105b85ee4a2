"""Serves generated household games to OpenEnv's clients: uvicorn server.app:app --port 8000, in examples/openenv."""

from xrl_alignment.adapters.openenv import make_app
from xrl_alignment.environments import choose_games

app = make_app(choose_games("household", "household_train", num_train=100, num_heldout=100))
