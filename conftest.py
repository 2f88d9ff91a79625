"""What holds for all tests."""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

import pytest
from coverage import Coverage
from xdist.scheduler import LoadScopeScheduling


def _measure_no_children() -> None:
    """The worker itself is measured; programs that tests start need not be, and are quicker so.
    One that is interrupted while its tracer has a lock would even wait for that for ever."""
    for name in [name for name in os.environ if "COVERAGE" in name]:
        del os.environ[name]


if "PYTEST_XDIST_WORKER" in os.environ:
    _measure_no_children()

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # A shell lets what it starts in the background ignore interrupts; some tests send them.
    signal.signal(signal.SIGINT, signal.default_int_handler)

MEASURED: Final = ("core", "scenarios", "sim")
"""The folders whose tests count for the coverage of the core's branches."""

SECONDS_MAX: Final = 60.0
"""What an asynchronous test may take, unless it is marked with `seconds`."""

LONG: Final = ("complexity", "explore", "machine", "mutants", "positive_ack", "swarm")
"""Runs that go the same ways over and over: being measured, they would take three times as long
and find no branch that the others leave out."""


class SparkTogether(LoadScopeScheduling):  # type: ignore[misc]
    """One worker does all that uses Spark, the others the rest, test by test: Java is slow to warm
    up.  The largest scope is the first to be given out."""

    def _split_scope(self, nodeid: str) -> str:
        return "spark" if nodeid.startswith("tests/pipeline/") else nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> SparkTogether:
    return SparkTogether(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Hanging is failing: asynchronous tests get a bound."""
    for item in items:
        if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj):
            mark = item.get_closest_marker("seconds")
            item.obj = _bounded(item.obj, mark.args[0] if mark else SECONDS_MAX)


def _bounded(test: Callable[..., Awaitable[None]], seconds: float) -> Callable[..., Any]:
    @functools.wraps(test)
    async def bounded(*args: Any, **kwargs: Any) -> None:
        async with asyncio.timeout(seconds):
            await test(*args, **kwargs)

    return bounded


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
    measuring.start()  # which puts its variable back
    _measure_no_children()
