"""Exploring the cluster protocols."""
