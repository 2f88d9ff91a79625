"""What holds for all tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Final

import pytest
from coverage import Coverage

if "PYTEST_XDIST_WORKER" in os.environ:
    # The worker itself is measured; programs that tests start need not be, and are quicker so.
    for name in [name for name in os.environ if "COVERAGE" in name]:
        del os.environ[name]

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # A shell lets what it starts in the background ignore interrupts; some tests send them.
    signal.signal(signal.SIGINT, signal.default_int_handler)

MEASURED: Final = ("core", "scenarios", "sim")
"""The folders whose tests count for the coverage of the core's branches."""

LONG: Final = ("complexity", "explore", "machine", "mutants", "positive_ack", "swarm")
"""Runs that go the same ways over and over: being measured, they would take three times as long
and find no branch that the others leave out."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One worker does all that uses Spark, from the beginning: Java is slow to warm up."""
    on_spark = [item for item in items if "pipeline" in item.path.parts]
    for item in on_spark:
        item.add_marker(pytest.mark.xdist_group("spark"))
    items[:] = on_spark + [item for item in items if item not in set(on_spark)]


@pytest.fixture(autouse=True)
def _measure_where_it_tells_something(request: pytest.FixtureRequest) -> Iterator[None]:
    measuring = Coverage.current()
    path = request.path
    counts = path.parent.name in MEASURED and not any(word in path.name for word in LONG)
    if measuring is None or counts:
        yield
        return
    measuring.stop()
    yield
    measuring.start()
