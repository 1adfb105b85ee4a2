"""Generates new ALFWorld games in ALFRED's rooms."""
