"""Recorders, replay, and how a receipt waits for a disk."""
