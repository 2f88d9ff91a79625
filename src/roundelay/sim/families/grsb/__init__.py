"""Runs of GRSB, and what they share with those of its hierarchy."""
