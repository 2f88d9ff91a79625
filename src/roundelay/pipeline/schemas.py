"""What the columns of each table are: one place, versioned, for Spark.

The Arrow schemas stand where the files are written: messages in `roundelay.journal.parquet`, traces
in `roundelay.trace.schema`.  Spark's are made from them here, never written a second time.  The
version is in the metadata of the Arrow schema and, because Spark has no metadata for a whole table,
in that of the first column.

    messages    what groups delivered: journals, archives, the data source `roundelay`
    trace       what happened at each site
    gaps        positions that a journal ought to have and does not
    runs        what a sweep measured, a row per run (`sweep`)
    summary     its means, a row per point and measure (`sweep`)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from roundelay.core.errors import ConfigError
from roundelay.journal import parquet as journal
from roundelay.trace import schema as trace

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

MESSAGES: Final = "messages"
TRACE: Final = "trace"
GAPS: Final = "gaps"
RUNS: Final = "runs"
SUMMARY: Final = "summary"
GAPS_VERSION: Final = 1
GAPS_VERSION_KEY: Final = b"roundelay.gaps.version"


def _gaps() -> Any:
    pa = journal.arrow()
    return pa.schema(
        [
            pa.field("group", pa.string(), nullable=False),
            pa.field("journal", pa.string(), nullable=False),
            pa.field("since", pa.int64(), nullable=False),
            pa.field("until", pa.int64(), nullable=False),
        ],
        metadata={GAPS_VERSION_KEY: str(GAPS_VERSION).encode()},
    )


def _of_sweep(columns: str) -> Any:
    from roundelay.pipeline.research import sweep

    return sweep.arrow_schema(getattr(sweep, columns))


TABLES: Final[dict[str, Callable[[], Any]]] = {
    MESSAGES: journal.schema,
    TRACE: lambda: trace.arrow_schema({trace.VERSION_KEY: str(trace.VERSION).encode()}),
    GAPS: _gaps,
    RUNS: lambda: _of_sweep("RUN_COLUMNS"),
    SUMMARY: lambda: _of_sweep("SUMMARY_COLUMNS"),
}


def arrow_schema(table: str) -> Any:
    """The Arrow schema of a table, with its version in the metadata."""
    if table not in TABLES:
        raise ConfigError("table", table, "one of " + ", ".join(TABLES))
    return TABLES[table]()


def spark_schema(table: str) -> StructType:
    """The same for Spark; its metadata goes to the first column."""
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.types import StructField, StructType

    schema = arrow_schema(table)
    metadata = {key.decode(): text.decode() for key, text in (schema.metadata or {}).items()}
    first, *others = from_arrow_schema(schema).fields
    return StructType([StructField(first.name, first.dataType, first.nullable, metadata), *others])
