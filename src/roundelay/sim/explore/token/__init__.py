"""Exploring the token protocol."""
