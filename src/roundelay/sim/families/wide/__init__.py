"""Runs of the hierarchy of GRSB."""
