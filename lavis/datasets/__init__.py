"""Datasets: sources of samples, what a model gets of them (datasets), how a config names them (builders)."""
