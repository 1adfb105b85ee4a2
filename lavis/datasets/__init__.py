"""Datasets: where samples come from (sources), what a model gets of them (datasets), how a config names them (builders)."""
