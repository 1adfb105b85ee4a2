"""BLIP-2 models."""
