"""Typed settings: the schema with its checks, reading yaml, and what a resumed run may change."""
