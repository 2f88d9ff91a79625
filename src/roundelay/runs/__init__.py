"""Runs: what `core`, `sim`, `trace` and `wire` do not know of each other is put together here.

`simulate` is one run under measured conditions, `swarm` many runs under random faults, `demo` one
that is meant to be watched; `folder` is what each of them leaves behind (docs/runs.md).
"""
