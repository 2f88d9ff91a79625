"""Benchmarks: `python -m bench.simulator`, or `make bench`."""
