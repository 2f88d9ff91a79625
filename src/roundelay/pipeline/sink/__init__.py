"""The sink: rows of a query broadcast into a group, each exactly once.

::

    df.writeStream.format("roundelay").option("node", "127.0.0.1:6678") \\
        .option("group", "token:results").option("checkpointLocation", DIR).start()

Rows need a column `data` (binary or string) or have one column only; `conference` and `kind` are
heeded if they are there.  They are sent in the order of partitions and rows.

How it is exactly once.  Tasks put rows aside (`stage`); Spark's commit of an epoch, which one
process does at a time, sends them:

1. It connects to the node and waits until it is the only one there for this query.  A commit whose
   driver was killed may still be running, and what it sent may still be in its socket; when its
   connection is gone, the node has taken or dropped all of it.
2. An epoch that is done is done: Spark repeats a commit that it did not hear the end of.
3. An epoch that was not begun gets its list of parts, which fixes its rows, and the position from
   which on they can be found in the group; then its rows are sent with a marker in front of each
   packet (`envelope`).
4. An epoch that was begun is read back: first a *fence* is sent, a marker with no rows.  A node
   orders what it was given in the order it was given, so when the fence has its position
   everything sent before is below it.  Between the two positions the markers say which rows are
   there.  The others are sent.
5. When the last receipt is in, the epoch is marked as done, and its parts are removed.

So a row is in the group exactly once whenever the query's processes are killed, and however often.
When the node itself is killed in the middle of a packet, the group may have the marker and the
first of its rows; the rows themselves are then compared with those put aside to see how many.
"""

from __future__ import annotations

import json
import random
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from msgspec import Struct, structs
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from roundelay.client.publisher import Publisher
from roundelay.client.recorder import RecorderClient
from roundelay.core.bundle import Bundle
from roundelay.core.errors import (
    ConfigError,
    ConnectionLost,
    Indeterminate,
    NodeUnreachable,
    Refused,
    RoundelayError,
)
from roundelay.core.limits import one_of
from roundelay.core.positions import Range, difference, union
from roundelay.journal.format import GAP
from roundelay.pipeline.journals import is_ordered
from roundelay.pipeline.sink.envelope import FENCE, Marker, decode_marker, encode_marker, query_id
from roundelay.pipeline.sink.stage import EpochManifest, PartFile, Stage
from roundelay.pipeline.source.options import known_options, number
from roundelay.pipeline.source.plan import local_path
from roundelay.pipeline.spark.scratch import private_temporary_folder

PARCEL_BYTES: Final = 24 << 10
PARCEL_ROWS: Final = 512
RETRY_S: Final = 0.5
STAGED: Final = pa.schema(
    [
        pa.field("data", pa.binary(), nullable=False),
        pa.field("conference", pa.int64(), nullable=False),
        pa.field("kind", pa.int64(), nullable=False),
    ]
)
KNOWN: Final = {
    "node": "HOST:PORT or unix:PATH of the node to send through",
    "group": "full name of the group, of a service with a total order",
    "query": "name of the query; otherwise that of its checkpoint",
    "stage": "folder that executors and driver share; otherwise in the checkpoint",
    "recorders": "recorders that must have synced each row; otherwise 1 if there is one",
    "timeout": "seconds that a commit may take to reach the node and the group",
    "checkpointlocation": "Spark's own",
    "path": "not used",
}


class SinkTrouble(RoundelayError):
    """A commit that could not be done now; the query goes on from here when it is restarted."""


class SinkSettings(Struct, frozen=True):
    """The options, checked."""

    node: str
    group: str
    query: str
    stage: str
    recorders: int = -1
    timeout_s: float = 120.0

    @property
    def id(self) -> bytes:
        return query_id(self.query)

    @property
    def folder(self) -> Path:
        return Path(self.stage) / f"sink-{self.id.hex()[:16]}"


