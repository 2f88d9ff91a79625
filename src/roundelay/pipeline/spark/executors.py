"""Work on the executors: a function called on many items, some of them in each task.

Items go there as JSON, so they are small structs that hold no open files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from roundelay.core.errors import UsageError
from roundelay.journal.arrow import PIECE_BYTES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

BIN_BYTES_MIN: Final = 1 << 20
BINS: Final = 64
"""So many tasks, unless they would be tiny or huge."""

T = TypeVar("T", bound=Any)
A = TypeVar("A")


def packed(
    items: Iterable[T], room: float, size: Callable[[T], float] = attrgetter("bytes")
) -> list[list[T]]:
    """The items in their order, put together as long as there is room.

    >>> packed([3, 4, 9, 1], 8, size=float)
    [[3, 4], [9], [1]]
    """
    packs: list[list[T]] = []
    used = 0.0
    for item in items:
        if not packs or used + size(item) > room:
            packs.append([])
            used = 0.0
        packs[-1].append(item)
        used += size(item)
    return packs


def by_bytes(items: Iterable[T]) -> list[list[T]]:
    """The items in bins, in their order, each about as much as a task should do."""
    items = list(items)
    total = sum(item.bytes for item in items)
    return packed(items, max(BIN_BYTES_MIN, min(PIECE_BYTES, total // BINS)))


def on_executors(
    spark: SparkSession,
    bins: Sequence[Sequence[T]],
    work: Callable[[T], Iterator[Any]],
    schema: StructType | str,
) -> DataFrame:
    """The record batches that `work` makes of each item, in their order; a bin is a task."""
    if not bins:
        return spark.createDataFrame([], schema)
    kind: Any = type(bins[0][0])

    def task(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            for text in batch.column("items").to_pylist():
                for item in msgspec.json.decode(text, type=list[kind]):
                    yield from work(item)

    rows = [(number, msgspec.json.encode(items).decode()) for number, items in enumerate(bins)]
    frame = spark.createDataFrame(rows, "bin int, items string")
    return frame.repartitionById(len(bins), "bin").mapInArrow(task, schema)


def answers(
    spark: SparkSession, bins: Sequence[Sequence[T]], work: Callable[[T], Any], kind: type[A]
) -> list[A]:
    """What `work` makes of each item, in their order; answers are few and small.

    Wrong input is an answer, too, and no failure of the job: its UsageError is raised here.
    """

    def answer(item: T) -> Iterator[Any]:
        import pyarrow as pa

        try:
            told: tuple[Any, str | None] = work(item), None
        except UsageError as error:
            told = None, str(error)
        yield pa.RecordBatch.from_pydict({"answer": [msgspec.msgpack.encode(told)]})

    rows = on_executors(spark, bins, answer, "answer binary").collect() if bins else []
    decoder: Any = msgspec.msgpack.Decoder(tuple[kind | None, str | None])  # type: ignore[valid-type]
    told = [decoder.decode(row.answer) for row in rows]
    for _, wrong in told:
        if wrong is not None:
            raise UsageError(wrong)
    return [answer for answer, _ in told]


Mapper = Callable[[Sequence[Sequence[Any]], Callable[[Any], Any], Any], list[Any]]
"""`answers` wherever there is Spark; what calls the function right here will do as well."""
