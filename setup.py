"""For tools that still call setup.py; the metadata stands in pyproject.toml."""

from setuptools import setup

setup()