def parse(options: Mapping[str, str], streaming: bool) -> SinkSettings:
    given = known_options(options, KNOWN)
    for key in ("node", "group"):
        if not given.get(key):
            raise ConfigError(key, "", KNOWN[key])
    if not is_ordered(given["group"]):
        allowed = (
            "a group with a total order (token:, to:, grsb:, wide:): in others nobody can tell "
            "which rows are there already"
        )
        raise ConfigError("group", given["group"], allowed)
    recorders = number("recorders", given["recorders"]) if "recorders" in given else -1
    timeout_s = float(number("timeout", given.get("timeout", "120")))
    stage, query = given.get("stage", ""), given.get("query", "")
    checkpoint = given.get("checkpointlocation", "")
    if streaming:
        if not stage and not checkpoint:
            allowed = "a folder that executors and driver share, or option checkpointLocation"
            raise ConfigError("stage", "", allowed)
        named = (stage, "stage") if stage else (checkpoint, "checkpointLocation")
        stage = local_path(*named)
        query = query or _checkpoint_id(checkpoint)
    elif not stage:
        stage = str(private_temporary_folder() / "stage")
    query = query or uuid.uuid4().hex
    return SinkSettings(given["node"], given["group"], query, stage, recorders, timeout_s)


def _checkpoint_id(checkpoint: str) -> str:
    """The id that Spark gave the query; it stays with the checkpoint."""
    if not checkpoint:
        raise ConfigError("query", "", "a name for this query, or option checkpointLocation")
    path = Path(local_path(checkpoint, "checkpointLocation")) / "metadata"
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))["id"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            "query", "", f"a name for this query: {path} does not say one ({error})"
        ) from None


# ------------------------------------------------------------------------ what Spark calls


class Staged(WriterCommitMessage):
    """What a task tells the commit."""

    def __init__(self, part: PartFile) -> None:
        self.part = part


class _Sink:
    """What both sinks have in common."""

    def __init__(self, settings: SinkSettings, schema: StructType) -> None:
        names = schema.names
        self.column = "data" if "data" in names or len(names) != 1 else names[0]
        if self.column not in names:
            raise ConfigError("columns", ", ".join(names), "one called data, or a single column")
        kind = schema[self.column].dataType.typeName()
        one_of(self.column, kind, ("binary", "string"))
        self.settings = settings

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        from pyspark import TaskContext

        context = TaskContext.get()
        partition = context.partitionId() if context is not None else 0
        stage = Stage(self.settings.folder)
        return Staged(stage.write(partition, map(self._shaped, iterator), STAGED))

    def _shaped(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        data = batch.column(self.column)
        if data.null_count:
            raise ConfigError(self.column, "null", "a value in every row")
        columns = [data.cast(pa.binary())]
        for name in ("conference", "kind"):
            if name in batch.schema.names:
                columns.append(batch.column(name).cast(pa.int64()).fill_null(0))
            else:
                columns.append(pa.repeat(pa.scalar(0, pa.int64()), batch.num_rows))
        return pa.RecordBatch.from_arrays(columns, schema=STAGED)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int = 0) -> None:  # noqa: N803
        Stage(self.settings.folder).discard(_parts(messages))


def _parts(messages: Sequence[WriterCommitMessage | None]) -> list[PartFile]:
    return [message.part for message in messages if isinstance(message, Staged)]


class StreamSink(_Sink, DataSourceStreamArrowWriter):
    """Of a streaming query."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        super().__init__(parse(options, streaming=True), schema)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        commit(self.settings, _parts(messages), batchId)


class BatchSink(_Sink, DataSourceArrowWriter):
    """Of `df.write`: the whole of it is one epoch."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        super().__init__(parse(options, streaming=False), schema)
        if overwrite:
            raise ConfigError(
                "mode", "overwrite", "append: what was broadcast cannot be taken back"
            )
        self._named = "query" in {key.lower() for key in options}

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        commit(self.settings, _parts(messages), 0)
        if not self._named:  # nobody can come back to it
            shutil.rmtree(self.settings.folder, ignore_errors=True)


# ------------------------------------------------------------------------ the commit


