"""Renders frames of a room from its state. Knows nothing of agents, experts or training."""
