"""The marker: how a sink recognises, in the group itself, what it has already sent.

Rows travel as they are.  In front of each packet of rows goes one message more, the *marker*,
which says which rows follow::

    off  size  field                                   all numbers big-endian
      0     8  F5 "RNDLSK" 31                          F5 is in no UTF-8 text
      8    16  query: BLAKE2b-16 of its name
     24     8  epoch: the micro-batch
     32     4  partition
     36     8  first row
     44     4  rows that follow; 0: a fence, nothing follows
     48     4  CRC-32C of what is before it

So the key of each row is (query, epoch, partition, first row + i).  Marker and rows are sent in one
packet and stay together and in order: between them comes nothing of the same node.  The data
source leaves markers out; who reads a group by other means knows them by their first 8 bytes.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c
from msgspec import Struct

MAGIC: Final = b"\xf5RNDLSK1"
_LAYOUT: Final = struct.Struct(">8s16sQIQI")
_CHECK: Final = struct.Struct(">I")
MARKER_BYTES: Final = _LAYOUT.size + _CHECK.size
FENCE: Final = 0xFFFFFFFF
"""Partition of a fence."""


class Marker(Struct, frozen=True):
    """Which rows follow it."""

    query: bytes
    epoch: int
    partition: int
    first: int
    rows: int


def query_id(name: str) -> bytes:
    return hashlib.blake2b(name.encode(), digest_size=16).digest()


def encode_marker(marker: Marker) -> bytes:
    """
    >>> one = Marker(query_id("q"), 3, 0, 100, 20)
    >>> decode_marker(encode_marker(one)) == one
    True
    """
    body = _LAYOUT.pack(
        MAGIC, marker.query, marker.epoch, marker.partition, marker.first, marker.rows
    )
    return body + _CHECK.pack(crc32c(body))


def decode_marker(data: bytes) -> Marker | None:
    """What `data` says if it is a marker."""
    if len(data) != MARKER_BYTES or not data.startswith(MAGIC):
        return None
    if _CHECK.unpack_from(data, _LAYOUT.size)[0] != crc32c(data[: _LAYOUT.size]):
        return None
    return Marker(*_LAYOUT.unpack_from(data)[1:])


def drop_markers(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows that are not markers."""
    data = batch.column("data")
    marked = pc.starts_with(data, MAGIC).fill_null(False)
    if not marked.true_count:
        return batch
    sized = pc.equal(pc.binary_length(data), MARKER_BYTES).fill_null(False)
    return batch.filter(pc.invert(pc.and_(marked, sized)))