def commit(settings: SinkSettings, parts: Sequence[PartFile], epoch: int) -> None:
    """Send the rows of an epoch that are not in the group yet.  See the module."""
    stage = Stage(settings.folder)
    deadline = time.monotonic() + settings.timeout_s
    while True:
        try:
            with alone(settings, deadline) as publisher:
                if stage.done < epoch:
                    _send(settings, stage, publisher, parts, epoch, deadline)
                    stage.finish(epoch)
                # While nobody else is here: a later epoch of another driver has not begun.
                stage.collect()
            return
        except (ConnectionLost, NodeUnreachable, Indeterminate) as error:
            # Whatever was sent, the next turn finds it in the group.
            if time.monotonic() > deadline:
                raise SinkTrouble(
                    f"epoch {epoch} of {settings.query} could not be sent in "
                    f"{settings.timeout_s:.0f} s: {error}"
                ) from error
            time.sleep(RETRY_S)


@contextmanager
def alone(settings: SinkSettings, deadline: float) -> Iterator[Publisher]:
    """A connection of which there is one only, for this query, at the node."""
    label = f"spark sink {settings.id.hex()}"
    while True:
        mine = f"{label} {uuid.uuid4().hex[:12]}"
        with Publisher(settings.node, settings.group, name=mine) as publisher:
            if not [name for name in publisher.names() if name.startswith(label) and name != mine]:
                yield publisher
                return
        if time.monotonic() > deadline:
            raise SinkTrouble(
                f"another process is sending for the query {settings.query} through "
                f"{settings.node}: stop it"
            )
        # Two that met leave both; who comes back first finds nobody there.
        time.sleep(random.uniform(0.05, 0.5))


def _send(
    settings: SinkSettings,
    stage: Stage,
    publisher: Publisher,
    parts: Sequence[PartFile],
    epoch: int,
    deadline: float,
) -> None:
    recorded = _recorded(settings)
    recorders = settings.recorders if settings.recorders >= 0 else int(recorded is not None)
    manifest = stage.manifest(epoch)
    there: dict[int, list[Range]] = {}
    if manifest is None:
        since = recorded if recorded is not None else _position(publisher)
        ordered = tuple(sorted(parts, key=lambda part: part.partition))
        manifest = stage.name(EpochManifest(epoch, since, ordered, (publisher.node,)))
    else:
        if publisher.node not in manifest.nodes:
            _check_left(publisher, manifest)
            nodes = (*manifest.nodes, publisher.node)
            manifest = stage.name(structs.replace(manifest, nodes=nodes))
        there = published(settings, stage, publisher, manifest, recorders, deadline)
    parcels = chain.from_iterable(
        parcels_of(stage, part, settings.id, epoch, there.get(part.partition, ()))
        for part in manifest.parts
    )
    for _ in publisher.send(parcels, recorders=recorders):
        pass


def _check_left(publisher: Publisher, manifest: EpochManifest) -> None:
    """An epoch that was begun through another node can go on here if that one has left: what it
    had not sent by then is not sent any more."""
    members = publisher.ask("members", publisher.group).get("members", ())
    there = {member["name"] for member in members if member.get("in_view")}
    for name in manifest.nodes:
        if name in there:
            raise SinkTrouble(
                f"epoch {manifest.epoch} was begun through the node {name}, which may still send "
                f"rows of it to {publisher.group}: go on through that node, or stop it"
            )


def _recorded(settings: SinkSettings) -> int | None:
    """The position behind all that is recorded; None where nobody records the group."""
    try:
        with RecorderClient(settings.node, settings.group) as client:
            return client.status().next
    except (Refused, ConfigError, ValueError):
        return None


def _position(publisher: Publisher) -> int:
    """Where the group is, as the node knows it."""
    for entry in publisher.ask("groups"):
        if entry.get("group", entry.get("name")) == publisher.group:
            return max(0, int(entry.get("position", 0)))
    return 0


