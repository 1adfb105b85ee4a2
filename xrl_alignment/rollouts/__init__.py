"""Runs many episodes: in this process, in worker processes, or on a Ray cluster."""
