"""Engines with one rule broken each, and how the suite notices."""
