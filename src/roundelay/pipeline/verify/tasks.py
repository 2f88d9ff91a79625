"""Where the work of `verify` is done: a function is called on many items, each in its own task."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from roundelay.core.errors import UsageError
from roundelay.trace.schema import arrow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Mapper = Callable[[Callable[[Any], bytes], Sequence[Any]], list[bytes]]
"""Calls a function on each item, somewhere, and returns what came of it in the same order."""

RIGHT: Final = b"+"
WRONG: Final = b"-"


def here(call: Callable[[Any], bytes], items: Sequence[Any]) -> list[bytes]:
    """In this process."""
    return [call(item) for item in items]


def on(spark: SparkSession) -> Mapper:
    """In tasks of Spark, one per item; each returns one small value."""

    def mapped(call: Callable[[Any], bytes], items: Sequence[Any]) -> list[bytes]:
        pa = arrow()

        def task(batches: Iterator[Any]) -> Iterator[Any]:
            for batch in batches:
                for i in batch.column(0).to_pylist():
                    result = pa.array([_outcome(call, items[i])], pa.binary())
                    yield pa.record_batch({"id": pa.array([i]), "result": result})

        count = len(items)
        if not count:
            return []
        rows = spark.range(0, count, 1, count).mapInArrow(task, "id long, result binary").collect()
        results = [bytes(row.result) for row in sorted(rows, key=lambda row: int(row.id))]
        for result in results:
            if result[:1] == WRONG:
                raise UsageError(result[1:].decode())
        return [result[1:] for result in results]

    return mapped


def _outcome(call: Callable[[Any], bytes], item: Any) -> bytes:
    """What came of it; wrong input is an answer, too, and no failure of the job."""
    try:
        return RIGHT + call(item)
    except UsageError as error:
        return WRONG + str(error).encode()