def parcels_of(
    stage: Stage, part: PartFile, query: bytes, epoch: int, there: Sequence[Range]
) -> Iterator[Bundle]:
    """What of a part is not there yet, in packets, each with its marker."""
    import numpy as np

    at = 0
    for batch in stage.read(part):
        data = batch.column(0)
        offsets = np.frombuffer(data.buffers()[1], np.int32)[data.offset :][: len(data) + 1]
        heap = data.buffers()[2]
        mark = np.stack([batch.column(1).to_numpy(), batch.column(2).to_numpy()])
        changes = np.flatnonzero((mark[:, 1:] != mark[:, :-1]).any(axis=0)) + 1
        for lo, hi in difference([(at, at + len(data))], there):
            row, last = lo - at, hi - at
            while row < last:
                end = int(np.searchsorted(offsets, offsets[row] + PARCEL_BYTES, "right")) - 1
                following = int(np.searchsorted(changes, row, "right"))
                change = int(changes[following]) if following < len(changes) else last
                end = max(row + 1, min(end, row + PARCEL_ROWS, change, last))
                first = encode_marker(Marker(query, epoch, part.partition, at + row, end - row))
                sizes = np.diff(offsets[row : end + 1]).tolist()
                start, stop = int(offsets[row]), int(offsets[end])
                content = heap.slice(start, stop - start).to_pybytes() if stop > start else b""
                bundle = Bundle((len(first), *sizes), first + content)
                yield bundle.marked(int(mark[0, row]), int(mark[1, row]))
                row = end
        at += len(data)


# ------------------------------------------------------------------------ reading back


def published(
    settings: SinkSettings,
    stage: Stage,
    publisher: Publisher,
    manifest: EpochManifest,
    recorders: int,
    deadline: float,
) -> dict[int, list[Range]]:
    """Rows of an epoch that are in the group already, by partition."""
    fence = encode_marker(Marker(settings.id, manifest.epoch, FENCE, 0, 0))
    (until,) = publisher.send([Bundle.of(fence)], recorders=recorders)
    rows = _PublishedRows(settings.id, stage, manifest)
    at = manifest.since
    while at < until:
        try:
            with RecorderClient(settings.node, settings.group) as client:
                for run in client.read(at, until, sender=manifest.nodes):
                    if run.flags & GAP:
                        raise SinkTrouble(
                            f"group {settings.group}: nobody has positions {run.position} to "
                            f"{run.end - 1}, so nobody can tell which rows of epoch "
                            f"{manifest.epoch} are there"
                        )
                    rows.take(run.sender, run.bundle)
                    at = run.end
                at = max(at, client.next)
        except Refused:
            for _, sender, bundle in publisher.history(at, until):
                if sender in manifest.nodes:
                    rows.take(sender, bundle)
            break
        if at < until:
            if time.monotonic() > deadline:
                raise SinkTrouble(f"group {settings.group}: its recorder has not come to {until}")
            time.sleep(RETRY_S / 5)
    return rows.ranges()


class _PublishedRows:
    """Rows found in the group, as nodes sent them, in order."""

    def __init__(self, query: bytes, stage: Stage, manifest: EpochManifest) -> None:
        self._query = query
        self._stage = stage
        self._epoch = manifest.epoch
        self._parts = {part.partition: part for part in manifest.parts}
        self._staged: dict[int, Any] = {}
        self._rows: dict[int, list[Range]] = {}
        self._open: dict[str, tuple[Marker, int]] = {}
        """By sender: the marker whose rows are coming, and how many have come."""

    def take(self, sender: str, bundle: Bundle) -> None:
        for message in bundle:
            marker, rows = self._open.get(sender, (None, 0))
            if marker is not None:
                if message == self._row(marker.partition, marker.first + rows):
                    self._open[sender] = (marker, rows + 1)
                    if rows + 1 == marker.rows:
                        self._end(sender)
                    continue
                self._end(sender)  # the node was killed in the middle of it
            marker = decode_marker(message)
            if marker is not None and (marker.query, marker.epoch) == (self._query, self._epoch):
                self._open[sender] = (marker, 0)

    def _end(self, sender: str) -> None:
        marker, rows = self._open.pop(sender)
        if rows:
            self._rows.setdefault(marker.partition, []).append((marker.first, marker.first + rows))

    def _row(self, partition: int, row: int) -> bytes | None:
        """What was put aside there."""
        table = self._staged.get(partition)
        if table is None:
            part = self._parts.get(partition)
            batches = [] if part is None else [batch.column(0) for batch in self._stage.read(part)]
            table = self._staged[partition] = pa.chunked_array(batches, pa.binary())
        return table[row].as_py() if row < len(table) else None

    def ranges(self) -> dict[int, list[Range]]:
        for sender in list(self._open):
            self._end(sender)
        return {partition: union(spans) for partition, spans in self._rows.items()}
