"""Where a driver's raw rows go: into a hash, and into a trace file if one is wanted.

The hash is the run's identity: the same seed must give the same one, in any process, with a file
or without, however often rows are flushed.  It is SHA-256 over two streams, each the plain
concatenation of what its rows contribute: the MessagePack encoding of every row, and the class
name of every PDU sent (MessagePack encodes a struct's fields, not its class, and INVITE, ABORT
and NEW_TOKEN have the same fields).  A notice counts as its kind and info.

Encoding some thousand rows in one call is what makes it cheap; an array's encoding is a header
and then its items, so the header is cut off to leave the concatenation of the rows.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from hashlib import sha256
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from roundelay.core.errors import UsageError
from roundelay.core.events import EVENT_NAMES, NOTICE, SEND, Row
from roundelay.core.notices import Notice
from roundelay.trace.schema import (
    RUN_KEY,
    VERSION,
    VERSION_KEY,
    Flattener,
    arrow,
    arrow_schema,
    parquet,
)

GROUP_ROWS: Final = 65_536
"""Rows in one row group of the file: large enough to compress, small enough to hold."""

_event = itemgetter(2)


class PlainNotice(msgspec.Struct):
    """A notice of whatever class."""

    kind: str
    info: tuple[object, ...]


def _plain(rows: list[Row]) -> list[Row]:
    """`rows` with plain notices."""
    return [
        (*row[:5], PlainNotice(row[5].kind, row[5].info)) if isinstance(row[5], Notice) else row
        for row in rows
    ]


class Recorder:
    """Takes raw rows through `rows` (or `append`), hashes them, and writes them to `path`.

    `params` are the run's parameters; they become metadata of the file and must be what JSON can
    say.  The file appears under its name only when the recorder is closed, so whatever bears the
    name is complete.

    >>> with Recorder() as recorder:
    ...     recorder.append((0, -1, 12, -1, -1, "end"))
    >>> recorder.counts
    {'MARK': 1}
    """

    def __init__(
        self, path: Path | None = None, *, params: Mapping[str, object] | None = None
    ) -> None:
        self.rows: list[Row] = []
        self.append = self.rows.append
        self.path = path
        self._encoder = msgspec.msgpack.Encoder(order="deterministic")
        self._buffer = bytearray()
        self._hash = sha256()
        self._name_hash = sha256()
        self._counts: Counter[int] = Counter()
        self._file = None if path is None else TraceWriter(path, params or {})

    def flush(self) -> None:
        """Take in the rows that have gathered, and empty the list."""
        rows = self.rows
        if not rows:
            return
        counts = Counter(map(_event, rows))
        self._encoder.encode_into(_plain(rows) if NOTICE in counts else rows, self._buffer)
        count = len(rows)
        header = 1 if count < 16 else 3 if count < 65_536 else 5
        with memoryview(self._buffer) as view:
            self._hash.update(view[header:])
        names = [type(row[5]).__name__ for row in rows if row[2] == SEND]
        if names:
            names.append("")
            self._name_hash.update("\n".join(names).encode())
        self._counts.update(counts)
        if self._file is not None:
            self._file.write(rows)
        rows.clear()

    def sha256(self) -> str:
        """The hash of all rows so far, in hexadecimal."""
        self.flush()
        return sha256(self._hash.digest() + self._name_hash.digest()).hexdigest()

    @property
    def counts(self) -> dict[str, int]:
        """How many rows there were of each event, by name."""
        self.flush()
        return {EVENT_NAMES[code]: self._counts[code] for code in sorted(self._counts)}

    def close(self) -> None:
        """Take in what is left and give the file its name.  Closing twice is harmless."""
        self.flush()
        if self._file is not None:
            self._file.close()
            self._file = None

    def discard(self) -> None:
        """Leave no file behind."""
        self.rows.clear()
        if self._file is not None:
            self._file.discard()
            self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()


class TraceWriter:
    """A Parquet file in the making, under a temporary name beside its own."""

    def __init__(self, path: Path, params: Mapping[str, object]) -> None:
        pq = parquet()
        metadata = {
            VERSION_KEY: str(VERSION).encode(),
            RUN_KEY: msgspec.json.encode(params, order="deterministic"),
        }
        self._path = path
        self._temporary = path.with_name(path.name + ".part")
        self.schema = arrow_schema(metadata)
        try:
            self._writer: Any = pq.ParquetWriter(
                self._temporary,
                self.schema,
                compression="zstd",
                use_dictionary=["event", "kind", "info", "site", "peer", "source", "by", "next"],
            )
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror or error}") from None
        self._flattener = Flattener()
        self._batches: list[Any] = []
        self._gathered = 0

    def write(self, rows: list[Row]) -> None:
        for start in range(0, len(rows), GROUP_ROWS):
            part = rows[start : start + GROUP_ROWS]
            self.add(self._flattener.record_batch(part, self.schema))

    def add(self, batch: Any) -> None:
        """Take in rows as an Arrow record batch of `schema`."""
        if self._gathered + len(batch) > GROUP_ROWS:
            self._write_group()
        self._batches.append(batch)
        self._gathered += len(batch)

    def _write_group(self) -> None:
        if self._batches:
            table = arrow().Table.from_batches(self._batches, self.schema)
            self._writer.write_table(table, row_group_size=GROUP_ROWS)
            self._batches.clear()
            self._gathered = 0

    def close(self) -> None:
        self._write_group()
        self._writer.close()
        os.replace(self._temporary, self._path)

    def discard(self) -> None:
        self._batches.clear()
        self._writer.close()
        self._temporary.unlink(missing_ok=True)
