"""Admission control."""
