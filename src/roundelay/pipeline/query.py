"""Finding messages in archives and journals, which are one table (`journals.messages`).

    rows = found_in(spark, paths, Search(conferences=frozenset({7}), text="late"))

Payloads are bytes: `text` is the payload where it is UTF-8 and null where it is not, and JSON
fields of what is no JSON are null; no payload makes a query fail.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from roundelay.core.errors import ConfigError
from roundelay.core.selection import EVERYTHING, Selection
from roundelay.pipeline.journals import messages

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

VIEW: Final = "messages"
SQL: Final = re.compile(r"\s*(\(\s*)*(select|with|values|table)\b", re.IGNORECASE)
JSON_PATH: Final = re.compile(r"[\w-]+(\.[\w-]+|\[(\d+|\*)\])*")
TIME_FORMAT: Final = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'"


class Search(Struct, frozen=True, kw_only=True):
    """What is looked for: everything that is given must hold."""

    groups: frozenset[str] | None = None
    selection: Selection = EVERYTHING
    text: tuple[str, ...] = ()
    """Parts of the payload, upper and lower case alike."""
    json_fields: tuple[tuple[str, str], ...] = ()
    """(path, value): a field of a JSON payload."""
    query: str = ""
    """A condition in SQL over the columns, or a whole SELECT over `messages`."""

    @property
    def is_sql(self) -> bool:
        return bool(SQL.match(self.query))


def json_field(text: str) -> tuple[str, str]:
    """A field and its value, as the command takes them.

    >>> json_field("order.lines[0].item=screw")
    ('$.order.lines[0].item', 'screw')
    """
    path, sign, value = text.partition("=")
    path = path.strip()
    if path.startswith("$"):
        path = path[1:].removeprefix(".")
    if not sign or not JSON_PATH.fullmatch(path):
        raise ConfigError("json_field", text, "path=value, such as order.lines[0].item=screw")
    return f"$.{path}", value


# ------------------------------------------------------------------------ searching


def with_text(frame: DataFrame) -> DataFrame:
    """The messages and their payload as text; null where it is not UTF-8."""
    from pyspark.sql.functions import col, try_validate_utf8

    return frame.withColumn("text", try_validate_utf8(col("data").cast("string")))


def found_in(
    spark: SparkSession, paths: Iterable[Path], search: Search, *, native: bool = True
) -> DataFrame:
    """The rows that are looked for, by group and position; of a SELECT, whatever it gives."""
    frame = with_text(messages(spark, paths, search.selection, search.groups, native=native))
    for condition in conditions(search):
        frame = frame.where(condition)
    if search.is_sql:
        frame.createOrReplaceTempView(VIEW)
        return spark.sql(search.query)
    return frame.drop("text").orderBy("group", "seq")


def conditions(search: Search) -> list[Column]:
    """What must hold of a row beside the selection, which is looked after where rows are read."""
    from pyspark.sql.functions import col, contains, expr, lit, lower, make_valid_utf8

    # Bytes that are no UTF-8 become replacement signs: words beside them are found all the same.
    words = lower(make_valid_utf8(col("data").cast("string")))
    columns = [contains(words, lit(word.lower())) for word in search.text]
    columns += [_is(path, value) for path, value in search.json_fields]
    if search.query and not search.is_sql:
        columns.append(expr(search.query))
    return columns


def _is(path: str, value: str) -> Column:
    from pyspark.sql.functions import col, get_json_object, lit

    field = get_json_object(col("text"), path)
    same = field == lit(value)
    try:
        number = float(value)
    except ValueError:
        return same
    return same | (field.try_cast("double") == lit(number))


# ------------------------------------------------------------------------ giving it away


def printable(frame: DataFrame) -> DataFrame:
    """The same for formats without bytes: text, and base64 where it is none; times in ISO form."""
    from pyspark.sql.functions import base64, col, date_format, try_validate_utf8, when
    from pyspark.sql.types import BinaryType, TimestampType

    columns = []
    for field in frame.schema.fields:
        value = col(f"`{field.name}`")
        if isinstance(field.dataType, TimestampType):
            columns.append(date_format(value, TIME_FORMAT).alias(field.name))
        elif isinstance(field.dataType, BinaryType):
            text = try_validate_utf8(value.cast("string"))
            columns.append(text.alias(field.name))
            other = "base64" if field.name == "data" else f"{field.name}_base64"
            columns.append(when(text.isNull(), base64(value)).alias(other))
        else:
            columns.append(value)
    return frame.select(*columns)
