"""Roundelay: every member hears every message, in the same order."""

__version__ = "0.1.0"
