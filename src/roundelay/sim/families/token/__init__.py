"""Runs of the token protocol and of positive acknowledgement."""
