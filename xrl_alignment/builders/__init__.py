"""Builds models, policies, environments and teachers from their settings."""
