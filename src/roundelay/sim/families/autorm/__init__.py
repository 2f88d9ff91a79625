"""Runs of AutoRM."""
